//! Delivery: from a task's end to its owner's input, with workers that crash between any two durable steps.
//!
//! Two tasks were handed off, by one person or by two. They end when they like. Two workers claim their events, hand them over
//! and acknowledge them, and any of them may die after any step or sleep until its claim has lapsed. Meanwhile people write,
//! read, stop a task, their run or everything, and runs die. The store's transactions are the steps; what a worker remembers
//! between them is lost with it.

use crate::facts;
use crate::met::Met;
use outlast_core::delivery::{
    Acknowledge, ConversationFacts, EventFacts, EventState, HandOver, MayClaim, OwnerHolds, Standing,
    acknowledge, event_id, may_claim, may_hand_over, owed, owed_event,
};
use outlast_core::exit::{Cause, Exit};
use outlast_core::id::{Attempt, ClaimToken, Cursor, Generation, SandboxGeneration};
use outlast_core::spec::JobKind;
use outlast_core::stops::{self, Hit, StopAnswer, StopCall, StopTarget};
use outlast_core::task::{
    End, HandOff, HandOffWhy, Learned, News, Reserved, Seen, Start, StopBy, StopFacts, TaskFacts, Told,
    ToldBy, result_state,
};
use outlast_core::time::UnixMicros;
use stateright::{Model, Property};
use std::collections::HashMap;
use std::sync::LazyLock;

const NOW: UnixMicros = UnixMicros(50);
const LATER: UnixMicros = UnixMicros(100);
const PAST: UnixMicros = UnixMicros(0);

/// A mistake that the model must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The end is committed in one transaction and its event in a second.
    EventInSecondTransaction,
    /// The acknowledgement is committed before the owner's input holds the event.
    AcknowledgesBeforeHandingOver,
    /// A worker gives a claim back without looking whether it is still its own.
    GivesBackWithoutToken,
    /// An acknowledgement is taken whoever holds the claim, and whatever became of the event.
    AcknowledgesWithoutToken,
    /// The owner's input takes the same event in twice.
    NoMemoryOfIds,
    /// Whether a turn may start is looked at in one step, and it is started in another.
    LooksThenStarts,
    /// It is not looked at whether the run has the result already.
    AnnouncesWhatWasRead,
    /// It is not looked at whether the generation was closed.
    ForgetsGenerations,
    /// The event goes into whatever run is active.
    SteersIntoAnyRun,
    /// A run that was stopped is woken.
    WakesTheStopped,
}

/// What may happen, and how often.
#[derive(Debug)]
pub struct Delivery {
    /// Whose the two tasks are: 0 or 1.
    pub owners: [usize; 2],
    /// How many workers die.
    pub crashes: u8,
    /// How many runs die.
    pub deaths: u8,
    /// How many messages people send.
    pub messages: u8,
    /// How many stops people call for.
    pub stops: u8,
    /// A mistake to put in.
    pub bug: Option<Bug>,
    /// What was met.
    pub met: Met,
}

/// The store, and what workers remember.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    tasks: [Task; 2],
    runs: [Run; 2],
    stopped: [bool; 2],
    message_of: Option<usize>,
    generation: u8,
    workers: [Worker; 2],
    /// The task whose end a coordinator has committed, and whose event it is about to insert: with a bug only.
    inserting: Option<usize>,
    crashes: u8,
    deaths: u8,
    messages: u8,
    stops: u8,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Task {
    known: Known,
    event: Event,
    input: Input,
    processed: u8,
}

/// What is known of a task that was handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    ended: bool,
    committed: bool,
    stop: Option<StopBy>,
    told: Option<ToldBy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    None,
    Pending,
    Claimed { worker: usize, life: u8, lapsed: bool },
    Acknowledged,
    Discarded,
}

impl Event {
    fn is_final(self) -> bool {
        matches!(self, Event::Acknowledged | Event::Discarded)
    }
}

