//! PostgreSQL: many workers, many connections.
//!
//! Transactions are READ COMMITTED: what an operation decides on it has locked by `FOR NO KEY UPDATE` or `FOR SHARE`, or compares
//! when it sets. One that a database has begin again (a deadlock, a lock not had in time) is begun again here. A transaction
//! runs in a task of its own, so that a caller that no longer waits breaks off none.

use crate::error::{Source, StoreError};
use crate::fault::{self, Fault, Faults, Point};
use crate::migrate;
use crate::store::{Op, Query};
use crate::tx::{Dialect, Tx, translate};
use crate::value::{Row, Value};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Transaction};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Config, IsolationLevel, NoTls};

/// Connections of one process.
const CONNECTIONS: usize = 16;
/// How long connecting, and waiting for a connection, may take.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);
/// How often a transaction is begun again because the database says so.
const BEGUN_AGAIN: u32 = 10;
/// What each connection begins with. A transaction that idles holds locks; a statement that hangs holds its worker.
const SESSION: &str = "-c synchronous_commit=on -c statement_timeout=30s -c lock_timeout=10s \
     -c idle_in_transaction_session_timeout=30s -c default_transaction_isolation=read\\ committed";

pub(crate) struct Postgres {
    pool: Pool,
    faults: Option<Arc<dyn Faults>>,
}

impl Postgres {
    pub(crate) async fn open(url: &str, faults: Option<Arc<dyn Faults>>) -> Result<Postgres, StoreError> {
        let mut config: Config = url.parse().map_err(|_| StoreError::Location {
            text: crate::Location::Postgres(url.to_owned()).to_string(),
            expected: "say postgres://USER:PASSWORD@HOST:PORT/DATABASE",
        })?;
        config.options(match config.get_options() {
            Some(own) => format!("{SESSION} {own}"),
            None => SESSION.to_owned(),
        });
        config.application_name("outlast").connect_timeout(CONNECTED_WITHIN);
        // A peer that is gone without a word is noticed.
        config.keepalives(true).keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(15));
        let manager =
            Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECTED_WITHIN))
            .create_timeout(Some(CONNECTED_WITHIN))
            .build()
            .map_err(|error| StoreError::Unavailable(error.into()))?;
        let mut first = pool.get().await.map_err(pooled)?;
        check_settings(&first).await?;
        migrate::postgres(&mut first).await?;
        drop(first);
        Ok(Postgres { pool, faults })
    }

    pub(crate) async fn write<O: Op>(&self, op: Arc<O>) -> Result<O::Out, StoreError> {
        let (pool, faults) = (self.pool.clone(), self.faults.clone());
        let whole = tokio::spawn(async move {
            for turn in 0..BEGUN_AGAIN {
                match write_once(&pool, faults.as_deref(), &*op).await {
                    Err(Failed::Again(_)) if turn + 1 < BEGUN_AGAIN => {
                        // Not all at once again.
                        let jitter = u64::from(std::process::id() ^ turn.wrapping_mul(2_654_435_761)) % 10;
                        tokio::time::sleep(Duration::from_millis(u64::from(turn) * 10 + jitter)).await;
                    }
                    done => return done.map_err(Failed::error),
                }
            }
            Err(StoreError::Unavailable("the database had the transaction begin again too often".into()))
        });
        whole.await.map_err(|error| StoreError::Unknown(error.into()))?
    }

    pub(crate) async fn read<Q: Query>(&self, query: Q) -> Result<Q::Out, StoreError> {
        let mut client = self.pool.get().await.map_err(pooled)?;
        let built =
            client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let tx = built.start().await.map_err(of)?;
        let mut tx = Tx::Postgres(PostgresTx { tx });
        query.run(&mut tx).await
    }
}

/// How a turn failed.
enum Failed {
    /// The database says that it may succeed when it is begun again.
    Again(StoreError),
    Whole(StoreError),
}

impl Failed {
    fn error(self) -> StoreError {
        let (Failed::Again(error) | Failed::Whole(error)) = self;
        error
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        let again = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        let code = match &error {
            StoreError::Unavailable(source) => {
                source.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code())
            }
            _ => None,
        };
        if code.is_some_and(|code| again.contains(code)) {
            Failed::Again(error)
        } else {
            Failed::Whole(error)
        }
    }
}

async fn write_once<O: Op>(pool: &Pool, faults: Option<&dyn Faults>, op: &O) -> Result<O::Out, Failed> {
    let at = |point| faults.and_then(|faults| faults.at(O::NAME, point));
    let lost = || StoreError::Unavailable("the connection was lost".into());
    let mut client = pool.get().await.map_err(pooled)?;
    match at(Point::Begin) {
        None => {}
        Some(Fault::Kill) => fault::kill(),
        Some(Fault::Lost) => return Err(lost().into()),
    }
    let (out, committed) = {
        let mut tx = Tx::Postgres(PostgresTx { tx: client.transaction().await.map_err(of)? });
        let out = op.run(&mut tx).await?;
        match at(Point::BeforeCommit) {
            None => {}
            Some(Fault::Kill) => fault::kill(),
            Some(Fault::Lost) => return Err(lost().into()),
        }
        let Tx::Postgres(PostgresTx { tx }) = tx else { return Err(lost().into()) };
        (out, tx.commit().await)
    };
    match (committed, at(Point::AfterCommit)) {
        (Ok(()), None) => Ok(out),
        (Ok(()), Some(Fault::Kill)) => fault::kill(),
        (Ok(()), Some(Fault::Lost)) => Err(StoreError::Unknown("the answer was lost".into()).into()),
        // Refused by the database, it is not there. Without a word from it nobody knows.
        (Err(error), _) if error.as_db_error().is_some() => Err(of(error).into()),
        (Err(error), _) => {
            drop(Object::take(client));
            Err(StoreError::Unknown(error.into()).into())
        }
    }
}

