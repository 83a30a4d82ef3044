//! `outlast job retry`.

use crate::args::job::RetryArgs;
use crate::attend::{Arrival, Attendance, attend, refused, start_keeper};
use crate::commands::run::{secret_hashes, secret_values};
use crate::conduct::{AtLimit, OnInterrupt, Policy};
use crate::context::Context;
use crate::done::Done;
use crate::envelope::TOOL_VERSION;
use crate::failure::Failure;
use crate::spool;
use crate::vigil::{Streaming, Until, take_signals};
use outlast_core::spec::Stdin;
use outlast_hand::admit::{Admitted, Find, Request, admit};

/// Starts the next attempt of a job and attends to it as `run` would.
pub(crate) fn run(context: &Context, args: &RetryArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let signals = take_signals()?;
    let (home, earlier) = context.find(&args.job)?;
    let spec = earlier.spec();
    let mut work = spec.work.clone();
    let names: Vec<&String> = work.secrets.keys().collect();
    work.secrets = secret_hashes(&home, &secret_values(&names)?);
    let spooled = match &work.stdin {
        Stdin::Spooled { .. } => Some(spool::again(&home, earlier.path(), &signals)?),
        Stdin::Null | Stdin::Open => None,
    };
    let request = Request {
        scope: context.scope.clone(),
        key: spec.key.clone(),
        work,
        manner: spec.manner.clone(),
        stdin: spooled.and_then(|spooled| spooled.file),
        generation: spec.generation,
        find: Find::NextAttempt(earlier.id()),
        tool_version: TOOL_VERSION.to_owned(),
        run: spec.run.clone(),
        brain: None,
    };
    let admitted = admit(&home, &request);
    if !matches!(admitted, Ok(Admitted::New(_)))
        && let Some(file) = &request.stdin
    {
        spool::discard(&home, file);
    }
    let streaming = if args.background { Streaming::Never } else { Streaming::AsItComes };
    let (job, watch, arrival) = match admitted.map_err(|refusal| refused(context, refusal))? {
        Admitted::New(job) => {
            let watch = start_keeper(context, &job, streaming == Streaming::AsItComes && !context.json())?;
            (job, Some(watch), Arrival::Admitted)
        }
        Admitted::Existing(job) => (job, None, Arrival::Attached),
        Admitted::Removed(tombstone) => return Ok(crate::removed::answer(context, &tombstone, budget)),
    };
    let interrupt = if context.terminals.any() { OnInterrupt::StopsJob } else { OnInterrupt::EndsWaiting };
    let attendance = Attendance {
        until: if args.background { Until::Started } else { Until::Settled },
        policy: Policy { at_limit: AtLimit::GoesOn, grace_at_limit: None, interrupt },
        budget,
        max_output: args.max_output,
        streaming,
        keys: false,
        progress: false,
        arrival,
    };
    attend(context, &home, job, watch, signals, attendance)
}
