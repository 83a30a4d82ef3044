//! Tidying: finished jobs go after their time, and leave a tombstone that still answers their key.

use crate::home::{Home, fill_random};
use crate::job::{Job, read_json};
use crate::{brains, clock, files};
use outlast_core::bytes::hex;
use outlast_core::id::{CallHash, JobId};
use outlast_core::receipt::Receipt;
use outlast_core::spec::Work;
use outlast_core::status::{State, project};
use outlast_core::time::{Millis, UnixMicros};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};

/// A finished job is kept this long unless asked otherwise.
pub const KEEP: Millis = Millis(24 * 3_600_000);
/// A tombstone is kept this long, and so is a paused job with what it saved.
pub const KEEP_TOMBSTONES: Millis = Millis(30 * 24 * 3_600_000);
/// What was being prepared and never published is removed after this long.
const KEEP_ASIDE: Millis = Millis(3_600_000);
/// Jobs tidy up after themselves at most this often.
const EVERY: Millis = Millis(3_600_000);

/// What is kept of a removed job that had a key: enough to answer it, without its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The command, so that another one under the same key is still a conflict.
    pub work: Work,
    /// How it ended.
    pub receipt: Receipt,
    /// When it was removed.
    pub removed_at: UnixMicros,
}

impl Tombstone {
    /// Finds the tombstone of a key.
    ///
    /// # Errors
    /// What the system says.
    pub fn find(home: &Home, call: CallHash) -> io::Result<Option<Tombstone>> {
        read_json(home.tombstones_dir()?, &format!("{call}.json"))
    }
}

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// Jobs that were removed.
    pub removed: Vec<JobId>,
    /// Finished jobs whose time has not come, or that of another attempt of the same call.
    pub kept: u64,
    /// Finished jobs whose time has come, and that a brain has yet to acknowledge.
    pub claimed: u64,
    /// Jobs that have not finished.
    pub unfinished: u64,
    /// Tombstones that were removed.
    pub tombstones_removed: u64,
}

/// Removes finished jobs that ended longer than `keep` ago and that no brain keeps, old tombstones, and what was never
/// published.
///
/// The attempts of a call go together, the latest first: no attempt is missing below one that is there, so that the latest
/// is found without listing, and what an earlier one saved or answered never stands in for the latest.
///
/// # Errors
/// What the system says; what was removed until then stays removed.
pub fn collect(home: &Home, now: UnixMicros, keep: Millis) -> io::Result<Collected> {
    let mut collected = Collected::default();
    let mut calls: BTreeMap<(CallHash, NonZeroU32), Vec<JobId>> = BTreeMap::new();
    for id in home.jobs()? {
        calls.entry((id.call, id.number)).or_default().push(id);
    }
    // A tombstone stays for as long as a job of its call: it says which attempts there were.
    let mut answered = BTreeSet::new();
    for (call, mut attempts) in calls {
        attempts.sort_unstable_by(|a, b| b.cmp(a));
        if !collect_call(home, &attempts, now, keep, &mut collected)? {
            answered.insert(format!("{}.json", call.0));
        }
    }
    collected.removed.sort_unstable();
    let tombstones = home.tombstones_dir()?;
    for name in files::names(tombstones)? {
        let old = match name.ends_with(".number") {
            true => changed_at(tombstones, &name).is_some_and(|at| now.since(at) >= KEEP_TOMBSTONES),
            false if answered.contains(&name) => false,
            false => match read_json::<Tombstone>(tombstones, &name) {
                Ok(Some(tombstone)) => now.since(tombstone.removed_at) >= KEEP_TOMBSTONES,
                _ => false,
            },
        };
        if old {
            rustix::fs::unlinkat(tombstones, name.as_str(), AtFlags::empty())?;
            collected.tombstones_removed += 1;
        }
    }
    remove_aside(home, now)?;
    Ok(collected)
}

