//! Promises about commands, and what is known of each of their executions.
//!
//! What is known of an attempt is one document, [`TaskFacts`]: `outlast_core` says what news may be learnt, what state it
//! all comes to, and what is owed. Here it is read under the lock of the task's row, changed, and written, together with
//! what follows from it: the place it takes in its sandbox, the cursor, the event that is owed.

use crate::error::StoreError;
use crate::ids::{ConversationId, EventId, PrincipalId, RunId, TaskId, TenantId};
use crate::store::{Op, Query};
use crate::tables::hands::{self, Claim, HandId};
use crate::tables::{conversations, events};
use crate::tx::Tx;
use crate::value::{Row, document};
use crate::values;
use outlast_core::cutover::Mode;
use outlast_core::delivery::{DiscardReason, event_id, owed_event};
use outlast_core::id::{Attempt, Generation, SandboxGeneration};
use outlast_core::spec::JobKind;
use outlast_core::task::{
    Ended, HandOff, HandOffWhy, Learned, News, Owner, Refused, Reserved as Reservation, Start, TaskFacts,
    Told, ToldBy, next_attempt,
};
use outlast_core::time::{Millis, UnixMicros};

const TABLE: &str = "tasks";

/// A task and what is known of its latest attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Where it runs.
    pub hand: HandId,
    /// The call's identity, within conversation and principal.
    pub key: String,
    /// Of the command.
    pub digest: String,
    /// The command, a JSON document.
    pub work: String,
    /// What was asked of the reply.
    pub mode: Mode,
    /// Grows with each change.
    pub revision: u64,
    /// What is known.
    pub facts: TaskFacts,
}

impl Task {
    fn of(row: &Row) -> Result<Task, StoreError> {
        Ok(Task {
            id: row.named(0)?,
            hand: HandId { sandbox: row.named(1)?, generation: SandboxGeneration(row.count(2)?) },
            key: row.text(3)?,
            digest: row.text(4)?,
            work: row.text(5)?,
            mode: row.json(6)?,
            revision: row.count(7)?,
            facts: row.json(8)?,
        })
    }
}

/// Reserves a task before any hand is asked, or finds the one of this call. A new one is there when this returns, and takes
/// one of its sandbox's places until it is over.
#[derive(Debug, Clone)]
pub struct Reserve {
    /// The id of a new one.
    pub id: TaskId,
    /// Whose.
    pub tenant: TenantId,
    /// Where.
    pub conversation: ConversationId,
    /// Under which run, which must be open and this person's.
    pub run: RunId,
    /// Who starts it.
    pub principal: PrincipalId,
    /// Where it is to run.
    pub hand: HandId,
    /// The call's identity.
    pub key: String,
    /// Of the command.
    pub digest: String,
    /// The command.
    pub work: String,
    /// Whether it owes a completion.
    pub kind: JobKind,
    /// What is asked of the reply.
    pub mode: Mode,
    /// How long it may take; the moment is fixed now.
    pub deadline: Option<Millis>,
    /// How many may be unsettled in a sandbox.
    pub most_unsettled: u32,
}

