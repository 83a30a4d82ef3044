//! The process receipt: what the one component with the authority to know says of a job's end. Written once.

use crate::evidence::{DeathProof, Evidence, Isolation};
use crate::exit::{Cause, Exit};
use crate::id::{Attempt, BootId, Cursor, Generation, JobId, Key, MutationMark, SandboxGeneration, Scope};
use crate::ledger::Straggler;
use crate::pipeline::Stages;
use crate::spec::{Boundary, Digest, Spec};
use crate::time::UnixMicros;
use serde::{Deserialize, Serialize};

/// What is known when a job is settled, as `receipt.json` holds it. Built by [`Receipt::assemble`] alone, over a
/// death proof; read from a file it is a record of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "What is known when a job is settled. Made once, over a proof that its whole tree is dead."
    )
)]
#[non_exhaustive]
pub struct Receipt {
    /// The version of the job directory's files.
    pub schema: u32,
    /// The job.
    pub job_id: JobId,
    /// Its scope.
    pub scope: Scope,
    /// Its caller's key, where it gave one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<Key>,
    /// The command's digest.
    pub digest: Digest,
    /// Which attempt this was.
    pub attempt: Attempt,
    /// The generation it was admitted under.
    pub generation: Generation,
    /// The incarnation of the home.
    pub sandbox_generation: SandboxGeneration,
    /// The boot it ran in.
    pub boot_id: BootId,
    /// Who made this receipt.
    pub authority: Authority,
    /// How the command's own process ended.
    pub exit: Exit,
    /// Why it ended when it did.
    pub cause: Cause,
    /// What its last pipeline's stages say.
    pub stages: Stages,
    /// Why the whole tree is known to be dead.
    pub death: Evidence,
    /// What the log holds.
    pub output: Output,
    /// This job's mark in the hand's file of mutations.
    pub terminal_mutation: TerminalMutation,
    /// Descendants that outlived the leader's linger time and were ended.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stragglers: Vec<Straggler>,
    /// What it used; absent where nobody who waited for it was told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resources: Option<Resources>,
    /// When what happened.
    pub times: Times,
    /// What contained it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub boundary: Option<Boundary>,
    /// Whether the command could leave its boundary, or forge what it can write.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub isolation: Option<Isolation>,
    /// Stops that were accepted, by id.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stops: Vec<String>,
}

/// Who made a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Authority {
    /// The job's own keeper: warden and scribe.
    Keeper,
    /// A settler, after the keeper was lost or never came.
    Settler {
        /// The program that settled.
        name: String,
    },
}

/// What the log holds of a job's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Output {
    /// The end of all output: every byte before it was logged, or lies in a stated gap.
    pub final_cursor: Cursor,
    /// The hash of all output, whether or not the log still keeps it all.
    pub hash: OutputHash,
    /// Whether the pipes were drained to their end.
    pub drain: Drain,
    /// Ranges that the log does not keep.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub gaps: Vec<Gap>,
    /// Bytes of standard output; absent where the end was learnt from the log alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stdout_bytes: Option<u64>,
    /// Bytes of standard error.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stderr_bytes: Option<u64>,
}

/// The hash of all output, both streams in drain order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OutputHash {
    /// BLAKE3, hexadecimal.
    Blake3 {
        /// 64 digits.
        value: String,
    },
    /// Not known: a part that was never hashed is lost.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Whether output was drained to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Drain {
    /// Every pipe reached end-of-file.
    Complete,
    /// A pipe was still held open when the drain time ended.
    Incomplete {
        /// Who holds it, as far as `/proc` shows.
        held_by: Vec<Straggler>,
    },
    /// The keeper's output side was lost.
    Lost {
        /// What is known of it.
        why: String,
    },
    /// The log could not be written to its end.
    StorageFailed {
        /// What the system said.
        why: String,
    },
}

/// A range of output that the log does not keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// Where it begins.
    pub from: Cursor,
    /// Where it ends; absent where nobody knows how much was lost.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<Cursor>,
    /// `log_limit`, `scribe_lost`, `storage_failed` or `damaged`.
    pub cause: String,
}

