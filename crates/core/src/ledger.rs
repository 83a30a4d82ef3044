//! What a keeper notes while a job runs: `start.json`, and one JSON object a line in `ledger.jsonl`.
//!
//! The ledger is not synced line by line. Within one boot the page cache keeps it whatever process dies; across a
//! boot nothing in it matters, because the change of boot proves death by itself.

use crate::bytes::Bytes;
use crate::evidence::{Evidence, Isolation};
use crate::exit::{Cause, Exit, NotStarted};
use crate::fence::{Stale, StopRequest};
use crate::id::{BootId, Cursor};
use crate::spec::Boundary;
use crate::time::{Mono, UnixMicros};
use serde::{Deserialize, Serialize};

/// The start mark, created exclusively: who holds it decides whether this attempt starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum StartMark {
    /// A keeper took it, and starts the command.
    Keeper(KeeperMark),
    /// A settler took it: nothing starts.
    Settler {
        /// The name it settles under.
        name: String,
        /// When.
        at: UnixMicros,
        /// Why nothing starts. Whoever writes the receipt writes this, so that it is one reason whoever that is. Absent in marks
        /// of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<NotStarted>,
    },
}

/// What a keeper says of itself and of the boundary before it starts anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperMark {
    /// The warden's pid.
    pub warden_pid: u32,
    /// The warden's start time in clock ticks since boot.
    pub warden_start_time: u64,
    /// This boot.
    pub boot_id: BootId,
    /// The inode number of the PID namespace that the warden is in: the pids it notes mean nothing in another.
    #[serde(default)]
    pub pid_namespace: u64,
    /// When.
    pub at: UnixMicros,
    /// The same moment by the monotonic clock, which the deadline counts on.
    pub mono: Mono,
    /// What contains the command.
    pub boundary: Boundary,
    /// Whether the command could leave it.
    pub isolation: Isolation,
    /// The job's leaf cgroup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leaf: Option<LeafMark>,
    /// Cgroups of version 1 that hold its limits.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub limit_groups: Vec<Bytes>,
}

/// A leaf cgroup, so that a settler finds it again and mistakes no other for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafMark {
    /// The folder it lies in, which holds the keeper's own group, too.
    pub place: Bytes,
    /// Its name there.
    pub name: String,
    /// The kernel's number for it, never used again within a boot.
    pub id: u64,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Record {
    /// The command's process exists.
    Started {
        /// When.
        at: UnixMicros,
        /// Its pid in the keeper's namespace (the namespace's init, in a PID namespace).
        pid: u32,
        /// Its start time in clock ticks since boot.
        start_time: u64,
        /// The PID namespace's inode number, where it has one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        namespace: Option<u64>,
    },
    /// A stop was accepted.
    StopAccepted {
        /// When.
        at: UnixMicros,
        /// The stop.
        request: StopRequest,
    },
    /// A stop was stale and did nothing.
    StopDropped {
        /// When.
        at: UnixMicros,
        /// The stop.
        request: StopRequest,
        /// Why.
        stale: Stale,
    },
    /// The tree is being ended, and why.
    Ending {
        /// When.
        at: UnixMicros,
        /// Why.
        cause: Cause,
    },
    /// A signal was sent to the whole tree.
    Signaled {
        /// When.
        at: UnixMicros,
        /// Its number.
        signal: i32,
        /// How many processes it was sent to; absent where the cgroup's own kill was used.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        processes: Option<u64>,
    },
    /// The command's own process ended.
    Exited {
        /// When.
        at: UnixMicros,
        /// How.
        exit: Exit,
    },
    /// Descendants that outlived the leader's linger time.
    Stragglers {
        /// When.
        at: UnixMicros,
        /// Who.
        processes: Vec<Straggler>,
        /// How many more there were than are listed.
        more: u64,
    },
    /// The tree is proved dead.
    Dead {
        /// The evidence.
        evidence: Evidence,
    },
    /// The scribe was lost and started again.
    ScribeRestarted {
        /// When.
        at: UnixMicros,
    },
    /// Output is at its end, or was given up.
    Drained {
        /// When.
        at: UnixMicros,
        /// What the log holds.
        output: crate::receipt::Output,
    },
    /// The log could not be written.
    StorageFailed {
        /// When.
        at: UnixMicros,
        /// What was done, and what the system said.
        why: String,
    },
    /// Bytes of standard input were taken up to this offset.
    StdinTaken {
        /// The offset.
        offset: Cursor,
        /// Whether it is closed.
        closed: bool,
    },
}

/// A descendant that outlived its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Straggler {
    /// Its pid in the keeper's namespace.
    pub pid: u32,
    /// Its program, as the kernel names it (15 bytes at most).
    pub name: String,
}

/// What the ledger comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The command's process: pid, start time, namespace.
    pub started: Option<(UnixMicros, u32, u64, Option<u64>)>,
    /// Accepted stops, first to last.
    pub stops: Vec<StopRequest>,
    /// Dropped stops.
    pub dropped_stops: u64,
    /// Why the tree is being ended.
    pub ending: Option<Cause>,
    /// How the leader ended, and when.
    pub exited: Option<(UnixMicros, Exit)>,
    /// Descendants that outlived it.
    pub stragglers: Vec<Straggler>,
    /// The warden's death evidence.
    pub dead: Option<Evidence>,
    /// The end of output.
    pub drained: Option<crate::receipt::Output>,
    /// Why the log could not be written.
    pub storage_failed: Option<String>,
    /// Scribes that were lost.
    pub scribe_restarts: u64,
    /// The offset up to which standard input was taken, and whether it is closed.
    pub stdin: Option<(Cursor, bool)>,
}

impl Summary {
    /// Reads a whole ledger. A last line without its end, or one that does not parse, is passed over: the writer
    /// may have died in it.
    #[must_use]
    pub fn of(ledger: &[u8]) -> Summary {
        let mut summary = Summary::default();
        for line in ledger.split(|byte| *byte == b'\n') {
            if let Ok(record) = serde_json::from_slice::<Record>(line) {
                summary.take(record);
            }
        }
        summary
    }

    /// Takes one record into account.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Started { at, pid, start_time, namespace } => {
                self.started = Some((at, pid, start_time, namespace));
            }
            // Noted again by a scribe that followed a lost one.
            Record::StopAccepted { request, .. } if self.stops.iter().any(|stop| stop.id == request.id) => {}
            Record::StopAccepted { request, .. } => self.stops.push(request),
            Record::StopDropped { .. } => self.dropped_stops += 1,
            Record::Ending { cause, .. } => self.ending = self.ending.take().or(Some(cause)),
            Record::Signaled { .. } => {}
            Record::Exited { at, exit } => self.exited = Some((at, exit)),
            Record::Stragglers { processes, .. } => self.stragglers = processes,
            Record::Dead { evidence } => self.dead = Some(evidence),
            Record::ScribeRestarted { .. } => self.scribe_restarts += 1,
            Record::Drained { output, .. } => self.drained = Some(output),
            Record::StorageFailed { why, .. } => self.storage_failed = Some(why),
            Record::StdinTaken { offset, closed } => self.stdin = Some((offset, closed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_torn_last_line_is_passed_over() {
        let whole =
            serde_json::to_string(&Record::Exited { at: UnixMicros(1), exit: Exit::Exited { code: 3 } })
                .unwrap();
        let text = format!("{whole}\n{}", &whole[..whole.len() - 4]);
        assert_eq!(Summary::of(text.as_bytes()).exited, Some((UnixMicros(1), Exit::Exited { code: 3 })));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Summary::of(&bytes);
        }
    }
}
