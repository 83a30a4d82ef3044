//! What state a job is in: computed from facts, never stored, and always explained.

use crate::evidence::Evidence;
use crate::exit::{Cause, Exit};
use crate::id::BootId;
use crate::ledger::{StartMark, Summary};
use crate::receipt::{Attestation, Receipt};
use crate::spec::Spec;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// Everything that a look at a job directory found.
#[derive(Debug, Clone)]
pub struct JobFacts {
    /// The admission.
    pub spec: Spec,
    /// This boot.
    pub boot_id: BootId,
    /// How long ago it was admitted, by the wall clock.
    pub age: Millis,
    /// The start mark, if anyone took it.
    pub start: Option<StartMark>,
    /// Whether the warden's lock is held.
    pub warden: Liveness,
    /// Whether the scribe's lock is held.
    pub scribe: Liveness,
    /// What the ledger says.
    pub ledger: Summary,
    /// The receipt, if it is settled.
    pub receipt: Option<Receipt>,
    /// A person's word, if one was given.
    pub attestation: Option<Attestation>,
    /// Whether what a resumable command had saved was given up by a cancel, or is a later attempt's by now.
    pub save_is_spent: bool,
}

/// Whether a lock that dies with its holder is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// Held: its holder lives.
    Alive,
    /// Free: its holder has died, or has finished.
    Gone,
    /// The lock was never made.
    NeverSeen,
}

/// The state of a job, as every answer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Admitted; the command's process does not exist yet.
    Starting,
    /// It runs.
    Running,
    /// Its tree is being ended; no death proof yet.
    Stopping,
    /// Its keeper is lost and nothing proves its end.
    Unknown,
    /// Ended with its work saved, to be continued by the identical call.
    Paused,
    /// A receipt exists.
    Settled,
}

impl State {
    /// The word people and programs see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Running => "running",
            State::Stopping => "stopping",
            State::Unknown => "unknown",
            State::Paused => "paused",
            State::Settled => "settled",
        }
    }
}

/// Who owes an obligation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Party {
    /// The keeper's warden.
    Warden,
    /// The keeper's scribe.
    Scribe,
    /// Whoever settles what lost its keeper: the next call about the job, or a runner.
    Settler,
    /// A person (`job settle --attest`), or the provider of the sandbox.
    Person,
    /// The caller that admitted it.
    Caller,
}

/// Something that must be known before the job is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Obligation {
    /// What: `start_mark`, `exit`, `death_proof`, `final_cursor`, `terminal_mutation`, `receipt`.
    pub what: String,
    /// Who owes it.
    pub owed_by: Party,
    /// What settled it; absent while it is owed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub settled_by: Option<String>,
}

/// A job's state with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Projection {
    /// The state.
    pub state: State,
    /// One sentence: why this state.
    pub because: String,
    /// What must be known, in the order in which it becomes so.
    pub obligations: Vec<Obligation>,
}

/// How long a job may be without a start mark before a settler may take it.
pub const START_MARK_PATIENCE: Millis = Millis(5_000);

/// What a settler may do about a job, by its facts alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    /// Nothing: it is settled, or its keeper lives.
    NotNeeded,
    /// Nobody claimed it in time: take the start mark, and settle it as never started.
    ClaimStart,
    /// The boot it ran in is over.
    ByBootChange,
    /// Its warden is lost: end the tree through its boundary if that is due or asked for, and prove what can be
    /// proved.
    KeeperLost,
}

