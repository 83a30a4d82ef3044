//! The warden: the command's parent and the adopter of its orphans. It owns processes, time, signals and control, and
//! touches neither output nor, once the command runs, its disk.
//!
//! Every wake-up does the same: take in what came (ends of processes, words of scribe and clients, the clock), let the
//! pure machine ([`outlast_core::warden`]) decide, obey. While nothing happens it sleeps without a timer.
//!
//! Invariants kept here: the command's process exists only if this process created the start mark; a death proof is
//! built from an `ECHILD` of this process's own and, in a cgroup, from the leaf read and removed after it; whoever is
//! told that the job is settled is told after the receipt is durable.

use super::command::{Prepared, Streams};
use super::init::{self, FromInit, Init};
use super::link::{Ended, LINK_LIMIT, ToScribe, ToWarden};
use super::scribe::{self, Scribe};
use super::{Ends, Keeper, WARDEN_NAME, contain, leave, stage_text, wire_exit};
use crate::control::{Ask, MESSAGE_LIMIT, Say, send};
use crate::home::Home;
use crate::job::{self, name};
use crate::{clock, files};
use outlast_core::bytes::Bytes;
use outlast_core::evidence::{self, DeathProof, ExecRefusedAndReaped, InitReaped, Reaping};
use outlast_core::exit::{Cause, Exit};
use outlast_core::fence::{StopRequest, check_stop};
use outlast_core::id::Cursor;
use outlast_core::ledger::{KeeperMark, LeafMark, Record, StartMark, Straggler};
use outlast_core::receipt::{Authority, Facts, Receipt, Resources};
use outlast_core::spec::{Boundary, Spec, Stdin};
use outlast_core::time::{Millis, Mono, UnixMicros};
use outlast_core::warden::{Event, Order, Policy, Warden};
use outlast_scrub::secrets::{Masker, Secrets};
use outlast_sys::signals::SignalFd;
use outlast_sys::spawn::Stage;
use outlast_sys::unix::{self, Received};
use outlast_sys::wait::{Children, WaitOutcome, wait_any, wait_pidfd};
use outlast_sys::{Errno, Pid, Signal, fork, ns, pidfd, prctl, pty};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, FlockOperation};
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descendants that are listed by name when they outlive the leader.
const STRAGGLERS_LISTED: usize = 64;
/// Stops that are listed by id in receipt and ledger; those beyond change nothing any more.
const STOPS_LISTED: usize = 64;
/// The longest id of a stop: the receipt, which lists them, must fit one message.
const STOP_ID_LIMIT: usize = 256;
/// Where no idle limit was asked for, one holds as soon as the command reports progress (CONTRACT 3.10).
const IDLE_WHERE_REPORTED: Millis = Millis(300_000);
/// A scribe that dies is started again, but not faster than this.
const SCRIBE_AGAIN: Millis = Millis(50);
/// Connections a keeper serves at once.
const CLIENT_LIMIT: usize = 256;
/// With the machine out of memory, the keeper is chosen late.
const KEEPER_OOM_SCORE: &[u8] = b"-900";

/// The warden's whole life. Never returns.
pub(super) fn run(keeper: Keeper) -> ! {
    let status = match Starting::new(&keeper) {
        Ok(starting) => starting.go(),
        Err(error) => {
            // Nothing was started and no mark was taken: whoever looks settles it as never started.
            let say = Say::Failed {
                code: "KEEPER_FAILED".to_owned(),
                message: format!("the keeper could not be set up: {error}"),
                remedy: "check the disk and the limits on processes and open files; `outlast doctor` looks at both".to_owned(),
            };
            // One that comes too late has nothing to say: another keeper has the job, or a settler.
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = send(keeper.watcher.as_fd(), &say, &[]);
            }
            keeper.containment.take_down();
            remove_outer_later(&keeper);
            1
        }
    };
    leave(status)
}

/// What the warden has before the command exists.
struct Starting<'k> {
    keeper: &'k Keeper,
    signals: SignalFd,
    lock: OwnedFd,
    listener: OwnedFd,
    ends: Ends,
    streams: Streams,
    input: Option<OwnedFd>,
    scribe: ScribeHandle,
    prepared: Prepared,
    oom_score: Option<i16>,
}

struct ScribeHandle {
    pid: Pid,
    pidfd: OwnedFd,
    link: OwnedFd,
}

impl<'k> Starting<'k> {
    fn new(keeper: &'k Keeper) -> io::Result<Starting<'k>> {
        let _ = prctl::set_name(WARDEN_NAME);
        prctl::set_subreaper()?;
        let signals = SignalFd::new(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE])?;
        let oom_score = protect_from_oom();
        let pipes = Pipes::open(keeper)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ends = Ends { stdout: pipes.stdout, stderr: pipes.stderr, wake };
        // First of all: the scribe of a keeper that waits here must not hold what the other's scribe waits for.
        let lock = take_lock(keeper)?;
        let scribe = fork_scribe(keeper, &ends, false)?;
        let _ = rustix::fs::unlinkat(&keeper.job_dir, name::CONTROL, AtFlags::empty());
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let listener = unix::listen(keeper.job_dir.as_fd(), OsStr::new(name::CONTROL), mode)?;
        let prepared = Prepared::new(&keeper.job_path, &keeper.spec, &keeper.environment)?;
        scribe::reserve(keeper.job_dir.as_fd());
        Ok(Starting {
            keeper,
            signals,
            lock,
            listener,
            ends,
            streams: pipes.command,
            input: pipes.input,
            scribe,
            prepared,
            oom_score,
        })
    }