/// Removes the attempts of one call, which are given latest first, if the time of each has come; `false` where one is left.
fn collect_call(
    home: &Home,
    attempts: &[JobId],
    now: UnixMicros,
    keep: Millis,
    collected: &mut Collected,
) -> io::Result<bool> {
    let mut due = Vec::new();
    let mut left = false;
    for id in attempts {
        let counted = match fate(home, *id, now, keep) {
            Ok(Some(Fate::Due(job))) => {
                due.push(job);
                continue;
            }
            // Somebody else removed it.
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // A damaged one is kept as it is, and keeps no other call from being removed.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => &mut collected.kept,
            Err(error) => return Err(error),
            Ok(Some(Fate::Kept)) => &mut collected.kept,
            Ok(Some(Fate::Claimed)) => &mut collected.claimed,
            Ok(Some(Fate::Unfinished)) => &mut collected.unfinished,
        };
        *counted += 1;
        left = true;
    }
    for job in due {
        if left {
            collected.kept += 1;
            continue;
        }
        let id = job.id();
        // An attempt that was admitted since the listing needs the one before it.
        if home.has_job(id.next_attempt())? {
            collected.kept += 1;
            left = true;
            continue;
        }
        match remove(home, &job, now) {
            Ok(true) => collected.removed.push(id),
            Ok(false) => {
                collected.claimed += 1;
                left = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if let (false, Some(latest)) = (left, attempts.first())
        && !home.has_job(latest.next_attempt())?
    {
        // What a call saved goes with its last attempt.
        remove_tree(files::open_subdir(home.dir(), "checkpoints")?.as_fd(), &latest.call_name());
    }
    Ok(!left)
}

#[expect(clippy::large_enum_variant, reason = "few of it exist, for a moment")]
enum Fate {
    Due(Job),
    Kept,
    Claimed,
    Unfinished,
}

fn fate(home: &Home, id: JobId, now: UnixMicros, keep: Millis) -> io::Result<Option<Fate>> {
    let Some(job) = home.job(id)? else { return Ok(None) };
    let (ended, proved) = match (job.receipt()?, job.attestation()?) {
        (Some(receipt), _) => (receipt.times.settled, true),
        (None, Some(attestation)) => (attestation.at, false),
        (None, None) => return Ok(Some(Fate::Unfinished)),
    };
    if !proved {
        // Its keeper was lost; whatever of its groups is empty by now, nobody else comes to remove.
        crate::contain::remove_left(home.path(), job.spec());
    }
    // A paused job has ended and its work has not; an attested one leaves no receipt that could answer its key.
    let owed = !proved || project(&job.look()?).state == State::Paused;
    if owed && now.since(ended) < KEEP_TOMBSTONES {
        return Ok(Some(Fate::Unfinished));
    }
    if now.since(ended) < keep {
        return Ok(Some(Fate::Kept));
    }
    Ok(Some(if brains::claims(&job)?.is_empty() { Fate::Due(job) } else { Fate::Claimed }))
}

/// The highest number of a removed call without a key, so that an old id never comes to mean another job.
pub(crate) fn last_number(home: &Home, call: CallHash) -> io::Result<Option<NonZeroU32>> {
    let text = files::read_small(home.tombstones_dir()?, &format!("{call}.number"))?;
    Ok(text.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok()))
}

fn note_number(home: &Home, tombstones: BorrowedFd<'_>, id: JobId) -> io::Result<()> {
    if last_number(home, id.call)?.is_some_and(|noted| noted >= id.number) {
        return Ok(());
    }
    files::write_durably(tombstones, &format!("{}.number", id.call), id.number.to_string().as_bytes())
}

/// Collects if it is due, at most once an hour, and says nothing of errors: it is nobody's business in between.
pub fn collect_if_due(home: &Home) {
    let now = clock::unix_now();
    let stamp = "collected";
    let last = rustix::fs::statat(home.dir(), stamp, AtFlags::SYMLINK_NOFOLLOW);
    let last = last
        .ok()
        .and_then(|stat| u64::try_from(stat.st_mtime).ok())
        .map(|seconds| UnixMicros(seconds * 1_000_000));
    if last.is_some_and(|last| now.since(last) < EVERY && last <= now) {
        return;
    }
    let _ = rustix::fs::unlinkat(home.dir(), stamp, AtFlags::empty());
    // Who creates it collects; the others go on.
    if files::create_new(home.dir(), stamp, b"").is_ok() {
        let _ = collect(home, now, KEEP);
    }
}

/// Removes a job; `false` where a brain came to keep it.
fn remove(home: &Home, job: &Job, now: UnixMicros) -> io::Result<bool> {
    let id = job.id();
    if !brains::take_for_removal(job)? {
        return Ok(false);
    }
    let tombstones = home.tombstones_dir()?;
    if let (Some(_), Some(receipt)) = (&job.spec().key, job.receipt()?) {
        let name = format!("{}.json", id.call);
        let later = read_json::<Tombstone>(tombstones, &name)?
            .is_some_and(|there| there.receipt.job_id.attempt > id.attempt);
        if !later {
            let tombstone = Tombstone { work: job.spec().work.clone(), receipt, removed_at: now };
            files::write_durably(tombstones, &name, &serde_json::to_vec(&tombstone)?)?;
        }
    }
    if job.spec().key.is_none() {
        note_number(home, tombstones, id)?;
    }
    // Out of sight in one step, so that nobody finds half a job.
    let tmp = home.tmp_dir()?;
    let mut random = [0; 12];
    fill_random(&mut random)?;
    let aside = hex(&random);
    rustix::fs::renameat(home.jobs_dir(), id.to_string().as_str(), tmp, aside.as_str())?;
    remove_tree(tmp, &aside);
    let _ = rustix::fs::unlinkat(home.open_dir(), id.to_string().as_str(), AtFlags::empty());
    crate::contain::remove_left(home.path(), job.spec());
    if let Ok(work) = files::open_subdir(home.dir(), "work") {
        remove_tree(work.as_fd(), &id.to_string());
    }
    Ok(true)
}

fn changed_at(dir: BorrowedFd<'_>, name: &str) -> Option<UnixMicros> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    u64::try_from(stat.st_mtime).ok().map(|seconds| UnixMicros(seconds * 1_000_000))
}

fn remove_aside(home: &Home, now: UnixMicros) -> io::Result<()> {
    let tmp = home.tmp_dir()?;
    for name in files::names(tmp)? {
        if changed_at(tmp, &name).is_some_and(|at| now.since(at) >= KEEP_ASIDE) {
            remove_tree(tmp, &name);
        }
    }
    Ok(())
}

/// Removes a file or a folder with all that is in it, never through a link. What cannot be removed stays.
pub(crate) fn remove_tree(dir: BorrowedFd<'_>, name: &str) {
    remove_os(dir, std::ffi::OsStr::new(name), 0);
}

/// Deeper than this nothing of ours goes, and a command's own folders are not worth a stack.
const DEEPEST: u32 = 200;

fn remove_os(dir: BorrowedFd<'_>, name: &std::ffi::OsStr, depth: u32) {
    if rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok() || depth > DEEPEST {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(inner) = rustix::fs::openat(dir, name, flags, Mode::empty()) else { return };
    if let Ok(entries) = rustix::fs::Dir::read_from(&inner) {
        for entry in entries.flatten() {
            use std::os::unix::ffi::OsStrExt;
            let entry_name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            if entry_name == "." || entry_name == ".." {
                continue;
            }
            match entry.file_type() {
                FileType::Directory | FileType::Unknown => remove_os(inner.as_fd(), entry_name, depth + 1),
                _ => drop(rustix::fs::unlinkat(&inner, entry_name, AtFlags::empty())),
            }
        }
    }
    let _ = rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR);
}
