//! The rule of CONTRACT §3.7: which status a pipeline is reported with.

use serde::{Deserialize, Serialize};

/// How a shell reports a stage that died of SIGPIPE: 128 + 13.
const SIGPIPE_STATUS: i32 = 141;

/// Programs whose status 1 is the answer "no" (nothing found, they differ) and no failure.
const NO_PROGRAMS: &[&str] =
    &["grep", "egrep", "fgrep", "zgrep", "rg", "diff", "cmp", "test", "[", "pgrep"];

/// What one stage of a pipeline returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StageStatus {
    /// The program's base name, where it is known.
    pub program: Option<String>,
    /// Its status as the shell gives it: 128 + n for a signal.
    pub status: i32,
}

/// Which part of the rule chose the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// No stages were captured: the shell's own status stands.
    NotCaptured,
    /// Every stage returned 0.
    AllZero,
    /// The last stage returned non-zero, and it is never left out.
    LastStage,
    /// The last stage returned 0 and an earlier one did not: the last such one.
    EarlierStage,
    /// Earlier stages returned non-zero, but each only for a SIGPIPE or an answer "no".
    LeftOut,
    /// The shell itself reported non-zero where the stages would not (`pipefail`): who asked for that is
    /// not overruled, and a non-zero status never becomes a success.
    ShellStatus,
}

/// The status to report and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Effective {
    /// The status to report.
    pub status: i32,
    /// The part of the rule that chose it.
    pub rule: Rule,
    /// The stage it is the status of, counted from 0.
    pub stage: Option<usize>,
    /// Non-zero stages that were left out, counted from 0.
    pub left_out: Vec<usize>,
}

/// Applies the rule: the last stage if non-zero, else the last earlier non-zero stage that counts.
///
/// A stage before the last does not count if it died of SIGPIPE (a later one had finished, as in
/// `yes | head -1`), or if it is a program that means "no" by 1 (`grep zzz f | wc -l` is a success). With
/// no stages the shell's status stands; and a shell status that is non-zero is never turned into 0.
pub fn effective_status(shell_status: i32, stages: &[StageStatus]) -> Effective {
    let Some((last, earlier)) = stages.split_last() else {
        return Effective { status: shell_status, rule: Rule::NotCaptured, stage: None, left_out: Vec::new() };
    };
    if last.status != 0 {
        return Effective {
            status: last.status,
            rule: Rule::LastStage,
            stage: Some(earlier.len()),
            left_out: Vec::new(),
        };
    }
    let mut left_out = Vec::new();
    let mut chosen = None;
    for (index, stage) in earlier.iter().enumerate() {
        if stage.status == 0 {
            continue;
        }
        if stage.status == SIGPIPE_STATUS || (stage.status == 1 && means_no(stage)) {
            left_out.push(index);
        } else {
            chosen = Some((index, stage.status));
        }
    }
    match chosen {
        Some((index, status)) => Effective { status, rule: Rule::EarlierStage, stage: Some(index), left_out },
        None if shell_status != 0 => {
            Effective { status: shell_status, rule: Rule::ShellStatus, stage: None, left_out }
        }
        None => {
            let rule = if left_out.is_empty() { Rule::AllZero } else { Rule::LeftOut };
            Effective { status: 0, rule, stage: None, left_out }
        }
    }
}

fn means_no(stage: &StageStatus) -> bool {
    stage.program.as_deref().is_some_and(|name| NO_PROGRAMS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(text: &str) -> Vec<StageStatus> {
        text.split_whitespace()
            .map(|part| {
                let (program, status) = part.split_once('=').unwrap();
                let program = (program != "?").then(|| program.to_owned());
                StageStatus { program, status: status.parse().unwrap() }
            })
            .collect()
    }

    #[test]
    fn table() {
        use Rule::*;
        let rows: &[(&str, i32, &str, i32, Rule)] = &[
            ("cargo test | tail -n 20", 0, "cargo=101 tail=0", 101, EarlierStage),
            ("yes | head -1", 0, "yes=141 head=0", 0, LeftOut),
            ("grep zzz f | wc -l", 0, "grep=1 wc=0", 0, LeftOut),
            ("cargo test | grep FAILED, no hit", 1, "cargo=0 grep=1", 1, LastStage),
            ("failing tests | grep, no hit: the last stage wins", 1, "cargo=101 grep=1", 1, LastStage),
            ("false | true", 0, "false=1 true=0", 1, EarlierStage),
            ("all well", 0, "a=0 b=0 c=0", 0, AllZero),
            ("nothing captured, failing", 7, "", 7, NotCaptured),
            ("nothing captured, well", 0, "", 0, NotCaptured),
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
            let got = effective_status(*shell, &stages(text));
            assert_eq!((got.status, got.rule), (*status, *rule), "{why}: {text}");
        }
    }

    #[test]
    fn names_the_stage_and_what_was_left_out() {
        let got = effective_status(0, &stages("grep=1 make=2 yes=141 head=0"));
        assert_eq!(got.stage, Some(1));
        assert_eq!(got.left_out, vec![0, 2]);
    }
}
