//! `outlast job status`.

use crate::args::job::StatusArgs;
use crate::budget::Budget;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::Failure;
use crate::removed;
use crate::result::{Look, Show, failure_of, job_data, progress_in_words, took};
use crate::settling;

use outlast_hand::clock;

/// Says what state a job is in. It settles what is due, as every call about a job does, and waits for nothing.
pub(crate) fn run(context: &Context, args: &StatusArgs) -> Result<Done, Failure> {
    let (home, job) = match context.find(&args.job) {
        Ok(found) => found,
        Err(failure) => return removed::instead(context, &args.job, Budget::Absent, failure),
    };
    settling::if_due(&home, &job, Some(clock::mono_now().plus(settling::IN_PASSING)))?;
    let look = Look::at(&job)?;
    let data = job_data(context, &home, &job, &look, Show::Counts);
    let error = failure_of(context, &job, &look, data.output.as_ref());
    let text = format!(
        "{}  {}  {}  {}\n{}\n",
        data.job_id,
        data.state.name(),
        took(look.work_duration()),
        progress_in_words(&data.progress),
        look.projection.because
    );
    Ok(Answer {
        data: Some(Data::Job(Box::new(data))),
        error,
        // A person was told when it was admitted.
        warnings: if context.json() { look.facts.spec.manner.warnings.clone() } else { Vec::new() },
        text: text.into_bytes(),
        note: None,
        facts: CallFacts { timeout_ms: look.timeout_ms(), ..CallFacts::default() },
    }
    .into())
}
