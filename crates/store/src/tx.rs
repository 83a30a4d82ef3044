//! A transaction, the same for both databases.
//!
//! Statements are written once, with `$1`, `$2`, … and these words, which are put into the database's own:
//!
//! | word | PostgreSQL | SQLite |
//! |---|---|---|
//! | `NOW_US` | `clock_timestamp()` in microseconds: the time of the statement, not of the transaction's begin | its own clock, in microseconds |
//! | `FOR NO KEY UPDATE`, `FOR SHARE`, `SKIP LOCKED` | as they are | nothing: there is one writer, and it has the file |
//! | `BYTEA` | as it is | `BLOB` |
//!
//! A row is locked by `FOR NO KEY UPDATE`, never by `FOR UPDATE`: rows that refer to it can be inserted meanwhile, so that no
//! two transactions wait for each other over a reference. The order of locks is conversation, hand, task, event, tenant.
//!
//! A lease is judged by `NOW_US` alone, so workers whose clocks differ agree on it.

use crate::error::StoreError;
use crate::value::{Row, Value};
use crate::{postgres, sqlite};

/// A transaction. What was done in it is there for others once it is committed, all of it or nothing.
pub enum Tx<'t> {
    /// Of a SQLite file.
    Sqlite(sqlite::SqliteTx<'t>),
    /// Of a PostgreSQL database.
    Postgres(postgres::PostgresTx<'t>),
}

impl Tx<'_> {
    /// Asks for rows of `table` (which is for errors).
    ///
    /// # Errors
    /// [`StoreError`]; the transaction is to be given up then.
    pub async fn query(
        &mut self,
        table: &'static str,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<Row>, StoreError> {
        match self {
            Tx::Sqlite(tx) => tx.query(table, sql, values),
            Tx::Postgres(tx) => tx.query(table, sql, values).await,
        }
    }

    /// Asks for one row, where there is one.
    ///
    /// # Errors
    /// As [`Tx::query`].
    pub async fn find(
        &mut self,
        table: &'static str,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.query(table, sql, values).await?.into_iter().next())
    }

    /// Changes rows, and says how many.
    ///
    /// # Errors
    /// As [`Tx::query`].
    pub async fn execute(&mut self, sql: &'static str, values: &[Value]) -> Result<u64, StoreError> {
        match self {
            Tx::Sqlite(tx) => tx.execute(sql, values),
            Tx::Postgres(tx) => tx.execute(sql, values).await,
        }
    }

    /// The database's own time, in microseconds since 1970.
    ///
    /// # Errors
    /// As [`Tx::query`].
    pub async fn now(&mut self) -> Result<outlast_core::time::UnixMicros, StoreError> {
        let row = self.find("time", "SELECT NOW_US", &[]).await?;
        let row =
            row.ok_or_else(|| StoreError::Damaged { table: "time", what: "there is none".to_owned() })?;
        Ok(outlast_core::time::UnixMicros(row.count(0)?))
    }
}

/// Which database a statement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// A statement in the words of one database.
pub(crate) fn translate(dialect: Dialect, sql: &str) -> String {
    match dialect {
        Dialect::Sqlite => sql
            .replace("NOW_US", "CAST(unixepoch('subsec') * 1000000 AS INTEGER)")
            .replace(" FOR NO KEY UPDATE", "")
            .replace(" FOR SHARE", "")
            .replace(" SKIP LOCKED", "")
            .replace("BYTEA", "BLOB"),
        Dialect::Postgres => {
            sql.replace("NOW_US", "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)")
        }
    }
}