    fn go(self) -> i32 {
        let keeper = self.keeper;
        let started = clock::mono_now();
        match self.take_start_mark(started) {
            Ok(true) => {}
            Ok(false) => {
                // Somebody settled it, or another keeper had it: nothing is ours to start.
                let _ = rustix::fs::unlinkat(&keeper.job_dir, name::CONTROL, AtFlags::empty());
                let id = keeper.spec.job_id.to_string();
                let _ = rustix::fs::unlinkat(&keeper.open, id.as_str(), AtFlags::empty());
                keeper.containment.take_down();
                remove_outer_later(keeper);
                return 0;
            }
            Err(error) => {
                let say = Say::Failed {
                    code: "STORAGE_FAILED".to_owned(),
                    message: format!("the start mark could not be written: {error}"),
                    remedy: "free space on the disk that holds OUTLAST_HOME".to_owned(),
                };
                let _ = send(keeper.watcher.as_fd(), &say, &[]);
                keeper.containment.take_down();
                remove_outer_later(keeper);
                return 1;
            }
        }
        let mut running = Running::new(self, started);
        running.main_loop();
        running.take_down();
        0
    }

    /// Creates the start mark; `false` where somebody has it.
    fn take_start_mark(&self, started: Mono) -> io::Result<bool> {
        let keeper = self.keeper;
        let own = rustix::process::getpid();
        let containment = &keeper.containment;
        let leaf = containment.groups.as_ref().map(|groups| LeafMark {
            place: Bytes(os_bytes(&groups.place)),
            name: groups.leaf.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            id: groups.leaf.id(),
        });
        let mark = StartMark::Keeper(KeeperMark {
            warden_pid: raw(own),
            warden_start_time: pidfd::start_time(own).unwrap_or(0),
            boot_id: job::boot_id()?,
            at: clock::unix_now(),
            mono: started,
            boundary: containment.boundary,
            isolation: containment.isolation,
            leaf,
            limit_groups: containment
                .limit_groups
                .iter()
                .map(|limit| Bytes(os_bytes(limit.group.path())))
                .collect(),
        });
        crate::settle::take_start_mark(keeper.job_dir.as_fd(), &mark)
    }
}

fn os_bytes(path: &std::path::Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Lowers this process's chance of being chosen when memory runs out, where that is allowed, and returns what the
/// command is to have.
fn protect_from_oom() -> Option<i16> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let path = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    std::fs::write(path, KEEPER_OOM_SCORE).ok()?;
    Some(before)
}

fn take_lock(keeper: &Keeper) -> io::Result<OwnedFd> {
    let id = keeper.spec.job_id.to_string();
    loop {
        let lock = files::open_lock_file(keeper.open.as_fd(), &id)?;
        // A look at our liveness holds it shared for a moment, a settler for longer.
        let ours = files::try_lock(&lock, FlockOperation::NonBlockingLockExclusive)?
            && files::still_named(keeper.open.as_fd(), &id, &lock);
        if rustix::fs::accessat(&keeper.job_dir, name::START, Access::EXISTS, AtFlags::empty()).is_ok() {
            if ours {
                let _ = rustix::fs::unlinkat(&keeper.open, id.as_str(), AtFlags::empty());
            }
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if ours {
            return Ok(lock);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The pipes, or the terminal, between the command and its keeper.
struct Pipes {
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    command: Streams,
    input: Option<OwnedFd>,
}

impl Pipes {
    fn open(keeper: &Keeper) -> io::Result<Pipes> {
        let spec = &keeper.spec;
        if spec.work.tty {
            let (rows, cols) = spec.manner.window.unwrap_or((24, 80));
            let pair = pty::open(pty::Size { rows, cols })?;
            if let Some(user) = spec.work.user {
                give(&pair.slave, user.uid, user.gid)?;
            }
            rustix::io::ioctl_fionbio(&pair.master, true)?;
            let input = pair.master.try_clone()?;
            let command = Streams { stdin: pair.slave.try_clone()?, stdout: pair.slave, stderr: None };
            return Ok(Pipes { stdout: pair.master, stderr: None, command, input: Some(input) });
        }
        let (stdout, stdout_write) = output_pipe(spec)?;
        let (stderr, stderr_write) = match spec.work.merge {
            true => (None, None),
            false => {
                let (read, write) = output_pipe(spec)?;
                (Some(read), Some(write))
            }
        };
        let (stdin, input) = match &spec.work.stdin {
            Stdin::Null => (open_read(rustix::fs::CWD, "/dev/null")?, None),
            Stdin::Spooled { .. } => (open_read(keeper.job_dir.as_fd(), name::STDIN)?, None),
            Stdin::Open => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                if let Some(user) = spec.work.user {
                    give(&read, user.uid, user.gid)?;
                }
                (read, Some(write))
            }
        };
        let command = Streams { stdin, stdout: stdout_write, stderr: stderr_write };
        Ok(Pipes { stdout, stderr, command, input })
    }
}

/// A pipe whose reading end never blocks, and that belongs to the command's user, so that it can open `/dev/stdout`
/// again.
fn output_pipe(spec: &Spec) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // The flag is the reading end's own; the command's end blocks as programs expect.
    rustix::io::ioctl_fionbio(&read, true)?;
    if let Some(user) = spec.work.user {
        give(&write, user.uid, user.gid)?;
    }
    Ok((read, write))
}

fn give(fd: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))?)
}

