//! What `run` and `job retry` have in common once there is a job: a keeper is started, waited for, and answered for.

use crate::budget::Budget;
use crate::conduct::{Early, Happening, Policy, Stop};
use crate::context::Context;
use crate::done::{self, Done};
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::live::Selection;
use crate::outlet::Ears;
use crate::output;
use crate::result::{JobData, Look, Show, failure_of, job_data, progress_in_words, took};
use crate::vigil::{End, Ended, SetUpFailed, Streaming, Until, Vigil};
use outlast_core::exit::{Exit, NotStarted};
use outlast_core::id::JobId;
use outlast_core::spec::Warning;
use outlast_core::status::{State, is_paused};
use outlast_core::time::Millis;
use outlast_hand::admit::Refusal;
use outlast_hand::clock;
use outlast_hand::control::Watch;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::launch::{Launch, launch};
use outlast_sys::signals::SignalFd;
use std::ffi::{OsStr, OsString};

/// How a call attends to its job.
pub(crate) struct Attendance {
    /// What is waited for.
    pub(crate) until: Until,
    /// What the caller asked for.
    pub(crate) policy: Policy,
    /// The bound of the call.
    pub(crate) budget: Budget,
    /// The most bytes of output in the answer.
    pub(crate) max_output: u64,
    /// When output is written in text.
    pub(crate) streaming: Streaming,
    /// Whether keys are passed on.
    pub(crate) keys: bool,
    /// Whether a line on standard error tells of progress.
    pub(crate) progress: bool,
    /// How the call came to this job.
    pub(crate) arrival: Arrival,
}

/// How a call came to its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It admitted it.
    Admitted,
    /// The identical call had; it runs.
    Attached,
    /// The identical call had; it had ended, and nobody received its result.
    EarlierRun,
    /// Its idempotency key named it.
    ByKey,
    /// It was named by its id.
    Named,
}

/// Starts the keeper of a job that was just admitted. A person is told here, and only here, what admission had to
/// remark; answers for programs carry it each time.
pub(crate) fn start_keeper(context: &Context, job: &Job, watch_output: bool) -> Result<Watch, Failure> {
    if !context.json() {
        for warning in &job.spec().manner.warnings {
            done::warn(context, warning);
        }
    }
    let how = Launch { watch_output, environment: environment(), ..Launch::default() };
    launch(job, &how).map(|launched| launched.watch).map_err(|error| {
        Failure::new(failure::KEEPER_NOT_STARTED, format!("no keeper could be started for job {}", job.id()))
            .because_of(&error)
            .fix("it will be settled as never started; see", context.follow_up.job("explain", job.id(), &[]))
    })
}

/// What the command inherits: the caller's environment without what concerns this call alone.
fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.as_os_str() != OsStr::new(crate::budget::VARIABLE)).collect()
}

/// Waits for a job as its caller asked, and makes the answer.
pub(crate) fn attend(
    context: &Context,
    home: &Home,
    job: Job,
    watch: Option<Watch>,
    signals: SignalFd,
    attendance: Attendance,
) -> Result<Done, Failure> {
    let Attendance { until, policy, budget, streaming, keys, progress, .. } = attendance;
    let streaming = if context.json() { Streaming::Never } else { streaming };
    if !context.json() {
        announce(&job, &attendance)?;
    }
    let vigil = Vigil {
        context,
        home,
        job: &job,
        watch,
        until,
        policy,
        budget,
        streaming,
        selection: Selection::ALL,
        keys,
        progress,
        stopping: None,
    };
    let ended = vigil.wait(&signals)?;
    if ended.end == End::Leave {
        return Ok(Done { leave: Some(failure::TERMINATED.exit), ..Done::default() });
    }
    let look = Look::at(&job)?;
    let show = if context.json() {
        Show::Text(usize::try_from(attendance.max_output).unwrap_or(usize::MAX))
    } else {
        Show::Counts
    };
    let mut data = job_data(context, home, &job, &look, show);
    if ended.end == End::Reached && data.state == State::Starting {
        // The keeper has said that it runs; what it writes down of that comes a moment later.
        data.state = State::Running;
        data.because = "its keeper says that it has started".to_owned();
    }
    let unfinished = matches!(ended.end, End::Early(_)) && !look.is_final();
    if unfinished && ended.stop.is_some() && data.state != State::Stopping {
        // Told so by this call; what the keeper writes down of that comes a moment later.
        data.state = State::Stopping;
        data.because = "it was told to end".to_owned();
    }
    if unfinished && ended.stop == Some(Stop::Pause) && context.starts_work {
        data.continue_command = Some(context.follow_up.same_call());
    }
    let error = error_of(context, &job, &look, &data, &ended, budget);
    data.attached = (attendance.arrival != Arrival::Admitted && attendance.arrival != Arrival::Named)
        .then(|| look.attached());
    if attendance.arrival == Arrival::ByKey && look.facts.receipt.is_some() {
        data.effect = Some("noop");
    }
    let mut warnings = if context.json() { look.facts.spec.manner.warnings.clone() } else { Vec::new() };
    warnings.extend(earlier_run(attendance.arrival, &data));
    let receipt = look.facts.receipt.as_ref();
    let missing = match show {
        Show::Text(_) => data.output.as_ref().and_then(|output| output.missing.clone()),
        Show::Counts => receipt.and_then(|receipt| output::missing_in(&job, receipt)),
    };
    warnings.extend(output::warnings(receipt, missing.as_ref(), data.output_unavailable.as_deref()));
    let complete =
        ended.written && look.facts.receipt.is_some() && !is_paused(&look.facts) && ended.end != End::Reached;
    let note = note_of(context, &ended, &look, error.as_ref());
    let text = match (ended.end, context.json()) {
        (End::Reached, false) => format!("{}\n", job.id()).into_bytes(),
        _ => Vec::new(),
    };
    let named = attendance.arrival == Arrival::Named && look.facts.receipt.is_some();
    let facts = CallFacts {
        duration_ms: named.then(|| look.work_duration().0),
        budget_ms: budget.millis(),
        timeout_ms: look.timeout_ms(),
        idempotency_hit: attendance.arrival == Arrival::ByKey,
    };
    let data = Some(Data::Job(Box::new(data)));
    Ok(Done {
        answer: Answer { data, error, warnings, text, note, facts },
        hand_over: complete.then_some(job),
        ears: Some(Ears::new(signals, matches!(ended.end, End::Early(Early::Told(_))))),
        until: budget.ends_at(context.started),
        leave: None,
        raw: false,
    })
}

