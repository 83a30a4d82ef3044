//! Facts that are owed to runs. An event is there from the transaction of its fact on, and owed until its owner acknowledges
//! it or it is discarded.

use crate::error::StoreError;
use crate::ids::{ConversationId, EventId, PrincipalId, RunId, TenantId};
use crate::store::{Op, Query};
use crate::tables::tasks;
use crate::tx::Tx;
use crate::value::{Row, document};
use crate::values;
use outlast_core::delivery::{DiscardReason, EventFacts, EventKind, EventState};
use outlast_core::id::{Generation, SandboxGeneration};
use outlast_core::task::{Learned, News, Owner, ToldBy};
use outlast_core::time::UnixMicros;

const TABLE: &str = "events";

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is.
    pub facts: EventFacts,
    /// Since when it is owed.
    pub created_at: UnixMicros,
}

impl Event {
    fn of(row: &Row) -> Result<Event, StoreError> {
        let id: String = row.text(0)?;
        let damaged = |what: String| StoreError::Damaged { table: TABLE, what };
        let kind: EventKind =
            serde_json::from_value(row.text(7)?.into()).map_err(|error| damaged(error.to_string()))?;
        let facts = EventFacts {
            id: id.parse().map_err(|_| damaged(format!("an id {id:?}")))?,
            kind,
            owner: Owner {
                tenant: row.named(1)?,
                conversation: row.named(2)?,
                run: row.named(3)?,
                principal: row.named(4)?,
                generation: Generation(row.count(5)?),
                sandbox_generation: SandboxGeneration(row.count(6)?),
            },
            state: row.json(8)?,
        };
        Ok(Event { facts, created_at: UnixMicros(row.count(9)?) })
    }
}

/// Inserts an event where its id is not there; says whether it is new.
pub(crate) async fn insert(tx: &mut Tx<'_>, event: &EventFacts) -> Result<bool, StoreError> {
    let kind = document(&event.kind)?;
    let Owner { tenant, conversation, run, principal, generation, sandbox_generation } = &event.owner;
    let inserted = tx
        .execute(
            "INSERT INTO events (id, tenant, conversation, run, principal, task, generation, sandbox_generation, kind, \
             state, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NOW_US) ON CONFLICT (id) DO NOTHING",
            values![
                &event.id,
                tenant,
                conversation,
                run,
                principal,
                &event.id.task,
                *generation,
                *sandbox_generation,
                kind.trim_matches('"'),
                document(&event.state)?
            ],
        )
        .await?;
    Ok(inserted == 1)
}

/// The events that are owed to a person, the oldest first.
///
/// Found by their state, never by the last id that was seen: what commits late is seen as well.
#[derive(Debug, Clone)]
pub struct Owed {
    /// Whose.
    pub tenant: TenantId,
    /// To whom; to everybody of the tenant where nobody is named.
    pub principal: Option<PrincipalId>,
    /// In which conversation; in all.
    pub conversation: Option<ConversationId>,
    /// To which run; to all.
    pub run: Option<RunId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for Owed {
    type Out = Vec<Event>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Event>, StoreError> {
        let rows = tx
            .query(
                TABLE,
                "SELECT id, tenant, conversation, run, principal, generation, sandbox_generation, kind, state, created_at \
                 FROM events WHERE tenant = $1 AND over_at IS NULL AND ($2 = '' OR principal = $2) \
                 AND ($3 = '' OR conversation = $3) AND ($4 = '' OR run = $4) ORDER BY created_at, id LIMIT $5",
                values![
                    &self.tenant,
                    self.principal.as_ref().map_or("", PrincipalId::as_str),
                    self.conversation.as_ref().map_or("", ConversationId::as_str),
                    self.run.as_ref().map_or("", RunId::as_str),
                    self.limit
                ],
            )
            .await?;
        rows.iter().map(Event::of).collect()
    }
}

/// Acknowledges an event: its owner holds it durably, and is never told again.
#[derive(Debug, Clone)]
pub struct Acknowledge {
    /// Whose.
    pub tenant: TenantId,
    /// Who holds it now.
    pub principal: PrincipalId,
    /// Which.
    pub id: EventId,
}

/// What became of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// It is, from now on.
    Now,
    /// It was, or was discarded.
    Before,
    /// There is no such event for this person.
    NotFound,
}

impl Op for Acknowledge {
    const NAME: &'static str = "events.acknowledge";
    type Out = Acknowledged;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Acknowledged, StoreError> {
        // The task's row first, as everything about a task does, so that no two wait for each other.
        let task = tasks::locked(tx, &self.id.task).await?;
        let event = locked(tx, &self.id).await?.filter(|event| {
            event.facts.owner.tenant == self.tenant && event.facts.owner.principal == self.principal
        });
        let (Some(mut task), Some(event)) = (task, event) else { return Ok(Acknowledged::NotFound) };
        match event.facts.state {
            EventState::Acknowledged | EventState::Discarded { .. } => return Ok(Acknowledged::Before),
            EventState::Pending | EventState::Claimed { .. } => {}
        }
        end(tx, &self.id, &EventState::Acknowledged).await?;
        let now = tx.now().await?;
        // Of an attempt that has a successor the task's facts say nothing any more.
        if task.facts.reserved.attempt == self.id.attempt
            && task.facts.learn(News::Told(ToldBy::Event), now) == Ok(Learned::Changed)
        {
            tasks::changed(tx, &task.facts).await?;
        }
        Ok(Acknowledged::Now)
    }
}

/// Discards an event that need not be told any more.
#[derive(Debug, Clone)]
pub struct Discard {
    /// Which.
    pub id: EventId,
    /// Why.
    pub reason: DiscardReason,
}

impl Op for Discard {
    const NAME: &'static str = "events.discard";
    /// Whether it was owed.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        tasks::locked(tx, &self.id.task).await?;
        discard(tx, &self.id, self.reason).await
    }
}

/// Discards an event whose task's row is locked; says whether it was owed.
pub(crate) async fn discard(
    tx: &mut Tx<'_>,
    id: &EventId,
    reason: DiscardReason,
) -> Result<bool, StoreError> {
    end(tx, id, &EventState::Discarded { reason }).await
}

async fn end(tx: &mut Tx<'_>, id: &EventId, state: &EventState) -> Result<bool, StoreError> {
    let changed = tx
        .execute(
            "UPDATE events SET state = $2, over_at = NOW_US WHERE id = $1 AND over_at IS NULL",
            values![id, document(state)?],
        )
        .await?;
    Ok(changed == 1)
}

async fn locked(tx: &mut Tx<'_>, id: &EventId) -> Result<Option<Event>, StoreError> {
    let row = tx
        .find(
            TABLE,
            "SELECT id, tenant, conversation, run, principal, generation, sandbox_generation, kind, state, created_at \
             FROM events WHERE id = $1 FOR NO KEY UPDATE",
            values![id],
        )
        .await?;
    row.as_ref().map(Event::of).transpose()
}
