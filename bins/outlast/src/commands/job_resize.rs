//! `outlast job resize`.

use crate::args::job::ResizeArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::Answer;
use crate::failure::{self, Failure};
use crate::result::Look;
use outlast_hand::control;
use std::io::ErrorKind;

/// Tells a job's pseudo-terminal its size. A job that has ended has none: nothing is done, and that is said.
pub(crate) fn run(context: &Context, args: &ResizeArgs) -> Result<Done, Failure> {
    let (_home, job) = context.find(&args.job)?;
    if !job.spec().work.tty {
        return Err(Failure::new(failure::NO_TERMINAL, format!("job {} has no pseudo-terminal", job.id()))
            .before_anything()
            .suggest("only `outlast run --tty` gives one"));
    }
    let effect = match control::resize(&job, args.rows, args.cols) {
        Ok(()) => "resized",
        Err(error) if matches!(error.kind(), ErrorKind::NotConnected) => "noop",
        Err(error) => return Err(failure::of_system("resizing the terminal", &error)),
    };
    let state = Look::at(&job)?.state();
    let data = serde_json::json!({
        "job_id": job.id(), "state": state, "rows": args.rows, "cols": args.cols, "effect": effect,
    });
    Ok(Answer::of(data).into())
}
