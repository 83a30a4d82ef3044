//! `POST /v1/jobs`: a command becomes a job, once, however often it is asked for.

use outlast_core::bytes::Bytes;
use outlast_core::id::{Attempt, BrainId, Key, RunId};
use outlast_core::spec::{Boundary, Command, JobKind, RunAs};
use outlast_core::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to run. Only `key`, `command` and `cwd` must be there.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::admission))]
#[serde(deny_unknown_fields)]
pub struct Admission {
    /// The identity of the logical command within its scope.
    pub key: Key,
    /// Which execution of it, from 1. A later one than the first is admitted only over the death proof of the one before.
    #[serde(default = "first")]
    pub attempt: Attempt,
    /// `{"argv": [...]}` or `{"script": {"shell": "bash", "text": "..."}}`; an empty shell means the hand's default.
    pub command: Command,
    /// The folder it starts in, absolute, on the hand.
    pub cwd: Bytes,
    /// The folder whose files it may change; `cwd` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Bytes>,
    /// Variables set for it; kept in the spec, in clear.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Bytes>,
    /// Variables it inherits from its caller: passed on in memory, kept nowhere, no part of its identity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inherited: BTreeMap<String, Bytes>,
    /// Secrets by name: passed on in memory, masked in its output; only a keyed hash of the value is kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Bytes>,
    /// What it reads.
    #[serde(default)]
    pub stdin: StdinFrom,
    /// Its bounds.
    #[serde(default)]
    pub limits: LimitsAsked,
    /// A command with an end, or a service.
    #[serde(default = "command")]
    pub kind: JobKind,
    /// Both streams through one pipe, in exact order.
    #[serde(default)]
    pub merge: bool,
    /// On a pseudo-terminal.
    #[serde(default)]
    pub tty: bool,
    /// Rows and columns of the pseudo-terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<(u16, u16)>,
    /// It saves its work in `OUTLAST_CHECKPOINT` and continues from there.
    #[serde(default)]
    pub resume: bool,
    /// What must contain it; what cannot be had is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<Boundary>,
    /// The uid and gid it runs under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<RunAs>,
    /// Time between TERM and KILL, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Millis>,
    /// Time that descendants have after the leader's exit, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger: Option<Millis>,
    /// Whether a model wrote the command: then busy-waiting is refused and not only remarked.
    #[serde(default)]
    pub caller: Caller,
    /// Runs what would leave its job anyway, contained.
    #[serde(default)]
    pub allow_detach: bool,
    /// The run it belongs to: once that is sealed, nothing is admitted under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The brain that admits it: the job is kept until that has acknowledged receipt and final cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brain: Option<BrainId>,
}

/// Errors and logs may show an admission; its environment and secrets must not be in them.
impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission")
            .field("key", &self.key)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

fn first() -> Attempt {
    Attempt::FIRST
}

fn command() -> JobKind {
    JobKind::Command
}

impl Admission {
    /// An admission of a command with every other field as it is when absent.
    #[must_use]
    pub fn new(key: Key, command: Command, cwd: impl Into<Bytes>) -> Admission {
        Admission {
            key,
            attempt: Attempt::FIRST,
            command,
            cwd: cwd.into(),
            workspace: None,
            env: BTreeMap::new(),
            inherited: BTreeMap::new(),
            secrets: BTreeMap::new(),
            stdin: StdinFrom::Null,
            limits: LimitsAsked::default(),
            kind: JobKind::Command,
            merge: false,
            tty: false,
            window: None,
            resume: false,
            containment: None,
            user: None,
            grace: None,
            linger: None,
            caller: Caller::Person,
            allow_detach: false,
            run: None,
            brain: None,
        }
    }
}

/// What a command reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::stdin_from))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StdinFrom {
    /// Nothing.
    #[default]
    Null,
    /// A pipe that stays open until a caller closes it.
    Open,
    /// What was spooled before (`POST /v1/spool`), by the name that call gave.
    Spooled {
        /// The name.
        spool: String,
    },
}

/// Bounds that a caller asks for. An absent one has its default, 0 means none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitsAsked {
    /// The deadline of the whole work, in milliseconds. Default: 1 h, none for a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Millis>,
    /// The longest silence, in milliseconds. Default: none, 5 min where progress is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Millis>,
    /// Bytes of output kept. Default: 1 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// Processes and threads at once. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Bytes of memory. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Who wrote a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Caller {
    /// A person, or a program of one.
    #[default]
    Person,
    /// A model.
    Model,
}
