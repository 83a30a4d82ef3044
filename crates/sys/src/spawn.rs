//! Starts a program: cheaply from a process of any size, born where it belongs, and with an honest error.
//!
//! The child is made by one `clone3`: it shares our memory and we are suspended until it has executed the
//! program (so nothing is copied), its pidfd exists from birth (so it can never be mistaken for another
//! process), and it is born inside its cgroup (so there is no moment in which it is outside). Whatever fails
//! before the program runs is told through the shared memory with the stage it failed in, and no process is
//! left behind.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal};

use crate::raw::{self, CloneSpec};

/// A program to start, and all that is to be true of its process before it runs.
///
/// Nothing is inherited by accident: the environment is exactly the one given, every descriptor without a
/// target number is closed, all signals are unblocked and have their default disposition. (A descriptor 0, 1
/// or 2 that is not given is closed as well, which few programs expect.)
///
/// The order in the child: session, cgroups, OOM score, descriptors, controlling terminal, umask, resource
/// limits, credentials, capabilities, no new privileges, parent's death signal, working directory, signals,
/// program. What needs privilege thus comes before they are given up, and the working directory is entered
/// with the rights of the command, not with ours.
///
/// There is no switch for `PR_SET_DUMPABLE`: executing a program makes it dumpable again whatever we set. To
/// keep a command from dumping core, set [`Limit::Core`] to 0. Nor is there one for the exit signal:
/// executing a program sets it to `SIGCHLD`, so a spawned child is always visible to plain waits.
#[derive(Clone)]
pub struct Spawn<'fd> {
    programs: Vec<CString>,
    argv: Vec<CString>,
    envp: Vec<CString>,
    fds: Vec<(BorrowedFd<'fd>, RawFd)>,
    into_cgroup: Option<BorrowedFd<'fd>>,
    join: Vec<BorrowedFd<'fd>>,
    cwd: Option<Cwd<'fd>>,
    new_session: bool,
    controlling_terminal: bool,
    umask: Option<u32>,
    oom_score_adj: Option<Vec<u8>>,
    rlimits: Vec<(u32, libc::rlimit64)>,
    credentials: Option<Credentials>,
    drop_capabilities: bool,
    no_new_privs: bool,
    parent_death_signal: Option<Signal>,
}

#[derive(Clone)]
enum Cwd<'fd> {
    Path(CString),
    Dir(BorrowedFd<'fd>),
}

/// Arguments and environment may hold secrets and are not shown.
impl std::fmt::Debug for Spawn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawn").field("programs", &self.programs).finish_non_exhaustive()
    }
}

/// Whom the program runs as. Real, effective, saved and file-system ids are all set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The supplementary groups; empty clears them.
    pub groups: Vec<u32>,
}

/// A resource limit that a command can be started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Size of a core dump; 0 keeps secrets in memory from reaching the disk.
    Core,
    /// CPU time in seconds.
    Cpu,
    /// Address space in bytes.
    AddressSpace,
    /// Size of a file in bytes.
    FileSize,
    /// Open descriptors.
    OpenFiles,
    /// Processes of the user.
    Processes,
    /// Size of the main thread's stack in bytes.
    Stack,
    /// Locked memory in bytes.
    LockedMemory,
}

impl Limit {
    fn resource(self) -> u32 {
        match self {
            Self::Core => libc::RLIMIT_CORE,
            Self::Cpu => libc::RLIMIT_CPU,
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::FileSize => libc::RLIMIT_FSIZE,
            Self::OpenFiles => libc::RLIMIT_NOFILE,
            Self::Processes => libc::RLIMIT_NPROC,
            Self::Stack => libc::RLIMIT_STACK,
            Self::LockedMemory => libc::RLIMIT_MEMLOCK,
        }
    }
}

/// A child that runs its program.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id. It is ours until the child is reaped; signal it by [`Spawned::pidfd`] all the same.
    pub pid: Pid,
    /// Names this process and no other, for ever.
    pub pidfd: OwnedFd,
}

