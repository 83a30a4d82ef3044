//! Who did what: appended, never changed, each entry with the hash of the one before it in its own.

use crate::error::StoreError;
use crate::ids::{PrincipalId, TenantId};
use crate::store::Query;
use crate::tx::Tx;
use crate::values;
use outlast_core::time::UnixMicros;

const TABLE: &str = "audit";

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place, from 1 without gaps.
    pub number: u64,
    /// When.
    pub at: UnixMicros,
    /// Who; nobody for what the brain did by itself.
    pub principal: Option<String>,
    /// What, as `table.verb`.
    pub what: String,
    /// About which record.
    pub about: String,
    /// BLAKE3 over the hash before it and all of the above.
    pub blake3: String,
}

fn chained(before: &str, number: u64, at: UnixMicros, principal: &str, what: &str, about: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [before, &number.to_string(), &at.0.to_string(), principal, what, about] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Writes an entry down, in the transaction of what it speaks of.
pub(crate) async fn note(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    principal: Option<&PrincipalId>,
    what: &'static str,
    about: &str,
) -> Result<(), StoreError> {
    // One after the other: the tenant's row is what they take turns on.
    tx.find("tenants", "SELECT id FROM tenants WHERE id = $1 FOR NO KEY UPDATE", values![tenant]).await?;
    let last = tx
        .find(
            TABLE,
            "SELECT number, blake3 FROM audit WHERE tenant = $1 ORDER BY number DESC LIMIT 1",
            values![tenant],
        )
        .await?;
    let (number, before) = match last {
        None => (1, String::new()),
        Some(row) => (row.count(0)? + 1, row.text(1)?),
    };
    let at = tx.now().await?;
    let who = principal.map_or("", PrincipalId::as_str);
    tx.execute(
        "INSERT INTO audit (tenant, number, at, principal, what, about, blake3) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        values![
            tenant,
            number,
            at,
            principal,
            what,
            about,
            chained(&before, number, at, who, what, about)
        ],
    )
    .await?;
    Ok(())
}

/// A tenant's entries in their order.
#[derive(Debug, Clone)]
pub struct List {
    /// Whose.
    pub tenant: TenantId,
    /// Those behind this one; 0 for all.
    pub after: u64,
    /// So many at most.
    pub limit: u32,
}

impl Query for List {
    type Out = Vec<Entry>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Entry>, StoreError> {
        let rows = tx
            .query(
                TABLE,
                "SELECT number, at, principal, what, about, blake3 FROM audit \
                 WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $3",
                values![&self.tenant, self.after, self.limit],
            )
            .await?;
        let entry = |row: &crate::value::Row| {
            Ok(Entry {
                number: row.count(0)?,
                at: UnixMicros(row.count(1)?),
                principal: row.option(2, crate::value::Row::text)?,
                what: row.text(3)?,
                about: row.text(4)?,
                blake3: row.text(5)?,
            })
        };
        rows.iter().map(entry).collect()
    }
}

/// The first entry whose hash does not follow from those before it, in entries from the first on.
#[must_use]
pub fn broken(entries: &[Entry]) -> Option<u64> {
    let mut before = "";
    for (place, entry) in entries.iter().enumerate() {
        let who = entry.principal.as_deref().unwrap_or_default();
        let hash = chained(before, entry.number, entry.at, who, &entry.what, &entry.about);
        if entry.number != place as u64 + 1 || hash != entry.blake3 {
            return Some(entry.number);
        }
        before = &entry.blake3;
    }
    None
}
