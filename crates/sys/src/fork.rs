//! Forks this process, for the keeper's second half and for the first process of a namespace.
//!
//! [`crate::spawn`] is the way to start a program. A fork is for going on with our own code in another
//! process: the scribe, which must not be seen by the warden's plain waits, and a namespace's reaping init.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::raw::{self, CloneSpec};

/// How the child is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForkOptions<'fd> {
    /// The signal the parent gets when the child ends. With `None` the child is invisible to plain waits:
    /// they report `ECHILD` while it lives, which is how the warden can prove its command's tree gone while
    /// its scribe still runs.
    pub exit_signal: Option<Signal>,
    /// Make the child process 1 of a new PID namespace.
    pub new_pid_ns: bool,
    /// Give the child its own mounts.
    pub new_mount_ns: bool,
    /// Give the child its own user namespace; without privilege the other two need it. See [`crate::ns`].
    pub new_user_ns: bool,
    /// Have the child born in the cgroup (v2) whose directory this is.
    pub into_cgroup: Option<BorrowedFd<'fd>>,
}

/// On which side of the fork we are.
#[derive(Debug)]
#[must_use = "both sides return from a fork; not looking runs the parent's code twice"]
pub enum Forked {
    /// We are the child.
    Child,
    /// We are the parent.
    Parent {
        /// The child's process id, in our namespace.
        pid: Pid,
        /// Names the child and no other process, for ever.
        pidfd: OwnedFd,
    },
}

/// Forks this process, which must have one thread.
///
/// The child has copies of all memory and descriptors. Text that is buffered and not yet written is in both,
/// so flush first. Exit handlers are in both as well.
///
/// # Errors
/// `EDEADLK` if there are other threads: the child would own copies of their locks, and nobody to release
/// them. Otherwise what `clone3` says: `ENOSYS` or `EPERM` where it is missing or filtered, `EAGAIN` at a
/// limit, `EPERM` for a namespace that needs privilege, `ENOSPC` at the limit of namespaces.
pub fn fork_process(options: ForkOptions<'_>) -> Result<Forked, Errno> {
    if !surely_one_thread() && thread_count()? != 1 {
        return Err(Errno::DEADLK);
    }
    let mut flags = 0;
    for (wanted, flag) in [
        (options.new_pid_ns, libc::CLONE_NEWPID),
        (options.new_mount_ns, libc::CLONE_NEWNS),
        (options.new_user_ns, libc::CLONE_NEWUSER),
    ] {
        if wanted {
            flags |= flag as u64;
        }
    }
    let spec = CloneSpec {
        flags,
        exit_signal: options.exit_signal.map_or(0, Signal::as_raw),
        cgroup: options.into_cgroup.map(|fd| fd.as_raw_fd()),
    };
    // SAFETY: this is the only thread, and no other can appear, for only we could start it.
    Ok(match unsafe { raw::clone_fork(spec)? } {
        None => Forked::Child,
        Some(cloned) => Forked::Parent { pid: cloned.pid, pidfd: cloned.pidfd },
    })
}

/// Forks a child that shares nothing with us but what it is given: it closes every descriptor but 0, 1, 2 and those in
/// `keep`, runs `child`, and ends with the status that returns (101 if it panics). It never comes back to what the caller
/// was doing, so whatever owned the descriptors that are closed in it is never used or dropped there; `child` must not
/// use them either.
///
/// Returns the child's process id and a descriptor for it.
///
/// # Errors
/// As [`fork_process`].
pub fn fork_child(
    options: ForkOptions<'_>,
    keep: &[RawFd],
    child: impl FnOnce() -> i32,
) -> Result<(Pid, OwnedFd), Errno> {
    match fork_process(options)? {
        Forked::Parent { pid, pidfd } => Ok((pid, pidfd)),
        Forked::Child => {
            close_all_except(keep);
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends this process at once. Exit handlers and buffers are our parent's, who will see to them.
            unsafe { libc::_exit(status) }
        }
    }
}

fn close_all_except(keep: &[RawFd]) {
    let mut numbers: Vec<u32> = keep.iter().filter_map(|number| u32::try_from(*number).ok()).collect();
    numbers.sort_unstable();
    let mut first = 3u32;
    for number in numbers.into_iter().chain([u32::MAX]) {
        if number > first {
            // The last range ends at the largest number there is, every other one below a descriptor to keep.
            let last = if number == u32::MAX { number } else { number - 1 };
            // SAFETY: closes descriptors, no memory is touched; `fork_child` says why nobody here owns them any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = first.max(number.saturating_add(1));
    }
}

/// Whether libc knows that there is one thread. It forgets after a thread was ever started, and then `/proc` is asked,
/// which costs a good part of a fork.
fn surely_one_thread() -> bool {
    unsafe extern "C" {
        /// glibc's own flag (since 2.32), documented for programs: non-zero only while there is one thread.
        static __libc_single_threaded: core::ffi::c_char;
    }
    // SAFETY: a byte that only libc writes, when this process starts its first other thread: if it reads as non-zero,
    // there is none that could be writing it.
    unsafe { core::ptr::read_volatile(&raw const __libc_single_threaded) != 0 }
}

/// Counts the threads of this process.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn thread_count() -> Result<usize, Errno> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(|error| errno_of(&error))?;
    Ok(tasks.count())
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
