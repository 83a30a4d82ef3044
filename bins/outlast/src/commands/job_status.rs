//! `outlast job status`.

use crate::args::job::StatusArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::result::{Look, Show, failure_of, job_data, progress_in_words, took};
use outlast_hand::settle::{Settle, settle};

/// Says what state a job is in. It settles what is due, as every call about a job does, and waits for nothing.
pub(crate) fn run(context: &Context, args: &StatusArgs) -> Result<Done, Failure> {
    let (home, job) = context.find(&args.job)?;
    settle(&home, &job, &Settle::IfDue).map_err(|error| failure::of_system("settling the job", &error))?;
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
        warnings: look.facts.spec.manner.warnings.clone(),
        text: text.into_bytes(),
        note: None,
        facts: CallFacts { timeout_ms: look.timeout_ms(), ..CallFacts::default() },
    }
    .into())
}
