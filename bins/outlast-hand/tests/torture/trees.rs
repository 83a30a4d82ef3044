//! Whole trees: whoever descends from the command ends with it, and is named where it outlived it.

use crate::support::{Ground, at_once, exited, in_all_modes, is_root, lives, names, wait_for};
use outlast_core::exit::{Cause, Exit};
use outlast_core::ledger::Record;
use outlast_core::receipt::Drain;
use outlast_core::spec::{Boundary, JobKind};
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_hand::control::{Say, StopAnswer};

/// Every way to be hard to end at once: other sessions, orphans, ignored TERM, stopped, and changing pids.
fn zoo(ground: &Ground) -> Vec<String> {
    let file = |name: &str| format!("touch={}", ground.file(name).display());
    vec![
        format!("orphan=setsid,{},forever", file("a")),
        format!("orphan=setsid,ignore=TERM,ignore=HUP,{},forever", file("b")),
        format!("child={},stop,forever", file("c")),
        format!("orphan=setsid,ignore=TERM,{},stop,forever", file("d")),
        format!("orphan=setsid,ignore=TERM,{},hop=60000", file("e")),
        format!("child=ignore=TERM,{},hop=60000", file("f")),
        format!("child=setsid,ignore=TERM,ignore=HUP,{},forever", file("g")),
        "swarm=40".to_owned(),
        "zombies=20".to_owned(),
    ]
}

fn until_zoo_lives(ground: &Ground) {
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        wait_for(name, || ground.file(name).exists().then_some(()));
    }
}

#[test]
fn the_whole_tree_dies_with_its_stop() {
    in_all_modes("zoo", |ground, mode| {
        for force in [false, true] {
            let mut deeds = zoo(ground);
            deeds.push("forever".to_owned());
            let mut ask = ground.ask(&deeds);
            ask.work.containment = Some(mode);
            ask.manner.grace = Millis(100);
            let run = ground.started(&ask);
            until_zoo_lives(ground);
            wait_for("a full zoo", || (run.command_processes().len() >= 45).then_some(()));
            assert_eq!(run.stop("s1", force), StopAnswer::Accepted);
            let receipt = run.settled();
            assert_eq!(run.command_processes(), [], "proved dead, and alive");
            assert_eq!(receipt.cause, Cause::Stop { id: "s1".to_owned() });
            let signal = if force { 9 } else { 15 };
            assert_eq!(receipt.exit, Exit::Signaled { signal, core_dumped: false });
            assert_eq!(receipt.output.drain, Drain::Complete);
            for name in ["a", "b", "c", "d", "e", "f", "g"] {
                std::fs::remove_file(ground.file(name)).unwrap();
            }
        }
    });
}

#[test]
fn the_whole_tree_dies_after_its_leader() {
    in_all_modes("zoo-leaderless", |ground, mode| {
        let mut deeds = zoo(ground);
        let go = ground.file("go");
        deeds.extend([format!("wait={}", go.display()), "say=bye".to_owned(), "exit=4".to_owned()]);
        let mut ask = ground.ask(&deeds);
        ask.work.containment = Some(mode);
        ask.manner.grace = Millis(100);
        let run = ground.started(&ask);
        until_zoo_lives(ground);
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!(run.command_processes(), [], "proved dead, and alive");
        assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (exited(4), Cause::OwnEnd));
        assert_eq!(receipt.output.drain, Drain::Complete);
        assert!(
            receipt.stragglers.len() > 40
                && names(&receipt.stragglers).iter().all(|name| *name == "misbehave")
        );
        assert_eq!(run.whole_output(&receipt).text(), "bye\n");
        assert_eq!(receipt.stops, [""; 0]);
    });
}

#[test]
fn an_exit_is_told_at_once_and_what_holds_the_pipe_is_ended() {
    // (what the straggler does about TERM, whether KILL was needed)
    let rows = [("setsid", false), ("ignore=TERM", true)];
    in_all_modes("straggler", |ground, mode| {
        for (manner, kill_needed) in rows {
            let ready = ground.file(manner);
            let straggler = format!("orphan={manner},touch={},sleep=50,say=late,forever", ready.display());
            let mut ask = ground.ask(&[
                straggler,
                format!("wait={}", ready.display()),
                "say=early".into(),
                "exit=0".into(),
            ]);
            ask.work.containment = Some(mode);
            let run = ground.started(&ask);
            run.until_said("its exit", |say| *say == Say::Exited { exit: exited(0) });
            assert!(run.job.receipt().unwrap().is_none(), "told before it is settled: the straggler lives");
            // The scribe notes it a moment later.
            let state = wait_for("a note of its exit", || {
                Some(run.state()).filter(|state| state.state != State::Starting)
            });
            assert!(matches!(state.state, State::Running | State::Stopping), "{state:?}");
            run.closed();
            let receipt = run.settled();
            assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (exited(0), Cause::OwnEnd));
            assert_eq!(names(&receipt.stragglers), ["misbehave"]);
            let (exit, dead, settled) =
                (receipt.times.exited.unwrap().0, receipt.times.dead.0, receipt.times.settled.0);
            assert!(dead - exit >= 200_000, "it was given its linger time");
            assert!(!kill_needed || dead - exit >= 700_000, "and its grace");
            // The bound is linger, grace and drain; the rest is for a machine under load.
            assert!(settled - exit < 1_200_000 + 5_000_000, "settled {} µs after the exit", settled - exit);
            assert_eq!(run.whole_output(&receipt).text(), "early\nlate\n");
            let killed =
                run.ledger().iter().any(|record| matches!(record, Record::Signaled { signal: 9, .. }));
            assert_eq!(killed, kill_needed);
        }
    });
}

