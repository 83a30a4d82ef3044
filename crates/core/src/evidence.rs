//! What proves that a process tree is dead.
//!
//! A [`DeathProof`] can be made only by the functions here, each from the observations it stands for, each checking
//! that they prove it. A process group, a bare pid, a name, what `kill` returned, the end of a stream,
//! `pids.current` or a missing record are no arguments of any of them, so they cannot become proof by accident.
//!
//! The warden is the parent of everything in the tree (a subreaper adopts orphans), so its `ECHILD` is an
//! observation about the tree. A settler is not, and its own `ECHILD` says nothing: no function that a settler may
//! call takes a [`Reaping`].

use crate::id::{BootId, SandboxGeneration};
use crate::time::UnixMicros;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the warden's wait for any child answered last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaping {
    /// `ECHILD`: no child is left, not even an adopted one (the scribe is invisible to plain waits).
    NoChildLeft {
        /// How many were reaped in all.
        reaped: u64,
    },
    /// Children are left, and none had ended.
    ChildrenLeft,
}

/// What `cgroup.events` of the job's leaf said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafState {
    /// `populated 0`.
    Empty,
    /// `populated 1`.
    Populated,
    /// It could not be read.
    Unreadable(String),
}

/// What removing the job's leaf answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafRemoval {
    /// The kernel removed it: it had no process and no child.
    Removed,
    /// It was gone before: someone else removed it.
    AlreadyGone,
    /// It was refused.
    Refused(String),
}

/// Whether the command could have moved itself out of its leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The keeper's own uid: it could leave its leaf, and forge what it can write.
    SameUid,
    /// Another uid, without privileges, without write access to cgroupfs.
    OtherUid,
    /// A PID namespace of its own.
    PidNamespace,
}

/// Death evidence as receipts hold it, with the observation that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// The leaf was empty, everything was reaped by the warden, and the leaf is removed.
    CgroupEmptyAndReaped {
        /// The leaf's path.
        leaf: String,
        /// How many processes the warden reaped.
        reaped: u64,
        /// When the last observation was made.
        at: UnixMicros,
    },
    /// The warden reaped every descendant.
    AllReaped {
        /// How many processes the warden reaped.
        reaped: u64,
        /// When the last observation was made.
        at: UnixMicros,
    },
    /// The init of the job's PID namespace was reaped: the kernel ends a namespace before its init is reapable.
    PidNamespaceInitReaped {
        /// Its pid, in the keeper's namespace.
        init_pid: u32,
        /// The namespace's inode number.
        namespace: u64,
        /// When it was reaped.
        at: UnixMicros,
    },
    /// The init of the job's PID namespace is gone, seen by a settler that is not its parent.
    PidNamespaceInitGone {
        /// Its pid, in the keeper's namespace.
        init_pid: u32,
        /// The clock ticks since boot at which it had started: with the pid and the boot, its identity.
        start_time: u64,
        /// When it was seen gone.
        at: UnixMicros,
    },
    /// The leaf, which the command could not have left, was emptied and removed.
    ClosedCgroupEmptied {
        /// The leaf's path.
        leaf: String,
        /// When it was removed.
        at: UnixMicros,
    },
    /// The machine has been started anew since.
    BootChanged {
        /// The boot it was started in.
        started_in: BootId,
        /// The boot it was settled in.
        settled_in: BootId,
    },
    /// The provider attests that this exact generation of the sandbox is gone.
    SandboxDestroyed {
        /// The provider's name of it.
        provider_ref: String,
        /// The generation that is gone.
        generation: SandboxGeneration,
        /// When the provider said so.
        at: UnixMicros,
    },
    /// No process was ever created under this attempt: the start mark was taken by who settles it.
    NeverStarted {
        /// Who holds the start mark.
        claimed_by: String,
    },
    /// The program was never executed: the one process made for it was reaped before it became the command.
    NeverExecuted {
        /// When.
        at: UnixMicros,
    },
}

impl Evidence {
    /// The name that people and programs see.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Evidence::CgroupEmptyAndReaped { .. } => "cgroup_empty_and_reaped",
            Evidence::AllReaped { .. } => "all_reaped",
            Evidence::PidNamespaceInitReaped { .. } => "pid_namespace_init_reaped",
            Evidence::PidNamespaceInitGone { .. } => "pid_namespace_init_gone",
            Evidence::ClosedCgroupEmptied { .. } => "closed_cgroup_emptied",
            Evidence::BootChanged { .. } => "boot_changed",
            Evidence::SandboxDestroyed { .. } => "sandbox_destroyed",
            Evidence::NeverStarted { .. } => "never_started",
            Evidence::NeverExecuted { .. } => "never_executed",
        }
    }
}

/// Evidence that was checked where it was made. It cannot be read from a file, only written into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeathProof(Evidence);

