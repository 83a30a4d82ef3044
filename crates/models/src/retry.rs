//! Stops and retries: starts whose answers are lost, stops that race starts and ends, attempts that follow one another.
//!
//! One task, two attempts at most. Requests for a start travel: they are lost, come late, or come twice, and so do their
//! answers and the orders to end a job. The hand obeys whatever reaches it in time. Its keepers may be lost, with or without
//! their commands; its sandbox may be destroyed. People stop the task, or everything, and a call for a stop may arrive after
//! another one. The brain's transactions are the steps; what a worker was about to send is lost with it.
//!
//! The hand of this model does not compare attempts, so that the brain's own rule has to hold.

use crate::facts;
use crate::met::Met;
use outlast_core::exit::{Cause, Exit};
use outlast_core::fence::{StopReason, StopRequest, check_stop};
use outlast_core::id::{Cursor, Generation, SandboxGeneration};
use outlast_core::spec::JobKind;
use outlast_core::stops::{self, Hit, StopAnswer, StopCall, StopStep, StopTarget, next_step};
use outlast_core::task::{
    Answer, Destroyed, End, HandOff, HandOffWhy, News, NoStart, Reserved, Seen, Start, StopBy, StopFacts,
    TaskFacts, TaskState, next_attempt, project_task,
};
use outlast_core::time::UnixMicros;
use stateright::{Model, Property};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

const BEGAN: UnixMicros = UnixMicros(0);
const EXPIRES: UnixMicros = UnixMicros(10);

/// A mistake that the model must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An answer to the start that comes late clears the stop.
    LateAnswerClearsStop,
    /// An end that comes by itself clears the stop.
    EndClearsStop,
    /// A job whose keeper is lost is taken for dead.
    UnknownIsDead,
    /// A start whose answer was lost is taken for one that never was.
    LostAnswerIsNoStart,
    /// A second attempt follows a start whose answer was lost.
    RetriesWhatMayRun,
    /// A hand is asked for what was stopped.
    AsksAfterStop,
    /// A call for a stop is accepted whatever generation it carries, and hits what is there.
    StopWithoutGeneration,
    /// An order to end a job reaches whichever attempt is the latest.
    StopWithoutAttempt,
    /// A stop changes what is over.
    StopRewritesEnd,
    /// The end of any sandbox ends the task.
    AnySandboxWillDo,
}

/// What may happen, and how often.
#[derive(Debug)]
pub struct Retry {
    /// How many stops people call for.
    pub stops: u8,
    /// How often something that travels is lost, doubled, or a worker dies.
    pub faults: u8,
    /// How many keepers are lost.
    pub losses: u8,
    /// Whether the sandbox may be destroyed.
    pub destroys: bool,
    /// A mistake to put in.
    pub bug: Option<Bug>,
    /// What was met.
    pub met: Met,
}

/// The store, the network, and the hand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    attempts: [Option<Attempt>; 2],
    generation: u8,
    /// Calls for stops that people have sent.
    calls: [Option<Call>; 2],
    /// Which incarnation of the sandbox there is, and whether the brain knows that the first is gone.
    sandbox: u8,
    gone_is_known: bool,
    stops: u8,
    faults: u8,
    losses: u8,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Call {
    all: bool,
    generation: u8,
}

/// One attempt: what the brain knows, what travels, and what is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    known: Known,
    stop: Option<StopBy>,
    generation: u8,
    sandbox: u8,
    /// A worker has committed that it asks, and is about to.
    asking: bool,
    /// Requests that travel.
    requests: u8,
    /// Whether the hand drops them.
    expired: bool,
    /// An answer that travels.
    answer: bool,
    /// Orders to end its job that travel.
    ends: bool,
    truth: Truth,
}

/// What the brain knows of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Known {
    NotAsked,
    Asked { lost: bool },
    Open(Seen),
    Receipt { stopped: bool, exit_known: bool },
    NotStarted { stopped_first: bool },
    Destroyed,
    LostWithSandbox,
}

