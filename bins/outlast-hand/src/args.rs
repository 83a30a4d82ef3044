//! What the command line says, and what went wrong.

use lexopt::Parser;
use outlast_hand::home::Home;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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

/// The value of an option that is a text. The parser's own word for what is wrong with one does not say of which option.
pub(crate) fn text(parser: &mut Parser, option: &str) -> Result<String, Failure> {
    let value = parser.value()?.into_string();
    value.map_err(|value| Failure::usage(format!("{option} {}: it is not UTF-8", value.display())))
}

/// The value of an option that is a number; `expected` says which.
pub(crate) fn number<N: FromStr>(parser: &mut Parser, option: &str, expected: &str) -> Result<N, Failure> {
    let value = parser.value()?;
    let read = value.to_str().and_then(|text| text.parse().ok());
    read.ok_or_else(|| Failure::usage(format!("{option} {}: say {expected}", value.display())))
}

/// The value of an option that is a path. An empty one names nothing, which is a variable that was not set rather than
/// the folder one happens to be in.
pub(crate) fn path(parser: &mut Parser, option: &str) -> Result<PathBuf, Failure> {
    let value = parser.value()?;
    if value.is_empty() {
        return Err(Failure::usage(format!("{option} names nothing")));
    }
    Ok(value.into())
}

/// The home that `--home` names, else the usual one.
pub(crate) fn home(named: Option<PathBuf>) -> Result<PathBuf, Failure> {
    match named {
        // A relative one would mean another home in each folder.
        Some(path) => std::path::absolute(path).map_err(|error| Failure::of(&error)),
        None => Home::locate().map_err(|error| Failure::of(&error)),
    }
}