async fn check_settings(client: &Object) -> Result<(), StoreError> {
    for (setting, wanted, allowed, why) in [
        ("fsync", "on", &["on"][..], "a crash of the machine would take everything"),
        ("full_page_writes", "on", &["on"], "a power cut could leave half a page"),
        (
            "synchronous_commit",
            "on",
            &["on", "remote_apply", "remote_write"],
            "acknowledged receipts, events and cursors could be lost",
        ),
        ("data_sync_retry", "off", &["off"], "bytes that a failed sync has lost would be taken for written"),
    ] {
        let row = client.query_one(&format!("SHOW {setting}"), &[]).await.map_err(of)?;
        let found: String = row.try_get(0).map_err(of)?;
        if !allowed.contains(&found.as_str()) {
            return Err(StoreError::Setting { setting, found, wanted, why });
        }
    }
    Ok(())
}

fn pooled(error: deadpool_postgres::PoolError) -> StoreError {
    match error {
        deadpool_postgres::PoolError::Backend(error) => of(error),
        other => StoreError::Unavailable(other.into()),
    }
}

pub(crate) fn of(error: tokio_postgres::Error) -> StoreError {
    let code = error.code().cloned();
    let closed = error.is_closed() || code.is_none();
    let source: Source = error.into();
    let Some(code) = code else { return StoreError::Unavailable(source) };
    let class = code.code().get(..2).unwrap_or_default();
    match class {
        _ if code == SqlState::DISK_FULL || class == "58" => StoreError::Full(source),
        "XX" => StoreError::Damaged { table: "the database", what: source.to_string() },
        // Connections, resources, an operator's doing, transactions to begin again, what is read-only for now.
        "08" | "53" | "57" | "40" | "25" => StoreError::Unavailable(source),
        _ if code == SqlState::LOCK_NOT_AVAILABLE || closed => StoreError::Unavailable(source),
        _ => StoreError::Refused(source),
    }
}

/// A transaction of one connection.
pub struct PostgresTx<'t> {
    tx: Transaction<'t>,
}

impl PostgresTx<'_> {
    pub(crate) async fn query(
        &mut self,
        table: &'static str,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.tx.prepare_cached(translated(sql)).await.map_err(of)?;
        let rows = self.tx.query(&statement, &borrowed(values)).await.map_err(of)?;
        let read = |row: &tokio_postgres::Row| {
            let column = |column| Ok(row.try_get::<_, Read>(column).map_err(of)?.0);
            Ok(Row { table, columns: (0..row.len()).map(column).collect::<Result<_, StoreError>>()? })
        };
        rows.iter().map(read).collect()
    }

    pub(crate) async fn execute(&mut self, sql: &'static str, values: &[Value]) -> Result<u64, StoreError> {
        let statement = self.tx.prepare_cached(translated(sql)).await.map_err(of)?;
        self.tx.execute(&statement, &borrowed(values)).await.map_err(of)
    }
}

fn borrowed(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            // The database infers what a parameter is from where it stands.
            Value::Int(number) if *kind == Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
            Value::Int(number) if *kind == Type::INT2 => i16::try_from(*number)?.to_sql(kind, out),
            Value::Int(number) if *kind == Type::BOOL => (*number != 0).to_sql(kind, out),
            Value::Int(number) => number.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT8, Type::INT4, Type::INT2, Type::BOOL, Type::TEXT, Type::VARCHAR, Type::BYTEA]
            .contains(kind)
    }

    to_sql_checked!();
}

/// A value as a column has it.
struct Read(Value);

impl<'r> FromSql<'r> for Read {
    fn from_sql(kind: &Type, raw: &'r [u8]) -> Result<Read, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Read(match *kind {
            Type::INT8 => Value::Int(i64::from_sql(kind, raw)?),
            Type::INT4 => Value::Int(i32::from_sql(kind, raw)?.into()),
            Type::INT2 => Value::Int(i16::from_sql(kind, raw)?.into()),
            Type::BOOL => Value::Int(bool::from_sql(kind, raw)?.into()),
            Type::BYTEA => Value::Bytes(Vec::from_sql(kind, raw)?),
            _ => Value::Text(String::from_sql(kind, raw)?),
        }))
    }

    fn from_sql_null(_: &Type) -> Result<Read, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Read(Value::Null))
    }

    fn accepts(kind: &Type) -> bool {
        <Value as ToSql>::accepts(kind)
    }
}

/// Each statement is put into PostgreSQL's words once.
fn translated(sql: &'static str) -> &'static str {
    static KNOWN: Mutex<Option<HashMap<(usize, usize), &'static str>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .get_or_insert_default()
        .entry((sql.as_ptr() as usize, sql.len()))
        .or_insert_with(|| Box::leak(translate(Dialect::Postgres, sql).into_boxed_str()))
}
