//! `outlast completions`.

use crate::args::{Cli, CompletionsArgs};
use crate::done::Done;
use crate::envelope::Answer;
use clap::CommandFactory;

/// Prints completions; they are for a shell, whatever the form of other answers.
pub(crate) fn run(args: &CompletionsArgs) -> Done {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "outlast", &mut text);
    Done { answer: Answer { text, ..Answer::default() }, raw: true, ..Done::default() }
}
