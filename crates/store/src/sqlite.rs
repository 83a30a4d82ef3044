//! SQLite: one process, one writer.
//!
//! Writes come in a queue to one thread that has the only writing connection. Whatever waits there when it looks is done in
//! one transaction, each operation in a savepoint of its own, and answered after the one commit: so the cost of a durable
//! commit is shared by all that came meanwhile. Reads have connections and threads of their own.

use crate::error::{Source, StoreError};
use crate::fault::{self, Fault, Faults, Point};
use crate::migrate;
use crate::store::{Op, Query};
use crate::tx::{Dialect, Tx, translate};
use crate::value::{Row, Value};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::FlockOperation;
use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::oneshot;

/// Operations in one transaction at most: a bound on what one failed commit takes with it, and on how long the first waits.
const TOGETHER: usize = 256;
/// Threads that read.
const READERS: usize = 3;
/// The oldest version without the faults known of it (a corruption of WAL files was mended in it).
const LEAST_VERSION: i32 = 3_051_003;
/// Statements that each connection keeps prepared.
const PREPARED: usize = 256;

type Work = Box<dyn FnOnce(&mut Connection) -> Answer + Send>;
type ReadWork = Box<dyn FnOnce(&mut Connection) + Send>;
/// Tells whoever waits, once it is known how the commit went.
type Answer = Box<dyn FnOnce(&Committed) + Send>;
type Committed = Result<(), Failed>;

#[derive(Clone)]
enum Failed {
    Full(String),
    Other(String),
}

pub(crate) struct Sqlite {
    work: Sender<Work>,
    reads: Sender<ReadWork>,
    faults: Option<Arc<dyn Faults>>,
    /// Held for as long as this is open.
    _lock: File,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, faults: Option<Arc<dyn Faults>>) -> Result<Sqlite, StoreError> {
        if rusqlite::version_number() < LEAST_VERSION {
            return Err(StoreError::Setting {
                setting: "the version of SQLite",
                found: rusqlite::version().to_owned(),
                wanted: "3.51.3 or later",
                why: "earlier ones can damage a write-ahead log",
            });
        }
        let lock = lock(path)?;
        let mut writer = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        migrate::sqlite(&mut writer)?;
        let (work, queue) = channel::<Work>();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let unavailable = |error: std::io::Error| StoreError::Unavailable(error.into());
        thread("store-write").spawn(move || write_for_ever(&mut writer, &queue)).map_err(unavailable)?;
        let (reads, queue) = channel::<ReadWork>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..READERS {
            let mut reader = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            reader.pragma_update(None, "query_only", true).map_err(of)?;
            let queue = Arc::clone(&queue);
            thread(&format!("store-read-{number}"))
                .spawn(move || read_for_ever(&mut reader, &queue))
                .map_err(unavailable)?;
        }
        Ok(Sqlite { work, reads, faults, _lock: lock })
    }

    pub(crate) async fn write<O: Op>(&self, op: Arc<O>) -> Result<O::Out, StoreError> {
        let (tell, told) = oneshot::channel();
        let faults = self.faults.clone();
        let work: Work = Box::new(move |connection| {
            let at = |point| faults.as_ref().and_then(|faults| faults.at(O::NAME, point));
            let done = in_savepoint(connection, |connection| {
                happen(at(Point::Begin))?;
                let mut tx = Tx::Sqlite(SqliteTx { connection });
                let out = at_once(op.run(&mut tx))?;
                happen(at(Point::BeforeCommit))?;
                Ok(out)
            });
            Box::new(move |committed| {
                let answer = match (done, committed) {
                    (Err(error), _) => Err(error),
                    (Ok(_), Err(failed)) => Err(failed.error()),
                    (Ok(out), Ok(())) => {
                        match faults.and_then(|faults| faults.at(O::NAME, Point::AfterCommit)) {
                            None => Ok(out),
                            Some(Fault::Kill) => fault::kill(),
                            Some(Fault::Lost) => Err(StoreError::Unknown("the answer was lost".into())),
                        }
                    }
                };
                let _ = tell.send(answer);
            })
        });
        let gone = || StoreError::Unavailable("the store's thread has ended".into());
        self.work.send(work).map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }

    pub(crate) async fn read<Q: Query>(&self, query: Q) -> Result<Q::Out, StoreError> {
        let (tell, told) = oneshot::channel();
        let work: ReadWork = Box::new(move |connection| {
            // One moment for all it reads.
            let answer = connection.execute_batch("BEGIN").map_err(of).and_then(|()| {
                let out = at_once(query.run(&mut Tx::Sqlite(SqliteTx { connection: &mut *connection })));
                let _ = connection.execute_batch("ROLLBACK");
                out
            });
            let _ = tell.send(answer);
        });
        let gone = || StoreError::Unavailable("the store's threads have ended".into());
        self.reads.send(work).map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}

