//! Brains keep the jobs they admitted: a finished job does not go before each of them has said that it holds the receipt
//! and all output.
//!
//! The brain that admits a job claims it by the job's spec, which is durable before the job is visible and costs no sync
//! of its own. One that finds the job later claims it by a file in the job's folder `brains`. Who has acknowledged is
//! written into such a file too, for good: a request that comes late does not keep a job that nobody will release.

use crate::files;
use crate::home::Home;
use crate::job::{Job, name, read_json};
use outlast_core::id::{BrainId, Cursor};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;

/// What became of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// This brain keeps the job no more, or never did.
    Released,
    /// The job has not ended: there is no receipt to hold.
    NotSettled,
    /// It holds less, or more, than there is.
    OtherCursor {
        /// The final cursor.
        is: Cursor,
    },
}

impl Acknowledged {
    /// Why the job is kept on; `None` where it is not.
    #[must_use]
    pub fn refusal(self) -> Option<String> {
        match self {
            Acknowledged::Released => None,
            Acknowledged::NotSettled => Some("the job has no receipt yet".to_owned()),
            Acknowledged::OtherCursor { is } => Some(format!("its final cursor is {is}")),
        }
    }
}

/// A file below `brains`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    brain: BrainId,
    /// It holds receipt and output.
    #[serde(default)]
    released: bool,
}

/// Takes a brain's word that it holds a job's receipt (or attestation) and all output before `cursor`, durably. Repeating
/// it does no harm.
///
/// # Errors
/// What the system says; the job is kept then.
pub fn acknowledge(home: &Home, job: &Job, brain: &BrainId, cursor: Cursor) -> io::Result<Acknowledged> {
    let end = match (job.receipt()?, job.attestation()?) {
        (Some(receipt), _) => receipt.output.final_cursor,
        (None, Some(attestation)) => attestation.final_cursor,
        (None, None) => return Ok(Acknowledged::NotSettled),
    };
    if cursor != end {
        return Ok(Acknowledged::OtherCursor { is: end });
    }
    let there = claim_of(home, job, brain)?;
    let admitted = job.spec().brain.as_ref() == Some(brain);
    if there.as_ref().is_some_and(|claim| !claim.released) || (there.is_none() && admitted) {
        write(home, job, &Claim { brain: brain.clone(), released: true })?;
    }
    Ok(Acknowledged::Released)
}

/// The brains that have yet to acknowledge a job, in no order.
///
/// # Errors
/// What the system says; `InvalidData` where a claim cannot be read, which keeps the job.
pub fn claims(job: &Job) -> io::Result<Vec<BrainId>> {
    let mut waiting: Vec<BrainId> = job.spec().brain.iter().cloned().collect();
    let folder = match files::open_subdir(job.dir(), name::BRAINS) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(waiting),
        Err(error) => return Err(error),
    };
    // What is still being written has another ending, and its admission has not been answered.
    for name in files::names(folder.as_fd())?.iter().filter(|name| !name.ends_with(".new")) {
        let Some(claim) = read_json::<Claim>(folder.as_fd(), name)? else { continue };
        waiting.retain(|brain| *brain != claim.brain);
        if !claim.released {
            waiting.push(claim.brain);
        }
    }
    Ok(waiting)
}

/// Notes, durably, that a brain that found this job keeps it, unless it has acknowledged it before. `false` where the job
/// has been removed meanwhile: then nothing was kept.
pub(crate) fn claim(home: &Home, job: &Job, brain: &BrainId) -> io::Result<bool> {
    // Opened anew, so that the lock is this call's alone.
    let turn = files::open_subdir(job.dir(), ".")?;
    rustix::fs::flock(&turn, FlockOperation::LockShared)?;
    if !files::still_named(home.jobs_dir(), &job.id().to_string(), &turn) {
        return Ok(false);
    }
    if job.spec().brain.as_ref() != Some(brain) && claim_of(home, job, brain)?.is_none() {
        write(home, job, &Claim { brain: brain.clone(), released: false })?;
    }
    Ok(true)
}

/// Takes a job for its removal, so that no brain claims it any more; `false` where one keeps it, or is about to. The
/// removal must follow while `job` is open.
pub(crate) fn take_for_removal(job: &Job) -> io::Result<bool> {
    Ok(files::try_lock(job.dir(), FlockOperation::NonBlockingLockExclusive)? && claims(job)?.is_empty())
}

fn claim_of(home: &Home, job: &Job, brain: &BrainId) -> io::Result<Option<Claim>> {
    read_json(job.dir(), &format!("{}/{}", name::BRAINS, home.brain_hash(brain)))
}

fn write(home: &Home, job: &Job, claim: &Claim) -> io::Result<()> {
    files::ensure_dir(job.dir(), name::BRAINS)?;
    let folder = files::open_subdir(job.dir(), name::BRAINS)?;
    files::write_durably(folder.as_fd(), &home.brain_hash(&claim.brain), &serde_json::to_vec(claim)?)?;
    // Whoever made the folder may not have come so far.
    Ok(rustix::fs::fsync(job.dir())?)
}
