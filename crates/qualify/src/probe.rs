//! What a probe is, and what it may find.

use crate::lab::Lab;
use crate::subject::{Answer, Trouble};
use serde::Serialize;
use serde_json::Value;

/// One question to a subject.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// Its name, for `--only` and `--skip`.
    pub id: &'static str,
    /// The behaviour that is right, in a few words.
    pub title: &'static str,
    /// What it does.
    pub does: &'static str,
    /// What a pass proves.
    pub proves: &'static str,
    /// What a pass does not prove.
    pub proves_not: &'static str,
    /// The numbers of the reports from the field that it stands for.
    pub cases: &'static [u16],
    /// The longest it may take, in seconds; then the subject did not answer.
    pub bound_s: u64,
    /// How it is done.
    pub(crate) run: fn(&Lab) -> Answer<Finding>,
}

/// What a probe comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The right behaviour was seen.
    Pass,
    /// A wrong one was seen.
    Fail,
    /// A part of the right behaviour was seen, and nothing that misleads.
    Partial,
    /// The subject has no such thing, and says so.
    Unsupported,
    /// It could not be observed.
    Inconclusive,
}

impl Verdict {
    /// The word in the table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Partial => "partial",
            Verdict::Unsupported => "unsupported",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

/// A verdict and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it comes to.
    pub verdict: Verdict,
    /// What was seen, in one line for people.
    pub line: String,
    /// What was seen, for programs.
    pub evidence: Value,
}

/// A verdict with its line.
pub(crate) type Judgement = (Verdict, String);

impl Finding {
    pub(crate) fn of(seen: &impl Serialize, (verdict, line): Judgement) -> Finding {
        let evidence = serde_json::to_value(seen)
            .unwrap_or_else(|error| Value::String(format!("the evidence cannot be written: {error}")));
        Finding { verdict, line, evidence }
    }

    /// What it means that a probe ended early.
    pub(crate) fn of_trouble(trouble: &Trouble) -> Finding {
        let verdict = match trouble {
            Trouble::Unsupported { .. } => Verdict::Unsupported,
            // What is asked of a subject here, it may not refuse, and has to answer.
            Trouble::Refused { .. } | Trouble::NoAnswer { .. } => Verdict::Fail,
            Trouble::Unavailable { .. } | Trouble::Unobserved { .. } => Verdict::Inconclusive,
        };
        Finding::of(trouble, (verdict, trouble.to_string()))
    }
}

pub(crate) fn pass(line: impl Into<String>) -> Judgement {
    (Verdict::Pass, line.into())
}

pub(crate) fn fail(line: impl Into<String>) -> Judgement {
    (Verdict::Fail, line.into())
}

pub(crate) fn partial(line: impl Into<String>) -> Judgement {
    (Verdict::Partial, line.into())
}

pub(crate) fn inconclusive(line: impl Into<String>) -> Judgement {
    (Verdict::Inconclusive, line.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_not_there_is_no_failure_and_silence_is_one() {
        for (trouble, verdict) in [
            (Trouble::unsupported("no keys"), Verdict::Unsupported),
            (Trouble::no_answer(Duration::from_secs(3)), Verdict::Fail),
            (Trouble::refused("NO", "no"), Verdict::Fail),
            (Trouble::unavailable("gone"), Verdict::Inconclusive),
            (Trouble::unobserved("no /proc"), Verdict::Inconclusive),
        ] {
            assert_eq!(Finding::of_trouble(&trouble).verdict, verdict, "{trouble:?}");
        }
        let finding = Finding::of_trouble(&Trouble::no_answer(Duration::from_millis(2500)));
        assert_eq!(finding.line, "no answer in 2.5 s");
    }
}
