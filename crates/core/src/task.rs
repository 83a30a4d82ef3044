//! What state a task is in: computed from the brain's facts about it, never stored, and always explained.
//!
//! [`TaskFacts`] are about one attempt; a later attempt has facts of its own, and begins over the death proof of this one
//! ([`next_attempt`]). [`TaskFacts::learn`] takes in what became known and refuses what cannot follow; [`project_task`] says
//! what it all means.
//!
//! What always holds:
//!
//! - a terminal state rests on evidence, and nothing that is learnt later changes it;
//! - an accepted stop is never taken back, least of all by an answer to the start that comes late;
//! - a result is carried in a reply, or its task was handed off and an event is owed: never both ([`HandOff`]).

use crate::exit::Exit;
use crate::id::{
    Attempt, ConversationId, Cursor, Generation, JobId, PrincipalId, RunId, SandboxGeneration, StopId,
    TaskId, TenantId,
};
use crate::receipt::{Attestation, Receipt};
use crate::spec::JobKind;
use crate::status::Party;
use crate::time::UnixMicros;
use crate::verdict::{self, Verdict};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whose a task is, and what it began under. Set by the host, never by a model; its events carry the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The tenant.
    pub tenant: TenantId,
    /// The conversation.
    pub conversation: ConversationId,
    /// The run that started it.
    pub run: RunId,
    /// The person whose run that is.
    pub principal: PrincipalId,
    /// The conversation's generation at that time.
    pub generation: Generation,
    /// The incarnation of the sandbox it was meant for.
    pub sandbox_generation: SandboxGeneration,
}

/// Everything the brain knows of one attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// The task.
    pub id: TaskId,
    /// Whose it is.
    pub owner: Owner,
    /// What was promised before anything was asked of a hand.
    pub reserved: Reserved,
    /// Whether it began, and how it ended.
    pub start: Start,
    /// The stop that was accepted.
    pub stop: Option<StopFacts>,
    /// Who brings its result to the run.
    pub hand_off: HandOff,
    /// All output before this is in the command log.
    pub committed: Cursor,
    /// That the rest of its output can never be had.
    pub unavailable: Option<Unavailable>,
}

/// A reservation: committed before a hand is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// When.
    pub at: UnixMicros,
    /// When the hand ends it, for people to see; the hand itself goes by its monotonic clock.
    pub deadline: Option<UnixMicros>,
    /// A service owes no completion.
    pub kind: JobKind,
    /// Which attempt of the task this is.
    pub attempt: Attempt,
}

/// How far the start has come, and what it led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Start {
    /// No hand has been asked.
    NotAsked,
    /// A hand was asked, and no answer has been taken in: it may run or not.
    Asked {
        /// When it was first asked.
        at: UnixMicros,
        /// After this no request that was sent so far is obeyed any more.
        expires: UnixMicros,
        /// Whether an answer can still come.
        answer: Answer,
    },
    /// The hand admitted it.
    Admitted {
        /// The job.
        job_id: JobId,
        /// When the answer was taken in.
        at: UnixMicros,
        /// Whether it is over.
        end: End,
    },
    /// Nothing was started under this attempt, and nothing will be.
    NotStarted {
        /// Why.
        why: NoStart,
        /// When that was known.
        at: UnixMicros,
    },
    /// A hand was asked and never answered, and its sandbox is gone since.
    LostWithSandbox {
        /// When it was first asked.
        asked: UnixMicros,
        /// The provider's word.
        destroyed: Destroyed,
    },
}

/// Whether the answer to the latest request for a start can still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// One request was sent and is waited for.
    Awaited,
    /// An answer was lost, or whoever waited for it is: ask the same hand for the same key.
    Lost,
}

/// Why nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NoStart {
    /// A stop was accepted before a hand was asked.
    StoppedFirst,
    /// The hand refused it.
    Refused {
        /// The hand's error code.
        code: String,
    },
    /// After the last request for it had expired, the hand had nothing under its key.
    NotFound,
    /// No hand was asked, and none will be.
    GivenUp {
        /// Why, in one sentence.
        because: String,
    },
}

/// How a job ended, as far as the brain knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// Nothing proves that it is over.
    Open {
        /// What the hand said last.
        seen: Seen,
    },
    /// Its receipt.
    Receipt {
        /// The receipt, as the hand wrote it.
        receipt: Box<Receipt>,
    },
    /// A person's word, which frees the key and the workspace and proves nothing.
    Attested {
        /// The word.
        attestation: Box<Attestation>,
    },
    /// Its sandbox is gone.
    SandboxDestroyed {
        /// The provider's word.
        destroyed: Destroyed,
    },
}

/// What a hand said last of a job without a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// Admitted; its process does not exist yet.
    Starting,
    /// It runs.
    Running,
    /// Its tree is being ended.
    Stopping,
    /// Its keeper is lost.
    Unknown,
    /// The hand does not answer.
    Unreachable,
}

/// A provider's word that one incarnation of a sandbox is gone, with all that ran in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Destroyed {
    /// The provider's name of the sandbox.
    pub provider_ref: String,
    /// The generation that is gone.
    pub generation: SandboxGeneration,
    /// When the provider said so.
    pub at: UnixMicros,
}

/// A stop that was accepted. It is not done before there is evidence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopFacts {
    /// Which.
    pub id: StopId,
    /// Who wants it.
    pub by: StopBy,
    /// When it was accepted.
    pub at: UnixMicros,
}

/// Who wants a task stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopBy {
    /// A person stopped this task.
    Person,
    /// A person stopped its run.
    Run,
    /// A person stopped everything of the conversation's generation.
    StopAll,
    /// Its deadline passed.
    Deadline,
    /// The brain itself: a close, or a limit that ends what it meets.
    System,
}

impl StopBy {
    /// Whether a person wanted it. Such a task is cancelled whatever its exit, and its end wakes nobody.
    #[must_use]
    pub fn is_a_person(self) -> bool {
        match self {
            StopBy::Person | StopBy::Run | StopBy::StopAll => true,
            StopBy::Deadline | StopBy::System => false,
        }
    }

    /// Who, for people.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            StopBy::Person => "a person stopped it",
            StopBy::Run => "its run was stopped",
            StopBy::StopAll => "everything of its generation was stopped",
            StopBy::Deadline => "its deadline passed",
            StopBy::System => "it was stopped by the brain",
        }
    }
}

/// Who brings a result to the run that owns it. Decided once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HandOff {
    /// The reply to the call may still carry it.
    Undecided,
    /// The reply carried it: the run's history, or the caller's acknowledgement, holds it. No event is owed.
    Carried {
        /// When that was committed.
        at: UnixMicros,
    },
    /// The call ended, or will end, without it: one event is owed once it is over.
    HandedOff {
        /// When that was committed.
        at: UnixMicros,
        /// Why.
        why: HandOffWhy,
        /// How the result came to the run, once it has.
        told: Option<Told>,
    },
}

/// Why a task was handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOffWhy {
    /// The call asked for it.
    Background,
    /// The call met its limit.
    Cutover,
    /// It is over, and its output could not be committed before the call met its limit.
    ResultPending,
    /// The reply was lost before anything held the result.
    LostReply,
}

/// How the result of a task that was handed off came to its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Told {
    /// By what.
    pub by: ToldBy,
    /// When that was committed.
    pub at: UnixMicros,
}

/// By what a result came to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToldBy {
    /// Its event was acknowledged.
    Event,
    /// The run asked, and read it.
    Read,
    /// A stop discarded its event: nobody waits for it any more.
    Stop,
}

