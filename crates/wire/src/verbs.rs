//! The small bodies: stop, settle, fence, seal, spool, input, window, acknowledgement.

use outlast_core::fence::{Stale, StopReason};
use outlast_core::id::{BrainId, Cursor, JobId, RunId};
use outlast_core::ledger::Straggler;
use outlast_core::time::Millis;
use serde::{Deserialize, Serialize};

/// `POST /v1/jobs/ID/stop`. The id names the attempt; the call's headers carry the generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::stop))]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The stop's own id, 1 to 256 bytes: repeated, it is the same stop.
    pub id: String,
    /// KILL at once, without TERM and grace.
    #[serde(default)]
    pub force: bool,
    /// The time between TERM and KILL, in milliseconds, where it is to be another than the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Millis>,
    /// Why.
    #[serde(default = "asked")]
    pub reason: StopReason,
}

fn asked() -> StopReason {
    StopReason::Asked
}

/// What became of a stop. Accepted is not done: the receipt is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Stopped {
    /// The keeper ends the tree, or did already on this stop.
    Accepted,
    /// It had ended before; its receipt says how.
    AlreadySettled,
    /// No keeper had taken it up yet: nothing was started, and nothing will be.
    NeverStarted,
    /// It was meant for another attempt or generation: dropped, recorded, nothing signalled.
    Stale {
        /// Why.
        stale: Stale,
    },
    /// Its keeper is lost: settle it.
    KeeperLost,
}

/// `POST /v1/jobs/ID/settle`: for a job whose keeper is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::settle))]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
pub enum Settle {
    /// Prove what can be proved, end nothing.
    Prove,
    /// The same, and end the tree where its deadline has passed.
    IfDue,
    /// End the tree, and settle with what is known.
    Asked,
    /// Record a person's word that it is dead.
    Attest {
        /// Who says so.
        name: String,
    },
}

/// What came of it. The job is looked at afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Settled {
    /// There is a receipt.
    Settled,
    /// Its keeper lives, or has yet to come.
    KeeperLives,
    /// Another settler is at it.
    Busy,
    /// Nothing proves its death.
    StillUnknown {
        /// Why not.
        why: String,
        /// Processes that carry the job's mark, which a person is to see before attesting.
        seen: Vec<Straggler>,
        /// How many processes could not be looked into for want of rights, such as another user's. Any of them may be one of
        /// the job's: where this is not 0, `seen` may lack some, and only who may look at every process (root) can say that
        /// none is left.
        unreadable: usize,
    },
    /// A person's word was recorded.
    Attested,
}

/// `POST /v1/fence`: raises the highest generation of the call's scope to the call's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fence {}

/// `POST /v1/seal`: nothing is admitted under this run from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// The run.
    pub run: RunId,
}

/// The answer: every job that was ever admitted under it here, and is still kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sealed {
    /// The run.
    pub run: RunId,
    /// Its jobs.
    pub jobs: Vec<JobId>,
    /// Jobs of this hand that cannot be read, and so may belong to it: until they are explained, nobody can say that the
    /// run has no others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<JobId>,
    /// Whether it had been sealed before.
    pub already: bool,
}

/// The answer to `POST /v1/spool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::spooled))]
pub struct Spooled {
    /// The name to admit with. Kept for an hour.
    pub spool: String,
    /// BLAKE3 of the bytes, hexadecimal.
    pub blake3: String,
    /// How many.
    pub bytes: u64,
}

/// The answer to `PUT /v1/jobs/ID/stdin?offset=N&close=true|false`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StdinTaken {
    /// Everything before this offset was taken: send the rest from there.
    pub taken: Cursor,
    /// Nothing more is taken.
    pub closed: bool,
}

/// `POST /v1/jobs/ID/resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// `POST /v1/jobs/ID/acknowledge`: this brain has the receipt, and all output before the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Acknowledge {
    /// The brain.
    pub brain: BrainId,
    /// What it has: the receipt's final cursor.
    pub cursor: Cursor,
}
