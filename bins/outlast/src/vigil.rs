//! The waiting of a call: everything that can happen to it, turned into one stream of happenings for [`Conduct`].
//!
//! What a keeper says only hurries things. Facts are read from the job's folder, so a word that is lost, or a keeper
//! that is, changes nothing but the time it takes.

use crate::budget::Budget;
use crate::conduct::{Act, AtLimit, Conduct, Early, Happening, Policy, Stop};
use crate::context::Context;
use crate::done;
use crate::failure::{self, Failure};
use crate::live::{Live, Selection};
use crate::outlet::{self, Outlet, Which, timespec};
use crate::result::{Look, progress_in_words, took};
use crate::settling;
use crate::terminal::Keys;
use outlast_bytelog::Tail;
use outlast_core::fence::{StopReason, StopRequest};
use outlast_core::id::Cursor;
use outlast_core::status::PAUSE_PREFIX;
use outlast_core::time::{Millis, Mono};
use outlast_hand::control::{self, Notice, Say, Watch};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::log::LogReader;
use outlast_hand::{clock, home};
use outlast_sys::signals::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::time::Duration;

/// The signals a waiting call takes as words.
const SIGNALS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::WINCH];

/// How often a job without a listening keeper is looked at.
const LOOK_AGAIN: Millis = Millis(50);

/// How often a stop that nobody confirmed is sent again. It carries the same id, so it stays one stop.
const STOP_AGAIN: Millis = Millis(1_000);

/// What a stop may take beyond the job's grace: linger, drain, and a machine under load.
const PATIENCE: Millis = Millis(20_000);

/// How long past its budget a call waits for the save of the command it pauses.
const SAVE_PATIENCE: Millis = Millis(1_700);

/// How often the line about progress is renewed.
const PROGRESS_EVERY: Millis = Millis(1_000);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The command's process exists, or its end.
    Started,
    /// The receipt.
    Settled,
    /// That all output there is now has been written.
    Written,
    /// That the log reaches this cursor, or the receipt.
    Cursor(u64),
}

/// When a call writes the job's output to its own standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streaming {
    /// Not at all: the answer holds it.
    Never,
    /// As it comes.
    AsItComes,
    /// All of it, once the job is settled.
    AtTheEnd,
}

/// A call that waits.
pub(crate) struct Vigil<'a> {
    /// The call.
    pub(crate) context: &'a Context,
    /// The home.
    pub(crate) home: &'a Home,
    /// The job.
    pub(crate) job: &'a Job,
    /// The keeper's words from the beginning, where this call launched it.
    pub(crate) watch: Option<Watch>,
    /// What is waited for.
    pub(crate) until: Until,
    /// What the caller asked for.
    pub(crate) policy: Policy,
    /// The bound of this call.
    pub(crate) budget: Budget,
    /// When output is written.
    pub(crate) streaming: Streaming,
    /// Which output is.
    pub(crate) selection: Selection,
    /// Whether keys are passed on.
    pub(crate) keys: bool,
    /// Whether a line on standard error tells of progress.
    pub(crate) progress: bool,
    /// The stop that this call is about.
    pub(crate) stopping: Option<StopRequest>,
}

/// How the waiting ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Why.
    pub(crate) end: End,
    /// Why the keeper could not set up what was asked for, where it said so.
    pub(crate) set_up: Option<SetUpFailed>,
    /// The stop this call sent.
    pub(crate) stop: Option<Stop>,
    /// Whether everything that was to be written has been written.
    pub(crate) written: bool,
    /// How far output was read for that.
    pub(crate) cursor: u64,
    /// Why standard output could not be written, where it is not that nobody reads.
    pub(crate) write_failed: Option<io::Error>,
}

/// Why the waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// There is a receipt.
    Result,
    /// The keeper is lost.
    Lost,
    /// It has started, or its output got there, which is all that was asked.
    Reached,
    /// The call ends before the job does.
    Early(Early),
    /// Leave at once, saying nothing more.
    Leave,
}

