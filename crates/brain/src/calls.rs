//! What a caller may do: start a command, look at it, read it, stop it, be told of it.
//!
//! Who calls is known already, and everything here stays within that tenant: what is another's is not found.

use crate::output::{OutputError, Piece};
use crate::session::bell_of;
use crate::work::Work;
use crate::{Brain, new_id, now_us, output};
use outlast_core::cutover::{Decision, Mode, OnLimit, Reply, decide, limit};
use outlast_core::id::{Attempt, Cursor, Generation};
use outlast_core::spec::JobKind;
use outlast_core::stops::{StopCall, StopTarget};
use outlast_core::task::{
    News, Refused, ResultState, StopBy, StopFacts, TaskFacts, TaskProjection, ToldBy, project_task,
    result_state,
};
use outlast_core::time::{Millis, UnixMicros};
use outlast_store::StoreError;
use outlast_store::ids::{ConversationId, EventId, PrincipalId, RunId, StopId, TaskId, TenantId};
use outlast_store::tables::events::{Acknowledge, Acknowledged, Event, Owed};
use outlast_store::tables::hands::HandId;
use outlast_store::tables::stops::{Accept, Stopped};
use outlast_store::tables::tasks::{Answer, Find, Learn, List, Reserve, Reserved, Retried, Retry, Task};
use outlast_wire::records::Stream;
use std::time::Duration;
use thiserror::Error;

/// How often somebody who waits looks, whatever bells are rung: another process rings none here.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose.
    pub tenant: TenantId,
    /// Who.
    pub principal: PrincipalId,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Where.
    pub conversation: ConversationId,
    /// Under which run.
    pub run: RunId,
    /// On which hand.
    pub hand: HandId,
    /// The call's identity: the same again finds the same task.
    pub key: String,
    /// The command.
    pub work: Work,
    /// Hand off at once.
    pub background: bool,
    /// What happens where the reply's time is over.
    pub on_limit: OnLimit,
    /// How long the reply can stay open; the shorter of it and the brain's own.
    pub budget: Option<Duration>,
    /// The deadline of the whole work; 0 is none, absent the brain's own.
    pub deadline: Option<Millis>,
}

/// What was not done, and why.
#[derive(Debug, Error)]
pub enum CallError {
    /// There is no such thing for this caller.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The call's identity belongs to another command.
    #[error("this call's key belongs to task {0}, whose command is another")]
    Conflict(TaskId),
    /// The sandbox has as many unsettled tasks as it may have.
    #[error("the sandbox has as many unsettled tasks as it may have; the oldest are {}", .0.iter().map(TaskId::as_str).collect::<Vec<_>>().join(", "))]
    Full(Vec<TaskId>),
    /// The run belongs to a generation that was closed, or is closed.
    #[error(
        "the run is over: everything of its generation was stopped, or it was closed (the generation is {0} now)"
    )]
    Closed(Generation),
    /// The sandbox was given up.
    #[error("the sandbox's incarnation was given up")]
    Retired,
    /// An attempt may not follow yet.
    #[error("the attempt before it is not proved dead")]
    NotProvedDead,
    /// Another attempt is the latest.
    #[error("attempt {0} is the latest")]
    OtherAttempt(Attempt),
    /// It cannot be done to the task as it is.
    #[error("it cannot be done: {0}")]
    Refused(Refused),
    /// The command cannot be written down.
    #[error("the command cannot be written down")]
    Work(#[source] serde_json::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The kernel.
    #[error("the kernel has no random numbers")]
    Random(#[from] std::io::Error),
}

/// How the reply to a start ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// With the result. It is the caller's once that acknowledges it; until then an event is owed all the same.
    Result(Box<Task>),
    /// The task goes on, or its result is still to come, and an event tells.
    HandedOff(Box<Task>),
}

impl Ended {
    /// The task, either way.
    #[must_use]
    pub fn task(&self) -> &Task {
        match self {
            Ended::Result(task) | Ended::HandedOff(task) => task,
        }
    }
}