/// An event in the durable input of a person's runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Input {
    None,
    Queued(usize),
    Processed(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Run {
    Over,
    Suspended,
    Turn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Worker {
    life: u8,
    step: Step,
}

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    HandOver(usize),
    /// It saw that a turn may start: with a bug only.
    Start(usize),
    Acknowledge(usize),
}

/// One durable step, or a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A task ends, and that is committed.
    End(usize),
    /// Its event is inserted: with a bug only.
    Insert,
    /// Its output is committed.
    Commit(usize),
    /// A worker claims an event.
    Claim(usize, usize),
    /// A worker hands over what it claimed.
    HandOver(usize),
    /// A worker acknowledges what it handed over.
    Acknowledge(usize),
    /// A claim lapses.
    Lapse(usize),
    /// A worker dies, and another takes its place.
    Crash(usize),
    /// The run takes an event out of its input.
    Process(usize),
    /// A turn ends.
    EndTurn(usize),
    /// A run dies.
    Die(usize),
    /// A person writes.
    Write(usize),
    /// What a person wrote starts a turn.
    TakeMessage,
    /// A run asks for a result, and reads it.
    Read(usize),
    /// A person stops a task.
    StopTask(usize),
    /// A person stops their run.
    StopRun(usize),
    /// A person stops everything.
    StopAll,
}

static FACTS: LazyLock<HashMap<(usize, usize, Known), TaskFacts>> = LazyLock::new(|| {
    let mut facts = HashMap::new();
    for task in [0, 1] {
        for person in [0, 1] {
            for ended in [false, true] {
                for committed in [false, true] {
                    for stop in [None, Some(StopBy::Person), Some(StopBy::StopAll)] {
                        for told in [None, Some(ToldBy::Event), Some(ToldBy::Read), Some(ToldBy::Stop)] {
                            let known = Known { ended, committed, stop, told };
                            facts.insert((task, person, known), task_facts(task, person, known));
                        }
                    }
                }
            }
        }
    }
    facts
});

fn task_facts(task: usize, person: usize, known: Known) -> TaskFacts {
    let owner = facts::owner(person, 0, 0);
    let attempt = Attempt::FIRST;
    let reserved = Reserved { at: PAST, deadline: None, kind: JobKind::Command, attempt };
    let mut task = TaskFacts::reserve(facts::task_id(task), owner, reserved);
    let end = if known.ended {
        let exit = Exit::Exited { code: 0 };
        End::Receipt { receipt: facts::receipt(attempt, &task.owner, exit, Cause::OwnEnd) }
    } else {
        End::Open { seen: Seen::Running }
    };
    task.start = Start::Admitted { job_id: facts::job_id(attempt), at: PAST, end };
    task.stop = known.stop.map(|by| StopFacts { id: facts::stop_id("s"), by, at: PAST });
    let told = known.told.map(|by| Told { by, at: PAST });
    task.hand_off = HandOff::HandedOff { at: PAST, why: HandOffWhy::Cutover, told };
    task.committed = Cursor(u64::from(known.committed));
    task
}

fn known(task: &TaskFacts) -> Known {
    let told = match task.hand_off {
        HandOff::HandedOff { told, .. } => told.map(|told| told.by),
        HandOff::Undecided | HandOff::Carried { .. } => None,
    };
    Known {
        ended: task.ended().is_some(),
        committed: task.committed == Cursor(1),
        stop: task.stop.as_ref().map(|stop| stop.by),
        told,
    }
}

