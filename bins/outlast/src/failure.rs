//! Why a command did not do what was asked: a code for programs, a sentence for people, and what to do about it.

use outlast_hand::home::HomeError;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::io;
use std::ops::{Deref, DerefMut};

/// A kind of failure: its code and the exit code that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// `^[A-Z][A-Z0-9_]+$`.
    pub(crate) code: &'static str,
    /// 1 to 255.
    pub(crate) exit: u8,
}

const fn kind(code: &'static str, exit: u8) -> Kind {
    Kind { code, exit }
}

pub(crate) const JOB_LOST: Kind = kind("JOB_LOST", 1);
pub(crate) const DAMAGED: Kind = kind("DAMAGED", 1);
pub(crate) const VIOLATIONS_FOUND: Kind = kind("VIOLATIONS_FOUND", 1);
pub(crate) const BAD_ARGUMENT: Kind = kind("BAD_ARGUMENT", 2);
pub(crate) const AMBIGUOUS_ID: Kind = kind("AMBIGUOUS_ID", 2);
pub(crate) const DETACH_REFUSED: Kind = kind("DETACH_REFUSED", 2);
pub(crate) const BUSY_WAIT_REFUSED: Kind = kind("BUSY_WAIT_REFUSED", 2);
pub(crate) const SECRET_IN_COMMAND: Kind = kind("SECRET_IN_COMMAND", 2);
pub(crate) const TOO_LARGE: Kind = kind("TOO_LARGE", 2);
pub(crate) const HOME_NOT_SET: Kind = kind("HOME_NOT_SET", 4);
pub(crate) const HOME_UNUSABLE: Kind = kind("HOME_UNUSABLE", 4);
pub(crate) const CWD_NOT_FOUND: Kind = kind("CWD_NOT_FOUND", 4);
pub(crate) const SECRET_NOT_MASKABLE: Kind = kind("SECRET_NOT_MASKABLE", 4);
pub(crate) const SECRET_NOT_SET: Kind = kind("SECRET_NOT_SET", 4);
pub(crate) const INPUT_NOT_FOUND: Kind = kind("INPUT_NOT_FOUND", 4);
pub(crate) const INPUT_INCOMPLETE: Kind = kind("INPUT_INCOMPLETE", 4);
pub(crate) const INPUT_NOT_KEPT: Kind = kind("INPUT_NOT_KEPT", 4);
pub(crate) const NO_OPEN_STDIN: Kind = kind("NO_OPEN_STDIN", 4);
pub(crate) const NO_TERMINAL: Kind = kind("NO_TERMINAL", 4);
pub(crate) const KEEPER_LIVES: Kind = kind("KEEPER_LIVES", 4);
pub(crate) const DEATH_NOT_PROVED: Kind = kind("DEATH_NOT_PROVED", 4);
pub(crate) const CONFIRMATION_REQUIRED: Kind = kind("CONFIRMATION_REQUIRED", 4);
pub(crate) const JOB_NOT_FOUND: Kind = kind("JOB_NOT_FOUND", 5);
pub(crate) const KEY_CONFLICT: Kind = kind("KEY_CONFLICT", 6);
pub(crate) const WORKSPACE_UNKNOWN: Kind = kind("WORKSPACE_UNKNOWN", 6);
pub(crate) const GENERATION_CLOSED: Kind = kind("GENERATION_CLOSED", 6);
pub(crate) const RUN_SEALED: Kind = kind("RUN_SEALED", 6);
pub(crate) const NOT_PROVED_DEAD: Kind = kind("NOT_PROVED_DEAD", 6);
pub(crate) const NOT_THE_LATEST: Kind = kind("NOT_THE_LATEST", 6);
pub(crate) const STOP_STALE: Kind = kind("STOP_STALE", 6);
pub(crate) const OFFSET_CONFLICT: Kind = kind("OFFSET_CONFLICT", 6);
pub(crate) const DENIED: Kind = kind("DENIED", 7);
pub(crate) const UNAVAILABLE: Kind = kind("UNAVAILABLE", 12);
pub(crate) const KEEPER_NOT_STARTED: Kind = kind("KEEPER_NOT_STARTED", 12);
pub(crate) const INCOMPLETE: Kind = kind("INCOMPLETE", 14);
pub(crate) const INTERRUPTED: Kind = kind("CANCELLED", 130);
pub(crate) const TERMINATED: Kind = kind("CANCELLED", 143);

