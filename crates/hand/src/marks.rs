//! Mutation marks: the order in which jobs stopped changing the workspace.
//!
//! A job takes its terminal mark after its death proof, so a scan that read a boundary at or past the mark, and began
//! after that, has seen all it wrote. A mark is 16 bytes appended to one file of the home, and its number is the
//! file's end offset after it: appends are atomic, so no counter has to be locked.

use outlast_core::id::{JobId, MutationMark};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes of one mark.
pub const MARK_BYTES: u64 = 16;

const NAME: &str = "marks";

/// Takes a job's terminal mark. It is durable after a [`sync`], and nothing that names it may be published before.
///
/// # Errors
/// What the system says.
pub fn take(home: BorrowedFd<'_>, job: JobId) -> io::Result<MutationMark> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::openat(home, NAME, flags, Mode::empty()) {
        Err(Errno::NOENT) => make(home)?,
        other => other?,
    };
    let mut record = [0u8; MARK_BYTES as usize];
    record[..10].copy_from_slice(&job.call.0);
    record[10..12].copy_from_slice(&job.number.get().to_le_bytes()[..2]);
    record[12..14].copy_from_slice(&job.attempt.0.get().to_le_bytes()[..2]);
    record[14..].copy_from_slice(b"m\n");
    if rustix::io::write(&file, &record)? != record.len() {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "a mutation mark could not be written whole"));
    }
    // The offset of this open file after an append is the end of what it appended, whatever others append.
    Ok(MutationMark(rustix::fs::seek(&file, SeekFrom::Current(0))?))
}

/// Makes the file, which each home begins with.
pub(crate) fn make(home: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(home, NAME, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fsync(home)?;
    Ok(file)
}

/// Makes all marks that were taken durable.
///
/// # Errors
/// What the system says; a mark of unknown durability is then no mark.
pub fn sync(home: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(home, NAME, flags, Mode::empty())?;
    Ok(rustix::fs::fdatasync(&file)?)
}

/// The latest mark: the boundary a scan that begins now covers.
///
/// # Errors
/// What the system says.
pub fn latest(home: BorrowedFd<'_>) -> io::Result<MutationMark> {
    match rustix::fs::statat(home, NAME, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(MutationMark(u64::try_from(stat.st_size).unwrap_or(0))),
        Err(Errno::NOENT) => Ok(MutationMark(0)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn marks_grow_whoever_takes_them() {
        let folder = tempfile::tempdir().unwrap();
        let dir = crate::files::open_dir(folder.path()).unwrap();
        let job: JobId = "0000000000000000.1.1".parse().unwrap();
        let mut taken: Vec<u64> = std::thread::scope(|scope| {
            let take = || {
                let mark = take(dir.as_fd(), job).unwrap();
                sync(dir.as_fd()).unwrap();
                mark.0
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert_eq!(taken, (1..=8).map(|n| n * MARK_BYTES).collect::<Vec<_>>());
        assert_eq!(latest(dir.as_fd()).unwrap(), MutationMark(8 * MARK_BYTES));
    }
}
