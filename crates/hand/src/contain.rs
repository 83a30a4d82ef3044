//! What contains a command: chosen, made, signalled, observed and taken down.
//!
//! Groups are made below the first place that lets us: the root of the version 2 hierarchy that we can see, else our
//! own group. There a folder `outlast-HASH` stands for the home, and in it one group for each keeper (so that what
//! kills its caller's group does not kill it) beside one leaf for each command. They are siblings, because a group that
//! holds processes may not hand controllers on.

use outlast_core::bytes::Bytes;
use outlast_core::evidence::{Isolation, LeafRemoval, LeafState};
use outlast_core::ledger::Straggler;
use outlast_core::spec::{Boundary, RunAs, Spec};
use outlast_sys::cgroup::{self, Hierarchy, Leaf};
use outlast_sys::proc_tree::{self, Scanner};
use outlast_sys::{Errno, Pid, Signal, pidfd};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The scribe's name in process lists, by which it is told from the command's processes when they are counted.
pub(crate) const SCRIBE_NAME: &CStr = c"outlast-scribe";
/// That of the process 1 of a PID namespace.
pub(crate) const INIT_NAME: &CStr = c"outlast-init";

/// What a running job has used so far, so that a silent one does not look hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// CPU time of the processes that live now, and of those they have waited for, in milliseconds.
    pub cpu_ms: u64,
    /// Processes that live now.
    pub processes: u64,
}

/// Why a command cannot be contained or limited as asked.
#[derive(Debug, Error)]
pub(crate) enum Missing {
    /// The boundary that was asked for.
    #[error("containment {} is not available here: {why}", .boundary.name())]
    Boundary { boundary: Boundary, why: String },
    /// A limit that was asked for.
    #[error("a limit on {what} is not available here: {why}")]
    Limit { what: &'static str, why: String },
    /// Another user.
    #[error("only root can run a command as another user")]
    User,
}

impl Missing {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Missing::Boundary { .. } => "CONTAINMENT_UNAVAILABLE",
            Missing::Limit { .. } => "LIMIT_UNAVAILABLE",
            Missing::User => "USER_UNAVAILABLE",
        }
    }

    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Missing::Boundary { .. } => {
                "`outlast doctor` shows what this machine offers; --containment auto takes the strongest of it"
            }
            Missing::Limit { .. } => {
                "`outlast doctor` shows which limits this machine offers; leave the option out to run without"
            }
            Missing::User => "run outlast as root, or leave --user out",
        }
    }
}

/// The groups of one job, held by the keeper.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Where the home's folder of groups lies.
    pub(crate) place: PathBuf,
    /// The keeper's own group.
    pub(crate) keeper: Leaf,
    /// The command's leaf.
    pub(crate) leaf: Leaf,
    /// The launcher's own group, in which the keeper's last child is born.
    pub(crate) origin: PathBuf,
}

/// A cgroup of version 1 that holds one limit.
#[derive(Debug)]
pub(crate) struct LimitGroup {
    pub(crate) controller: String,
    pub(crate) group: Leaf,
}

/// Everything that contains one command. The launcher makes it, so that the keeper can be born inside, and tells the
/// keeper by a [`Plan`].
#[derive(Debug)]
pub(crate) struct Containment {
    pub(crate) boundary: Boundary,
    pub(crate) isolation: Isolation,
    pub(crate) groups: Option<Groups>,
    pub(crate) limit_groups: Vec<LimitGroup>,
}

/// What a launcher made, as it tells the keeper. Each group is named with the kernel's number for it, so that no other
/// is mistaken for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    boundary: Boundary,
    isolation: Isolation,
    groups: Option<GroupsPlan>,
    limit_groups: Vec<(String, GroupPlan)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct GroupsPlan {
    place: Bytes,
    keeper: GroupPlan,
    leaf: GroupPlan,
    origin: Bytes,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GroupPlan {
    path: Bytes,
    id: u64,
}

impl GroupPlan {
    pub(crate) fn of(group: &Leaf) -> GroupPlan {
        GroupPlan { path: path_bytes(group.path()), id: group.id() }
    }

    pub(crate) fn open(&self) -> Result<Leaf, Errno> {
        let path = bytes_path(&self.path);
        let parent = path.parent().ok_or(Errno::INVAL)?;
        Leaf::reopen(parent, path.file_name().ok_or(Errno::INVAL)?, self.id)
    }
}

fn path_bytes(path: &Path) -> Bytes {
    Bytes(path.as_os_str().as_bytes().to_vec())
}

fn bytes_path(bytes: &Bytes) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&bytes.0))
}

