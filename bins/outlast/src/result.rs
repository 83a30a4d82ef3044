//! The answer about one job: its facts for programs, and what the call exits with.

use crate::context::Context;
use crate::failure::{self, Failure};
use crate::masks;
use crate::output::{self, OutputData, StreamData};
use crate::rfc3339;
use outlast_core::exit::{Cause, Exit};
use outlast_core::id::{Attempt, Cursor, JobId, Key};
use outlast_core::ledger::Straggler;
use outlast_core::pipeline::Stages;
use outlast_core::progress::Progress;
use outlast_core::receipt::{Drain, OutputHash, Receipt, Resources};
use outlast_core::spec::JobKind;
use outlast_core::status::{JobFacts, Projection, State, is_paused, known_exit, project};
use outlast_core::time::{Millis, UnixMicros};
use outlast_core::verdict::judge;
use outlast_core::{duration, evidence};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::{clock, control};
use serde::Serialize;
use std::num::NonZeroU32;
use std::time::Duration;

/// Characters of a command that answers show.
const PREVIEW: usize = 200;

/// Bytes of output that `error.detail` of a lost job shows.
const LOST_TAIL: usize = 2048;

/// A job as an answer shows it.
#[derive(Debug, Serialize)]
pub(crate) struct JobData {
    pub(crate) job_id: JobId,
    pub(crate) state: State,
    pub(crate) because: String,
    pub(crate) attempt: u32,
    pub(crate) kind: JobKind,
    pub(crate) command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<String>,
    pub(crate) duration_ms: u64,
    pub(crate) progress: Progress,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) activity: Option<ActivityData>,
    pub(crate) exit: Option<Exit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shell_status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effective_status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stages: Option<Stages>,
    pub(crate) cause: Option<Cause>,
    pub(crate) output: Option<OutputData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_unavailable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<ReceiptData>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stragglers: Vec<Straggler>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attested: Option<AttestedData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attached: Option<AttachedData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) continue_command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancel_command: Option<String>,
}

/// What a running job uses, so that a silent one does not look hung.
#[derive(Debug, Serialize)]
pub(crate) struct ActivityData {
    pub(crate) cpu_ms: u64,
    pub(crate) processes: u64,
}

/// The evidence in short; `outlast job explain` and the receipt itself have the rest.
#[derive(Debug, Serialize)]
pub(crate) struct ReceiptData {
    /// The name of the death evidence.
    pub(crate) death: &'static str,
    pub(crate) boundary: Option<outlast_core::spec::Boundary>,
    pub(crate) isolation: Option<evidence::Isolation>,
    pub(crate) blake3: Option<String>,
    pub(crate) drain: Drain,
    pub(crate) terminal_mutation: outlast_core::receipt::TerminalMutation,
    pub(crate) authority: outlast_core::receipt::Authority,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resources: Option<Resources>,
}

/// A person's word.
#[derive(Debug, Serialize)]
pub(crate) struct AttestedData {
    pub(crate) name: String,
    pub(crate) at: String,
}

/// That the call was not the first of its kind.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AttachedData {
    pub(crate) started_at: Option<String>,
    pub(crate) ended_at: Option<String>,
}

/// What of the output an answer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Its beginning and end, within so many bytes.
    Text(usize),
    /// Only how much there is.
    Counts,
}

/// One look at a job, and what it comes to.
#[derive(Debug)]
pub(crate) struct Look {
    /// What was found.
    pub(crate) facts: JobFacts,
    /// What it comes to.
    pub(crate) projection: Projection,
}

impl Look {
    /// Looks at a job.
    pub(crate) fn at(job: &Job) -> Result<Look, Failure> {
        let facts =
            job.look().map_err(|error| failure::of_system(&format!("reading job {}", job.id()), &error))?;
        let projection = project(&facts);
        Ok(Look { facts, projection })
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        self.projection.state
    }

