//! What a command's text and surroundings say before it runs: whether it would leave its job, whose status it will
//! report, which shell reads it, and which file its program is.
//!
//! Every face of a hand asks here, so that the command line and the runner refuse and admit the same.

use crate::masks::hide_tokens_in;
use outlast_core::bytes::Bytes;
use outlast_core::spec::{Capture, Command, Warning};
use outlast_shell::{
    Analysis, CapturePlan, Dialect, Finding, LastPipeline, ScriptCall, WhyNot, analyze_argv, analyze_script,
    bash_env_text, plan_capture, plan_capture_argv,
};
use serde_json::json;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is known of a command by its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// How the stages of its last pipeline are learnt.
    pub capture: Capture,
    /// What the caller should know.
    pub warnings: Vec<Warning>,
}

/// Who wrote the command, by the face it came through, never by whether there is a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A person, or a program of theirs: what only waits is a warning.
    Person,
    /// A model: what only waits is refused, for it has better means to wait.
    Model,
}

/// A command that is not run as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// `DETACH_REFUSED` or `BUSY_WAIT_REFUSED`.
    pub code: &'static str,
    /// One sentence, with the place in the text; well-known tokens in it are masked.
    pub message: String,
    /// What to do instead, without a full stop.
    pub remedy: String,
    /// All findings; marked as coming from outside, because they quote the script.
    pub context: serde_json::Value,
}

/// Reads a command. `bash_env` is the start file that the command's environment names already.
///
/// What would leave the job is refused unless the caller allows it: containment still ends it, and a warning says so.
/// What only waits is refused to a model and a warning to a person; allowing the one does not allow the other.
///
/// # Errors
/// [`Refused`].
pub fn read(
    command: &Command,
    bash_env: Option<&[u8]>,
    caller: Caller,
    allow_detach: bool,
) -> Result<Reading, Refused> {
    let (mut analysis, capture) = match command {
        Command::Argv(words) => of_argv(words, bash_env),
        Command::Script { shell, text } => of_script(shell, &text.0, bash_env),
    };
    for finding in analysis.findings.iter_mut().chain(&mut analysis.busy_waits) {
        // What is quoted of a script is seen by others than who wrote it.
        finding.excerpt = hide_tokens_in(std::mem::take(&mut finding.excerpt));
    }
    if !allow_detach && let Some(first) = analysis.findings.first() {
        return Err(refusal("DETACH_REFUSED", first, &analysis.findings));
    }
    if caller == Caller::Model
        && let Some(first) = analysis.busy_waits.first()
    {
        return Err(refusal("BUSY_WAIT_REFUSED", first, &analysis.busy_waits));
    }
    let of = |code, findings: &[Finding]| findings.first().map(|first| warning(code, first, findings));
    let warnings = of("DETACH_ALLOWED", &analysis.findings).into_iter();
    let warnings = warnings.chain(of("BUSY_WAIT", &analysis.busy_waits)).collect();
    Ok(Reading { capture, warnings })
}

/// The name of the first secret whose value stands in `text`: what is kept and shown in clear must hold none. As for
/// masking, line ends at the end of a value do not belong to it.
#[must_use]
pub fn secret_within<'s>(
    text: &[u8],
    secrets: impl IntoIterator<Item = (&'s str, &'s [u8])>,
) -> Option<&'s str> {
    let mut secrets = secrets.into_iter();
    let stands = |(name, value): (&'s str, &'s [u8])| {
        let ends = value.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let value = &value[..value.len() - ends];
        (!value.is_empty() && text.windows(value.len()).any(|part| part == value)).then_some(name)
    };
    secrets.find_map(stands)
}

/// bash where `path` (a value of `PATH`; the usual folders where it is `None`) has one, else what every system has.
#[must_use]
pub fn default_shell(path: Option<&OsStr>) -> &'static str {
    let executable = |folder: PathBuf| {
        rustix::fs::access(folder.join("bash"), rustix::fs::Access::EXEC_OK).is_ok()
            && folder.join("bash").is_file()
    };
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    if std::env::split_paths(path).any(executable) { "bash" } else { "sh" }
}

