//! Events: what a run is owed, and how it comes to its owner once, whatever crashes.
//!
//! An event is inserted in the transaction that commits what it tells of ([`owed`]). A worker claims it for a time
//! ([`may_claim`]), commits that, looks whether it is still owed and to whom ([`may_hand_over`]), hands it over, and commits the
//! acknowledgement once the owner's durable input holds it ([`acknowledge`]). A crash anywhere between sends it again; its
//! stable id lets the owner tell the repeat.

use crate::exit::Cause;
use crate::id::{
    ClaimToken, ConversationId, EventId, Generation, PrincipalId, RunId, SandboxGeneration, TenantId,
    Transition,
};
use crate::spec::JobKind;
use crate::task::{Ended, HandOff, Owner, ResultState, StopBy, TaskFacts};
use crate::time::{Millis, UnixMicros};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// What an event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The task is over.
    Finished,
    /// It is over because its deadline passed.
    Deadline,
    /// It is over after a person stopped it. It is shown, and ends a wait on the task; it wakes nobody.
    Cancelled,
}

impl EventKind {
    /// Whether a model is told.
    #[must_use]
    pub fn wakes(self) -> bool {
        match self {
            EventKind::Finished | EventKind::Deadline => true,
            EventKind::Cancelled => false,
        }
    }
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EventFacts {
    /// Its stable id.
    pub id: EventId,
    /// What it tells.
    pub kind: EventKind,
    /// Who is owed it: as its task's.
    pub owner: Owner,
    /// How far it has come.
    pub state: EventState,
}

/// How far an event has come. The last two are final.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventState {
    /// Nobody has it.
    Pending,
    /// A worker is handing it over.
    Claimed {
        /// What that worker holds.
        token: ClaimToken,
        /// After this another may claim it.
        until: UnixMicros,
    },
    /// The owner holds it.
    Acknowledged,
    /// It will not be handed over.
    Discarded {
        /// Why.
        reason: DiscardReason,
    },
}

/// Why an event is not handed over any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscardReason {
    /// Its generation was closed by a stop-all.
    GenerationClosed,
    /// Its person may not see the conversation any more.
    AccessGone,
    /// The run has the result already.
    AlreadyRead,
    /// It comes from an incarnation of a sandbox that the conversation has no record of.
    UnknownSandbox,
}

/// Whether an event may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum MayClaim {
    /// Yes, until then.
    Yes {
        /// The end of the lease.
        until: UnixMicros,
    },
    /// Another worker has it until then.
    Held {
        /// The end of its lease.
        until: UnixMicros,
    },
    /// Its result is not readable yet.
    ResultPending,
    /// It needs nobody any more.
    Over,
}

/// What to do with an event that a worker has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum HandOver {
    /// Put it into the input of this run, which is active.
    Steer(RunId),
    /// Start a turn with it, as its person.
    NewTurn {
        /// Whose turn it is.
        principal: PrincipalId,
        /// In which run.
        run: TurnRun,
    },
    /// Show it, and end waits on its task, without a model call; then acknowledge it.
    Show,
    /// Give the claim back and let it lie.
    StayQueued {
        /// What has to change first.
        why: Queued,
    },
    /// Discard it.
    Discard {
        /// Why.
        reason: DiscardReason,
    },
    /// The claim is another's by now, or the event is over: do nothing.
    NotYours,
}

/// In which run a turn is started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TurnRun {
    /// In the one the person has open.
    Open(RunId),
    /// In a new one: the one that owned the event is over.
    New,
}

/// Why an event stays queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queued {
    /// Another person's run is active.
    OtherRunActive,
    /// An approval is open.
    ApprovalOpen,
    /// People's messages go first.
    MessagesFirst,
    /// The active run's input is full.
    InputFull,
    /// Its person stopped their run: it waits for that person's next message.
    RunStopped,
    /// Its person's run is sealed, and takes nothing in any more.
    RunSealed,
    /// Its result is not readable yet.
    ResultPending,
}