/// What was being done when a spawn failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// The request itself is wrong: no program, a negative or repeated target descriptor.
    Request,
    /// Making the process, in its cgroup if one was given. See [`SpawnError::clone_unavailable`].
    Clone,
    /// Becoming leader of a new session.
    Session,
    /// Joining a cgroup through its `cgroup.procs`.
    Cgroup,
    /// Writing `oom_score_adj`.
    OomScore,
    /// Placing the descriptors or closing the others.
    Descriptors,
    /// Taking descriptor 0 as the controlling terminal.
    Terminal,
    /// Setting a resource limit.
    Limits,
    /// Changing groups, gid or uid.
    Credentials,
    /// Giving up capabilities.
    Capabilities,
    /// Forbidding new privileges.
    NoNewPrivs,
    /// Setting the parent's death signal; `ESRCH` says that the parent was dead already.
    ParentDeath,
    /// Entering the working directory.
    Chdir,
    /// Executing the program: `ENOENT`, `EACCES`, `ENOEXEC` and others, as `execve` says.
    Exec,
}

const STAGES: [Stage; 14] = [
    Stage::Request,
    Stage::Clone,
    Stage::Session,
    Stage::Cgroup,
    Stage::OomScore,
    Stage::Descriptors,
    Stage::Terminal,
    Stage::Limits,
    Stage::Credentials,
    Stage::Capabilities,
    Stage::NoNewPrivs,
    Stage::ParentDeath,
    Stage::Chdir,
    Stage::Exec,
];

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Request => "the request is not valid",
            Self::Clone => "the process could not be made",
            Self::Session => "a new session could not be made",
            Self::Cgroup => "the cgroup could not be joined",
            Self::OomScore => "the OOM score could not be set",
            Self::Descriptors => "the descriptors could not be placed",
            Self::Terminal => "the controlling terminal could not be taken",
            Self::Limits => "a resource limit could not be set",
            Self::Credentials => "user and groups could not be changed",
            Self::Capabilities => "capabilities could not be given up",
            Self::NoNewPrivs => "new privileges could not be forbidden",
            Self::ParentDeath => "the parent's death signal could not be set",
            Self::Chdir => "the working directory could not be entered",
            Self::Exec => "the program could not be executed",
        })
    }
}

/// Why no program runs. No process is left of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnError {
    /// What was being done.
    pub stage: Stage,
    /// What the kernel said.
    pub errno: Errno,
}

impl SpawnError {
    /// Tells whether `clone3` itself is missing or forbidden here (an old kernel, a sandbox's filter), so
    /// that a caller may choose another way of starting programs. `EPERM` is such a filter's usual answer; a
    /// spawn that asks for no cgroup has no other reason for it.
    #[must_use]
    pub fn clone_unavailable(&self) -> bool {
        self.stage == Stage::Clone && matches!(self.errno, Errno::NOSYS | Errno::PERM)
    }
}

impl std::fmt::Display for SpawnError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stage.fmt(f)
    }
}

impl std::error::Error for SpawnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.errno)
    }
}

/// Lists the paths at which a program named `name` may be, for [`Spawn::search`], as `execvp` would try
/// them.
///
/// A name with a slash stands for itself; otherwise one path is made for each entry of `search` (the value of
/// `PATH`), an empty entry being the working directory. Names that cannot be passed on (empty, or with a NUL)
/// give an empty list.
#[must_use]
pub fn candidates(name: &OsStr, search: &OsStr) -> Vec<CString> {
    let name = name.as_bytes();
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let at = |dir: &[u8]| {
        let dir = if dir.is_empty() { b"." } else { dir };
        CString::new([dir, b"/", name].concat()).ok()
    };
    search.as_bytes().split(|byte| *byte == b':').filter_map(at).collect()
}

impl<'fd> Spawn<'fd> {
    /// Starts a description of `program`, a path, with itself as its only argument, an empty environment and
    /// no descriptors.
    #[must_use]
    pub fn new(program: CString) -> Self {
        Self::search(vec![program.clone()], program)
    }

    /// Starts a description of the first of `programs` that can be executed, called `arg0`.
    ///
    /// The paths are tried in order as `execvp` does: one that is missing or lies below something that is no
    /// directory is passed over, one that may not be executed is passed over and remembered, so that `EACCES`
    /// is reported if nothing else is found; any other error ends the search. A file in no known format (a
    /// script without `#!`) is reported as `ENOEXEC` and not handed to a shell.
    #[must_use]
    pub fn search(programs: Vec<CString>, arg0: CString) -> Self {
        Self {
            programs,
            argv: vec![arg0],
            envp: Vec::new(),
            fds: Vec::new(),
            into_cgroup: None,
            join: Vec::new(),
            cwd: None,
            new_session: false,
            controlling_terminal: false,
            umask: None,
            oom_score_adj: None,
            rlimits: Vec::new(),
            credentials: None,
            drop_capabilities: false,
            no_new_privs: false,
            parent_death_signal: None,
        }
    }