impl DeathProof {
    /// The evidence, for the receipt.
    #[must_use]
    pub fn evidence(&self) -> &Evidence {
        &self.0
    }

    /// Gives the evidence up to the receipt.
    #[must_use]
    pub fn into_evidence(self) -> Evidence {
        self.0
    }
}

/// Why the observations prove nothing yet.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotProven {
    /// The warden still has children.
    #[error("descendants are left")]
    DescendantsLeft,
    /// The leaf still holds processes.
    #[error("the cgroup is populated")]
    LeafPopulated,
    /// The leaf could not be looked at or removed.
    #[error("the cgroup could not be {doing}: {why}")]
    LeafNotSettled {
        /// What was tried.
        doing: &'static str,
        /// What the kernel answered.
        why: String,
    },
    /// The command could have left its leaf, so that an empty leaf proves nothing about it.
    #[error("a command of the keeper's own uid could have left its cgroup")]
    CouldHaveLeft,
    /// The boot is the one it was started in.
    #[error("the machine has not been restarted since")]
    SameBoot,
    /// The settler is in another PID namespace than the keeper was, where its pids mean nothing.
    #[error("it was started in another PID namespace, whose processes cannot be told from here")]
    OtherNamespace,
    /// The init is still there.
    #[error("the init of the PID namespace lives")]
    InitLives,
}

fn leaf_settled(events: &LeafState, removal: &LeafRemoval) -> Result<(), NotProven> {
    match events {
        LeafState::Empty => {}
        LeafState::Populated => return Err(NotProven::LeafPopulated),
        LeafState::Unreadable(why) => {
            return Err(NotProven::LeafNotSettled { doing: "read", why: why.clone() });
        }
    }
    match removal {
        LeafRemoval::Removed => Ok(()),
        LeafRemoval::AlreadyGone => {
            Err(NotProven::LeafNotSettled { doing: "removed", why: "someone else removed it".to_owned() })
        }
        LeafRemoval::Refused(why) => Err(NotProven::LeafNotSettled { doing: "removed", why: why.clone() }),
    }
}

/// The warden's proof in a cgroup: `populated 0`, everything reaped, and the leaf removed.
///
/// # Errors
/// [`NotProven`] where one of the three is missing.
pub fn cgroup_empty_and_reaped(
    leaf: String,
    events: &LeafState,
    reaping: Reaping,
    removal: &LeafRemoval,
    at: UnixMicros,
) -> Result<DeathProof, NotProven> {
    let Reaping::NoChildLeft { reaped } = reaping else { return Err(NotProven::DescendantsLeft) };
    leaf_settled(events, removal)?;
    Ok(DeathProof(Evidence::CgroupEmptyAndReaped { leaf, reaped, at }))
}

/// The warden's proof as a subreaper alone: every descendant reaped.
///
/// # Errors
/// [`NotProven::DescendantsLeft`].
pub fn all_reaped(reaping: Reaping, at: UnixMicros) -> Result<DeathProof, NotProven> {
    match reaping {
        Reaping::NoChildLeft { reaped } => Ok(DeathProof(Evidence::AllReaped { reaped, at })),
        Reaping::ChildrenLeft => Err(NotProven::DescendantsLeft),
    }
}

/// That the namespace's init was reaped, by the warden that is its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitReaped {
    /// Its pid in the warden's namespace.
    pub init_pid: u32,
    /// The namespace's inode number.
    pub namespace: u64,
}

/// The warden's proof in a PID namespace.
#[must_use]
pub fn pid_namespace_init_reaped(reaped: InitReaped, at: UnixMicros) -> DeathProof {
    let InitReaped { init_pid, namespace } = reaped;
    DeathProof(Evidence::PidNamespaceInitReaped { init_pid, namespace, at })
}

/// Who init was, and what a look at that pid found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitLook {
    /// Its pid in the keeper's namespace.
    pub init_pid: u32,
    /// Its start time in clock ticks since boot, as recorded when it was made.
    pub start_time: u64,
    /// The start time of the process that has this pid now; `None` where there is none, or only a zombie.
    pub now: Option<u64>,
}

/// A settler's proof in a PID namespace: the recorded init (pid, start time, this boot) is no more.
///
/// # Errors
/// [`NotProven::InitLives`]; [`NotProven::SameBoot`] is never returned here.
pub fn pid_namespace_init_gone(look: InitLook, at: UnixMicros) -> Result<DeathProof, NotProven> {
    let InitLook { init_pid, start_time, now } = look;
    match now {
        Some(now) if now == start_time => Err(NotProven::InitLives),
        _ => Ok(DeathProof(Evidence::PidNamespaceInitGone { init_pid, start_time, at })),
    }
}

