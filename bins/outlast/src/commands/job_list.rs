//! `outlast job list`.

use crate::args::job::ListArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::Answer;
use crate::failure::{self, Failure};
use crate::masks;
use crate::result::{Look, took};
use crate::rfc3339;
use outlast_core::exit::Exit;
use outlast_core::id::JobId;
use outlast_core::spec::JobKind;
use outlast_core::status::{State, known_exit};
use outlast_core::verdict::judge;
use serde::Serialize;

/// Characters of a command that a list shows.
const PREVIEW: usize = 60;

#[derive(Debug, Serialize)]
struct Row {
    job_id: JobId,
    state: State,
    kind: JobKind,
    exit: Option<Exit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    admitted_at: String,
    duration_ms: u64,
    handed_over: bool,
    command: String,
    #[serde(skip)]
    outcome: String,
    /// A person gave their word for its end, so nobody has to do with it any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    attested: bool,
}

/// Lists the jobs of this scope, newest first.
pub(crate) fn run(context: &Context, args: &ListArgs) -> Result<Done, Failure> {
    let mut rows = Vec::new();
    let mut unreadable = Vec::new();
    if let Some(home) = context.existing_home()? {
        for id in home.jobs().map_err(|error| failure::of_system("listing the jobs", &error))? {
            match context.job_in_scope(&home, id).and_then(|job| job.map(|job| row(&job)).transpose()) {
                Ok(found) => rows.extend(found.filter(|row| args.all || row.1.is_open())),
                Err(failure) => unreadable.push(format!("{id}: {}", failure.line())),
            }
        }
    }
    rows.sort_by_key(|(admitted, _)| std::cmp::Reverse(*admitted));
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    let mut answer = Answer::of(serde_json::json!({ "jobs": rows, "count": rows.len() }));
    answer.text = if rows.is_empty() { String::new() } else { table(&rows) }.into_bytes();
    if rows.is_empty() && !context.json() {
        let all = if args.all { "" } else { " that is open; --all shows every job that is kept" };
        answer.note = Some(format!("no job{all}"));
    }
    answer.warnings.extend(unreadable.into_iter().map(|message| outlast_core::spec::Warning {
        code: "JOB_UNREADABLE".to_owned(),
        message,
        context: None,
    }));
    Ok(answer.into())
}

fn row(job: &outlast_hand::job::Job) -> Result<(u64, Row), Failure> {
    let look = Look::at(job)?;
    let facts = &look.facts;
    let verdict = facts.receipt.as_ref().map(judge);
    let attested = facts.receipt.is_none() && facts.attestation.is_some();
    let outcome = match (&verdict, look.state()) {
        (None, _) if attested => "unknown (attested)".to_owned(),
        (_, state @ (State::Paused | State::Unknown)) => state.name().to_owned(),
        (Some(verdict), _) => match verdict.code {
            None => "ok".to_owned(),
            Some("COMMAND_FAILED") => format!("failed {}", verdict.exit_code),
            Some(code) => code.to_lowercase().replace('_', " "),
        },
        (None, state) => state.name().to_owned(),
    };
    let row = Row {
        job_id: job.id(),
        state: look.state(),
        kind: facts.spec.work.kind,
        exit: known_exit(facts).cloned(),
        exit_code: verdict.map(|verdict| verdict.exit_code),
        admitted_at: rfc3339::format(facts.spec.admitted_at),
        duration_ms: look.work_duration().0,
        handed_over: job.is_handed_over(),
        command: masks::hide_tokens_in(facts.spec.work.command.preview(PREVIEW)),
        outcome,
        attested,
    };
    Ok((facts.spec.admitted_at.0, row))
}

impl Row {
    /// Whether somebody still has to do with it.
    fn is_open(&self) -> bool {
        match self.state {
            State::Settled => !self.handed_over && self.outcome != "cancelled",
            _ => !self.attested,
        }
    }
}

/// The rows for people.
fn table(rows: &[Row]) -> String {
    let heading = ["JOB", "STATE", "TOOK", "BEGAN", "COMMAND"].map(str::to_owned);
    let cells: Vec<[String; 5]> = std::iter::once(heading)
        .chain(rows.iter().map(|row| {
            let began = row.admitted_at.get(..19).unwrap_or(&row.admitted_at).replace('T', " ");
            let took = took(outlast_core::time::Millis(row.duration_ms));
            [row.job_id.to_string(), row.outcome.clone(), took, began, row.command.clone()]
        }))
        .collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for row in &cells {
        for (cell, width) in row.iter().zip(widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(&row[4]);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: State, outcome: &str, handed_over: bool) -> Row {
        Row {
            job_id: "0000000000000000.1.1".parse().unwrap(),
            state,
            kind: JobKind::Command,
            exit: None,
            exit_code: None,
            admitted_at: "2026-11-29T15:04:05.123Z".into(),
            duration_ms: 1500,
            handed_over,
            command: "make".into(),
            attested: outcome.contains("attested"),
            outcome: outcome.into(),
        }
    }

    #[test]
    fn a_table_for_people() {
        assert_eq!(
            table(&[row(State::Settled, "failed 101", false), row(State::Running, "running", false)]),
            "JOB                   STATE       TOOK   BEGAN                COMMAND\n\
             0000000000000000.1.1  failed 101  1.5 s  2026-11-29 15:04:05  make\n\
             0000000000000000.1.1  running     1.5 s  2026-11-29 15:04:05  make\n"
        );
    }

    #[test]
    fn what_is_open() {
        assert!(row(State::Running, "running", false).is_open());
        assert!(row(State::Unknown, "unknown", true).is_open());
        assert!(!row(State::Unknown, "unknown (attested)", false).is_open());
        assert!(row(State::Settled, "ok", false).is_open());
        assert!(!row(State::Settled, "ok", true).is_open());
        assert!(!row(State::Settled, "cancelled", false).is_open());
    }
}