/// What a keeper could not set up.
#[derive(Debug, Clone)]
pub(crate) struct SetUpFailed {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

/// Takes the signals of a waiting call as words from now on. To be called before anything is started.
pub(crate) fn take_signals() -> Result<SignalFd, Failure> {
    SignalFd::new(&SIGNALS).map_err(|errno| failure::of_system("watching for signals", &errno.into()))
}

/// What a signal means to a waiting call; `None` for one that only concerns the terminal.
fn meaning(signal: i32) -> Option<Happening> {
    match signal {
        signal if signal == Signal::TERM.as_raw() => Some(Happening::Terminate),
        signal if signal == Signal::HUP.as_raw() => Some(Happening::HangUp),
        signal if signal == Signal::INT.as_raw() => Some(Happening::Interrupt),
        _ => None,
    }
}

/// How a stop treats what does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// KILL after the job's grace.
    Ordinary,
    /// KILL after its grace, and after so long at most.
    Within(Millis),
    /// KILL at once.
    Force,
}

/// A request to stop `job`, with an id of its own.
pub(crate) fn stop_request(job: &Job, stop: Stop, budget: Budget, how: How) -> Result<StopRequest, Failure> {
    let mut random = [0; 8];
    home::fill_random(&mut random)
        .map_err(|error| failure::of_system("making an id for the stop", &error))?;
    let prefix = if stop == Stop::Pause { PAUSE_PREFIX } else { "stop-" };
    Ok(StopRequest {
        id: format!("{prefix}{}", outlast_core::bytes::hex(&random)),
        job_id: job.id(),
        generation: job.spec().generation,
        force: how == How::Force,
        grace: match how {
            How::Within(most) => Some(job.spec().manner.grace.min(most)),
            How::Ordinary | How::Force => None,
        },
        reason: match stop {
            Stop::CallBudget => StopReason::CallBudget { after_ms: budget.millis().unwrap_or(0) },
            Stop::Pause => StopReason::Pause,
            Stop::Asked => StopReason::Asked,
        },
    })
}

/// Where the waiting stands.
struct Standing<'a> {
    vigil: Vigil<'a>,
    conduct: Conduct,
    watch: Option<Watch>,
    live: Option<Live>,
    keys: Option<Keys>,
    stdout: Outlet,
    stderr: Outlet,
    /// Standard output is looked at for being closed.
    stdout_open: bool,
    /// Output was dropped because nobody reads it.
    unwritten: bool,
    /// How far output was read when that was seen.
    cursor: u64,
    write_failed: Option<io::Error>,
    settled: bool,
    /// Its keeper is lost and it is not settled: what the log holds now is all there will be.
    lost: bool,
    /// Output may have been logged since it was looked at.
    output_came: bool,
    log_end: Option<(LogReader, u64)>,
    /// Words of the keeper, or a look, said that the command's process exists.
    started: bool,
    set_up: Option<SetUpFailed>,
    budget_ends: Option<Mono>,
    patience_ends: Option<Mono>,
    look_at: Option<Mono>,
    stop: Option<(StopRequest, Mono)>,
    progress_at: Option<Mono>,
    progress_width: usize,
}

impl Vigil<'_> {
    /// Waits.
    pub(crate) fn wait(self, signals: &SignalFd) -> Result<Ended, Failure> {
        let mut standing = Standing::new(self)?;
        let end = standing.run(signals);
        standing.clear_progress();
        // The terminal is restored here, whatever happened.
        drop(standing.keys.take());
        Ok(Ended {
            end: end?,
            set_up: standing.set_up,
            stop: standing.conduct.stop(),
            written: !standing.unwritten && standing.live.as_ref().is_none_or(Live::is_drained),
            cursor: standing.live.as_ref().map_or(standing.cursor, Live::cursor),
            write_failed: standing.write_failed,
        })
    }
}

impl<'a> Standing<'a> {
    fn new(mut vigil: Vigil<'a>) -> Result<Self, Failure> {
        let now = clock::mono_now();
        let watch = vigil.watch.take();
        let live = (vigil.streaming == Streaming::AsItComes).then(|| Live::new(vigil.selection));
        let keys = if vigil.keys { Keys::take(vigil.job)? } else { None };
        let stop = vigil.stopping.take().map(|request| (request, now));
        Ok(Standing {
            conduct: Conduct::new(vigil.policy),
            look_at: watch.is_none().then_some(now),
            watch,
            live,
            keys,
            stdout: Outlet::new(Which::Stdout),
            stderr: Outlet::new(Which::Stderr),
            stdout_open: true,
            unwritten: false,
            cursor: vigil.selection.from,
            write_failed: None,
            output_came: true,
            log_end: None,
            settled: false,
            lost: false,
            started: false,
            set_up: None,
            budget_ends: vigil.budget.ends_at(vigil.context.started),
            patience_ends: None,
            stop,
            progress_at: vigil.progress.then(|| now.plus(PROGRESS_EVERY)),
            progress_width: 0,
            vigil,
        })
    }

