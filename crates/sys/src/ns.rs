//! What the first process of a new namespace sets up, after [`crate::fork`] has made it.
//!
//! The order: identity maps (only in a new user namespace, and before anything else, for until then the
//! process is nobody), [`private_mounts`], [`mount_proc`]. Without the last, `/proc` would go on showing the
//! processes outside and numbering those inside by foreign ids.

use std::fs;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::Pid;

/// Whose maps are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The calling process's, in its own new user namespace.
    Myself,
    /// Those of a child that is in a new user namespace and waits for them.
    Child(Pid),
}

/// Gives a new user namespace the one user and the one group that it needs no privilege to have: `uid` and
/// `gid` as they are outside, so that files keep their owners. Supplementary groups can no longer be changed
/// in it, which is the kernel's condition.
///
/// `uid` and `gid` are the effective ids *before* the fork; inside, they read as 65534 until the maps stand.
///
/// # Errors
/// `EPERM` if they are not the caller's own and it is not privileged, or if the maps stand already; `EACCES`
/// if this process is not dumpable ([`crate::prctl::set_dumpable`] comes after this).
pub fn write_identity_maps(who: Who, uid: u32, gid: u32) -> std::io::Result<()> {
    let dir = match who {
        Who::Myself => "/proc/self".to_owned(),
        Who::Child(pid) => format!("/proc/{}", pid.as_raw_nonzero()),
    };
    fs::write(format!("{dir}/setgroups"), "deny")?;
    fs::write(format!("{dir}/uid_map"), format!("{uid} {uid} 1\n"))?;
    fs::write(format!("{dir}/gid_map"), format!("{gid} {gid} 1\n"))
}

/// Keeps what is mounted from now on in this mount namespace to itself.
///
/// # Errors
/// `EPERM` without privilege in the mount namespace's user namespace.
pub fn private_mounts() -> Result<(), Errno> {
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
}

/// Mounts a fresh `/proc` that shows this PID namespace. Call [`private_mounts`] first, or everybody gets it.
///
/// # Errors
/// `EPERM` without privilege; in a user namespace also where the `/proc` outside is covered in part (as in a
/// container).
pub fn mount_proc() -> Result<(), Errno> {
    rustix::mount::mount(
        "proc",
        "/proc",
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None::<&std::ffi::CStr>,
    )
}
