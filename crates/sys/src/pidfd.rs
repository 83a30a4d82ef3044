//! Processes by descriptor, which can never come to mean another process, and what else tells a process's
//! identity.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::proc_tree;
use crate::raw;
use crate::wait::Status;

/// Opens a descriptor for the process that has `pid` now, to be closed on exec. Who has it may be asked
/// afterwards (its start time): as long as that answer fits, so does the descriptor.
///
/// # Errors
/// `ESRCH` if there is none.
pub fn open(pid: Pid) -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Sends a signal to the process and to no other, whatever has become of its pid.
///
/// # Errors
/// `ESRCH` once it has been reaped, `EPERM` without the right. A zombie takes the signal silently.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    rustix::process::pidfd_send_signal(pidfd, signal)
}

/// Tells whether the process has ended, reaped or not.
///
/// # Errors
/// `EBADF` and the like; interruptions are retried.
pub fn is_readable(pidfd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(count) => return Ok(count != 0),
        }
    }
}

/// How the process ended, for one who is not its parent.
///
/// The kernel (6.15 and later) keeps it for as long as a descriptor that was opened in the process's lifetime
/// is held, from the moment the process has been **reaped**. `None` says that it lives, is not reaped yet, or
/// that this kernel cannot tell; it is evidence of nothing.
#[must_use]
pub fn exit_info(pidfd: BorrowedFd<'_>) -> Option<Status> {
    /// `struct pidfd_info` as first published; newer kernels fill in as much as there is room for.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup_id: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const INFO_EXIT: u64 = 1 << 3;
    // _IOWR(0xFF, 11, struct pidfd_info), which is the same on the architectures we build for.
    const GET_INFO: usize = 0xC000_0000 | (size_of::<Info>() << 16) | (0xFF << 8) | 11;

    let mut info = Info { mask: INFO_EXIT, ..Info::default() };
    // SAFETY: the request number carries the size of the struct the kernel reads and writes.
    let asked = unsafe {
        raw::syscall(
            libc::SYS_ioctl,
            [pidfd.as_raw_fd() as usize, GET_INFO, std::ptr::from_mut(&mut info) as usize, 0, 0],
        )
    };
    (asked.is_ok() && info.mask & INFO_EXIT != 0).then(|| Status::from_wait_word(info.exit_code)).flatten()
}

/// When the process with `pid` started, in clock ticks since boot; `None` if there is no such process.
///
/// With [`boot_id`] and the pid it names a process across our own restarts, where no descriptor can.
#[must_use]
pub fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    proc_tree::parse_stat(&stat).map(|process| process.start_time)
}

/// The identity of this boot, a random UUID in text. A process recorded under another one is dead.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn boot_id() -> std::io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}
