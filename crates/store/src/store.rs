//! A store: opened, written, read.

use crate::error::StoreError;
use crate::fault::Faults;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::tx::Tx;
use std::future::Future;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Something that may be done, in one transaction.
///
/// It may be run more than once before its answer is told: where the answer of a commit is lost, and where a database has
/// transactions begin again. So it changes nothing but through the transaction, and a run of it that finds an earlier one's
/// work changes nothing more. Its answer may then say that it was done before.
pub trait Op: Send + Sync + 'static {
    /// What it is called in faults, traces and metrics: `table.verb`.
    const NAME: &'static str;
    /// What it answers. What an operation refuses is an answer, too: an error means that the store failed.
    type Out: Send + 'static;

    /// Does it.
    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Out, StoreError>> + Send;
}

/// Something that only reads. All it reads is of one moment.
pub trait Query: Send + Sync + 'static {
    /// What it answers.
    type Out: Send + 'static;

    /// Reads.
    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Out, StoreError>> + Send;
}

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A SQLite file. One process owns it.
    Sqlite(PathBuf),
    /// A PostgreSQL database, by its URL. Many processes may use it.
    Postgres(String),
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Without a password.
impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Location::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "postgres://…".to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let place = authority.rsplit_once('@').map_or(authority.to_owned(), |(user, host)| {
        format!("{}@{host}", user.split(':').next().unwrap_or_default())
    });
    // Parameters may hold one, too.
    format!("{scheme}://{place}{}", path.split('?').next().unwrap_or_default())
}

impl FromStr for Location {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Location, StoreError> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        match scheme {
            "postgres" | "postgresql" if rest.starts_with("//") => Ok(Location::Postgres(text.to_owned())),
            "sqlite" | "file" if !rest.is_empty() => {
                Ok(Location::Sqlite(rest.strip_prefix("//").unwrap_or(rest).into()))
            }
            "" if !rest.is_empty() => Ok(Location::Sqlite(rest.into())),
            _ if text.starts_with(['/', '.']) => Ok(Location::Sqlite(text.into())),
            _ => Err(StoreError::Location {
                text: without_password(text),
                expected: "say the path of a SQLite file, or postgres://USER@HOST/DATABASE",
            }),
        }
    }
}

/// An open store. Clones are the same one.
#[derive(Clone)]
pub struct Store {
    inner: Inner,
    faults: Option<Arc<dyn Faults>>,
}

#[derive(Clone)]
enum Inner {
    Sqlite(Arc<Sqlite>),
    Postgres(Arc<Postgres>),
}

/// How often an operation is run again after the answer of its commit was lost.
const ASKED_AGAIN: u32 = 6;
/// How long is waited before, at first.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Store {
    /// Opens a store, checks its settings, and brings its schema up to this version's.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed by then, but for the migrations before one that failed.
    pub async fn open(location: &Location) -> Result<Store, StoreError> {
        Store::open_with(location, None).await
    }

    /// [`Store::open`], with faults.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_with(
        location: &Location,
        faults: Option<Arc<dyn Faults>>,
    ) -> Result<Store, StoreError> {
        let inner = match location {
            Location::Sqlite(path) => Inner::Sqlite(Arc::new(Sqlite::open(path, faults.clone())?)),
            Location::Postgres(url) => Inner::Postgres(Arc::new(Postgres::open(url, faults.clone()).await?)),
        };
        Ok(Store { inner, faults })
    }

    /// Whether faults were asked for.
    #[must_use]
    pub fn is_hostile(&self) -> bool {
        self.faults.is_some()
    }

    /// Does something. It is durable when this returns, and done even where the caller no longer waits.
    ///
    /// # Errors
    /// [`StoreError`]. Where it is [`StoreError::Unknown`], running the same again tells.
    pub async fn write<O: Op>(&self, op: O) -> Result<O::Out, StoreError> {
        let op = Arc::new(op);
        let mut pause = ASK_AGAIN_AFTER;
        let mut unknown = None;
        for _ in 0..ASKED_AGAIN {
            let done = match &self.inner {
                Inner::Sqlite(sqlite) => sqlite.write(Arc::clone(&op)).await,
                Inner::Postgres(postgres) => postgres.write(Arc::clone(&op)).await,
            };
            match done {
                Err(StoreError::Unknown(source)) => unknown = Some(source),
                // Whether it was committed before is still to be learnt.
                Err(StoreError::Unavailable(_)) if unknown.is_some() => {}
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(StoreError::Unknown(unknown.unwrap_or_else(|| "no answer".into())))
    }

    /// Reads.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read<Q: Query>(&self, query: Q) -> Result<Q::Out, StoreError> {
        match &self.inner {
            Inner::Sqlite(sqlite) => sqlite.read(query).await,
            Inner::Postgres(postgres) => postgres.read(query).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_and_shown_without_passwords() {
        let read = |text: &str| text.parse::<Location>();
        assert_eq!(read("/var/lib/o.db").unwrap(), Location::Sqlite("/var/lib/o.db".into()));
        assert_eq!(read("o.db").unwrap(), Location::Sqlite("o.db".into()));
        assert_eq!(read("./a:b.db").unwrap(), Location::Sqlite("./a:b.db".into()));
        assert_eq!(read("sqlite:///var/o.db").unwrap(), Location::Sqlite("/var/o.db".into()));
        let secret = "postgres://anna:hunter2@db.example:5433/outlast?password=hunter3";
        let location = read(secret).unwrap();
        assert_eq!(location, Location::Postgres(secret.to_owned()));
        assert_eq!(location.to_string(), "postgres://anna@db.example:5433/outlast");
        assert!(!format!("{location:?}").contains("hunter"));
        for wrong in ["", "mysql://x/y", "postgres:x", "sqlite:", "http://a:hunter2@b"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("SQLite file") && !error.contains("hunter"), "{wrong}: {error}");
        }
    }
}
