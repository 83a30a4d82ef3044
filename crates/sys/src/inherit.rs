//! Descriptors that came with the process, and those a forked child must not keep.

use crate::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes over the one descriptor that whoever started this program passed on under `number`, and has it closed on
/// exec from now on.
///
/// To be called once, before anything else is opened: later, the number may belong to somebody.
///
/// # Errors
/// `EBADF` if there is no such descriptor; `EALREADY` at a second call; `EINVAL` for 0, 1 and 2, which the
/// standard library uses.
pub fn take(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 3 {
        return Err(Errno::INVAL);
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(Errno::ALREADY);
    }
    // SAFETY: F_SETFD on any number is harmless, and fails with EBADF for one that is not open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is open, and nobody in this program owns it: this is the only call that succeeds, and the caller
    // keeps to "before anything else is opened".
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor but 0, 1, 2 and those given.
///
/// For a child right after [`crate::fork`], which has a copy of everything its parent had open, locks and listening
/// sockets among them. The values that own those descriptors in the copied memory are dead from here on: the child
/// must not use or drop them, and must end by `exit` rather than by returning to where they live.
pub fn close_all_except(keep: &[BorrowedFd<'_>]) {
    use std::os::fd::AsRawFd;
    let mut numbers: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    numbers.sort_unstable();
    let mut first = 3u32;
    for number in numbers.into_iter().chain([u32::MAX]) {
        if number > first {
            // The last range ends at the largest number there is, every other one below a descriptor to keep.
            let last = if number == u32::MAX { number } else { number - 1 };
            // SAFETY: closes descriptors, no memory is touched; what the caller owes is stated above.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = first.max(number.saturating_add(1));
    }
}