    /// Whether nothing more will come of it by itself.
    pub(crate) fn is_final(&self) -> bool {
        self.facts.receipt.is_some() || self.facts.attestation.is_some() || self.state() == State::Unknown
    }

    /// When its command started and ended.
    pub(crate) fn attached(&self) -> AttachedData {
        let (started, ended) = times(&self.facts);
        AttachedData { started_at: started.map(rfc3339::format), ended_at: ended.map(rfc3339::format) }
    }

    /// Where the next write to its standard input begins. The keeper knows; the ledger is written a moment later.
    pub(crate) fn stdin_taken(&self, job: &Job, timeout: Duration) -> Cursor {
        match control::write_stdin(job, Cursor(0), &[], false, timeout) {
            Ok(answer) => answer.taken,
            Err(_) => self.facts.ledger.stdin.map_or(Cursor(0), |(offset, _)| offset),
        }
    }

    /// The deadline of the whole work; 0 for none.
    pub(crate) fn timeout_ms(&self) -> u64 {
        self.facts.spec.work.limits.deadline.map_or(0, |deadline| deadline.0)
    }

    /// How long the work took, or has taken so far.
    pub(crate) fn work_duration(&self) -> Millis {
        let facts = &self.facts;
        let begin = facts.spec.admitted_at;
        match &facts.receipt {
            Some(receipt) => receipt.times.settled.since(begin),
            None => clock::unix_now().since(begin),
        }
    }
}

fn times(facts: &JobFacts) -> (Option<UnixMicros>, Option<UnixMicros>) {
    match &facts.receipt {
        Some(receipt) => (receipt.times.started, receipt.times.exited.or(Some(receipt.times.settled))),
        None => (facts.ledger.started.map(|(at, ..)| at), facts.ledger.exited.as_ref().map(|(at, _)| *at)),
    }
}

/// The facts of a job for an answer.
pub(crate) fn job_data(context: &Context, home: &Home, job: &Job, look: &Look, show: Show) -> JobData {
    let facts = &look.facts;
    let receipt = facts.receipt.as_ref();
    let state = look.state();
    let live = !look.is_final();
    let (output, output_unavailable) = match output_data(job, facts, show) {
        Ok(mut output) => {
            output.read_more_command = output
                .read_more_at
                .map(|at| context.follow_up.job("logs", job.id(), &["--cursor", &at.to_string()]));
            (Some(output), None)
        }
        Err(why) => (None, Some(why)),
    };
    let activity = if live { job.activity() } else { None };
    let (started, ended) = times(facts);
    let captured = receipt.map(|receipt| &receipt.stages).filter(|stages| **stages != Stages::NotAPipeline);
    JobData {
        job_id: job.id(),
        state,
        because: look.projection.because.clone(),
        attempt: job.id().attempt.0.get(),
        kind: facts.spec.work.kind,
        command: masks::hide_tokens_in(facts.spec.work.command.preview(PREVIEW)),
        idempotency_key: facts.spec.key.clone(),
        started_at: started.map(rfc3339::format),
        ended_at: ended.map(rfc3339::format),
        duration_ms: look.work_duration().0,
        progress: progress_of(home, job, output.as_ref(), receipt),
        activity: activity.map(|used| ActivityData { cpu_ms: used.cpu_ms, processes: used.processes }),
        exit: known_exit(facts).cloned(),
        shell_status: captured.and_then(|_| receipt.and_then(|receipt| receipt.exit.shell_status())),
        effective_status: receipt.and_then(Receipt::effective_status),
        stages: captured.cloned(),
        cause: receipt.map(|receipt| receipt.cause.clone()).or_else(|| facts.ledger.ending.clone()),
        output,
        output_unavailable,
        receipt: receipt.map(receipt_data),
        stragglers: receipt
            .map_or_else(|| facts.ledger.stragglers.clone(), |receipt| receipt.stragglers.clone()),
        attested: facts
            .attestation
            .as_ref()
            .map(|word| AttestedData { name: word.name.clone(), at: rfc3339::format(word.at) }),
        attached: None,
        effect: None,
        continue_command: match state {
            State::Paused => Some(continue_paused(context, job)),
            _ => live.then(|| context.follow_up.job("wait", job.id(), &[])),
        },
        cancel_command: (live || state == State::Paused)
            .then(|| context.follow_up.job("cancel", job.id(), &[])),
    }
}

