//! Commands that outlast the call, and a "done" that is proved.
//!
//! One call of this program does one thing, and answers in bounded time. In reading order:
//!
//! - [`args`]: what can be typed, with the manual.
//! - [`cli`] and [`context`]: from words to a command, and what every command knows of its call.
//! - [`commands`]: one file a verb. `run` and `job retry` share [`attend`].
//! - [`conduct`]: what a waiting call does when something happens, as a pure machine; [`vigil`] is the waiting itself,
//!   [`live`], [`outlet`] and [`terminal`] its hands, [`spool`] what comes before it, and [`settling`] what is done about
//!   a job that lost its keeper.
//! - [`result`] and [`output`]: the answer about a job; [`removed`]: about one that is kept no more.
//! - [`envelope`], [`failure`], [`done`]: the one object every answer is, and how it is written.
//! - [`budget`], [`follow_up`], [`masks`], [`quote`], [`rfc3339`], [`size`], [`window`]: rules of their own.
#![forbid(unsafe_code)]

mod args;
mod attend;
mod budget;
mod cli;
mod commands;
mod conduct;
mod context;
mod done;
mod envelope;
mod failure;
mod follow_up;
mod live;
mod masks;
mod outlet;
mod output;
mod quote;
mod removed;
mod result;
mod rfc3339;
mod settling;
mod size;
mod spool;
mod terminal;
mod vigil;
mod window;

use std::process::ExitCode;

/// The word by which this program is started as a keeper. It is looked at first: a keeper has no use for the rest.
const KEEPER: &str = "__keeper";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.nth(1).is_some_and(|word| word == KEEPER) {
        let status = outlast_hand::keeper::main(words);
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    ExitCode::from(cli::run(std::env::args_os().collect()))
}
