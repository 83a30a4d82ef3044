//! The small program that keeps jobs, for the sandbox and for beside the large one.
//!
//! A keeper lives as long as its job, so it runs from a program with little writable data of its own. It is started by
//! `outlast run` (and, on a hand, by the runner), never by a person.
#![forbid(unsafe_code)]

use std::ffi::OsString;

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|first| first.to_str()) {
        Some("keep") => std::process::exit(outlast_hand::keeper::main(args.into_iter())),
        Some("--version" | "-V") => println!("outlast-hand {}", env!("CARGO_PKG_VERSION")),
        _ => {
            eprintln!(
                "outlast-hand keeps jobs for `outlast run`, which starts it; there is nothing to run by hand."
            );
            std::process::exit(2);
        }
    }
}