/// What became of a reservation.
#[derive(Debug, Clone, PartialEq)]
pub enum Reserved {
    /// It is new.
    New(Box<Task>),
    /// This call has a task.
    Existing(Box<Task>),
    /// This call has a task of another command.
    Conflict(Box<Task>),
    /// The sandbox has as many unsettled tasks as it may have, and these are the oldest of them.
    Full(Vec<TaskId>),
    /// There is no such conversation, run or sandbox for this person.
    NotFound(&'static str),
    /// The run began under a generation that has been closed, or is closed itself.
    Closed(Generation),
    /// The sandbox's incarnation was given up.
    Retired,
}

/// The unsettled tasks that a refusal names.
const NAMED: u32 = 16;

impl Op for Reserve {
    const NAME: &'static str = "tasks.reserve";
    type Out = Reserved;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Reserved, StoreError> {
        let Some(generation) = conversations::lock(tx, &self.tenant, &self.conversation).await? else {
            return Ok(Reserved::NotFound("conversation"));
        };
        if let Some(there) = of_call(tx, &self.conversation, &self.principal, &self.key).await? {
            return Ok(match () {
                // This very reservation, whose answer was lost.
                () if there.id == self.id => Reserved::New(Box::new(there)),
                () if there.digest == self.digest => Reserved::Existing(Box::new(there)),
                () => Reserved::Conflict(Box::new(there)),
            });
        }
        let run = tx
            .find(
                "runs",
                "SELECT generation, closed_at FROM runs \
                 WHERE id = $1 AND tenant = $2 AND conversation = $3 AND principal = $4",
                values![&self.run, &self.tenant, &self.conversation, &self.principal],
            )
            .await?;
        let Some(run) = run else { return Ok(Reserved::NotFound("run")) };
        if Generation(run.count(0)?) != generation || !run.is_null(1) {
            return Ok(Reserved::Closed(generation));
        }
        let hand = tx
            .find(
                "hands",
                "SELECT retired_at FROM hands WHERE sandbox = $1 AND generation = $2 AND tenant = $3 FOR NO KEY UPDATE",
                values![&self.hand.sandbox, self.hand.generation, &self.tenant],
            )
            .await?;
        let Some(hand) = hand else { return Ok(Reserved::NotFound("sandbox")) };
        if !hand.is_null(0) {
            return Ok(Reserved::Retired);
        }
        let counted = tx
            .find(
                TABLE,
                "SELECT count(*) FROM tasks WHERE sandbox = $1 AND sandbox_generation = $2 AND occupies = 1",
                values![&self.hand.sandbox, self.hand.generation],
            )
            .await?;
        if counted.map_or(Ok(0), |row| row.count(0))? >= u64::from(self.most_unsettled) {
            return Ok(Reserved::Full(occupying(tx, &self.hand, NAMED).await?));
        }
        let now = tx.now().await?;
        let owner = Owner {
            tenant: self.tenant.clone(),
            conversation: self.conversation.clone(),
            run: self.run.clone(),
            principal: self.principal.clone(),
            generation,
            sandbox_generation: self.hand.generation,
        };
        let deadline =
            self.deadline.map(|length| UnixMicros(now.0.saturating_add(length.0.saturating_mul(1000))));
        let reserved = Reservation { at: now, deadline, kind: self.kind, attempt: Attempt::FIRST };
        let mut facts = TaskFacts::reserve(self.id.clone(), owner, reserved);
        let decide_by = match self.mode {
            Mode::Foreground { limit, .. } if self.kind == JobKind::Command => Some(limit),
            _ => {
                // Whoever asked for it waits for nothing.
                let _ = facts.learn(News::HandedOff(HandOffWhy::Background), now);
                None
            }
        };
        tx.execute(
            "INSERT INTO tasks (id, tenant, conversation, run, principal, generation, sandbox, sandbox_generation, \
             call_key, digest, work, mode, attempt, decide_by, occupies, revision) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 1, 1)",
            values![
                &self.id,
                &self.tenant,
                &self.conversation,
                &self.run,
                &self.principal,
                generation,
                &self.hand.sandbox,
                self.hand.generation,
                &self.key,
                &self.digest,
                &self.work,
                document(&self.mode)?,
                Attempt::FIRST,
                decide_by
            ],
        )
        .await?;
        insert_attempt(tx, &facts).await?;
        let task = locked(tx, &self.id).await?;
        task.map(|task| Reserved::New(Box::new(task)))
            .ok_or_else(|| StoreError::Damaged { table: TABLE, what: "a new task is not there".to_owned() })
    }
}

async fn insert_attempt(tx: &mut Tx<'_>, facts: &TaskFacts) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO attempts (task, number, facts, cursor) VALUES ($1, $2, $3, $4)",
        values![&facts.id, facts.reserved.attempt, document(facts)?, facts.committed],
    )
    .await?;
    Ok(())
}

