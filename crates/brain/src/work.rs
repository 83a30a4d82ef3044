//! A command as it is asked for.

use outlast_core::bytes::Bytes;
use outlast_core::id::{Attempt, BrainId, Key, RunId};
use outlast_core::spec::{Boundary, Command, JobKind, RunAs};
use outlast_core::time::Millis;
use outlast_wire::admission::{Admission, Caller, LimitsAsked, StdinFrom};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to run: everything of a command that is the same for each of its attempts. Kept in the store, so of secrets it holds
/// the names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// `{"argv": [...]}` or `{"script": {"shell": "bash", "text": "..."}}`.
    pub command: Command,
    /// The folder it starts in, absolute, on the hand.
    pub cwd: Bytes,
    /// The folder whose files it may change; `cwd` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Bytes>,
    /// Variables set for it; kept in clear.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Bytes>,
    /// Secrets by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Its bounds; the deadline is the task's.
    #[serde(default)]
    pub limits: LimitsAsked,
    /// A command with an end, or a service.
    #[serde(default = "command")]
    pub kind: JobKind,
    /// Both streams through one pipe.
    #[serde(default)]
    pub merge: bool,
    /// Whether its input stays open.
    #[serde(default)]
    pub stdin_open: bool,
    /// What must contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<Boundary>,
    /// The uid and gid it runs under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<RunAs>,
    /// Time between TERM and KILL, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Millis>,
    /// Who wrote the command.
    #[serde(default)]
    pub caller: Caller,
}

fn command() -> JobKind {
    JobKind::Command
}

impl Work {
    /// A command with everything else as it is when absent.
    #[must_use]
    pub fn new(command: Command, cwd: impl Into<Bytes>) -> Work {
        Work {
            command,
            cwd: cwd.into(),
            workspace: None,
            env: BTreeMap::new(),
            secrets: Vec::new(),
            limits: LimitsAsked::default(),
            kind: JobKind::Command,
            merge: false,
            stdin_open: false,
            containment: None,
            user: None,
            grace: None,
            caller: Caller::Person,
        }
    }

    /// As it is kept.
    ///
    /// # Errors
    /// What JSON cannot say.
    pub fn document(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// By which a call is known to ask for the same: BLAKE3 of the document, whose fields have one order.
    ///
    /// # Errors
    /// What JSON cannot say.
    pub fn digest(&self) -> serde_json::Result<String> {
        Ok(blake3::hash(self.document()?.as_bytes()).to_hex().to_string())
    }

    /// As a hand is asked for it.
    ///
    /// # Errors
    /// The name of a secret that is not known.
    pub fn admission(
        &self,
        key: Key,
        attempt: Attempt,
        run: RunId,
        brain: BrainId,
        deadline: Option<Millis>,
        secret: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Admission, String> {
        let mut admission = Admission::new(key, self.command.clone(), self.cwd.clone());
        admission.attempt = attempt;
        admission.workspace = self.workspace.clone();
        admission.env = self.env.clone();
        for name in &self.secrets {
            admission.secrets.insert(name.clone(), Bytes(secret(name).ok_or_else(|| name.clone())?));
        }
        admission.stdin = if self.stdin_open { StdinFrom::Open } else { StdinFrom::Null };
        admission.limits = self.limits.clone();
        admission.limits.deadline = Some(deadline.unwrap_or(Millis(0)));
        admission.kind = self.kind;
        admission.merge = self.merge;
        admission.containment = self.containment;
        admission.user = self.user;
        admission.grace = self.grace;
        admission.caller = self.caller;
        admission.run = Some(run);
        admission.brain = Some(brain);
        Ok(admission)
    }
}
