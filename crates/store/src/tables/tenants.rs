//! Whose everything is.

use crate::error::StoreError;
use crate::ids::TenantId;
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::Row;
use crate::values;
use outlast_core::time::UnixMicros;

const TABLE: &str = "tenants";

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Its name, for people.
    pub name: String,
    /// Since when it is there.
    pub created_at: UnixMicros,
}

impl Tenant {
    fn of(row: &Row) -> Result<Tenant, StoreError> {
        Ok(Tenant { id: row.named(0)?, name: row.text(1)?, created_at: UnixMicros(row.count(2)?) })
    }
}

/// Makes a tenant, or finds the one of this id.
#[derive(Debug, Clone)]
pub struct Create {
    /// Its id.
    pub id: TenantId,
    /// Its name.
    pub name: String,
}

impl Op for Create {
    const NAME: &'static str = "tenants.create";
    type Out = Tenant;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Tenant, StoreError> {
        tx.execute(
            "INSERT INTO tenants (id, name, created_at) VALUES ($1, $2, NOW_US) ON CONFLICT (id) DO NOTHING",
            values![&self.id, &self.name],
        )
        .await?;
        find(tx, &self.id)
            .await?
            .ok_or_else(|| StoreError::Damaged { table: TABLE, what: "it is not there".into() })
    }
}

async fn find(tx: &mut Tx<'_>, id: &TenantId) -> Result<Option<Tenant>, StoreError> {
    let row = tx.find(TABLE, "SELECT id, name, created_at FROM tenants WHERE id = $1", values![id]).await?;
    row.as_ref().map(Tenant::of).transpose()
}

/// The tenant of this id.
#[derive(Debug, Clone)]
pub struct Find(pub TenantId);

impl Query for Find {
    type Out = Option<Tenant>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Tenant>, StoreError> {
        find(tx, &self.0).await
    }
}
