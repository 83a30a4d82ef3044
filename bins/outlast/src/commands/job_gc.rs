//! `outlast job gc`.

use crate::args::job::GcArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::Answer;
use crate::failure::{self, Failure};
use outlast_hand::{clock, gc};

/// Removes finished jobs whose time has come.
pub(crate) fn run(context: &Context, args: &GcArgs) -> Result<Done, Failure> {
    let collected = match context.existing_home()? {
        None => gc::Collected::default(),
        Some(home) => gc::collect(&home, clock::unix_now(), args.keep)
            .map_err(|error| failure::of_system("removing finished jobs", &error))?,
    };
    let mut answer = Answer::of(serde_json::json!({
        "removed": collected.removed,
        "kept": collected.kept,
        "claimed": collected.claimed,
        "unfinished": collected.unfinished,
        "tombstones_removed": collected.tombstones_removed,
    }));
    let claimed = match collected.claimed {
        0 => String::new(),
        count => format!(", {count} finished and not yet acknowledged by a brain"),
    };
    answer.text = format!(
        "{} removed, {} finished and kept{claimed}, {} not finished\n",
        collected.removed.len(),
        collected.kept,
        collected.unfinished
    )
    .into_bytes();
    Ok(answer.into())
}
