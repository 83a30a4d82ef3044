//! The small program of a hand: it keeps jobs, serves them, and connects to the server.
//!
//! A keeper lives as long as its job, so it runs from a program with little writable data of its own. `keep` is started
//! by `outlast run` and by the runner, never by a person, and touches nothing of the rest.
#![forbid(unsafe_code)]

mod args;
mod connect;
mod serve;
mod token;

use std::ffi::OsString;
use std::process::ExitCode;

const HELP: &str = "\
outlast-hand serves the jobs of a home to brains and other clients, and keeps them.

  outlast-hand serve [--home DIR] [--listen ADDRESS]... [--dial HOST:PORT]...
      Runs the runner in the foreground. Without --listen it listens on HOME/runner.sock.
        --listen unix | unix:PATH | tls:IP:PORT   where to listen
        --dial HOST:PORT           dial a brain, which becomes the client on that connection
        --sandbox ID               the sandbox this hand answers for (default: the home's own id)
        --sandbox-generation N     which incarnation of it (default: 1)
        --token-file FILE          bearer tokens, hashed (make them with `outlast-hand token new`)
        --tls-cert FILE --tls-key FILE   this hand's certificate (default: its own, kept in the home)
        --client-ca FILE | --client-pin sha256:HEX   require client certificates
        --dial-ca FILE | --dial-pin sha256:HEX       who may answer where this hand dials
        --dial-token FILE          the token to present there
        --allow-uid UID            a user that may use the Unix socket, beside this one and root
        --inherit NAME             a variable that commands inherit (replaces the default list)
        --idle-exit SECONDS        end once nobody is connected and no job is open for so long

  outlast-hand connect [--home DIR] [--no-start]
      Joins standard input and output to the runner, for `ssh HOST outlast-hand connect` and container exec.
      Where no runner serves the home it starts one, which ends by itself when it is idle.

  outlast-hand token new [--scope PREFIX] [--expires SECONDS] [--name WORD] --file FILE
      Adds a token to FILE, hashed, and prints it once.

  outlast-hand --version

HOME is OUTLAST_HOME, else outlast below XDG_STATE_HOME, else ~/.local/state/outlast.
Exit codes: 0 done, 1 failed, 2 bad argument, 6 another runner serves the home.
";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = args.first().and_then(|first| first.to_str());
    if verb == Some("keep") {
        // First of all: a thousand keepers start here.
        std::process::exit(outlast_hand::keeper::main(args.into_iter()));
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
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            Ok(())
        }
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
                eprintln!("`outlast-hand --help` lists everything");
            }
            ExitCode::from(failure.code())
        }
    }
}
