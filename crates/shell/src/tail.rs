//! Which pipeline decides the script's status. The table is at [`LastPipeline`].

use crate::programs::{self, Arg};
use crate::report::{LastPipeline, Stage, WhyNot};
use crate::syntax::{Command, Kind, List, Part, Pipeline, Script, Span, Target, Word};

/// The deciding pipeline with the places an instrument needs.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) stages: Vec<StageSpan>,
    pub(crate) pipefail: Option<bool>,
    /// The script itself sets or unsets the option somewhere.
    pub(crate) sets_pipefail: bool,
}

#[derive(Debug)]
pub(crate) struct StageSpan {
    pub(crate) program: Option<String>,
    pub(crate) span: Span,
}

pub(crate) fn public(tail: Result<Tail, WhyNot>) -> LastPipeline {
    match tail {
        Err(why) => LastPipeline::No { why },
        Ok(tail) => {
            let stage = |stage: StageSpan| Stage {
                program: stage.program,
                start: stage.span.start,
                end: stage.span.end,
            };
            LastPipeline::Decides {
                stages: tail.stages.into_iter().map(stage).collect(),
                pipefail: tail.pipefail,
            }
        }
    }
}

pub(crate) fn find(script: &Script) -> Result<Tail, WhyNot> {
    let pipeline = deciding(&script.list)?;
    let length = pipeline.stages.len();
    let mut survey = Survey { length, ..Survey::default() };
    survey.list(&script.list, false);
    if survey.alike > 1 && survey.ends_early {
        return Err(WhyNot::Ambiguous);
    }
    let stages = pipeline
        .stages
        .iter()
        .map(|stage| StageSpan { program: program_of(stage), span: stage.span })
        .collect();
    Ok(Tail {
        stages,
        pipefail: pipefail(&script.list, survey.pipefail_sets),
        sets_pipefail: survey.pipefail_sets > 0,
    })
}

pub(crate) fn deciding(list: &List) -> Result<&Pipeline, WhyNot> {
    let item = list.items.last().ok_or(WhyNot::Empty)?;
    if item.background.is_some() {
        return Err(WhyNot::Background);
    }
    let pipelines: Vec<&Pipeline> = item.and_or.pipelines().collect();
    let (last, before) = pipelines.split_last().ok_or(WhyNot::Empty)?;
    if before.iter().any(|pipeline| pipeline.stages.len() > 1) {
        return Err(WhyNot::Condition);
    }
    if last.negated {
        return Err(WhyNot::Negated);
    }
    if last.stages.len() > 1 {
        return Ok(last);
    }
    match last.stages.first().map(|command| &command.kind) {
        Some(Kind::Brace(list)) => match deciding(list) {
            // `c && { x; }`: the group is skipped or its own last command decides.
            Err(WhyNot::NotAPipeline) => Err(WhyNot::NotAPipeline),
            other => other,
        },
        Some(Kind::Simple { .. } | Kind::Function { .. } | Kind::Coprocess { .. }) => {
            Err(WhyNot::NotAPipeline)
        }
        Some(Kind::Arithmetic(_) | Kind::Test(_)) | None => Err(WhyNot::NotAPipeline),
        Some(_) => Err(WhyNot::Nested),
    }
}

fn args_of(words: &[Word]) -> Vec<Arg> {
    words.iter().map(Arg::of_word).collect()
}

fn program_of(command: &Command) -> Option<String> {
    match &command.kind {
        Kind::Simple { words, .. } => programs::deciding_program(&args_of(words)),
        _ => None,
    }
}

/// Whether `pipefail` is on at the end: by a plain `set` at the top of the script, else not known if any
/// other `set` touches it.
fn pipefail(list: &List, sets: usize) -> Option<bool> {
    let mut sure = false;
    for item in &list.items {
        if let [Command { kind: Kind::Simple { words, .. }, .. }] = &item.and_or.first.stages[..]
            && item.background.is_none()
            && let Some(on) = sets_pipefail(words)
        {
            sure = on;
        }
    }
    let top = list.items.iter().filter(|item| match &item.and_or.first.stages[..] {
        [Command { kind: Kind::Simple { words, .. }, .. }] => sets_pipefail(words).is_some(),
        _ => false,
    });
    if sets > top.count() { None } else { Some(sure) }
}

