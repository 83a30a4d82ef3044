//! How the status of every stage is learnt at run time without changing what the script means.

use serde::{Deserialize, Serialize};

use crate::parse;
use crate::programs::{self, Arg};
use crate::report::{Analysis, Dialect, LastPipeline, Stage, WhyNot};
use crate::syntax::{Command, Kind, List, Part, Span, Target, Word};
use crate::tail;
use outlast_core::pipeline::Stage as StageStatus;

/// A script about to be run by a shell.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    /// The script's bytes.
    pub text: &'a [u8],
    /// The shell that will read them.
    pub dialect: Dialect,
}

/// Why stages are not captured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotCaptured {
    /// No pipeline decides the status.
    #[error("no pipeline decides the status ({0:?})")]
    NoPipeline(WhyNot),
    /// The command is no shell call whose script we know.
    #[error("the command is not a shell script we can read")]
    NoScript,
    /// The script cannot be instrumented without a risk of changing what it does.
    #[error("instrumenting could change what the script does: {0}")]
    WouldChange(String),
    /// Nothing was recorded: the pipeline did not run, or the shell was replaced, killed or ended early.
    #[error("nothing was recorded")]
    NothingRecorded,
    /// What was recorded does not fit the pipeline or the exit status.
    #[error("the record does not fit: {0}")]
    DoesNotFit(String),
}

/// What the caller has to do so that the stages are recorded.
///
/// In each case but the last, the environment names the record in `OUTLAST_STAGES`: an absolute path that
/// the command's user may append to, empty or absent at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturePlan {
    /// Put [`bash_env_text`] into a file and name it in `BASH_ENV`; run the script unchanged.
    BashEnv,
    /// Run this text in place of the script.
    Rewrite(Vec<u8>),
    /// Run this command line in place of the given one.
    RewriteArgv(Vec<Vec<u8>>),
    /// Run it unchanged and report "not captured".
    NotCaptured {
        /// Why.
        why: NotCaptured,
    },
}

/// What a run left in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedStages {
    /// The shell's status when it ended, where the instrument records it (bash).
    pub shell: Option<i32>,
    /// The stages' statuses, left to right.
    pub statuses: Vec<i32>,
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StagesError {
    /// Nothing in it.
    #[error("the record is empty")]
    Empty,
    /// Larger than any honest record.
    #[error("the record is larger than {0} bytes")]
    TooLarge(usize),
    /// A line that no instrument writes.
    #[error("line {0} of the record is not understood")]
    Garbage(usize),
    /// A stage is missing or recorded twice.
    #[error("stage {0} is missing or recorded twice")]
    Incomplete(usize),
}

/// Whether a record may be believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageEvidence {
    /// Every stage with its status, left to right.
    Captured(Vec<StageStatus>),
    /// Not captured, and why.
    NotCaptured(NotCaptured),
}

/// The environment variable that names the record.
const RECORD: &str = "OUTLAST_STAGES";

/// The text of the file to name in `BASH_ENV`, or `None` where the original one cannot be stood in for.
///
/// Bash reads it before the script. It takes the record's name and itself out of the environment, so that
/// no child inherits either, and sets an EXIT trap. The trap's first command copies `$?` and `PIPESTATUS` at
/// once, before anything can overwrite them; the trap never exits, so the shell's status stays what it was.
/// What it prints or traces goes nowhere but into the record. An original `BASH_ENV` is put back and read
/// afterwards, so that an EXIT trap of its own takes precedence. Bash expands that variable's value; a value
/// with anything to expand is not imitated.
pub fn bash_env_text(original_bash_env: Option<&[u8]>) -> Option<Vec<u8>> {
    let mut text = b"__outlast_stages=$OUTLAST_STAGES; unset OUTLAST_STAGES BASH_ENV\n".to_vec();
    text.extend_from_slice(
        b"trap '{ __outlast_status=(\"$?\" \"${PIPESTATUS[@]}\"); set +x; \
          builtin printf \"shell %s\\nstages\" \"${__outlast_status[0]}\"; \
          builtin printf \" %s\" \"${__outlast_status[@]:1}\"; \
          builtin printf \"\\n\"; } 2>/dev/null >\"${__outlast_stages:-/dev/null}\"' EXIT\n",
    );
    if let Some(original) = original_bash_env.filter(|original| !original.is_empty()) {
        let plain =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@% =".contains(byte) || *byte >= 0x80;
        if !original.iter().all(plain) {
            return None;
        }
        text.extend_from_slice(b"export BASH_ENV='");
        text.extend_from_slice(original);
        text.extend_from_slice(b"'\n[ -r \"$BASH_ENV\" ] && . \"$BASH_ENV\"\n");
        // Where the file is missing the test leaves a status of 1, which the script could see.
        text.extend_from_slice(b":\n");
    }
    Some(text)
}