impl Containment {
    /// Chooses and makes what the spec asks for. Nothing is left behind where this fails.
    pub(crate) fn prepare(home: &Path, spec: &Spec) -> Result<Containment, Missing> {
        let root = rustix::process::geteuid().is_root();
        if spec.work.user.is_some() && !root {
            return Err(Missing::User);
        }
        let asked = spec.work.containment;
        let mut groups = None;
        let boundary = match asked {
            Some(Boundary::PidNamespace) => Boundary::PidNamespace,
            Some(Boundary::Subreaper) => Boundary::Subreaper,
            Some(Boundary::Cgroup2Subreaper) | None => match make_groups(home, spec) {
                Ok(made) => {
                    groups = Some(made);
                    Boundary::Cgroup2Subreaper
                }
                Err(why) if asked.is_some() => {
                    return Err(Missing::Boundary { boundary: Boundary::Cgroup2Subreaper, why });
                }
                Err(_) => Boundary::Subreaper,
            },
        };
        let isolation = match (boundary, spec.work.user) {
            (Boundary::PidNamespace, _) => Isolation::PidNamespace,
            (_, Some(RunAs { uid, .. })) if uid != 0 => Isolation::OtherUid,
            _ => Isolation::SameUid,
        };
        let mut made = Containment { boundary, isolation, groups, limit_groups: Vec::new() };
        match made.make_limits(home, spec) {
            Ok(()) => Ok(made),
            Err(missing) => {
                made.undo();
                Err(missing)
            }
        }
    }

    fn make_limits(&mut self, home: &Path, spec: &Spec) -> Result<(), Missing> {
        let limits = &spec.work.limits;
        let wanted = [
            ("processes", "pids", "pids.max", "pids.max", limits.pids),
            ("memory", "memory", "memory.max", "memory.limit_in_bytes", limits.memory_bytes),
        ];
        for (what, controller, v2_file, v1_file, value) in wanted {
            let Some(value) = value else { continue };
            let text = value.to_string();
            if let Some(groups) = &self.groups
                && enable(&groups.place, controller)
                && groups.leaf.write(v2_file, text.as_bytes()).is_ok()
            {
                if controller == "memory" {
                    // Otherwise a limit moves pages to swap for as long as there is any. Where it cannot be set,
                    // there is no swap accounting either.
                    let _ = groups.leaf.write("memory.swap.max", b"0");
                }
                continue;
            }
            let group = limit_group_v1(home, spec, controller)
                .and_then(|group| match group.write(v1_file, text.as_bytes()) {
                    Ok(()) => {
                        if controller == "memory" {
                            // The same for version 1, where the file is missing without swap accounting.
                            let _ = group.write("memory.memsw.limit_in_bytes", text.as_bytes());
                        }
                        Ok(group)
                    }
                    Err(errno) => {
                        let _ = group.remove();
                        Err(errno.to_string())
                    }
                })
                .map_err(|why| Missing::Limit { what, why })?;
            self.limit_groups.push(LimitGroup { controller: controller.to_owned(), group });
        }
        Ok(())
    }

    /// What a keeper is told of it.
    pub(crate) fn plan(&self) -> Plan {
        let limits = self.limit_groups.iter();
        Plan {
            boundary: self.boundary,
            isolation: self.isolation,
            groups: self.groups.as_ref().map(|groups| GroupsPlan {
                place: path_bytes(&groups.place),
                keeper: GroupPlan::of(&groups.keeper),
                leaf: GroupPlan::of(&groups.leaf),
                origin: path_bytes(&groups.origin),
            }),
            limit_groups: limits
                .map(|limit| (limit.controller.clone(), GroupPlan::of(&limit.group)))
                .collect(),
        }
    }

    /// Opens what the launcher made.
    pub(crate) fn open(plan: &Plan) -> Result<Containment, Errno> {
        let groups = match &plan.groups {
            None => None,
            Some(groups) => Some(Groups {
                place: bytes_path(&groups.place),
                keeper: groups.keeper.open()?,
                leaf: groups.leaf.open()?,
                origin: bytes_path(&groups.origin),
            }),
        };
        let limits = plan.limit_groups.iter();
        let limits = limits.map(|(controller, group)| {
            Ok::<_, Errno>(LimitGroup { controller: controller.clone(), group: group.open()? })
        });
        Ok(Containment {
            boundary: plan.boundary,
            isolation: plan.isolation,
            groups,
            limit_groups: limits.collect::<Result<_, _>>()?,
        })
    }