/// In which part of a call it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Before anything was done.
    Validation,
    /// While doing it.
    Execution,
}

/// The `error` of an answer. Boxed, so that a success does not carry its weight.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct Failure(Box<Details>);

impl Deref for Failure {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.0
    }
}

/// What a failure says.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Details {
    /// The code.
    pub(crate) code: Cow<'static, str>,
    /// One sentence.
    pub(crate) message: String,
    /// Whether the same call may be made again and lead further.
    pub(crate) retryable: bool,
    /// Before or while anything was done.
    pub(crate) phase: Phase,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suggestion: Option<String>,
    /// The command that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix_command: Option<String>,
    /// More text: the end of a lost job's output, an excerpt of a refused script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// What lay behind it, outermost first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    /// Facts that belong to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<Value>,
    /// The exit code; `meta` has it.
    #[serde(skip)]
    pub(crate) exit_code: u8,
}

impl Failure {
    /// A failure of this kind.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        let Kind { code, exit } = kind;
        Failure::with(code, exit, message)
    }

    /// A failure whose code and exit code come from elsewhere: a verdict on a receipt, a keeper.
    pub(crate) fn with(
        code: impl Into<Cow<'static, str>>,
        exit_code: u8,
        message: impl Into<String>,
    ) -> Failure {
        let code = code.into();
        Failure(Box::new(Details {
            message: message.into(),
            code: code.clone(),
            retryable: code == INCOMPLETE.code || exit_code == UNAVAILABLE.exit && code != "COMMAND_FAILED",
            phase: if exit_code == BAD_ARGUMENT.exit && code != "COMMAND_FAILED" {
                Phase::Validation
            } else {
                Phase::Execution
            },
            suggestion: None,
            fix_command: None,
            detail: None,
            cause: None,
            context: None,
            exit_code,
        }))
    }

    /// Nothing was done when it was noticed.
    pub(crate) fn before_anything(mut self) -> Failure {
        self.phase = Phase::Validation;
        self
    }

    /// What to do about it.
    pub(crate) fn suggest(mut self, suggestion: impl Into<String>) -> Failure {
        self.suggestion = Some(suggestion.into());
        self
    }

    /// What to do about it, and the command that does it.
    pub(crate) fn fix(mut self, what: impl AsRef<str>, command: impl Into<String>) -> Failure {
        let command = command.into();
        self.suggestion = Some(format!("{} `{command}`", what.as_ref()));
        self.fix_command = Some(command);
        self
    }

    /// Facts that belong to it.
    pub(crate) fn context(mut self, context: Value) -> Failure {
        self.context = Some(context);
        self
    }

    /// More text.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Failure {
        self.detail = Some(detail.into());
        self
    }

    /// What lay behind it, from the error's own chain.
    pub(crate) fn because_of(mut self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut chain = Vec::new();
        let mut next = Some(error);
        while let Some(error) = next {
            chain.push(error.to_string());
            next = error.source();
        }
        self.cause = Some(chain.join(": ")).filter(|chain| !chain.is_empty());
        self
    }

    /// The failure for people, in one line: what, why, and what to do.
    pub(crate) fn line(&self) -> String {
        let mut line = self.message.clone();
        if let Some(cause) = &self.cause {
            line = format!("{line}: {cause}");
        }
        if let Some(suggestion) = &self.suggestion {
            line = format!("{line}; {suggestion}");
        }
        format!("{line} ({})", self.code)
    }
}

