//! The schema, brought up to this version's.
//!
//! Migrations only go forward and only add, so that workers of the version before and of this one run at once. Each is
//! applied once, in a transaction with its own record, which holds its hash: a store whose record tells of another text, or
//! of a later version, is left as it is.

use crate::error::StoreError;
use crate::tx::{Dialect, translate};
use crate::{postgres, sqlite};
use deadpool_postgres::Object;
use rusqlite::Connection;

struct Migration {
    version: i64,
    name: &'static str,
    text: &'static str,
}

const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, name: "begin", text: include_str!("../migrations/0001_begin.sql") }];

/// The version that a store of this program has.
#[must_use]
pub fn latest() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS migrations (
    version BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    blake3 TEXT NOT NULL,
    applied_at BIGINT NOT NULL
)";
const APPLIED: &str = "SELECT version, blake3 FROM migrations ORDER BY version";
const RECORD: &str = "INSERT INTO migrations (version, name, blake3, applied_at) VALUES ($1, $2, $3, NOW_US)";
/// Any number that is nobody else's.
const ADVISORY_LOCK: i64 = 0x6f75_746c_6173_7400;

fn hash(migration: &Migration) -> String {
    blake3::hash(migration.text.as_bytes()).to_hex().to_string()
}

/// Those to apply, given those that are.
fn missing(applied: &[(i64, String)]) -> Result<&'static [Migration], StoreError> {
    for (version, blake3) in applied {
        let Some(known) = MIGRATIONS.iter().find(|known| known.version == *version) else {
            return Err(StoreError::TooNew { found: *version, known: latest() });
        };
        if hash(known) != *blake3 {
            return Err(StoreError::OtherMigration { version: *version });
        }
    }
    let done = applied.last().map_or(0, |(version, _)| *version);
    let first = MIGRATIONS.iter().position(|migration| migration.version > done).unwrap_or(MIGRATIONS.len());
    Ok(MIGRATIONS.get(first..).unwrap_or_default())
}

pub(crate) fn sqlite(connection: &mut Connection) -> Result<(), StoreError> {
    let words = |sql: &str| translate(Dialect::Sqlite, sql);
    let tx =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(sqlite::of)?;
    tx.execute_batch(TABLE).map_err(sqlite::of)?;
    let applied: Vec<(i64, String)> = {
        let mut statement = tx.prepare(APPLIED).map_err(sqlite::of)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(sqlite::of)?;
        rows.collect::<Result<_, _>>().map_err(sqlite::of)?
    };
    for migration in missing(&applied)? {
        tx.execute_batch(&words(migration.text)).map_err(sqlite::of)?;
        tx.execute(&words(RECORD), (migration.version, migration.name, hash(migration)))
            .map_err(sqlite::of)?;
    }
    tx.commit().map_err(sqlite::of)
}

pub(crate) async fn postgres(client: &mut Object) -> Result<(), StoreError> {
    let words = |sql: &str| translate(Dialect::Postgres, sql);
    let tx = client.transaction().await.map_err(postgres::of)?;
    // Workers that start at once apply them once.
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&ADVISORY_LOCK]).await.map_err(postgres::of)?;
    tx.batch_execute(TABLE).await.map_err(postgres::of)?;
    let rows = tx.query(APPLIED, &[]).await.map_err(postgres::of)?;
    let applied: Vec<(i64, String)> = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, tokio_postgres::Error>>()
        .map_err(postgres::of)?;
    for migration in missing(&applied)? {
        tx.batch_execute(&words(migration.text)).await.map_err(postgres::of)?;
        tx.execute(&words(RECORD), &[&migration.version, &migration.name, &hash(migration)])
            .await
            .map_err(postgres::of)?;
    }
    tx.commit().await.map_err(postgres::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_applied_decides_what_is_missing() {
        assert_eq!(missing(&[]).unwrap().len(), MIGRATIONS.len());
        let all: Vec<_> = MIGRATIONS.iter().map(|migration| (migration.version, hash(migration))).collect();
        assert!(missing(&all).unwrap().is_empty());
        let mut later = all.clone();
        later.push((latest() + 1, String::new()));
        assert!(matches!(missing(&later), Err(StoreError::TooNew { .. })));
        assert!(matches!(
            missing(&[(1, "other".to_owned())]),
            Err(StoreError::OtherMigration { version: 1 })
        ));
    }
}
