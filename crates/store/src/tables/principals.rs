//! Who calls: people and programs.

use crate::error::StoreError;
use crate::ids::{PrincipalId, TenantId};
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::Row;
use crate::values;

const TABLE: &str = "principals";

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Its id.
    pub id: PrincipalId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name, for people.
    pub name: String,
}

impl Principal {
    fn of(row: &Row) -> Result<Principal, StoreError> {
        Ok(Principal { id: row.named(0)?, tenant: row.named(1)?, name: row.text(2)? })
    }
}

/// Makes a principal, or finds the one of this id.
#[derive(Debug, Clone)]
pub struct Create(pub Principal);

impl Op for Create {
    const NAME: &'static str = "principals.create";
    type Out = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Principal { id, tenant, name } = &self.0;
        tx.execute(
            "INSERT INTO principals (id, tenant, name, created_at) VALUES ($1, $2, $3, NOW_US) \
             ON CONFLICT (id) DO NOTHING",
            values![id, tenant, name],
        )
        .await?;
        Ok(())
    }
}

/// The principals of a tenant, in the order they were made in.
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub tenant: TenantId,
    /// Those behind this one.
    pub after: Option<PrincipalId>,
    /// So many at most.
    pub limit: u32,
}

impl Query for List {
    type Out = Vec<Principal>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Principal>, StoreError> {
        let after = self.after.as_ref().map_or("", PrincipalId::as_str);
        let rows = tx
            .query(
                TABLE,
                "SELECT id, tenant, name FROM principals WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3",
                values![&self.tenant, after, self.limit],
            )
            .await?;
        rows.iter().map(Principal::of).collect()
    }
}
