//! The first call on a connection: who is there, and what is spoken.

use outlast_core::id::{BootId, SandboxGeneration};
use serde::{Deserialize, Serialize};

/// `POST /hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::hello_request))]
#[serde(deny_unknown_fields)]
pub struct HelloRequest {
    /// The versions the client speaks: 1 to 32 of them.
    pub versions: Vec<u32>,
    /// What the client is, for the runner's log: name and version.
    #[serde(default)]
    pub client: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hello {
    /// The version that is spoken from now on.
    pub protocol: u32,
    /// What the runner speaks.
    pub supported: Vec<u32>,
    /// What it was offered, as it saw it.
    pub offered: Vec<u32>,
    /// The version of the runner's program.
    pub runner_version: String,
    /// The runner's process id, as its machine counts.
    pub runner_pid: u32,
    /// How often a runner was started on this home, this start included. It never falls; one that did was restored.
    pub runner_epoch: u64,
    /// The sandbox.
    pub sandbox: String,
    /// Which incarnation of it.
    pub sandbox_generation: SandboxGeneration,
    /// The kernel's id of this boot.
    pub boot_id: BootId,
    /// The hand's clock, in milliseconds since the Unix epoch: what expiries are judged by.
    pub now_ms: u64,
    /// The end of the hand's file of mutation marks, in bytes. It never falls.
    pub mutation_mark: u64,
    /// The user the runner runs as.
    pub uid: u32,
    /// Each boundary, and whether it can be had.
    pub containment: Vec<Offer>,
    /// Each limit on a job, and whether it can be had.
    pub job_limits: Vec<Offer>,
    /// Whether a command can run as another user.
    pub other_user: bool,
    /// Kind of file system that holds the home.
    pub file_system: String,
    /// Whether what is synced there survives a restart.
    pub durable: bool,
    /// The kernel.
    pub kernel: String,
    /// The limits of this runner, by name.
    pub limits: Limits,
}

/// Something that a machine may offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offer {
    /// What.
    pub name: String,
    /// Whether.
    pub available: bool,
    /// Where or how, or why not.
    pub detail: String,
}

/// The limits a runner keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Bytes of a JSON body.
    pub json_body: u64,
    /// Bytes of standard input in one call.
    pub stdin_body: u64,
    /// Bytes of standard input spooled for an admission.
    pub spool_body: u64,
    /// Bytes of output in one answer.
    pub output: u64,
    /// Jobs in one answer.
    pub list: u32,
    /// The longest wait of one call, in milliseconds.
    pub wait_ms: u64,
    /// The farthest expiry, in milliseconds.
    pub expiry_ms: u64,
    /// Connections at once.
    pub connections: u32,
}

impl Hello {
    /// Whether this hand's state is older than what it had told before: a machine or folder that was restored. Nothing
    /// may be built on it then, since it may repeat what it has done already.
    #[must_use]
    pub fn is_older_than(&self, before: &Hello) -> bool {
        self.sandbox == before.sandbox
            && self.sandbox_generation == before.sandbox_generation
            && (self.runner_epoch < before.runner_epoch || self.mutation_mark < before.mutation_mark)
    }
}
