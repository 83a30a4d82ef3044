//! Places to run. What incarnation of one there is now is told by its [`super::hands`].

use crate::error::StoreError;
use crate::ids::{SandboxId, TenantId};
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::Row;
use crate::values;

const TABLE: &str = "sandboxes";

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Whose.
    pub tenant: TenantId,
    /// Its name, one of its tenant's.
    pub name: String,
    /// Which provider makes it.
    pub provider: String,
}

impl Sandbox {
    fn of(row: &Row) -> Result<Sandbox, StoreError> {
        Ok(Sandbox { id: row.named(0)?, tenant: row.named(1)?, name: row.text(2)?, provider: row.text(3)? })
    }
}

/// Records a sandbox, or finds the tenant's one of this name.
#[derive(Debug, Clone)]
pub struct Record(pub Sandbox);

impl Op for Record {
    const NAME: &'static str = "sandboxes.record";
    type Out = Sandbox;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Sandbox, StoreError> {
        let Sandbox { id, tenant, name, provider } = &self.0;
        tx.execute(
            "INSERT INTO sandboxes (id, tenant, name, provider, created_at) VALUES ($1, $2, $3, $4, NOW_US) \
             ON CONFLICT DO NOTHING",
            values![id, tenant, name, provider],
        )
        .await?;
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, name, provider FROM sandboxes WHERE tenant = $1 AND name = $2",
                values![tenant, name],
            )
            .await?;
        row.as_ref()
            .map(Sandbox::of)
            .transpose()?
            .ok_or_else(|| StoreError::Damaged { table: TABLE, what: format!("{id} is another tenant's") })
    }
}

/// The sandbox of this id, where it is this tenant's.
#[derive(Debug, Clone)]
pub struct Find {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: SandboxId,
}

impl Query for Find {
    type Out = Option<Sandbox>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Sandbox>, StoreError> {
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, name, provider FROM sandboxes WHERE tenant = $1 AND id = $2",
                values![&self.tenant, &self.id],
            )
            .await?;
        row.as_ref().map(Sandbox::of).transpose()
    }
}

/// A tenant's sandboxes, in the order they were recorded in.
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub tenant: TenantId,
    /// Those behind this one.
    pub after: Option<SandboxId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for List {
    type Out = Vec<Sandbox>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Sandbox>, StoreError> {
        let after = self.after.as_ref().map_or("", SandboxId::as_str);
        let rows = tx
            .query(
                TABLE,
                "SELECT id, tenant, name, provider FROM sandboxes WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3",
                values![&self.tenant, after, self.limit],
            )
            .await?;
        rows.iter().map(Sandbox::of).collect()
    }
}
