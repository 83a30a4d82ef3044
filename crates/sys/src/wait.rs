//! Waits for children and says how they ended, and what they used.
//!
//! A child made with no exit signal is a *clone child* to the kernel: waits pass it over unless told
//! otherwise. The warden's proof of death, "no children are left", rests on that, because its scribe is such
//! a child.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::raw;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It returned this code, 0 to 255.
    Exited(i32),
    /// A signal ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// Whether the kernel dumped core, or handed the core to a program.
        core: bool,
    },
}

impl Status {
    /// Reads the status word of `wait4`. Anything that is no end of a process (stopped, continued) is `None`.
    #[must_use]
    pub fn from_wait_word(word: i32) -> Option<Self> {
        if libc::WIFEXITED(word) {
            Some(Self::Exited(libc::WEXITSTATUS(word)))
        } else if libc::WIFSIGNALED(word) {
            Some(Self::Signaled { signal: libc::WTERMSIG(word), core: libc::WCOREDUMP(word) })
        } else {
            None
        }
    }
}

/// What a process and those of its descendants that it had waited for used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU in the program.
    pub user: Duration,
    /// Time on a CPU in the kernel.
    pub system: Duration,
    /// The most memory resident at once, in KiB: the largest of all these processes, not their sum.
    pub max_rss_kib: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Blocks of 512 bytes read from a device.
    pub blocks_in: u64,
    /// Blocks of 512 bytes written to a device.
    pub blocks_out: u64,
}

impl Usage {
    fn from_raw(raw: &libc::rusage) -> Self {
        let time = |value: libc::timeval| {
            Duration::from_secs(value.tv_sec.max(0).cast_unsigned())
                + Duration::from_micros(value.tv_usec.max(0).cast_unsigned())
        };
        let count = |value: libc::c_long| value.max(0).cast_unsigned();
        Self {
            user: time(raw.ru_utime),
            system: time(raw.ru_stime),
            max_rss_kib: count(raw.ru_maxrss),
            major_faults: count(raw.ru_majflt),
            blocks_in: count(raw.ru_inblock),
            blocks_out: count(raw.ru_oublock),
        }
    }
}

/// What a wait found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A child ended, and is now reaped: its pid may be used again.
    Reaped {
        /// Its process id.
        pid: Pid,
        /// How it ended.
        status: Status,
        /// What it used.
        usage: Usage,
    },
    /// There are children to wait for, and none has ended.
    NoneReady,
    /// There are no children to wait for (`ECHILD`).
    NoChildren,
}

/// Which children a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Those whose exit signal is `SIGCHLD`, as every executed program's is.
    Ordinary,
    /// Those made with another exit signal or none too.
    All,
}

/// Waits for any ordinary child; with `nohang` it does not block.
///
/// Children made without an exit signal are neither reaped nor counted: [`WaitOutcome::NoChildren`] says that
/// every *ordinary* child, adopted ones included, has been reaped.
///
/// # Errors
/// None that this use can meet, beyond those the kernel may add; interruptions are retried.
pub fn wait_any(nohang: bool) -> Result<WaitOutcome, Errno> {
    let mut word = 0i32;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let options = if nohang { libc::WNOHANG } else { 0 };
    loop {
        // SAFETY: the kernel writes the status word and the usage, both live and of its layout.
        let pid = unsafe {
            raw::syscall(
                libc::SYS_wait4,
                [
                    -1isize as usize,
                    std::ptr::from_mut(&mut word) as usize,
                    options as usize,
                    usage.as_mut_ptr() as usize,
                    0,
                ],
            )
        };
        match pid {
            Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(WaitOutcome::NoChildren),
            Err(errno) => return Err(errno),
            Ok(0) => return Ok(WaitOutcome::NoneReady),
            Ok(pid) => {
                // A traced child's stops are reported unasked; they are no ends.
                let Some(status) = Status::from_wait_word(word) else { continue };
                let Some(pid) = i32::try_from(pid).ok().and_then(raw::pid) else { continue };
                // SAFETY: all-zero is a valid rusage, and the kernel has filled it in.
                let usage = Usage::from_raw(unsafe { usage.assume_init_ref() });
                return Ok(WaitOutcome::Reaped { pid, status, usage });
            }
        }
    }
}

/// Waits for the child that `pidfd` names; with `nohang` it does not block.
///
/// A child made without an exit signal needs [`Children::All`]. [`WaitOutcome::NoChildren`] says that the
/// process is no child of ours, or has been reaped.
///
/// # Errors
/// `EBADF` or `EINVAL` if the descriptor is no pidfd; interruptions are retried.
pub fn wait_pidfd(pidfd: BorrowedFd<'_>, children: Children, nohang: bool) -> Result<WaitOutcome, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let mut options = libc::WEXITED;
    if nohang {
        options |= libc::WNOHANG;
    }
    if children == Children::All {
        options |= libc::__WALL;
    }
    loop {
        // SAFETY: the kernel writes siginfo and usage, both live and of its layout. Its own call takes the
        // fifth argument, which libc's wrapper leaves out.
        let done = unsafe {
            raw::syscall(
                libc::SYS_waitid,
                [
                    libc::P_PIDFD as usize,
                    pidfd.as_raw_fd() as usize,
                    info.as_mut_ptr() as usize,
                    options as usize,
                    usage.as_mut_ptr() as usize,
                ],
            )
        };
        match done {
            Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return Ok(WaitOutcome::NoChildren),
            // A pidfd opened non-blocking.
            Err(Errno::AGAIN) => return Ok(WaitOutcome::NoneReady),
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    // SAFETY: all-zero is a valid siginfo and a valid rusage, and the kernel has filled them in.
    let (info, usage) = unsafe { (info.assume_init_ref(), usage.assume_init_ref()) };
    // SAFETY: the kernel fills these fields for every wait; they are zero when nothing was found.
    let (pid, value) = unsafe { (info.si_pid(), info.si_status()) };
    let Some(pid) = raw::pid(pid) else { return Ok(WaitOutcome::NoneReady) };
    let status = match info.si_code {
        libc::CLD_EXITED => Status::Exited(value),
        code => Status::Signaled { signal: value, core: code == libc::CLD_DUMPED },
    };
    Ok(WaitOutcome::Reaped { pid, status, usage: Usage::from_raw(usage) })
}
