//! What the stages of a pipeline say about its success.
//!
//! A shell reports the last stage's status, so `cargo test | tail -n 20` hides the tests' 101. Taking any stage's
//! failure for the pipeline's would be as wrong the other way: `yes | head -1` kills `yes` by SIGPIPE, and
//! `grep zzz f | wc -l` says "none" by status 1. One rule, stated here and shown with each receipt, decides.

use serde::{Deserialize, Serialize};

/// 128 + SIGPIPE: what a shell reports of a stage that wrote to a pipe nobody reads.
const SIGPIPE_STATUS: u8 = 128 + 13;

/// Programs that say "no" by status 1, and mean an error only by 2 or more.
const SAY_NO_BY_ONE: [&str; 10] =
    ["grep", "egrep", "fgrep", "zgrep", "rg", "diff", "cmp", "test", "[", "pgrep"];

/// One stage of a pipeline, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    /// The program's name without its folder, where the syntax tree tells it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program: Option<String>,
    /// Its status as the shell saw it.
    pub status: u8,
}

/// Which part of the rule decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Every stage returned 0.
    AllSucceeded,
    /// The last stage failed, and it is never left out.
    LastStage,
    /// The last stage succeeded; the last earlier stage that failed and counts decides.
    EarlierStage,
    /// Earlier stages failed, but each only of a SIGPIPE or with an answer "no".
    LeftOut,
    /// The shell itself reported a failure where the stages would not (`pipefail`): who asked for that is not
    /// overruled, and a failure never becomes a success.
    ShellStatus,
}

/// What the stages come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Effective {
    /// The status the pipeline is judged by.
    pub status: u8,
    /// The part of the rule that decided.
    pub rule: Rule,
    /// The stage that decided, from 0; absent where none did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stage: Option<usize>,
    /// Stages that failed and were left out, from 0.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<usize>,
}

/// Judges a pipeline by its stages: the last stage if it failed; else the last earlier stage that failed, leaving
/// out one that died of SIGPIPE (a later one had finished) and a status 1 of a program that means "no" by it. The
/// last stage is never left out, and a shell's own failure is never turned into a success. `None` for no stages.
#[must_use]
pub fn effective(shell_status: u8, stages: &[Stage]) -> Option<Effective> {
    let (last, earlier) = stages.split_last()?;
    if last.status != 0 {
        let stage = Some(earlier.len());
        return Some(Effective { status: last.status, rule: Rule::LastStage, stage, left_out: Vec::new() });
    }
    let failed = earlier.iter().enumerate().filter(|(_, stage)| stage.status != 0);
    let (left_out, counted): (Vec<_>, Vec<_>) = failed.partition(|(_, stage)| is_left_out(stage));
    let left_out: Vec<usize> = left_out.into_iter().map(|(index, _)| index).collect();
    Some(match counted.last() {
        Some((index, stage)) => {
            Effective { status: stage.status, rule: Rule::EarlierStage, stage: Some(*index), left_out }
        }
        None if shell_status != 0 => {
            Effective { status: shell_status, rule: Rule::ShellStatus, stage: None, left_out }
        }
        None => {
            let rule = if left_out.is_empty() { Rule::AllSucceeded } else { Rule::LeftOut };
            Effective { status: 0, rule, stage: None, left_out }
        }
    })
}

fn is_left_out(stage: &Stage) -> bool {
    let means_no = || stage.program.as_deref().is_some_and(|program| SAY_NO_BY_ONE.contains(&program));
    stage.status == SIGPIPE_STATUS || (stage.status == 1 && means_no())
}

/// What is known of the stages of the last pipeline a script executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

    fn stages(text: &str) -> Vec<Stage> {
        let stage = |part: &str| {
            let (program, status) = part.split_once('=').unwrap();
            Stage { program: (program != "?").then(|| program.to_owned()), status: status.parse().unwrap() }
        };
        text.split_whitespace().map(stage).collect()
    }

    #[test]
    fn the_rule_case_by_case() {
        use Rule::{AllSucceeded, EarlierStage, LastStage, LeftOut, ShellStatus};
        let rows = [
            ("cargo test | tail -n 20", 0, "cargo=101 tail=0", 101, EarlierStage),
            ("yes | head -1", 0, "yes=141 head=0", 0, LeftOut),
            ("grep zzz f | wc -l", 0, "grep=1 wc=0", 0, LeftOut),
            ("cargo test | grep FAILED, no hit", 1, "cargo=0 grep=1", 1, LastStage),
            ("failing tests | grep, no hit: the last stage wins", 1, "cargo=101 grep=1", 1, LastStage),
            ("false | true", 0, "false=1 true=0", 1, EarlierStage),
            ("all well", 0, "a=0 b=0 c=0", 0, AllSucceeded),
            ("grep on a missing file is an error, not a no", 0, "grep=2 wc=0", 2, EarlierStage),
            ("diff that differs", 0, "diff=1 head=0", 0, LeftOut),
            ("diff in trouble", 0, "diff=2 head=0", 2, EarlierStage),
            ("cmp, rg, pgrep, test and [", 0, "cmp=1 rg=1 pgrep=1 test=1 [=1 cat=0", 0, LeftOut),
            ("zgrep and its family", 0, "zgrep=1 egrep=1 fgrep=1 cat=0", 0, LeftOut),
            ("git grep is git", 0, "git=1 wc=0", 1, EarlierStage),
            ("an unknown program's 1 counts", 0, "?=1 cat=0", 1, EarlierStage),
            ("the last earlier one, not the first", 0, "a=2 b=3 c=0", 3, EarlierStage),
            ("one left out does not hide another", 0, "make=2 grep=1 tail=0", 2, EarlierStage),
            ("SIGPIPE after a failure", 0, "make=2 yes=141 head=0", 2, EarlierStage),
            ("SIGPIPE of the last stage counts", 141, "a=0 b=141", 141, LastStage),
            ("killed, not by SIGPIPE", 0, "a=137 b=0", 137, EarlierStage),
            ("out of memory in the middle", 0, "a=0 b=137 c=0", 137, EarlierStage),
            ("pipefail: the shell said 1 and is not overruled", 1, "grep=1 wc=0", 1, ShellStatus),
            ("pipefail: the shell said 141", 141, "yes=141 head=0", 141, ShellStatus),
            ("pipefail and a real failure", 101, "cargo=101 tail=0", 101, EarlierStage),
            ("command not found", 0, "nosuch=127 cat=0", 127, EarlierStage),
            ("one stage is its own last", 3, "a=3", 3, LastStage),
            ("grep alone is never left out", 1, "grep=1", 1, LastStage),
        ];
        for (why, shell, text, status, rule) in rows {
            let got = effective(shell, &stages(text)).unwrap();
            assert_eq!((got.status, got.rule), (status, rule), "{why}: {text}");
        }
    }

    #[test]
    fn the_stage_and_what_was_left_out_are_named() {
        let got = effective(0, &stages("grep=1 make=2 yes=141 head=0")).unwrap();
        assert_eq!((got.stage, got.left_out), (Some(1), vec![0, 2]));
    }

    #[test]
    fn no_stages_say_nothing() {
        assert_eq!(effective(0, &[]), None);
    }
}