/// Says whether a job needs a settler.
#[must_use]
pub fn settling(facts: &JobFacts) -> Settling {
    if facts.receipt.is_some() {
        return Settling::NotNeeded;
    }
    // A lock that is held is held in this boot, whatever the boot's id looks like from here.
    if facts.boot_id != facts.spec.boot_id && facts.warden != Liveness::Alive {
        return Settling::ByBootChange;
    }
    match (&facts.start, facts.warden) {
        (_, Liveness::Alive) => Settling::NotNeeded,
        // Somebody removed the mark: what was started under it may live.
        (None, _) if facts.ledger.started.is_some() => Settling::KeeperLost,
        (None, _) if facts.age >= START_MARK_PATIENCE => Settling::ClaimStart,
        (None, _) => Settling::NotNeeded,
        (Some(StartMark::Settler { .. }), _) => Settling::ClaimStart,
        (Some(StartMark::Keeper(_)), _) => Settling::KeeperLost,
    }
}

/// Computes the state of a job from its facts.
#[must_use]
pub fn project(facts: &JobFacts) -> Projection {
    let (state, because) = state(facts);
    Projection { state, because, obligations: obligations(facts, state) }
}

fn state(facts: &JobFacts) -> (State, String) {
    if let Some(receipt) = &facts.receipt {
        let paused = is_paused(facts);
        let state = if paused { State::Paused } else { State::Settled };
        return (
            state,
            format!("its receipt says {}, death proved by {}", receipt.exit, receipt.death.name()),
        );
    }
    if let Some(attestation) = &facts.attestation {
        let why = format!("{} attested its death, which nothing proves", attestation.name);
        return (State::Unknown, why);
    }
    match settling(facts) {
        Settling::ByBootChange => {
            (State::Unknown, "the machine was restarted since; the next call settles it".to_owned())
        }
        Settling::ClaimStart => (State::Unknown, "no keeper took it up; the next call settles it".to_owned()),
        Settling::KeeperLost => {
            let exit = match &facts.ledger.exited {
                Some((_, exit)) => format!("; before that the command had ended: {exit}"),
                None => String::new(),
            };
            (State::Unknown, format!("its keeper is gone and left no receipt{exit}"))
        }
        Settling::NotNeeded => alive(facts),
    }
}

fn alive(facts: &JobFacts) -> (State, String) {
    let ledger = &facts.ledger;
    if let Some(cause) = &ledger.ending {
        return (State::Stopping, format!("its tree is being ended: {cause}"));
    }
    match (&ledger.exited, ledger.started) {
        (Some((_, exit)), _) => {
            (State::Running, format!("the command ended ({exit}); what it left behind is waited for"))
        }
        (None, Some((_, pid, ..))) => {
            (State::Running, format!("its keeper lives; the command is process {pid}"))
        }
        (None, None) => (State::Starting, "admitted; its process does not exist yet".to_owned()),
    }
}

/// A stop that was asked for as a pause, of a command that can continue, and that the command did not fail of.
#[must_use]
pub fn is_paused(facts: &JobFacts) -> bool {
    let Some(receipt) = &facts.receipt else { return false };
    let Cause::Stop { id } = &receipt.cause else { return false };
    facts.spec.work.resume && id.starts_with(PAUSE_PREFIX) && !facts.save_is_spent
}

/// Stops that are pauses carry ids that begin so.
pub const PAUSE_PREFIX: &str = "pause-";