fn open_read(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty())?)
}

fn fork_scribe(keeper: &Keeper, ends: &Ends, successor: bool) -> io::Result<ScribeHandle> {
    let (ours, theirs) = unix::pair()?;
    // Without an exit signal it is invisible to plain waits: ECHILD means that the command's tree is reaped.
    match fork::fork_process(fork::ForkOptions::default())? {
        fork::Forked::Parent { pid, pidfd } => Ok(ScribeHandle { pid, pidfd, link: ours }),
        fork::Forked::Child => scribe::run(Scribe {
            job_path: &keeper.job_path,
            job_dir: keeper.job_dir.as_fd(),
            home: keeper.home.as_fd(),
            spec: &keeper.spec,
            ends,
            link: theirs,
            successor,
            maskers: maskers(keeper),
        }),
    }
}

/// Masks for the declared secrets, one for each stream. Their values are in the environment that this process was
/// given, and nowhere at rest.
fn maskers(keeper: &Keeper) -> [Masker; 2] {
    use std::os::unix::ffi::OsStrExt;
    let names = &keeper.spec.work.secrets;
    let values = keeper
        .environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value.as_bytes().to_vec())))
        .filter(|(name, _)| names.contains_key(name));
    // Admission has refused values that cannot be masked.
    let secrets = Secrets::new(values.collect()).unwrap_or_else(|_| Secrets::none());
    [secrets.masker(), secrets.masker()]
}

struct Client {
    socket: OwnedFd,
    watches: bool,
    output: bool,
    gone: bool,
}

/// What the warden has while the command exists.
struct Running<'k> {
    keeper: &'k Keeper,
    signals: SignalFd,
    _lock: OwnedFd,
    listener: OwnedFd,
    ends: Ends,
    input: Option<OwnedFd>,
    scribe: ScribeHandle,
    scribe_again: Option<Mono>,
    outbox: VecDeque<ToScribe>,
    /// The few things a scribe is told to note, for its successor.
    told: Vec<Record>,
    clients: Vec<Client>,
    syncing: Vec<OwnedFd>,
    machine: Warden,
    leader: Option<Pid>,
    init: Option<InitHandle>,
    started_at: Option<UnixMicros>,
    exited_at: Option<UnixMicros>,
    dead_at: Option<UnixMicros>,
    usage: Resources,
    reaping: Option<Reaping>,
    refused: Option<ExecRefusedAndReaped>,
    proof: Option<DeathProof>,
    stragglers: Vec<Straggler>,
    stops: Vec<String>,
    kills: u32,
    stdin_taken: Cursor,
    out_of_memory: bool,
    ending_told: bool,
    drain_until: Option<Mono>,
    receipt: Option<Box<serde_json::value::RawValue>>,
    settled: bool,
}

struct InitHandle {
    pid: Pid,
    pidfd: OwnedFd,
    link: OwnedFd,
    namespace: u64,
    reaped: bool,
}