fn receipt_data(receipt: &Receipt) -> ReceiptData {
    ReceiptData {
        death: receipt.death.name(),
        boundary: receipt.boundary,
        isolation: receipt.isolation,
        blake3: match &receipt.output.hash {
            OutputHash::Blake3 { value } => Some(value.clone()),
            OutputHash::Unknown { .. } => None,
        },
        drain: receipt.output.drain.clone(),
        terminal_mutation: receipt.terminal_mutation.clone(),
        authority: receipt.authority.clone(),
        resources: receipt.resources.clone(),
    }
}

fn output_data(job: &Job, facts: &JobFacts, show: Show) -> Result<OutputData, String> {
    let receipt = facts.receipt.as_ref();
    match show {
        Show::Text(limit) => {
            // A job that wrote nothing has no log to open.
            if receipt.is_some_and(|receipt| {
                receipt.output.final_cursor == Cursor(0) && receipt.output.gaps.is_empty()
            }) {
                return Ok(counts(receipt, Cursor(0), Some(String::new())));
            }
            output::of_job(job, receipt, limit)
        }
        Show::Counts => {
            let end = match receipt {
                Some(receipt) => receipt.output.final_cursor,
                None => output::end_of(job)?,
            };
            Ok(counts(receipt, end, None))
        }
    }
}

fn counts(receipt: Option<&Receipt>, end: Cursor, text: Option<String>) -> OutputData {
    let output = receipt.map(|receipt| &receipt.output);
    let stream = |bytes| StreamData { text: text.clone(), bytes, truncated: false, lossy: false };
    OutputData {
        stdout: stream(output.and_then(|output| output.stdout_bytes)),
        stderr: stream(output.and_then(|output| output.stderr_bytes)),
        final_cursor: output.map(|output| output.final_cursor),
        cursor: output.is_none().then_some(end),
        gaps: Vec::new(),
        read_more_command: None,
        read_more_at: (text.is_none() && output.is_none_or(|output| output.final_cursor > Cursor(0)))
            .then_some(0),
        missing: None,
    }
}

/// What the command reports of itself, else the bytes of its output. It never falls: a later attempt of a resumable
/// command has at least what the attempt before had saved and reported, also before it says so itself.
fn progress_of(home: &Home, job: &Job, output: Option<&OutputData>, receipt: Option<&Receipt>) -> Progress {
    let own = job.progress();
    let earlier = if job.spec().work.resume { earlier_progress(home, job.id()) } else { None };
    match (own, earlier) {
        (Some(own), Some(earlier)) if own.unit == earlier.unit => {
            Progress { done: own.done.max(earlier.done), ..own }
        }
        (Some(progress), _) | (None, Some(progress)) => progress,
        (None, None) => {
            let end = receipt.map(|receipt| receipt.output.final_cursor).or_else(|| output?.cursor);
            Progress { done: end.map_or(0, |cursor| cursor.0), total: None, unit: Some("bytes".to_owned()) }
        }
    }
}

/// The last progress that an attempt before this one reported.
fn earlier_progress(home: &Home, job_id: JobId) -> Option<Progress> {
    (1..job_id.attempt.0.get()).rev().filter_map(NonZeroU32::new).find_map(|attempt| {
        let earlier = JobId { attempt: Attempt(attempt), ..job_id };
        home.job(earlier).ok().flatten()?.progress()
    })
}

