//! What a command's text says before it runs: whether it would leave its job, and whose status it will report.

use crate::failure::{self, Failure};
use crate::masks::hide_tokens_in;
use outlast_core::bytes::Bytes;
use outlast_core::spec::{Capture, Command, Warning};
use outlast_shell::{
    Analysis, CapturePlan, Dialect, Finding, LastPipeline, ScriptCall, WhyNot, analyze_argv, analyze_script,
    bash_env_text, plan_capture, plan_capture_argv,
};
use serde_json::json;

/// What is known of a command by its text.
#[derive(Debug)]
pub(crate) struct Reading {
    /// How the stages of its last pipeline are learnt.
    pub(crate) capture: Capture,
    /// What the caller should know.
    pub(crate) warnings: Vec<Warning>,
}

/// Reads a command. `bash_env` is the start file that the command's environment names already.
///
/// What would leave the job is refused, unless the caller allows it: containment still ends it. What only waits is a
/// warning, because the caller of a command line is a person by its face.
pub(crate) fn read(
    command: &Command,
    bash_env: Option<&[u8]>,
    allow_detach: bool,
) -> Result<Reading, Failure> {
    let (mut analysis, capture) = match command {
        Command::Argv(words) => of_argv(words, bash_env),
        Command::Script { shell, text } => of_script(shell, &text.0, bash_env),
    };
    for finding in analysis.findings.iter_mut().chain(&mut analysis.busy_waits) {
        // What is quoted of a script is seen by others than who wrote it.
        finding.excerpt = hide_tokens_in(std::mem::take(&mut finding.excerpt));
    }
    if !allow_detach && !analysis.findings.is_empty() {
        return Err(refusal(&analysis.findings));
    }
    let mut warnings = Vec::new();
    warnings.extend(analysis.findings.first().map(|_| warning("DETACH_ALLOWED", &analysis.findings)));
    warnings.extend(analysis.busy_waits.first().map(|_| warning("BUSY_WAIT", &analysis.busy_waits)));
    Ok(Reading { capture, warnings })
}

/// The grammar a shell reads, by its name; `None` for one whose grammar is another.
fn dialect(shell: &str) -> Option<Dialect> {
    match shell.rsplit('/').next().unwrap_or(shell) {
        "bash" => Some(Dialect::Bash),
        "sh" => Some(Dialect::Sh),
        "dash" | "ash" => Some(Dialect::Dash),
        _ => None,
    }
}

fn of_script(shell: &str, text: &[u8], bash_env: Option<&[u8]>) -> (Analysis, Capture) {
    let known = dialect(shell);
    let analysis = analyze_script(text, known.unwrap_or(Dialect::Sh));
    let capture = match known {
        Some(dialect) => planned(&analysis, plan_capture(ScriptCall { text, dialect }), &[], bash_env),
        None => Capture::NotCaptured { why: format!("{shell} is a shell whose stages cannot be captured") },
    };
    (analysis, capture)
}

fn of_argv(words: &[Bytes], bash_env: Option<&[u8]>) -> (Analysis, Capture) {
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.0.clone()).collect();
    let analysis = analyze_argv(&words);
    let capture = match &analysis.last_pipeline {
        LastPipeline::Decides { .. } => planned(&analysis, plan_capture_argv(&words), &words, bash_env),
        LastPipeline::No { why } => not_captured(*why),
    };
    (analysis, capture)
}

fn planned(analysis: &Analysis, plan: CapturePlan, words: &[Vec<u8>], bash_env: Option<&[u8]>) -> Capture {
    let stages = match &analysis.last_pipeline {
        LastPipeline::Decides { stages, .. } => stages,
        LastPipeline::No { why } => return not_captured(*why),
    };
    let programs = || stages.iter().map(|stage| stage.program.clone()).collect();
    match plan {
        CapturePlan::BashEnv => match bash_env_text(bash_env) {
            Some(text) => Capture::BashEnv { programs: programs(), text: Bytes(text) },
            None => Capture::NotCaptured {
                why: "BASH_ENV names a file that cannot be kept in use beside ours".to_owned(),
            },
        },
        CapturePlan::Rewrite(text) => {
            Capture::Rewritten { programs: programs(), text: Bytes(text), argument: None }
        }
        CapturePlan::RewriteArgv(new) => match changed_word(words, &new) {
            Some(at) => {
                Capture::Rewritten { programs: programs(), text: Bytes(new[at].clone()), argument: Some(at) }
            }
            None => Capture::NotCaptured {
                why: "the instrumented command line differs in more than one word".to_owned(),
            },
        },
        CapturePlan::NotCaptured { why } => Capture::NotCaptured { why: why.to_string() },
    }
}