/// What is true on the hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Truth {
    /// It has no job.
    Absent,
    /// The command runs, under its keeper.
    Running,
    /// Its keeper is lost.
    Lost { alive: bool },
    /// There is a receipt.
    Receipt { stopped: bool, exit_known: bool },
    /// It went with its sandbox.
    Gone,
}

impl Truth {
    fn is_alive(self) -> bool {
        matches!(self, Truth::Running | Truth::Lost { alive: true })
    }
}

/// One step of the brain or of the hand, or a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The brain commits that it asks for a start.
    Ask(usize),
    /// A worker sends the request.
    Send(usize),
    /// That worker dies first, or the request is lost.
    LoseRequest(usize),
    /// A request is doubled.
    Double(usize),
    /// The hand takes a request.
    Take(usize),
    /// The brain takes the answer.
    Answer(usize),
    /// The answer is lost, and the brain commits that.
    LoseAnswer(usize),
    /// No request that was sent so far is obeyed any more.
    Expire(usize),
    /// The brain looks at the hand for its key.
    Find(usize),
    /// The command ends.
    End(usize),
    /// The keeper is lost; the command lives on, or not.
    LoseKeeper(usize, bool),
    /// The hand proves the death of a job that lost its keeper.
    Settle(usize),
    /// The brain looks at the job.
    Look(usize),
    /// Nothing was asked, and nothing will be.
    GiveUp(usize),
    /// A person sends a call for a stop.
    CallStop(bool),
    /// The brain takes that call.
    TakeStop(usize),
    /// The brain sends the order to end a job.
    SendEnd(usize),
    /// The hand obeys such an order.
    TakeEnd(usize),
    /// The order is lost.
    LoseEnd(usize),
    /// A person asks for another attempt.
    Retry,
    /// The sandbox is destroyed, and another takes its place.
    Destroy,
    /// The provider says so.
    LearnGone,
}

type Key = (usize, Known, Option<StopBy>, u8, u8);

impl Attempt {
    fn new(generation: u8, sandbox: u8) -> Attempt {
        Attempt {
            known: Known::NotAsked,
            stop: None,
            generation,
            sandbox,
            asking: false,
            requests: 0,
            expired: false,
            answer: false,
            ends: false,
            truth: Truth::Absent,
        }
    }

    fn now(self) -> UnixMicros {
        if self.expired { UnixMicros(EXPIRES.0 + 1) } else { EXPIRES }
    }

    /// The brain's facts. There are few, and they are asked for at every step.
    fn facts(self, index: usize) -> Rc<TaskFacts> {
        thread_local! {
            static MADE: RefCell<HashMap<Key, Rc<TaskFacts>>> = RefCell::default();
        }
        let key = (index, self.known, self.stop, self.generation, self.sandbox);
        MADE.with_borrow_mut(|made| {
            Rc::clone(made.entry(key).or_insert_with(|| Rc::new(self.make_facts(index))))
        })
    }

    fn make_facts(self, index: usize) -> TaskFacts {
        let owner = facts::owner(0, self.generation, self.sandbox);
        let attempt = facts::attempt(index + 1);
        let reserved = Reserved { at: BEGAN, deadline: None, kind: JobKind::Command, attempt };
        let mut task = TaskFacts::reserve(facts::task_id(0), owner, reserved);
        let admitted = |end| Start::Admitted { job_id: facts::job_id(attempt), at: BEGAN, end };
        task.start = match self.known {
            Known::NotAsked => Start::NotAsked,
            Known::Asked { lost } => Start::Asked {
                at: BEGAN,
                expires: EXPIRES,
                answer: if lost { Answer::Lost } else { Answer::Awaited },
            },
            Known::Open(seen) => admitted(End::Open { seen }),
            Known::Receipt { stopped, exit_known } => {
                let (exit, cause) = ended(stopped, exit_known);
                admitted(End::Receipt { receipt: facts::receipt(attempt, &task.owner, exit, cause) })
            }
            Known::NotStarted { stopped_first: true } => {
                Start::NotStarted { why: NoStart::StoppedFirst, at: BEGAN }
            }
            Known::NotStarted { stopped_first: false } => {
                Start::NotStarted { why: NoStart::NotFound, at: BEGAN }
            }
            Known::Destroyed => admitted(End::SandboxDestroyed { destroyed: destroyed(self.sandbox) }),
            Known::LostWithSandbox => {
                Start::LostWithSandbox { asked: BEGAN, destroyed: destroyed(self.sandbox) }
            }
        };
        task.stop = self.stop.map(|by| StopFacts { id: facts::stop_id("s"), by, at: BEGAN });
        task.hand_off = HandOff::HandedOff { at: BEGAN, why: HandOffWhy::Background, told: None };
        task.committed = Cursor(0);
        task
    }

