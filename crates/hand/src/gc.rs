//! Tidying: finished jobs go after their time, and leave a tombstone that still answers their key.

use crate::home::{Home, fill_random};
use crate::job::{Job, read_json};
use crate::{clock, files};
use outlast_core::bytes::hex;
use outlast_core::id::{CallHash, JobId};
use outlast_core::receipt::Receipt;
use outlast_core::spec::Work;
use outlast_core::status::{State, project};
use outlast_core::time::{Millis, UnixMicros};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io;
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
        read_json(files::open_subdir(home.dir(), "tombstones")?.as_fd(), &format!("{call}.json"))
    }
}

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// Jobs that were removed.
    pub removed: Vec<JobId>,
    /// Finished jobs whose time has not come.
    pub kept: u64,
    /// Jobs that have not finished.
    pub unfinished: u64,
    /// Tombstones that were removed.
    pub tombstones_removed: u64,
}

/// Removes finished jobs that ended longer than `keep` ago, old tombstones, and what was never published.
///
/// # Errors
/// What the system says; what was removed until then stays removed.
pub fn collect(home: &Home, now: UnixMicros, keep: Millis) -> io::Result<Collected> {
    let mut collected = Collected::default();
    for id in home.jobs()? {
        let Some(job) = home.job(id)? else { continue };
        let ended = match (job.receipt()?, job.attestation()?) {
            (Some(receipt), _) => receipt.times.settled,
            (None, Some(attestation)) => attestation.at,
            (None, None) => {
                collected.unfinished += 1;
                continue;
            }
        };
        if project(&job.look()?).state == State::Paused && now.since(ended) < KEEP_TOMBSTONES {
            // It has ended, and its work has not.
            collected.unfinished += 1;
            continue;
        }
        if now.since(ended) < keep {
            collected.kept += 1;
            continue;
        }
        remove(home, &job, now)?;
        collected.removed.push(id);
    }
    collected.removed.sort_unstable();
    let tombstones = files::open_subdir(home.dir(), "tombstones")?;
    for name in files::names(tombstones.as_fd())? {
        let old = match read_json::<Tombstone>(tombstones.as_fd(), &name) {
            Ok(Some(tombstone)) => now.since(tombstone.removed_at) >= KEEP_TOMBSTONES,
            _ => false,
        };
        if old {
            rustix::fs::unlinkat(&tombstones, name.as_str(), AtFlags::empty())?;
            collected.tombstones_removed += 1;
        }
    }
    remove_aside(home, now)?;
    Ok(collected)
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

fn remove(home: &Home, job: &Job, now: UnixMicros) -> io::Result<()> {
    let id = job.id();
    let tombstones = files::open_subdir(home.dir(), "tombstones")?;
    if let (Some(_), Some(receipt)) = (&job.spec().key, job.receipt()?) {
        let name = format!("{}.json", id.call);
        let later = read_json::<Tombstone>(tombstones.as_fd(), &name)?
            .is_some_and(|there| there.receipt.job_id.attempt > id.attempt);
        if !later {
            let tombstone = Tombstone { work: job.spec().work.clone(), receipt, removed_at: now };
            files::write_durably(tombstones.as_fd(), &name, &serde_json::to_vec(&tombstone)?)?;
        }
    }
    // Out of sight in one step, so that nobody finds half a job.
    let tmp = files::open_subdir(home.dir(), "tmp")?;
    let mut random = [0; 12];
    fill_random(&mut random)?;
    let aside = hex(&random);
    rustix::fs::renameat(home.jobs_dir(), id.to_string().as_str(), &tmp, aside.as_str())?;
    remove_tree(tmp.as_fd(), &aside);
    let _ = rustix::fs::unlinkat(home.open_dir(), id.to_string().as_str(), AtFlags::empty());
    crate::contain::remove_left(home.path(), job.spec());
    if let Ok(work) = files::open_subdir(home.dir(), "work") {
        remove_tree(work.as_fd(), &id.to_string());
    }
    // What a call saved goes with its last attempt.
    if home.jobs_of_call(id.call)?.iter().all(|other| other.number != id.number) {
        remove_tree(files::open_subdir(home.dir(), "checkpoints")?.as_fd(), &id.call_name());
    }
    Ok(())
}

fn remove_aside(home: &Home, now: UnixMicros) -> io::Result<()> {
    let tmp = files::open_subdir(home.dir(), "tmp")?;
    for name in files::names(tmp.as_fd())? {
        let Ok(stat) = rustix::fs::statat(&tmp, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let changed = UnixMicros(u64::try_from(stat.st_mtime).unwrap_or(0) * 1_000_000);
        if now.since(changed) >= KEEP_ASIDE {
            remove_tree(tmp.as_fd(), &name);
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