    /// Appends an argument.
    pub fn arg(&mut self, arg: CString) -> &mut Self {
        self.argv.push(arg);
        self
    }

    /// Appends arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = CString>) -> &mut Self {
        self.argv.extend(args);
        self
    }

    /// Replaces all arguments, the program's own name first.
    pub fn argv(&mut self, argv: Vec<CString>) -> &mut Self {
        self.argv = argv;
        self
    }

    /// Replaces the environment; each entry is `NAME=value`.
    pub fn env(&mut self, envp: Vec<CString>) -> &mut Self {
        self.envp = envp;
        self
    }

    /// Gives the child `source` as its descriptor `target`. Sources and targets may overlap in any way, and
    /// one source may have several targets.
    pub fn fd(&mut self, source: BorrowedFd<'fd>, target: RawFd) -> &mut Self {
        self.fds.push((source, target));
        self
    }

    /// Has the child born in the cgroup (v2) whose directory is `dir`.
    pub fn into_cgroup(&mut self, dir: BorrowedFd<'fd>) -> &mut Self {
        self.into_cgroup = Some(dir);
        self
    }

    /// Has the child write itself into an open `cgroup.procs` (v1, or v2 without `CLONE_INTO_CGROUP`).
    pub fn join(&mut self, procs: BorrowedFd<'fd>) -> &mut Self {
        self.join.push(procs);
        self
    }

    /// Sets the working directory by path.
    pub fn cwd(&mut self, path: CString) -> &mut Self {
        self.cwd = Some(Cwd::Path(path));
        self
    }

    /// Sets the working directory to an open one.
    pub fn cwd_fd(&mut self, dir: BorrowedFd<'fd>) -> &mut Self {
        self.cwd = Some(Cwd::Dir(dir));
        self
    }

    /// Makes the child leader of a new session and process group.
    pub fn new_session(&mut self) -> &mut Self {
        self.new_session = true;
        self
    }

    /// Makes the child leader of a new session whose controlling terminal is its descriptor 0.
    pub fn controlling_terminal(&mut self) -> &mut Self {
        self.new_session = true;
        self.controlling_terminal = true;
        self
    }

    /// Sets the file mode creation mask.
    pub fn umask(&mut self, mask: u32) -> &mut Self {
        self.umask = Some(mask);
        self
    }

    /// Sets how readily the child is chosen when memory runs out: −1000 (never) to 1000. Lowering needs
    /// privilege.
    pub fn oom_score_adj(&mut self, score: i16) -> &mut Self {
        self.oom_score_adj = Some(score.to_string().into_bytes());
        self
    }

    /// Sets a resource limit, soft and hard; `None` is unlimited.
    pub fn limit(&mut self, limit: Limit, value: Option<u64>) -> &mut Self {
        let value = value.unwrap_or(libc::RLIM64_INFINITY);
        self.rlimits.push((limit.resource(), libc::rlimit64 { rlim_cur: value, rlim_max: value }));
        self
    }

    /// Runs the program as another user. Needs privilege.
    pub fn credentials(&mut self, credentials: Credentials) -> &mut Self {
        self.credentials = Some(credentials);
        self
    }

    /// Empties every capability set: ambient, inheritable, permitted, effective and bounding.
    ///
    /// Shrinking the bounding set needs `CAP_SETPCAP`. Without it the spawn fails, unless
    /// [`Spawn::no_new_privs`] is asked for too: then nothing can be gained from what stays in that set.
    pub fn drop_capabilities(&mut self) -> &mut Self {
        self.drop_capabilities = true;
        self
    }

    /// Forbids the child and its descendants to gain privileges by executing a program (setuid, file
    /// capabilities).
    pub fn no_new_privs(&mut self) -> &mut Self {
        self.no_new_privs = true;
        self
    }

    /// Sends `signal` to the child when the *thread* that spawned it ends.
    pub fn parent_death_signal(&mut self, signal: Signal) -> &mut Self {
        self.parent_death_signal = Some(signal);
        self
    }

    /// Starts the program, and returns when it runs or has failed to.
    ///
    /// Blocks this thread for as long as the kernel takes to load the program; other threads run on. A child
    /// that is killed before it runs its program counts as started, and is told by its wait status.
    ///
    /// # Errors
    /// [`SpawnError`], with the stage; the child has then been reaped.
    pub fn spawn(&self) -> Result<Spawned, SpawnError> {
        let mut plan = Plan::new(self)?;
        let spec = self.clone_spec();
        // SAFETY: `child_main` keeps to what `clone_vfork` asks for, and gets the plan it expects, which we
        // keep.
        let cloned =
            self.keep_dumpable(|| unsafe { raw::clone_vfork(spec, child_main, (&raw mut plan).cast()) });
        let cloned = cloned.map_err(|errno| SpawnError { stage: Stage::Clone, errno })?;
        let Err(error) = plan.outcome() else {
            return Ok(Spawned { pid: cloned.pid, pidfd: cloned.pidfd });
        };
        // It has ended, or is about to without running anything of ours. Should someone wait for any child in
        // another thread, or ignore SIGCHLD, it is gone already, which suits as well.
        let _ = crate::wait::wait_pidfd(cloned.pidfd.as_fd(), crate::wait::Children::All, false);
        Err(error)
    }

    /// Starts the program as nobody's child: it belongs to whoever adopts orphans here from the moment it runs, so that
    /// no walk from this process or from its group finds it. Returns its process id, which is only a hint: who waits
    /// for it is not us.
    ///
    /// # Errors
    /// As [`Spawn::spawn`].
    pub fn spawn_orphan(&self) -> Result<Pid, SpawnError> {
        let mut plan = Plan::new(self)?;
        let spec = self.clone_spec();
        // SAFETY: as in `spawn`.
        let pid = self
            .keep_dumpable(|| unsafe { raw::clone_vfork_orphan(spec, child_main, (&raw mut plan).cast()) });
        let pid = pid.map_err(|errno| SpawnError { stage: Stage::Clone, errno })?;
        plan.outcome().map(|()| pid)
    }

    fn clone_spec(&self) -> CloneSpec {
        CloneSpec { flags: 0, exit_signal: libc::SIGCHLD, cgroup: self.into_cgroup.map(|fd| fd.as_raw_fd()) }
    }

    /// The kernel takes our memory to be the child's when the child changes its user, and makes it undumpable: so it
    /// is for us too, and stays so after the child has gone on to memory of its own. This puts it back.
    fn keep_dumpable<T>(&self, clone: impl FnOnce() -> T) -> T {
        let dumpable = self.credentials.as_ref().and_then(|_| rustix::process::dumpable_behavior().ok());
        let cloned = clone();
        if dumpable == Some(DumpableBehavior::Dumpable) {
            // Refused only for values the kernel does not know.
            let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable);
        }
        cloned
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// What the child reads, made before it exists, and the two words in which it tells why it failed.
struct Plan<'a> {
    spawn: &'a Spawn<'a>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// Room for the numbers that the sources get when they are moved out of the targets' way.
    moved: Vec<RawFd>,
    /// All targets, ascending.
    targets: Vec<RawFd>,
    parent: Pid,
    stage: AtomicU8,
    errno: AtomicI32,
}

