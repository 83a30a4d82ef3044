//! The small program of a hand: it keeps jobs, serves them, and connects to the server.
//!
//! A keeper lives as long as its job, so it runs from a program with little writable data of its own. `keep` is started
//! by `outlast run` and by the runner, `nest` by the runner, never by a person, and they touch nothing of the rest.
#![forbid(unsafe_code)]

mod args;
mod connect;
mod help;
mod serve;
mod token;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = args.first().and_then(|first| first.to_str());
    if verb == Some("keep") {
        // First of all: a thousand keepers start here.
        std::process::exit(outlast_hand::keeper::main(args.into_iter()));
    }
    if verb == Some("nest") {
        let own = std::env::args_os().next().unwrap_or_default();
        std::process::exit(outlast_hand::nest::main(&own));
    }
    let rest = args.get(1..).unwrap_or_default().to_vec();
    let done = match verb {
        Some("serve") => serve::run(rest),
        Some("connect") => connect::run(rest),
        Some("token") => token::run(rest),
        Some("--version" | "-V") => {
            println!("outlast-hand {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Some("--help" | "-h" | "help") => help::whole(),
        None => Err(args::Failure::usage("say what to do: serve, connect or token")),
        Some(other) => {
            Err(args::Failure::usage(format!("there is no `{other}`; serve, connect and token are there")))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outlast-hand: {failure}");
            if failure.is_usage() {
                match verb {
                    Some(verb @ ("serve" | "connect" | "token")) => {
                        eprintln!("`outlast-hand {verb} --help` lists its options");
                    }
                    _ => eprintln!("`outlast-hand --help` lists everything"),
                }
            }
            ExitCode::from(failure.code())
        }
    }
}
