//! How this crate reads and writes small files.
//!
//! A durable file is written aside, synced, renamed into place, and its folder synced: skip the first and a power
//! cut leaves an empty file under the right name, skip the last and it may leave none.

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest small file that is read whole: a spec with an argv at the kernel's limit fits several times.
pub const SMALL_FILE_LIMIT: u64 = 16 << 20;

/// Opens a folder to work relative to.
///
/// # Errors
/// What the system says.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Reads a whole file of at most [`SMALL_FILE_LIMIT`] bytes; `None` where there is none.
///
/// # Errors
/// What the system says; `FileTooLarge` for a larger one.
pub fn read_small(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    // A command of the same uid can put anything under a name of ours: nothing is waited for that is no plain file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode)
        != rustix::fs::FileType::RegularFile
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{name} is no plain file; it is kept as it is"),
        ));
    }
    // Most fit at once; growing from nothing would take a read for each doubling.
    let mut bytes = Vec::with_capacity(4096);
    std::fs::File::from(fd).take(SMALL_FILE_LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SMALL_FILE_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{name} is larger than {SMALL_FILE_LIMIT} bytes"),
        ));
    }
    Ok(Some(bytes))
}

/// Creates a file that must not exist yet and writes it whole, without syncing it.
///
/// # Errors
/// What the system says; `AlreadyExists` where it exists.
pub fn create_new(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    Ok(file)
}

/// A name to prepare a file under: nobody else's at this moment, in this process or another.
pub(crate) fn name_aside(name: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{name}.{}.{count}.new", rustix::process::getpid().as_raw_nonzero())
}

/// Opens a file that was written before, to sync it.
///
/// # Errors
/// What the system says.
pub fn open_for_sync(dir: BorrowedFd<'_>, name: &str) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(std::fs::File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?))
}

/// Writes a file durably under a name that may exist: aside, synced, renamed, the folder synced.
///
/// # Errors
/// What the system says; the old file, if any, is then still whole.
pub fn write_durably(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    publish(dir, name, bytes, || Ok(()), |aside| Ok(rustix::fs::renameat(dir, aside, dir, name)?))
}

/// Writes a file durably that is written once: one that is there is left as it is, and made durable. Says whether it is
/// there by this call.
///
/// `first` is done after the sync of the file and before it gets its name: what `first` syncs shares a commit of the file
/// system's journal with it.
///
/// # Errors
/// As [`write_durably`], and those of `first`.
pub(crate) fn write_once(
    dir: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    first: impl FnOnce() -> io::Result<()>,
) -> io::Result<bool> {
    match publish(dir, name, bytes, first, |aside| rename_new(dir, aside, dir, name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rustix::fs::fsync(dir)?;
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

fn publish(
    dir: BorrowedFd<'_>,
    name: &str,
    bytes: &[u8],
    first: impl FnOnce() -> io::Result<()>,
    rename: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<()> {
    let aside = name_aside(name);
    let written = create_new(dir, &aside, bytes)
        .or_else(|error| match error.kind() {
            // Left by an earlier process of the same pid that died in between.
            io::ErrorKind::AlreadyExists => {
                rustix::fs::unlinkat(dir, &aside, AtFlags::empty())?;
                create_new(dir, &aside, bytes)
            }
            _ => Err(error),
        })
        .and_then(|file| file.sync_all());
    let renamed = written.and_then(|()| first()).and_then(|()| rename(&aside));
    if let Err(error) = renamed {
        let _ = rustix::fs::unlinkat(dir, &aside, AtFlags::empty());
        return Err(error);
    }
    Ok(rustix::fs::fsync(dir)?)
}

/// Publishes a prepared entry under a name that must not exist.
///
/// # Errors
/// `AlreadyExists` where somebody was first; else what the system says.
pub fn rename_new(from: BorrowedFd<'_>, old: &str, to: BorrowedFd<'_>, new: &str) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE)?)
}

/// Opens (and creates) a file to lock.
///
/// # Errors
/// What the system says.
pub fn open_lock_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?)
}

/// Takes a lock without waiting; `false` where somebody holds it.
///
/// # Errors
/// What the system says.
pub fn try_lock(file: impl AsFd, operation: FlockOperation) -> io::Result<bool> {
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the locked file is still the one under its name: who removes a lock file must not leave others holding
/// a lock on nothing.
#[must_use]
pub fn still_named(dir: BorrowedFd<'_>, name: &str, file: impl AsFd) -> bool {
    let there = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let held = rustix::fs::fstat(file);
    matches!((there, held), (Ok(there), Ok(held)) if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino))
}

/// Makes a folder, and accepts one that is there.
///
/// # Errors
/// What the system says.
pub fn ensure_dir(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a folder below `dir`, never through a symbolic link.
///
/// # Errors
/// What the system says.
pub fn open_subdir(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// The names in a folder, without `.` and `..`, in no order.
///
/// # Errors
/// What the system says.
pub fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