async fn of_call(
    tx: &mut Tx<'_>,
    conversation: &ConversationId,
    principal: &PrincipalId,
    key: &str,
) -> Result<Option<Task>, StoreError> {
    let row = tx
        .find(
            TABLE,
            "SELECT id FROM tasks WHERE conversation = $1 AND principal = $2 AND call_key = $3",
            values![conversation, principal, key],
        )
        .await?;
    match row {
        None => Ok(None),
        Some(row) => locked(tx, &row.named(0)?).await,
    }
}

async fn occupying(tx: &mut Tx<'_>, hand: &HandId, limit: u32) -> Result<Vec<TaskId>, StoreError> {
    let rows = tx
        .query(
            TABLE,
            "SELECT id FROM tasks WHERE sandbox = $1 AND sandbox_generation = $2 AND occupies = 1 ORDER BY id LIMIT $3",
            values![&hand.sandbox, hand.generation, limit],
        )
        .await?;
    rows.iter().map(|row| row.named(0)).collect()
}

/// Locks a task's row, and reads it with its latest attempt.
pub(crate) async fn locked(tx: &mut Tx<'_>, id: &TaskId) -> Result<Option<Task>, StoreError> {
    let there = tx.find(TABLE, "SELECT 1 FROM tasks WHERE id = $1 FOR NO KEY UPDATE", values![id]).await?;
    if there.is_none() {
        return Ok(None);
    }
    read(tx, id).await
}

async fn read(tx: &mut Tx<'_>, id: &TaskId) -> Result<Option<Task>, StoreError> {
    let row = tx
        .find(
            TABLE,
            "SELECT t.id, t.sandbox, t.sandbox_generation, t.call_key, t.digest, t.work, t.mode, t.revision, a.facts \
             FROM tasks t JOIN attempts a ON a.task = t.id AND a.number = t.attempt WHERE t.id = $1",
            values![id],
        )
        .await?;
    row.as_ref().map(Task::of).transpose()
}

/// Writes what is known now, and what follows from it. The task's row is locked.
pub(crate) async fn changed(tx: &mut Tx<'_>, facts: &TaskFacts) -> Result<Option<EventId>, StoreError> {
    let end = match facts.ended() {
        Some(Ended::Receipt(receipt)) => Some(receipt.output.final_cursor),
        _ => None,
    };
    tx.execute(
        "UPDATE attempts SET facts = $3, cursor = $4, final_cursor = $5 WHERE task = $1 AND number = $2",
        values![&facts.id, facts.reserved.attempt, document(facts)?, facts.committed, end],
    )
    .await?;
    tx.execute(
        "UPDATE tasks SET occupies = $2, decide_by = CASE WHEN $3 = 1 THEN decide_by ELSE NULL END, \
         revision = revision + 1 WHERE id = $1",
        values![&facts.id, facts.occupies(), facts.hand_off == HandOff::Undecided],
    )
    .await?;
    if let HandOff::HandedOff { told: Some(Told { by: ToldBy::Read, .. }), .. } = facts.hand_off {
        // It is not announced again.
        events::discard(tx, &event_id(facts), DiscardReason::AlreadyRead).await?;
    }
    // In the transaction of the fact that owes it, so that neither is ever there alone.
    match owed_event(facts) {
        Some(event) => events::insert(tx, &event).await.map(|new| new.then_some(event.id)),
        None => Ok(None),
    }
}

/// Has a task's latest attempt learn news. What it then knows is durable when this returns, and with it the event that is
/// owed.
#[derive(Debug, Clone)]
pub struct Learn {
    /// Who says so: a worker with its claim on the hand. Nobody for what the brain decides by itself.
    pub claim: Option<Claim>,
    /// About which task.
    pub task: TaskId,
    /// About which of its attempts.
    pub attempt: Attempt,
    /// What.
    pub news: News,
}

