//! What calls about jobs do: look, list, stop, settle, give input.

use crate::answer;
use crate::hub::{Hub, Seen};
use http::StatusCode;
use outlast_core::exit::Exit;
use outlast_core::fence::StopRequest;
use outlast_core::id::{Cursor, Generation, JobId, Scope};
use outlast_core::ledger::StartMark;
use outlast_core::receipt::Receipt;
use outlast_core::spec::Stdin;
use outlast_core::status::{JobFacts, Liveness, State, known_exit, project};
use outlast_core::verdict::judge;
use outlast_hand::control::{self, StopAnswer};
use outlast_hand::gc::Tombstone;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::settle::{self, Outcome};
use outlast_wire::client::Until;
use outlast_wire::limits;
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{Settle, Settled, StdinTaken, Stop, Stopped};
use outlast_wire::view::{Arrival, JobList, JobSummary, JobView, VerdictView};
use std::io;
use std::time::Duration;

/// How long a keeper has to answer a stop: it may be busy ending a thousand processes.
const KEEPER_ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The longest preview of a command in a listing, in characters.
const PREVIEW: usize = 200;

/// The job of that id in this scope. Others' jobs are not found, as if they did not exist.
pub(crate) fn find(home: &Home, scope: &Scope, id: JobId) -> Result<Job, Problem> {
    let job = home.job(id).map_err(|error| answer::storage("opening the job", &error))?;
    job.filter(|job| job.spec().scope == *scope).ok_or_else(|| no_such_job(id))
}

pub(crate) fn no_such_job(id: JobId) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_JOB", format!("there is no job {id} here"))
        .remedy("a job is found in its own scope only, and for 24 h after its end")
}

/// All there is to say about a job now.
pub(crate) fn view(hub: &Hub, job: &Job, arrival: Option<Arrival>) -> Result<JobView, Problem> {
    let facts = job.look().map_err(|error| answer::storage("looking at the job", &error).about(job.id()))?;
    let projection = project(&facts);
    let spec = &facts.spec;
    let keeper_pid = match &facts.start {
        Some(StartMark::Keeper(mark)) if facts.receipt.is_none() => Some(mark.warden_pid),
        _ => None,
    };
    let committed = match &facts.receipt {
        Some(receipt) => receipt.output.final_cursor,
        None => job.committed().map_err(|error| answer::storage("reading its cursor", &error))?,
    };
    Ok(JobView {
        job_id: spec.job_id,
        key: spec.key.clone(),
        attempt: spec.job_id.attempt,
        generation: spec.generation,
        run: spec.run.clone(),
        kind: spec.work.kind,
        admitted_at: spec.admitted_at,
        arrival,
        state: projection.state,
        because: projection.because,
        obligations: projection.obligations,
        exit: known_exit(&facts).cloned(),
        ending: facts.receipt.is_none().then(|| facts.ledger.ending.clone()).flatten(),
        committed,
        progress: if facts.receipt.is_none() { job.progress() } else { None },
        set_up_failed: hub.set_up_failed(spec.job_id),
        warnings: spec.manner.warnings.clone(),
        keeper_pid,
        verdict: facts.receipt.as_ref().map(verdict),
        removed: false,
        attestation: facts.attestation,
        receipt: facts.receipt.map(Box::new),
    })
}

fn verdict(receipt: &Receipt) -> VerdictView {
    let verdict = judge(receipt);
    VerdictView {
        exit_code: verdict.exit_code,
        code: verdict.code.map(str::to_owned),
        message: verdict.message,
    }
}

/// What a tombstone says of its job.
pub(crate) fn removed(tombstone: Tombstone) -> JobView {
    let receipt = tombstone.receipt;
    JobView {
        job_id: receipt.job_id,
        key: receipt.key.clone(),
        attempt: receipt.attempt,
        generation: receipt.generation,
        run: None,
        kind: tombstone.work.kind,
        admitted_at: receipt.times.admitted,
        arrival: Some(Arrival::Removed),
        state: State::Settled,
        because: "it ended, and was removed since; its output is gone".to_owned(),
        obligations: Vec::new(),
        exit: Some(receipt.exit.clone()),
        ending: None,
        committed: receipt.output.final_cursor,
        progress: None,
        set_up_failed: None,
        warnings: Vec::new(),
        keeper_pid: None,
        verdict: Some(verdict(&receipt)),
        removed: true,
        attestation: None,
        receipt: Some(Box::new(receipt)),
    }
}

