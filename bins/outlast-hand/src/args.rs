//! What the command line says, and what went wrong.

use outlast_hand::home::Home;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// Why the program ends without having done what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// A mistake on the command line.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { code: 2, message: message.into() }
    }

    /// Another one has what this one wants.
    pub(crate) fn conflict(message: impl Into<String>) -> Failure {
        Failure { code: 6, message: message.into() }
    }

    /// Everything else, with its causes.
    pub(crate) fn of(error: &dyn std::error::Error) -> Failure {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        Failure { code: 1, message }
    }

    pub(crate) fn is_usage(&self) -> bool {
        self.code == 2
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Failure {
        Failure::usage(error.to_string())
    }
}

/// The home that `--home` names, else the usual one.
pub(crate) fn home(named: Option<OsString>) -> Result<PathBuf, Failure> {
    match named {
        Some(path) if path.is_empty() => Err(Failure::usage("--home names nothing")),
        // A relative one would mean another home in each folder.
        Some(path) => std::path::absolute(PathBuf::from(path)).map_err(|error| Failure::of(&error)),
        None => Home::locate().map_err(|error| Failure::of(&error)),
    }
}