/// What the system refused, sorted by whether trying again can help.
pub(crate) fn of_system(doing: &str, error: &io::Error) -> Failure {
    use io::ErrorKind::{InvalidData, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    let kind = match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => DENIED,
        InvalidData | Unsupported => DAMAGED,
        _ => UNAVAILABLE,
    };
    let failure = Failure::new(kind, format!("{doing} failed")).because_of(error);
    match kind.code {
        "DENIED" => failure.suggest("check who owns the folder and who you are"),
        "DAMAGED" => failure.suggest("nothing was changed; `outlast doctor --verify` lists what is damaged"),
        _ => failure.suggest("make the same call again; `outlast doctor` shows the state of the home"),
    }
}

/// Whether a path is taken by what is no folder, which no second call changes.
fn is_no_folder(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotADirectory};
    matches!(error.kind(), AlreadyExists | NotADirectory)
}

impl From<HomeError> for Failure {
    fn from(error: HomeError) -> Failure {
        match &error {
            HomeError::Nowhere => Failure::new(HOME_NOT_SET, error.to_string()).before_anything(),
            HomeError::Unusable { source, .. } if is_no_folder(source) => {
                Failure::new(HOME_UNUSABLE, error.to_string())
                    .because_of(source)
                    .before_anything()
                    .suggest("name a folder with --home or OUTLAST_HOME; it is made where there is none")
            }
            HomeError::Unusable { path, source } => {
                let mut failure =
                    of_system(&format!("opening the home for jobs, {},", path.display()), source);
                failure.suggestion = Some("name another folder with --home or OUTLAST_HOME".to_owned());
                failure
            }
            HomeError::OtherSandbox { .. } | HomeError::BadSandbox { .. } => {
                Failure::new(HOME_UNUSABLE, error.to_string())
                    .before_anything()
                    .suggest("name another folder with --home or OUTLAST_HOME")
            }
            HomeError::Unreadable { .. } => Failure::new(DAMAGED, error.to_string())
                .suggest("use the version that made it, or name another folder with --home"),
        }
    }
}

/// No job of that name in this scope. One of another scope is answered alike.
pub(crate) fn not_found(text: &str) -> Failure {
    let shown: String = text.chars().take(80).collect();
    Failure::new(JOB_NOT_FOUND, format!("there is no job `{shown}` in this scope"))
        .suggest("`outlast job list --all` shows the jobs there are")
}

/// The beginning of several ids.
pub(crate) fn ambiguous(text: &str, ids: &[outlast_core::id::JobId]) -> Failure {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    Failure::new(AMBIGUOUS_ID, format!("several jobs begin with `{text}`: {}", ids.join(", ")))
        .suggest("write more of the id")
        .context(serde_json::json!({ "ids": ids }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_help_is_retryable() {
        assert!(Failure::new(INCOMPLETE, "").retryable);
        assert!(Failure::new(UNAVAILABLE, "").retryable);
        for failure in [
            Failure::with("TIMEOUT", 10, ""),
            Failure::new(JOB_LOST, ""),
            Failure::with("COMMAND_FAILED", 12, ""),
            Failure::with("COMMAND_FAILED", 14, ""),
        ] {
            assert!(!failure.retryable, "{failure:?}");
        }
    }

    #[test]
    fn a_failure_is_one_line_with_its_remedy() {
        let error = io::Error::other("no space");
        let failure = of_system("writing the job", &error);
        assert_eq!(
            failure.line(),
            "writing the job failed: no space; make the same call again; `outlast doctor` shows the state of the home \
             (UNAVAILABLE)"
        );
        let failure = Failure::new(JOB_LOST, "its exit is not known")
            .fix("start a later attempt:", "outlast job retry x");
        assert_eq!(
            failure.line(),
            "its exit is not known; start a later attempt: `outlast job retry x` (JOB_LOST)"
        );
    }

    #[test]
    fn a_wrong_argument_is_refused_before_anything() {
        assert_eq!(Failure::new(BAD_ARGUMENT, "").phase, Phase::Validation);
        assert_eq!(Failure::with("COMMAND_FAILED", 2, "").phase, Phase::Execution);
    }
}