impl Delivery {
    fn facts(&self, state: &State, task: usize) -> &'static TaskFacts {
        &FACTS[&(task, self.owners[task], state.tasks[task].known)]
    }

    fn learn(&self, state: &mut State, task: usize, news: News) -> Option<Learned> {
        let mut facts = self.facts(state, task).clone();
        let learned = facts.learn(news, NOW).ok();
        state.tasks[task].known = known(&facts);
        learned
    }

    fn conversation(&self, state: &State) -> ConversationFacts {
        let generation = Generation(u64::from(state.generation));
        let mut conversation = ConversationFacts::new(facts::tenant(), facts::conversation(), generation);
        conversation.sandboxes.insert(SandboxGeneration(0));
        conversation.messages = state.message_of.is_some();
        for person in [0, 1] {
            if state.stopped[person] {
                conversation.stopped.insert(facts::person(person));
            }
            let standing = match state.runs[person] {
                Run::Over => continue,
                Run::Suspended => Standing::Suspended,
                Run::Turn => Standing::Turn { input_full: false },
            };
            // Two turns at a time are refused here; that they are there is noted by a property.
            let _ = conversation.open(facts::person(person), facts::run_of(person), standing);
        }
        conversation
    }

    fn event(&self, state: &State, task: usize) -> Option<EventFacts> {
        let facts = self.facts(state, task);
        let state = match state.tasks[task].event {
            Event::None => return None,
            Event::Pending => EventState::Pending,
            Event::Claimed { worker, life, lapsed } => EventState::Claimed {
                token: facts::token(worker, life),
                until: if lapsed { PAST } else { LATER },
            },
            Event::Acknowledged => EventState::Acknowledged,
            Event::Discarded => {
                EventState::Discarded { reason: outlast_core::delivery::DiscardReason::AlreadyRead }
            }
        };
        let owner = facts.owner.clone();
        owed(facts).map(|kind| EventFacts { id: event_id(facts), kind, owner, state })
    }

    fn decide(
        &self,
        state: &State,
        conversation: &ConversationFacts,
        task: usize,
        token: &ClaimToken,
    ) -> HandOver {
        let Some(mut event) = self.event(state, task) else { return HandOver::NotYours };
        let mut result = result_state(self.facts(state, task));
        let mut conversation = conversation.clone();
        match self.bug {
            Some(Bug::AnnouncesWhatWasRead) if state.tasks[task].known.told.is_some() => {
                result = outlast_core::task::ResultState::Readable;
            }
            Some(Bug::ForgetsGenerations) => conversation.generation = Generation(0),
            Some(Bug::WakesTheStopped) => conversation.stopped.clear(),
            Some(Bug::SteersIntoAnyRun) => {
                if let Some((person, _)) = conversation.active() {
                    event.owner.principal = person.clone();
                }
            }
            _ => {}
        }
        may_hand_over(&event, token, &result, &conversation, NOW)
    }

    /// What the system does by itself, without people and faults.
    fn system_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let conversation = self.conversation(state);
        let is_active = state.runs.contains(&Run::Turn);
        for (index, task) in state.tasks.iter().enumerate() {
            if !task.known.ended && state.inserting.is_none() {
                actions.push(Action::End(index));
            }
            if task.known.ended && !task.known.committed {
                actions.push(Action::Commit(index));
            }
            if let Input::Queued(person) = task.input
                && state.runs[person] == Run::Turn
            {
                actions.push(Action::Process(index));
            }
            if let Event::Claimed { worker, life, lapsed: false } = task.event
                && (state.workers[worker].life != life || state.workers[worker].step == Step::Idle)
            {
                actions.push(Action::Lapse(index));
            }
            let Some(event) = self.event(state, index) else { continue };
            let result = result_state(self.facts(state, index));
            let MayClaim::Yes { .. } = may_claim(&event, &result, NOW) else { continue };
            for (number, worker) in state.workers.iter().enumerate() {
                if worker.step != Step::Idle {
                    continue;
                }
                // It looks before it claims, so that what stays queued is not claimed for ever.
                let mut claimed = state.clone();
                let life = worker.life;
                claimed.tasks[index].event = Event::Claimed { worker: number, life, lapsed: false };
                let token = facts::token(number, life);
                if !matches!(self.decide(&claimed, &conversation, index, &token), HandOver::StayQueued { .. })
                {
                    actions.push(Action::Claim(number, index));
                }
            }
        }
        if state.inserting.is_some() {
            actions.push(Action::Insert);
        }
        for (number, worker) in state.workers.iter().enumerate() {
            match worker.step {
                Step::Idle => {}
                Step::HandOver(_) | Step::Start(_) => actions.push(Action::HandOver(number)),
                Step::Acknowledge(_) => actions.push(Action::Acknowledge(number)),
            }
        }
        for person in [0, 1] {
            let has_input = state.tasks.iter().any(|task| task.input == Input::Queued(person));
            if state.runs[person] == Run::Turn && !has_input {
                actions.push(Action::EndTurn(person));
            }
        }
        if state.message_of.is_some() && !is_active {
            actions.push(Action::TakeMessage);
        }
    }

    fn outside_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, task) in state.tasks.iter().enumerate() {
            if let Event::Claimed { worker, life, lapsed: false } = task.event
                && state.workers[worker].life == life
                && state.workers[worker].step != Step::Idle
            {
                actions.push(Action::Lapse(index));
            }
            let reads = state.runs[self.owners[index]] == Run::Turn && task.input == Input::None;
            if reads && task.known.committed && task.known.told.is_none() && state.generation == 0 {
                actions.push(Action::Read(index));
            }
            if state.stops < self.stops && !task.known.ended {
                actions.push(Action::StopTask(index));
            }
        }
        if state.crashes < self.crashes {
            for (number, worker) in state.workers.iter().enumerate() {
                if worker.step != Step::Idle || state.inserting.is_some() {
                    actions.push(Action::Crash(number));
                }
            }
        }
        for person in [0, 1] {
            if state.runs[person] != Run::Over {
                if state.deaths < self.deaths {
                    actions.push(Action::Die(person));
                }
                if state.stops < self.stops {
                    actions.push(Action::StopRun(person));
                }
            }
            if state.messages < self.messages && state.message_of.is_none() {
                actions.push(Action::Write(person));
            }
        }
        if state.stops < self.stops && state.generation == 0 {
            actions.push(Action::StopAll);
        }
    }

    fn begin_turn(&self, state: &mut State, person: usize) -> bool {
        let mut conversation = self.conversation(state);
        let turn = Standing::Turn { input_full: false };
        let begins = conversation.open(facts::person(person), facts::run_of(person), turn).is_ok();
        if begins {
            state.runs[person] = Run::Turn;
        }
        begins
    }

    /// Puts an event into a person's durable input, which knows the ids of all it has ever held.
    fn put(&self, state: &mut State, task: usize, person: usize) {
        if person != self.owners[task] {
            state.broken = Some(OWN_PERSON);
        }
        if state.generation > 0 {
            state.broken = Some(CLOSED_GENERATION);
        }
        if state.tasks[task].known.told == Some(ToldBy::Read) {
            state.broken = Some(ALREADY_READ);
        }
        if state.stopped[self.owners[task]] {
            state.broken = Some(STOPPED_RUN);
        }
        let task = &mut state.tasks[task];
        if task.input == Input::None || self.bug == Some(Bug::NoMemoryOfIds) {
            task.input = Input::Queued(person);
        } else {
            self.met.note("an event was handed over again");
        }
    }

    fn hand_over(&self, state: &mut State, number: usize, task: usize) {
        let worker = state.workers[number];
        let token = facts::token(number, worker.life);
        let conversation = self.conversation(state);
        let next = if self.bug == Some(Bug::AcknowledgesBeforeHandingOver) {
            Step::Idle
        } else {
            Step::Acknowledge(task)
        };
        let give_back = |state: &mut State, event| {
            state.tasks[task].event = event;
            state.workers[number].step = Step::Idle;
        };
        match self.decide(state, &conversation, task, &token) {
            HandOver::Steer(run) => {
                self.met.note("an event was steered into the active run");
                let person = if run == facts::run_of(0) { 0 } else { 1 };
                self.put(state, task, person);
                state.workers[number].step = next;
            }
            HandOver::NewTurn { .. } if self.bug == Some(Bug::LooksThenStarts) => {
                state.workers[number].step = Step::Start(task);
            }
            HandOver::NewTurn { principal, run } => {
                let person = facts::index_of(&principal);
                self.met.note(match run {
                    outlast_core::delivery::TurnRun::Open(_) => "an event began a turn of the open run",
                    outlast_core::delivery::TurnRun::New => "an event began a new run",
                });
                if !self.begin_turn(state, person) {
                    state.broken = Some(ONE_TURN);
                }
                self.put(state, task, person);
                state.workers[number].step = next;
            }
            HandOver::Show => {
                self.met.note("a cancelled task was shown");
                self.acknowledge(state, number, task);
            }
            HandOver::StayQueued { .. } => {
                self.met.note("a claimed event had to stay queued");
                give_back(state, Event::Pending);
            }
            HandOver::Discard { reason } => {
                self.met.note(match reason {
                    outlast_core::delivery::DiscardReason::AlreadyRead => "what was read was discarded",
                    outlast_core::delivery::DiscardReason::GenerationClosed => {
                        "a closed generation was discarded"
                    }
                    _ => "an event was discarded",
                });
                give_back(state, Event::Discarded);
                // Nobody is told of it any more; where the run has read it, that stays.
                let _ = self.learn(state, task, News::Told(ToldBy::Stop));
            }
            HandOver::NotYours => {
                self.met.note("a worker woke up without its claim");
                if self.bug == Some(Bug::GivesBackWithoutToken) {
                    give_back(state, Event::Pending);
                }
                state.workers[number].step = Step::Idle;
            }
        }
    }

    fn acknowledge(&self, state: &mut State, number: usize, task: usize) {
        let token = facts::token(number, state.workers[number].life);
        let Some(event) = self.event(state, task) else { return };
        let holds = OwnerHolds { event: event.id.clone() };
        let answer = match self.bug {
            Some(Bug::AcknowledgesWithoutToken) => Acknowledge::Now,
            _ => acknowledge(&event, &token, &holds),
        };
        match answer {
            Acknowledge::Now => {
                state.tasks[task].event = Event::Acknowledged;
                // A cancelled task whose output is pending was shown all the same.
                let _ = self.learn(state, task, News::Told(ToldBy::Event));
            }
            Acknowledge::Already => self.met.note("an event was acknowledged twice"),
            Acknowledge::Stale => self.met.note("a stale acknowledgement was dropped"),
        }
        let hands_over_next = self.bug == Some(Bug::AcknowledgesBeforeHandingOver) && event.kind.wakes();
        state.workers[number].step = if hands_over_next { Step::Start(task) } else { Step::Idle };
    }

    fn stop(&self, state: &mut State, target: StopTarget) {
        let call = StopCall {
            id: facts::stop_id("s"),
            tenant: facts::tenant(),
            conversation: facts::conversation(),
            generation: Generation(u64::from(state.generation)),
            target,
        };
        let StopAnswer::Accepted { generation } = stops::accept(&call, call.generation) else { return };
        for task in [0, 1] {
            if let Hit::Yes(stop) = stops::hits(&call, self.facts(state, task), NOW) {
                let _ = self.learn(state, task, News::Stop(stop));
            }
        }
        state.generation = u8::try_from(generation.0).unwrap_or(u8::MAX);
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::End(task) => {
                let facts = self.facts(state, task);
                let (exit, cause) = (Exit::Exited { code: 0 }, Cause::OwnEnd);
                let receipt = facts::receipt(Attempt::FIRST, &facts.owner, exit, cause);
                let _ = self.learn(state, task, News::Receipt(receipt));
                if self.bug == Some(Bug::EventInSecondTransaction) {
                    state.inserting = Some(task);
                } else if owed_event(self.facts(state, task)).is_some() {
                    state.tasks[task].event = Event::Pending;
                }
            }
            Action::Insert => {
                if let Some(task) = state.inserting.take() {
                    state.tasks[task].event = Event::Pending;
                }
            }
            Action::Commit(task) => {
                let _ = self.learn(state, task, News::Committed(Cursor(1)));
            }
            Action::Claim(worker, task) => {
                if let Event::Claimed { .. } = state.tasks[task].event {
                    self.met.note("a lapsed claim was taken over");
                }
                let life = state.workers[worker].life;
                state.tasks[task].event = Event::Claimed { worker, life, lapsed: false };
                state.workers[worker].step = match self.bug {
                    Some(Bug::AcknowledgesBeforeHandingOver) => Step::Acknowledge(task),
                    _ => Step::HandOver(task),
                };
            }
            Action::HandOver(worker) => match state.workers[worker].step {
                Step::HandOver(task) => self.hand_over(state, worker, task),
                // With a bug: what was seen a step ago is done unseen.
                Step::Start(task) => {
                    state.runs[self.owners[task]] = Run::Turn;
                    self.put(state, task, self.owners[task]);
                    state.workers[worker].step = match self.bug {
                        Some(Bug::LooksThenStarts) => Step::Acknowledge(task),
                        _ => Step::Idle,
                    };
                }
                Step::Idle | Step::Acknowledge(_) => {}
            },
            Action::Acknowledge(worker) => {
                if let Step::Acknowledge(task) = state.workers[worker].step {
                    self.acknowledge(state, worker, task);
                }
            }
            Action::Lapse(task) => {
                if let Event::Claimed { lapsed, .. } = &mut state.tasks[task].event {
                    *lapsed = true;
                }
            }
            Action::Crash(worker) => {
                if let Step::Acknowledge(_) = state.workers[worker].step {
                    self.met.note("a worker died between handing over and acknowledging");
                }
                state.crashes += 1;
                state.inserting = None;
                state.workers[worker] = Worker { life: state.workers[worker].life + 1, step: Step::Idle };
            }
            Action::Process(task) => {
                if let Input::Queued(person) = state.tasks[task].input {
                    state.tasks[task].input = Input::Processed(person);
                    state.tasks[task].processed += 1;
                }
            }
            Action::EndTurn(person) => state.runs[person] = Run::Suspended,
            Action::Die(person) => {
                state.deaths += 1;
                state.runs[person] = Run::Over;
            }
            Action::Write(person) => {
                state.messages += 1;
                state.message_of = Some(person);
            }
            Action::TakeMessage => {
                if let Some(person) = state.message_of.take() {
                    state.stopped[person] = false;
                    if !self.begin_turn(state, person) {
                        state.broken = Some(ONE_TURN);
                    }
                }
            }
            Action::Read(task) => {
                let _ = self.learn(state, task, News::Told(ToldBy::Read));
            }
            Action::StopTask(task) => {
                state.stops += 1;
                self.stop(state, StopTarget::Task { task: facts::task_id(task) });
            }
            Action::StopRun(person) => {
                state.stops += 1;
                self.stop(state, StopTarget::Run { run: facts::run_of(person) });
                state.runs[person] = Run::Over;
                state.stopped[person] = true;
            }
            Action::StopAll => {
                state.stops += 1;
                self.stop(state, StopTarget::All);
                state.runs = [Run::Over; 2];
            }
        }
    }

    /// What is left over when the system has nothing to do by itself.
    fn is_lost(&self, state: &State, task: usize) -> bool {
        let known = state.tasks[task].known;
        match state.tasks[task].event {
            Event::None => known.ended,
            Event::Pending | Event::Claimed { lapsed: true, .. } => !state.stopped[self.owners[task]],
            Event::Claimed { lapsed: false, .. } => true,
            Event::Acknowledged | Event::Discarded => false,
        }
    }
}

