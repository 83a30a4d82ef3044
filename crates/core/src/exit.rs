//! How a command ended.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the command's own process ended. *Unknown* is a fact of its own, never a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    /// It called exit.
    Exited {
        /// Its status, 0 to 255.
        code: u8,
    },
    /// A signal ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
        /// Whether the kernel says that it dumped core.
        core_dumped: bool,
    },
    /// It never became the program: `execve` or what precedes it was refused.
    ExecFailed {
        /// The error number of the call that was refused.
        errno: i32,
        /// What was being done, for people.
        stage: String,
    },
    /// Nothing was started under this attempt, and nothing will be.
    NotStarted {
        /// Why not.
        why: NotStarted,
    },
    /// It ended, and nobody who could know how said so.
    Unknown {
        /// Why nobody knows.
        why: String,
    },
}

/// Why an admitted attempt never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotStarted {
    /// No keeper claimed the start mark in time, so a settler did.
    NoKeeper,
    /// A stop was accepted first.
    Cancelled,
    /// The keeper could not set up what was asked for (containment, limits, storage).
    SetUpFailed,
}

impl Exit {
    /// The status a shell would report: the code, or 128 + the signal. `None` where there is none to report.
    #[must_use]
    pub fn shell_status(&self) -> Option<u8> {
        match self {
            Exit::Exited { code } => Some(*code),
            Exit::Signaled { signal, .. } => Some(128u8.wrapping_add(u8::try_from(*signal).unwrap_or(0))),
            Exit::ExecFailed { errno, .. } => Some(exec_failure_status(*errno)),
            Exit::NotStarted { .. } | Exit::Unknown { .. } => None,
        }
    }
}

/// 127 where the program was not found (ENOENT, ENOTDIR), else 126, as POSIX shells say.
#[must_use]
pub fn exec_failure_status(errno: i32) -> u8 {
    const ENOENT: i32 = 2;
    const ENOTDIR: i32 = 20;
    if errno == ENOENT || errno == ENOTDIR { 127 } else { 126 }
}

/// What an error number of a start that was refused means, for people. Only those that such a start can meet.
#[must_use]
pub fn error_text(errno: i32) -> String {
    let text = match errno {
        1 => "not permitted",
        2 => "no such file or directory",
        7 => "the arguments and environment are too long",
        8 => "not a format this system can execute (a script needs a #! line)",
        11 => "no more processes are allowed",
        12 => "not enough memory",
        13 => "permission denied",
        20 => "a part of the path is no directory",
        21 => "it is a directory",
        26 => "the file is being written",
        36 => "the name is too long",
        40 => "too many symbolic links",
        _ => return format!("error {errno}"),
    };
    format!("{text} (error {errno})")
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Exited { code } => write!(f, "exit {code}"),
            Exit::Signaled { signal, core_dumped: false } => write!(f, "signal {signal}"),
            Exit::Signaled { signal, core_dumped: true } => write!(f, "signal {signal} (core dumped)"),
            Exit::ExecFailed { errno, stage } => write!(f, "not executed ({stage}: {})", error_text(*errno)),
            Exit::NotStarted { why } => write!(
                f,
                "not started ({})",
                match why {
                    NotStarted::NoKeeper => "no keeper took it up in time",
                    NotStarted::Cancelled => "stopped before it began",
                    NotStarted::SetUpFailed => "its surroundings could not be set up",
                }
            ),
            Exit::Unknown { .. } => f.write_str("exit unknown"),
        }
    }
}

/// Why the job ended when it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The command ended by itself.
    OwnEnd,
    /// A stop was accepted.
    Stop {
        /// The stop's id.
        id: String,
    },
    /// The deadline of the whole work passed.
    Deadline {
        /// The deadline, from the start.
        after_ms: u64,
    },
    /// The call's budget ended it (`--on-limit stop`).
    CallBudget {
        /// The budget of the call.
        after_ms: u64,
    },
    /// The job's own cgroup ran out of memory, as its `oom_kill` counter says.
    OutOfMemory,
    /// No progress for the idle limit.
    Stall {
        /// The idle limit.
        idle_ms: u64,
    },
    /// The keeper was lost; a settler ended what was left.
    KeeperLost,
    /// The machine was started anew.
    Reboot,
    /// It never started; see the exit.
    NotStarted,
    /// Nobody who could know said so.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::duration::format;
        use crate::time::Millis;
        match self {
            Cause::OwnEnd => f.write_str("its own end"),
            Cause::Stop { id } => write!(f, "stop {id}"),
            Cause::Deadline { after_ms } => write!(f, "deadline of {}", format(Millis(*after_ms))),
            Cause::CallBudget { after_ms } => write!(f, "call budget of {}", format(Millis(*after_ms))),
            Cause::OutOfMemory => f.write_str("out of memory"),
            Cause::Stall { idle_ms } => write!(f, "no progress for {}", format(Millis(*idle_ms))),
            Cause::KeeperLost => f.write_str("its keeper was lost"),
            Cause::Reboot => f.write_str("the machine was restarted"),
            Cause::NotStarted => f.write_str("it never started"),
            Cause::Unknown => f.write_str("unknown"),
        }
    }
}