impl<'a> Plan<'a> {
    fn new(spawn: &'a Spawn<'a>) -> Result<Self, SpawnError> {
        let refused = |errno| SpawnError { stage: Stage::Request, errno };
        if spawn.programs.is_empty() || spawn.argv.is_empty() {
            return Err(refused(Errno::NOENT));
        }
        let mut targets: Vec<RawFd> = spawn.fds.iter().map(|(_, target)| *target).collect();
        targets.sort_unstable();
        if targets.first().is_some_and(|lowest| *lowest < 0) {
            return Err(refused(Errno::BADF));
        }
        if targets.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(refused(Errno::INVAL));
        }
        Ok(Plan {
            spawn,
            argv: pointers(&spawn.argv),
            envp: pointers(&spawn.envp),
            moved: vec![-1; spawn.fds.len()],
            targets,
            parent: rustix::process::getpid(),
            stage: AtomicU8::new(Stage::Clone as u8),
            errno: AtomicI32::new(0),
        })
    }

    /// What the child told before it ended, or that it runs its program.
    fn outcome(&self) -> Result<(), SpawnError> {
        let errno = self.errno.load(Ordering::Acquire);
        if errno == 0 {
            return Ok(());
        }
        let stage = STAGES.get(usize::from(self.stage.load(Ordering::Acquire))).copied();
        Err(SpawnError { stage: stage.unwrap_or(Stage::Exec), errno: Errno::from_raw_os_error(errno) })
    }
}