/// What is known of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConversationFacts {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub conversation: ConversationId,
    /// Raised by each stop-all: what began under an earlier one is closed.
    pub generation: Generation,
    /// The incarnations of sandboxes that it has a record of.
    pub sandboxes: BTreeSet<SandboxGeneration>,
    /// Who may not see it any more.
    pub access_gone: BTreeSet<PrincipalId>,
    /// Who stopped their run and has not spoken since.
    pub stopped: BTreeSet<PrincipalId>,
    /// Whether people's messages wait to be taken up.
    pub messages: bool,
    /// Who has a run open. One for each person; [`ConversationFacts::open`] lets one be active at most.
    runs: BTreeMap<PrincipalId, OpenRun>,
}

/// A person's open run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenRun {
    /// Which.
    pub run: RunId,
    /// How it stands.
    pub standing: Standing,
}

/// How an open run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Standing {
    /// It executes a turn.
    Turn {
        /// Whether its input takes nothing more for now.
        input_full: bool,
    },
    /// It waits for a person's approval, and is active while it does.
    Approval,
    /// It has open tasks, and no turn.
    Suspended,
    /// It is sealed, and takes nothing in any more.
    Sealed,
}

impl Standing {
    /// Whether a run that stands so occupies its conversation.
    #[must_use]
    pub fn is_active(self) -> bool {
        match self {
            Standing::Turn { .. } | Standing::Approval => true,
            Standing::Suspended | Standing::Sealed => false,
        }
    }
}

/// Why a run cannot be opened, or cannot be active.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Busy {
    /// Another run is active.
    #[error("run {0} is active")]
    Active(RunId),
    /// This person has another run open.
    #[error("run {0} of this person is open")]
    Open(RunId),
    /// The run is sealed.
    #[error("run {0} is sealed")]
    Sealed(RunId),
}

impl ConversationFacts {
    /// A conversation in which nothing has happened.
    #[must_use]
    pub fn new(tenant: TenantId, conversation: ConversationId, generation: Generation) -> ConversationFacts {
        ConversationFacts {
            tenant,
            conversation,
            generation,
            sandboxes: BTreeSet::new(),
            access_gone: BTreeSet::new(),
            stopped: BTreeSet::new(),
            messages: false,
            runs: BTreeMap::new(),
        }
    }

    /// The run that is active, and whose it is.
    #[must_use]
    pub fn active(&self) -> Option<(&PrincipalId, &OpenRun)> {
        self.runs.iter().find(|(_, open)| open.standing.is_active())
    }

    /// The run that this person has open.
    #[must_use]
    pub fn open_run(&self, principal: &PrincipalId) -> Option<&OpenRun> {
        self.runs.get(principal)
    }

    /// Opens a run, or says how an open one stands from now on. This is the one place where a turn begins: whoever starts
    /// one asks here, and commits the answer in the transaction that read these facts, so of two that race one is told
    /// [`Busy`].
    ///
    /// # Errors
    /// [`Busy`] where another run is active, this person has another one open, or a sealed one would take something in.
    pub fn open(&mut self, principal: PrincipalId, run: RunId, standing: Standing) -> Result<(), Busy> {
        if standing.is_active()
            && let Some((_, active)) = self.active()
            && active.run != run
        {
            return Err(Busy::Active(active.run.clone()));
        }
        match self.runs.get(&principal) {
            Some(open) if open.run != run => return Err(Busy::Open(open.run.clone())),
            Some(open) if open.standing == Standing::Sealed && standing != Standing::Sealed => {
                return Err(Busy::Sealed(run));
            }
            _ => {}
        }
        self.runs.insert(principal, OpenRun { run, standing });
        Ok(())
    }

    /// Notes that a run is over: its outcome is published, or it died.
    pub fn close(&mut self, run: &RunId) {
        self.runs.retain(|_, open| open.run != *run);
    }
}

/// That an event's owner holds it durably. Made by whoever saw that, for the event it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerHolds {
    /// Which event.
    pub event: EventId,
}

/// What an acknowledgement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Acknowledge {
    /// The event is acknowledged now: commit that.
    Now,
    /// It was before: nothing is to be committed.
    Already,
    /// The claim is another's by now, or the event is another or discarded: nothing is to be committed.
    Stale,
}

