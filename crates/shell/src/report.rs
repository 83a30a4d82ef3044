//! The facts an analysis hands back.

use serde::{Deserialize, Serialize};

use crate::parse::{self, Stop};
use crate::walk::{Found, Gap, Raw};

/// The grammar a script is read with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// GNU bash under its own name.
    Bash,
    /// `/bin/sh`, which may be dash or bash. Both readings are made and what either finds counts: to dash
    /// `make &>log` starts `make` in the background, and `$'…'` ends elsewhere.
    Sh,
    /// dash, or another shell that knows nothing but POSIX.
    Dash,
}

/// What was found. The set may grow; treat an unknown kind as a reason to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// `&` with no `wait` in the same shell that surely joins it.
    UnjoinedBackground,
    /// `coproc` with no `wait` in the same shell that surely joins it.
    UnjoinedCoprocess,
    /// `nohup`: made to survive the end of the call.
    Nohup,
    /// `disown`: taken out of the shell's care.
    Disown,
    /// `setsid`: moved into a session of its own.
    Setsid,
    /// A program or flag that puts its command into the background by itself.
    Daemonizer,
    /// Work handed to another daemon (`systemd-run`, `at`, `crontab`, `tmux`, `docker run -d`, …).
    OtherDaemon,
    /// The script does nothing but sleep, or sleeps last.
    BareSleep,
    /// A loop that asks after a process (`ps`, `pgrep`, `kill -0`) or follows a file by `tail`, or that sleeps and does no
    /// work: it only looks, or does nothing else. A loop over words, lines or a count that says something in each round is
    /// none.
    PollLoop,
}

/// One thing found, with its place in the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// First byte of the place, counted from the start of the text.
    pub start: usize,
    /// The byte after its last one.
    pub end: usize,
    /// Line of `start`, from 1.
    pub line: usize,
    /// Column of `start`, in characters from 1 (an invalid byte counts as one).
    pub column: usize,
    /// The text at that place, shortened at a character boundary, control characters replaced.
    pub excerpt: String,
    /// What would happen, in one sentence.
    pub message: String,
    /// What to write instead.
    pub instead: String,
}

/// Why a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnparsedReason {
    /// Larger than the limit.
    #[error("the script is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// Nested deeper than the limit.
    #[error("the script nests deeper than {limit} levels")]
    TooDeep {
        /// The limit, in levels.
        limit: usize,
    },
    /// Reading it would take more steps than its size allows.
    #[error("the script takes too many steps to read")]
    TooCostly,
    /// It holds a NUL byte, which shells drop or cut at, each in its own way.
    #[error("the script holds a NUL byte")]
    Nul,
    /// Not in the grammar we read.
    #[error("not understood at line {line}, column {column}: {what}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What was expected or found.
        what: String,
    },
    /// The reader itself failed. Never expected.
    #[error("the script reader failed")]
    Internal,
}

/// Whether the text was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parsed {
    /// The whole text was read.
    Parsed,
    /// It was not, or a script inside it was not. The findings hold what was seen nevertheless; their
    /// absence says nothing. Run it contained, and say so.
    Unparsed {
        /// Why.
        reason: UnparsedReason,
    },
}

/// One stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stage {
    /// The program's base name where the text fixes it (`None` for `$tool x`, a loop, a group).
    pub program: Option<String>,
    /// First byte of the stage.
    pub start: usize,
    /// The byte after its last one.
    pub end: usize,
}

/// Why no pipeline decides the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhyNot {
    /// The text was not read.
    Unparsed,
    /// No command at all.
    Empty,
    /// The last command is not a pipeline, so the shell's status is already the command's.
    NotAPipeline,
    /// The last pipeline runs in the background.
    Background,
    /// It is negated, so its status is an answer and not a failure.
    Negated,
    /// It is a condition, or something may run after it.
    Condition,
    /// It is inside a construct that may run it never or many times (`if`, a loop, `case`, a subshell).
    Nested,
    /// Another pipeline of as many stages could be the last one when the script ends early.
    Ambiguous,
}

/// The pipeline that decides the script's status.
///
/// | the script ends in | decided |
/// |---|---|
/// | `a \| b` | yes |
/// | `x; a \| b`, `x && a \| b`, `x \|\| a \| b` | yes; the record shows whether it ran |
/// | `{ a \| b; }`, `time a \| b` (bash) | yes |
/// | `a \| b && c`, `a \| b \|\| c` | no: a condition |
/// | `a \| b && c \| d` | no: which one ran last cannot be told |
/// | `! a \| b` | no: negated |
/// | `a \| b &` | no: in the background |
/// | `(a \| b)`, `if`, `for`, `while`, `case` around it | no: nested |
/// | `a \| b; c` | no: the last command is `c` |
/// | another pipeline as long, with `exit`, `set -e`, `eval`, … | no: either could be the last |
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastPipeline {
    /// This one, if the record says that it ran.
    Decides {
        /// Its stages, two or more, left to right.
        stages: Vec<Stage>,
        /// Whether `pipefail` is on: `None` where it depends on what runs.
        pipefail: Option<bool>,
    },
    /// None.
    No {
        /// Why.
        why: WhyNot,
    },
}

