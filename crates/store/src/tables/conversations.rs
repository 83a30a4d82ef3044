//! Where work is asked for. A conversation's row is the root that its runs, tasks and stops are decided under.

use crate::error::StoreError;
use crate::ids::{ConversationId, PrincipalId, TenantId};
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::{Row, document};
use crate::values;
use outlast_core::cutover::OnLimit;
use outlast_core::id::Generation;
use outlast_core::time::UnixMicros;

const TABLE: &str = "conversations";

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// Its id.
    pub id: ConversationId,
    /// Whose.
    pub tenant: TenantId,
    /// The session of a client that has no conversations, where it stands for one.
    pub client_session: Option<String>,
    /// Who opened it.
    pub opened_by: PrincipalId,
    /// Its title, for people.
    pub title: String,
    /// Its generation now.
    pub generation: Generation,
    /// What is done with commands that outlast their reply.
    pub on_limit: OnLimit,
    /// Since when it is there.
    pub created_at: UnixMicros,
}

impl Conversation {
    fn of(row: &Row) -> Result<Conversation, StoreError> {
        Ok(Conversation {
            id: row.named(0)?,
            tenant: row.named(1)?,
            client_session: row.option(2, Row::text)?,
            opened_by: row.named(3)?,
            title: row.text(4)?,
            generation: Generation(row.count(5)?),
            on_limit: row.json(6)?,
            created_at: UnixMicros(row.count(7)?),
        })
    }
}

/// Opens a conversation, or finds the one of this id, or of this client session of the principal.
#[derive(Debug, Clone)]
pub struct Open {
    /// The id of a new one.
    pub id: ConversationId,
    /// Whose.
    pub tenant: TenantId,
    /// Who opens it.
    pub principal: PrincipalId,
    /// The client session it stands for.
    pub client_session: Option<String>,
    /// Its title.
    pub title: String,
    /// What is to be done with commands that outlast their reply.
    pub on_limit: OnLimit,
}

impl Op for Open {
    const NAME: &'static str = "conversations.open";
    type Out = Conversation;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Conversation, StoreError> {
        tx.execute(
            "INSERT INTO conversations (id, tenant, client_session, opened_by, title, generation, on_limit, created_at) \
             VALUES ($1, $2, $3, $4, $5, 0, $6, NOW_US) ON CONFLICT DO NOTHING",
            values![
                &self.id,
                &self.tenant,
                self.client_session.as_ref(),
                &self.principal,
                &self.title,
                document(&self.on_limit)?
            ],
        )
        .await?;
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, client_session, opened_by, title, generation, on_limit, created_at \
                 FROM conversations WHERE tenant = $1 AND (id = $2 OR (opened_by = $3 AND client_session = $4))",
                values![&self.tenant, &self.id, &self.principal, self.client_session.as_ref()],
            )
            .await?;
        row.as_ref().map(Conversation::of).transpose()?.ok_or_else(|| StoreError::Damaged {
            table: TABLE,
            what: format!("{} is another tenant's", self.id),
        })
    }
}

/// The conversation of this id, where it is this tenant's.
#[derive(Debug, Clone)]
pub struct Find {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: ConversationId,
}

impl Query for Find {
    type Out = Option<Conversation>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Conversation>, StoreError> {
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, client_session, opened_by, title, generation, on_limit, created_at \
                 FROM conversations WHERE tenant = $1 AND id = $2",
                values![&self.tenant, &self.id],
            )
            .await?;
        row.as_ref().map(Conversation::of).transpose()
    }
}

/// A tenant's conversations, in the order they were opened in.
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub tenant: TenantId,
    /// Those behind this one.
    pub after: Option<ConversationId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for List {
    type Out = Vec<Conversation>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Conversation>, StoreError> {
        let after = self.after.as_ref().map_or("", ConversationId::as_str);
        let rows = tx
            .query(
                TABLE,
                "SELECT id, tenant, client_session, opened_by, title, generation, on_limit, created_at \
                 FROM conversations WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3",
                values![&self.tenant, after, self.limit],
            )
            .await?;
        rows.iter().map(Conversation::of).collect()
    }
}

/// Locks a conversation's row and reads its generation; nothing where it is not this tenant's.
pub(crate) async fn lock(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    id: &ConversationId,
) -> Result<Option<Generation>, StoreError> {
    let row = tx
        .find(
            TABLE,
            "SELECT generation FROM conversations WHERE tenant = $1 AND id = $2 FOR NO KEY UPDATE",
            values![tenant, id],
        )
        .await?;
    row.map(|row| row.count(0).map(Generation)).transpose()
}
