//! Limits on processes and memory: what they stop, and what the receipt says of it.

use crate::as_root;
use crate::support::{exited, wait_for};
use outlast_core::exit::{Cause, Exit};
use outlast_core::spec::Boundary;
use outlast_core::time::Millis;
use outlast_hand::control::StopAnswer;

const MODES: [Boundary; 3] = [Boundary::Cgroup2Subreaper, Boundary::Subreaper, Boundary::PidNamespace];

#[test]
fn a_fork_bomb_meets_its_limit_and_its_end() {
    for mode in MODES {
        let ground = as_root("bomb");
        let mut ask = ground.ask(&["bomb"]);
        ask.work.containment = Some(mode);
        ask.work.limits.pids = Some(60);
        ask.manner.grace = Millis(200);
        let run = ground.started(&ask);
        wait_for("its limit", || (run.command_processes().len() >= 50).then_some(()));
        assert!(run.command_processes().len() <= 60);
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        let receipt = run.settled();
        assert_eq!(run.command_processes(), []);
        assert_eq!(receipt.exit, Exit::Signaled { signal: 9, core_dumped: false });
    }
}

#[test]
fn a_bomb_whose_leader_is_gone_ends_by_itself_after_its_linger_time() {
    let ground = as_root("bomb-leaderless");
    let mut ask = ground.ask(&["child=bomb", "sleep=50", "exit=3"]);
    ask.work.limits.pids = Some(60);
    ask.manner.grace = Millis(200);
    let (run, receipt) = ground.run(&ask);
    assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (exited(3), Cause::OwnEnd));
    assert!(receipt.stragglers.len() > 20);
    assert_eq!(run.command_processes(), []);
}

#[test]
fn memory_beyond_the_limit_is_an_end_of_its_own_kind() {
    for mode in MODES {
        let ground = as_root("oom");
        let mut ask = ground.ask(&["say=before", "eat=300", "exit=0"]);
        ask.work.containment = Some(mode);
        ask.work.limits.memory_bytes = Some(64 << 20);
        let (run, receipt) = ground.run(&ask);
        assert_eq!(receipt.exit, Exit::Signaled { signal: 9, core_dumped: false }, "{mode:?}");
        assert_eq!(receipt.cause, Cause::OutOfMemory, "{mode:?}");
        assert_eq!(run.whole_output(&receipt).text(), "before\n");

        let mut ask = ground.ask(&["eat=16", "exit=0"]);
        ask.work.containment = Some(mode);
        ask.work.limits.memory_bytes = Some(64 << 20);
        let (_, receipt) = ground.run(&ask);
        assert_eq!((receipt.exit, receipt.cause), (exited(0), Cause::OwnEnd), "{mode:?}");

        // A child that is too greedy is not the end of a command that can do without it.
        let mut ask = ground.ask(&["child=eat=300", "sleep=300", "say=lived on", "exit=0"]);
        ask.work.containment = Some(mode);
        ask.work.limits.memory_bytes = Some(64 << 20);
        let (_, receipt) = ground.run(&ask);
        assert_eq!((receipt.exit, receipt.cause), (exited(0), Cause::OwnEnd), "{mode:?}");
    }
}

/// The bomb of case F 76: many processes that eat all there is. The keeper is outside the blast.
#[test]
fn many_processes_that_run_out_of_memory_leave_the_keeper_standing() {
    let ground = as_root("oom-many");
    let mut deeds: Vec<String> = (0..24).map(|_| "child=ignore=TERM,eat=40,forever".to_owned()).collect();
    deeds.extend(["eat=40".into(), "forever".into()]);
    let mut ask = ground.ask(&deeds);
    ask.work.limits.memory_bytes = Some(256 << 20);
    ask.work.limits.deadline = Some(Millis(1500));
    ask.manner.grace = Millis(100);
    let (run, receipt) = ground.run(&ask);
    assert!(matches!(receipt.cause, Cause::OutOfMemory | Cause::Deadline { .. }), "{:?}", receipt.cause);
    assert_eq!(run.command_processes(), []);
}