fn obligations(facts: &JobFacts, state: State) -> Vec<Obligation> {
    let lost = state == State::Unknown;
    let by = |owner: Party| if lost { Party::Settler } else { owner };
    let owe = |what: &str, owed_by, settled_by: Option<String>| Obligation {
        what: what.to_owned(),
        owed_by,
        settled_by,
    };
    let receipt = facts.receipt.as_ref();
    let start = facts.start.as_ref().map(|mark| match mark {
        StartMark::Keeper(mark) => format!("the keeper's warden, process {}", mark.warden_pid),
        StartMark::Settler { name, .. } => format!("{name}, so that nothing starts"),
    });
    let exit = match (receipt, &facts.ledger.exited) {
        (Some(receipt), _) => Some(receipt.exit.to_string()),
        (None, Some((_, exit))) => Some(exit.to_string()),
        (None, None) => None,
    };
    let death = receipt.map(|receipt| &receipt.death).or(facts.ledger.dead.as_ref()).map(evidence_text);
    let output = receipt.map(|receipt| &receipt.output).or(facts.ledger.drained.as_ref());
    let attested = facts.attestation.as_ref();
    let attested =
        attested.map(|word| format!("nothing; {} attested its death, which is no proof", word.name));
    let death = death.or_else(|| attested.clone());
    let death_owner = if lost && !can_still_be_proved(facts) { Party::Person } else { by(Party::Warden) };
    vec![
        owe("start_mark", by(Party::Warden), start),
        owe("exit", by(Party::Warden), exit),
        owe("death_proof", death_owner, death),
        owe(
            "final_cursor",
            if facts.scribe == Liveness::Alive { Party::Scribe } else { by(Party::Scribe) },
            output.map(|o| format!("cursor {}", o.final_cursor)),
        ),
        owe(
            "terminal_mutation",
            by(Party::Scribe),
            receipt.map(|r| match &r.terminal_mutation {
                crate::receipt::TerminalMutation::Marked { mark } => format!("mark {mark}"),
                crate::receipt::TerminalMutation::Unknown { why } => format!("unknown: {why}"),
                crate::receipt::TerminalMutation::None => "nothing was executed".to_owned(),
            }),
        ),
        owe(
            "receipt",
            by(Party::Scribe),
            receipt.map(|r| match &r.authority {
                crate::receipt::Authority::Keeper => "receipt.json, by its keeper".to_owned(),
                crate::receipt::Authority::Settler { name } => format!("receipt.json, by {name}"),
            }),
        ),
    ]
}

/// Whether a settler could ever prove the death of a job that lost its warden in this boot.
#[must_use]
pub fn can_still_be_proved(facts: &JobFacts) -> bool {
    use crate::evidence::Isolation;
    use crate::spec::Boundary;
    match &facts.start {
        None | Some(StartMark::Settler { .. }) => true,
        Some(StartMark::Keeper(mark)) => {
            facts.boot_id != mark.boot_id
                || (mark.boundary == Boundary::PidNamespace && facts.ledger.started.is_some())
                || (mark.boundary == Boundary::Cgroup2Subreaper && mark.isolation != Isolation::SameUid)
        }
    }
}

fn evidence_text(evidence: &Evidence) -> String {
    match evidence {
        Evidence::CgroupEmptyAndReaped { leaf, reaped, .. } => {
            format!("cgroup {leaf} empty and removed, {reaped} processes reaped by the warden")
        }
        Evidence::AllReaped { reaped, .. } => format!("all {reaped} processes reaped by the warden"),
        Evidence::PidNamespaceInitReaped { init_pid, namespace, .. } => {
            format!("init {init_pid} of PID namespace {namespace} reaped")
        }
        Evidence::PidNamespaceInitGone { init_pid, start_time, .. } => {
            format!("init {init_pid} (started at tick {start_time}) of its PID namespace is gone")
        }
        Evidence::ClosedCgroupEmptied { leaf, .. } => {
            format!("cgroup {leaf}, which the command could not leave, emptied and removed")
        }
        Evidence::BootChanged { started_in, settled_in } => {
            format!("boot {started_in} is over, this is {settled_in}")
        }
        Evidence::SandboxDestroyed { provider_ref, generation, .. } => {
            format!("sandbox {provider_ref} generation {generation} destroyed")
        }
        Evidence::NeverStarted { claimed_by } => {
            format!("start mark taken by {claimed_by}: nothing was started")
        }
        Evidence::NeverExecuted { .. } => "the program was never executed".to_owned(),
    }
}

/// What the leader's exit is known to be, before or after the receipt.
#[must_use]
pub fn known_exit(facts: &JobFacts) -> Option<&Exit> {
    match &facts.receipt {
        Some(receipt) => Some(&receipt.exit),
        None => facts.ledger.exited.as_ref().map(|(_, exit)| exit),
    }
}
