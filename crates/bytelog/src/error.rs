use std::fmt;
use std::io;

/// The file-system operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Creating a segment file.
    Create,
    /// Opening a segment file.
    Open,
    /// Appending to a segment file.
    Write,
    /// Reading a segment file or its length.
    Read,
    /// Making the bytes of a segment file durable.
    SyncData,
    /// Making the names in the job directory durable.
    SyncDirectory,
    /// Cutting a torn tail.
    Truncate,
    /// Listing the job directory.
    List,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Create => "create",
            Op::Open => "open",
            Op::Write => "write",
            Op::Read => "read",
            Op::SyncData => "sync of data",
            Op::SyncDirectory => "sync of the directory",
            Op::Truncate => "truncate",
            Op::List => "listing of the directory",
        })
    }
}

/// Why the log could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage refused. From a [`Writer`](crate::Writer) this ends its epoch: nothing more is
    /// committed in it, and [`Writer::reopen`](crate::Writer::reopen) is the way on.
    #[error("storage failed: {op}")]
    StorageFailed {
        /// What was being done.
        op: Op,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
    /// An earlier call failed with [`Error::StorageFailed`] and the writer was not reopened since.
    #[error("the log's epoch ended with an earlier storage failure")]
    Poisoned,
    /// [`Writer::reopen`](crate::Writer::reopen) was called on a writer that had not failed.
    #[error("the log's epoch has not failed, there is nothing to reopen")]
    NotPoisoned,
    /// The log has its end record; nothing can follow it.
    #[error("the log has ended at cursor {cursor}")]
    Ended {
        /// The final cursor.
        cursor: u64,
    },
    /// A new log was to be made in a directory that already has one.
    #[error("the directory already holds a log, segment {name}")]
    AlreadyExists {
        /// The name of a segment file found there.
        name: String,
    },
    /// The limits contradict each other.
    #[error("unusable log limits: {0}")]
    InvalidOptions(&'static str),
    /// A counter of the log is exhausted (epoch: 32 bits, cursor: 64 bits).
    #[error("a counter of the log is exhausted: {0}")]
    Exhausted(&'static str),
}

impl Error {
    pub(crate) fn storage(op: Op) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::StorageFailed { op, source }
    }
}