    /// Removes all of it: no keeper was born.
    pub(crate) fn undo(&self) {
        self.take_down();
        if let Some(groups) = &self.groups {
            groups.remove_outer();
        }
    }

    /// The leaf, where there is one.
    pub(crate) fn leaf(&self) -> Option<&Leaf> {
        self.groups.as_ref().map(|groups| &groups.leaf)
    }

    /// Sends TERM, then CONT so that stopped processes can act on it, to all that descends from this process but the
    /// scribe. Returns how many were sent the signal.
    pub(crate) fn term(&self, scribe: Pid) -> u64 {
        let Ok(mut scanner) = Scanner::new() else { return 0 };
        let own = rustix::process::getpid();
        let sent = scanner.signal_descendants(own, &[scribe], Signal::TERM).map_or(0, |done| done.sent);
        let _ = scanner.signal_descendants(own, &[scribe], Signal::CONT);
        sent as u64
    }

    /// Kills all that is in the leaf, and, where there is none or `escapees` are to be looked for, all that descends
    /// from this process but the scribe.
    pub(crate) fn kill(&self, scribe: Pid, escapees: bool) -> Option<u64> {
        let killed_leaf = self.leaf().is_some_and(|leaf| leaf.kill().is_ok());
        if killed_leaf && !escapees {
            return None;
        }
        let mut scanner = Scanner::new().ok()?;
        let own = rustix::process::getpid();
        let mut sent = 0;
        // One pass may miss what is being forked meanwhile. More follow by the clock; these are for speed.
        for _ in 0..4 {
            match scanner.signal_descendants(own, &[scribe], Signal::KILL) {
                Ok(done) if done.sent > 0 => sent += done.sent as u64,
                _ => break,
            }
        }
        Some(sent)
    }

    /// Looks at the leaf once everything is reaped, and removes it if it is empty.
    pub(crate) fn observe_leaf(&self) -> Option<(String, LeafState, LeafRemoval)> {
        let leaf = self.leaf()?;
        let path = leaf.path().to_string_lossy().into_owned();
        Some((path, leaf_state(leaf), remove_if_empty(leaf)))
    }

    /// Whether the kernel ran out of the memory that this job was limited to.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let v1 = self.limit_groups.iter().filter(|limit| limit.controller == "memory");
        let mut texts: Vec<String> =
            v1.filter_map(|limit| limit.group.read("memory.oom_control").ok()).collect();
        texts.extend(self.leaf().and_then(|leaf| leaf.read("memory.events").ok()));
        texts.iter().any(|text| counter(text, "oom_kill") > 0)
    }

    /// Removes what is left: limits, and the leaf where the command never ran. The keeper's own group goes when the
    /// keeper has left it.
    pub(crate) fn take_down(&self) {
        for limit in &self.limit_groups {
            let _ = limit.group.remove();
        }
        if let Some(groups) = &self.groups {
            let _ = groups.leaf.remove_tree();
        }
    }
}

impl Groups {
    /// Removes the keeper's group and, if this was the last job, the home's folder of groups. To be called by a
    /// process outside, once the keeper has ended.
    pub(crate) fn remove_outer(&self) {
        // By path, because who calls this has closed most descriptors.
        let _ = rustix::fs::rmdir(self.keeper.path());
        let _ = rustix::fs::rmdir(&self.place);
    }
}

impl Groups {
    /// Removes what keepers that were killed at their very end have left beside ours: groups of jobs that have their
    /// receipts. Others may be about to be used.
    pub(crate) fn sweep(&self, jobs: &Path) {
        /// With more than this, others are at work, and will sweep.
        const FEW: usize = 64;
        let Ok(entries) = std::fs::read_dir(&self.place) else { return };
        let groups: Vec<_> =
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).collect();
        if groups.len() > FEW {
            return;
        }
        for group in groups {
            let name = group.file_name();
            let name = name.to_string_lossy();
            let id = name.strip_suffix(LEAF_SUFFIX).unwrap_or(&name);
            if jobs.join(id).join(crate::job::name::RECEIPT).exists() {
                let _ = rustix::fs::rmdir(group.path());
            }
        }
        let _ = rustix::fs::rmdir(&self.place);
    }
}