fn happen(fault: Option<Fault>) -> Result<(), StoreError> {
    match fault {
        None => Ok(()),
        Some(Fault::Kill) => fault::kill(),
        Some(Fault::Lost) => Err(StoreError::Unavailable("the connection was lost".into())),
    }
}

/// Runs what never waits: all that an operation awaits is this database, which answers at once.
fn at_once<T>(future: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => {
            Err(StoreError::Refused("an operation waits for something else than the store".into()))
        }
    }
}

fn write_for_ever(connection: &mut Connection, queue: &Receiver<Work>) {
    while let Ok(first) = queue.recv() {
        // IMMEDIATE: one that begins by reading could not be made a writer later.
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        let mut answers = Vec::new();
        if let Err(error) = begun {
            let failed = Err(Failed::of(&error));
            // It is run for its answer, outside any transaction, where it changes nothing: its savepoint is rolled back.
            answers.push(refuse(first, connection));
            answers.into_iter().for_each(|answer: Answer| answer(&failed));
            continue;
        }
        answers.push(first(connection));
        while answers.len() < TOGETHER
            && let Ok(next) = queue.try_recv()
        {
            answers.push(next(connection));
        }
        let committed = connection.execute_batch("COMMIT").map_err(|error| Failed::of(&error));
        if committed.is_err() {
            let _ = connection.execute_batch("ROLLBACK");
        }
        answers.into_iter().for_each(|answer| answer(&committed));
    }
}

/// Does an operation and undoes it: it is told that the commit failed.
fn refuse(work: Work, connection: &mut Connection) -> Answer {
    let _ = connection.execute_batch("SAVEPOINT refused");
    let answer = work(connection);
    let _ = connection.execute_batch("ROLLBACK TO refused; RELEASE refused");
    answer
}

fn read_for_ever(connection: &mut Connection, queue: &Mutex<Receiver<ReadWork>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = next else { return };
        work(connection);
    }
}

/// What fails in it is undone, and nothing else of the transaction.
fn in_savepoint<T>(
    connection: &mut Connection,
    work: impl FnOnce(&mut Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("SAVEPOINT operation").map_err(of)?;
    let done = work(&mut *connection);
    let end = if done.is_ok() { "RELEASE operation" } else { "ROLLBACK TO operation; RELEASE operation" };
    connection.execute_batch(end).map_err(of)?;
    done
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(of)?;
    connection.set_prepared_statement_cache_capacity(PREPARED);
    // They are the connection's, not the file's, but for the first: each is set, and read back.
    for (setting, value, wanted, why) in [
        ("journal_mode", "WAL", "wal", "readers would wait for the writer"),
        ("synchronous", "FULL", "2", "a power cut would take acknowledged records"),
        ("busy_timeout", "5000", "5000", "a moment's lock would be an error"),
        ("foreign_keys", "ON", "1", "records could be left without what they belong to"),
        ("trusted_schema", "OFF", "0", "a damaged file could run functions"),
    ] {
        connection.pragma_update(None, setting, value).map_err(of)?;
        let found: String = connection
            .pragma_query_value(None, setting, |row| {
                Ok(match row.get_ref(0)? {
                    ValueRef::Integer(number) => number.to_string(),
                    other => other.as_str().unwrap_or_default().to_owned(),
                })
            })
            .map_err(of)?;
        if !found.eq_ignore_ascii_case(wanted) {
            return Err(StoreError::Setting { setting, found, wanted, why });
        }
    }
    Ok(connection)
}

/// Takes the file for this process.
fn lock(path: &Path) -> Result<File, StoreError> {
    let unavailable = |error: std::io::Error| StoreError::Unavailable(error.into());
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let beside = PathBuf::from(name);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&beside)
        .map_err(unavailable)?;
    if let Err(errno) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        return match errno {
            rustix::io::Errno::WOULDBLOCK => {
                Err(StoreError::Held { path: path.to_owned(), pid: pid.trim().to_owned() })
            }
            errno => Err(unavailable(errno.into())),
        };
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    // For people alone: who has it is told by the lock.
    drop(written);
    Ok(file)
}