/// What became of news.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It was learnt, or was known.
    Learnt {
        /// Whether it changed anything.
        learned: Learned,
        /// The task as it is now.
        task: Box<Task>,
        /// The event that is owed since.
        event: Option<EventId>,
    },
    /// It cannot be true, or must not be done. Nothing was changed.
    Refused(Refused),
    /// It is about an attempt that is not the latest.
    OtherAttempt(Attempt),
    /// There is no such task on that hand.
    NotFound,
}

impl Op for Learn {
    const NAME: &'static str = "tasks.learn";
    type Out = Answer;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Answer, StoreError> {
        if let Some(claim) = &self.claim {
            hands::check(tx, claim).await?;
        }
        let Some(mut task) = locked(tx, &self.task).await? else { return Ok(Answer::NotFound) };
        if self.claim.as_ref().is_some_and(|claim| claim.hand != task.hand) {
            return Ok(Answer::NotFound);
        }
        if task.facts.reserved.attempt != self.attempt {
            return Ok(Answer::OtherAttempt(task.facts.reserved.attempt));
        }
        let now = tx.now().await?;
        match task.facts.learn(self.news.clone(), now) {
            Err(refused) => Ok(Answer::Refused(refused)),
            Ok(learned) => {
                let mut event = None;
                if learned == Learned::Changed {
                    event = changed(tx, &task.facts).await?;
                    task.revision += 1;
                }
                Ok(Answer::Learnt { learned, task: Box::new(task), event })
            }
        }
    }
}

/// Reserves the next attempt of a task, over the proof of the death of the one before it. Asked for by name only.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Whose.
    pub tenant: TenantId,
    /// Which task.
    pub task: TaskId,
    /// The attempt that is to follow.
    pub over: Attempt,
    /// How long it may take.
    pub deadline: Option<Millis>,
    /// How many may be unsettled in a sandbox.
    pub most_unsettled: u32,
}

/// What became of a retry.
#[derive(Debug, Clone, PartialEq)]
pub enum Retried {
    /// The next attempt is reserved.
    Reserved(Box<Task>),
    /// The one before it is not proved dead.
    NotProvedDead,
    /// Another one is the latest.
    OtherAttempt(Attempt),
    /// Its generation was closed.
    Closed(Generation),
    /// The sandbox has as many unsettled tasks as it may have.
    Full(Vec<TaskId>),
    /// There is no such task.
    NotFound,
}

impl Op for Retry {
    const NAME: &'static str = "tasks.retry";
    type Out = Retried;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Retried, StoreError> {
        let Some(before) = read(tx, &self.task).await?.filter(|task| task.facts.owner.tenant == self.tenant)
        else {
            return Ok(Retried::NotFound);
        };
        let owner = before.facts.owner.clone();
        let generation = conversations::lock(tx, &self.tenant, &owner.conversation).await?;
        let Some(task) = locked(tx, &self.task).await? else { return Ok(Retried::NotFound) };
        let latest = task.facts.reserved.attempt;
        if latest == self.over.next() && matches!(task.facts.start, Start::NotAsked) {
            // This very retry, whose answer was lost, or another one like it.
            return Ok(Retried::Reserved(Box::new(task)));
        }
        if latest != self.over {
            return Ok(Retried::OtherAttempt(latest));
        }
        if generation != Some(owner.generation) {
            return Ok(Retried::Closed(generation.unwrap_or(owner.generation)));
        }
        let Some(attempt) = next_attempt(&task.facts) else { return Ok(Retried::NotProvedDead) };
        tx.find(
            "hands",
            "SELECT 1 FROM hands WHERE sandbox = $1 AND generation = $2 FOR NO KEY UPDATE",
            values![&task.hand.sandbox, task.hand.generation],
        )
        .await?;
        let occupying = occupying(tx, &task.hand, self.most_unsettled).await?;
        if occupying.len() as u64 >= u64::from(self.most_unsettled) {
            return Ok(Retried::Full(occupying));
        }
        let now = tx.now().await?;
        let deadline =
            self.deadline.map(|length| UnixMicros(now.0.saturating_add(length.0.saturating_mul(1000))));
        let reserved = Reservation { at: now, deadline, kind: task.facts.reserved.kind, attempt };
        let facts = TaskFacts::reserve(self.task.clone(), owner, reserved);
        insert_attempt(tx, &facts).await?;
        tx.execute(
            "UPDATE tasks SET attempt = $2, occupies = 1, revision = revision + 1 WHERE id = $1",
            values![&self.task, attempt],
        )
        .await?;
        let task = read(tx, &self.task).await?;
        Ok(task.map_or(Retried::NotFound, |task| Retried::Reserved(Box::new(task))))
    }
}