/// Whether what was seen makes another look worth it.
pub(crate) fn is_word(until: Until, before: Seen, now: Seen) -> bool {
    let over = now.settled || now.unknown || now.connected != before.connected;
    match until {
        Until::Now => true,
        Until::Started => over || now.started,
        Until::Exited => over || now.exited,
        Until::Settled => over,
    }
}

/// Whether a look found what was waited for, or that it will not come.
pub(crate) fn is_reached(until: Until, view: &JobView) -> bool {
    let over = matches!(view.state, State::Settled | State::Paused | State::Unknown);
    match until {
        Until::Now => true,
        Until::Started => over || matches!(view.state, State::Running | State::Stopping),
        Until::Exited => over || view.exit.is_some(),
        Until::Settled => over,
    }
}

/// Adds what a keeper has said and not yet written down: whoever was woken by its word must not be told the state before.
pub(crate) fn hasten(view: &mut JobView, seen: Seen, exit: Option<Exit>) {
    if view.receipt.is_none() && view.exit.is_none() {
        view.exit = exit;
    }
    if view.state == State::Starting && (seen.started || seen.exited) {
        view.state = State::Running;
        view.because = "its keeper says that it has started".to_owned();
    }
}

/// A page of the scope's jobs.
pub(crate) fn list(home: &Home, scope: &Scope, after: Option<JobId>, limit: u32) -> Result<JobList, Problem> {
    let failed = |error: io::Error| answer::storage("listing jobs", &error);
    let mut ids = home.jobs().map_err(failed)?;
    ids.retain(|id| after.is_none_or(|after| *id > after));
    ids.sort_unstable();
    let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
    for id in ids {
        // One that is damaged keeps no other from being listed. One without a readable spec is nobody's to be shown.
        let Ok(Some(job)) = home.job(id) else { continue };
        if job.spec().scope != *scope {
            continue;
        }
        if jobs.len() + unreadable.len() >= limit as usize {
            let last = jobs.last().map(|job: &JobSummary| job.job_id).max(unreadable.last().copied());
            return Ok(JobList { jobs, unreadable, next_after: last });
        }
        let Ok(facts) = job.look() else {
            unreadable.push(id);
            continue;
        };
        let spec = &facts.spec;
        jobs.push(JobSummary {
            job_id: id,
            key: spec.key.clone(),
            generation: spec.generation,
            run: spec.run.clone(),
            kind: spec.work.kind,
            admitted_at: spec.admitted_at,
            state: project(&facts).state,
            exit: known_exit(&facts).cloned(),
            command: spec.work.command.preview(PREVIEW),
        });
    }
    Ok(JobList { jobs, unreadable, next_after: None })
}

/// Asks for a job's end: looks first, asks its keeper, and looks again where none answers.
pub(crate) fn stop(home: &Home, job: &Job, stop: Stop, generation: Generation) -> Result<Stopped, Problem> {
    if stop.id.is_empty() || stop.id.len() > limits::STOP_ID || stop.id.chars().any(char::is_control) {
        let detail = format!("a stop's id has 1 to {} bytes without control characters", limits::STOP_ID);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_STOP", detail));
    }
    let request = StopRequest {
        id: stop.id,
        job_id: job.id(),
        generation,
        force: stop.force,
        grace: stop.grace,
        reason: stop.reason,
    };
    // The keeper checks again at the last moment; one that has ended is asked no more.
    if let Err(stale) = outlast_core::fence::check_stop(&request, job.id(), job.spec().generation) {
        return Ok(Stopped::Stale { stale });
    }
    let failed = |error: io::Error| answer::storage("asking the keeper", &error).about(job.id());
    let receipt = || job.receipt().map_err(failed);
    if receipt()?.is_some() {
        return Ok(Stopped::AlreadySettled);
    }
    match control::stop(job, &request, KEEPER_ANSWERS_WITHIN).map_err(failed)? {
        StopAnswer::Accepted => return Ok(Stopped::Accepted),
        StopAnswer::Stale(stale) => return Ok(Stopped::Stale { stale }),
        StopAnswer::NoKeeper => {}
    }
    if receipt()?.is_some() {
        return Ok(Stopped::AlreadySettled);
    }
    if settle::cancel_unstarted(home, job).map_err(failed)? {
        return Ok(Stopped::NeverStarted);
    }
    // A keeper has the start mark. It may listen by now, or have finished meanwhile.
    match control::stop(job, &request, KEEPER_ANSWERS_WITHIN).map_err(failed)? {
        StopAnswer::Accepted => Ok(Stopped::Accepted),
        StopAnswer::Stale(stale) => Ok(Stopped::Stale { stale }),
        StopAnswer::NoKeeper if receipt()?.is_some() => Ok(Stopped::AlreadySettled),
        StopAnswer::NoKeeper if keeper_lives(&job.look().map_err(failed)?) => {
            let detail = format!("the keeper of job {} lives and does not answer", job.id());
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "KEEPER_SILENT", detail)
                .remedy(
                    "the same call again, with the same stop, may reach it; it was perhaps stopped itself",
                )
                .about(job.id()))
        }
        StopAnswer::NoKeeper => Ok(Stopped::KeeperLost),
    }
}