/// Everything read from one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Analysis {
    /// What must be refused, in the order of the text.
    pub findings: Vec<Finding>,
    /// What only waits or polls: refused to a model, a warning to a person. The caller decides.
    pub busy_waits: Vec<Finding>,
    /// Whether the text was read.
    pub parsed: Parsed,
    /// The pipeline that decides the status.
    pub last_pipeline: LastPipeline,
}

impl Analysis {
    /// An analysis that saw nothing and says why.
    pub(crate) fn unparsed(reason: UnparsedReason) -> Self {
        Self {
            findings: Vec::new(),
            busy_waits: Vec::new(),
            parsed: Parsed::Unparsed { reason },
            last_pipeline: LastPipeline::No { why: WhyNot::Unparsed },
        }
    }

    /// Whether the text was read as a whole.
    pub fn is_parsed(&self) -> bool {
        matches!(self.parsed, Parsed::Parsed)
    }
}

/// Reads `text` with `read` on a stack of its own, and puts what was found into words.
pub(crate) fn analyze(
    text: &[u8],
    read: impl FnOnce(&[u8]) -> Result<(Found, LastPipeline), Stop> + Send,
) -> Analysis {
    match parse::on_big_stack(text.len(), || read(text)) {
        None => Analysis::unparsed(UnparsedReason::Internal),
        Some(Err(stop)) => Analysis::unparsed(reason(text, stop.into())),
        Some(Ok((found, last_pipeline))) => Analysis {
            findings: worded(text, found.findings),
            busy_waits: worded(text, found.busy),
            parsed: match found.gap {
                None => Parsed::Parsed,
                Some(gap) => Parsed::Unparsed { reason: reason(text, gap) },
            },
            last_pipeline,
        },
    }
}

fn reason(text: &[u8], gap: Gap) -> UnparsedReason {
    match gap {
        Gap::Whole(reason) => reason,
        Gap::Syntax { place, what } => {
            let (line, column) = position(text, place);
            UnparsedReason::Syntax { line, column, what: what.to_owned() }
        }
    }
}

/// More findings than anyone reads; a hostile script must not make the refusal larger than itself.
const MAX_FINDINGS: usize = 64;

fn worded(text: &[u8], mut raw: Vec<Raw>) -> Vec<Finding> {
    raw.sort_by_key(|raw| (raw.span.start, raw.kind, raw.span.end));
    raw.truncate(MAX_FINDINGS);
    raw.into_iter()
        .map(|Raw { kind, span, message }| {
            let start = span.start.min(text.len());
            let end = span.end.clamp(start, text.len());
            let (line, column) = position(text, start);
            let excerpt = excerpt(&text[start..end]);
            Finding { kind, start, end, line, column, excerpt, message, instead: instead(kind).to_owned() }
        })
        .collect()
}

fn instead(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::UnjoinedBackground | FindingKind::UnjoinedCoprocess => {
            "add a `wait` in the same shell that is always reached, or start the command by itself with \
             `--background` (or `--service` if it is to run until stopped)"
        }
        FindingKind::Nohup | FindingKind::Setsid | FindingKind::Daemonizer | FindingKind::Disown => {
            "run the command plainly with `--background`, or with `--service` if it is to run until stopped: it \
             outlives the call and its end is still reported"
        }
        FindingKind::OtherDaemon => {
            "run the command itself in the foreground with `--background` or `--service`, so that its end can be \
             proved"
        }
        FindingKind::BareSleep => "wait for the task itself: its end is reported without asking",
        FindingKind::PollLoop => {
            "start what is waited for with `--background` or `--service` and wait for its event, not in a loop"
        }
    }
}

/// Line and column of a place, both from 1, the column in characters.
fn position(text: &[u8], place: usize) -> (usize, usize) {
    let before = &text[..place.min(text.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
    (line, column)
}

/// Longest excerpt, in characters.
const MAX_EXCERPT: usize = 80;

fn excerpt(bytes: &[u8]) -> String {
    // Four bytes are the longest character, so this is enough whatever the text.
    let head = &bytes[..bytes.len().min(MAX_EXCERPT * 4)];
    let text = String::from_utf8_lossy(head);
    let mut shown: String =
        text.chars().take(MAX_EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if bytes.len() > head.len() || text.chars().count() > MAX_EXCERPT {
        shown.push('…');
    }
    shown
}