/// The descendants of this process but the scribe, named, and how many more there are than `most`.
pub(crate) fn descendants(scribe: Pid, most: usize) -> (Vec<Straggler>, u64) {
    let own = rustix::process::getpid();
    let mut found = proc_tree::children_of(own, &[scribe]).unwrap_or_default();
    found.retain(|process| !process.is_zombie() && process.comm() != INIT_NAME.to_bytes());
    let more = found.len().saturating_sub(most) as u64;
    (found.iter().take(most).map(named).collect(), more)
}

/// A process for people: its name is the command's own choice, so what cannot be printed is replaced.
pub(crate) fn named(process: &proc_tree::Proc) -> Straggler {
    let name = String::from_utf8_lossy(process.comm());
    let name = name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    Straggler { pid: process.pid.as_raw_nonzero().get().unsigned_abs(), name }
}

pub(crate) fn leaf_state(leaf: &Leaf) -> LeafState {
    match leaf.populated() {
        Ok(false) => LeafState::Empty,
        Ok(true) => LeafState::Populated,
        Err(errno) => LeafState::Unreadable(errno.to_string()),
    }
}

pub(crate) fn remove_if_empty(leaf: &Leaf) -> LeafRemoval {
    match leaf.remove_tree() {
        Ok(()) => LeafRemoval::Removed,
        Err(Errno::NOENT) => LeafRemoval::AlreadyGone,
        Err(errno) => LeafRemoval::Refused(errno.to_string()),
    }
}

/// The folder of groups of one home.
fn home_folder(home: &Path) -> String {
    let hash = blake3::hash(home.as_os_str().as_bytes());
    format!("outlast-{}", &hash.to_hex()[..12])
}

/// The name of a job's leaf beside its keeper's group.
fn leaf_name(spec: &Spec) -> String {
    format!("{}{LEAF_SUFFIX}", spec.job_id)
}

const LEAF_SUFFIX: &str = "-command";

fn make_groups(home: &Path, spec: &Spec) -> Result<Groups, String> {
    let location = cgroup::locate(Hierarchy::Unified).map_err(|error| error.to_string())?;
    let location = location
        .ok_or_else(|| "no cgroup2 hierarchy is mounted where this process can see its group".to_owned())?;
    let mut why = String::new();
    for base in bases(&location) {
        match make_groups_below(&base, &location.own, home, spec) {
            Ok(groups) => return Ok(groups),
            Err(errno) => why = format!("no group can be made in {}: {errno}", base.display()),
        }
    }
    Err(why)
}

/// Where groups may be made: `OUTLAST_CGROUP` alone if it is set, else the top of what we see, else our own group.
fn bases(location: &cgroup::Location) -> Vec<PathBuf> {
    match std::env::var_os("OUTLAST_CGROUP") {
        Some(place) => vec![PathBuf::from(place)],
        None if location.mount == location.own => vec![location.own.clone()],
        None => vec![location.mount.clone(), location.own.clone()],
    }
}