/// The script with its deciding pipeline instrumented, or `None` when that is not surely safe.
///
/// Each stage `s` becomes `{ trap '…' EXIT; s; }` in its place: a stage is a subshell anyway, the trap runs
/// in it when it ends, whatever ended it short of a signal, and appends the stage's number and status to the
/// record. The stage's own status and `set -e` are untouched; nothing moves to another line. One thing can
/// be told from inside: a stage's parent process is the stage's shell and no longer the script's.
///
/// Left alone are scripts where the addition could show: here-documents in the pipeline, `$?` or `$_` where
/// it could see the addition's own status, tracing, aliases, `trap` or `eval` in a stage, functions named like
/// what is added.
pub fn instrument_dash(text: &[u8], analysis: &Analysis) -> Option<Vec<u8>> {
    let LastPipeline::Decides { stages, .. } = &analysis.last_pipeline else { return None };
    let spans: Vec<Span> = stages.iter().map(|stage| Span::new(stage.start, stage.end)).collect();
    let safe = parse::on_big_stack(text.len(), || {
        // The analysis does not say how the text was read; only a reading that gives the same stages will do.
        [Dialect::Dash, Dialect::Sh].into_iter().any(|dialect| {
            let Ok(script) = parse::parse(text, None, dialect, 0) else { return false };
            let found = tail::deciding(&script.list).is_ok_and(|pipeline| {
                pipeline.stages.iter().map(|stage| stage.span).eq(spans.iter().copied())
                    && pipeline.stages.first().is_some_and(|stage| stage.span.start == pipeline.span.start)
                    && pipeline.stages.iter().all(Survey::stage_is_safe)
            });
            found && Survey::script_is_safe(&script.list)
        })
    })?;
    if !safe {
        return None;
    }
    let mut rewritten = Vec::with_capacity(text.len() + spans.len() * 128);
    let mut copied = 0;
    for (index, span) in spans.iter().enumerate() {
        rewritten.extend_from_slice(text.get(copied..span.start)?);
        let opening = format!(
            "{{ trap 'command printf \"%s %s\\n\" {index} \"$?\" 2>/dev/null \
             >>\"${{{RECORD}:-/dev/null}}\"' EXIT; "
        );
        rewritten.extend_from_slice(opening.as_bytes());
        rewritten.extend_from_slice(text.get(span.start..span.end)?);
        rewritten.extend_from_slice(b"; }");
        copied = span.end;
    }
    rewritten.extend_from_slice(text.get(copied..)?);
    Some(rewritten)
}

/// How to capture the stages of a script.
pub fn plan_capture(call: ScriptCall<'_>) -> CapturePlan {
    let analysis = crate::analyze_script(call.text, call.dialect);
    plan(call, &analysis)
}