impl Failed {
    fn of(error: &rusqlite::Error) -> Failed {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => Failed::Full(error.to_string()),
            _ => Failed::Other(error.to_string()),
        }
    }

    fn error(&self) -> StoreError {
        match self {
            Failed::Full(why) => StoreError::Full(why.clone().into()),
            Failed::Other(why) => StoreError::Unavailable(why.clone().into()),
        }
    }
}

pub(crate) fn of(error: rusqlite::Error) -> StoreError {
    let code = error.sqlite_error_code();
    let source: Source = error.into();
    match code {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => StoreError::Full(source),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen) => {
            StoreError::Unavailable(source)
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { table: "the file", what: source.to_string() }
        }
        _ => StoreError::Refused(source),
    }
}

/// A transaction of the writer, or of a reader.
pub struct SqliteTx<'t> {
    connection: &'t mut Connection,
}

impl SqliteTx<'_> {
    pub(crate) fn query(
        &mut self,
        table: &'static str,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<Row>, StoreError> {
        let mut statement = self.connection.prepare_cached(translated(sql)).map_err(of)?;
        bind(&mut statement, values)?;
        let width = statement.column_count();
        let mut rows = statement.raw_query();
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(of)? {
            let column = |column| {
                Ok(match row.get_ref(column).map_err(of)? {
                    ValueRef::Null => Value::Null,
                    ValueRef::Integer(number) => Value::Int(number),
                    ValueRef::Real(_) => {
                        return Err(StoreError::Damaged {
                            table,
                            what: format!("column {column} is no whole number"),
                        });
                    }
                    ValueRef::Text(text) => Value::Text(String::from_utf8(text.to_vec()).map_err(|_| {
                        StoreError::Damaged { table, what: format!("column {column} is not UTF-8") }
                    })?),
                    ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
                })
            };
            found.push(Row { table, columns: (0..width).map(column).collect::<Result<_, _>>()? });
        }
        Ok(found)
    }

    pub(crate) fn execute(&mut self, sql: &'static str, values: &[Value]) -> Result<u64, StoreError> {
        let mut statement = self.connection.prepare_cached(translated(sql)).map_err(of)?;
        bind(&mut statement, values)?;
        statement.raw_execute().map(|count| count as u64).map_err(of)
    }
}

/// `$3` is the third value, wherever it stands.
fn bind(statement: &mut rusqlite::Statement<'_>, values: &[Value]) -> Result<(), StoreError> {
    for (number, value) in values.iter().enumerate() {
        let index = statement.parameter_index(&format!("${}", number + 1)).map_err(of)?;
        let Some(index) = index else {
            return Err(StoreError::Refused(format!("the statement has no ${}", number + 1).into()));
        };
        let value = ToSqlOutput::Borrowed(match value {
            Value::Null => ValueRef::Null,
            Value::Int(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        });
        statement.raw_bind_parameter(index, value).map_err(of)?;
    }
    Ok(())
}

/// Each statement is put into SQLite's words once.
fn translated(sql: &'static str) -> &'static str {
    static KNOWN: Mutex<Option<HashMap<(usize, usize), &'static str>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // There are as many as this program has statements.
    known
        .get_or_insert_default()
        .entry((sql.as_ptr() as usize, sql.len()))
        .or_insert_with(|| Box::leak(translate(Dialect::Sqlite, sql).into_boxed_str()))
}
