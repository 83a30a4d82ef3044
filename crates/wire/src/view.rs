//! A job as a hand sees it.

use outlast_core::exit::{Cause, Exit};
use outlast_core::id::{Attempt, BrainId, Cursor, Generation, JobId, Key, MutationMark, RunId};
use outlast_core::progress::Progress;
use outlast_core::receipt::{Attestation, Receipt};
use outlast_core::spec::{JobKind, Warning};
use outlast_core::status::{Obligation, State};
use outlast_core::time::UnixMicros;
use serde::{Deserialize, Serialize};

/// `GET /v1/jobs/ID`, and the answer to an admission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobView {
    /// Its name; the attempt is the last part of it.
    pub job_id: JobId,
    /// The key it was admitted under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Which execution of its logical command.
    pub attempt: Attempt,
    /// The generation it was admitted under: a stop must carry the same.
    pub generation: Generation,
    /// The run it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Command or service.
    pub kind: JobKind,
    /// When it was admitted.
    pub admitted_at: UnixMicros,
    /// How this answer came to the job; only in answers to admissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<Arrival>,
    /// Its state.
    pub state: State,
    /// Why that state, in one sentence.
    pub because: String,
    /// What must be known before it is settled, who owes it, and what settled it.
    pub obligations: Vec<Obligation>,
    /// How the command's own process ended, as soon as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Why it is being ended, while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Cause>,
    /// The receipt, once it is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Box<Receipt>>,
    /// What a caller is told of it, once it is settled: pipeline stages, deadline and stop are accounted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictView>,
    /// A person's word that it is dead, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Attestation>,
    /// The cursor up to which its output is known to be synced.
    pub committed: Cursor,
    /// The last progress its command reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What could not be set up, where that is why nothing was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_up_failed: Option<SetUpFailed>,
    /// What admission had to remark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// The keeper's process, as the hand's machine counts, while it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper_pid: Option<u32>,
    /// Whether it was removed, and a tombstone answers: the output is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// What a settled job comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::code))]
pub struct VerdictView {
    /// The exit code that the command line would end with: 0 is success.
    pub exit_code: u8,
    /// Why it is no success: `^[A-Z][A-Z0-9_]+$`, as `outlast run` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// One sentence.
    pub message: String,
}

/// How an answer came to its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// This request admitted it.
    Admitted,
    /// It was there.
    Existing,
    /// It was there, and has been removed since.
    Removed,
}

/// What a keeper could not set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::code))]
pub struct SetUpFailed {
    /// `^[A-Z][A-Z0-9_]+$`.
    pub code: String,
    /// What failed.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobSummary {
    /// Its name.
    pub job_id: JobId,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// The generation it was admitted under.
    pub generation: Generation,
    /// The run it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Command or service.
    pub kind: JobKind,
    /// When it was admitted.
    pub admitted_at: UnixMicros,
    /// Its state.
    pub state: State,
    /// How the command's own process ended, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// One line of the command, for people.
    pub command: String,
}

/// `GET /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobList {
    /// In order of id.
    pub jobs: Vec<JobSummary>,
    /// Those whose files are damaged, and that are kept as they are: a look at each says what is wrong with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<JobId>,
    /// Ask with `after` this id for more; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<JobId>,
}

/// `GET /v1/fence`: what this hand has seen of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FenceView {
    /// The highest generation seen. Older admissions are refused.
    pub generation: Generation,
    /// Runs that are sealed.
    pub sealed: Vec<RunId>,
    /// The end of the hand's file of mutation marks.
    pub mutation_mark: MutationMark,
}

/// The answer to an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acknowledged {
    /// The job.
    pub job_id: JobId,
    /// The brain.
    pub brain: BrainId,
    /// Whether the hand may let the job go, as far as this brain goes.
    pub released: bool,
    /// Why not, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}