fn make_groups_below(base: &Path, own: &Path, home: &Path, spec: &Spec) -> Result<Groups, Errno> {
    let place = base.join(home_folder(home));
    let id = spec.job_id.to_string();
    // The folder goes with its last job, so another keeper may remove it between two of these steps.
    for _ in 0..100 {
        match rustix::fs::mkdir(&place, rustix::fs::Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let keeper = match create_or_reuse(&place, &id) {
            Ok(group) => group,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        return match create_or_reuse(&place, &leaf_name(spec)) {
            Ok(leaf) => Ok(Groups { place, keeper, leaf, origin: own.to_owned() }),
            Err(errno) => {
                let _ = keeper.remove();
                let _ = rustix::fs::rmdir(&place);
                Err(errno)
            }
        };
    }
    Err(Errno::NOENT)
}

/// Removes groups that a launcher made for a job whose keeper was never born, or died before its start mark.
pub(crate) fn remove_left(home: &Path, spec: &Spec) {
    let Ok(Some(location)) = cgroup::locate(Hierarchy::Unified) else { return };
    for base in bases(&location) {
        let place = base.join(home_folder(home));
        for name in [leaf_name(spec), spec.job_id.to_string()] {
            let _ = rustix::fs::rmdir(place.join(name));
        }
        let _ = rustix::fs::rmdir(&place);
    }
    for controller in ["pids", "memory"] {
        if let Ok(Some(location)) = cgroup::locate(Hierarchy::V1(controller)) {
            let name = format!("{}-{}", home_folder(home), spec.job_id);
            let _ = rustix::fs::rmdir(location.own.join(name));
        }
    }
}

/// Makes a group. One of the same name can only be left by a keeper of the same job that lost the race for its start,
/// or died in it: an empty one is removed, another stays in the way.
fn create_or_reuse(place: &Path, name: &str) -> Result<Leaf, Errno> {
    match Leaf::create(place, OsStr::new(name)) {
        Err(Errno::EXIST) => {
            rustix::fs::rmdir(place.join(name))?;
            Leaf::create(place, OsStr::new(name))
        }
        other => other,
    }
}

/// Hands a controller down to the leaf; `false` where that cannot be.
fn enable(place: &Path, controller: &str) -> bool {
    let Some(base) = place.parent() else { return false };
    let has = |dir: &Path, file: &str| {
        std::fs::read_to_string(dir.join(file))
            .is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
    };
    if !has(base, "cgroup.controllers") {
        return false;
    }
    let hand_down = |dir: &Path| {
        has(dir, "cgroup.subtree_control")
            || std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}")).is_ok()
    };
    // Only our own folder is ours to change: where its parent does not hand the controller down, there is none.
    has(base, "cgroup.subtree_control") && hand_down(place)
}

fn limit_group_v1(home: &Path, spec: &Spec, controller: &str) -> Result<Leaf, String> {
    let location = cgroup::locate(Hierarchy::V1(controller)).map_err(|error| error.to_string())?;
    let location = location.ok_or_else(|| format!("the {controller} controller is mounted nowhere"))?;
    let name = format!("{}-{}", home_folder(home), spec.job_id);
    Leaf::create(&location.own, OsStr::new(&name))
        .map_err(|errno| format!("no group can be made in {}: {errno}", location.own.display()))
}

/// The value after `name` in a file of `name value` lines; 0 where it is missing.
fn counter(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// CPU time and number of all descendants of a keeper's warden, its scribe included.
pub(crate) fn activity_below(warden: Pid) -> Activity {
    let processes = proc_tree::children_of(warden, &[]).unwrap_or_default();
    let mut activity = Activity::default();
    for process in
        processes.iter().filter(|process| !process.is_zombie() && process.comm() != SCRIBE_NAME.to_bytes())
    {
        activity.processes += 1;
        activity.cpu_ms += cpu_ms(process.pid);
    }
    activity
}

/// CPU time of a process and of the children it has waited for.
fn cpu_ms(pid: Pid) -> u64 {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let Some(end) = stat.iter().rposition(|byte| *byte == b')') else { return 0 };
    // After the name: state is field 3, so utime, stime, cutime and cstime (14 to 17) are the 12th to 15th here.
    let fields = String::from_utf8_lossy(&stat[end + 1..]);
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Who holds a pipe open for writing, as far as `/proc` lets us see.
pub(crate) fn holders(pipes: &[u64], exclude: &[Pid]) -> Vec<Straggler> {
    let mut found = Vec::new();
    let wanted: Vec<String> = pipes.iter().map(|inode| format!("pipe:[{inode}]")).collect();
    let Ok(entries) = std::fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let Some(pid) =
            entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        if exclude.contains(&pid) || found.len() >= 16 {
            continue;
        }
        let Ok(descriptors) = std::fs::read_dir(entry.path().join("fd")) else { continue };
        let holds = descriptors.flatten().any(|descriptor| {
            std::fs::read_link(descriptor.path())
                .is_ok_and(|target| wanted.iter().any(|pipe| target.as_os_str() == OsStr::new(pipe)))
        });
        if holds {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let name = name.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
            found.push(Straggler { pid: pid.as_raw_nonzero().get().unsigned_abs(), name });
        }
    }
    found
}

/// The start time of the process that has this pid now, unless it has ended: `None` where there is none, or it is a
/// zombie. Only for a pid of this namespace.
///
/// # Errors
/// Whatever else keeps us from knowing: nothing follows from it.
pub(crate) fn process_now(pid: Pid) -> Result<Option<u64>, Errno> {
    let fd = match pidfd::open(pid) {
        Ok(fd) => fd,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let now = pidfd::start_time(pid);
    // A readable pidfd is a process that has ended, reaped or not.
    if pidfd::is_readable(fd.as_fd())? {
        return Ok(None);
    }
    now.map(Some).ok_or(Errno::ACCESS)
}