/// How to capture the stages of a command line that may be a shell call.
///
/// Followed are bash, sh and dash with `-c`, also behind wrappers that hand on both environment and status
/// (`env`, `timeout`, `nice`, …).
pub fn plan_capture_argv(argv: &[Vec<u8>]) -> CapturePlan {
    let refuse = |why| CapturePlan::NotCaptured { why };
    let args = programs::args_of_argv(argv);
    let Some(call) = programs::shell_call(&args).filter(|call| call.plain) else {
        return refuse(NotCaptured::NoScript);
    };
    let Some(script) = call.script else { return refuse(NotCaptured::NoScript) };
    if call.flags.iter().any(|flag| matches!(flag, b'x' | b'v')) {
        return refuse(NotCaptured::WouldChange("the shell traces what it runs".to_owned()));
    }
    if call.flags.iter().any(|flag| matches!(flag, b'i' | b'n' | b'p' | b'r' | b's')) {
        return refuse(NotCaptured::NoScript);
    }
    match plan_capture(ScriptCall { text: &argv[script], dialect: call.dialect }) {
        CapturePlan::Rewrite(text) => {
            let mut argv = argv.to_vec();
            argv[script] = text;
            CapturePlan::RewriteArgv(argv)
        }
        other => other,
    }
}

fn plan(call: ScriptCall<'_>, analysis: &Analysis) -> CapturePlan {
    if let LastPipeline::No { why } = &analysis.last_pipeline {
        return CapturePlan::NotCaptured { why: NotCaptured::NoPipeline(*why) };
    }
    if call.dialect == Dialect::Bash {
        let safe = parse::on_big_stack(call.text.len(), || {
            parse::parse(call.text, None, call.dialect, 0)
                .is_ok_and(|script| Survey::bash_is_safe(&script.list))
        });
        if safe == Some(true) {
            return CapturePlan::BashEnv;
        }
    } else if let Some(text) = instrument_dash(call.text, analysis) {
        return CapturePlan::Rewrite(text);
    }
    let what = "it uses something that could see the instrument".to_owned();
    CapturePlan::NotCaptured { why: NotCaptured::WouldChange(what) }
}

/// What in a script could see an instrument.
#[derive(Debug, Default)]
struct Survey {
    documents: bool,
    last_status: bool,
    traces: bool,
    aliases: bool,
    /// `trap`, `eval`, `.`: text that runs elsewhere or that replaces our trap.
    indirect: bool,
    /// `trap` that lists traps, or sets one that runs at each command.
    lists_traps: bool,
    shadows: bool,
    last_status_in_function: bool,
    trace_descriptor: bool,
    in_function: bool,
}

impl Survey {
    fn over(list: &List) -> Self {
        let mut survey = Self::default();
        survey.list(list);
        survey
    }

    fn stage_is_safe(stage: &Command) -> bool {
        let runs = match &stage.kind {
            Kind::Simple { words, .. } => !words.is_empty(),
            Kind::Function { .. } | Kind::Coprocess { .. } => false,
            _ => true,
        };
        let mut survey = Self::default();
        survey.command(stage);
        runs && !(survey.documents || survey.last_status || survey.indirect)
    }

    fn script_is_safe(list: &List) -> bool {
        let survey = Self::over(list);
        !(survey.traces || survey.aliases || survey.shadows || survey.last_status_in_function)
    }

    fn bash_is_safe(list: &List) -> bool {
        let survey = Self::over(list);
        !(survey.lists_traps || survey.shadows || survey.trace_descriptor)
    }

    fn list(&mut self, list: &List) {
        for command in list.items.iter().flat_map(|item| item.and_or.pipelines()).flat_map(|p| &p.stages) {
            self.command(command);
        }
    }