    fn keep(&mut self, task: &TaskFacts) {
        self.stop = task.stop.as_ref().map(|stop| stop.by);
        self.known = match &task.start {
            Start::NotAsked => Known::NotAsked,
            Start::Asked { answer, .. } => Known::Asked { lost: *answer == Answer::Lost },
            Start::Admitted { end: End::Open { seen }, .. } => Known::Open(*seen),
            Start::Admitted { end: End::Receipt { receipt }, .. } => Known::Receipt {
                stopped: matches!(receipt.cause, Cause::Stop { .. }),
                exit_known: !matches!(receipt.exit, Exit::Unknown { .. }),
            },
            Start::Admitted { end: End::SandboxDestroyed { .. }, .. } => Known::Destroyed,
            // Nobody attests anything here.
            Start::Admitted { end: End::Attested { .. }, .. } => Known::Open(Seen::Unknown),
            Start::NotStarted { why, .. } => {
                Known::NotStarted { stopped_first: *why == NoStart::StoppedFirst }
            }
            Start::LostWithSandbox { .. } => Known::LostWithSandbox,
        };
    }
}

fn ended(stopped: bool, exit_known: bool) -> (Exit, Cause) {
    match (stopped, exit_known) {
        (_, false) => (Exit::Unknown { why: "the keeper was lost".to_owned() }, Cause::KeeperLost),
        (true, true) => {
            (Exit::Signaled { signal: 15, core_dumped: false }, Cause::Stop { id: "s".to_owned() })
        }
        (false, true) => (Exit::Exited { code: 0 }, Cause::OwnEnd),
    }
}

fn destroyed(sandbox: u8) -> Destroyed {
    let generation = SandboxGeneration(u64::from(sandbox));
    Destroyed { provider_ref: "vm".to_owned(), generation, at: BEGAN }
}

impl Retry {
    /// A transaction of the brain about one attempt. What must hold between before and after is looked at here.
    fn learn(&self, state: &mut State, index: usize, news: News) -> bool {
        let Some(mut attempt) = state.attempts[index] else { return false };
        let mut facts = TaskFacts::clone(&attempt.facts(index));
        let before = project_task(&facts, attempt.now());
        let stop_before = facts.stop.clone();
        let comes_late = matches!(news, News::Admitted { .. }) && facts.stop.is_some();
        let is_end = matches!(news, News::Receipt(_));
        match (self.bug, &news) {
            (Some(Bug::StopRewritesEnd), News::Stop(stop)) => facts.stop = Some(stop.clone()),
            (Some(Bug::AsksAfterStop), News::Asked { expires }) if facts.stop.is_some() => {
                facts.start = Start::Asked { at: BEGAN, expires: *expires, answer: Answer::Awaited };
            }
            (Some(Bug::LostAnswerIsNoStart), News::NotStarted { why: NoStart::NotFound }) => {
                facts.start = Start::NotStarted { why: NoStart::NotFound, at: BEGAN };
            }
            (Some(Bug::AnySandboxWillDo), News::Destroyed(destroyed)) => {
                let own = Destroyed { generation: facts.owner.sandbox_generation, ..destroyed.clone() };
                let _ = facts.learn(News::Destroyed(own), attempt.now());
            }
            _ => {}
        }
        let learned = facts.learn(news, attempt.now());
        if comes_late && learned.is_ok() {
            self.met.note("a start was answered after the stop");
        }
        match self.bug {
            Some(Bug::LateAnswerClearsStop) if comes_late => facts.stop = None,
            Some(Bug::EndClearsStop) if is_end => facts.stop = None,
            _ => {}
        }

        let after = project_task(&facts, attempt.now());
        if before.state.is_terminal() && (after.state, &after.outcome) != (before.state, &before.outcome) {
            state.broken = Some(FINAL);
        }
        if stop_before.is_some() && facts.stop.is_none() {
            state.broken = Some(STOPS_STAY);
        }
        attempt.keep(&facts);
        state.attempts[index] = Some(attempt);
        learned.is_ok()
    }

