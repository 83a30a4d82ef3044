//! What keeps the runner alive and answering under load: it is the only one on its home, it is chosen late when memory is
//! out, it lives in a group of its own, and connections are bounded so that descriptors are left for what a call opens.

use outlast_hand::files;
use outlast_hand::home::Home;
use outlast_hand::nest::Nest;
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The lock a runner holds on its home.
pub(crate) const LOCK: &str = "runner.lock";
/// What a runner keeps of itself.
const RECORD: &str = "runner.json";
/// With the machine out of memory, the runner is chosen late: after every command, before the keepers.
const OOM_SCORE: &[u8] = b"-800";
/// Descriptors that are kept for what the runner itself opens while it serves a call.
const DESCRIPTORS: usize = 64;

/// How long the runner's own group may take to be empty once the runner has left it, and how often that is tried.
const LEFT_WITHIN: Duration = Duration::from_secs(1);
const LEFT_LOOK: Duration = Duration::from_millis(5);

/// What a runner holds for as long as it runs.
pub(crate) struct Reserve {
    _lock: OwnedFd,
    /// Which start of a runner on this home this is.
    pub(crate) epoch: u64,
    /// The bound on connections that the limit on open files leaves.
    pub(crate) connections: usize,
    /// Where keepers come from.
    pub(crate) nest: Option<Arc<Nest>>,
    group: Option<Group>,
}

struct Group {
    own: PathBuf,
    origin: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct Record {
    epoch: u64,
}

/// Takes the home for this runner; `None` where another one serves it.
pub(crate) fn take(home: &Home, connections: usize, keeper: Option<&Path>) -> io::Result<Option<Reserve>> {
    let lock = files::open_lock_file(home.dir(), LOCK)?;
    if !files::try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
        return Ok(None);
    }
    let record: Record = match files::read_small(home.dir(), RECORD)? {
        // Begun anew it would fall, and callers would take this hand for a restored one.
        Some(text) => serde_json::from_slice(&text).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{RECORD} is damaged ({error})"))
        })?,
        None => Record::default(),
    };
    let epoch = record.epoch + 1;
    // Durable, so that a restored folder is known by it. A full disk must not keep a runner from serving stops.
    let text = serde_json::to_vec(&Record { epoch })?;
    match files::write_durably(home.dir(), RECORD, &text) {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(error),
        _ => {}
    }
    // Before what follows: keepers and their commands have none of it.
    let nest = Nest::start(home.path(), keeper).ok().map(Arc::new);
    let _ = outlast_sys::prctl::set_dumpable(false);
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let open_files = raise_open_files();
    let connections = connections.min(open_files.saturating_sub(DESCRIPTORS) / 4).max(8);
    Ok(Some(Reserve { _lock: lock, epoch, connections, nest, group: own_group(home) }))
}

/// Raises the limit on open files as far as this user may, and says what it is.
fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    let now = getrlimit(Resource::Nofile).current.or(limit.current);
    usize::try_from(now.unwrap_or(1024)).unwrap_or(1024)
}

/// Moves the runner into a group of its own where it may make one, so that what limits or ends the group it was started
/// in does not reach it. The group is the home's: one that was killed leaves it to the next.
fn own_group(home: &Home) -> Option<Group> {
    use outlast_sys::cgroup::{Hierarchy, locate};
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let location = locate(Hierarchy::Unified).ok()??;
    let own = location.mount.join(format!("outlast-runner-{}", home.id()));
    match std::fs::create_dir(&own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    match std::fs::write(own.join("cgroup.procs"), "0") {
        Ok(()) => Some(Group { own, origin: location.own }),
        Err(_) => {
            let _ = std::fs::remove_dir(&own);
            None
        }
    }
}

impl Reserve {
    /// Leaves the group again and removes it: nothing of a runner stays behind.
    pub(crate) fn release(self) {
        if let Some(Group { own, origin }) = self.group
            && std::fs::write(origin.join("cgroup.procs"), b"0").is_ok()
        {
            // The kernel lets go of what was in it a moment after that has left.
            let until = Instant::now() + LEFT_WITHIN;
            while std::fs::remove_dir(&own).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
                && Instant::now() < until
            {
                std::thread::sleep(LEFT_LOOK);
            }
        }
    }
}