impl<'k> Running<'k> {
    fn new(starting: Starting<'k>, started: Mono) -> Running<'k> {
        let Starting { keeper, signals, lock, listener, ends, streams, input, scribe, prepared, oom_score } =
            starting;
        let manner = &keeper.spec.manner;
        let limits = &keeper.spec.work.limits;
        let policy = Policy {
            kind: keeper.spec.work.kind,
            deadline: limits.deadline.filter(|deadline| deadline.0 > 0),
            idle: Some(limits.idle.unwrap_or(IDLE_WHERE_REPORTED)).filter(|idle| idle.0 > 0),
            grace: manner.grace,
            linger: manner.linger,
            drain: manner.drain,
        };
        let watcher = keeper.watcher.try_clone();
        let clients = watcher.into_iter().map(|socket| Client {
            socket,
            watches: true,
            output: keeper.watch_output,
            gone: false,
        });
        let mut running = Running {
            keeper,
            signals,
            _lock: lock,
            listener,
            ends,
            input,
            scribe,
            scribe_again: None,
            outbox: VecDeque::new(),
            told: Vec::new(),
            clients: clients.collect(),
            syncing: Vec::new(),
            machine: Warden::new(policy, started),
            leader: None,
            init: None,
            started_at: None,
            exited_at: None,
            dead_at: None,
            usage: Resources::default(),
            reaping: None,
            refused: None,
            proof: None,
            stragglers: Vec::new(),
            stops: Vec::new(),
            kills: 0,
            stdin_taken: Cursor(0),
            out_of_memory: false,
            ending_told: false,
            drain_until: None,
            receipt: None,
            settled: false,
        };
        running.count_followers();
        match keeper.containment.boundary {
            Boundary::PidNamespace => running.start_in_namespace(&prepared, streams, oom_score),
            Boundary::Cgroup2Subreaper | Boundary::Subreaper => running.start(&prepared, streams, oom_score),
        }
        running
    }

    // ---- the start

    fn start(&mut self, prepared: &Prepared, streams: Streams, oom_score: Option<i16>) {
        let keeper = self.keeper;
        let limits = keeper.containment.limit_groups.iter();
        let procs: Vec<OwnedFd> = match limits.map(|limit| limit.group.open_procs()).collect() {
            Ok(procs) => procs,
            // A limit that was asked for is not left out.
            Err(errno) => return self.never_ran(Stage::Cgroup, errno),
        };
        let mut spawn = prepared.spawn(&keeper.spec, &streams, oom_score);
        if let Some(leaf) = keeper.containment.leaf() {
            spawn.into_cgroup(leaf.dir());
        }
        for group in &procs {
            spawn.join(group.as_fd());
        }
        let spawned = spawn.spawn();
        drop(spawn);
        // From here on the writing ends are the command's alone: their end-of-file tells that all of it has let go.
        drop(streams);
        let _ = prctl::set_dumpable(false);
        match spawned {
            Ok(spawned) => {
                self.leader = Some(spawned.pid);
                self.began(spawned.pid, None);
            }
            Err(error) => self.never_ran(error.stage, error.errno),
        }
    }

    fn start_in_namespace(&mut self, prepared: &Prepared, streams: Streams, oom_score: Option<i16>) {
        let keeper = self.keeper;
        let privileged = rustix::process::geteuid().is_root();
        let limits = keeper.containment.limit_groups.iter();
        let join: Vec<OwnedFd> = match limits.map(|limit| limit.group.open_procs()).collect() {
            Ok(join) => join,
            Err(errno) => return self.never_ran(Stage::Cgroup, errno),
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let made = unix::pair().and_then(|(ours, theirs)| {
            let options = fork::ForkOptions {
                exit_signal: Some(Signal::CHILD),
                new_pid_ns: true,
                new_mount_ns: true,
                new_user_ns: !privileged,
                into_cgroup: None,
            };
            Ok((ours, theirs, fork::fork_process(options)?))
        });
        match made {
            Ok((_, theirs, fork::Forked::Child)) => init::run(Init {
                prepared,
                spec: &keeper.spec,
                streams,
                link: theirs,
                join,
                wait_for_maps: !privileged,
                oom_score,
            }),
            Ok((ours, _, fork::Forked::Parent { pid, pidfd })) => {
                drop(streams);
                if !privileged {
                    let _ = ns::write_identity_maps(ns::Who::Child(pid), uid, gid);
                    let _ = unix::send(ours.as_fd(), init::MAPS_STAND);
                }
                let _ = prctl::set_dumpable(false);
                let namespace =
                    rustix::fs::stat(format!("/proc/{}/ns/pid", raw(pid))).map_or(0, |stat| stat.st_ino);
                self.init = Some(InitHandle { pid, pidfd, link: ours, namespace, reaped: false });
                self.began(pid, Some(namespace));
            }
            Err(errno) => {
                drop(streams);
                self.never_ran(Stage::Clone, errno);
            }
        }
    }

    fn began(&mut self, pid: Pid, namespace: Option<u64>) {
        let at = clock::unix_now();
        self.started_at = Some(at);
        let start_time = pidfd::start_time(pid).unwrap_or(0);
        self.note(Record::Started { at, pid: raw(pid), start_time, namespace });
        if self.init.is_none() {
            self.tell_watchers(&Say::Started);
        }
    }

    /// The program was not executed. What was made for it has been reaped.
    fn never_ran(&mut self, stage: Stage, errno: Errno) {
        let about_the_command = matches!(stage, Stage::Exec | Stage::Chdir | Stage::Request);
        let stage = stage_text(stage);
        if !about_the_command {
            let say = Say::Failed {
                code: "SET_UP_FAILED".to_owned(),
                message: format!("the command's process could not be set up ({stage}): {errno}"),
                remedy: "`outlast doctor` shows what this machine offers".to_owned(),
            };
            self.tell_watchers(&say);
        }
        self.exec_refused(Exit::ExecFailed { errno: errno.raw_os_error(), stage });
    }

    fn exec_refused(&mut self, exit: Exit) {
        self.refused = Some(ExecRefusedAndReaped);
        self.leader_exited(exit);
    }

    // ---- the loop

    fn main_loop(&mut self) {
        self.reap();
        while !self.settled {
            self.look_at_tree();
            self.flush_outbox();
            if self.settled {
                break;
            }
            if self.wait().is_err() {
                std::thread::sleep(Duration::from_millis(50));
            }
            self.read_signals();
            self.read_init();
            self.reap();
            self.read_scribe();
            self.mind_scribe();
            self.ring();
            self.accept();
            self.read_clients();
            self.event(Event::Tick);
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        let out = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut ready = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.scribe.pidfd, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        if self.scribe_again.is_none() {
            ready.push(PollFd::new(&self.scribe.link, PollFlags::IN | out));
        } else {
            ready.remove(1);
        }
        if self.clients.iter().any(|client| client.output) {
            ready.push(PollFd::new(&self.ends.wake, PollFlags::IN));
        }
        if let Some(init) = self.init.as_ref().filter(|init| !init.reaped) {
            ready.push(PollFd::new(&init.link, PollFlags::IN));
        }
        ready.extend(self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN)));
        let now = clock::mono_now();
        let due = [self.machine.wake_at(), self.scribe_again];
        let timeout = due.into_iter().flatten().min().map(|at| Duration::from_millis(at.since(now).0));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn read_signals(&self) {
        // A TERM meant for us is not one for the command: whoever wants that ended stops the job.
        while let Ok(Some(_)) = self.signals.read() {}
    }

    fn event(&mut self, event: Event) {
        let orders = self.machine.handle(clock::mono_now(), event);
        for order in orders {
            self.obey(order);
        }
        if !self.ending_told
            && let Some(cause) = self.machine.ending().cloned()
        {
            self.ending_told = true;
            self.note(Record::Ending { at: clock::unix_now(), cause: cause.clone() });
            self.tell_watchers(&Say::Ending { cause });
        }
    }

    fn obey(&mut self, order: Order) {
        let at = clock::unix_now();
        match order {
            Order::Term => {
                let processes = match self.init.as_ref().filter(|init| !init.reaped) {
                    Some(init) => {
                        let _ = unix::send(init.link.as_fd(), init::TERM_ALL);
                        None
                    }
                    None => Some(self.keeper.containment.term(self.scribe.pid)),
                };
                self.note(Record::Signaled { at, signal: Signal::TERM.as_raw(), processes });
            }
            Order::Kill => {
                self.kills += 1;
                let processes = match self.init.as_ref().filter(|init| !init.reaped) {
                    // First by its own hand, so that it reaps the command and tells how it ended.
                    Some(init) if self.kills == 1 => {
                        let _ = unix::send(init.link.as_fd(), init::KILL_ALL);
                        None
                    }
                    Some(init) => {
                        let _ = pidfd::send_signal(init.pidfd.as_fd(), Signal::KILL);
                        None
                    }
                    None => self.keeper.containment.kill(self.scribe.pid, self.kills > 1),
                };
                if self.kills <= 3 {
                    self.note(Record::Signaled { at, signal: Signal::KILL.as_raw(), processes });
                }
                self.reap();
            }
            Order::NoteStragglers => {
                let (processes, more) = contain::descendants(self.scribe.pid, STRAGGLERS_LISTED);
                self.stragglers.clone_from(&processes);
                self.note(Record::Stragglers { at, processes, more });
            }
            Order::Drain(until) => {
                self.drain_until = Some(until);
                let code = match self.machine.leader() {
                    Some(Exit::Exited { code }) => Some(*code),
                    _ => None,
                };
                self.send_scribe(ToScribe::Drain { until, executed: self.refused.is_none(), code });
            }
            Order::SampleProgress => self.sample_progress(),
            Order::Settle => {}
        }
    }

    /// A report of the command's own outranks its output: its count is kept above any count of bytes.
    fn sample_progress(&mut self) {
        const REPORTED: u64 = 1 << 63;
        let work = job::work_dir(&self.keeper.job_path, &self.keeper.spec);
        match job::read_progress(&work.join(name::PROGRESS)) {
            Some(report) => self.event(Event::Progress(REPORTED | report.done)),
            None if self.keeper.spec.work.limits.idle.is_some() => self.send_scribe(ToScribe::Count),
            None => {}
        }
    }

    // ---- processes

    fn reap(&mut self) {
        loop {
            match wait_any(true) {
                Ok(WaitOutcome::Reaped { pid, status, usage }) => {
                    self.usage.processes += 1;
                    self.usage.user_us += u64::try_from(usage.user.as_micros()).unwrap_or(u64::MAX);
                    self.usage.system_us += u64::try_from(usage.system.as_micros()).unwrap_or(u64::MAX);
                    self.usage.max_rss_kib = self.usage.max_rss_kib.max(usage.max_rss_kib);
                    if self.leader == Some(pid) {
                        self.leader_exited(wire_exit(status));
                    } else if self.init.as_ref().is_some_and(|init| init.pid == pid) {
                        self.init_reaped();
                    }
                }
                Ok(WaitOutcome::NoneReady) => {
                    self.reaping = Some(Reaping::ChildrenLeft);
                    return;
                }
                Ok(WaitOutcome::NoChildren) => {
                    self.reaping = Some(Reaping::NoChildLeft { reaped: self.usage.processes });
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn leader_exited(&mut self, exit: Exit) {
        if self.machine.leader().is_some() {
            return;
        }
        let at = clock::unix_now();
        self.exited_at = Some(at);
        self.note(Record::Exited { at, exit: exit.clone() });
        self.tell_watchers(&Say::Exited { exit: exit.clone() });
        self.event(Event::LeaderExited(exit));
    }

    fn init_reaped(&mut self) {
        // Whatever it said before it ended comes first.
        self.read_init();
        if let Some(init) = &mut self.init {
            init.reaped = true;
        }
        if self.machine.leader().is_none() {
            let why = "its PID namespace was ended before the command's own end was seen".to_owned();
            self.leader_exited(Exit::Unknown { why });
        }
    }

    fn read_init(&mut self) {
        let mut buffer = [0; 1024];
        loop {
            let Some(init) = self.init.as_ref().filter(|init| !init.reaped) else { return };
            let Ok(Received::Message(length)) = unix::recv(init.link.as_fd(), &mut buffer) else { return };
            match serde_json::from_slice(&buffer[..length]) {
                Ok(FromInit::Started) => self.tell_watchers(&Say::Started),
                Ok(FromInit::ExecFailed { errno, stage }) => {
                    self.leader_exited(Exit::ExecFailed { errno, stage })
                }
                Ok(FromInit::Exited { exit }) => self.leader_exited(exit),
                Ok(FromInit::SetUpFailed { why }) => {
                    let say = Say::Failed {
                        code: "CONTAINMENT_UNAVAILABLE".to_owned(),
                        message: format!("containment pid_namespace is not available here: {why}"),
                        remedy: "`outlast doctor` shows what this machine offers; --containment auto takes the strongest of it".to_owned(),
                    };
                    self.tell_watchers(&say);
                    self.leader_exited(Exit::ExecFailed { errno: Errno::PERM.raw_os_error(), stage: why });
                }
                Err(_) => {}
            }
        }
    }

    /// Proves the death of the tree, if it can be proved now.
    fn look_at_tree(&mut self) {
        if self.machine.tree_is_dead() || !matches!(self.reaping, Some(Reaping::NoChildLeft { .. })) {
            return;
        }
        // Asked again, because something may have been adopted since.
        self.reap();
        let Some(reaping) = self.reaping else { return };
        let at = clock::unix_now();
        let containment = &self.keeper.containment;
        let proof = match (&self.init, self.refused, containment.leaf()) {
            (Some(init), ..) if init.reaped => {
                let reaped = InitReaped { init_pid: raw(init.pid), namespace: init.namespace };
                Ok(evidence::pid_namespace_init_reaped(reaped, at))
            }
            (Some(_), ..) => return,
            (None, Some(refused), _) => evidence::never_executed(refused, reaping, at),
            (None, None, Some(_)) => {
                // Read before the leaf, which takes its counters with it.
                self.out_of_memory = containment.ran_out_of_memory();
                let Some((leaf, state, removal)) = containment.observe_leaf() else { return };
                evidence::cgroup_empty_and_reaped(leaf, &state, reaping, &removal, at)
            }
            (None, None, None) => evidence::all_reaped(reaping, at),
        };
        if let Ok(proof) = proof {
            self.out_of_memory |= containment.ran_out_of_memory();
            self.dead_at = Some(at);
            self.note(Record::Dead { evidence: proof.evidence().clone() });
            self.proof = Some(proof);
            self.event(Event::TreeProvedDead);
        }
    }

    // ---- the scribe

    fn note(&mut self, record: Record) {
        if !matches!(record, Record::StopDropped { .. } | Record::StdinTaken { .. } | Record::Dead { .. }) {
            self.told.push(record.clone());
        }
        self.send_scribe(ToScribe::Note(record));
    }

    fn send_scribe(&mut self, word: ToScribe) {
        self.outbox.push_back(word);
        self.flush_outbox();
    }

    fn flush_outbox(&mut self) {
        while self.scribe_again.is_none()
            && let Some(word) = self.outbox.front()
        {
            let Ok(text) = serde_json::to_vec(word) else {
                self.outbox.pop_front();
                continue;
            };
            match unix::send(self.scribe.link.as_fd(), &text) {
                Ok(()) => drop(self.outbox.pop_front()),
                // It is slow, or gone: then its successor gets this.
                Err(_) => return,
            }
        }
    }

    fn read_scribe(&mut self) {
        let mut buffer = Vec::new();
        loop {
            // Only for as long as there is something to take.
            if buffer.is_empty() && !readable(self.scribe.link.as_fd()) {
                return;
            }
            buffer.resize(LINK_LIMIT, 0);
            match unix::recv(self.scribe.link.as_fd(), &mut buffer) {
                Ok(Received::Message(length)) => {
                    if let Ok(word) = serde_json::from_slice(&buffer[..length]) {
                        self.hear(word);
                    }
                }
                Ok(Received::TooLong(_)) => {}
                Ok(Received::Nothing | Received::Closed) | Err(_) => return,
            }
        }
    }

    fn hear(&mut self, word: ToWarden) {
        match word {
            ToWarden::Ready => {}
            ToWarden::Synced(cursor) => self.answer_syncs(&Say::Synced { cursor }),
            ToWarden::SyncFailed(why) => self.answer_syncs(&Say::Refused { why }),
            ToWarden::Counted(bytes) => self.event(Event::Progress(bytes)),
            ToWarden::Drained(ended) => {
                self.assemble(*ended);
                self.event(Event::Drained);
            }
            ToWarden::Settled => {
                self.settled = true;
                self.tell_watchers(&Say::Settled);
            }
            ToWarden::ReceiptFailed(_) => {}
        }
    }

    fn answer_syncs(&mut self, say: &Say) {
        for socket in self.syncing.drain(..) {
            let _ = send(socket.as_fd(), say, &[]);
        }
    }

    fn assemble(&mut self, ended: Ended) {
        if self.receipt.is_some() {
            return;
        }
        let (Some(proof), Some(dead)) = (self.proof.take(), self.dead_at) else { return };
        let spec = &self.keeper.spec;
        let exit = self.machine.leader().cloned();
        let exit = exit.unwrap_or_else(|| Exit::Unknown { why: "nobody saw it end".to_owned() });
        let killed = matches!(exit, Exit::Signaled { .. }) || !matches!(exit, Exit::Exited { code: 0 });
        let cause = match self.machine.cause() {
            Cause::OwnEnd if self.out_of_memory && killed => Cause::OutOfMemory,
            cause => cause,
        };
        let facts = Facts {
            authority: Authority::Keeper,
            exit,
            cause,
            stages: ended.stages,
            output: ended.output,
            terminal_mutation: ended.terminal_mutation,
            stragglers: std::mem::take(&mut self.stragglers),
            resources: Some(self.usage.clone()),
            started: self.started_at,
            exited: self.exited_at,
            dead,
            settled: clock::unix_now(),
            boundary: Some(self.keeper.containment.boundary),
            isolation: Some(self.keeper.containment.isolation),
            stops: std::mem::take(&mut self.stops),
        };
        let receipt = Receipt::assemble(spec, proof, facts);
        if let Ok(text) = serde_json::value::to_raw_value(&receipt) {
            self.receipt = Some(text.clone());
            self.send_scribe(ToScribe::Receipt(text));
        }
    }

    /// Starts another scribe where this one has died. The pipes are ours, too, so nothing that it had not read is lost.
    fn mind_scribe(&mut self) {
        let now = clock::mono_now();
        if let Some(at) = self.scribe_again {
            if now >= at {
                self.restart_scribe(now);
            }
            return;
        }
        if pidfd::is_readable(self.scribe.pidfd.as_fd()).unwrap_or(false) {
            self.read_scribe();
            if self.settled {
                return;
            }
            let _ = wait_pidfd(self.scribe.pidfd.as_fd(), Children::All, true);
            self.scribe_again = Some(now.plus(SCRIBE_AGAIN));
        }
    }

    fn restart_scribe(&mut self, now: Mono) {
        match fork_scribe(self.keeper, &self.ends, true) {
            Ok(scribe) => {
                self.scribe = scribe;
                self.scribe_again = None;
                // What the dead one was told and may not have done, before what it was not told.
                let again = self.told.iter().cloned().map(ToScribe::Note);
                self.outbox = again.chain(std::mem::take(&mut self.outbox)).collect();
                self.count_followers();
                self.answer_syncs(&Say::Refused { why: "the scribe was lost; ask again".to_owned() });
                if let Some(receipt) = self.receipt.clone() {
                    self.send_scribe(ToScribe::Receipt(receipt));
                } else if let Some(until) = self.drain_until {
                    self.obey(Order::Drain(until));
                }
            }
            Err(_) => self.scribe_again = Some(now.plus(Millis(1000))),
        }
    }

    // ---- clients

    fn ring(&mut self) {
        if !self.clients.iter().any(|client| client.output) {
            return;
        }
        let mut count = [0; 8];
        if rustix::io::read(&self.ends.wake, &mut count).is_ok() {
            let say = Say::Output;
            for client in self.clients.iter_mut().filter(|client| client.output) {
                // One that does not read has word of output waiting already.
                if let Err(Errno::PIPE | Errno::CONNRESET) = send(client.socket.as_fd(), &say, &[]) {
                    client.gone = true;
                }
            }
            self.drop_gone_clients();
        }
    }

    fn tell_watchers(&mut self, say: &Say) {
        for client in self.clients.iter_mut().filter(|client| client.watches) {
            if let Err(Errno::PIPE | Errno::CONNRESET) = send(client.socket.as_fd(), say, &[]) {
                client.gone = true;
            }
        }
        // Dropped with the others at the end of this turn: whoever tells may be walking the list.
    }

    fn drop_gone_clients(&mut self) {
        if self.clients.iter().any(|client| client.gone) {
            self.clients.retain(|client| !client.gone);
            self.count_followers();
        }
    }

    fn count_followers(&mut self) {
        let followers = self.clients.iter().filter(|client| client.output).count();
        self.send_scribe(ToScribe::Followers(u32::try_from(followers).unwrap_or(u32::MAX)));
    }

    fn accept(&mut self) {
        while let Ok(Some(socket)) = unix::accept(self.listener.as_fd()) {
            // The folder's mode keeps others out; this is the second lock.
            let own = rustix::process::geteuid().as_raw();
            if unix::peer(socket.as_fd()).is_ok_and(|peer| peer.uid == own || peer.uid == 0) {
                self.clients.push(Client { socket, watches: false, output: false, gone: false });
            }
        }
        // A newcomer may bring a stop, so it is the oldest that go; who is dropped looks at the files, and may come again.
        let excess = self.clients.len().saturating_sub(CLIENT_LIMIT);
        if excess > 0 {
            self.clients.drain(..excess);
            self.count_followers();
        }
    }

    fn read_clients(&mut self) {
        let mut buffer = Vec::new();
        for index in 0..self.clients.len() {
            if !readable(self.clients[index].socket.as_fd()) {
                continue;
            }
            buffer.resize(MESSAGE_LIMIT, 0);
            self.read_client(index, &mut buffer);
        }
        self.drop_gone_clients();
    }

    fn read_client(&mut self, index: usize, buffer: &mut [u8]) {
        loop {
            let message = match unix::recv(self.clients[index].socket.as_fd(), buffer) {
                Ok(Received::Message(length)) => &buffer[..length],
                Ok(Received::Nothing) => return,
                Ok(Received::TooLong(_)) => {
                    self.answer(
                        index,
                        &Say::Refused { why: format!("the message is larger than {MESSAGE_LIMIT} bytes") },
                    );
                    continue;
                }
                Ok(Received::Closed) | Err(_) => {
                    self.clients[index].gone = true;
                    return;
                }
            };
            let line = message.iter().position(|byte| *byte == b'\n').unwrap_or(message.len());
            let bytes = message.get(line + 1..).unwrap_or_default();
            match serde_json::from_slice::<Ask>(&message[..line]) {
                Ok(ask) => self.serve(index, ask, bytes),
                Err(error) => {
                    self.answer(index, &Say::Refused { why: format!("the message does not parse: {error}") })
                }
            }
        }
    }

    fn answer(&mut self, index: usize, say: &Say) {
        if let Err(Errno::PIPE | Errno::CONNRESET) = send(self.clients[index].socket.as_fd(), say, &[]) {
            self.clients[index].gone = true;
        }
    }

    fn serve(&mut self, index: usize, ask: Ask, bytes: &[u8]) {
        match ask {
            Ask::Watch { output } => {
                self.clients[index].watches = true;
                self.clients[index].output = output;
                self.count_followers();
            }
            Ask::Stop { request } => {
                let say = self.stop(request);
                self.answer(index, &say);
            }
            Ask::Stdin { offset, close } => {
                let say = self.take_stdin(offset, bytes, close);
                self.answer(index, &say);
            }
            Ask::Resize { rows, cols } => {
                let say = match &self.input {
                    Some(master) if self.keeper.spec.work.tty => {
                        match pty::set_size(master.as_fd(), pty::Size { rows, cols }) {
                            Ok(()) => Say::Done,
                            Err(errno) => Say::Refused { why: errno.to_string() },
                        }
                    }
                    _ => Say::Refused { why: "the job has no terminal".to_owned() },
                };
                self.answer(index, &say);
            }
            Ask::Sync => match self.clients[index].socket.try_clone() {
                Ok(socket) => {
                    self.syncing.push(socket);
                    self.send_scribe(ToScribe::Sync);
                }
                Err(error) => self.answer(index, &Say::Refused { why: error.to_string() }),
            },
        }
    }

    /// The last moment before a signal: a stop meant for another attempt or generation is dropped and noted.
    fn stop(&mut self, request: StopRequest) -> Say {
        let at = clock::unix_now();
        let spec = &self.keeper.spec;
        if let Err(stale) = check_stop(&request, spec.job_id, spec.generation) {
            self.note(Record::StopDropped { at, request, stale: stale.clone() });
            return Say::StopStale { stale };
        }
        if request.id.len() > STOP_ID_LIMIT {
            return Say::Refused { why: format!("the stop's id is longer than {STOP_ID_LIMIT} bytes") };
        }
        if !self.stops.contains(&request.id) && self.stops.len() < STOPS_LISTED {
            self.stops.push(request.id.clone());
            self.note(Record::StopAccepted { at, request: request.clone() });
        }
        self.event(Event::Stop(request));
        Say::StopAccepted
    }

    fn take_stdin(&mut self, offset: Cursor, bytes: &[u8], close: bool) -> Say {
        let taken = self.stdin_taken;
        if !matches!(self.keeper.spec.work.stdin, Stdin::Open) && !self.keeper.spec.work.tty {
            return Say::Refused {
                why: "standard input is not open; start the job with --stdin open".to_owned(),
            };
        }
        let Some(input) = self.input.as_ref().filter(|_| self.machine.leader().is_none()) else {
            return Say::StdinTaken { offset: taken, closed: true };
        };
        if offset > taken {
            return Say::Refused {
                why: format!("the bytes begin at {offset}, but only {taken} were given so far"),
            };
        }
        let skip = usize::try_from(taken.0 - offset.0).unwrap_or(usize::MAX).min(bytes.len());
        let rest = &bytes[skip..];
        let mut closed = false;
        let mut written = 0;
        if !rest.is_empty() {
            match rustix::io::write(input, rest) {
                Ok(count) => written = count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Nobody reads it any more.
                Err(_) => closed = true,
            }
        }
        self.stdin_taken = Cursor(taken.0 + written as u64);
        if close && written == rest.len() {
            if self.keeper.spec.work.tty {
                // A terminal is closed by its end-of-file character; the line stays open for what follows.
                let _ = rustix::io::write(input, &[4]);
            }
            closed = true;
        }
        if closed && !self.keeper.spec.work.tty {
            self.input = None;
            self.note(Record::StdinTaken { offset: self.stdin_taken, closed: true });
        }
        Say::StdinTaken { offset: self.stdin_taken, closed }
    }

    // ---- the end

    fn take_down(self) {
        let keeper = self.keeper;
        let id = keeper.spec.job_id.to_string();
        let _ = rustix::fs::unlinkat(&keeper.job_dir, name::CONTROL, AtFlags::empty());
        let _ = rustix::fs::unlinkat(&keeper.open, id.as_str(), AtFlags::empty());
        keeper.containment.take_down();
        // Born and ended as our child; nobody else would wait for it.
        let _ = wait_pidfd(self.scribe.pidfd.as_fd(), Children::All, false);
        remove_outer_later(keeper);
        // Everyone has been told; what is old may go now, on nobody's time.
        if let Some(home) = keeper.job_path.parent().and_then(std::path::Path::parent)
            && let Ok(Some(home)) = Home::open_existing(home)
        {
            crate::gc::collect_if_due(&home);
        }
    }
}

/// Whether there is something to read from `fd`, its end included.
fn readable(fd: BorrowedFd<'_>) -> bool {
    crate::control::wait_readable(fd, Some(Duration::ZERO)).unwrap_or(false)
}

/// Has the keeper's own group removed once this process has left it by ending: by a last child that is born outside.
fn remove_outer_later(keeper: &Keeper) {
    let Some(groups) = &keeper.containment.groups else { return };
    let Ok(own) = pidfd::open(rustix::process::getpid()) else { return };
    let Ok(origin) = files::open_dir(&groups.origin) else { return };
    let into_cgroup = Some(origin.as_fd());
    let options =
        fork::ForkOptions { into_cgroup, exit_signal: Some(Signal::CHILD), ..fork::ForkOptions::default() };
    if let Ok(fork::Forked::Child) = fork::fork_process(options) {
        outlast_sys::inherit::close_all_except(&[own.as_fd()]);
        let _ = poll(&mut [PollFd::new(&own, PollFlags::IN)], None);
        // The group counts as populated until the kernel has let go of the last zombie in it.
        for _ in 0..200 {
            groups.remove_outer();
            if !groups.keeper.path().exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        leave(0);
    }
}