/// This job's place in the order of mutations of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TerminalMutation {
    /// The mark, taken after the death proof and synced.
    Marked {
        /// The end offset.
        mark: MutationMark,
    },
    /// No mark could be taken.
    Unknown {
        /// Why.
        why: String,
    },
    /// The command was never executed, so it changed nothing.
    None,
}

/// What a command and all it reaped used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Resources {
    /// CPU time in user mode, microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, microseconds.
    pub system_us: u64,
    /// The largest resident set of one process, KiB.
    pub max_rss_kib: u64,
    /// Processes reaped.
    pub processes: u64,
}

/// When what happened, by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Times {
    /// Admitted.
    pub admitted: UnixMicros,
    /// The command's process was created.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started: Option<UnixMicros>,
    /// Its leader ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exited: Option<UnixMicros>,
    /// The whole tree was proved dead.
    pub dead: UnixMicros,
    /// This receipt was assembled.
    pub settled: UnixMicros,
}

/// What the authorities of a job say, to be joined over its death proof.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Who says it.
    pub authority: Authority,
    /// How the leader ended.
    pub exit: Exit,
    /// Why.
    pub cause: Cause,
    /// Its stages.
    pub stages: Stages,
    /// The log's side.
    pub output: Output,
    /// The mark.
    pub terminal_mutation: TerminalMutation,
    /// Stragglers.
    pub stragglers: Vec<Straggler>,
    /// Resource use.
    pub resources: Option<Resources>,
    /// When the leader was created.
    pub started: Option<UnixMicros>,
    /// When it ended.
    pub exited: Option<UnixMicros>,
    /// When the tree was proved dead.
    pub dead: UnixMicros,
    /// Now.
    pub settled: UnixMicros,
    /// The boundary.
    pub boundary: Option<Boundary>,
    /// The isolation.
    pub isolation: Option<Isolation>,
    /// Accepted stops.
    pub stops: Vec<String>,
}

impl Receipt {
    /// Joins what is known of a job over the proof that it is dead.
    #[must_use]
    pub fn assemble(spec: &Spec, proof: DeathProof, facts: Facts) -> Receipt {
        Receipt {
            schema: crate::spec::SCHEMA,
            job_id: spec.job_id,
            scope: spec.scope.clone(),
            key: spec.key.clone(),
            digest: spec.digest,
            attempt: spec.job_id.attempt,
            generation: spec.generation,
            sandbox_generation: spec.sandbox_generation,
            boot_id: spec.boot_id.clone(),
            authority: facts.authority,
            exit: facts.exit,
            cause: facts.cause,
            stages: facts.stages,
            death: proof.into_evidence(),
            output: facts.output,
            terminal_mutation: facts.terminal_mutation,
            stragglers: facts.stragglers,
            resources: facts.resources,
            times: Times {
                admitted: spec.admitted_at,
                started: facts.started,
                exited: facts.exited,
                dead: facts.dead,
                settled: facts.settled,
            },
            boundary: facts.boundary,
            isolation: facts.isolation,
            stops: facts.stops,
        }
    }

    /// The status the command is judged by: its stages' where they were captured and it ended by itself, else its
    /// own. `None` where there is none.
    #[must_use]
    pub fn effective_status(&self) -> Option<u8> {
        match (&self.exit, &self.stages) {
            (Exit::Exited { code: 0 }, Stages::Captured { effective, .. }) => Some(effective.status),
            (exit, _) => exit.shell_status(),
        }
    }
}

/// A person's word that a job is dead, where nothing could prove it. It frees the key and the workspace, and is no
/// death proof: no run succeeds over it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attestation {
    /// The job.
    pub job_id: JobId,
    /// Who says so.
    pub name: String,
    /// When.
    pub at: UnixMicros,
    /// Processes that carry the job's mark, as a scan of `/proc` showed them to that person.
    pub seen: Vec<Straggler>,
    /// The end of the output that was kept.
    pub final_cursor: Cursor,
}
