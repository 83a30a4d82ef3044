//! A keeper killed at each of its system calls: everything between two of them has been a last moment once.
//!
//! From the moment on which the command is let go, one of the keeper's processes is traced, and killed when it enters
//! its nth call of one kind. The kinds and the n run until no more are reached. Needs `strace`; where it is missing, that
//! is noted for CI to see.

use crate::as_root;
use crate::faults::Tracer;
use crate::support::{Ground, Run, be_init, exited, note, settle_now, wait_for, wait_within};
use outlast_core::exit::{Cause, Exit};
use outlast_core::receipt::{Authority, OutputHash, Receipt};
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_hand::settle::{Outcome, Settle};
use std::time::Duration;

/// What the scribe does at the end of a job, and the warden.
const SCRIBE: [&str; 13] = [
    "read",
    "write",
    "pwrite64",
    "openat",
    "fdatasync",
    "fsync",
    "sync_file_range",
    "renameat,renameat2",
    "unlinkat",
    "sendto",
    "recvfrom",
    "poll,ppoll",
    "lseek",
];
const WARDEN: [&str; 8] =
    ["wait4,waitid", "sendto", "recvfrom", "poll,ppoll", "openat", "unlinkat", "unlink,rmdir", "read"];

/// Lets one job go with a killer at the nth of these calls. `None` where it never came to it.
fn killed_at(ground: &Ground, mode: Boundary, of_warden: bool, calls: &str, nth: u32) -> Option<Run> {
    let go = ground.file(&format!("go-{}-{nth}", calls.split(',').next().unwrap()));
    let mut ask =
        ground.ask(&["say=before", &format!("wait={}", go.display()), "say=after", "err=after", "exit=3"]);
    ask.work.containment = Some(mode);
    // Each a workspace of its own: an unknown one closes it.
    ask.manner.workspace = go.display().to_string().as_str().into();
    let run = ground.started(&ask);
    wait_for("its first output", || (run.job.committed().unwrap().0 == 7).then_some(()));
    let victim = if of_warden { run.warden() } else { run.scribe() };
    let tracer = Tracer::attach(victim, calls, &format!("signal=KILL:when={nth}"))?;
    std::fs::write(&go, "").unwrap();
    let mut died = false;
    wait_for("an end", || {
        died = died || !crate::support::lives(victim);
        (run.job.receipt().unwrap().is_some() || (of_warden && run.state().state == State::Unknown))
            .then_some(())
    });
    // The traced one may have been killed after its work, or have ended by itself.
    let _ = wait_within(Duration::from_secs(10), &mut || (!crate::support::lives(victim)).then_some(()));
    drop(tracer);
    Some(run)
}

fn strace_is_there(ground: &Ground) -> bool {
    let run = ground.staying(&["say=x"]);
    let there = Tracer::attach(run.scribe(), "fsync", "error=EIO:when=100").is_some();
    run.stop("s1", true);
    run.settled();
    if !there {
        note("strace is missing or not allowed: keepers were not killed at their system calls");
    }
    there
}

fn assert_sound(run: &Run, receipt: &Receipt, what: &str) {
    assert_eq!((&receipt.exit, &receipt.cause), (&exited(3), &Cause::OwnEnd), "{what}");
    assert_eq!(receipt.authority, Authority::Keeper, "{what}");
    let seen = run.output();
    let text = seen.text();
    // All is there but for what a stated gap excuses.
    let whole = text == "before\nafter\n" && seen.stderr == b"after\n";
    assert!(whole || !receipt.output.gaps.is_empty(), "{what}: {text:?} {:?}", receipt.output);
    assert!(text.starts_with("before\n"), "{what}: committed output is gone");
    let known = matches!(receipt.output.hash, OutputHash::Blake3 { .. });
    assert_eq!(known, receipt.output.gaps.is_empty(), "{what}: {:?}", receipt.output);
    let (mut read, mut stated) = (seen.gaps.clone(), receipt.output.gaps.clone());
    read.dedup();
    stated.dedup();
    assert_eq!(read, stated, "{what}: log and receipt");
    assert_eq!(seen.end, receipt.output.final_cursor.0, "{what}");
}

fn scribe_dies_at_each(mode: Boundary, most: u32) {
    let ground = as_root(&format!("scribe-calls-{}", mode.name()));
    if !strace_is_there(&ground) {
        return;
    }
    let mut kills = 0;
    for calls in SCRIBE {
        for nth in 1..=most {
            let what = format!("{} {calls} {nth}", mode.name());
            let run = killed_at(&ground, mode, false, calls, nth).expect("strace");
            let receipt = run.settled();
            wait_for("its keeper to go", || run.keepers().is_empty().then_some(()));
            assert_sound(&run, &receipt, &what);
            ground.verified();
            let died = run.job.look().unwrap().ledger.scribe_restarts > 0;
            kills += u32::from(died);
            // Beyond its last call of this kind nothing is killed any more.
            if !died && nth > 1 {
                break;
            }
        }
    }
    note(&format!("scribe killed at {kills} system calls in {}: ok", mode.name()));
}

#[test]
fn the_scribe_dies_at_each_system_call_in_a_cgroup() {
    scribe_dies_at_each(Boundary::Cgroup2Subreaper, 4);
}

#[test]
fn the_scribe_dies_at_each_system_call_in_a_namespace() {
    scribe_dies_at_each(Boundary::PidNamespace, 2);
}

fn warden_dies_at_each(mode: Boundary, most: u32) {
    be_init();
    let ground = as_root(&format!("warden-calls-{}", mode.name()));
    let mut unknown = 0;
    for calls in WARDEN {
        for nth in 1..=most {
            let what = format!("{} {calls} {nth}", mode.name());
            let Some(run) = killed_at(&ground, mode, true, calls, nth) else {
                note("strace is missing or not allowed: wardens were not killed at their system calls");
                return;
            };
            let lost = run.job.receipt().unwrap().is_none();
            let outcome = settle_now(&ground, &run, &Settle::Asked);
            match (&outcome, mode) {
                (Outcome::Settled(receipt), _) => {
                    let honest = matches!(receipt.exit, Exit::Exited { code: 3 } | Exit::Unknown { .. });
                    assert!(honest, "{what}: {:?}", receipt.exit);
                    assert_eq!(run.output().end, receipt.output.final_cursor.0, "{what}");
                }
                (Outcome::StillUnknown { .. }, Boundary::Cgroup2Subreaper | Boundary::Subreaper) => {
                    wait_for("its scribe to go", || run.keepers().is_empty().then_some(()));
                    settle_now(&ground, &run, &Settle::Attest { name: "a tester".to_owned() });
                }
                other => panic!("{what}: {other:?}"),
            }
            assert_eq!(run.command_processes(), [], "{what}");
            wait_for("its keeper to go", || run.keepers().is_empty().then_some(()));
            let seen = run.output();
            assert_eq!(
                (seen.text().as_str(), seen.stderr.as_slice()),
                ("before\nafter\n", b"after\n".as_slice()),
                "{what}"
            );
            ground.verified();
            unknown += u32::from(lost);
            if !lost && nth > 1 {
                break;
            }
        }
    }
    note(&format!("warden lost at {unknown} system calls in {}: ok", mode.name()));
}

#[test]
fn the_warden_dies_at_each_system_call_in_a_cgroup() {
    warden_dies_at_each(Boundary::Cgroup2Subreaper, 4);
}

#[test]
fn the_warden_dies_at_each_system_call_in_a_namespace() {
    warden_dies_at_each(Boundary::PidNamespace, 3);
}