    fn command(&mut self, command: &Command) {
        for redirect in &command.redirects {
            match &redirect.target {
                Target::Word(word) | Target::HereString(word) => self.parts(&word.parts),
                Target::HereDocument(_) => self.documents = true,
            }
        }
        match &command.kind {
            Kind::Simple { assignments, words } => self.simple(assignments, words),
            Kind::Brace(list) | Kind::Subshell(list) => self.list(list),
            Kind::If { arms, otherwise } => {
                for (condition, body) in arms {
                    self.list(condition);
                    self.list(body);
                }
                if let Some(body) = otherwise {
                    self.list(body);
                }
            }
            Kind::Loop { condition, body } => {
                self.list(condition);
                self.list(body);
            }
            Kind::For { words, body, .. } => {
                self.words(words);
                self.list(body);
            }
            Kind::ArithmeticFor { parts, body } => {
                self.parts(parts);
                self.list(body);
            }
            Kind::Case { subject, arms } => {
                self.parts(&subject.parts);
                for arm in arms {
                    self.words(&arm.patterns);
                    self.list(&arm.body);
                }
            }
            Kind::Function { name, body } => {
                let added: &[&[u8]] = &[b"trap", b"printf", b"command", b"builtin", b"set", b"unset"];
                self.shadows |= added.contains(&name.as_slice());
                let outer = std::mem::replace(&mut self.in_function, true);
                self.command(body);
                self.in_function = outer;
            }
            Kind::Coprocess { body, .. } => self.command(body),
            Kind::Arithmetic(parts) => self.parts(parts),
            Kind::Test(words) => self.words(words),
        }
    }

    fn simple(&mut self, assignments: &[Word], words: &[Word]) {
        self.words(assignments);
        self.words(words);
        self.trace_descriptor |=
            assignments.iter().any(|word| word.assigned_name() == Some(b"BASH_XTRACEFD"));
        let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
        let literals: Vec<Option<&[u8]>> = args.iter().map(|arg| arg.literal.as_deref()).collect();
        let Some(name) = programs::deciding_program(&args) else { return };
        match name.as_str() {
            "alias" => self.aliases = true,
            "eval" | "." | "source" => self.indirect = true,
            "trap" => {
                self.indirect = true;
                let operands = &literals[1..];
                let lists = operands.len() < 2 || operands.contains(&Some(b"-p"));
                let each = |word: &Option<&[u8]>| match word {
                    None => true,
                    Some(word) => [b"DEBUG".as_slice(), b"ERR", b"RETURN"].contains(word),
                };
                self.lists_traps |= lists || operands.iter().skip(1).any(each);
            }
            "set" => {
                for literal in &literals[1..] {
                    match literal {
                        Some(b"--") => break,
                        Some(b"xtrace" | b"verbose") => self.traces = true,
                        Some([b'-', letters @ ..]) => {
                            self.traces |= letters.iter().any(|l| matches!(l, b'x' | b'v'))
                        }
                        Some(_) => {}
                        None => self.traces = true,
                    }
                }
            }
            _ => {}
        }
    }

    fn words(&mut self, words: &[Word]) {
        for word in words {
            self.parts(&word.parts);
        }
    }

    fn parts(&mut self, parts: &[Part]) {
        for part in parts {
            match part {
                Part::Literal { .. } => {}
                Part::Parameter { name, inner, .. } => {
                    let status = name == b"?" || name == b"_";
                    self.last_status |= status;
                    self.last_status_in_function |= status && self.in_function;
                    self.parts(inner);
                }
                Part::Arithmetic { inner, .. } | Part::Glob { inner, .. } => self.parts(inner),
                Part::Command { list, .. } | Part::Process { list, .. } => self.list(list),
                Part::Array(words) => self.words(words),
            }
        }
    }
}

/// No honest record is larger: a few bytes for each stage of a script that is itself bounded.
const MAX_RECORD_BYTES: usize = 1024 * 1024;