    fn find(&self, state: &mut State, index: usize) {
        let Some(attempt) = state.attempts[index] else { return };
        if attempt.truth != Truth::Absent && attempt.sandbox == state.sandbox {
            self.met.note("a lost start was found");
            self.learn(state, index, News::Admitted { job_id: facts::job_id(facts::attempt(index + 1)) });
        } else if self.learn(state, index, News::NotStarted { why: NoStart::NotFound }) {
            self.met.note("a lost start had never arrived");
        }
    }

    fn look(&self, state: &mut State, index: usize) {
        let Some(attempt) = state.attempts[index] else { return };
        let news = match attempt.truth {
            _ if attempt.sandbox != state.sandbox => News::Seen(Seen::Unreachable),
            Truth::Absent | Truth::Gone => return,
            Truth::Running => News::Seen(Seen::Running),
            Truth::Lost { .. } => News::Seen(Seen::Unknown),
            Truth::Receipt { stopped, exit_known } => {
                let (exit, cause) = ended(stopped, exit_known);
                if attempt.stop.is_some() {
                    self.met.note(if stopped { "a stop ended a job" } else { "a job ended before its stop" });
                }
                let owner = facts::owner(0, attempt.generation, attempt.sandbox);
                News::Receipt(facts::receipt(facts::attempt(index + 1), &owner, exit, cause))
            }
        };
        self.learn(state, index, news);
    }

    fn take_stop(&self, state: &mut State, call: Call) {
        let target = match call.all {
            true => StopTarget::All,
            false => StopTarget::Task { task: facts::task_id(0) },
        };
        let mut call = StopCall {
            id: facts::stop_id("s"),
            tenant: facts::tenant(),
            conversation: facts::conversation(),
            generation: Generation(u64::from(call.generation)),
            target,
        };
        let meant = call.generation;
        if self.bug == Some(Bug::StopWithoutGeneration) {
            call.generation = Generation(u64::from(state.generation));
        }
        let current = Generation(u64::from(state.generation));
        let StopAnswer::Accepted { generation } = stops::accept(&call, current) else {
            self.met.note("a stale stop was dropped");
            return;
        };
        for index in [0, 1] {
            let Some(attempt) = state.attempts[index] else { continue };
            let facts = attempt.facts(index);
            let mut hit = stops::hits(&call, &facts, BEGAN);
            if self.bug == Some(Bug::StopRewritesEnd) && hit == Hit::Over {
                hit = Hit::Yes(StopFacts { id: call.id.clone(), by: StopBy::Person, at: BEGAN });
            }
            let Hit::Yes(stop) = hit else { continue };
            if facts.owner.generation != meant {
                state.broken = Some(OWN_GENERATION);
            }
            self.learn(state, index, News::Stop(stop));
        }
        state.generation = u8::try_from(generation.0).unwrap_or(u8::MAX);
    }

