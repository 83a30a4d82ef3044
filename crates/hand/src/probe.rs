//! What this machine offers: containment, limits, storage.

use crate::home::Home;
use outlast_core::spec::Boundary;
use outlast_sys::cgroup::{self, Hierarchy};
use outlast_sys::fork::{ForkOptions, Forked, fork_process};
use outlast_sys::wait::{Children, Status, WaitOutcome, wait_pidfd};
use outlast_sys::{Signal, ns};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use std::os::fd::AsFd;
use std::path::Path;

/// What a machine offers to the user that asks.
#[derive(Debug, Clone, Serialize)]
pub struct Offers {
    /// Each boundary, and why not.
    pub containment: Vec<Offer>,
    /// Each limit, and why not.
    pub limits: Vec<Offer>,
    /// Whether a command can be run as another user.
    pub other_user: bool,
    /// Whether the kernel tells how a process ended to one who is not its parent (Linux 6.15).
    pub exit_of_strangers: bool,
    /// The disk that holds the home.
    pub storage: Storage,
    /// The kernel.
    pub kernel: String,
}

/// One thing, and whether it can be had.
#[derive(Debug, Clone, Serialize)]
pub struct Offer {
    /// What.
    pub name: String,
    /// Whether.
    pub available: bool,
    /// Where or how, or why not.
    pub detail: String,
}

/// The disk that holds the home.
#[derive(Debug, Clone, Serialize)]
pub struct Storage {
    /// The kind of file system.
    pub kind: String,
    /// Whether it is known to be local: locks and renames on a network file system are not to be trusted.
    pub local: bool,
    /// Whether what is synced there survives a restart.
    pub durable: bool,
    /// Bytes free to this user.
    pub free_bytes: u64,
    /// The median of five syncs of a small file, microseconds.
    pub sync_us: u64,
}

/// Looks, and tries what can only be tried. What is made for it is removed.
#[must_use]
pub fn probe(home: &Home) -> Offers {
    let root = rustix::process::geteuid().is_root();
    let uname = rustix::system::uname();
    Offers {
        containment: vec![
            probe_cgroup(),
            offer(Boundary::Subreaper.name(), true, "always".to_owned()),
            probe_namespace(root),
        ],
        limits: vec![probe_limit("processes", "pids"), probe_limit("memory", "memory")],
        other_user: root,
        exit_of_strangers: at_least(uname.release().to_string_lossy().as_ref(), (6, 15)),
        storage: probe_storage(home),
        kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
    }
}

fn offer(name: &str, available: bool, detail: String) -> Offer {
    Offer { name: name.to_owned(), available, detail }
}

fn probe_cgroup() -> Offer {
    let name = Boundary::Cgroup2Subreaper.name();
    let location = match cgroup::locate(Hierarchy::Unified) {
        Ok(Some(location)) => location,
        Ok(None) => return offer(name, false, "no cgroup2 hierarchy is mounted".to_owned()),
        Err(error) => return offer(name, false, error.to_string()),
    };
    let mut why = String::new();
    let places = match std::env::var_os("OUTLAST_CGROUP") {
        Some(place) => vec![place.into()],
        None => vec![location.mount.clone(), location.own.clone()],
    };
    for place in places {
        let can = cgroup::probe(&place);
        match (can.create, can.spawn_into, can.kill) {
            (Ok(()), Ok(()), true) => return offer(name, true, format!("below {}", place.display())),
            (Ok(()), Ok(()), false) => why = "this kernel cannot kill a group (Linux 5.14)".to_owned(),
            (Err(errno), ..) => why = format!("no group can be made in {}: {errno}", place.display()),
            (_, Err(errno), _) => {
                why = format!("nothing can be started in a group below {}: {errno}", place.display())
            }
        }
    }
    offer(name, false, format!("{why}; a delegated group can be named in OUTLAST_CGROUP"))
}