/// That output can never be had.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unavailable {
    /// What is missing begins here.
    pub from: Cursor,
    /// Why.
    pub why: UnavailableWhy,
}

/// Why output can never be had.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UnavailableWhy {
    /// The sandbox was destroyed before it was read.
    SandboxDestroyed,
    /// The hand does not have the job any more.
    Removed,
    /// The hand has lost it.
    Lost {
        /// What the hand says of it.
        cause: String,
    },
}

/// The state of a task, as every answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Reserved, asked for or admitted; its process does not exist yet.
    Starting,
    /// It runs.
    Running,
    /// A stop was accepted, or its tree is being ended; no evidence yet.
    Stopping,
    /// It may run or not, and nothing proves which.
    Unknown,
    /// Over, and its command did what it was asked.
    Succeeded,
    /// Over, and its command did not, or it never began.
    Failed,
    /// Over, after a person wanted it to be.
    Cancelled,
}

impl TaskState {
    /// Whether it is over. What is not over counts as unsettled, unknown ones included.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled => true,
            TaskState::Starting | TaskState::Running | TaskState::Stopping | TaskState::Unknown => false,
        }
    }

    /// The word people and programs see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TaskState::Starting => "starting",
            TaskState::Running => "running",
            TaskState::Stopping => "stopping",
            TaskState::Unknown => "unknown",
            TaskState::Succeeded => "succeeded",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }
}

/// Who owes something about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authority {
    /// The brain's coordinator.
    Brain,
    /// The hand that was asked.
    Hand,
    /// On the hand, a party to the job.
    Job(Party),
    /// The provider of the sandbox.
    Provider,
    /// The run that owns it, or the caller it answers.
    Run,
}

/// What can be owed about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owing {
    /// Whether it began.
    Start,
    /// Evidence that it is over.
    End,
    /// Its output, committed up to the final cursor.
    Output,
    /// That its run has the result.
    Delivery,
}

/// Something that must be known or done before nothing is owed about a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskObligation {
    /// What.
    pub what: Owing,
    /// Who owes it.
    pub owed_by: Authority,
    /// What settled it; absent while it is owed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub settled_by: Option<String>,
}

/// What is said of a task that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How its command ended: a fact, whatever it is judged to be.
    pub exit: Exit,
    /// What a caller is told.
    pub verdict: Verdict,
}

/// A task's state with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskProjection {
    /// The state.
    pub state: TaskState,
    /// One sentence: why this state.
    pub because: String,
    /// What must be known and done, in the order in which it becomes so. While the task is not over, one at least is owed.
    pub obligations: Vec<TaskObligation>,
    /// What it came to, once it is over.
    pub outcome: Option<Outcome>,
}

/// How far the result of a task has come on its way to the run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ResultState {
    /// It is not over, or its output is not all committed.
    Pending,
    /// It is over, and all of its output is committed.
    Readable,
    /// It is over, and the rest of its output can never be had.
    Unavailable {
        /// What is missing, and why.
        missing: Unavailable,
    },
    /// The run has it, or nobody waits for it any more.
    Delivered {
        /// By what.
        by: DeliveredBy,
        /// What it lacked; absent where it was complete.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        missing: Option<Unavailable>,
    },
}

/// By what a result was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveredBy {
    /// The reply to the call.
    Reply,
    /// Its event.
    Event,
    /// The run read it.
    Read,
    /// A stop discarded its event.
    Stop,
}

/// What became known of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A request for its start is about to be sent; it is not obeyed after `expires`.
    Asked {
        /// After this the hand drops the request.
        expires: UnixMicros,
    },
    /// The answer to that request was lost.
    AnswerLost,
    /// The hand admitted it, now or at an earlier request.
    Admitted {
        /// The job.
        job_id: JobId,
    },
    /// Nothing was started.
    NotStarted {
        /// Why.
        why: NoStart,
    },
    /// What the hand says of the job.
    Seen(Seen),
    /// The hand's receipt.
    Receipt(Box<Receipt>),
    /// A person's word that it is dead.
    Attested(Box<Attestation>),
    /// The provider's word that its sandbox is gone.
    Destroyed(Destroyed),
    /// A stop that hits it.
    Stop(StopFacts),
    /// Output before this is in the command log.
    Committed(Cursor),
    /// The rest of its output can never be had.
    Unavailable(UnavailableWhy),
    /// The reply carried its result.
    Carried,
    /// It is handed off.
    HandedOff(HandOffWhy),
    /// Its result came to the run after a hand-off.
    Told(ToldBy),
}

/// What news changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Learned {
    /// The facts are others now, and have to be committed.
    Changed,
    /// It was known, or came too late to matter: nothing is to be committed.
    Unchanged,
}

/// News that cannot be true of this attempt, or must not be done to it. The facts stay as they were.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// A stop was accepted first: no hand is asked any more.
    #[error("a stop was accepted first")]
    StoppedFirst,
    /// No hand was asked.
    #[error("no hand has been asked for it")]
    NotAsked,
    /// There is no job that it could be about.
    #[error("no job of it is known")]
    NotAdmitted,
    /// The start was decided before.
    #[error("its start was decided before")]
    StartDecided,
    /// A request that was sent earlier may still be obeyed.
    #[error("an earlier request for its start may still be obeyed")]
    MayStillStart {
        /// Until then.
        until: UnixMicros,
    },
    /// It is about another job.
    #[error("it is about job {told}, not {known}")]
    OtherJob {
        /// This attempt's.
        known: JobId,
        /// The one it is about.
        told: JobId,
    },
    /// It is about another attempt.
    #[error("it is about attempt {told}, not {known}")]
    OtherAttempt {
        /// This one.
        known: Attempt,
        /// The one it is about.
        told: Attempt,
    },
    /// It comes from another incarnation of the sandbox.
    #[error("it comes from sandbox generation {told}, not {known}")]
    OtherSandbox {
        /// This attempt's.
        known: SandboxGeneration,
        /// The one it is about.
        told: SandboxGeneration,
    },
    /// It comes from another generation of the conversation.
    #[error("it comes from generation {told}, not {known}")]
    OtherGeneration {
        /// This attempt's.
        known: Generation,
        /// The one it is about.
        told: Generation,
    },
    /// There is no result to be had yet.
    #[error("its result is pending")]
    ResultPending,
    /// Who brings the result was decided otherwise.
    #[error("who brings its result was decided otherwise")]
    DecidedOtherwise,
    /// It is not handed off.
    #[error("it was not handed off")]
    NotHandedOff,
    /// Its output ends before.
    #[error("cursor {told} is past its final cursor {end}")]
    PastTheEnd {
        /// The final cursor.
        end: Cursor,
        /// The cursor it was told.
        told: Cursor,
    },
}

impl TaskFacts {
    /// The facts of an attempt that was just reserved.
    #[must_use]
    pub fn reserve(id: TaskId, owner: Owner, reserved: Reserved) -> TaskFacts {
        TaskFacts {
            id,
            owner,
            reserved,
            start: Start::NotAsked,
            stop: None,
            hand_off: HandOff::Undecided,
            committed: Cursor(0),
            unavailable: None,
        }
    }