    /// An order to end the job of one attempt reaches the hand, which looks at it once more.
    fn take_end(&self, state: &mut State, index: usize) {
        let Some(attempt) = state.attempts[index] else { return };
        let meant = facts::job_id(facts::attempt(index + 1));
        let request = StopRequest {
            id: "s".to_owned(),
            job_id: meant,
            generation: Generation(u64::from(attempt.generation)),
            force: false,
            grace: None,
            reason: StopReason::Asked,
        };
        let latest = if state.attempts[1].is_some() { 1 } else { 0 };
        let reached = if self.bug == Some(Bug::StopWithoutAttempt) { latest } else { index };
        let Some(target) = &mut state.attempts[reached] else { return };
        let target_id = facts::job_id(facts::attempt(reached + 1));
        let is_fresh = check_stop(&request, target_id, Generation(u64::from(target.generation))).is_ok();
        if !is_fresh && self.bug != Some(Bug::StopWithoutAttempt) {
            return;
        }
        if target.sandbox == state.sandbox && target.truth == Truth::Running {
            target.truth = Truth::Receipt { stopped: true, exit_known: true };
            if target_id != meant {
                state.broken = Some(OWN_ATTEMPT);
            }
        }
    }

    fn may_retry(&self, state: &State) -> bool {
        let (Some(first), None) = (state.attempts[0], state.attempts[1]) else { return false };
        match (self.bug, first.known) {
            (Some(Bug::UnknownIsDead), Known::Open(Seen::Unknown))
            | (Some(Bug::RetriesWhatMayRun), Known::Asked { lost: true }) => true,
            _ => next_attempt(&first.facts(0)) == Some(facts::attempt(2)),
        }
    }

