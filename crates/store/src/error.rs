//! What can go wrong with a store, as opposed to what an operation refuses.

use std::path::PathBuf;
use thiserror::Error;

/// Why the store did not do what it was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The place it is to be in is none.
    #[error("{text:?} names no store: {expected}")]
    Location {
        /// What was given, without a password.
        text: String,
        /// What is expected.
        expected: &'static str,
    },
    /// Another process has it.
    #[error("{} is held by process {pid}: one process owns a SQLite store", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// Whose it is, as it wrote it down.
        pid: String,
    },
    /// A setting without which acknowledged records could be lost.
    #[error("{setting} is {found}, and must be {wanted}: {why}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        wanted: &'static str,
        /// What would be lost.
        why: &'static str,
    },
    /// It was made by a later version.
    #[error(
        "the store was made by a later version (schema {found}, this one knows {known}); use that version"
    )]
    TooNew {
        /// The schema that is there.
        found: i64,
        /// The latest one known here.
        known: i64,
    },
    /// A migration that is written down is not the one known here.
    #[error("migration {version} in the store is another than this version's; the store is left as it is")]
    OtherMigration {
        /// Which.
        version: i64,
    },
    /// A record that this version cannot read. It is kept as it is.
    #[error("{table} holds a record that cannot be read ({what}); it is kept as it is")]
    Damaged {
        /// Where.
        table: &'static str,
        /// What.
        what: String,
    },
    /// No more can be written: the disk is full or fails. What is there can be read.
    #[error("nothing more can be written")]
    Full(#[source] Source),
    /// The lease under which this was done is another's, or over. Nothing was changed.
    #[error("the lease is another's by now, or over; nothing was changed")]
    Fenced,
    /// The database cannot be reached or did not answer in time. Nothing was changed, or it is not known (then the same
    /// operation tells when it is run again).
    #[error("the database cannot be reached now")]
    Unavailable(#[source] Source),
    /// Whether the transaction was committed is not known, and running it again did not tell either.
    #[error("it is not known whether it was written")]
    Unknown(#[source] Source),
    /// A statement was refused. That is a fault of this program.
    #[error("the database refused a statement")]
    Refused(#[source] Source),
}

/// What a database said.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// Whether the same operation may succeed later without anybody's doing.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Unavailable(_) | StoreError::Unknown(_))
    }
}