/// Reads a record, refusing what no instrument writes.
///
/// Two forms: `shell n` and `stages a b c` (bash), or one line `stage status` for each stage in any order.
/// A last line without its newline was torn, and a torn number would be a lie.
pub fn parse_stages(record: &[u8]) -> Result<RecordedStages, StagesError> {
    if record.len() > MAX_RECORD_BYTES {
        return Err(StagesError::TooLarge(MAX_RECORD_BYTES));
    }
    if record.is_empty() {
        return Err(StagesError::Empty);
    }
    let mut shell = None;
    let mut whole: Option<Vec<i32>> = None;
    let mut single: Vec<(usize, i32)> = Vec::new();
    let lines: Vec<&[u8]> = record.split(|byte| *byte == b'\n').collect();
    let Some((torn, lines)) = lines.split_last() else { return Err(StagesError::Empty) };
    if !torn.is_empty() {
        return Err(StagesError::Garbage(lines.len() + 1));
    }
    for (index, line) in lines.iter().enumerate() {
        let garbage = StagesError::Garbage(index + 1);
        let text = std::str::from_utf8(line).map_err(|_| garbage.clone())?;
        let mut words = text.split(' ');
        match words.next() {
            Some("shell") if shell.is_none() => {
                shell = Some(words.next().and_then(status).ok_or_else(|| garbage.clone())?);
                if words.next().is_some() {
                    return Err(garbage);
                }
            }
            Some("stages") if whole.is_none() => {
                whole = Some(words.map(status).collect::<Option<Vec<i32>>>().ok_or(garbage)?);
            }
            Some(number) => {
                let stage = number.parse::<u16>().map_err(|_| garbage.clone())?;
                let status = words.next().and_then(status).ok_or_else(|| garbage.clone())?;
                if words.next().is_some() {
                    return Err(garbage);
                }
                single.push((usize::from(stage), status));
            }
            None => return Err(garbage),
        }
    }
    match whole {
        Some(_) if !single.is_empty() => Err(StagesError::Garbage(lines.len())),
        Some(statuses) => Ok(RecordedStages { shell, statuses }),
        None => {
            // Stages end in any order, so they are recorded in any order.
            single.sort_unstable_by_key(|(stage, _)| *stage);
            for (expected, (stage, _)) in single.iter().enumerate() {
                if *stage != expected {
                    return Err(StagesError::Incomplete(expected.min(*stage)));
                }
            }
            Ok(RecordedStages { shell, statuses: single.into_iter().map(|(_, status)| status).collect() })
        }
    }
}

fn status(word: &str) -> Option<i32> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if digits { word.parse::<u8>().ok().map(i32::from) } else { None }
}

