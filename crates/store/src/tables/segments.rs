//! The command log: what jobs wrote, as records that tile it from its beginning to the cursor.

use crate::error::StoreError;
use crate::ids::{TaskId, TenantId};
use crate::store::{Op, Query};
use crate::tables::hands::{self, Claim};
use crate::tables::tasks;
use crate::tx::Tx;
use crate::value::Row;
use crate::values;
use outlast_core::id::{Attempt, Cursor};
use outlast_core::task::{Learned, News};

const TABLE: &str = "segments";

/// Where the bytes of a segment are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the store.
    Inline(Vec<u8>),
    /// In the object of this name, in this version where the objects have versions. It was durable before the segment was.
    Object {
        /// Its name.
        name: String,
        /// Its version.
        version: Option<String>,
    },
}

/// A piece of the command log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The cursor before its first byte.
    pub begins: Cursor,
    /// The cursor behind its last one.
    pub ends: Cursor,
    /// Its records: of which stream, how long, the bytes.
    pub place: Place,
    /// BLAKE3 of the records.
    pub blake3: String,
}

impl Segment {
    fn of(row: &Row) -> Result<Segment, StoreError> {
        let place = match (row.option(2, Row::bytes)?, row.option(3, Row::text)?) {
            (Some(bytes), None) => Place::Inline(bytes),
            (None, Some(name)) => Place::Object { name, version: row.option(4, Row::text)? },
            _ => {
                return Err(StoreError::Damaged {
                    table: TABLE,
                    what: "a segment is in no place, or in two".into(),
                });
            }
        };
        Ok(Segment {
            begins: Cursor(row.count(0)?),
            ends: Cursor(row.count(1)?),
            place,
            blake3: row.text(5)?,
        })
    }
}

/// Appends to the command log of an attempt and moves its cursor, both or neither.
#[derive(Debug, Clone)]
pub struct Append {
    /// Who writes.
    pub claim: Claim,
    /// Whose output.
    pub task: TaskId,
    /// Of which attempt.
    pub attempt: Attempt,
    /// What.
    pub segment: Segment,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is there, and the cursor behind it.
    Now,
    /// It, or more, was there already: the cursor is here.
    Before(Cursor),
    /// It does not begin where the log ends, which is here. Nothing was changed.
    Elsewhere(Cursor),
    /// There is no such attempt.
    NoSuchAttempt,
}

impl Op for Append {
    const NAME: &'static str = "segments.append";
    type Out = Appended;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Appended, StoreError> {
        hands::check(tx, &self.claim).await?;
        let Segment { begins, ends, place, blake3 } = &self.segment;
        let task = tasks::locked(tx, &self.task).await?.filter(|task| task.hand == self.claim.hand);
        let Some(mut task) = task.filter(|task| task.facts.reserved.attempt == self.attempt) else {
            return Ok(Appended::NoSuchAttempt);
        };
        let cursor = task.facts.committed;
        if cursor != *begins || ends <= begins {
            return Ok(if cursor >= *ends { Appended::Before(cursor) } else { Appended::Elsewhere(cursor) });
        }
        let now = tx.now().await?;
        if task.facts.learn(News::Committed(*ends), now) != Ok(Learned::Changed) {
            return Ok(Appended::Elsewhere(cursor));
        }
        tasks::changed(tx, &task.facts).await?;
        let (bytes, object, version) = match place {
            Place::Inline(bytes) => (Some(bytes.as_slice()), None, None),
            Place::Object { name, version } => (None, Some(name), version.as_ref()),
        };
        tx.execute(
            "INSERT INTO segments (task, attempt, begins, ends, bytes, object, object_version, blake3) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            values![&self.task, self.attempt, *begins, *ends, bytes, object, version, blake3],
        )
        .await?;
        Ok(Appended::Now)
    }
}

/// The segments of an attempt's log that lie behind a cursor, in their order, where the task is this tenant's.
#[derive(Debug, Clone)]
pub struct Behind {
    /// Whose.
    pub tenant: TenantId,
    /// Which task.
    pub task: TaskId,
    /// Which attempt.
    pub attempt: Attempt,
    /// From the one that holds this cursor on.
    pub from: Cursor,
    /// So many at most.
    pub limit: u32,
}

impl Query for Behind {
    type Out = Vec<Segment>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Segment>, StoreError> {
        let rows = tx
            .query(
                TABLE,
                "SELECT begins, ends, bytes, object, object_version, blake3 FROM segments \
                 WHERE task = $2 AND attempt = $3 AND ends > $4 \
                 AND EXISTS (SELECT 1 FROM tasks WHERE tasks.id = $2 AND tasks.tenant = $1) \
                 ORDER BY begins LIMIT $5",
                values![&self.tenant, &self.task, self.attempt, self.from, self.limit],
            )
            .await?;
        rows.iter().map(Segment::of).collect()
    }
}