    /// What brain and hand do by themselves, without people and faults.
    fn system_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for index in [0, 1] {
            let Some(attempt) = state.attempts[index] else { continue };
            let step = next_step(&attempt.facts(index));
            let asks = self.bug == Some(Bug::AsksAfterStop) || attempt.stop.is_none();
            match attempt.known {
                Known::NotAsked if asks => actions.push(Action::Ask(index)),
                Known::Asked { lost } => {
                    if lost || attempt.stop.is_some() || attempt.expired {
                        actions.push(Action::Find(index));
                    }
                    if lost && asks && !attempt.asking && attempt.requests == 0 && !attempt.expired {
                        actions.push(Action::Ask(index));
                    }
                }
                Known::Open(_) => actions.push(Action::Look(index)),
                _ => {}
            }
            match step {
                StopStep::RecordNotStarted => actions.push(Action::GiveUp(index)),
                StopStep::End { .. } if !attempt.ends && attempt.truth == Truth::Running => {
                    actions.push(Action::SendEnd(index));
                }
                StopStep::End { .. } | StopStep::Find { .. } | StopStep::Nothing => {}
            }
            if attempt.asking {
                actions.push(Action::Send(index));
            }
            if attempt.requests > 0 {
                actions.push(Action::Take(index));
            }
            if attempt.answer {
                actions.push(Action::Answer(index));
            }
            if attempt.ends {
                actions.push(Action::TakeEnd(index));
            }
            if matches!(attempt.known, Known::Asked { .. }) && !attempt.expired && !attempt.asking {
                actions.push(Action::Expire(index));
            }
            match attempt.truth {
                Truth::Running => actions.push(Action::End(index)),
                Truth::Lost { .. } => actions.push(Action::Settle(index)),
                Truth::Absent | Truth::Receipt { .. } | Truth::Gone => {}
            }
        }
        // It may be said again when another attempt is under way.
        if state.sandbox > 0 {
            actions.push(Action::LearnGone);
        }
    }

    fn outside_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_fail = state.faults < self.faults;
        for index in [0, 1] {
            let Some(attempt) = state.attempts[index] else { continue };
            if may_fail {
                if attempt.asking || attempt.requests > 0 {
                    actions.push(Action::LoseRequest(index));
                }
                if attempt.requests == 1 {
                    actions.push(Action::Double(index));
                }
                if attempt.answer {
                    actions.push(Action::LoseAnswer(index));
                }
                if attempt.ends {
                    actions.push(Action::LoseEnd(index));
                }
            }
            if state.losses < self.losses && attempt.truth == Truth::Running {
                actions.push(Action::LoseKeeper(index, true));
                actions.push(Action::LoseKeeper(index, false));
            }
        }
        for (slot, call) in state.calls.iter().enumerate() {
            if call.is_some() {
                actions.push(Action::TakeStop(slot));
            }
        }
        if state.stops < self.stops && state.calls.contains(&None) {
            actions.push(Action::CallStop(false));
            actions.push(Action::CallStop(true));
        }
        if self.may_retry(state) {
            actions.push(Action::Retry);
        }
        if self.destroys && state.sandbox == 0 {
            actions.push(Action::Destroy);
        }
    }

    fn step_of(&self, state: &mut State, index: usize, step: impl FnOnce(&mut State, &mut Attempt)) {
        let Some(mut attempt) = state.attempts[index] else { return };
        step(state, &mut attempt);
        state.attempts[index] = Some(attempt);
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(index) => {
                let stopped = state.attempts[index].is_some_and(|attempt| attempt.stop.is_some());
                if self.learn(state, index, News::Asked { expires: EXPIRES }) || stopped {
                    if stopped {
                        state.broken = Some(NO_START_AFTER_STOP);
                    }
                    self.step_of(state, index, |_, attempt| attempt.asking = true);
                }
            }
            Action::Send(index) => self.step_of(state, index, |_, attempt| {
                attempt.asking = false;
                attempt.requests += 1;
            }),
            Action::LoseRequest(index) => {
                self.learn(state, index, News::AnswerLost);
                self.step_of(state, index, |state, attempt| {
                    state.faults += 1;
                    if attempt.asking {
                        attempt.asking = false;
                    } else {
                        attempt.requests -= 1;
                    }
                });
            }
            Action::Double(index) => self.step_of(state, index, |state, attempt| {
                state.faults += 1;
                attempt.requests += 1;
            }),
            Action::Take(index) => self.step_of(state, index, |state, attempt| {
                attempt.requests -= 1;
                if attempt.expired || attempt.sandbox != state.sandbox {
                    return;
                }
                if attempt.truth == Truth::Absent {
                    attempt.truth = Truth::Running;
                } else {
                    self.met.note("a second request found the job of the first");
                }
                attempt.answer = true;
            }),
            Action::Answer(index) => {
                self.step_of(state, index, |_, attempt| attempt.answer = false);
                let job_id = facts::job_id(facts::attempt(index + 1));
                self.learn(state, index, News::Admitted { job_id });
            }
            Action::LoseAnswer(index) => {
                self.step_of(state, index, |state, attempt| {
                    state.faults += 1;
                    attempt.answer = false;
                });
                self.learn(state, index, News::AnswerLost);
            }
            Action::Expire(index) => self.step_of(state, index, |_, attempt| attempt.expired = true),
            Action::Find(index) => self.find(state, index),
            Action::End(index) => self.step_of(state, index, |_, attempt| {
                attempt.truth = Truth::Receipt { stopped: false, exit_known: true };
            }),
            Action::LoseKeeper(index, alive) => self.step_of(state, index, |state, attempt| {
                state.losses += 1;
                attempt.truth = Truth::Lost { alive };
            }),
            Action::Settle(index) => self.step_of(state, index, |_, attempt| {
                attempt.truth = Truth::Receipt { stopped: false, exit_known: false };
            }),
            Action::Look(index) => self.look(state, index),
            Action::GiveUp(index) => {
                self.met.note("a task was stopped before a hand was asked");
                self.learn(state, index, News::NotStarted { why: NoStart::StoppedFirst });
            }
            Action::CallStop(all) => {
                state.stops += 1;
                let generation = state.generation;
                if let Some(slot) = state.calls.iter_mut().find(|call| call.is_none()) {
                    *slot = Some(Call { all, generation });
                }
            }
            Action::TakeStop(slot) => {
                if let Some(call) = state.calls[slot].take() {
                    self.take_stop(state, call);
                }
            }
            Action::SendEnd(index) => self.step_of(state, index, |_, attempt| attempt.ends = true),
            Action::TakeEnd(index) => {
                self.step_of(state, index, |_, attempt| attempt.ends = false);
                self.take_end(state, index);
            }
            Action::LoseEnd(index) => self.step_of(state, index, |state, attempt| {
                state.faults += 1;
                attempt.ends = false;
            }),
            Action::Retry => {
                self.met.note("a second attempt followed a proved end");
                // It is meant for the sandbox that the brain knows of.
                let sandbox = u8::from(state.gone_is_known);
                state.attempts[1] = Some(Attempt::new(state.generation, sandbox));
            }
            Action::Destroy => {
                state.sandbox += 1;
                for attempt in state.attempts.iter_mut().flatten() {
                    if attempt.truth != Truth::Absent {
                        attempt.truth = Truth::Gone;
                    }
                }
            }
            Action::LearnGone => {
                state.gone_is_known = true;
                for index in [0, 1] {
                    self.learn(state, index, News::Destroyed(destroyed(0)));
                }
            }
        }
    }
}