/// The task of this id, where it is this tenant's.
#[derive(Debug, Clone)]
pub struct Find {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: TaskId,
}

impl Query for Find {
    type Out = Option<Task>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Task>, StoreError> {
        Ok(read(tx, &self.id).await?.filter(|task| task.facts.owner.tenant == self.tenant))
    }
}

/// The tasks of a conversation, in the order they were reserved in.
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub tenant: TenantId,
    /// Where.
    pub conversation: ConversationId,
    /// Those behind this one.
    pub after: Option<TaskId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for List {
    type Out = Vec<Task>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Task>, StoreError> {
        let after = self.after.as_ref().map_or("", TaskId::as_str);
        let rows = tx
            .query(
                TABLE,
                "SELECT t.id, t.sandbox, t.sandbox_generation, t.call_key, t.digest, t.work, t.mode, t.revision, a.facts \
                 FROM tasks t JOIN attempts a ON a.task = t.id AND a.number = t.attempt \
                 WHERE t.tenant = $1 AND t.conversation = $2 AND t.id > $3 ORDER BY t.id LIMIT $4",
                values![&self.tenant, &self.conversation, after, self.limit],
            )
            .await?;
        rows.iter().map(Task::of).collect()
    }
}

/// What a worker has to watch: the tasks of a hand about which something is still owed by it, the oldest first.
#[derive(Debug, Clone)]
pub struct OfHand {
    /// Which hand.
    pub hand: HandId,
    /// Those behind this one.
    pub after: Option<TaskId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for OfHand {
    type Out = Vec<Task>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Task>, StoreError> {
        let after = self.after.as_ref().map_or("", TaskId::as_str);
        // One that is over is still watched while its output is not all in the command log.
        let rows = tx
            .query(
                TABLE,
                "SELECT t.id, t.sandbox, t.sandbox_generation, t.call_key, t.digest, t.work, t.mode, t.revision, a.facts \
                 FROM tasks t JOIN attempts a ON a.task = t.id AND a.number = t.attempt \
                 WHERE t.sandbox = $1 AND t.sandbox_generation = $2 AND t.id > $3 \
                 AND (t.occupies = 1 OR a.cursor < a.final_cursor) ORDER BY t.id LIMIT $4",
                values![&self.hand.sandbox, self.hand.generation, after, self.limit],
            )
            .await?;
        rows.iter().map(Task::of).collect()
    }
}

/// Tasks of which it is not decided who brings their results, and whose time for that was over so long ago: whoever waited
/// with an open reply has gone.
#[derive(Debug, Clone)]
pub struct Undecided {
    /// So long ago at least.
    pub since: Millis,
    /// So many at most.
    pub limit: u32,
}

impl Query for Undecided {
    type Out = Vec<Task>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Task>, StoreError> {
        let rows = tx
            .query(
                TABLE,
                "SELECT t.id, t.sandbox, t.sandbox_generation, t.call_key, t.digest, t.work, t.mode, t.revision, a.facts \
                 FROM tasks t JOIN attempts a ON a.task = t.id AND a.number = t.attempt \
                 WHERE t.decide_by < NOW_US - $1 ORDER BY t.decide_by LIMIT $2",
                values![self.since.0.saturating_mul(1000), self.limit],
            )
            .await?;
        rows.iter().map(Task::of).collect()
    }
}
