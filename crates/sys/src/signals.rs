//! Signals as readable events, and a clean slate after a fork.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::raw::{self, KernelSigset};

fn bit(signal: Signal) -> KernelSigset {
    1 << (signal.as_raw() - 1)
}

fn set_of(signals: &[Signal]) -> KernelSigset {
    signals.iter().fold(0, |set, signal| set | bit(*signal))
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// Who sent it, or whose end it tells of; 0 for the kernel itself.
    pub pid: i32,
    /// The sender's user.
    pub uid: u32,
}

/// A descriptor, closed on exec and non-blocking, on which a set of signals arrives.
///
/// Signals of one number that come while one is pending are merged: after one `SIGCHLD`, wait until nobody is
/// left to reap.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks `signals` for the calling thread and opens a descriptor that receives them. They stay blocked
    /// when it is dropped, lest one that is pending then end the process.
    ///
    /// In a process with more threads, block them before starting those: a signal goes to any thread that
    /// does not block it.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is free.
    pub fn new(signals: &[Signal]) -> Result<Self, Errno> {
        let set = set_of(signals);
        block(signals);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the kernel reads a set of the size stated.
        let fd = unsafe {
            raw::syscall(
                libc::SYS_signalfd4,
                [
                    -1isize as usize,
                    std::ptr::from_ref(&set) as usize,
                    size_of::<KernelSigset>(),
                    flags as usize,
                    0,
                ],
            )?
        };
        // SAFETY: a new descriptor that only we know.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Takes one signal that has arrived; `None` if there is none now.
    ///
    /// # Errors
    /// None known; interruptions are retried.
    pub fn read(&self) -> Result<Option<Received>, Errno> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        // SAFETY: the struct is plain integers, so its bytes may be written and, being zeroed, are
        // initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                info.as_mut_ptr().cast::<u8>(),
                size_of::<libc::signalfd_siginfo>(),
            )
        };
        loop {
            match rustix::io::read(&self.0, &mut *bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
                Ok(len) if len < bytes.len() => return Ok(None),
                Ok(_) => break,
            }
        }
        // SAFETY: all-zero was valid, and the kernel has filled it in.
        let info = unsafe { info.assume_init_ref() };
        Ok(Some(Received {
            signal: info.ssi_signo.cast_signed(),
            pid: info.ssi_pid.cast_signed(),
            uid: info.ssi_uid,
        }))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks `signals` for the calling thread, beside those already blocked; threads it starts inherit that.
pub fn block(signals: &[Signal]) {
    let before = raw::set_mask(KernelSigset::MAX);
    raw::set_mask(before | set_of(signals));
}

/// Sets every signal back to its default disposition, ignored ones too, and unblocks all for the calling
/// thread.
///
/// For a child after [`crate::fork`]: what it inherits was meant for its parent. Rust ignores `SIGPIPE`;
/// after this it ends the process. Signals that were pending take effect at once.
pub fn reset() {
    raw::default_dispositions();
    raw::NOT_DEFAULT.store(0, Ordering::Relaxed);
    raw::set_mask(0);
}

/// Looks which signals have another disposition than the default, so that children need not be given the default of all
/// 64. To be called once nothing changes dispositions any more but [`ignore`] and [`reset`].
///
/// # Errors
/// Where `/proc` does not tell; all are reset then, as before.
pub fn look_at_dispositions() -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let (Some(ignored), Some(caught)) = (set("SigIgn:"), set("SigCgt:")) else {
        return Err(std::io::ErrorKind::InvalidData.into());
    };
    raw::NOT_DEFAULT.store(ignored | caught, Ordering::Relaxed);
    Ok(())
}

/// Has the whole process ignore `signal`.
///
/// Ignoring `SIGCHLD` makes the kernel reap children by itself, which loses how they ended.
///
/// # Errors
/// `EINVAL` for `KILL` and `STOP`.
pub fn ignore(signal: Signal) -> Result<(), Errno> {
    raw::NOT_DEFAULT.fetch_or(1 << (signal.as_raw() - 1), Ordering::Relaxed);
    // The kernel's struct: SIG_IGN as handler, no flags, empty mask.
    let action = [libc::SIG_IGN as u64, 0, 0, 0];
    // SAFETY: the kernel reads at most these 32 bytes; an ignored signal runs no code of ours.
    unsafe {
        raw::syscall(
            libc::SYS_rt_sigaction,
            [signal.as_raw() as usize, action.as_ptr() as usize, 0, size_of::<KernelSigset>(), 0],
        )?;
    }
    Ok(())
}
