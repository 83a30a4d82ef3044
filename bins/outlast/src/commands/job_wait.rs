//! `outlast job wait`.

use crate::args::job::WaitArgs;
use crate::attend::{Arrival, Attendance, attend};
use crate::context::Context;
use crate::done::Done;
use crate::failure::Failure;
use crate::removed;
use crate::vigil::{LEAVE_ALONE, Streaming, Until, take_signals};

/// Waits for a job within the budget, and answers as the call that started it would have.
pub(crate) fn run(context: &Context, args: &WaitArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let signals = take_signals()?;
    let (home, job) = match context.find(&args.job) {
        Ok(found) => found,
        Err(failure) => return removed::instead(context, &args.job, budget, failure),
    };
    let attendance = Attendance {
        until: Until::Settled,
        policy: LEAVE_ALONE,
        budget,
        max_output: args.max_output,
        streaming: Streaming::AtTheEnd,
        keys: false,
        progress: !context.json() && context.terminals.stderr,
        arrival: Arrival::Named,
    };
    attend(context, &home, job, None, signals, attendance)
}