#[test]
fn who_holds_the_pipe_outside_the_tree_is_named_and_waited_for_no_longer_than_the_drain_time() {
    in_all_modes("held-pipe", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[format!("wait={}", go.display()), "say=all of it".to_owned()]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        let command = wait_for("the command", || run.command_processes().first().copied());
        // It is this test that holds the pipe: it opens the command's output as anybody of its user may.
        let held = std::fs::OpenOptions::new().write(true).open(format!("/proc/{command}/fd/1")).unwrap();
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        let Drain::Incomplete { held_by } = &receipt.output.drain else {
            panic!("{:?}", receipt.output.drain)
        };
        // What this test starts elsewhere at the same time has copies of its descriptors until it is the program it is to be.
        let is_passing = |pid: u32| {
            let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
            pid != std::process::id() && exe != std::fs::read_link("/proc/self/exe").ok()
        };
        let pids: Vec<u32> =
            held_by.iter().map(|holder| holder.pid).filter(|pid| !is_passing(*pid)).collect();
        assert_eq!(pids, [std::process::id()], "{held_by:?}");
        assert!(receipt.times.settled.0 - receipt.times.dead.0 >= 500_000);
        assert_eq!(run.whole_output(&receipt).text(), "all of it\n");
        assert_eq!(receipt.exit, exited(0));
        drop(held);
    });
}

#[test]
fn shells_that_hang_other_tools() {
    struct Row {
        case: &'static str,
        script: &'static str,
        deadline: u64,
        exit: Option<Exit>,
        stragglers: bool,
    }
    let own = |case, script, code, stragglers| Row {
        case,
        script,
        deadline: 60_000,
        exit: Some(exited(code)),
        stragglers,
    };
    let late = |case, script| Row { case, script, deadline: 400, exit: None, stragglers: false };
    let rows = [
        late("1", "mkfifo p; (while :; do echo c; sleep 0.1; done) >p & cat p"),
        own("2", "exec > >(tee copy) 2>&1; true", 0, false),
        own("4", "sleep 600 & exit 0", 0, true),
        own("5", "bash -c 'sleep 10 &'", 0, true),
        own("7", "timeout 0.3 sh -c 'setsid sleep 600 & sleep 600'", 124, true),
        late("7, by our own", "sh -c 'setsid sleep 600 & sleep 600'"),
        late("8", "sh -c 'sleep 8 &'; sleep 8"),
        late("13", "while :; do sleep 0.05; done"),
        late("31", "trap '' TERM; sleep 999 & wait"),
        late("34", "for j in 1 2; do (while :; do :; done)& done; sleep 28"),
        late("37", "set -m; setsid sh -c 'sleep 3000' & sleep 3000"),
        own("49", "for i in $(seq 100); do (sleep 0.01 &); done; sleep 0.2", 0, false),
        own("62", "yes | head -c 200000; sleep 99 &", 0, true),
    ];
    at_once(&rows, |row| {
        let ground = Ground::new(&format!("case-{}", row.case));
        let mut ask = ground.ask_argv(&["bash", "-c", row.script]);
        ask.work.limits.deadline = Some(Millis(row.deadline));
        ask.manner.grace = Millis(200);
        if !row.stragglers {
            ask.manner.linger = Millis(10_000);
        }
        let (run, receipt) = ground.run(&ask);
        match &row.exit {
            Some(exit) => {
                assert_eq!((&receipt.exit, &receipt.cause), (exit, &Cause::OwnEnd), "case {}", row.case)
            }
            None => {
                assert_eq!(receipt.cause, Cause::Deadline { after_ms: row.deadline }, "case {}", row.case)
            }
        }
        assert_eq!(
            !receipt.stragglers.is_empty(),
            row.stragglers,
            "case {}: {:?}",
            row.case,
            receipt.stragglers
        );
        run.whole_output(&receipt);
    });
}

#[test]
fn a_service_lives_on_after_its_leader() {
    in_all_modes("service", |ground, mode| {
        let ready = ground.file("ready");
        let mut ask = ground
            .ask(&[format!("orphan=setsid,on-term,touch={},forever", ready.display()), "exit=0".to_owned()]);
        ask.work.containment = Some(mode);
        ask.work.kind = JobKind::Service;
        ask.work.limits.deadline = None;
        let run = ground.started(&ask);
        run.until_said("its exit", |say| matches!(say, Say::Exited { .. }));
        run.until_file(&ready);
        let daemon = wait_for("the daemon", || run.command_processes().first().copied());
        // Longer than the linger time of a command.
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert!(lives(daemon));
        assert_eq!(run.state().state, State::Running);
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        let receipt = run.settled();
        assert_eq!(receipt.exit, exited(0));
        assert_eq!(run.whole_output(&receipt).text(), "last words\n");
        assert!(!lives(daemon));
    });
}

#[test]
fn everything_that_ran_is_counted() {
    let modes = if is_root() {
        vec![Boundary::Cgroup2Subreaper, Boundary::Subreaper]
    } else {
        vec![Boundary::Subreaper]
    };
    for mode in modes {
        let ground = Ground::new("counted");
        let mut ask = ground.ask(&["zombies=50", "orphan=burn=100", "exit=0"]);
        ask.work.containment = Some(mode);
        ask.manner.linger = Millis(10_000);
        let (_, receipt) = ground.run(&ask);
        let used = receipt.resources.unwrap();
        // The leader, the fifty it left unreaped, and an orphan; its parent in between was reaped by the leader.
        assert_eq!(used.processes, 52);
        assert!(used.user_us >= 10_000, "the orphan's time counts: {used:?}");
        assert!(used.max_rss_kib > 100);
    }
}