/// A settler's proof in a cgroup: emptied and removed, and the command could not have left it.
///
/// # Errors
/// [`NotProven`] where the command was of the keeper's own uid, or the leaf is not settled.
pub fn closed_cgroup_emptied(
    leaf: String,
    isolation: Isolation,
    events: &LeafState,
    removal: &LeafRemoval,
    at: UnixMicros,
) -> Result<DeathProof, NotProven> {
    if isolation == Isolation::SameUid {
        return Err(NotProven::CouldHaveLeft);
    }
    leaf_settled(events, removal)?;
    Ok(DeathProof(Evidence::ClosedCgroupEmptied { leaf, at }))
}

/// Anyone's proof after a restart of the machine: no process survives its boot.
///
/// # Errors
/// [`NotProven::SameBoot`].
pub fn boot_changed(started_in: &BootId, settled_in: &BootId) -> Result<DeathProof, NotProven> {
    if started_in == settled_in {
        return Err(NotProven::SameBoot);
    }
    Ok(DeathProof(Evidence::BootChanged { started_in: started_in.clone(), settled_in: settled_in.clone() }))
}

/// That this process created the start mark, exclusively, so that no keeper ever will.
#[derive(Debug)]
pub struct StartMarkTaken {
    claimed_by: String,
}

impl StartMarkTaken {
    /// To be called by the code that has just created the start mark, with the name it wrote there.
    #[must_use]
    pub fn by(claimed_by: String) -> Self {
        StartMarkTaken { claimed_by }
    }
}

/// Who took the start mark and starts nothing proves that nothing was started.
#[must_use]
pub fn never_started(mark: StartMarkTaken) -> DeathProof {
    DeathProof(Evidence::NeverStarted { claimed_by: mark.claimed_by })
}

/// That the process made for the command was reaped before `execve` succeeded.
#[derive(Debug, Clone, Copy)]
pub struct ExecRefusedAndReaped;

/// The warden's proof where the program could not be executed and nothing else was started.
///
/// # Errors
/// [`NotProven::DescendantsLeft`].
pub fn never_executed(
    _refused: ExecRefusedAndReaped,
    reaping: Reaping,
    at: UnixMicros,
) -> Result<DeathProof, NotProven> {
    match reaping {
        Reaping::NoChildLeft { .. } => Ok(DeathProof(Evidence::NeverExecuted { at })),
        Reaping::ChildrenLeft => Err(NotProven::DescendantsLeft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: UnixMicros = UnixMicros(7);
    const DONE: Reaping = Reaping::NoChildLeft { reaped: 3 };

    #[test]
    fn a_cgroup_proves_death_only_with_all_three() {
        let prove = |events: LeafState, reaping, removal: LeafRemoval| {
            cgroup_empty_and_reaped("leaf".into(), &events, reaping, &removal, AT)
        };
        assert!(prove(LeafState::Empty, DONE, LeafRemoval::Removed).is_ok());
        assert_eq!(
            prove(LeafState::Empty, Reaping::ChildrenLeft, LeafRemoval::Removed),
            Err(NotProven::DescendantsLeft)
        );
        assert_eq!(prove(LeafState::Populated, DONE, LeafRemoval::Removed), Err(NotProven::LeafPopulated));
        assert!(prove(LeafState::Unreadable("gone".into()), DONE, LeafRemoval::Removed).is_err());
        assert!(prove(LeafState::Empty, DONE, LeafRemoval::Refused("busy".into())).is_err());
        assert!(prove(LeafState::Empty, DONE, LeafRemoval::AlreadyGone).is_err());
    }

    #[test]
    fn a_settler_believes_an_empty_cgroup_only_where_it_was_closed() {
        let prove = |isolation| {
            closed_cgroup_emptied("leaf".into(), isolation, &LeafState::Empty, &LeafRemoval::Removed, AT)
        };
        assert_eq!(prove(Isolation::SameUid), Err(NotProven::CouldHaveLeft));
        assert!(prove(Isolation::OtherUid).is_ok());
    }

    #[test]
    fn a_pid_is_only_an_identity_with_its_start_time() {
        let look = |now| pid_namespace_init_gone(InitLook { init_pid: 9, start_time: 100, now }, AT);
        assert_eq!(look(Some(100)), Err(NotProven::InitLives));
        assert!(look(Some(101)).is_ok(), "the pid was used again");
        assert!(look(None).is_ok());
    }

    #[test]
    fn the_same_boot_proves_nothing() {
        let (a, b) = (BootId::new("a").unwrap(), BootId::new("b").unwrap());
        assert_eq!(boot_changed(&a, &a), Err(NotProven::SameBoot));
        assert!(boot_changed(&a, &b).is_ok());
    }

    #[test]
    fn children_left_prove_nothing() {
        assert!(all_reaped(Reaping::ChildrenLeft, AT).is_err());
        assert!(never_executed(ExecRefusedAndReaped, Reaping::ChildrenLeft, AT).is_err());
        assert!(all_reaped(DONE, AT).is_ok());
    }
}
