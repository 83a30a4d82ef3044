//! `outlast job cancel`.

use crate::args::job::CancelArgs;
use crate::budget::Budget;
use crate::conduct::Stop;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::live::Selection;
use crate::outlet::Ears;
use crate::result::{Look, Show, failure_of, job_data};
use crate::settling;
use crate::vigil::{End, How, LEAVE_ALONE, Streaming, Until, Vigil, stop_request, take_signals};
use outlast_core::status::State;
use outlast_hand::admit::discard_save;
use outlast_hand::control::{self, StopAnswer};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::settle::{Settle, cancel_unstarted};
use std::time::Duration;

/// How long the keeper has to answer before it is asked again.
const ANSWER: Duration = Duration::from_secs(1);

/// Stops a job and waits, within the budget, for the proof that its tree is dead.
pub(crate) fn run(context: &Context, args: &CancelArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let signals = take_signals()?;
    let (home, job) = context.find(&args.job)?;
    let look = Look::at(&job)?;
    if look.state() == State::Paused {
        discard_save(&home, &job)
            .map_err(|error| failure::of_system("giving up what the job saved", &error))?;
        return Ok(answer(context, &home, &job, &Look::at(&job)?, budget, Some("discarded")));
    }
    if look.facts.receipt.is_some() || look.facts.attestation.is_some() {
        return Ok(answer(context, &home, &job, &look, budget, Some("noop")));
    }
    if look.state() == State::Unknown {
        return lost(context, &home, &job, budget);
    }
    let request =
        stop_request(&job, Stop::Asked, budget, if args.force { How::Force } else { How::Ordinary })?;
    match control::stop(&job, &request, ANSWER) {
        Ok(StopAnswer::Stale(stale)) => {
            return Err(Failure::new(failure::STOP_STALE, format!("the stop was dropped: {stale}")));
        }
        Ok(StopAnswer::Accepted) => {}
        // With this no keeper will have it; or one has it by now, and the waiting asks again or sees its receipt.
        Ok(StopAnswer::NoKeeper) => {
            cancel_unstarted(&home, &job).map_err(|error| failure::of_system("stopping the job", &error))?;
        }
        Err(error) => return Err(failure::of_system("asking the keeper to stop the job", &error)),
    }
    let vigil = Vigil {
        context,
        home: &home,
        job: &job,
        watch: None,
        until: Until::Settled,
        policy: LEAVE_ALONE,
        budget,
        streaming: Streaming::Never,
        selection: Selection::ALL,
        keys: false,
        progress: false,
        stopping: Some(request),
    };
    let ended = vigil.wait(&signals)?;
    if ended.end == End::Leave {
        return Ok(Done { leave: Some(failure::TERMINATED.exit), ..Done::default() });
    }
    let look = Look::at(&job)?;
    if look.state() == State::Unknown {
        return lost(context, &home, &job, budget);
    }
    let mut done = answer(context, &home, &job, &look, budget, None);
    done.until = budget.ends_at(context.started);
    done.ears = Some(Ears::new(signals, false));
    Ok(done)
}

/// A job whose keeper is gone cannot be asked; its tree is ended through its boundary instead.
fn lost(context: &Context, home: &Home, job: &Job, budget: Budget) -> Result<Done, Failure> {
    settling::within(home, job.id(), Settle::Asked, budget.ends_at(context.started))?;
    Ok(answer(context, home, job, &Look::at(job)?, budget, None))
}

fn answer(
    context: &Context,
    home: &Home,
    job: &Job,
    look: &Look,
    budget: Budget,
    effect: Option<&'static str>,
) -> Done {
    let mut data = job_data(context, home, job, look, Show::Counts);
    data.effect = effect;
    let settled = look.facts.receipt.is_some() || look.facts.attestation.is_some();
    let error = match look.state() {
        _ if settled => None,
        State::Unknown => failure_of(context, job, look, None),
        _ => Some(
            Failure::new(
                failure::INCOMPLETE,
                "stopping: the tree was told to end, and its death is not proved yet",
            )
            .fix("see whether it is with", context.follow_up.job("cancel", job.id(), &[])),
        ),
    };
    if error.as_ref().is_some_and(|error| error.exit_code == failure::INCOMPLETE.exit) {
        data.state = State::Stopping;
    }
    let what = match effect {
        None => "stopped",
        Some("noop") => "was already over",
        Some(_) => "gave up what it had saved",
    };
    let text = match &error {
        None => format!("{what}: {}  {}\n", job.id(), look.projection.because),
        Some(_) => String::new(),
    };
    let facts =
        CallFacts { budget_ms: budget.millis(), timeout_ms: look.timeout_ms(), ..CallFacts::default() };
    let data = Some(Data::Job(Box::new(data)));
    Answer { data, error, text: text.into_bytes(), facts, ..Answer::default() }.into()
}