/// The child. It shares memory with a parent that is suspended and with threads that are not: nothing here
/// may allocate, lock or panic, and every system call goes straight to the kernel, because libc's wrappers
/// for changing users would have all of the parent's threads change with it.
unsafe extern "C" fn child_main(plan: *mut c_void) -> ! {
    // SAFETY: `Spawn::spawn` passes its own plan and is suspended until we have gone.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    let errno = match prepare(plan) {
        Ok(()) => {
            plan.stage.store(Stage::Exec as u8, Ordering::Release);
            exec(plan)
        }
        Err(errno) => errno,
    };
    plan.errno.store(errno.raw_os_error(), Ordering::Release);
    // SAFETY: ends this process at once and runs none of the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Makes true all that was asked for, in the order the type's documentation states.
fn prepare(plan: &mut Plan<'_>) -> Result<(), Errno> {
    let spawn = plan.spawn;
    let stage = &plan.stage;
    let enter = |now: Stage| stage.store(now as u8, Ordering::Release);

    // First of all: signals are blocked, and once they no longer are, no handler of the parent may run here.
    raw::default_dispositions();

    if spawn.new_session {
        enter(Stage::Session);
        call(libc::SYS_setsid, [0; 5])?;
    }
    enter(Stage::Cgroup);
    for procs in &spawn.join {
        write_all(procs.as_raw_fd(), b"0\n")?;
    }
    if let Some(score) = &spawn.oom_score_adj {
        enter(Stage::OomScore);
        write_file(c"/proc/self/oom_score_adj", score)?;
    }

    enter(Stage::Descriptors);
    let beyond = plan.targets.last().map_or(3, |highest| highest.saturating_add(1)).max(3);
    let cwd_dir = match &spawn.cwd {
        Some(Cwd::Dir(dir)) => Some(move_above(dir.as_raw_fd(), beyond)?),
        _ => None,
    };
    for ((source, _), moved) in spawn.fds.iter().zip(plan.moved.iter_mut()) {
        *moved = move_above(source.as_raw_fd(), beyond)?;
    }
    for ((_, target), moved) in spawn.fds.iter().zip(plan.moved.iter()) {
        call(libc::SYS_dup3, [fd_arg(*moved), fd_arg(*target), 0, 0, 0])?;
    }
    if spawn.controlling_terminal {
        enter(Stage::Terminal);
        call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0])?;
    }
    if let Some(mask) = spawn.umask {
        call(libc::SYS_umask, [mask as usize, 0, 0, 0, 0])?;
    }
    enter(Stage::Limits);
    for (resource, value) in &spawn.rlimits {
        call(libc::SYS_prlimit64, [0, *resource as usize, ptr::from_ref(value) as usize, 0, 0])?;
    }

    if spawn.drop_capabilities {
        enter(Stage::Capabilities);
        shrink_bounding_set(spawn.no_new_privs)?;
    }
    if let Some(who) = &spawn.credentials {
        enter(Stage::Credentials);
        let (uid, gid) = (who.uid as usize, who.gid as usize);
        call(libc::SYS_setgroups, [who.groups.len(), who.groups.as_ptr() as usize, 0, 0, 0])?;
        call(libc::SYS_setresgid, [gid, gid, gid, 0, 0])?;
        call(libc::SYS_setresuid, [uid, uid, uid, 0, 0])?;
    }
    if spawn.drop_capabilities {
        enter(Stage::Capabilities);
        empty_capabilities()?;
    }
    if spawn.no_new_privs {
        enter(Stage::NoNewPrivs);
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    }
    if let Some(signal) = spawn.parent_death_signal {
        enter(Stage::ParentDeath);
        // After the credentials, because changing those clears it.
        prctl(libc::PR_SET_PDEATHSIG, signal.as_raw() as usize, 0)?;
        // A parent that was killed meanwhile will not die again.
        if call(libc::SYS_getppid, [0; 5])? != plan.parent.as_raw_nonzero().get() as usize {
            return Err(Errno::SRCH);
        }
    }
    enter(Stage::Chdir);
    match (&spawn.cwd, cwd_dir) {
        (Some(Cwd::Path(path)), _) => {
            call(libc::SYS_chdir, [path.as_ptr() as usize, 0, 0, 0, 0])?;
        }
        (_, Some(dir)) => {
            call(libc::SYS_fchdir, [fd_arg(dir), 0, 0, 0, 0])?;
        }
        _ => {}
    }
    enter(Stage::Descriptors);
    close_all_but(&plan.targets)?;

    raw::set_mask(0);
    Ok(())
}