/// What a call that asked about this job answers with: nothing for a success.
pub(crate) fn failure_of(
    context: &Context,
    job: &Job,
    look: &Look,
    output: Option<&OutputData>,
) -> Option<Failure> {
    let facts = &look.facts;
    let Some(receipt) = &facts.receipt else {
        return Some(if look.is_final() {
            lost(context, job, look, output)
        } else {
            incomplete(context, job, look)
        });
    };
    if is_paused(facts) {
        return Some(
            Failure::new(failure::INCOMPLETE, "paused; the same call continues from what it saved last")
                .fix("continue with", continue_paused(context, job)),
        );
    }
    let verdict = judge(receipt);
    let code = verdict.code?;
    let failure = Failure::with(code, verdict.exit_code, verdict.message);
    Some(match code {
        "JOB_LOST" | "NOT_STARTED" => with_tail(failure, output).fix(
            "nothing is retried by itself; a later attempt is started by",
            context.follow_up.job("retry", job.id(), &[]),
        ),
        "EXEC_FAILED" => failure.suggest("check the program's name, its PATH and whether it may be executed"),
        "TIMEOUT" if matches!(receipt.cause, Cause::CallBudget { .. }) => failure.suggest(
            "a longer --budget allows more, and without --on-limit stop it would go on in the background",
        ),
        "TIMEOUT" => failure.suggest("a longer --timeout allows more; the identical call starts anew"),
        "STALLED" => failure.suggest("a longer --idle-timeout allows more silence"),
        "OUT_OF_MEMORY" => failure.suggest("a larger --memory-limit allows more"),
        _ => failure,
    })
}

/// How a paused job is continued: by the call that started it, made again, or by its next attempt where another asks.
fn continue_paused(context: &Context, job: &Job) -> String {
    if context.starts_work {
        context.follow_up.same_call()
    } else {
        context.follow_up.job("retry", job.id(), &[])
    }
}

fn lost(context: &Context, job: &Job, look: &Look, output: Option<&OutputData>) -> Failure {
    let id = job.id();
    let retry = context.follow_up.job("retry", id, &[]);
    let failure = Failure::new(
        failure::JOB_LOST,
        format!("how job {id} ended is not known: {}", look.projection.because),
    );
    let failure = if look.facts.attestation.is_some() {
        failure.fix("a later attempt is started by", retry)
    } else {
        failure.fix(
            format!("settle it first, after that `{retry}` starts a later attempt; it is settled by"),
            context.follow_up.job("settle", id, &[]),
        )
    };
    with_tail(failure, output)
}

fn with_tail(failure: Failure, output: Option<&OutputData>) -> Failure {
    match output.and_then(|output| output::tail_of(output, LOST_TAIL)) {
        Some(tail) => failure.detail(tail).context(
            serde_json::json!({ "_source": "external", "_trusted": false, "quotes": "error.detail" }),
        ),
        None => failure,
    }
}

fn incomplete(context: &Context, job: &Job, look: &Look) -> Failure {
    let message = match (look.state(), known_exit(&look.facts)) {
        (State::Stopping, _) => "it is being stopped; its end is not proved yet".to_owned(),
        (_, Some(exit)) => format!("the command ended ({exit}); what it left behind is waited for"),
        (State::Starting, None) => "it is being started".to_owned(),
        (_, None) => "it runs".to_owned(),
    };
    Failure::new(failure::INCOMPLETE, message)
        .fix("wait for it with", context.follow_up.job("wait", job.id(), &[]))
}

/// How far a job has come, for people: `12 %`, `3 of 9 files`, `4.2 MiB of output`.
pub(crate) fn progress_in_words(progress: &Progress) -> String {
    let unit = progress.unit.as_deref().unwrap_or("units");
    match (progress.total, unit) {
        (Some(total), "bytes") if total > 0 => {
            format!("{} of {}", crate::size::humane(progress.done), crate::size::humane(total))
        }
        (Some(total), unit) => format!("{} of {total} {unit}", progress.done),
        (None, "bytes") => format!("{} of output", crate::size::humane(progress.done)),
        (None, unit) => format!("{} {unit}", progress.done),
    }
}

/// A length of time for people.
pub(crate) fn took(length: Millis) -> String {
    duration::humane(length)
}