/// Decides whether a record belongs to the deciding pipeline and to this exit status.
///
/// The record must hold one status for each stage, and the exit status must be the one these stages give:
/// the last stage's, or under `pipefail` the last non-zero one. Anything else means that another command
/// came last (`cd x || exit 1` before it, a trap after it), and then the stages are not this status's.
pub fn reconcile(
    last: &LastPipeline,
    record: Result<RecordedStages, StagesError>,
    exit_code: i32,
) -> StageEvidence {
    let not = |why| StageEvidence::NotCaptured(why);
    let (stages, pipefail) = match last {
        LastPipeline::No { why } => return not(NotCaptured::NoPipeline(*why)),
        LastPipeline::Decides { stages, pipefail } => (stages, *pipefail),
    };
    let record = match record {
        Ok(record) => record,
        Err(StagesError::Empty) => return not(NotCaptured::NothingRecorded),
        Err(error) => return not(NotCaptured::DoesNotFit(error.to_string())),
    };
    if record.statuses.len() != stages.len() {
        let what = format!("{} statuses for {} stages", record.statuses.len(), stages.len());
        return not(NotCaptured::DoesNotFit(what));
    }
    if let Some(shell) = record.shell.filter(|shell| *shell != exit_code) {
        return not(NotCaptured::DoesNotFit(format!(
            "the shell left with {shell} and the command with {exit_code}"
        )));
    }
    let plain = record.statuses.last().copied();
    let strict = record.statuses.iter().rev().copied().find(|status| *status != 0).or(Some(0));
    let fits = (pipefail != Some(true) && plain == Some(exit_code))
        || (pipefail != Some(false) && strict == Some(exit_code));
    if !fits {
        return not(NotCaptured::DoesNotFit(format!("the stages do not give the exit status {exit_code}")));
    }
    let with_name = |(stage, status): (&Stage, i32)| {
        Some(StageStatus { program: stage.program.clone(), status: u8::try_from(status).ok()? })
    };
    match stages.iter().zip(record.statuses).map(with_name).collect() {
        Some(stages) => StageEvidence::Captured(stages),
        None => not(NotCaptured::DoesNotFit("a status is none of 0 to 255".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let ok = |shell, statuses: &[i32]| Ok(RecordedStages { shell, statuses: statuses.to_vec() });
        let rows: &[(&[u8], Result<RecordedStages, StagesError>)] = &[
            (b"shell 0\nstages 101 0\n", ok(Some(0), &[101, 0])),
            (b"0 101\n1 0\n", ok(None, &[101, 0])),
            (b"1 0\n0 101\n", ok(None, &[101, 0])),
            (b"", Err(StagesError::Empty)),
            (b"shell 0\nstages 101 0", Err(StagesError::Garbage(2))),
            (b"0 10", Err(StagesError::Garbage(1))),
            (b"0 0\n0 1\n", Err(StagesError::Incomplete(0))),
            (b"1 0\n", Err(StagesError::Incomplete(0))),
            (b"0 0\n2 0\n", Err(StagesError::Incomplete(1))),
            (b"0 256\n", Err(StagesError::Garbage(1))),
            (b"0 -1\n", Err(StagesError::Garbage(1))),
            (b"0 +1\n", Err(StagesError::Garbage(1))),
            (b"0 1 2\n", Err(StagesError::Garbage(1))),
            (b"\n", Err(StagesError::Garbage(1))),
            (b"\xff\n", Err(StagesError::Garbage(1))),
            (b"shell 0\nshell 0\n", Err(StagesError::Garbage(2))),
            (b"shell 0\nstages\n", ok(Some(0), &[])),
        ];
        for (record, expected) in rows {
            assert_eq!(&parse_stages(record), expected, "{:?}", String::from_utf8_lossy(record));
        }
        assert!(parse_stages(&vec![b'0'; MAX_RECORD_BYTES + 1]).is_err());
    }

    #[test]
    fn a_record_must_fit() {
        let last = |pipefail| crate::report::LastPipeline::Decides {
            stages: vec![
                Stage { program: Some("make".to_owned()), start: 0, end: 4 },
                Stage { program: None, start: 7, end: 9 },
            ],
            pipefail,
        };
        let record = |shell, statuses: &[i32]| Ok(RecordedStages { shell, statuses: statuses.to_vec() });
        let captured = |evidence| matches!(evidence, StageEvidence::Captured(_));
        assert!(captured(reconcile(&last(Some(false)), record(Some(0), &[2, 0]), 0)));
        assert!(captured(reconcile(&last(None), record(None, &[2, 0]), 0)));
        assert!(captured(reconcile(&last(Some(true)), record(Some(2), &[2, 0]), 2)));
        assert!(captured(reconcile(&last(None), record(Some(2), &[2, 0]), 2)));
        assert!(!captured(reconcile(&last(Some(false)), record(Some(2), &[2, 0]), 2)));
        assert!(!captured(reconcile(&last(Some(true)), record(Some(0), &[2, 0]), 0)));
        assert!(!captured(reconcile(&last(Some(false)), record(Some(0), &[0, 0]), 143)));
        assert!(!captured(reconcile(&last(Some(false)), record(Some(1), &[1]), 1)));
        assert!(!captured(reconcile(&last(Some(false)), Err(StagesError::Empty), 0)));
    }

    #[test]
    fn an_original_bash_env_is_kept_or_refused() {
        let text = String::from_utf8(bash_env_text(Some(b"/home/x/.env")).unwrap()).unwrap();
        assert!(text.contains("export BASH_ENV='/home/x/.env'"));
        assert_eq!(bash_env_text(Some(b"$HOME/.env")), None);
        assert_eq!(bash_env_text(Some(b"a'b")), None);
        assert_eq!(bash_env_text(Some(b"~/.env")), None);
        assert_eq!(bash_env_text(Some(b"")), bash_env_text(None));
    }
}