/// Tries each path, and returns why none was executed.
fn exec(plan: &Plan<'_>) -> Errno {
    let mut worst = Errno::NOENT;
    for program in &plan.spawn.programs {
        let args =
            [program.as_ptr() as usize, plan.argv.as_ptr() as usize, plan.envp.as_ptr() as usize, 0, 0];
        match call(libc::SYS_execve, args) {
            Ok(_) => {}
            Err(Errno::ACCESS) => worst = Errno::ACCESS,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT) => {}
            Err(errno) => return errno,
        }
    }
    worst
}

/// Duplicates a descriptor to a number that is no target, to be closed on exec in any case.
fn move_above(fd: RawFd, lowest: RawFd) -> Result<RawFd, Errno> {
    let moved = call(libc::SYS_fcntl, [fd_arg(fd), libc::F_DUPFD_CLOEXEC as usize, fd_arg(lowest), 0, 0])?;
    RawFd::try_from(moved).map_err(|_| Errno::BADF)
}

/// Closes every descriptor that is not in the ascending list.
fn close_all_but(kept: &[RawFd]) -> Result<(), Errno> {
    let mut first = 0usize;
    for fd in kept {
        let fd = fd_arg(*fd);
        if fd > first {
            call(libc::SYS_close_range, [first, fd - 1, 0, 0, 0])?;
        }
        first = fd + 1;
    }
    call(libc::SYS_close_range, [first, u32::MAX as usize, 0, 0, 0]).map(drop)
}

fn shrink_bounding_set(no_new_privs: bool) -> Result<(), Errno> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            Ok(()) => {}
            // Past the last capability that this kernel knows.
            Err(Errno::INVAL) => break,
            Err(Errno::PERM) if no_new_privs => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn empty_capabilities() -> Result<(), Errno> {
    const VERSION_3: u32 = 0x2008_0522;
    match prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as usize, 0) {
        // A kernel without ambient capabilities has none to clear.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    let header = [VERSION_3, 0u32];
    let sets = [0u32; 6];
    call(libc::SYS_capset, [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0]).map(drop)
}

fn prctl(option: c_int, arg2: usize, arg3: usize) -> Result<(), Errno> {
    call(libc::SYS_prctl, [option as usize, arg2, arg3, 0, 0]).map(drop)
}

fn write_file(path: &std::ffi::CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    let fd = call(libc::SYS_openat, [fd_arg(libc::AT_FDCWD), path.as_ptr() as usize, flags, 0, 0])?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::BADF)?;
    write_all(fd, text)?;
    call(libc::SYS_close, [fd_arg(fd), 0, 0, 0, 0]).map(drop)
}

/// Writes to a kernel file, which takes such short texts whole or not at all.
fn write_all(fd: RawFd, text: &[u8]) -> Result<(), Errno> {
    call(libc::SYS_write, [fd_arg(fd), text.as_ptr() as usize, text.len(), 0, 0]).map(drop)
}

fn fd_arg(fd: RawFd) -> usize {
    fd as isize as usize
}

/// A system call of the child. Safe inside this module only: every call above passes pointers into the plan
/// or to its own locals, and acts on the child alone.
fn call(nr: libc::c_long, args: [usize; 5]) -> Result<usize, Errno> {
    // SAFETY: see above.
    unsafe { raw::syscall(nr, args) }
}
