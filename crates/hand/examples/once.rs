//! Runs one command under a keeper in a home of its own and prints its receipt: the hand without the CLI.
//!
//! `once HOME [cgroup2+subreaper|subreaper|pid_namespace] -- ARGV…`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an example may stop where it stands"
)]

use outlast_core::bytes::Bytes;
use outlast_core::id::{Generation, Scope};
use outlast_core::spec::{Capture, Command, JobKind, Limits, Manner, Stdin, Work};
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Request, admit};
use outlast_hand::control::Notice;
use outlast_hand::home::Home;
use outlast_hand::launch::{Launch, launch};
use std::os::unix::ffi::OsStringExt;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let home = Home::open(args.next().expect("a home").as_ref()).expect("home");
    let rest: Vec<_> = args.collect();
    let split = rest.iter().position(|word| word == "--").expect("--");
    let containment = rest[..split].first().map(|name| {
        serde_json::from_value(serde_json::Value::String(name.to_str().unwrap().to_owned()))
            .expect("a boundary")
    });
    let argv = rest[split + 1..].iter().map(|word| Bytes(word.clone().into_vec())).collect();
    let cwd = Bytes(std::env::current_dir().unwrap().into_os_string().into_vec());
    let request = Request {
        scope: Scope::new("example").unwrap(),
        key: None,
        work: Work {
            command: Command::Argv(argv),
            cwd: cwd.clone(),
            env: Default::default(),
            secrets: Default::default(),
            stdin: Stdin::Null,
            limits: Limits {
                deadline: Some(Millis(60_000)),
                idle: None,
                log_bytes: Some(1 << 30),
                pids: None,
                memory_bytes: None,
            },
            kind: JobKind::Command,
            merge: false,
            tty: false,
            resume: false,
            containment,
            user: None,
        },
        manner: Manner {
            workspace: cwd,
            grace: Millis(2_000),
            linger: Millis(1_000),
            drain: Millis(2_000),
            capture: Capture::NotAPipeline,
            program: None,
            window: None,
            warnings: Vec::new(),
        },
        stdin: None,
        generation: Generation(0),
        find: Find::New,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let job = match admit(&home, &request).expect("admitted") {
        Admitted::New(job) => job,
        other => panic!("{other:?}"),
    };
    let launched = launch(
        &job,
        &Launch { watch_output: false, program: None, environment: std::env::vars_os().collect() },
    )
    .expect("launched");
    loop {
        match launched.watch.next(None).expect("a word") {
            Notice::Closed => break,
            word => println!("{word:?}"),
        }
    }
    println!("{}", serde_json::to_string_pretty(&job.receipt().unwrap()).unwrap());
    println!("{:#?}", outlast_hand::verify::verify(&home).unwrap());
}
