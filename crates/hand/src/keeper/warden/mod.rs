//! The warden: the command's parent and the adopter of its orphans. It owns processes, time, signals and control, and
//! touches neither output nor, once the command runs, its disk.
//!
//! Every wake-up does the same: take in what came (ends of processes, words of scribe and clients, the clock), let the
//! pure machine ([`outlast_core::warden`]) decide, obey. While nothing happens it sleeps without a timer.
//!
//! `start` is what comes before the command exists, `tree` its processes, `records` the scribe's side, `clients` who
//! connects; the loop is here.
//!
//! Invariants kept here: the command's process exists only if this process created the start mark; a death proof is
//! built from an `ECHILD` of this process's own and, in a cgroup, from the leaf read and removed after it; whoever is
//! told that the job is settled is told after the receipt is durable.

mod clients;
mod records;
mod start;
mod tree;

use super::init;
use super::link::{Ended, ToScribe};
use super::{Ends, Keeper};
use crate::contain;
use crate::control::{Say, send};
use crate::home::Home;
use crate::job::{self, name};
use crate::{clock, files};
use clients::Client;
use outlast_core::evidence::{DeathProof, ExecRefusedAndReaped, Reaping};
use outlast_core::exit::Exit;
use outlast_core::id::Cursor;
use outlast_core::ledger::{Record, Straggler};
use outlast_core::receipt::Resources;
use outlast_core::spec::Boundary;
use outlast_core::time::{Millis, Mono, UnixMicros};
use outlast_core::warden::{Event, Order, Policy, Warden};
use outlast_sys::signals::SignalFd;
use outlast_sys::unix;
use outlast_sys::wait::{Children, wait_pidfd};
use outlast_sys::{Errno, Pid, Signal, fork, pidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::AtFlags;
use start::{ScribeHandle, Starting};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descendants that are listed by name when they outlive the leader.
const STRAGGLERS_LISTED: usize = 64;
/// A namespace's init is asked to kill this often (over some 300 ms) before it is killed itself, and with it the word of
/// how the command ended.
const KILLS_BY_INIT: u32 = 5;
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

/// The warden's whole life. Returns its exit status.
pub(super) fn run(keeper: Keeper) -> i32 {
    match Starting::new(&keeper) {
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
    }
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
    stops_dropped: usize,
    kills: u32,
    stdin_taken: Cursor,
    out_of_memory: bool,
    ending_told: bool,
    drain_until: Option<Mono>,
    ended: Option<Box<Ended>>,
    receipt: Option<Box<serde_json::value::RawValue>>,
    receipt_failed: bool,
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
            stops_dropped: 0,
            kills: 0,
            stdin_taken: Cursor(0),
            out_of_memory: false,
            ending_told: false,
            drain_until: None,
            ended: None,
            receipt: None,
            receipt_failed: false,
            settled: false,
        };
        running.count_followers();
        match keeper.containment.boundary {
            Boundary::PidNamespace => running.start_in_namespace(&prepared, streams, oom_score),
            Boundary::Cgroup2Subreaper | Boundary::Subreaper => running.start(&prepared, streams, oom_score),
        }
        running
    }

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
                    // First by its own hand, so that it reaps the command and tells how it ended; on a busy machine
                    // that takes a moment.
                    Some(init)
                        if self.kills == 1
                            || (self.kills <= KILLS_BY_INIT && self.machine.leader().is_none()) =>
                    {
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
            Order::Settle => self.assemble(),
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

/// Has the keeper's own group removed once this process has left it by ending: by a last child that is born outside. In the
/// launcher's group, which may have gone since with its launcher; beside the home's groups then.
fn remove_outer_later(keeper: &Keeper) {
    let Some(groups) = &keeper.containment.groups else { return };
    let Ok(own) = pidfd::open(rustix::process::getpid()) else { return };
    for outside in [Some(groups.origin.as_path()), groups.place.parent()].into_iter().flatten() {
        let Ok(outside) = files::open_dir(outside) else { continue };
        let options = fork::ForkOptions {
            into_cgroup: Some(outside.as_fd()),
            exit_signal: Some(Signal::CHILD),
            ..fork::ForkOptions::default()
        };
        let born = fork::fork_child(options, &[own.as_raw_fd()], || {
            let _ = poll(&mut [PollFd::new(&own, PollFlags::IN)], None);
            // The group counts as populated until the kernel has let go of the last zombie in it.
            for _ in 0..200 {
                groups.remove_outer();
                if !groups.keeper.path().exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(jobs) = keeper.job_path.parent() {
                groups.sweep(jobs);
            }
            0
        });
        if born.is_ok() {
            return;
        }
    }
}