impl Brain {
    /// Reserves a task for a command, or finds the one of this call, and wakes the worker of its hand.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn start(&self, caller: &Caller, ask: Ask) -> Result<Task, CallError> {
        let now = UnixMicros(now_us());
        let millis = |length: Duration| Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let mode = match ask.background || ask.work.kind == JobKind::Service {
            true => Mode::Background,
            false => Mode::Foreground {
                limit: limit(now, millis(self.settings.cutover), ask.budget.map(millis)),
                on_limit: ask.on_limit,
            },
        };
        let deadline = match (ask.deadline, ask.work.kind) {
            (Some(Millis(0)), _) | (None, JobKind::Service) => None,
            (Some(deadline), _) => Some(deadline),
            (None, JobKind::Command) => Some(self.settings.deadline),
        };
        let reserve = Reserve {
            id: new_id()?,
            tenant: caller.tenant.clone(),
            conversation: ask.conversation,
            run: ask.run,
            principal: caller.principal.clone(),
            hand: ask.hand.clone(),
            key: ask.key,
            digest: ask.work.digest().map_err(CallError::Work)?,
            work: ask.work.document().map_err(CallError::Work)?,
            kind: ask.work.kind,
            mode,
            deadline,
            most_unsettled: self.settings.most_unsettled,
        };
        match self.store.write(reserve).await? {
            Reserved::New(task) => {
                self.bells.ring(&bell_of(&ask.hand));
                Ok(*task)
            }
            Reserved::Existing(task) => Ok(*task),
            Reserved::Conflict(task) => Err(CallError::Conflict(task.id)),
            Reserved::Full(tasks) => Err(CallError::Full(tasks)),
            Reserved::NotFound(what) => Err(CallError::NotFound(what)),
            Reserved::Closed(generation) => Err(CallError::Closed(generation)),
            Reserved::Retired => Err(CallError::Retired),
        }
    }

    /// Waits with an open reply until the task has a result for it, or is handed off.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn until_decided(&self, caller: &Caller, id: &TaskId) -> Result<Ended, CallError> {
        let mut bell = self.bells.listen(id.as_str());
        loop {
            let task = self.task(caller, id).await?;
            let now = UnixMicros(now_us());
            let until = match decide(&task.facts, task.mode, Reply::Open, now) {
                Decision::CarryResult | Decision::Offer => return Ok(Ended::Result(Box::new(task))),
                Decision::HandOff { why } => {
                    return match self.learn(&task, News::HandedOff(why)).await? {
                        Some(task) => Ok(Ended::HandedOff(Box::new(task))),
                        None => continue,
                    };
                }
                Decision::Stop => {
                    let stop = StopFacts { id: new_id::<StopId>()?, by: StopBy::System, at: now };
                    self.learn(&task, News::Stop(stop)).await?;
                    continue;
                }
                Decision::Wait { until } => until,
            };
            let left = Duration::from_micros(until.0.saturating_sub(now.0)).min(LOOK_EVERY);
            tokio::select! {
                () = bell.heard() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Has a task learn what the brain decides by itself. `None` where it was decided otherwise meanwhile.
    async fn learn(&self, task: &Task, news: News) -> Result<Option<Task>, CallError> {
        let attempt = task.facts.reserved.attempt;
        let learn = Learn { claim: None, task: task.id.clone(), attempt, news };
        match self.store.write(learn).await? {
            Answer::Learnt { task, .. } => {
                self.ring(&task);
                Ok(Some(*task))
            }
            Answer::Refused(_) | Answer::OtherAttempt(_) => Ok(None),
            Answer::NotFound => Err(CallError::NotFound("task")),
        }
    }

    fn ring(&self, task: &Task) {
        self.bells.ring(task.id.as_str());
        self.bells.ring(task.facts.owner.conversation.as_str());
        self.bells.ring(&bell_of(&task.hand));
    }

    /// Says that the caller has the result of a reply, or of a read: no event tells it again.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Refused`] where there is no result yet.
    pub async fn take(&self, caller: &Caller, id: &TaskId) -> Result<Task, CallError> {
        let task = self.task(caller, id).await?;
        if task.facts.owner.principal != caller.principal {
            return Err(CallError::NotFound("task"));
        }
        let news = match decide(&task.facts, task.mode, Reply::Taken, UnixMicros(now_us())) {
            Decision::CarryResult => News::Carried,
            _ if matches!(result_state(&task.facts), ResultState::Pending) => {
                return Err(CallError::Refused(Refused::ResultPending));
            }
            _ => News::Told(ToldBy::Read),
        };
        Ok(self.learn(&task, news).await?.unwrap_or(task))
    }

    /// A task of the caller's tenant.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn task(&self, caller: &Caller, id: &TaskId) -> Result<Task, CallError> {
        let find = Find { tenant: caller.tenant.clone(), id: id.clone() };
        self.store.read(find).await?.ok_or(CallError::NotFound("task"))
    }

    /// Waits until a task is over, for so long at most, and tells how it is.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn wait(&self, caller: &Caller, id: &TaskId, within: Duration) -> Result<Task, CallError> {
        let mut bell = self.bells.listen(id.as_str());
        let until = tokio::time::Instant::now() + within;
        loop {
            let task = self.task(caller, id).await?;
            if is_over(&task.facts) || tokio::time::Instant::now() >= until {
                return Ok(task);
            }
            tokio::select! {
                () = bell.heard() => {}
                () = tokio::time::sleep_until(until.min(tokio::time::Instant::now() + LOOK_EVERY)) => {}
            }
        }
    }

    /// The tasks of a conversation.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn tasks(
        &self,
        caller: &Caller,
        conversation: ConversationId,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<Task>, CallError> {
        let list = List { tenant: caller.tenant.clone(), conversation, after, limit };
        Ok(self.store.read(list).await?)
    }

    /// Reads output from a cursor on, and waits for some where there is none yet.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn output(
        &self,
        caller: &Caller,
        id: &TaskId,
        from: Cursor,
        max: usize,
        stream: Option<Stream>,
        within: Duration,
    ) -> Result<(Piece, Task), CallError> {
        let mut bell = self.bells.listen(id.as_str());
        let until = tokio::time::Instant::now() + within;
        loop {
            // Before the log, so that what is said to be over has all of its output in it.
            let task = self.task(caller, id).await?;
            let attempt = task.facts.reserved.attempt;
            let piece = output::read(self, &caller.tenant, id, attempt, from, max, stream).await?;
            if piece.next > from || is_over(&task.facts) || tokio::time::Instant::now() >= until {
                return Ok((piece, task));
            }
            tokio::select! {
                () = bell.heard() => {}
                () = tokio::time::sleep_until(until.min(tokio::time::Instant::now() + LOOK_EVERY)) => {}
            }
        }
    }

    /// Accepts a stop. What it hits is being ended when this returns, not over.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn stop(
        &self,
        caller: &Caller,
        conversation: ConversationId,
        id: StopId,
        generation: Generation,
        target: StopTarget,
    ) -> Result<Stopped, CallError> {
        let call = StopCall {
            id,
            tenant: caller.tenant.clone(),
            conversation: conversation.clone(),
            generation,
            target,
        };
        let accept = Accept { principal: caller.principal.clone(), call };
        let stopped = self.store.write(accept).await?;
        match &stopped {
            Stopped::NotFound => return Err(CallError::NotFound("conversation, run or task")),
            Stopped::Accepted { tasks, .. } => tasks.iter().for_each(|task| self.bells.ring(task.as_str())),
            Stopped::Dropped(_) | Stopped::Nothing => {}
        }
        self.bells.ring(conversation.as_str());
        Ok(stopped)
    }

    /// Reserves the next attempt of a task.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn retry(
        &self,
        caller: &Caller,
        task: &TaskId,
        over: Attempt,
        deadline: Option<Millis>,
    ) -> Result<Task, CallError> {
        let retry = Retry {
            tenant: caller.tenant.clone(),
            task: task.clone(),
            over,
            deadline: deadline.or(Some(self.settings.deadline)).filter(|deadline| deadline.0 > 0),
            most_unsettled: self.settings.most_unsettled,
        };
        match self.store.write(retry).await? {
            Retried::Reserved(task) => {
                self.ring(&task);
                Ok(*task)
            }
            Retried::NotProvedDead => Err(CallError::NotProvedDead),
            Retried::OtherAttempt(attempt) => Err(CallError::OtherAttempt(attempt)),
            Retried::Closed(generation) => Err(CallError::Closed(generation)),
            Retried::Full(tasks) => Err(CallError::Full(tasks)),
            Retried::NotFound => Err(CallError::NotFound("task")),
        }
    }

    /// The events that are owed to the caller; waits for one where there is none, for so long at most.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn events(
        &self,
        caller: &Caller,
        conversation: Option<ConversationId>,
        limit: u32,
        within: Duration,
    ) -> Result<Vec<Event>, CallError> {
        let mut bell = conversation.as_ref().map(|conversation| self.bells.listen(conversation.as_str()));
        let until = tokio::time::Instant::now() + within;
        loop {
            let owed = Owed {
                tenant: caller.tenant.clone(),
                principal: Some(caller.principal.clone()),
                conversation: conversation.clone(),
                run: None,
                limit,
            };
            let events = self.store.read(owed).await?;
            if !events.is_empty() || tokio::time::Instant::now() >= until {
                return Ok(events);
            }
            let heard = async {
                match &mut bell {
                    Some(bell) => bell.heard().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = heard => {}
                () = tokio::time::sleep_until(until.min(tokio::time::Instant::now() + LOOK_EVERY)) => {}
            }
        }
    }

    /// Acknowledges an event: the caller holds it, and is not told again.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn acknowledge(&self, caller: &Caller, id: EventId) -> Result<Acknowledged, CallError> {
        let acknowledge =
            Acknowledge { tenant: caller.tenant.clone(), principal: caller.principal.clone(), id };
        match self.store.write(acknowledge).await? {
            Acknowledged::NotFound => Err(CallError::NotFound("event")),
            other => Ok(other),
        }
    }
}

/// What a task comes to now.
#[must_use]
pub fn state(task: &Task) -> TaskProjection {
    project_task(&task.facts, UnixMicros(now_us()))
}

/// Whether it is over, and all of its output is in the command log or known to be lost.
#[must_use]
pub fn is_over(facts: &TaskFacts) -> bool {
    !matches!(result_state(facts), ResultState::Pending)
}
