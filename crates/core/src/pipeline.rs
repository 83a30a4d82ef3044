//! What the stages of a pipeline say about its success.
//!
//! A shell reports the last stage's status, so `cargo test | tail -n 20` hides the tests' 101. Taking any stage's
//! failure for the pipeline's would be as wrong the other way: `yes | head -1` kills `yes` by SIGPIPE, and
//! `grep zzz f | wc -l` says "none" by status 1. One rule, stated here and shown with each receipt, decides.

use serde::{Deserialize, Serialize};

/// 128 + SIGPIPE: what a shell reports of a stage that wrote to a pipe nobody reads.
const SIGPIPE_STATUS: u8 = 128 + 13;

/// Programs that say "no" by status 1, and mean an error only by 2 or more.
const SAY_NO_BY_ONE: [&str; 12] =
    ["grep", "egrep", "fgrep", "zgrep", "rg", "diff", "cmp", "test", "[", "pgrep", "ripgrep", "git-grep"];

/// One stage of a pipeline, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The program's name without its folder, where the syntax tree tells it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program: Option<String>,
    /// Its status as the shell saw it.
    pub status: u8,
}

/// Which part of the rule decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Every stage succeeded, or none that counts failed.
    AllSucceeded,
    /// The last stage failed.
    LastStage,
    /// The last stage succeeded; the last earlier stage that failed decides.
    EarlierStage,
}

/// What the stages come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// The status the pipeline is judged by.
    pub status: u8,
    /// The part of the rule that decided.
    pub rule: Rule,
    /// The stage that decided, from 0; absent where all succeeded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stage: Option<usize>,
}

/// Judges a pipeline by its stages: the last stage if it failed; else the last earlier stage that failed, leaving
/// out one that died of SIGPIPE (a later one had finished) and a status 1 of a program that means "no" by it. The
/// last stage is never left out. `None` for no stages.
#[must_use]
pub fn effective(stages: &[Stage]) -> Option<Effective> {
    let (last, earlier) = stages.split_last()?;
    if last.status != 0 {
        return Some(Effective { status: last.status, rule: Rule::LastStage, stage: Some(earlier.len()) });
    }
    let counts = |stage: &Stage| match stage.status {
        0 | SIGPIPE_STATUS => false,
        1 => !stage.program.as_deref().is_some_and(|program| SAY_NO_BY_ONE.contains(&program)),
        _ => true,
    };
    Some(match earlier.iter().rposition(counts) {
        Some(at) => Effective { status: earlier[at].status, rule: Rule::EarlierStage, stage: Some(at) },
        None => Effective { status: 0, rule: Rule::AllSucceeded, stage: None },
    })
}

/// What is known of the stages of the last pipeline a script executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stages {
    /// The command is no shell script whose last act is a pipeline.
    NotAPipeline,
    /// There may have been a pipeline, and its stages are not known.
    NotCaptured {
        /// Why not.
        why: String,
    },
    /// All stages are known.
    Captured {
        /// The stages, in order.
        stages: Vec<Stage>,
        /// What they come to.
        effective: Effective,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(stages: &[(&str, u8)]) -> (u8, Rule) {
        let stages: Vec<Stage> = stages
            .iter()
            .map(|(program, status)| Stage { program: Some((*program).to_owned()), status: *status })
            .collect();
        let effective = effective(&stages).unwrap();
        (effective.status, effective.rule)
    }

    #[test]
    fn the_rule_case_by_case() {
        use Rule::{AllSucceeded, EarlierStage, LastStage};
        for (stages, expected) in [
            (&[("cargo", 101), ("tail", 0)][..], (101, EarlierStage)),
            (&[("yes", 141), ("head", 0)], (0, AllSucceeded)),
            (&[("grep", 1), ("wc", 0)], (0, AllSucceeded)),
            (&[("grep", 2), ("wc", 0)], (2, EarlierStage)),
            (&[("cargo", 101), ("grep", 1)], (1, LastStage)),
            (&[("cargo", 0), ("grep", 1)], (1, LastStage)),
            (&[("false", 1), ("true", 0)], (1, EarlierStage)),
            (&[("false", 1), ("exit", 3), ("true", 0)], (3, EarlierStage)),
            (&[("exit", 3), ("grep", 1), ("cat", 0)], (3, EarlierStage)),
            (&[("yes", 141)], (141, LastStage)),
            (&[("true", 0), ("true", 0)], (0, AllSucceeded)),
        ] {
            assert_eq!(judge(stages), expected, "{stages:?}");
        }
    }

    #[test]
    fn no_stages_say_nothing() {
        assert_eq!(effective(&[]), None);
    }
}
