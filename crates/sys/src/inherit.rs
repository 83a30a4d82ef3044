//! A descriptor that came with the process.

use crate::Errno;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
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