/// The one word in which two command lines differ.
fn changed_word(old: &[Vec<u8>], new: &[Vec<u8>]) -> Option<usize> {
    if old.len() != new.len() {
        return None;
    }
    let mut changed = (0..old.len()).filter(|at| old[*at] != new[*at]);
    let first = changed.next()?;
    changed.next().is_none().then_some(first)
}

fn not_captured(why: WhyNot) -> Capture {
    let why = match why {
        WhyNot::Empty | WhyNot::NotAPipeline => return Capture::NotAPipeline,
        WhyNot::Unparsed => "the script could not be read",
        WhyNot::Background => "the last pipeline runs in the background",
        WhyNot::Negated => "the last pipeline is negated, so its status is an answer",
        WhyNot::Condition => "the last pipeline is a condition",
        WhyNot::Nested => "the last pipeline is inside a construct that may run it never or many times",
        WhyNot::Ambiguous => "more than one pipeline could be the last",
        _ => "no pipeline decides the status",
    };
    Capture::NotCaptured { why: why.to_owned() }
}

fn refusal(findings: &[Finding]) -> Failure {
    let first = &findings[0];
    let more = match findings.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    Failure::new(
        failure::DETACH_REFUSED,
        format!("{}:{}: `{}`: {}{more}", first.line, first.column, first.excerpt, first.message),
    )
    .suggest(format!("{}; --allow-detach runs it anyway, contained", first.instead.trim_end_matches('.')))
    .context(of_script_text(findings))
}

fn warning(code: &str, findings: &[Finding]) -> Warning {
    let first = &findings[0];
    Warning {
        code: code.to_owned(),
        message: format!(
            "{}:{}: `{}`: {}; {}",
            first.line,
            first.column,
            first.excerpt,
            first.message.trim_end_matches('.'),
            first.instead
        ),
        context: Some(of_script_text(findings)),
    }
}

/// Findings quote the script, which comes from outside.
fn of_script_text(findings: &[Finding]) -> serde_json::Value {
    json!({ "_source": "external", "_trusted": false, "findings": findings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_by_their_names() {
        assert_eq!(dialect("bash"), Some(Dialect::Bash));
        assert_eq!(dialect("/usr/bin/dash"), Some(Dialect::Dash));
        assert_eq!(dialect("/bin/sh"), Some(Dialect::Sh));
        assert_eq!(dialect("fish"), None);
    }

    #[test]
    fn the_word_that_changed() {
        let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(changed_word(&words("sh -c a"), &words("sh -c b")), Some(2));
        assert_eq!(changed_word(&words("sh -c a"), &words("sh -c a")), None);
        assert_eq!(changed_word(&words("sh -c a"), &words("sh -x b")), None);
        assert_eq!(changed_word(&words("sh -c a"), &words("sh a")), None);
    }

    fn refused(script: &str) -> Option<Failure> {
        let command = Command::Script { shell: "bash".into(), text: script.into() };
        read(&command, None, false).err()
    }

    #[test]
    fn what_would_leave_is_refused_with_its_place() {
        for script in ["sleep 300 & echo started", "echo a\nnohup make", "setsid make", "make & disown"] {
            let failure = refused(script).unwrap_or_else(|| panic!("{script} was not refused"));
            assert_eq!((failure.code.as_ref(), failure.exit_code), ("DETACH_REFUSED", 2), "{script}");
            assert!(failure.suggestion.is_some(), "{script}");
        }
        assert!(refused("echo a\nnohup make").unwrap().message.starts_with("2:1: "));
        for script in ["grep nohup f", "a && b", "a 2>&1", "a & b & wait", "echo 'a & b'", "a | b"] {
            assert!(refused(script).is_none(), "{script}");
        }
    }

    #[test]
    fn allowed_it_is_a_warning() {
        let command = Command::Script { shell: "bash".into(), text: "sleep 300 & echo".into() };
        let reading = read(&command, None, true).unwrap();
        assert_eq!(reading.warnings[0].code, "DETACH_ALLOWED");
    }

    #[test]
    fn waiting_is_a_warning_to_a_person() {
        let command =
            Command::Script { shell: "bash".into(), text: "while pgrep make; do sleep 5; done".into() };
        assert_eq!(read(&command, None, false).unwrap().warnings[0].code, "BUSY_WAIT");
    }
}