/// A folder by its one true name, so that one place is one workspace and one call identity.
///
/// # Errors
/// What the system says; `NotADirectory` for what is no folder.
pub fn folder(path: &Path) -> io::Result<PathBuf> {
    let found = std::fs::canonicalize(path)?;
    if found.is_dir() { Ok(found) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Tells one version of a program from another: its file's path, identity, size and time of change. `name` is looked up
/// below `cwd` where it has a slash, else in `search`, a value of `PATH`. `None` where it is not found, which its start
/// will say.
#[must_use]
pub fn program_file(name: &OsStr, search: &OsStr, cwd: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let places = match name.as_bytes().contains(&b'/') {
        true => vec![cwd.join(name)],
        false => std::env::split_paths(search).map(|folder| folder.join(name)).collect(),
    };
    let (path, found) = places.iter().find_map(|path| Some((path, std::fs::metadata(path).ok()?)))?;
    let (dev, ino, size) = (found.dev(), found.ino(), found.size());
    Some(format!("{} {dev}:{ino} {size} {}.{:09}", path.display(), found.mtime(), found.mtime_nsec()))
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

fn refusal(code: &'static str, first: &Finding, findings: &[Finding]) -> Refused {
    let more = match findings.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    Refused {
        code,
        message: format!("{}:{}: `{}`: {}{more}", first.line, first.column, first.excerpt, first.message),
        remedy: first.instead.trim_end_matches('.').to_owned(),
        context: of_script_text(findings),
    }
}

fn warning(code: &str, first: &Finding, findings: &[Finding]) -> Warning {
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
    fn a_secret_in_clear_is_found() {
        let secrets = [("A", &b"hunter2\n"[..]), ("EMPTY", b"\n"), ("B", b"\xff\x00")];
        for (text, found) in [
            (&b"echo hunter2"[..], Some("A")),
            (b"hunter", None),
            (b"", None),
            (b"\n", None),
            (b"x\xff\x00y", Some("B")),
        ] {
            assert_eq!(secret_within(text, secrets), found, "{text:?}");
        }
    }

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

    fn script(text: &str) -> Command {
        Command::Script { shell: "bash".into(), text: text.into() }
    }

    fn refused(text: &str) -> Option<Refused> {
        read(&script(text), None, Caller::Person, false).err()
    }

    #[test]
    fn what_would_leave_is_refused_with_its_place() {
        for script in ["sleep 300 & echo started", "echo a\nnohup make", "setsid make", "make & disown"] {
            let refused = refused(script).unwrap_or_else(|| panic!("{script} was not refused"));
            assert_eq!(refused.code, "DETACH_REFUSED", "{script}");
            assert!(!refused.remedy.is_empty() && !refused.remedy.ends_with('.'), "{script}");
            assert_eq!(refused.context["_trusted"], false, "{script}");
        }
        assert!(refused("echo a\nnohup make").unwrap().message.starts_with("2:1: "));
        for script in ["grep nohup f", "a && b", "a 2>&1", "a & b & wait", "echo 'a & b'", "a | b"] {
            assert!(refused(script).is_none(), "{script}");
        }
    }

    #[test]
    fn allowed_it_is_a_warning() {
        let reading = read(&script("make & echo"), None, Caller::Model, true).unwrap();
        assert_eq!(reading.warnings[0].code, "DETACH_ALLOWED");
    }

    #[test]
    fn waiting_is_a_warning_to_a_person_and_refused_to_a_model() {
        let waits = script("while pgrep make; do sleep 5; done");
        assert_eq!(read(&waits, None, Caller::Person, false).unwrap().warnings[0].code, "BUSY_WAIT");
        for allow_detach in [false, true] {
            let refused = read(&waits, None, Caller::Model, allow_detach).unwrap_err();
            assert_eq!(refused.code, "BUSY_WAIT_REFUSED");
        }
        assert!(read(&script("make test"), None, Caller::Model, false).unwrap().warnings.is_empty());
    }

    #[test]
    fn what_is_quoted_has_no_tokens() {
        let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
        let refused = refused(&format!("nohup curl -H {token}")).unwrap();
        assert!(!format!("{refused:?}").contains("abcdefghij"), "{refused:?}");
    }

    #[test]
    fn the_default_shell_is_bash_where_there_is_one() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(default_shell(Some(empty.path().as_os_str())), "sh");
        let bash = empty.path().join("bash");
        std::fs::write(&bash, "").unwrap();
        assert_eq!(default_shell(Some(empty.path().as_os_str())), "sh", "it cannot be executed");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&bash, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(default_shell(Some(empty.path().as_os_str())), "bash");
    }

    #[test]
    fn another_file_is_another_version() {
        let there = tempfile::tempdir().unwrap();
        let look = |name: &str| program_file(OsStr::new(name), there.path().as_os_str(), there.path());
        assert_eq!(look("p"), None);
        std::fs::write(there.path().join("p"), "1").unwrap();
        let first = look("p").unwrap();
        assert_eq!(look("p").as_deref(), Some(first.as_str()));
        std::fs::write(there.path().join("p"), "22").unwrap();
        assert_ne!(look("p").unwrap(), first);
        assert!(look("./p").is_some());
        assert_eq!(look("sub/p"), None);
    }
}