fn keeper_lives(facts: &JobFacts) -> bool {
    facts.warden == Liveness::Alive
}

/// Settles what has lost its keeper.
pub(crate) fn settle_lost(home: &Home, job: &Job, how: Settle) -> Result<Settled, Problem> {
    let how = match how {
        Settle::Prove => settle::Settle::Prove,
        Settle::IfDue => settle::Settle::IfDue,
        Settle::Asked => settle::Settle::Asked,
        Settle::Attest { name } if name.trim().is_empty() || name.len() > 200 => {
            let detail = "a person's name has 1 to 200 bytes";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_NAME", detail));
        }
        Settle::Attest { name } => settle::Settle::Attest { name },
    };
    let failed = |error: io::Error| answer::storage("settling", &error).about(job.id());
    Ok(match settle::settle(home, job, &how).map_err(failed)? {
        Outcome::Settled(_) => Settled::Settled,
        Outcome::KeeperLives => Settled::KeeperLives,
        Outcome::Busy => Settled::Busy,
        Outcome::Attested(_) => Settled::Attested,
        Outcome::StillUnknown { why } => {
            let (seen, unreadable) = settle::marked(job).map_err(failed)?;
            Settled::StillUnknown { why, seen, unreadable }
        }
    })
}

/// One attempt to give input; never waits for the command. `None` where it took nothing and may later.
pub(crate) fn give_input(
    job: &Job,
    offset: Cursor,
    bytes: &[u8],
    close: bool,
) -> Result<Option<StdinTaken>, Problem> {
    if job.spec().work.stdin != Stdin::Open && !job.spec().work.tty {
        let detail = format!("job {} has no open standard input", job.id());
        return Err(Problem::new(StatusCode::CONFLICT, "NO_OPEN_STDIN", detail)
            .about(job.id())
            .remedy("admit it with `\"stdin\": {\"kind\": \"open\"}`"));
    }
    match control::write_stdin(job, offset, bytes, close, Duration::ZERO) {
        Ok(answer) => Ok(Some(StdinTaken { taken: answer.taken, closed: answer.closed })),
        Err(error) => match error.kind() {
            io::ErrorKind::TimedOut => Ok(None),
            // Ended, or lost, or not begun: what was taken before is all that ever will be, unless it has yet to begin.
            io::ErrorKind::NotConnected => {
                let facts = job.look().map_err(|error| answer::storage("looking at the job", &error))?;
                let taken = facts.ledger.stdin.map_or(Cursor(0), |(offset, _)| offset);
                match project(&facts).state {
                    State::Starting => Ok(None),
                    _ => Ok(Some(StdinTaken { taken, closed: true })),
                }
            }
            io::ErrorKind::InvalidInput => {
                Err(Problem::new(StatusCode::CONFLICT, "BAD_OFFSET", error.to_string()).about(job.id()))
            }
            _ => Err(answer::storage("passing on input", &error).about(job.id())),
        },
    }
}