/// Tells a person at once what they would else wonder about while nothing else is said.
fn announce(job: &Job, attendance: &Attendance) -> Result<(), Failure> {
    let attached = match attendance.arrival {
        Arrival::Attached => true,
        Arrival::ByKey => {
            job.receipt().map_err(|error| failure::of_system("reading the receipt", &error))?.is_none()
        }
        Arrival::Admitted | Arrival::EarlierRun | Arrival::Named => false,
    };
    if attached {
        let age = took(clock::unix_now().since(job.spec().admitted_at));
        done::tell(&format!("attached to job {}, which began {age} ago", job.id()));
    }
    if attendance.keys {
        done::tell("Ctrl-] detaches and leaves the command running");
    }
    Ok(())
}

/// Why the call is no success; `None` where it is one.
fn error_of(
    context: &Context,
    job: &Job,
    look: &Look,
    data: &JobData,
    ended: &Ended,
    budget: Budget,
) -> Option<Failure> {
    let settled = look.facts.receipt.is_some();
    if let (Some(failed), Some(receipt)) = (&ended.set_up, &look.facts.receipt)
        && receipt.exit == (Exit::NotStarted { why: NotStarted::SetUpFailed })
    {
        return Some(set_up_failed(failed));
    }
    match ended.end {
        End::Reached if !settled => None,
        End::Early(early) if !look.is_final() || (settled && !ended.written) => {
            Some(early_answer(context, job, look, data, ended, early, budget))
        }
        _ => {
            let failure = failure_of(context, job, look, data.output.as_ref());
            let cancelled = |failure: &Failure| {
                failure.code == failure::TERMINATED.code && ended.stop == Some(Stop::Asked)
            };
            failure.map(|failure| if cancelled(&failure) { interrupted(failure) } else { failure })
        }
    }
}

/// What a keeper could not set up, as its caller is told.
fn set_up_failed(failed: &SetUpFailed) -> Failure {
    Failure::with(failed.code.clone(), 4, failed.message.clone())
        .before_anything()
        .suggest(failed.remedy.clone())
}

/// A job that this call's Ctrl-C stopped.
fn interrupted(mut failure: Failure) -> Failure {
    failure.exit_code = failure::INTERRUPTED.exit;
    failure.context(serde_json::json!({ "signal": "SIGINT" }))
}

fn early_answer(
    context: &Context,
    job: &Job,
    look: &Look,
    data: &JobData,
    ended: &Ended,
    early: Early,
    budget: Budget,
) -> Failure {
    let saving = ended.stop == Some(Stop::Pause);
    let budget_over = || {
        let length = outlast_core::duration::format(Millis(budget.millis().unwrap_or(0)));
        format!("the call's budget of {length} is over")
    };
    let why = match early {
        Early::Budget => budget_over(),
        Early::Patience if saving => budget_over(),
        Early::Told(Happening::Terminate) => "SIGTERM was received".to_owned(),
        Early::Told(Happening::HangUp) => "SIGHUP was received".to_owned(),
        Early::Told(Happening::OutputClosed) => match &ended.write_failed {
            Some(error) => format!("writing the output failed ({error})"),
            None => "nobody reads the output any more".to_owned(),
        },
        Early::Detached => "detached".to_owned(),
        Early::Told(_) => "the waiting was interrupted".to_owned(),
        Early::Patience => {
            format!("the tree was told to end, and its death is not proved after {}", took(context.elapsed()))
        }
    };
    let far = progress_in_words(&data.progress);
    let state = match (look.state(), &data.exit) {
        _ if look.facts.receipt.is_some() => "it has ended, and its output was not read whole".to_owned(),
        _ if saving => "the command was told to save, and is being stopped".to_owned(),
        (State::Stopping, _) => "it is being stopped".to_owned(),
        _ if ended.stop.is_some() => "it is being stopped".to_owned(),
        (_, Some(exit)) => format!("the command ended ({exit}), and what it left behind is waited for"),
        (_, None) => format!("the work continues in the background ({far})"),
    };
    // The call itself is the way back to what it paused, and to the terminal it left.
    let go_on = match context.starts_work && (saving || early == Early::Detached) {
        true => context.follow_up.same_call(),
        false => context.follow_up.job("wait", job.id(), &[]),
    };
    Failure::new(failure::INCOMPLETE, format!("{why}; {state}")).fix("continue with", go_on)
}

