//! What a caller of a settled job is told: exit code and error code.

use crate::exit::{Cause, Exit};
use crate::receipt::Receipt;

/// The answer about a settled job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The exit code of the call, 0 to 255.
    pub exit_code: u8,
    /// The error's code; absent on success.
    pub code: Option<&'static str>,
    /// One sentence, without its command's text.
    pub message: String,
}

/// Judges a receipt. The command's own status is passed through where it ended by itself.
#[must_use]
pub fn judge(receipt: &Receipt) -> Verdict {
    let failed = |exit_code, code, message: String| Verdict { exit_code, code: Some(code), message };
    match (&receipt.exit, &receipt.cause) {
        (Exit::ExecFailed { errno, stage }, _) => failed(
            crate::exit::exec_failure_status(*errno),
            "EXEC_FAILED",
            format!("the command could not be started; {stage}: {}", crate::exit::error_text(*errno)),
        ),
        (Exit::NotStarted { why: crate::exit::NotStarted::Cancelled }, _) => {
            failed(143, "CANCELLED", "stopped before it began".to_owned())
        }
        (Exit::NotStarted { why }, _) => failed(
            1,
            "NOT_STARTED",
            format!("nothing was started under this attempt: {}", Exit::NotStarted { why: *why }),
        ),
        (_, Cause::Stop { .. }) => {
            failed(143, "CANCELLED", format!("stopped; the command ended with {}", receipt.exit))
        }
        (_, Cause::Deadline { after_ms }) => failed(
            10,
            "TIMEOUT",
            format!(
                "the deadline of {} passed; the whole tree was ended",
                crate::duration::format(crate::time::Millis(*after_ms))
            ),
        ),
        (_, Cause::CallBudget { after_ms }) => failed(
            10,
            "TIMEOUT",
            format!(
                "the call's budget of {} ended and --on-limit stop was asked for; the whole tree was ended",
                crate::duration::format(crate::time::Millis(*after_ms))
            ),
        ),
        (_, Cause::Stall { idle_ms }) => failed(
            10,
            "STALLED",
            format!(
                "no progress for {}; the whole tree was ended",
                crate::duration::format(crate::time::Millis(*idle_ms))
            ),
        ),
        (Exit::Unknown { why }, _) => {
            failed(1, "JOB_LOST", format!("how the command ended is not known: {why}"))
        }
        (exit, cause) => match receipt.effective_status() {
            Some(0) => Verdict { exit_code: 0, code: None, message: "succeeded".to_owned() },
            Some(status) => {
                let staged = *exit == Exit::Exited { code: 0 };
                let message = match (cause, staged) {
                    (Cause::OutOfMemory, _) => format!("ran out of memory ({exit})"),
                    (_, true) => {
                        format!("a stage of its pipeline failed with status {status} (the shell reported 0)")
                    }
                    (_, false) => format!("the command failed: {exit}"),
                };
                failed(
                    status,
                    if *cause == Cause::OutOfMemory { "OUT_OF_MEMORY" } else { "COMMAND_FAILED" },
                    message,
                )
            }
            None => failed(1, "JOB_LOST", "how the command ended is not known".to_owned()),
        },
    }
}
