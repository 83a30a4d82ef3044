//! The fences of a hand: per scope, the highest generation seen and the runs that are sealed.
//!
//! Each scope has a record `HASH.json` and a lock `HASH.lock` in the home's folder `fences`; HASH is the scope's hash
//! under the home's secret. An admission holds the lock shared from its check to its publication. Raising and sealing
//! hold it exclusively: when they return, every admission that passed before them is visible, and every later one is
//! judged by what they wrote. Scopes never wait for one another.
//!
//! The kernel lets new shared holders pass one that waits for the lock alone, so a stream of admissions could keep a seal
//! waiting for ever. Who waits puts up a gate (`HASH.gate`, locked), and admissions that come later wait behind it.
//!
//! A home of an earlier version has one `fence.json` for all scopes. It is not written any more, and what it says stays
//! the least that holds.

use crate::files;
use crate::home::Home;
use crate::job::read_json;
use outlast_core::fence::{ClosedGeneration, FENCE_SCHEMA, Passage, check_admission};
pub use outlast_core::fence::{FenceRecord, SealedRun};
use outlast_core::id::{Generation, JobId, RunId, Scope};
use outlast_core::time::UnixMicros;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use thiserror::Error;

/// Why a fence was not raised, and a run not sealed.
#[derive(Debug, Error)]
pub enum FenceError {
    /// The caller's generation was closed.
    #[error(transparent)]
    Closed(#[from] ClosedGeneration),
    /// The record cannot be read or written. Whether it was changed is unknown: ask again.
    #[error("the fence cannot be used")]
    Storage(#[from] io::Error),
}

/// A sealed run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The jobs that were admitted under it in its scope and are still kept, in order. None is added from now on.
    pub jobs: Vec<JobId>,
    /// Jobs of this hand whose spec cannot be read: each of them may belong to the run.
    pub unreadable: Vec<JobId>,
    /// It had been sealed before.
    pub already: bool,
}

/// What this hand has seen of a scope.
///
/// # Errors
/// What the system says, or that the record is damaged.
pub fn look(home: &Home, scope: &Scope) -> io::Result<FenceRecord> {
    read(home, scope, &home.scope_hash(scope))
}

/// Raises the highest generation of a scope, durably, and returns it. Waits for the admissions that are under way there.
///
/// # Errors
/// [`FenceError::Closed`] where a higher one has been seen.
pub fn raise(home: &Home, scope: &Scope, generation: Generation) -> Result<Generation, FenceError> {
    let hash = home.scope_hash(scope);
    let _alone = alone(home, &hash)?;
    let mut record = read(home, scope, &hash)?;
    match record.raise(generation)? {
        true => write(home, &hash, &record)?,
        false => made_durable(home)?,
    }
    Ok(record.generation)
}

/// Seals a run: from now on nothing is admitted under it in this scope. Waits for the admissions that are under way there,
/// so that the list is whole. Sealing again answers the same and changes nothing.
///
/// # Errors
/// [`FenceError::Closed`] where a higher generation has been seen than the one that asks.
pub fn seal(home: &Home, scope: &Scope, run: &RunId, generation: Generation) -> Result<Sealed, FenceError> {
    let hash = home.scope_hash(scope);
    let _alone = alone(home, &hash)?;
    let mut record = read(home, scope, &hash)?;
    check_admission(generation, record.generation)?;
    // Listed under the lock, so that the seal's time is not before that of any job, whatever the clock was set to.
    let found = jobs_of_run(home, scope, run)?;
    let at = crate::clock::unix_now().max(found.latest);
    let before = record.generation;
    let new = record.seal(run, generation, at)?;
    match new || record.generation != before {
        true => write(home, &hash, &record)?,
        false => made_durable(home)?,
    }
    Ok(Sealed { jobs: found.jobs, unreadable: found.unreadable, already: !new })
}

/// The way of one admission through its scope's fence, to be kept until the job is published.
#[derive(Debug)]
pub(crate) struct Pass {
    _lock: OwnedFd,
    /// Its run is sealed: what exists may be found, and nothing is admitted.
    pub(crate) sealed: bool,
}

/// Checks an admission, raises the highest generation where it brings a higher one, and keeps the lock shared.
pub(crate) fn pass(
    home: &Home,
    scope: &Scope,
    generation: Generation,
    run: Option<&RunId>,
) -> Result<Pass, FenceError> {
    let hash = home.scope_hash(scope);
    loop {
        let shared = with_others(home, &hash)?;
        match read(home, scope, &hash)?.check(generation, run)? {
            Passage::Open => return Ok(Pass { _lock: shared, sealed: false }),
            Passage::Sealed => return Ok(Pass { _lock: shared, sealed: true }),
            // A lock cannot be changed in one step, so it is given up, and all is read again.
            Passage::Raises => drop(shared),
        }
        raise(home, scope, generation)?;
    }
}

/// Takes a scope's lock as an admission does.
fn with_others(home: &Home, hash: &str) -> io::Result<OwnedFd> {
    let fences = home.fences_dir()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(fences, format!("{hash}.gate"), flags, Mode::empty()) {
        // Whoever put it up has the lock, or is gone, once this passes.
        Ok(gate) => rustix::fs::flock(&gate, FlockOperation::LockShared)?,
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    lock(home, hash, FlockOperation::LockShared)
}

/// Takes a scope's lock alone.
fn alone(home: &Home, hash: &str) -> io::Result<OwnedFd> {
    let fences = home.fences_dir()?;
    let name = format!("{hash}.gate");
    let _gate = loop {
        let gate = files::open_lock_file(fences, &name)?;
        rustix::fs::flock(&gate, FlockOperation::LockExclusive)?;
        // The one before took its gate away.
        if files::still_named(fences, &name, &gate) {
            break gate;
        }
    };
    let lock = lock(home, hash, FlockOperation::LockExclusive);
    let _ = rustix::fs::unlinkat(fences, name.as_str(), AtFlags::empty());
    lock
}

fn lock(home: &Home, hash: &str, operation: FlockOperation) -> io::Result<OwnedFd> {
    let file = files::open_lock_file(home.fences_dir()?, &format!("{hash}.lock"))?;
    rustix::fs::flock(&file, operation)?;
    Ok(file)
}

fn read(home: &Home, scope: &Scope, hash: &str) -> io::Result<FenceRecord> {
    let name = format!("{hash}.json");
    let record: Option<FenceRecord> = read_json(home.fences_dir()?, &name)?;
    let mut record = record.unwrap_or_else(|| FenceRecord::new(scope.clone()));
    if record.schema > FENCE_SCHEMA {
        let why =
            format!("fences/{name} was written by a later version (schema {}); use that one", record.schema);
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    if record.scope != *scope {
        let why = format!("fences/{name} is another scope's; it is kept as it is");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let floors: Option<BTreeMap<String, Generation>> = read_json(home.dir(), "fence.json")?;
    if let Some(floor) = floors.and_then(|floors| floors.get(scope.as_str()).copied()) {
        record.generation = record.generation.max(floor);
    }
    Ok(record)
}

fn write(home: &Home, hash: &str, record: &FenceRecord) -> io::Result<()> {
    files::write_durably(home.fences_dir()?, &format!("{hash}.json"), &serde_json::to_vec(record)?)
}

/// What was read may have been renamed by somebody who died before the folder was synced, and is relied on from now on.
fn made_durable(home: &Home) -> io::Result<()> {
    Ok(rustix::fs::fsync(home.fences_dir()?)?)
}

struct Found {
    jobs: Vec<JobId>,
    unreadable: Vec<JobId>,
    /// When the last of them was admitted.
    latest: UnixMicros,
}

fn jobs_of_run(home: &Home, scope: &Scope, run: &RunId) -> io::Result<Found> {
    let mut found = Found { jobs: Vec::new(), unreadable: Vec::new(), latest: UnixMicros(0) };
    for id in home.jobs()? {
        match home.job(id) {
            Ok(Some(job)) if job.spec().run.as_ref() == Some(run) && job.spec().scope == *scope => {
                found.latest = found.latest.max(job.spec().admitted_at);
                found.jobs.push(id);
            }
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::Unsupported | io::ErrorKind::FileTooLarge => {
                    found.unreadable.push(id);
                }
                _ => return Err(error),
            },
        }
    }
    found.jobs.sort_unstable();
    found.unreadable.sort_unstable();
    Ok(found)
}