    /// What proves that it is over; `None` while nothing does.
    #[must_use]
    pub fn ended(&self) -> Option<Ended<'_>> {
        match &self.start {
            Start::NotStarted { why, .. } => Some(Ended::NotStarted(why)),
            Start::Admitted { end: End::Receipt { receipt }, .. } => Some(Ended::Receipt(receipt)),
            Start::Admitted { end: End::SandboxDestroyed { destroyed }, .. }
            | Start::LostWithSandbox { destroyed, .. } => Some(Ended::SandboxDestroyed(destroyed)),
            Start::NotAsked
            | Start::Asked { .. }
            | Start::Admitted { end: End::Open { .. } | End::Attested { .. }, .. } => None,
        }
    }

    /// The stop of a person that was accepted before it was over.
    #[must_use]
    pub fn stopped_by_a_person(&self) -> Option<&StopFacts> {
        self.stop.as_ref().filter(|stop| stop.by.is_a_person())
    }

    /// Whether it takes one of its sandbox's places and keeps its workspace closed. A person's word frees both, and proves
    /// nothing.
    #[must_use]
    pub fn occupies(&self) -> bool {
        self.ended().is_none() && !matches!(self.start, Start::Admitted { end: End::Attested { .. }, .. })
    }

    /// Takes in what became known. News that comes twice, or too late to matter, changes nothing.
    ///
    /// # Errors
    /// [`Refused`] where it cannot be true of this attempt or must not be done; the facts stay as they were.
    pub fn learn(&mut self, news: News, now: UnixMicros) -> Result<Learned, Refused> {
        match news {
            News::Asked { expires } => self.asked(expires, now),
            News::AnswerLost => self.answer_lost(),
            News::Admitted { job_id } => self.admitted(job_id, now),
            News::NotStarted { why } => self.not_started(why, now),
            News::Seen(seen) => self.seen(seen),
            News::Receipt(receipt) => self.settled(receipt),
            News::Attested(attestation) => self.attested(attestation),
            News::Destroyed(destroyed) => self.destroyed(destroyed, now),
            News::Stop(stop) => Ok(self.stopped(stop)),
            News::Committed(cursor) => self.committed(cursor),
            News::Unavailable(why) => self.unavailable(why),
            News::Carried => self.carried(now),
            News::HandedOff(why) => self.handed_off(why, now),
            News::Told(by) => self.told(by, now),
        }
    }

    fn asked(&mut self, expires: UnixMicros, now: UnixMicros) -> Result<Learned, Refused> {
        // A request asks for a start, so after a stop none is sent, not even to learn of an earlier one's fate.
        if self.stop.is_some() {
            return Err(Refused::StoppedFirst);
        }
        let asked = match self.start {
            Start::NotAsked => Start::Asked { at: now, expires, answer: Answer::Awaited },
            // The earlier request may arrive after this one was answered.
            Start::Asked { at, expires: earlier, .. } => {
                Start::Asked { at, expires: expires.max(earlier), answer: Answer::Lost }
            }
            _ => return Err(Refused::StartDecided),
        };
        if asked == self.start {
            return Ok(Learned::Unchanged);
        }
        self.start = asked;
        Ok(Learned::Changed)
    }

    fn answer_lost(&mut self) -> Result<Learned, Refused> {
        match &mut self.start {
            Start::NotAsked => Err(Refused::NotAsked),
            Start::Asked { answer: answer @ Answer::Awaited, .. } => {
                *answer = Answer::Lost;
                Ok(Learned::Changed)
            }
            _ => Ok(Learned::Unchanged),
        }
    }

    fn admitted(&mut self, job_id: JobId, now: UnixMicros) -> Result<Learned, Refused> {
        if job_id.attempt != self.reserved.attempt {
            return Err(Refused::OtherAttempt { known: self.reserved.attempt, told: job_id.attempt });
        }
        match &self.start {
            Start::NotAsked => Err(Refused::NotAsked),
            Start::Asked { .. } => {
                self.start = Start::Admitted { job_id, at: now, end: End::Open { seen: Seen::Starting } };
                Ok(Learned::Changed)
            }
            Start::Admitted { job_id: known, .. } if *known != job_id => {
                Err(Refused::OtherJob { known: *known, told: job_id })
            }
            Start::Admitted { .. } | Start::LostWithSandbox { .. } => Ok(Learned::Unchanged),
            Start::NotStarted { .. } => Err(Refused::StartDecided),
        }
    }

    fn not_started(&mut self, why: NoStart, now: UnixMicros) -> Result<Learned, Refused> {
        match (&self.start, &why) {
            (Start::NotAsked, NoStart::StoppedFirst | NoStart::GivenUp { .. }) => {}
            (Start::NotAsked, _) => return Err(Refused::NotAsked),
            // It answers the only request there was.
            (Start::Asked { answer: Answer::Awaited, .. }, NoStart::Refused { .. }) => {}
            (Start::Asked { expires, .. }, NoStart::Refused { .. } | NoStart::NotFound) if now > *expires => {
            }
            (Start::Asked { expires, .. }, _) => return Err(Refused::MayStillStart { until: *expires }),
            (Start::Admitted { .. }, _) => return Err(Refused::StartDecided),
            (Start::NotStarted { .. } | Start::LostWithSandbox { .. }, _) => return Ok(Learned::Unchanged),
        }
        self.start = Start::NotStarted { why, at: now };
        Ok(Learned::Changed)
    }

    fn job(&mut self) -> Result<(JobId, &mut End), Refused> {
        match &mut self.start {
            Start::Admitted { job_id, end, .. } => Ok((*job_id, end)),
            Start::NotAsked => Err(Refused::NotAsked),
            _ => Err(Refused::NotAdmitted),
        }
    }

    fn seen(&mut self, now_seen: Seen) -> Result<Learned, Refused> {
        match self.job()?.1 {
            End::Open { seen } if *seen != now_seen => {
                *seen = now_seen;
                Ok(Learned::Changed)
            }
            _ => Ok(Learned::Unchanged),
        }
    }

    fn settled(&mut self, receipt: Box<Receipt>) -> Result<Learned, Refused> {
        let Owner { generation, sandbox_generation, .. } = self.owner;
        let (job_id, end) = self.job()?;
        if receipt.job_id != job_id {
            return Err(Refused::OtherJob { known: job_id, told: receipt.job_id });
        }
        if receipt.sandbox_generation != sandbox_generation {
            return Err(Refused::OtherSandbox {
                known: sandbox_generation,
                told: receipt.sandbox_generation,
            });
        }
        if receipt.generation != generation {
            return Err(Refused::OtherGeneration { known: generation, told: receipt.generation });
        }
        match end {
            End::Open { .. } | End::Attested { .. } => {
                *end = End::Receipt { receipt };
                Ok(Learned::Changed)
            }
            End::Receipt { .. } | End::SandboxDestroyed { .. } => Ok(Learned::Unchanged),
        }
    }

    fn attested(&mut self, attestation: Box<Attestation>) -> Result<Learned, Refused> {
        let (job_id, end) = self.job()?;
        if attestation.job_id != job_id {
            return Err(Refused::OtherJob { known: job_id, told: attestation.job_id });
        }
        match end {
            End::Open { .. } => {
                *end = End::Attested { attestation };
                Ok(Learned::Changed)
            }
            _ => Ok(Learned::Unchanged),
        }
    }

    fn destroyed(&mut self, destroyed: Destroyed, now: UnixMicros) -> Result<Learned, Refused> {
        let known = self.owner.sandbox_generation;
        if destroyed.generation != known {
            return Err(Refused::OtherSandbox { known, told: destroyed.generation });
        }
        match &mut self.start {
            Start::NotAsked => {
                let because = format!("sandbox {} is gone", destroyed.provider_ref);
                self.start = Start::NotStarted { why: NoStart::GivenUp { because }, at: now };
            }
            Start::Asked { at, .. } => self.start = Start::LostWithSandbox { asked: *at, destroyed },
            Start::Admitted { end: end @ (End::Open { .. } | End::Attested { .. }), .. } => {
                *end = End::SandboxDestroyed { destroyed };
            }
            _ => return Ok(Learned::Unchanged),
        }
        Ok(Learned::Changed)
    }

    fn stopped(&mut self, stop: StopFacts) -> Learned {
        if self.ended().is_some() {
            return Learned::Unchanged;
        }
        // A person's stop says more than one that nobody asked for, and takes its place.
        let outranks =
            self.stop.as_ref().is_none_or(|earlier| stop.by.is_a_person() && !earlier.by.is_a_person());
        if outranks {
            self.stop = Some(stop);
            Learned::Changed
        } else {
            Learned::Unchanged
        }
    }

    fn committed(&mut self, cursor: Cursor) -> Result<Learned, Refused> {
        // What was said to be lost for ever stays so: a reader may have been told.
        let mut is_lost = self.unavailable.is_some();
        match self.job()?.1 {
            End::Receipt { receipt } if cursor > receipt.output.final_cursor => {
                return Err(Refused::PastTheEnd { end: receipt.output.final_cursor, told: cursor });
            }
            End::SandboxDestroyed { .. } => is_lost = true,
            End::Open { .. } | End::Receipt { .. } | End::Attested { .. } => {}
        }
        if is_lost || cursor <= self.committed {
            return Ok(Learned::Unchanged);
        }
        self.committed = cursor;
        Ok(Learned::Changed)
    }

    fn unavailable(&mut self, why: UnavailableWhy) -> Result<Learned, Refused> {
        let from = self.committed;
        let is_known = match self.job()?.1 {
            End::Receipt { receipt } => from >= receipt.output.final_cursor,
            // That says it already, with its own reason.
            End::SandboxDestroyed { .. } => true,
            End::Open { .. } | End::Attested { .. } => false,
        };
        if is_known || self.unavailable.is_some() {
            return Ok(Learned::Unchanged);
        }
        self.unavailable = Some(Unavailable { from, why });
        Ok(Learned::Changed)
    }

    fn carried(&mut self, now: UnixMicros) -> Result<Learned, Refused> {
        match self.hand_off {
            HandOff::Carried { .. } => Ok(Learned::Unchanged),
            HandOff::HandedOff { .. } => Err(Refused::DecidedOtherwise),
            HandOff::Undecided if result_state(self) == ResultState::Pending => Err(Refused::ResultPending),
            HandOff::Undecided => {
                self.hand_off = HandOff::Carried { at: now };
                Ok(Learned::Changed)
            }
        }
    }

    fn handed_off(&mut self, why: HandOffWhy, now: UnixMicros) -> Result<Learned, Refused> {
        match self.hand_off {
            HandOff::HandedOff { .. } => Ok(Learned::Unchanged),
            HandOff::Carried { .. } => Err(Refused::DecidedOtherwise),
            HandOff::Undecided => {
                self.hand_off = HandOff::HandedOff { at: now, why, told: None };
                Ok(Learned::Changed)
            }
        }
    }

    fn told(&mut self, by: ToldBy, now: UnixMicros) -> Result<Learned, Refused> {
        let pending = match by {
            ToldBy::Event | ToldBy::Read => result_state(self) == ResultState::Pending,
            ToldBy::Stop => self.ended().is_none(),
        };
        match &mut self.hand_off {
            HandOff::Undecided | HandOff::Carried { .. } => Err(Refused::NotHandedOff),
            HandOff::HandedOff { told: Some(_), .. } => Ok(Learned::Unchanged),
            HandOff::HandedOff { .. } if pending => Err(Refused::ResultPending),
            HandOff::HandedOff { told, .. } => {
                *told = Some(Told { by, at: now });
                Ok(Learned::Changed)
            }
        }
    }
}

