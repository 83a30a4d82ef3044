//! What warden and scribe say to each other, over a socket pair that dies with either.

use outlast_core::id::Cursor;
use outlast_core::ledger::Record;
use outlast_core::pipeline::Stages;
use outlast_core::receipt::{Output, TerminalMutation};
use outlast_core::time::Mono;
use serde::{Deserialize, Serialize};

/// The largest message between the two.
pub(super) const LINK_LIMIT: usize = 64 << 10;

/// To the scribe.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToScribe {
    /// Write this into the ledger.
    Note(Record),
    /// So many readers want to be told of output.
    Followers(u32),
    /// Sync the log and answer.
    Sync,
    /// Say how many bytes there have been.
    Count,
    /// The tree is dead: read what is left until this moment, take the mark, and answer with the end of output.
    Drain { until: Mono, executed: bool, code: Option<u8> },
    /// Write the receipt, durably, and answer.
    Receipt(Box<serde_json::value::RawValue>),
}

/// To the warden.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToWarden {
    /// It holds its lock and reads.
    Ready,
    /// The log is synced up to here.
    Synced(Cursor),
    /// The log cannot be synced.
    SyncFailed(String),
    /// So many bytes there have been.
    Counted(u64),
    /// The end of output.
    Drained(Box<Ended>),
    /// The receipt is durable.
    Settled,
    /// It could not be written; it is tried again.
    ReceiptFailed(String),
}

/// What the scribe knows at the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ended {
    pub output: Output,
    pub terminal_mutation: TerminalMutation,
    pub stages: Stages,
}