fn sets_pipefail(words: &[Word]) -> Option<bool> {
    let literals: Vec<Vec<u8>> =
        words.iter().map(|word| word.literal().map_or(Vec::new(), |t| t.bytes)).collect();
    let (first, rest) = literals.split_first()?;
    if first != b"set" {
        return None;
    }
    let at = rest.iter().position(|word| word == b"pipefail")?;
    let flag = rest.get(at.checked_sub(1)?)?;
    let takes_name = flag.last() == Some(&b'o');
    match flag.first()? {
        b'-' if takes_name => Some(true),
        b'+' if takes_name => Some(false),
        _ => None,
    }
}

/// What in the script could make another pipeline the last one.
#[derive(Debug, Default)]
struct Survey {
    length: usize,
    /// Pipelines of that many stages in this shell.
    alike: usize,
    /// The script may end before its last command.
    ends_early: bool,
    pipefail_sets: usize,
}

impl Survey {
    fn list(&mut self, list: &List, in_child: bool) {
        for item in &list.items {
            let in_child = in_child || item.background.is_some();
            for pipeline in item.and_or.pipelines() {
                if !in_child && pipeline.stages.len() == self.length {
                    self.alike += 1;
                }
                let in_child = in_child || pipeline.stages.len() > 1;
                for stage in &pipeline.stages {
                    self.command(stage, in_child);
                }
            }
        }
    }

    fn command(&mut self, command: &Command, in_child: bool) {
        for redirect in &command.redirects {
            if let Target::Word(word) | Target::HereString(word) = &redirect.target {
                self.parts(&word.parts, in_child);
            }
        }
        match &command.kind {
            Kind::Simple { assignments, words } => {
                for word in assignments.iter().chain(words) {
                    self.parts(&word.parts, in_child);
                }
                if sets_pipefail(words).is_some() && !in_child {
                    self.pipefail_sets += 1;
                }
                let name = programs::deciding_program(&args_of(words));
                // An unknown program may be any builtin.
                let ends = match name.as_deref() {
                    None => !words.is_empty(),
                    Some(name) => matches!(
                        name,
                        "exit" | "exec" | "return" | "eval" | "." | "source" | "set" | "trap" | "kill"
                    ),
                };
                self.ends_early |= ends && !in_child;
            }
            Kind::Brace(list) => self.list(list, in_child),
            Kind::Subshell(list) => self.list(list, true),
            Kind::If { arms, otherwise } => {
                for (condition, body) in arms {
                    self.list(condition, in_child);
                    self.list(body, in_child);
                }
                if let Some(body) = otherwise {
                    self.list(body, in_child);
                }
            }
            Kind::Loop { condition, body } => {
                self.list(condition, in_child);
                self.list(body, in_child);
            }
            Kind::For { words, body, .. } => {
                for word in words {
                    self.parts(&word.parts, in_child);
                }
                self.list(body, in_child);
            }
            Kind::ArithmeticFor { parts, body } => {
                self.parts(parts, in_child);
                self.list(body, in_child);
            }
            Kind::Case { subject, arms } => {
                self.parts(&subject.parts, in_child);
                for arm in arms {
                    self.list(&arm.body, in_child);
                }
            }
            Kind::Function { body, .. } => self.command(body, in_child),
            Kind::Coprocess { .. } => {}
            Kind::Arithmetic(parts) => self.parts(parts, in_child),
            Kind::Test(words) => words.iter().for_each(|word| self.parts(&word.parts, in_child)),
        }
    }

    /// `${x:?}` and, under `set -u`, any unset name end the shell; the latter needs a `set`, which counts.
    fn parts(&mut self, parts: &[Part], in_child: bool) {
        for part in parts {
            if let Part::Parameter { name, raw, inner } = part {
                let after = raw.bytes.iter().skip(2 + name.len()).find(|byte| **byte != b':');
                self.ends_early |= raw.bytes.starts_with(b"${") && after == Some(&b'?') && !in_child;
                self.parts(inner, in_child);
            }
        }
    }
}