/// How long a worker may hold an event.
pub const CLAIM_LEASE: Millis = Millis(45_000);

/// The id of the one event that tells of this attempt's end.
#[must_use]
pub fn event_id(facts: &TaskFacts) -> EventId {
    EventId { task: facts.id.clone(), attempt: facts.reserved.attempt, transition: Transition::Ended }
}

/// What event is owed about a task as it stands. To be asked in the transaction that changes its facts: what it answers is
/// inserted in that one, or a crash between two loses it.
///
/// A service owes none, and neither does what the reply carried.
#[must_use]
pub fn owed(facts: &TaskFacts) -> Option<EventKind> {
    let HandOff::HandedOff { .. } = facts.hand_off else { return None };
    if facts.reserved.kind == JobKind::Service {
        return None;
    }
    let ended = facts.ended()?;
    if facts.stopped_by_a_person().is_some() {
        return Some(EventKind::Cancelled);
    }
    let by_deadline = match ended {
        // The receipt knows better than whoever wanted to stop it: it may have ended by itself just before.
        Ended::Receipt(receipt) => matches!(receipt.cause, Cause::Deadline { .. }),
        Ended::NotStarted(_) | Ended::SandboxDestroyed(_) => {
            facts.stop.as_ref().is_some_and(|stop| stop.by == StopBy::Deadline)
        }
    };
    Some(if by_deadline { EventKind::Deadline } else { EventKind::Finished })
}

/// The event that is owed about a task as it stands, to be inserted where its id is not there yet.
#[must_use]
pub fn owed_event(facts: &TaskFacts) -> Option<EventFacts> {
    owed(facts).map(|kind| EventFacts {
        id: event_id(facts),
        kind,
        owner: facts.owner.clone(),
        state: EventState::Pending,
    })
}

/// Whether an event may be claimed. An end that is only shown need not wait for its output.
pub fn may_claim(event: &EventFacts, result: &ResultState, now: UnixMicros) -> MayClaim {
    match event.state {
        EventState::Acknowledged | EventState::Discarded { .. } => MayClaim::Over,
        EventState::Claimed { until, .. } if now < until => MayClaim::Held { until },
        EventState::Pending | EventState::Claimed { .. } => {
            if event.kind.wakes() && *result == ResultState::Pending {
                MayClaim::ResultPending
            } else {
                MayClaim::Yes { until: now.plus(CLAIM_LEASE) }
            }
        }
    }
}

/// Says what to do with an event that a worker holds under `token`: asked after its claim was committed, and again in the
/// transaction that hands it over.
pub fn may_hand_over(
    event: &EventFacts,
    token: &ClaimToken,
    result: &ResultState,
    conversation: &ConversationFacts,
    now: UnixMicros,
) -> HandOver {
    let owner = &event.owner;
    let is_held =
        matches!(&event.state, EventState::Claimed { token: held, until } if held == token && now < *until);
    let is_here = owner.tenant == conversation.tenant && owner.conversation == conversation.conversation;
    if !is_held || !is_here {
        return HandOver::NotYours;
    }
    let discard = |reason| HandOver::Discard { reason };
    if conversation.access_gone.contains(&owner.principal) {
        return discard(DiscardReason::AccessGone);
    }
    if !conversation.sandboxes.contains(&owner.sandbox_generation) {
        return discard(DiscardReason::UnknownSandbox);
    }
    if owner.generation < conversation.generation {
        return discard(DiscardReason::GenerationClosed);
    }
    if matches!(result, ResultState::Delivered { .. }) {
        return discard(DiscardReason::AlreadyRead);
    }
    if !event.kind.wakes() {
        return HandOver::Show;
    }
    match recipient(owner, conversation, result) {
        Ok(hand_over) => hand_over,
        Err(why) => HandOver::StayQueued { why },
    }
}

