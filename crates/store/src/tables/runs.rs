//! The work for one person's request.

use crate::error::StoreError;
use crate::ids::{ConversationId, PrincipalId, RunId, TenantId};
use crate::store::{Op, Query};
use crate::tables::conversations;
use crate::tx::Tx;
use crate::value::Row;
use crate::values;
use outlast_core::id::Generation;
use outlast_core::time::UnixMicros;

const TABLE: &str = "runs";

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Where.
    pub conversation: ConversationId,
    /// Whose request it works on.
    pub principal: PrincipalId,
    /// The conversation's generation when it was opened.
    pub generation: Generation,
    /// When that was.
    pub opened_at: UnixMicros,
    /// When its end was asked for.
    pub stopped_at: Option<UnixMicros>,
    /// When it was over.
    pub closed_at: Option<UnixMicros>,
}

impl Run {
    fn of(row: &Row) -> Result<Run, StoreError> {
        let time = |row: &Row, column| row.count(column).map(UnixMicros);
        Ok(Run {
            id: row.named(0)?,
            tenant: row.named(1)?,
            conversation: row.named(2)?,
            principal: row.named(3)?,
            generation: Generation(row.count(4)?),
            opened_at: time(row, 5)?,
            stopped_at: row.option(6, time)?,
            closed_at: row.option(7, time)?,
        })
    }
}

/// Opens a run of a person in a conversation, or finds the one that is open.
#[derive(Debug, Clone)]
pub struct Open {
    /// The id of a new one.
    pub id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Where.
    pub conversation: ConversationId,
    /// For whom.
    pub principal: PrincipalId,
}

impl Op for Open {
    const NAME: &'static str = "runs.open";
    /// Nothing where there is no such conversation.
    type Out = Option<Run>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Run>, StoreError> {
        let Some(generation) = conversations::lock(tx, &self.tenant, &self.conversation).await? else {
            return Ok(None);
        };
        let open = tx
            .find(
                TABLE,
                "SELECT id, tenant, conversation, principal, generation, opened_at, stopped_at, closed_at \
                 FROM runs WHERE conversation = $1 AND principal = $2 AND closed_at IS NULL",
                values![&self.conversation, &self.principal],
            )
            .await?;
        if let Some(row) = open {
            return Run::of(&row).map(Some);
        }
        tx.execute(
            "INSERT INTO runs (id, tenant, conversation, principal, generation, opened_at) \
             VALUES ($1, $2, $3, $4, $5, NOW_US) ON CONFLICT (id) DO NOTHING",
            values![&self.id, &self.tenant, &self.conversation, &self.principal, generation],
        )
        .await?;
        find(tx, &self.tenant, &self.id).await
    }
}

async fn find(tx: &mut Tx<'_>, tenant: &TenantId, id: &RunId) -> Result<Option<Run>, StoreError> {
    let row = tx
        .find(
            TABLE,
            "SELECT id, tenant, conversation, principal, generation, opened_at, stopped_at, closed_at \
             FROM runs WHERE tenant = $1 AND id = $2",
            values![tenant, id],
        )
        .await?;
    row.as_ref().map(Run::of).transpose()
}

/// The run of this id, where it is this tenant's.
#[derive(Debug, Clone)]
pub struct Find {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: RunId,
}

impl Query for Find {
    type Out = Option<Run>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Run>, StoreError> {
        find(tx, &self.tenant, &self.id).await
    }
}

/// Ends a run: nothing more is reserved under it.
#[derive(Debug, Clone)]
pub struct Close {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: RunId,
}

impl Op for Close {
    const NAME: &'static str = "runs.close";
    /// Whether there is such a run.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Some(run) = find(tx, &self.tenant, &self.id).await? else { return Ok(false) };
        conversations::lock(tx, &self.tenant, &run.conversation).await?;
        tx.execute(
            "UPDATE runs SET closed_at = COALESCE(closed_at, NOW_US) WHERE id = $1",
            values![&self.id],
        )
        .await?;
        Ok(true)
    }
}
