//! What a keeper says about itself to the kernel, once, at its start.

use std::ffi::CStr;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Signal};

/// Makes this process the one that adopts every orphan among its descendants, so that none of them can leave
/// its sight by double-forking. Children do not inherit it.
///
/// # Errors
/// `EINVAL` before Linux 3.4.
pub fn set_subreaper() -> Result<(), Errno> {
    // Any pid will do: the kernel only asks whether it is zero.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Says whether this process may be traced and dump core, and whether others of its uid may read its memory
/// and environment. Executing a program makes a process dumpable again.
///
/// # Errors
/// None known.
pub fn set_dumpable(dumpable: bool) -> Result<(), Errno> {
    rustix::process::set_dumpable_behavior(if dumpable {
        DumpableBehavior::Dumpable
    } else {
        DumpableBehavior::NotDumpable
    })
}

/// Forbids this thread, and all that it starts, to gain privileges by executing a program. For ever.
///
/// # Errors
/// `EINVAL` before Linux 3.5.
pub fn set_no_new_privs() -> Result<(), Errno> {
    rustix::thread::set_no_new_privs(true)
}

/// Names this thread in `ps` and `/proc/PID/comm`; the kernel keeps 15 bytes.
///
/// # Errors
/// None known.
pub fn set_name(name: &CStr) -> Result<(), Errno> {
    rustix::thread::set_name(name)
}

/// Has the kernel send `signal` to this process when the thread that made it ends; `None` takes that back.
/// Changing the user or executing a setuid program clears it. A parent that is dead already is not noticed:
/// look at `getppid` afterwards.
///
/// # Errors
/// None for a valid signal.
pub fn set_parent_death_signal(signal: Option<Signal>) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(signal)
}