fn probe_namespace(root: bool) -> Offer {
    let name = Boundary::PidNamespace.name();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = ForkOptions {
        exit_signal: Some(Signal::CHILD),
        new_pid_ns: true,
        new_mount_ns: true,
        new_user_ns: !root,
        into_cgroup: None,
    };
    match fork_process(options) {
        Ok(Forked::Child) => {
            let mapped = root || ns::write_identity_maps(ns::Who::Myself, uid, gid).is_ok();
            let mounted = mapped && ns::private_mounts().and_then(|()| ns::mount_proc()).is_ok();
            std::process::exit(if mounted { 0 } else { 1 + i32::from(mapped) })
        }
        Ok(Forked::Parent { pidfd, .. }) => {
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
            match wait_pidfd(pidfd.as_fd(), Children::All, false) {
                Ok(WaitOutcome::Reaped { status: Status::Exited(0), .. }) => {
                    let how = if root {
                        "as root"
                    } else {
                        "with a user namespace, which changes what the command sees"
                    };
                    offer(name, true, how.to_owned())
                }
                Ok(WaitOutcome::Reaped { status: Status::Exited(2), .. }) => {
                    offer(name, false, "/proc cannot be mounted in a new namespace here".to_owned())
                }
                _ => offer(name, false, "a user namespace cannot be mapped here".to_owned()),
            }
        }
        Err(errno) => offer(name, false, format!("no namespace can be made: {errno}")),
    }
}

fn probe_limit(what: &str, controller: &str) -> Offer {
    if let Ok(Some(location)) = cgroup::locate(Hierarchy::Unified)
        && std::fs::read_to_string(location.mount.join("cgroup.subtree_control"))
            .is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
        && probe_cgroup().available
    {
        return offer(what, true, "cgroup version 2".to_owned());
    }
    match cgroup::locate(Hierarchy::V1(controller)) {
        Ok(Some(location)) => {
            let name = format!("outlast-probe-{}", rustix::process::getpid().as_raw_nonzero());
            match cgroup::Leaf::create(&location.own, std::ffi::OsStr::new(&name)) {
                Ok(group) => {
                    let _ = group.remove();
                    offer(what, true, format!("cgroup version 1, below {}", location.own.display()))
                }
                Err(errno) => {
                    offer(what, false, format!("no group can be made in {}: {errno}", location.own.display()))
                }
            }
        }
        Ok(None) => offer(what, false, format!("the {controller} controller is mounted nowhere")),
        Err(error) => offer(what, false, error.to_string()),
    }
}

fn probe_storage(home: &Home) -> Storage {
    let (kind, local, durable) = rustix::fs::fstatfs(home.dir())
        .map_or(("unknown", false, false), |stat| file_system(stat.f_type as u64));
    let free_bytes =
        rustix::fs::fstatvfs(home.dir()).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let mut times: Vec<u64> = (0..5).filter_map(|_| time_sync(home.path()).ok()).collect();
    times.sort_unstable();
    Storage {
        kind: kind.to_owned(),
        local,
        durable,
        free_bytes,
        sync_us: times.get(times.len() / 2).copied().unwrap_or(0),
    }
}

/// Magic numbers of file systems, from the kernel's `magic.h`: name, local, durable.
fn file_system(magic: u64) -> (&'static str, bool, bool) {
    match magic {
        0xef53 => ("ext4", true, true),
        0x5846_5342 => ("xfs", true, true),
        0x9123_683e => ("btrfs", true, true),
        0x2fc1_2fc1 => ("zfs", true, true),
        0xf2f5_2010 => ("f2fs", true, true),
        0x794c_7630 => ("overlayfs", true, true),
        0x0102_1994 => ("tmpfs", true, false),
        0x8584_58f6 => ("ramfs", true, false),
        0x6969 => ("nfs", false, true),
        0xff53_4d42 | 0xfe53_4d42 => ("smb", false, true),
        0x6573_5546 => ("fuse", false, true),
        0x0102_1997 => ("9p", false, true),
        _ => ("unknown", false, true),
    }
}

fn time_sync(home: &Path) -> std::io::Result<u64> {
    let path = home.join("tmp").join(format!("probe.{}", rustix::process::getpid().as_raw_nonzero()));
    let started = std::time::Instant::now();
    let file = std::fs::File::create(&path)?;
    let synced = std::io::Write::write_all(&mut &file, b"probe").and_then(|()| file.sync_all());
    let took = started.elapsed();
    std::fs::remove_file(&path)?;
    synced.map(|()| u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

fn at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= wanted
}