/// What a person is told in place of the error's own line; empty for nothing.
fn note_of(context: &Context, ended: &Ended, look: &Look, error: Option<&Failure>) -> Option<String> {
    if context.json() {
        return None;
    }
    match error {
        None if ended.end == End::Reached => Some(format!("job {} has started", look.facts.spec.job_id)),
        None => None,
        // A command that ended by itself has said what it had to say, and its exit code says the rest.
        Some(error)
            if error.code == "COMMAND_FAILED" && look.facts.receipt.as_ref().is_some_and(plain_exit) =>
        {
            Some(String::new())
        }
        Some(_) => None,
    }
}

fn plain_exit(receipt: &outlast_core::receipt::Receipt) -> bool {
    matches!(receipt.exit, Exit::Exited { code } if Some(code) == receipt.effective_status() && code != 0)
}

fn earlier_run(arrival: Arrival, data: &JobData) -> Option<Warning> {
    let when = |moment: &Option<String>| moment.clone().unwrap_or_else(|| "an unknown time".to_owned());
    (arrival == Arrival::EarlierRun).then(|| Warning {
        code: "EARLIER_RUN".to_owned(),
        message: format!(
            "this is the result of an earlier run of the identical call, from {} to {}, which nobody had received; \
             --new starts a new one",
            when(&data.started_at),
            when(&data.ended_at)
        ),
        context: Some(serde_json::json!({ "job_id": data.job_id })),
    })
}

/// What to do about an attempt that may live: one that has its keeper is waited for or stopped, any other is settled.
fn not_proved_dead(context: &Context, id: JobId, failure: Failure) -> Failure {
    let lost = || {
        let home = context.existing_home().ok()??;
        let job = home.job(id).ok()??;
        Some(Look::at(&job).ok()?.state() == State::Unknown)
    };
    if lost() == Some(true) {
        return failure.fix("nothing was started; settle it first", context.follow_up.job("settle", id, &[]));
    }
    let wait = context.follow_up.job("wait", id, &[]);
    failure.fix(
        format!("nothing was started, for it still runs; wait for it with `{wait}`, or stop it with"),
        context.follow_up.job("cancel", id, &[]),
    )
}

/// Why nothing was admitted, as its caller is told.
pub(crate) fn refused(context: &Context, refusal: Refusal) -> Failure {
    let message = refusal.to_string();
    let new = |kind| Failure::new(kind, message.clone()).before_anything();
    match &refusal {
        Refusal::Conflict { job_id, differs } => new(failure::KEY_CONFLICT)
            .suggest("nothing was started; make the call as it was first made, or choose another key")
            .context(serde_json::json!({ "job_id": job_id, "differs": differs })),
        Refusal::WorkspaceUnknown { job_id } => new(failure::WORKSPACE_UNKNOWN)
            .fix("nothing was started; settle that job with", context.follow_up.job("settle", *job_id, &[]))
            .context(serde_json::json!({ "job_id": job_id })),
        Refusal::NotProvedDead { job_id } => not_proved_dead(context, *job_id, new(failure::NOT_PROVED_DEAD))
            .context(serde_json::json!({ "job_id": job_id })),
        Refusal::NotTheLatest { latest, .. } => new(failure::NOT_THE_LATEST)
            .fix("nothing was started; name the latest attempt", context.follow_up.job("retry", *latest, &[]))
            .context(serde_json::json!({ "latest": latest })),
        Refusal::ClosedGeneration(_) => new(failure::GENERATION_CLOSED).suggest("nothing was started"),
        Refusal::SealedRun { .. } => new(failure::RUN_SEALED).suggest("nothing was started"),
        Refusal::NoSuchJob(job_id) => failure::not_found(&job_id.to_string()),
        Refusal::TooLarge { .. } => {
            new(failure::TOO_LARGE).suggest("nothing was started; pass what is large as a file")
        }
        Refusal::Storage(error) => failure::of_system("admitting the command", error).before_anything(),
    }
}