/// Where a task ended, its event is there.
pub const OWED: &str = "every end has its event";
/// What is acknowledged is in its owner's input, unless it was only shown.
pub const HELD: &str = "what is acknowledged is held";
/// No event is processed twice.
pub const ONCE: &str = "an event is processed at most once";
/// An event reaches the runs of its own person alone.
pub const OWN_PERSON: &str = "an event reaches its own person";
/// At most one turn executes.
pub const ONE_TURN: &str = "one turn at a time";
/// Nothing of a closed generation is announced.
pub const CLOSED_GENERATION: &str = "a closed generation stays closed";
/// Nothing that the run has read is announced.
pub const ALREADY_READ: &str = "what was read is not announced";
/// Nobody who stopped their run is woken before they write.
pub const STOPPED_RUN: &str = "a stopped run is not woken";
/// What is acknowledged or discarded stays so.
pub const FINAL: &str = "a final event stays so";
/// When there is nothing left to do, every event was acknowledged, discarded, or waits for a person.
pub const NOTHING_LOST: &str = "nothing is lost";

fn is_not_broken(state: &State, rule: &str) -> bool {
    state.broken != Some(rule)
}

impl Model for Delivery {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let known = Known { ended: false, committed: false, stop: None, told: None };
        let task = Task { known, event: Event::None, input: Input::None, processed: 0 };
        vec![State {
            tasks: [task.clone(), task],
            runs: [Run::Suspended; 2],
            stopped: [false; 2],
            message_of: None,
            generation: 0,
            workers: [Worker { life: 0, step: Step::Idle }; 2],
            inserting: None,
            crashes: 0,
            deaths: 0,
            messages: 0,
            stops: 0,
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
        for (before, after) in last.tasks.iter().zip(&state.tasks) {
            if before.event.is_final() && after.event != before.event {
                state.broken = Some(FINAL);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OWED, |_, state: &State| {
                state.tasks.iter().all(|task| !task.known.ended || task.event != Event::None)
            }),
            Property::always(HELD, |model: &Delivery, state: &State| {
                (0..2).all(|index| {
                    let task = &state.tasks[index];
                    let shown = owed(model.facts(state, index)).is_some_and(|kind| !kind.wakes());
                    task.event != Event::Acknowledged || task.input != Input::None || shown
                })
            }),
            Property::always(ONCE, |_, state: &State| state.tasks.iter().all(|task| task.processed <= 1)),
            Property::always(ONE_TURN, |_, state: &State| {
                is_not_broken(state, ONE_TURN) && state.runs != [Run::Turn; 2]
            }),
            Property::always(OWN_PERSON, |_, state| is_not_broken(state, OWN_PERSON)),
            Property::always(CLOSED_GENERATION, |_, state| is_not_broken(state, CLOSED_GENERATION)),
            Property::always(ALREADY_READ, |_, state| is_not_broken(state, ALREADY_READ)),
            Property::always(STOPPED_RUN, |_, state| is_not_broken(state, STOPPED_RUN)),
            Property::always(FINAL, |_, state| is_not_broken(state, FINAL)),
            Property::always(NOTHING_LOST, |model: &Delivery, state: &State| {
                let mut actions = Vec::new();
                model.system_actions(state, &mut actions);
                !actions.is_empty() || (0..2).all(|task| !model.is_lost(state, task))
            }),
        ]
    }
}