/// What proves that an attempt is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<'a> {
    /// It never began, and never will.
    NotStarted(&'a NoStart),
    /// Its receipt.
    Receipt(&'a Receipt),
    /// Its sandbox is gone.
    SandboxDestroyed(&'a Destroyed),
}

/// The attempt that may be asked for after this one: none before it is over, or a person attested that it is.
#[must_use]
pub fn next_attempt(facts: &TaskFacts) -> Option<Attempt> {
    let attempt = facts.reserved.attempt;
    crate::fence::may_admit_attempt(attempt.next(), Some(attempt), !facts.occupies()).then(|| attempt.next())
}

/// Says how far a task's result has come. An empty success is told only of a command that is known to have put out nothing.
#[must_use]
pub fn result_state(facts: &TaskFacts) -> ResultState {
    let end = match facts.ended() {
        None => return ResultState::Pending,
        Some(Ended::NotStarted(_)) => Some(Cursor(0)),
        Some(Ended::Receipt(receipt)) => Some(receipt.output.final_cursor),
        Some(Ended::SandboxDestroyed(_)) => None,
    };
    let missing = match (end, &facts.unavailable) {
        (Some(end), _) if facts.committed >= end => None,
        (_, Some(unavailable)) => Some(unavailable.clone()),
        (None, None) => Some(Unavailable { from: facts.committed, why: UnavailableWhy::SandboxDestroyed }),
        (Some(_), None) => return ResultState::Pending,
    };
    let by = match facts.hand_off {
        HandOff::Carried { .. } => Some(DeliveredBy::Reply),
        HandOff::HandedOff { told: Some(told), .. } => Some(match told.by {
            ToldBy::Event => DeliveredBy::Event,
            ToldBy::Read => DeliveredBy::Read,
            ToldBy::Stop => DeliveredBy::Stop,
        }),
        HandOff::Undecided | HandOff::HandedOff { told: None, .. } => None,
    };
    match (by, missing) {
        (Some(by), missing) => ResultState::Delivered { by, missing },
        (None, Some(missing)) => ResultState::Unavailable { missing },
        (None, None) => ResultState::Readable,
    }
}

/// Computes the state of a task from its facts.
#[must_use]
pub fn project_task(facts: &TaskFacts, now: UnixMicros) -> TaskProjection {
    let (state, because, outcome) = match facts.ended() {
        Some(ended) => {
            let (state, because, outcome) = over(facts, ended);
            (state, because, Some(outcome))
        }
        None => {
            let (state, because) = open(facts, now);
            (state, because, None)
        }
    };
    TaskProjection { state, because, obligations: obligations(facts), outcome }
}

fn over(facts: &TaskFacts, ended: Ended<'_>) -> (TaskState, String, Outcome) {
    let (exit, because) = match ended {
        Ended::NotStarted(why) => (
            Exit::NotStarted {
                why: match why {
                    NoStart::StoppedFirst => crate::exit::NotStarted::Cancelled,
                    NoStart::NotFound => crate::exit::NotStarted::NoKeeper,
                    NoStart::Refused { .. } | NoStart::GivenUp { .. } => crate::exit::NotStarted::SetUpFailed,
                },
            },
            not_started_text(why),
        ),
        Ended::Receipt(receipt) => (
            receipt.exit.clone(),
            format!("its receipt says {}, death proved by {}", receipt.exit, receipt.death.name()),
        ),
        Ended::SandboxDestroyed(destroyed) => {
            (Exit::Unknown { why: destroyed_text(destroyed) }, destroyed_text(destroyed))
        }
    };
    let failed =
        |code, message: &str| Verdict { exit_code: 1, code: Some(code), message: message.to_owned() };
    let cancelled = |message: String| Verdict { exit_code: 143, code: Some("CANCELLED"), message };
    if let Some(stop) = facts.stopped_by_a_person() {
        let verdict = cancelled(format!("{}; it ended with {exit}", stop.by.phrase()));
        let because = format!("{}; {because}", stop.by.phrase());
        return (TaskState::Cancelled, because, Outcome { exit, verdict });
    }
    let verdict = match ended {
        Ended::Receipt(receipt) => verdict::judge(receipt),
        Ended::SandboxDestroyed(_) => {
            failed("JOB_LOST", "its sandbox is gone, and how it ended is not known")
        }
        Ended::NotStarted(_) if is_stopped_by(facts, StopBy::Deadline) => Verdict {
            exit_code: 10,
            code: Some("TIMEOUT"),
            message: "its deadline passed before it began".to_owned(),
        },
        Ended::NotStarted(NoStart::StoppedFirst) => cancelled("stopped before it began".to_owned()),
        Ended::NotStarted(_) => failed("NOT_STARTED", &because),
    };
    let state = match verdict.code {
        None => TaskState::Succeeded,
        Some("CANCELLED") => TaskState::Cancelled,
        Some(_) => TaskState::Failed,
    };
    (state, because, Outcome { exit, verdict })
}

fn is_stopped_by(facts: &TaskFacts, by: StopBy) -> bool {
    facts.stop.as_ref().is_some_and(|stop| stop.by == by)
}

fn open(facts: &TaskFacts, now: UnixMicros) -> (TaskState, String) {
    let (state, mut because) = match &facts.start {
        Start::Asked { answer: Answer::Awaited, expires, .. } if now <= *expires => {
            (TaskState::Starting, "the hand was asked for it and has not answered yet".to_owned())
        }
        Start::Asked { .. } => {
            (TaskState::Unknown, "the answer to its start was lost: it may run or not".to_owned())
        }
        Start::Admitted { end: End::Attested { attestation }, .. } => {
            let why = format!("{} attested its death, which nothing proves", attestation.name);
            (TaskState::Unknown, why)
        }
        Start::Admitted { end: End::Open { seen }, job_id, .. } => match seen {
            Seen::Starting => {
                (TaskState::Starting, format!("job {job_id} is admitted; its process does not exist yet"))
            }
            Seen::Running => (TaskState::Running, format!("job {job_id} runs")),
            Seen::Stopping => (TaskState::Stopping, format!("the tree of job {job_id} is being ended")),
            Seen::Unknown => {
                (TaskState::Unknown, format!("job {job_id} lost its keeper and left no receipt"))
            }
            Seen::Unreachable => (TaskState::Unknown, format!("the hand does not answer for job {job_id}")),
        },
        _ => (TaskState::Starting, "reserved; no hand has been asked yet".to_owned()),
    };
    if facts.reserved.deadline.is_some_and(|deadline| now >= deadline) {
        because.push_str("; its deadline has passed");
    }
    match &facts.stop {
        // Accepted is not done, and unknown is no reason to forget it.
        Some(stop) => (TaskState::Stopping, format!("{}; {because}", stop.by.phrase())),
        None => (state, because),
    }
}

fn not_started_text(why: &NoStart) -> String {
    match why {
        NoStart::StoppedFirst => "it was stopped before a hand was asked".to_owned(),
        NoStart::Refused { code } => format!("the hand refused it: {code}"),
        NoStart::NotFound => "no request for its start reached the hand in time".to_owned(),
        NoStart::GivenUp { because } => format!("no hand was asked for it: {because}"),
    }
}

fn destroyed_text(destroyed: &Destroyed) -> String {
    format!("sandbox {} generation {} is destroyed", destroyed.provider_ref, destroyed.generation)
}

fn obligations(facts: &TaskFacts) -> Vec<TaskObligation> {
    let owe = |what, owed_by, settled_by| TaskObligation { what, owed_by, settled_by };
    let (start_owner, start) = match &facts.start {
        Start::NotAsked => (Authority::Brain, None),
        Start::Asked { .. } => (Authority::Hand, None),
        Start::Admitted { job_id, .. } => (Authority::Hand, Some(format!("job {job_id}"))),
        Start::NotStarted { why, .. } => (Authority::Hand, Some(not_started_text(why))),
        Start::LostWithSandbox { destroyed, .. } => (Authority::Provider, Some(destroyed_text(destroyed))),
    };
    let end_owner = match &facts.start {
        Start::NotAsked if facts.stop.is_some() => Authority::Brain,
        Start::Admitted { end, .. } => match end {
            End::Open { seen: Seen::Unknown } => Authority::Job(Party::Settler),
            End::Open { seen: Seen::Unreachable } => Authority::Hand,
            End::Attested { .. } | End::SandboxDestroyed { .. } => Authority::Provider,
            End::Open { .. } | End::Receipt { .. } => Authority::Job(Party::Warden),
        },
        _ => Authority::Hand,
    };
    let end = facts.ended().map(|ended| match ended {
        Ended::NotStarted(why) => not_started_text(why),
        Ended::Receipt(receipt) => format!("the receipt of job {}", receipt.job_id),
        Ended::SandboxDestroyed(destroyed) => destroyed_text(destroyed),
    });
    let result = result_state(facts);
    let missing = |missing: &Unavailable| format!("unavailable from cursor {}", missing.from);
    let output = match &result {
        ResultState::Pending => None,
        ResultState::Unavailable { missing: lost } | ResultState::Delivered { missing: Some(lost), .. } => {
            Some(missing(lost))
        }
        ResultState::Readable | ResultState::Delivered { missing: None, .. } => {
            Some(format!("cursor {}", facts.committed))
        }
    };
    let mut owed = vec![
        owe(Owing::Start, start_owner, start),
        owe(Owing::End, end_owner, end),
        owe(Owing::Output, Authority::Brain, output),
    ];
    if facts.reserved.kind == JobKind::Command {
        let delivery = match &result {
            ResultState::Delivered { by, .. } => Some(match by {
                DeliveredBy::Reply => "the reply carried it".to_owned(),
                DeliveredBy::Event => "its event was acknowledged".to_owned(),
                DeliveredBy::Read => "the run read it".to_owned(),
                DeliveredBy::Stop => "a stop discarded its event".to_owned(),
            }),
            _ => None,
        };
        owed.push(owe(Owing::Delivery, Authority::Run, delivery));
    }
    owed
}

#[cfg(test)]
pub(crate) mod samples {
    //! A task, and what can become known of it.

    use super::*;
    use crate::evidence::Evidence;
    use crate::exit::Cause;
    use crate::id::{BootId, Scope};
    use crate::pipeline::Stages;
    use crate::receipt::{Authority, Drain, Output, OutputHash, TerminalMutation, Times};
    use crate::spec::Digest;
    use proptest::prelude::*;

    pub(crate) fn owner() -> Owner {
        Owner {
            tenant: TenantId::new("acme").unwrap(),
            conversation: ConversationId::new("c").unwrap(),
            run: RunId::new("ann's").unwrap(),
            principal: PrincipalId::new("ann").unwrap(),
            generation: Generation(3),
            sandbox_generation: SandboxGeneration(7),
        }
    }

    pub(crate) fn reserved(kind: JobKind) -> TaskFacts {
        let reserved =
            Reserved { at: UnixMicros(0), deadline: Some(UnixMicros(1_000)), kind, attempt: Attempt::FIRST };
        TaskFacts::reserve(TaskId::new("t").unwrap(), owner(), reserved)
    }

    pub(crate) fn job() -> JobId {
        "0000000000000000.1.1".parse().unwrap()
    }

    pub(crate) fn receipt(exit: Exit, cause: Cause, final_cursor: u64) -> Box<Receipt> {
        let at = UnixMicros(9);
        Box::new(Receipt {
            schema: 1,
            job_id: job(),
            scope: Scope::new("s").unwrap(),
            key: None,
            digest: Digest([0; 32]),
            attempt: Attempt::FIRST,
            generation: owner().generation,
            sandbox_generation: owner().sandbox_generation,
            boot_id: BootId::new("b").unwrap(),
            authority: Authority::Keeper,
            exit,
            cause,
            stages: Stages::NotAPipeline,
            death: Evidence::AllReaped { reaped: 1, at },
            output: Output {
                final_cursor: Cursor(final_cursor),
                hash: OutputHash::Unknown { why: "a sample".into() },
                drain: Drain::Complete,
                gaps: Vec::new(),
                stdout_bytes: None,
                stderr_bytes: None,
            },
            terminal_mutation: TerminalMutation::None,
            stragglers: Vec::new(),
            resources: None,
            times: Times { admitted: at, started: None, exited: None, dead: at, settled: at },
            boundary: None,
            isolation: None,
            stops: Vec::new(),
        })
    }

    pub(crate) fn exited(code: u8, final_cursor: u64) -> News {
        News::Receipt(receipt(Exit::Exited { code }, Cause::OwnEnd, final_cursor))
    }

    pub(crate) fn stop(id: &str, by: StopBy) -> News {
        News::Stop(StopFacts { id: StopId::new(id).unwrap(), by, at: UnixMicros(5) })
    }

    pub(crate) fn attested() -> News {
        News::Attested(Box::new(Attestation {
            job_id: job(),
            name: "ann".into(),
            at: UnixMicros(5),
            seen: Vec::new(),
            final_cursor: Cursor(0),
        }))
    }

    pub(crate) fn destroyed() -> News {
        News::Destroyed(Destroyed {
            provider_ref: "vm-1".into(),
            generation: owner().sandbox_generation,
            at: UnixMicros(5),
        })
    }

    /// A task after this news, all of which it takes in.
    pub(crate) fn after(mut facts: TaskFacts, news: impl IntoIterator<Item = News>) -> TaskFacts {
        for news in news {
            assert_eq!(facts.learn(news.clone(), UnixMicros(10)), Ok(Learned::Changed), "{news:?}");
        }
        facts
    }

    pub(crate) const ASKED: News = News::Asked { expires: UnixMicros(20) };

    /// A task whose job runs.
    pub(crate) fn running(kind: JobKind) -> TaskFacts {
        after(reserved(kind), [ASKED, News::Admitted { job_id: job() }, News::Seen(Seen::Running)])
    }

    pub(crate) const STOPPERS: [StopBy; 5] =
        [StopBy::Person, StopBy::Run, StopBy::StopAll, StopBy::Deadline, StopBy::System];

    pub(crate) fn any_news() -> impl Strategy<Value = News> {
        let any_cause = prop_oneof![
            Just(Cause::OwnEnd),
            Just(Cause::Stop { id: "s1".into() }),
            Just(Cause::Deadline { after_ms: 1 }),
            Just(Cause::KeeperLost),
        ];
        let any_exit = prop_oneof![
            (0u8..3).prop_map(|code| Exit::Exited { code }),
            Just(Exit::Signaled { signal: 15, core_dumped: false }),
            Just(Exit::Unknown { why: "lost".into() }),
            Just(Exit::NotStarted { why: crate::exit::NotStarted::Cancelled }),
        ];
        let why_not = prop_oneof![
            Just(NoStart::StoppedFirst),
            Just(NoStart::Refused { code: "CONFLICT".into() }),
            Just(NoStart::NotFound),
            Just(NoStart::GivenUp { because: "full".into() }),
        ];
        prop_oneof![
            2 => (0u64..40).prop_map(|expires| News::Asked { expires: UnixMicros(expires) }),
            1 => Just(News::AnswerLost),
            3 => Just(News::Admitted { job_id: job() }),
            1 => Just(News::Admitted { job_id: job().next_attempt() }),
            1 => why_not.prop_map(|why| News::NotStarted { why }),
            2 => prop::sample::select(vec![
                Seen::Starting, Seen::Running, Seen::Stopping, Seen::Unknown, Seen::Unreachable,
            ]).prop_map(News::Seen),
            2 => (any_exit, any_cause, 0u64..3).prop_map(|(exit, cause, end)| News::Receipt(receipt(exit, cause, end))),
            1 => Just(attested()),
            1 => Just(destroyed()),
            2 => (prop::sample::select(STOPPERS.to_vec()), "[ab]").prop_map(|(by, id)| stop(&id, by)),
            3 => (0u64..3).prop_map(|cursor| News::Committed(Cursor(cursor))),
            1 => Just(News::Unavailable(UnavailableWhy::Removed)),
            1 => Just(News::Carried),
            2 => prop::sample::select(vec![
                HandOffWhy::Background, HandOffWhy::Cutover, HandOffWhy::ResultPending, HandOffWhy::LostReply,
            ]).prop_map(News::HandedOff),
            1 => prop::sample::select(vec![ToldBy::Event, ToldBy::Read, ToldBy::Stop]).prop_map(News::Told),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::samples::*;
    use super::*;
    use crate::exit::Cause;
    use proptest::prelude::*;

    const NOW: UnixMicros = UnixMicros(15);

    fn state(facts: &TaskFacts) -> TaskState {
        project_task(facts, NOW).state
    }

    fn code(facts: &TaskFacts) -> Option<&'static str> {
        project_task(facts, NOW).outcome.and_then(|outcome| outcome.verdict.code)
    }

    fn refused(why: NoStart) -> News {
        News::NotStarted { why }
    }

    #[test]
    fn the_state_of_a_task_that_nobody_stopped() {
        let command = || reserved(JobKind::Command);
        let seen =
            |seen| after(running(JobKind::Command), (seen != Seen::Running).then_some(News::Seen(seen)));
        let with = |news| after(running(JobKind::Command), [news]);
        for (facts, expected, expected_code) in [
            (command(), TaskState::Starting, None),
            (after(command(), [ASKED]), TaskState::Starting, None),
            (after(command(), [ASKED, News::AnswerLost]), TaskState::Unknown, None),
            (after(command(), [ASKED, News::Admitted { job_id: job() }]), TaskState::Starting, None),
            (seen(Seen::Running), TaskState::Running, None),
            (seen(Seen::Stopping), TaskState::Stopping, None),
            (seen(Seen::Unknown), TaskState::Unknown, None),
            (seen(Seen::Unreachable), TaskState::Unknown, None),
            (with(attested()), TaskState::Unknown, None),
            (with(exited(0, 0)), TaskState::Succeeded, None),
            (with(exited(3, 0)), TaskState::Failed, Some("COMMAND_FAILED")),
            (with(destroyed()), TaskState::Failed, Some("JOB_LOST")),
            (after(command(), [ASKED, destroyed()]), TaskState::Failed, Some("JOB_LOST")),
            (after(command(), [destroyed()]), TaskState::Failed, Some("NOT_STARTED")),
            (
                after(command(), [ASKED, refused(NoStart::Refused { code: "CONFLICT".into() })]),
                TaskState::Failed,
                Some("NOT_STARTED"),
            ),
        ] {
            assert_eq!((state(&facts), code(&facts)), (expected, expected_code), "{facts:?}");
        }
        let asked = after(command(), [ASKED]);
        assert_eq!(project_task(&asked, UnixMicros(21)).state, TaskState::Unknown, "whoever asked is gone");
        let late = project_task(&running(JobKind::Command), UnixMicros(1_000));
        assert_eq!(late.state, TaskState::Running, "the hand runs the deadline, and only it knows");
        assert!(late.because.ends_with("its deadline has passed"), "{}", late.because);
    }

    #[test]
    fn what_a_receipt_says_of_stops_the_brain_knows_nothing_of() {
        let with = |exit, cause| {
            let facts = after(running(JobKind::Command), [News::Receipt(receipt(exit, cause, 0))]);
            (state(&facts), code(&facts))
        };
        let killed = || Exit::Signaled { signal: 9, core_dumped: false };
        assert_eq!(
            with(killed(), Cause::Stop { id: "by hand".into() }),
            (TaskState::Cancelled, Some("CANCELLED"))
        );
        assert_eq!(with(killed(), Cause::Deadline { after_ms: 1 }), (TaskState::Failed, Some("TIMEOUT")));
        assert_eq!(with(killed(), Cause::OwnEnd), (TaskState::Failed, Some("COMMAND_FAILED")));
        let unknown = Exit::Unknown { why: "the keeper was lost".into() };
        assert_eq!(with(unknown, Cause::KeeperLost), (TaskState::Failed, Some("JOB_LOST")));
    }

    #[test]
    fn a_person_who_stops_a_task_cancels_it_whatever_its_exit() {
        for by in STOPPERS {
            let stopped = after(running(JobKind::Command), [stop("s1", by)]);
            assert_eq!(state(&stopped), TaskState::Stopping, "accepted is not done");
            let ended = after(stopped.clone(), [exited(0, 0)]);
            let expected = if by.is_a_person() { TaskState::Cancelled } else { TaskState::Succeeded };
            assert_eq!(state(&ended), expected, "{by:?}");
            let outcome = project_task(&ended, NOW).outcome.unwrap();
            assert_eq!(outcome.exit, Exit::Exited { code: 0 }, "the fact is kept");
            let lost = after(stopped.clone(), [News::Seen(Seen::Unknown)]);
            assert_eq!(state(&lost), TaskState::Stopping);
            assert!(project_task(&lost, NOW).because.contains("lost its keeper"));
            let gone = after(lost, [destroyed()]);
            let expected = if by.is_a_person() { TaskState::Cancelled } else { TaskState::Failed };
            assert_eq!(state(&gone), expected, "{by:?}");
        }
    }

    #[test]
    fn a_stop_before_a_hand_was_asked() {
        for (by, expected, expected_code) in [
            (StopBy::Person, TaskState::Cancelled, "CANCELLED"),
            (StopBy::System, TaskState::Cancelled, "CANCELLED"),
            (StopBy::Deadline, TaskState::Failed, "TIMEOUT"),
        ] {
            let mut facts = after(reserved(JobKind::Command), [stop("s1", by)]);
            assert_eq!(state(&facts), TaskState::Stopping);
            assert_eq!(facts.learn(ASKED, NOW), Err(Refused::StoppedFirst));
            let facts = after(facts, [refused(NoStart::StoppedFirst)]);
            assert_eq!((state(&facts), code(&facts)), (expected, Some(expected_code)), "{by:?}");
            assert_eq!(result_state(&facts), ResultState::Readable, "nothing ran, and that is known");
        }
    }

    #[test]
    fn a_stop_of_a_task_that_is_over_changes_nothing() {
        for news in [exited(0, 0), destroyed()] {
            let before = after(running(JobKind::Command), [news]);
            let mut facts = before.clone();
            for by in STOPPERS {
                let News::Stop(asked) = stop("late", by) else { unreachable!() };
                assert_eq!(facts.learn(News::Stop(asked), NOW), Ok(Learned::Unchanged));
            }
            assert_eq!(facts, before);
        }
    }

    #[test]
    fn a_refusal_counts_once_no_request_can_arrive_any_more() {
        let full = || refused(NoStart::Refused { code: "LIMIT".into() });
        let mut once = after(reserved(JobKind::Command), [ASKED]);
        assert_eq!(once.clone().learn(full(), NOW), Ok(Learned::Changed), "it answers the only request");
        let until = UnixMicros(30);
        assert_eq!(once.learn(News::Asked { expires: until }, NOW), Ok(Learned::Changed));
        for why in [full(), refused(NoStart::NotFound)] {
            assert_eq!(once.clone().learn(why.clone(), until), Err(Refused::MayStillStart { until }));
            assert_eq!(once.clone().learn(why, UnixMicros(31)), Ok(Learned::Changed));
        }
        let mut admitted = running(JobKind::Command);
        assert_eq!(admitted.learn(full(), UnixMicros(99)), Err(Refused::StartDecided));
    }

    #[test]
    fn what_is_about_something_else_is_refused() {
        let mut facts = running(JobKind::Command);
        let before = facts.clone();
        let other: JobId = "0000000000000001.1.1".parse().unwrap();
        let mut of_other = receipt(Exit::Exited { code: 0 }, Cause::OwnEnd, 0);
        of_other.job_id = other;
        let mut of_other_sandbox = receipt(Exit::Exited { code: 0 }, Cause::OwnEnd, 0);
        of_other_sandbox.sandbox_generation = SandboxGeneration(8);
        let mut of_other_generation = receipt(Exit::Exited { code: 0 }, Cause::OwnEnd, 0);
        of_other_generation.generation = Generation(2);
        let News::Destroyed(mut replacement) = destroyed() else { unreachable!() };
        replacement.generation = SandboxGeneration(8);
        let (known, told) = (SandboxGeneration(7), SandboxGeneration(8));
        for (news, expected) in [
            (News::Admitted { job_id: other }, Refused::OtherJob { known: job(), told: other }),
            (
                News::Admitted { job_id: job().next_attempt() },
                Refused::OtherAttempt { known: Attempt::FIRST, told: Attempt::FIRST.next() },
            ),
            (News::Receipt(of_other), Refused::OtherJob { known: job(), told: other }),
            (News::Receipt(of_other_sandbox), Refused::OtherSandbox { known, told }),
            (
                News::Receipt(of_other_generation),
                Refused::OtherGeneration { known: Generation(3), told: Generation(2) },
            ),
            (News::Destroyed(replacement), Refused::OtherSandbox { known, told }),
            (ASKED, Refused::StartDecided),
            (News::Carried, Refused::ResultPending),
            (News::Told(ToldBy::Read), Refused::NotHandedOff),
        ] {
            assert_eq!(facts.learn(news.clone(), NOW), Err(expected), "{news:?}");
        }
        assert_eq!(facts, before);
        for news in [exited(0, 0), attested(), News::Seen(Seen::Running), News::Committed(Cursor(1))] {
            assert_eq!(reserved(JobKind::Command).learn(news.clone(), NOW), Err(Refused::NotAsked));
            let mut asked = after(reserved(JobKind::Command), [ASKED]);
            assert_eq!(asked.learn(news, NOW), Err(Refused::NotAdmitted));
        }
    }

    #[test]
    fn how_far_a_result_has_come() {
        let missing =
            |from, why| ResultState::Unavailable { missing: Unavailable { from: Cursor(from), why } };
        let of = |news: Vec<News>| result_state(&after(running(JobKind::Command), news));
        let commit = |cursor| News::Committed(Cursor(cursor));
        let removed = || News::Unavailable(UnavailableWhy::Removed);
        assert_eq!(of(vec![commit(5)]), ResultState::Pending, "it is not over");
        assert_eq!(of(vec![exited(0, 5)]), ResultState::Pending, "its output is not committed");
        assert_eq!(of(vec![exited(0, 5), commit(4)]), ResultState::Pending);
        assert_eq!(of(vec![exited(0, 5), commit(5)]), ResultState::Readable);
        assert_eq!(of(vec![commit(5), exited(0, 5)]), ResultState::Readable);
        assert_eq!(of(vec![exited(0, 0)]), ResultState::Readable, "it is known to have put out nothing");
        assert_eq!(
            of(vec![commit(2), exited(0, 5), removed()]),
            missing(2, UnavailableWhy::Removed),
            "never an empty success"
        );
        assert_eq!(of(vec![commit(2), destroyed()]), missing(2, UnavailableWhy::SandboxDestroyed));
        assert_eq!(of(vec![attested()]), ResultState::Pending, "a person's word is no end");
        let delivered = |by| ResultState::Delivered { by, missing: None };
        let off = || News::HandedOff(HandOffWhy::Cutover);
        assert_eq!(of(vec![exited(0, 0), News::Carried]), delivered(DeliveredBy::Reply));
        assert_eq!(of(vec![exited(0, 0), off(), News::Told(ToldBy::Event)]), delivered(DeliveredBy::Event));
        assert_eq!(of(vec![off(), exited(0, 0), News::Told(ToldBy::Read)]), delivered(DeliveredBy::Read));
        assert_eq!(
            of(vec![off(), exited(0, 1), News::Told(ToldBy::Stop)]),
            ResultState::Pending,
            "discarded, and still to be committed"
        );
        let mut past = after(running(JobKind::Command), [exited(0, 5)]);
        let (end, told) = (Cursor(5), Cursor(6));
        assert_eq!(past.learn(commit(6), NOW), Err(Refused::PastTheEnd { end, told }));
        let mut lost = after(running(JobKind::Command), [removed()]);
        assert_eq!(lost.learn(commit(6), NOW), Ok(Learned::Unchanged), "what was said to be lost stays so");
    }

    #[test]
    fn a_later_attempt_follows_only_an_end() {
        let second = Some(Attempt::FIRST.next());
        let lost = after(running(JobKind::Command), [News::Seen(Seen::Unknown)]);
        assert_eq!(next_attempt(&reserved(JobKind::Command)), None);
        assert_eq!(next_attempt(&after(reserved(JobKind::Command), [ASKED, News::AnswerLost])), None);
        assert_eq!(next_attempt(&lost), None, "unknown is not dead");
        for news in [exited(1, 0), destroyed(), attested()] {
            assert_eq!(next_attempt(&after(lost.clone(), [news])), second);
        }
        let word = after(lost, [attested()]);
        assert!(
            !word.occupies() && word.ended().is_none(),
            "a person's word frees its place and proves nothing"
        );
    }

    #[test]
    fn who_owes_what() {
        let owes = |facts: &TaskFacts| {
            let owed = project_task(facts, NOW).obligations;
            let owed = owed.into_iter().filter(|owed| owed.settled_by.is_none());
            owed.map(|owed| (owed.what, owed.owed_by)).collect::<Vec<_>>()
        };
        let rest = [(Owing::Output, Authority::Brain), (Owing::Delivery, Authority::Run)];
        let first = |what, by| [&[(what, by)][..], &rest].concat();
        let running = || running(JobKind::Command);
        let with = |news| after(running(), [news]);
        for (facts, by) in [
            (running(), Authority::Job(Party::Warden)),
            (with(News::Seen(Seen::Unknown)), Authority::Job(Party::Settler)),
            (with(News::Seen(Seen::Unreachable)), Authority::Hand),
            (with(attested()), Authority::Provider),
        ] {
            assert_eq!(owes(&facts), first(Owing::End, by));
        }
        assert_eq!(owes(&reserved(JobKind::Command))[0], (Owing::Start, Authority::Brain));
        assert_eq!(owes(&after(reserved(JobKind::Command), [ASKED]))[0], (Owing::Start, Authority::Hand));
        assert_eq!(owes(&with(exited(0, 5))), rest);
        assert_eq!(owes(&with(exited(0, 0))), rest[1..]);
        assert_eq!(owes(&after(running(), [exited(0, 0), News::Carried])), []);
        let service = after(super::samples::running(JobKind::Service), [exited(0, 0)]);
        assert_eq!(owes(&service), [], "a service owes no completion");
    }

    proptest! {
        /// Whatever becomes known in whatever order: an end is final and rests on evidence, what is not over is owed by
        /// somebody, stops and hand-offs are never taken back, and what is refused or known changes nothing.
        #[test]
        fn facts_only_grow(
            service: bool,
            steps in prop::collection::vec((any_news(), 0u64..9), 0..40),
        ) {
            let kind = if service { JobKind::Service } else { JobKind::Command };
            let (mut facts, mut now) = (reserved(kind), 0);
            for (news, pause) in steps {
                now += pause;
                let now = UnixMicros(now);
                let (before, was) = (facts.clone(), project_task(&facts, now));
                let learned = facts.learn(news.clone(), now);
                prop_assert_eq!(learned == Ok(Learned::Changed), facts != before, "{:?} {:?}", news, learned);
                if !matches!(news, News::Asked { .. }) {
                    let mut again = facts.clone();
                    prop_assert_ne!(again.learn(news, now), Ok(Learned::Changed), "twice is once");
                }

                let is = project_task(&facts, now);
                if was.state.is_terminal() {
                    prop_assert_eq!((is.state, &is.because), (was.state, &was.because));
                    prop_assert_eq!(&is.outcome, &was.outcome);
                }
                prop_assert_eq!(is.state.is_terminal(), facts.ended().is_some());
                prop_assert_eq!(is.state.is_terminal(), is.outcome.is_some());
                let owed = is.obligations.iter().filter(|owed| owed.settled_by.is_none());
                if !is.state.is_terminal() {
                    prop_assert!(owed.clone().any(|owed| matches!(owed.what, Owing::Start | Owing::End)));
                    if facts.stop.is_some() {
                        prop_assert_eq!(is.state, TaskState::Stopping);
                    }
                }
                if facts.stopped_by_a_person().is_some() && is.state.is_terminal() {
                    prop_assert_eq!(is.state, TaskState::Cancelled);
                }

                if let Some(stop) = &before.stop {
                    let after = facts.stop.as_ref().unwrap();
                    prop_assert!(after == stop || (after.by.is_a_person() && !stop.by.is_a_person()));
                }
                match (before.hand_off, facts.hand_off) {
                    (HandOff::Undecided, _) | (HandOff::Carried { .. }, HandOff::Carried { .. }) => {}
                    (HandOff::HandedOff { at, .. }, HandOff::HandedOff { at: after, .. }) => {
                        prop_assert_eq!(at, after);
                    }
                    (before, after) => prop_assert!(false, "{:?} became {:?}", before, after),
                }
                prop_assert!(facts.committed >= before.committed);
                if let ResultState::Delivered { .. } = result_state(&before) {
                    prop_assert_eq!(result_state(&facts), result_state(&before));
                }
            }
        }
    }
}