/// Who takes an event in that wakes somebody. The run that started the task where it is open; where it is over, the one that
/// its person has open by now, else a new one. Never anybody else's.
fn recipient(
    owner: &Owner,
    conversation: &ConversationFacts,
    result: &ResultState,
) -> Result<HandOver, Queued> {
    let principal = &owner.principal;
    if *result == ResultState::Pending {
        return Err(Queued::ResultPending);
    }
    if conversation.stopped.contains(principal) {
        return Err(Queued::RunStopped);
    }
    if let Some((whose, active)) = conversation.active() {
        return match active.standing {
            Standing::Approval => Err(Queued::ApprovalOpen),
            _ if whose != principal => Err(Queued::OtherRunActive),
            Standing::Turn { input_full: true } => Err(Queued::InputFull),
            _ => Ok(HandOver::Steer(active.run.clone())),
        };
    }
    if conversation.messages {
        return Err(Queued::MessagesFirst);
    }
    let run = match conversation.open_run(principal) {
        Some(OpenRun { standing: Standing::Sealed, .. }) => return Err(Queued::RunSealed),
        Some(open) => TurnRun::Open(open.run.clone()),
        None => TurnRun::New,
    };
    Ok(HandOver::NewTurn { principal: principal.clone(), run })
}

/// Takes an acknowledgement. A claim that lapsed and that nobody took still counts: its owner holds the event.
pub fn acknowledge(event: &EventFacts, token: &ClaimToken, holds: &OwnerHolds) -> Acknowledge {
    match &event.state {
        _ if holds.event != event.id => Acknowledge::Stale,
        EventState::Acknowledged => Acknowledge::Already,
        EventState::Claimed { token: held, .. } if held == token => Acknowledge::Now,
        EventState::Pending | EventState::Claimed { .. } | EventState::Discarded { .. } => Acknowledge::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::task::samples::*;
    use crate::task::{
        DeliveredBy, HandOffWhy, Learned, News, NoStart, ToldBy, Unavailable, UnavailableWhy, result_state,
    };
    use proptest::prelude::*;

    const NOW: UnixMicros = UnixMicros(50);

    fn token(text: &str) -> ClaimToken {
        ClaimToken::new(text).unwrap()
    }

    fn person(name: &str) -> PrincipalId {
        PrincipalId::new(name).unwrap()
    }

    fn run_of(name: &str) -> RunId {
        RunId::new(format!("{name}'s")).unwrap()
    }

    fn claimed(by: &str) -> EventState {
        EventState::Claimed { token: token(by), until: UnixMicros(100) }
    }

    fn event(kind: EventKind, state: EventState) -> EventFacts {
        let id = event_id(&reserved(JobKind::Command));
        EventFacts { id, kind, owner: owner(), state }
    }

    fn conversation() -> ConversationFacts {
        let Owner { tenant, conversation, generation, sandbox_generation, .. } = owner();
        let mut facts = ConversationFacts::new(tenant, conversation, generation);
        facts.sandboxes.insert(sandbox_generation);
        facts
    }

    fn with(name: &str, standing: Standing) -> ConversationFacts {
        let mut facts = conversation();
        facts.open(person(name), run_of(name), standing).unwrap();
        facts
    }

    const TURN: Standing = Standing::Turn { input_full: false };

    #[test]
    fn what_is_owed() {
        let off = || News::HandedOff(HandOffWhy::Cutover);
        let running = || running(JobKind::Command);
        let killed =
            |cause| News::Receipt(receipt(Exit::Signaled { signal: 15, core_dumped: false }, cause, 0));
        let deadline = || killed(Cause::Deadline { after_ms: 1 });
        let finished = Some(EventKind::Finished);
        for (news, expected) in [
            (vec![], None),
            (vec![off()], None),
            (vec![exited(0, 0)], None),
            (vec![exited(0, 0), News::Carried], None),
            (vec![off(), attested()], None),
            (vec![off(), exited(0, 0)], finished),
            (vec![exited(0, 9), off()], finished),
            (vec![off(), destroyed()], finished),
            (vec![off(), deadline()], Some(EventKind::Deadline)),
            (vec![off(), stop("s", StopBy::Deadline), deadline()], Some(EventKind::Deadline)),
            (vec![off(), stop("s", StopBy::Deadline), exited(0, 0)], finished),
            (vec![off(), stop("s", StopBy::Deadline), destroyed()], Some(EventKind::Deadline)),
            (vec![off(), stop("s", StopBy::System), killed(Cause::Stop { id: "s".into() })], finished),
            (vec![off(), stop("s", StopBy::Person), exited(0, 0)], Some(EventKind::Cancelled)),
            (vec![off(), stop("s", StopBy::StopAll), deadline()], Some(EventKind::Cancelled)),
            (
                vec![off(), stop("d", StopBy::Deadline), stop("s", StopBy::Run), deadline()],
                Some(EventKind::Cancelled),
            ),
        ] {
            let facts = after(running(), news.clone());
            assert_eq!(owed(&facts), expected, "{news:?}");
        }
        let service = after(super::super::task::samples::running(JobKind::Service), [off(), exited(1, 0)]);
        assert_eq!(owed(&service), None);
        let refused = News::NotStarted { why: NoStart::Refused { code: "LIMIT".into() } };
        assert_eq!(owed(&after(reserved(JobKind::Command), [off(), ASKED, refused])), finished);
    }

    #[test]
    fn what_may_be_claimed() {
        let (readable, pending) = (ResultState::Readable, ResultState::Pending);
        let lost = ResultState::Unavailable {
            missing: Unavailable { from: crate::id::Cursor(0), why: UnavailableWhy::Removed },
        };
        let yes = MayClaim::Yes { until: NOW.plus(CLAIM_LEASE) };
        let until = UnixMicros(100);
        let gone = EventState::Discarded { reason: DiscardReason::AccessGone };
        for (kind, state, result, now, expected) in [
            (EventKind::Finished, EventState::Pending, &readable, NOW, yes),
            (EventKind::Finished, EventState::Pending, &lost, NOW, yes),
            (EventKind::Finished, EventState::Pending, &pending, NOW, MayClaim::ResultPending),
            (EventKind::Cancelled, EventState::Pending, &pending, NOW, yes),
            (EventKind::Finished, claimed("a"), &readable, NOW, MayClaim::Held { until }),
            (
                EventKind::Finished,
                claimed("a"),
                &readable,
                until,
                MayClaim::Yes { until: until.plus(CLAIM_LEASE) },
            ),
            (EventKind::Finished, EventState::Acknowledged, &readable, NOW, MayClaim::Over),
            (EventKind::Finished, gone, &readable, NOW, MayClaim::Over),
        ] {
            assert_eq!(may_claim(&event(kind, state.clone()), result, now), expected, "{kind:?} {state:?}");
        }
    }

    fn hand_over(facts: &ConversationFacts) -> HandOver {
        let event = event(EventKind::Finished, claimed("a"));
        may_hand_over(&event, &token("a"), &ResultState::Readable, facts, NOW)
    }

    fn queued(why: Queued) -> HandOver {
        HandOver::StayQueued { why }
    }

    fn new_turn(run: TurnRun) -> HandOver {
        HandOver::NewTurn { principal: person("ann"), run }
    }

    #[test]
    fn where_an_event_goes() {
        let full = Standing::Turn { input_full: true };
        let sealed = Standing::Sealed;
        for (facts, expected) in [
            (with("ann", TURN), HandOver::Steer(run_of("ann"))),
            (with("ann", full), queued(Queued::InputFull)),
            (with("ann", Standing::Approval), queued(Queued::ApprovalOpen)),
            (with("ann", Standing::Suspended), new_turn(TurnRun::Open(run_of("ann")))),
            (with("ann", sealed), queued(Queued::RunSealed)),
            (with("bob", TURN), queued(Queued::OtherRunActive)),
            (with("bob", Standing::Approval), queued(Queued::ApprovalOpen)),
            (with("bob", Standing::Suspended), new_turn(TurnRun::New)),
            (with("bob", sealed), new_turn(TurnRun::New)),
            (conversation(), new_turn(TurnRun::New)),
        ] {
            assert_eq!(hand_over(&facts), expected, "{facts:?}");
            let messages = ConversationFacts { messages: true, ..facts.clone() };
            let waits = !matches!(expected, HandOver::NewTurn { .. });
            let first = if waits && expected != queued(Queued::RunSealed) {
                expected
            } else {
                queued(Queued::MessagesFirst)
            };
            assert_eq!(hand_over(&messages), first, "people's messages go first: {messages:?}");
            let stopped = ConversationFacts { stopped: [person("ann")].into(), ..facts.clone() };
            assert_eq!(hand_over(&stopped), queued(Queued::RunStopped), "{facts:?}");
            let other_stopped = ConversationFacts { stopped: [person("bob")].into(), ..facts.clone() };
            assert_eq!(hand_over(&other_stopped), hand_over(&facts));
            for (closed, reason) in [
                (
                    ConversationFacts { access_gone: [person("ann")].into(), ..facts.clone() },
                    DiscardReason::AccessGone,
                ),
                (ConversationFacts { sandboxes: [].into(), ..facts.clone() }, DiscardReason::UnknownSandbox),
                (
                    ConversationFacts { generation: Generation(4), ..facts.clone() },
                    DiscardReason::GenerationClosed,
                ),
            ] {
                assert_eq!(hand_over(&closed), HandOver::Discard { reason }, "{closed:?}");
            }
        }
        // Her run died, and she has begun another.
        let mut later = conversation();
        later.open(person("ann"), RunId::new("later").unwrap(), TURN).unwrap();
        assert_eq!(hand_over(&later), HandOver::Steer(RunId::new("later").unwrap()));
    }

    #[test]
    fn what_is_not_announced() {
        let idle = with("ann", Standing::Suspended);
        let ask = |event: &EventFacts, by: &str, result: &ResultState, facts: &ConversationFacts, now| {
            may_hand_over(event, &token(by), result, facts, now)
        };
        let finished = event(EventKind::Finished, claimed("a"));
        for by in [DeliveredBy::Read, DeliveredBy::Reply, DeliveredBy::Stop] {
            let read = ResultState::Delivered { by, missing: None };
            let expected = HandOver::Discard { reason: DiscardReason::AlreadyRead };
            assert_eq!(ask(&finished, "a", &read, &idle, NOW), expected);
        }
        assert_eq!(ask(&finished, "a", &ResultState::Pending, &idle, NOW), queued(Queued::ResultPending));
        let readable = ResultState::Readable;
        assert_eq!(ask(&finished, "b", &readable, &idle, NOW), HandOver::NotYours, "another's claim");
        assert_eq!(ask(&finished, "a", &readable, &idle, UnixMicros(100)), HandOver::NotYours, "it lapsed");
        for state in [EventState::Pending, EventState::Acknowledged] {
            let event = event(EventKind::Finished, state);
            assert_eq!(ask(&event, "a", &readable, &idle, NOW), HandOver::NotYours);
        }
        let elsewhere = ConversationFacts { conversation: ConversationId::new("d").unwrap(), ..idle.clone() };
        assert_eq!(ask(&finished, "a", &readable, &elsewhere, NOW), HandOver::NotYours);
        let cancelled = event(EventKind::Cancelled, claimed("a"));
        for facts in [idle, with("bob", TURN), with("ann", Standing::Approval)] {
            assert_eq!(ask(&cancelled, "a", &ResultState::Pending, &facts, NOW), HandOver::Show);
        }
    }

    #[test]
    fn a_deadline_reports_like_any_end() {
        let event = event(EventKind::Deadline, claimed("a"));
        let facts = with("ann", Standing::Suspended);
        let hand_over = may_hand_over(&event, &token("a"), &ResultState::Readable, &facts, NOW);
        assert_eq!(hand_over, new_turn(TurnRun::Open(run_of("ann"))));
    }

    #[test]
    fn acknowledgements() {
        let holds = |event: &EventFacts| OwnerHolds { event: event.id.clone() };
        let gone = EventState::Discarded { reason: DiscardReason::AlreadyRead };
        for (state, by, expected) in [
            (claimed("a"), "a", Acknowledge::Now),
            (claimed("b"), "a", Acknowledge::Stale),
            (EventState::Pending, "a", Acknowledge::Stale),
            (EventState::Acknowledged, "a", Acknowledge::Already),
            (EventState::Acknowledged, "b", Acknowledge::Already),
            (gone, "a", Acknowledge::Stale),
        ] {
            let event = event(EventKind::Finished, state.clone());
            assert_eq!(acknowledge(&event, &token(by), &holds(&event)), expected, "{state:?} {by}");
            let mut other = holds(&event);
            other.event.attempt = other.event.attempt.next();
            assert_eq!(acknowledge(&event, &token(by), &other), Acknowledge::Stale);
        }
    }

    #[test]
    fn a_conversation_has_one_active_run_and_one_open_run_per_person() {
        let mut facts = with("ann", TURN);
        let second = RunId::new("second").unwrap();
        assert_eq!(facts.open(person("bob"), run_of("bob"), TURN), Err(Busy::Active(run_of("ann"))));
        assert_eq!(
            facts.open(person("ann"), second.clone(), Standing::Suspended),
            Err(Busy::Open(run_of("ann")))
        );
        assert_eq!(facts.open(person("ann"), run_of("ann"), Standing::Approval), Ok(()));
        assert_eq!(facts.open(person("bob"), run_of("bob"), TURN), Err(Busy::Active(run_of("ann"))));
        assert_eq!(facts.open(person("ann"), run_of("ann"), Standing::Suspended), Ok(()));
        assert_eq!(facts.open(person("bob"), run_of("bob"), TURN), Ok(()));
        assert_eq!(facts.open(person("ann"), run_of("ann"), Standing::Sealed), Ok(()));
        facts.close(&run_of("bob"));
        assert_eq!(facts.open(person("ann"), run_of("ann"), TURN), Err(Busy::Sealed(run_of("ann"))));
        facts.close(&run_of("ann"));
        assert_eq!(facts.open(person("ann"), second, TURN), Ok(()));
    }

    fn any_standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            any::<bool>().prop_map(|input_full| Standing::Turn { input_full }),
            Just(Standing::Approval),
            Just(Standing::Suspended),
            Just(Standing::Sealed),
        ]
    }

    prop_compose! {
        fn any_conversation()(
            runs in prop::collection::vec(("ann|bob|cem", any_standing()), 0..4),
            stopped in prop::collection::btree_set("ann|bob", 0..2),
            gone in prop::collection::btree_set("ann|bob|cem", 0..2),
            generation in 3u64..5, messages: bool, sandbox in 6u64..8,
        ) -> ConversationFacts {
            let mut facts = conversation();
            for (name, standing) in runs {
                let _ = facts.open(person(&name), run_of(&name), standing);
            }
            facts.stopped = stopped.iter().map(|name| person(name)).collect();
            facts.access_gone = gone.iter().map(|name| person(name)).collect();
            facts.generation = Generation(generation);
            facts.messages = messages;
            facts.sandboxes = [SandboxGeneration(sandbox)].into();
            facts
        }
    }

    proptest! {
        /// Whatever becomes known in whatever order: a command that is handed off and over has one event of one kind, and
        /// nothing else has any.
        #[test]
        fn one_terminal_event(
            service: bool,
            steps in prop::collection::vec((any_news(), 0u64..9), 0..40),
        ) {
            let kind = if service { JobKind::Service } else { JobKind::Command };
            let (mut facts, mut now) = (reserved(kind), 0);
            let mut events = BTreeMap::new();
            for (news, pause) in steps {
                now += pause;
                let _ = facts.learn(news, UnixMicros(now));
                if let Some(event) = owed_event(&facts) {
                    prop_assert_eq!(&event.owner, &facts.owner);
                    let known = events.entry(event.id).or_insert(event.kind);
                    prop_assert_eq!(*known, event.kind, "what it tells never changes");
                }
            }
            let handed_off = matches!(facts.hand_off, HandOff::HandedOff { .. });
            let expected = usize::from(handed_off && !service && facts.ended().is_some());
            prop_assert_eq!(events.len(), expected);
            if let Some(kind) = events.values().next() {
                let cancelled = facts.stopped_by_a_person().is_some();
                prop_assert_eq!(*kind == EventKind::Cancelled, cancelled);
            }
        }

        /// Whatever a conversation looks like: an event reaches its own person's run or nobody, interrupts nobody, and starts
        /// no turn that the conversation would refuse.
        #[test]
        fn no_event_reaches_another(facts in any_conversation(), kind in prop_oneof![
            Just(EventKind::Finished), Just(EventKind::Deadline), Just(EventKind::Cancelled),
        ]) {
            let event = event(kind, claimed("a"));
            let ann = person("ann");
            match may_hand_over(&event, &token("a"), &ResultState::Readable, &facts, NOW) {
                HandOver::Steer(run) => {
                    let (whose, active) = facts.active().unwrap();
                    prop_assert_eq!((whose, &active.run), (&ann, &run));
                    prop_assert_ne!(active.standing, Standing::Approval);
                }
                HandOver::NewTurn { principal, run } => {
                    prop_assert_eq!(&principal, &ann);
                    prop_assert!(facts.active().is_none() && !facts.messages);
                    let run = match run {
                        TurnRun::Open(run) => run,
                        TurnRun::New => RunId::new("new").unwrap(),
                    };
                    let mut first = facts.clone();
                    prop_assert_eq!(first.open(principal.clone(), run.clone(), TURN), Ok(()));
                    let second = first.open(person("dan"), RunId::new("second").unwrap(), TURN);
                    prop_assert_eq!(second, Err(Busy::Active(run)), "two ends start one turn");
                }
                HandOver::Show => prop_assert_eq!(kind, EventKind::Cancelled),
                HandOver::StayQueued { .. } => prop_assert!(kind.wakes()),
                HandOver::Discard { .. } => prop_assert!(
                    facts.access_gone.contains(&ann)
                        || facts.generation > owner().generation
                        || !facts.sandboxes.contains(&owner().sandbox_generation)
                ),
                HandOver::NotYours => prop_assert!(false, "it was claimed"),
            }
        }

        /// Whatever workers do in whatever order: an acknowledged event stays so, a second acknowledgement and one under a
        /// stale token change nothing, and nobody holds an event that another holds.
        #[test]
        fn an_event_is_acknowledged_once(
            steps in prop::collection::vec((0usize..3, "[abc]", 0u64..60_000_000), 0..40),
        ) {
            let mut event = event(EventKind::Finished, EventState::Pending);
            let mut task = after(running(JobKind::Command), [News::HandedOff(HandOffWhy::Cutover), exited(0, 0)]);
            let (mut now, mut acknowledged) = (0, 0);
            for (action, by, pause) in steps {
                now += pause;
                let now = UnixMicros(now);
                let before = event.clone();
                match action {
                    0 => match may_claim(&event, &result_state(&task), now) {
                        MayClaim::Yes { until } => event.state = EventState::Claimed { token: token(&by), until },
                        MayClaim::Held { until } => prop_assert!(now < until),
                        MayClaim::Over => prop_assert_eq!(&event.state, &EventState::Acknowledged),
                        MayClaim::ResultPending => prop_assert!(false),
                    },
                    1 => {
                        let holds = OwnerHolds { event: event.id.clone() };
                        match acknowledge(&event, &token(&by), &holds) {
                            Acknowledge::Now => {
                                event.state = EventState::Acknowledged;
                                prop_assert_eq!(task.learn(News::Told(ToldBy::Event), now), Ok(Learned::Changed));
                                acknowledged += 1;
                            }
                            Acknowledge::Already => prop_assert_eq!(&event.state, &EventState::Acknowledged),
                            Acknowledge::Stale => {
                                let held = matches!(&event.state, EventState::Claimed { token: held, .. } if *held == token(&by));
                                prop_assert!(!held);
                            }
                        }
                    }
                    _ => {
                        let facts = conversation();
                        let hand_over = may_hand_over(&event, &token(&by), &result_state(&task), &facts, now);
                        if hand_over != HandOver::NotYours {
                            let held = matches!(&event.state, EventState::Claimed { token: held, until } if *held == token(&by) && now < *until);
                            prop_assert!(held);
                        }
                    }
                }
                if before.state == EventState::Acknowledged {
                    prop_assert_eq!(&event, &before);
                }
            }
            prop_assert!(acknowledged <= 1);
        }
    }
}