    fn run(&mut self, signals: &SignalFd) -> Result<End, Failure> {
        loop {
            if let Some(end) = self.advance()? {
                return Ok(end);
            }
            if let Some(end) = self.wait_for_something(signals)? {
                return Ok(end);
            }
        }
    }

    /// Does what can be done without waiting.
    fn advance(&mut self) -> Result<Option<End>, Failure> {
        let now = clock::mono_now();
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now)?;
        }
        if self.started && self.vigil.until == Until::Started && !self.settled && !self.lost {
            return Ok(Some(End::Reached));
        }
        if self.settled
            && self.live.is_none()
            && self.vigil.streaming == Streaming::AtTheEnd
            && self.stdout_open
        {
            self.clear_progress();
            self.progress_at = None;
            self.live = Some(Live::new(self.vigil.selection));
        }
        if let Some(live) = &mut self.live {
            let last = self.settled || self.lost || self.vigil.until == Until::Written;
            let closed = live.advance(self.vigil.job, &self.stdout, &self.stderr, last)?;
            let written = live.is_drained();
            if closed && let Some(end) = self.take(Happening::OutputClosed)? {
                return Ok(Some(end));
            }
            if written && self.vigil.until == Until::Written {
                return Ok(Some(End::Reached));
            }
        }
        if let Until::Cursor(cursor) = self.vigil.until
            && self.reaches(cursor)?
        {
            return Ok(Some(End::Reached));
        }
        if self.settled && self.live.as_ref().is_none_or(Live::is_drained) {
            return self.take(Happening::Settled);
        }
        if self.lost && self.live.as_ref().is_none_or(Live::is_drained) {
            return self.take(Happening::Lost);
        }
        if self.patience_ends.is_some_and(|at| at <= now) {
            self.patience_ends = None;
            return self.take(Happening::PatienceOver);
        }
        if self.budget_ends.is_some_and(|at| at <= now) {
            self.budget_ends = None;
            return self.take(Happening::BudgetOver);
        }
        if self.stop.as_ref().is_some_and(|(_, at)| *at <= now) {
            self.send_stop(now);
        }
        if let Some(keys) = &mut self.keys {
            keys.pass_on(self.vigil.job);
        }
        if self.progress_at.is_some_and(|at| at <= now) {
            self.show_progress(now);
        }
        Ok(None)
    }

    /// Whether the log reaches a cursor by now.
    fn reaches(&mut self, cursor: u64) -> Result<bool, Failure> {
        let (job, from) = (self.vigil.job, self.vigil.selection.from);
        if !std::mem::take(&mut self.output_came) {
            return Ok(false);
        }
        let (log, end) = match &mut self.log_end {
            Some(known) => known,
            None => {
                let log = job.log().map_err(|error| failure::of_system("opening the output", &error))?;
                self.log_end.insert((log, from))
            }
        };
        while *end < cursor {
            let outcome = log.read_from(Cursor(*end), 256 << 10).map_err(|error| {
                Failure::new(failure::UNAVAILABLE, "reading the output failed").because_of(&error)
            })?;
            let moved = outcome.next > *end;
            *end = outcome.next.max(*end);
            if outcome.tail != Tail::More || !moved {
                break;
            }
        }
        Ok(*end >= cursor)
    }

    fn take(&mut self, happening: Happening) -> Result<Option<End>, Failure> {
        let act = self.conduct.on(happening);
        let context = self.vigil.context;
        if happening == Happening::Interrupt
            && act == Act::Stop(Stop::Asked)
            && (!context.json() || context.terminals.stderr)
        {
            self.clear_progress();
            done::tell("stopping the job; Ctrl-C again leaves it to stop by itself");
        }
        if let Act::Stop(stop) | Act::StopAndAnswer(stop, _) = act {
            let how = match (stop, self.vigil.policy.grace_at_limit) {
                (Stop::CallBudget, Some(most)) => How::Within(most),
                _ => How::Ordinary,
            };
            let request = stop_request(self.vigil.job, stop, self.vigil.budget, how)?;
            let now = clock::mono_now();
            self.patience_ends = Some(match (stop, happening) {
                // This caller has no time beyond its budget; the save goes on without it.
                (Stop::Pause, Happening::BudgetOver) => now.plus(SAVE_PATIENCE),
                _ => now.plus(self.vigil.job.spec().manner.grace).plus(PATIENCE),
            });
            self.stop = Some((request, now));
            self.send_stop(now);
        }
        if happening == Happening::OutputClosed {
            self.stdout_open = false;
            // What was not written stays unwritten, and the result counts as not handed over.
            if let Some(live) = self.live.take() {
                self.unwritten = true;
                self.cursor = live.cursor();
                self.write_failed = live.into_failure();
            }
        }
        Ok(match act {
            Act::WaitOn | Act::Stop(_) => None,
            Act::AnswerResult => Some(End::Result),
            Act::AnswerLost => Some(End::Lost),
            Act::StopAndAnswer(_, early) | Act::AnswerEarly(early) => Some(End::Early(early)),
            Act::Leave => Some(End::Leave),
        })
    }

    fn send_stop(&mut self, now: Mono) {
        let Some((request, at)) = &mut self.stop else { return };
        *at = now.plus(STOP_AGAIN);
        match control::stop(self.vigil.job, request, Duration::from_millis(500)) {
            Ok(control::StopAnswer::Accepted | control::StopAnswer::Stale(_)) => self.stop = None,
            // Not there yet, or gone: the next look says which.
            Ok(control::StopAnswer::NoKeeper) | Err(_) => {}
        }
    }

    /// Looks at the job's folder, where no keeper tells of it.
    fn look(&mut self, now: Mono) -> Result<(), Failure> {
        let (home, job) = (self.vigil.home, self.vigil.job);
        self.look_at = None;
        if self.watch.is_none() {
            let output = self.live.is_some() || matches!(self.vigil.until, Until::Cursor(_));
            self.watch = Watch::connect(job, output)
                .map_err(|error| failure::of_system("reaching the keeper", &error))?;
        }
        if let Some(live) = &mut self.live {
            live.there_may_be_more();
        }
        self.output_came = true;
        let look = Look::at(job)?;
        self.started |= look.facts.ledger.started.is_some();
        self.settled |= look.facts.receipt.is_some();
        if self.settled || self.watch.is_some() {
            return Ok(());
        }
        self.look_at = Some(now.plus(LOOK_AGAIN));
        if !look.is_final() {
            return Ok(());
        }
        settling::if_due(home, job, self.budget_ends)?;
        let look = Look::at(job)?;
        self.settled = look.facts.receipt.is_some();
        self.lost = !self.settled && look.is_final();
        if self.lost {
            // Nobody tells of anything any more. What was logged until then is still written.
            self.look_at = None;
        }
        Ok(())
    }

    fn wait_for_something(&mut self, signals: &SignalFd) -> Result<Option<End>, Failure> {
        let ready = self.poll(signals).map_err(|error| failure::of_system("waiting", &error))?;
        if ready.signal {
            while let Ok(Some(received)) = signals.read() {
                match meaning(received.signal) {
                    None => {
                        if let Some(keys) = &mut self.keys {
                            keys.pass_size_on(self.vigil.job);
                        }
                    }
                    Some(happening) => {
                        if let Some(end) = self.take(happening)? {
                            return Ok(Some(end));
                        }
                    }
                }
            }
        }
        if ready.watch {
            self.hear()?;
        }
        if ready.stdout_closed {
            self.stdout_open = false;
            if let Some(end) = self.take(Happening::OutputClosed)? {
                return Ok(Some(end));
            }
        }
        if ready.keys
            && let Some(keys) = &mut self.keys
            && keys.read() == crate::terminal::Read::Detach
        {
            return Ok(Some(End::Early(Early::Detached)));
        }
        Ok(None)
    }

    /// Hears what the keeper has said so far.
    fn hear(&mut self) -> Result<(), Failure> {
        loop {
            let Some(watch) = &self.watch else { return Ok(()) };
            let notice = watch
                .next(Some(Duration::ZERO))
                .map_err(|error| failure::of_system("hearing the keeper", &error))?;
            match notice {
                Notice::TimedOut => return Ok(()),
                Notice::Closed => {
                    self.watch = None;
                    self.look_at = Some(clock::mono_now());
                    return Ok(());
                }
                Notice::Said(Say::Settled) => {
                    self.settled = true;
                    return Ok(());
                }
                Notice::Said(Say::Started) => self.started = true,
                Notice::Said(Say::Failed { code, message, remedy }) => {
                    self.set_up = Some(SetUpFailed { code, message, remedy });
                }
                Notice::Said(Say::Output) => {
                    self.output_came = true;
                    if let Some(live) = &mut self.live {
                        live.there_may_be_more();
                    }
                }
                Notice::Said(Say::Ending { .. } | Say::StopAccepted) => self.stop = None,
                Notice::Said(_) => {}
            }
        }
    }

    fn poll(&self, signals: &SignalFd) -> io::Result<Ready> {
        let stdin = rustix::stdio::stdin();
        let blocked = self.live.as_ref().and_then(Live::blocked_on);
        let stdout_flags = if blocked == Some(Which::Stdout) { PollFlags::OUT } else { PollFlags::empty() };
        let (stdout, stderr) = (self.stdout.fd(), self.stderr.fd());
        let watch = self.watch.as_ref().map(Watch::socket);
        let mut fds = Vec::with_capacity(5);
        fds.push(PollFd::new(signals, PollFlags::IN));
        let mut places = [None; 4];
        if let Some(socket) = &watch {
            places[0] = Some(fds.len());
            fds.push(PollFd::new(socket, PollFlags::IN));
        }
        if self.stdout_open {
            places[1] = Some(fds.len());
            fds.push(PollFd::new(&stdout, stdout_flags));
        }
        if blocked == Some(Which::Stderr) {
            places[2] = Some(fds.len());
            fds.push(PollFd::new(&stderr, PollFlags::OUT));
        }
        if self.keys.as_ref().is_some_and(Keys::wants_more) {
            places[3] = Some(fds.len());
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let timeout = self.next_wake().map(timespec);
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(errno.into()),
        }
        let flags = |place: Option<usize>| place.map_or(PollFlags::empty(), |at| fds[at].revents());
        Ok(Ready {
            signal: !fds[0].revents().is_empty(),
            watch: !flags(places[0]).is_empty(),
            stdout_closed: outlet::is_closed(flags(places[1])),
            keys: !flags(places[3]).is_empty(),
        })
    }

    /// How long until something has to be done; `None` for ever.
    fn next_wake(&self) -> Option<Millis> {
        let now = clock::mono_now();
        let keys = self.keys.as_ref().and_then(|keys| keys.retry_at());
        let moments = [
            self.budget_ends,
            self.patience_ends,
            self.look_at,
            self.stop.as_ref().map(|(_, at)| *at),
            self.progress_at,
            keys,
        ];
        moments.into_iter().flatten().min().map(|at| at.since(now))
    }

    fn show_progress(&mut self, now: Mono) {
        self.progress_at = Some(now.plus(PROGRESS_EVERY));
        let job = self.vigil.job;
        let Ok(look) = Look::at(job) else { return };
        let progress = job.progress().unwrap_or_else(|| outlast_core::progress::Progress {
            done: crate::output::end_of(job).map_or(0, |cursor| cursor.0),
            total: None,
            unit: Some("bytes".to_owned()),
        });
        let mut line = format!(
            "{} · {} · {}",
            look.state().name(),
            took(look.work_duration()),
            progress_in_words(&progress)
        );
        if let Some(activity) = job.activity() {
            line = format!("{line} · {} CPU", took(Millis(activity.cpu_ms)));
        }
        let width = line.chars().count();
        let padding = " ".repeat(self.progress_width.saturating_sub(width));
        self.progress_width = width;
        let _ =
            self.stderr.write_all(format!("\r{line}{padding}").as_bytes(), Some(now.plus(Millis(100))), None);
    }

    fn clear_progress(&mut self) {
        if self.progress_width > 0 {
            let blank = format!("\r{}\r", " ".repeat(self.progress_width));
            self.progress_width = 0;
            let _ = self.stderr.write_all(blank.as_bytes(), Some(clock::mono_now().plus(Millis(100))), None);
        }
    }
}

#[derive(Default)]
struct Ready {
    signal: bool,
    watch: bool,
    stdout_closed: bool,
    keys: bool,
}

/// The policy of a call that waits for a job and leaves it alone.
pub(crate) const LEAVE_ALONE: Policy = Policy {
    at_limit: AtLimit::GoesOn,
    grace_at_limit: None,
    interrupt: crate::conduct::OnInterrupt::EndsWaiting,
};
