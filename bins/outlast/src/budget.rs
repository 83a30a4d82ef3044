//! How long one call may take.
//!
//! `--budget` decides, else `AGENT_CALL_BUDGET_MS`, else 30 s where a program reads the answer. A person at a terminal
//! waits as long as they like, and so does a command that itself runs inside a job, whose caller is already bounded.

use outlast_core::time::{Millis, Mono};
use std::ffi::OsStr;
use thiserror::Error;

/// The variable a harness sets; never passed on to the command.
pub(crate) const VARIABLE: &str = "AGENT_CALL_BUDGET_MS";

/// The bound where nobody gave one and a program reads the answer.
pub(crate) const DEFAULT: Millis = Millis(30_000);

/// The bound of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    /// It ends so long after the call began.
    Of(Millis),
    /// Turned off by a 0.
    Off,
    /// None applies here.
    Absent,
}

/// A value of the variable that is no number of milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{VARIABLE} is `{0}`; it must be a whole number of milliseconds, 0 for no bound")]
pub(crate) struct BadVariable(pub(crate) String);

/// What decides where neither the option nor the variable does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings {
    /// Standard output is a terminal.
    pub(crate) on_terminal: bool,
    /// This call is made by the command of a job.
    pub(crate) inside_job: bool,
}

/// Decides the budget of a call.
pub(crate) fn decide(
    option: Option<Millis>,
    variable: Option<&OsStr>,
    surroundings: Surroundings,
) -> Result<Budget, BadVariable> {
    let chosen = match (option, variable.filter(|value| !value.is_empty())) {
        (Some(length), _) => Some(length),
        (None, Some(value)) => {
            let millis = value.to_str().and_then(|text| text.trim().parse::<u64>().ok());
            let bad = || BadVariable(value.to_string_lossy().chars().take(40).collect());
            Some(Millis(millis.ok_or_else(bad)?))
        }
        (None, None) if surroundings.on_terminal || surroundings.inside_job => None,
        (None, None) => Some(DEFAULT),
    };
    Ok(match chosen {
        Some(Millis(0)) => Budget::Off,
        Some(length) => Budget::Of(length),
        None => Budget::Absent,
    })
}

impl Budget {
    /// When it ends, for a call that began at `start`.
    pub(crate) fn ends_at(self, start: Mono) -> Option<Mono> {
        match self {
            Budget::Of(length) => Some(start.plus(length)),
            Budget::Off | Budget::Absent => None,
        }
    }

    /// `meta.budget_ms`: 0 for off, absent where none applies.
    pub(crate) fn millis(self) -> Option<u64> {
        match self {
            Budget::Of(length) => Some(length.0),
            Budget::Off => Some(0),
            Budget::Absent => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_case_by_case() {
        let pipe = Surroundings { on_terminal: false, inside_job: false };
        let terminal = Surroundings { on_terminal: true, inside_job: false };
        let job = Surroundings { on_terminal: false, inside_job: true };
        for (option, variable, surroundings, expected) in [
            (None, None, pipe, Budget::Of(DEFAULT)),
            (None, None, terminal, Budget::Absent),
            (None, None, job, Budget::Absent),
            (None, Some("3000"), pipe, Budget::Of(Millis(3000))),
            (None, Some("3000"), terminal, Budget::Of(Millis(3000))),
            (None, Some("3000"), job, Budget::Of(Millis(3000))),
            (None, Some("0"), pipe, Budget::Off),
            (None, Some(""), pipe, Budget::Of(DEFAULT)),
            (Some(5), Some("3000"), pipe, Budget::Of(Millis(5))),
            (Some(0), Some("3000"), pipe, Budget::Off),
            (Some(5), Some("nonsense"), terminal, Budget::Of(Millis(5))),
        ] {
            let got = decide(option.map(Millis), variable.map(OsStr::new), surroundings);
            assert_eq!(got, Ok(expected), "{option:?} {variable:?} {surroundings:?}");
        }
        assert_eq!(decide(None, Some(OsStr::new("3s")), pipe), Err(BadVariable("3s".into())));
    }

    #[test]
    fn what_meta_says() {
        assert_eq!(Budget::Of(Millis(7)).millis(), Some(7));
        assert_eq!(Budget::Off.millis(), Some(0));
        assert_eq!(Budget::Absent.millis(), None);
        assert_eq!(Budget::Of(Millis(7)).ends_at(Mono(3)), Some(Mono(10)));
        assert_eq!(Budget::Off.ends_at(Mono(3)), None);
    }
}