/// No two attempts live at the same time.
pub const ONE_AT_A_TIME: &str = "one attempt lives at a time";
/// What is over for the brain is dead, and stays so.
pub const OVER_IS_DEAD: &str = "what is over is dead";
/// The state and outcome of what is over never change.
pub const FINAL: &str = "an end is final";
/// An accepted stop is never taken back.
pub const STOPS_STAY: &str = "an accepted stop stays";
/// What a person stopped is stopping, or cancelled.
pub const SHOWN: &str = "what was stopped is stopping or cancelled";
/// No hand is asked for what was stopped.
pub const NO_START_AFTER_STOP: &str = "no hand is asked after a stop";
/// A stop hits its own generation.
pub const OWN_GENERATION: &str = "a stop hits its own generation";
/// An order to end a job ends no other attempt.
pub const OWN_ATTEMPT: &str = "a stop ends its own attempt";
/// When there is nothing left to do, everything is over.
pub const SETTLED: &str = "everything is settled";

fn is_not_broken(state: &State, rule: &str) -> bool {
    state.broken != Some(rule)
}

fn attempts(state: &State) -> impl Iterator<Item = (usize, Attempt)> {
    let attempts = state.attempts.iter().enumerate();
    attempts.filter_map(|(index, attempt)| attempt.map(|attempt| (index, attempt)))
}

impl Model for Retry {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            attempts: [Some(Attempt::new(0, 0)), None],
            generation: 0,
            calls: [None; 2],
            sandbox: 0,
            gone_is_known: false,
            stops: 0,
            faults: 0,
            losses: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.system_actions(state, actions);
        self.outside_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_AT_A_TIME, |_, state: &State| {
                attempts(state).filter(|(_, attempt)| attempt.truth.is_alive()).count() <= 1
            }),
            Property::always(OVER_IS_DEAD, |_, state: &State| {
                attempts(state).all(|(index, attempt)| {
                    attempt.facts(index).ended().is_none() || !attempt.truth.is_alive()
                })
            }),
            Property::always(SHOWN, |_, state: &State| {
                attempts(state).all(|(index, attempt)| {
                    let facts = attempt.facts(index);
                    let shown = project_task(&facts, attempt.now()).state;
                    attempt.stop.is_none() || matches!(shown, TaskState::Stopping | TaskState::Cancelled)
                })
            }),
            Property::always(FINAL, |_, state| is_not_broken(state, FINAL)),
            Property::always(STOPS_STAY, |_, state| is_not_broken(state, STOPS_STAY)),
            Property::always(NO_START_AFTER_STOP, |_, state| is_not_broken(state, NO_START_AFTER_STOP)),
            Property::always(OWN_GENERATION, |_, state| is_not_broken(state, OWN_GENERATION)),
            Property::always(OWN_ATTEMPT, |_, state| is_not_broken(state, OWN_ATTEMPT)),
            Property::always(SETTLED, |model: &Retry, state: &State| {
                // A look that shows nothing new is nothing to do.
                let has_next = || {
                    let mut actions = Vec::new();
                    model.system_actions(state, &mut actions);
                    actions.into_iter().any(|action| model.next_state(state, action).is_some())
                };
                attempts(state).all(|(index, attempt)| attempt.facts(index).ended().is_some()) || has_next()
            }),
        ]
    }
}
