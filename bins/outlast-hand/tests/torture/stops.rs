//! Stops, deadlines and the order of force.

use crate::support::{
    Ground, Random, Run, at_once, exited, in_all_modes, kill, stop_request, wait_for, wait_within,
};
use outlast_core::exit::{Cause, Exit};
use outlast_core::fence::StopRequest;
use outlast_core::id::Generation;
use outlast_core::ledger::Record;
use outlast_core::receipt::Receipt;
use outlast_core::spec::Boundary;
use outlast_core::time::Millis;
use outlast_hand::control::{self, Notice, Say, StopAnswer, Watch};
use rustix::process::{Signal, kill_process};
use std::os::fd::AsFd;
use std::time::Duration;

const TERM: i32 = 15;
const KILL: i32 = 9;

fn signals(run: &Run) -> Vec<i32> {
    let signal = |record| match record {
        Record::Signaled { signal, .. } => Some(signal),
        _ => None,
    };
    let mut signals: Vec<i32> = run.ledger().into_iter().filter_map(signal).collect();
    // KILL is repeated until the tree is proved dead.
    signals.dedup();
    signals
}

type Change = fn(&mut StopRequest);

fn signaled(signal: i32) -> Exit {
    Exit::Signaled { signal, core_dumped: false }
}

#[test]
fn a_silent_command_times_out_like_a_loud_one() {
    // (deeds, exit, signals)
    let rows: [(&[&str], Exit, &[i32]); 4] = [
        (&["forever"], signaled(TERM), &[TERM]),
        (&["ignore=TERM", "forever"], signaled(KILL), &[TERM, KILL]),
        (&["on-term", "forever"], exited(7), &[TERM]),
        (&["on-term", "spew=100000000", "forever"], exited(7), &[TERM]),
    ];
    in_all_modes("deadline", |ground, mode| {
        at_once(&rows, |(deeds, exit, expected)| {
            let mut ask = ground.ask(deeds);
            ask.work.containment = Some(mode);
            ask.work.limits.deadline = Some(Millis(1000));
            ask.work.limits.log_bytes = Some(4 << 20);
            // Whoever ends by itself is given the time that a busy machine takes.
            ask.manner.grace = Millis(if expected.contains(&KILL) { 200 } else { 10_000 });
            let (run, receipt) = ground.run(&ask);
            assert_eq!(receipt.cause, Cause::Deadline { after_ms: 1000 }, "{deeds:?}");
            assert_eq!((&receipt.exit, signals(&run).as_slice()), (exit, *expected), "{deeds:?}");
            let ran = receipt.times.exited.unwrap().0 - receipt.times.admitted.0;
            assert!((1_000_000..20_000_000).contains(&ran), "{deeds:?} ran for {ran} µs");
        });
    });
}

#[test]
fn a_deadline_that_is_none_ends_nothing() {
    let ground = Ground::new("no-deadline");
    for deadline in [None, Some(Millis(0))] {
        let mut ask = ground.ask(&["sleep=300", "exit=0"]);
        ask.work.limits.deadline = deadline;
        let (_, receipt) = ground.run(&ask);
        assert_eq!((receipt.exit, receipt.cause), (exited(0), Cause::OwnEnd));
    }
}

#[test]
fn a_stop_gives_the_grace_it_promises_and_keeps_the_last_words() {
    // (deeds after which it waits, force, exit, signals, output)
    type Row = (&'static [&'static str], bool, Exit, &'static [i32], &'static str);
    let rows: [Row; 5] = [
        (&["on-term"], false, exited(7), &[TERM], "last words\n"),
        (&["on-term", "stop"], false, exited(7), &[TERM], "last words\n"),
        (&["ignore=TERM"], false, signaled(KILL), &[TERM, KILL], ""),
        (&["on-term"], true, signaled(KILL), &[KILL], ""),
        (&["say=x"], false, signaled(TERM), &[TERM], "x\n"),
    ];
    in_all_modes("stop", |ground, mode| {
        for (number, (deeds, force, exit, expected, output)) in rows.iter().enumerate() {
            let ready = ground.file(&format!("ready{number}"));
            let mut all = vec![format!("orphan=ignore=TERM,touch={}", ready.display())];
            all.extend(deeds.iter().map(|deed| (*deed).to_owned()));
            all.push("forever".to_owned());
            let stops_itself = deeds.contains(&"stop");
            let mut ask = ground.ask(&all);
            ask.work.containment = Some(mode);
            ask.manner.grace = Millis(if expected.contains(&KILL) { 200 } else { 10_000 });
            let run = ground.started(&ask);
            run.until_file(&ready);
            wait_for("it to be ready", || {
                let command = *run.command_processes().first()?;
                let state = crate::support::state_of(command)?;
                let ignored = std::fs::read_to_string(format!("/proc/{command}/status")).ok()?;
                let mask = |name: &str| {
                    u64::from_str_radix(ignored.lines().find_map(|line| line.strip_prefix(name))?.trim(), 16)
                        .ok()
                };
                let term = 1 << (TERM - 1);
                let set =
                    mask("SigIgn:")? & term != 0 || mask("SigCgt:")? & term != 0 || deeds.contains(&"say=x");
                (set && (state == 'T') == stops_itself).then_some(())
            });
            if deeds.contains(&"say=x") {
                wait_for("its output", || (run.output().text() == "x\n").then_some(()));
            }
            assert_eq!(run.stop("s1", *force), StopAnswer::Accepted);
            let receipt = run.settled();
            assert_eq!(
                (&receipt.exit, signals(&run).as_slice()),
                (exit, *expected),
                "{deeds:?} force {force}"
            );
            assert_eq!(receipt.cause, Cause::Stop { id: "s1".to_owned() });
            assert_eq!(receipt.stops, ["s1"]);
            assert_eq!(run.whole_output(&receipt).text(), *output, "{deeds:?}");
        }
    });
}

#[test]
fn stale_stops_are_dropped_recorded_and_send_no_signal() {
    in_all_modes("stale", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[format!("wait={}", go.display()), "exit=5".to_owned()]);
        ask.work.containment = Some(mode);
        ask.generation = Generation(4);
        let run = ground.started(&ask);
        let mut stale = Vec::new();
        let changes: [(&str, Change); 3] = [
            ("older", |stop| stop.generation = Generation(3)),
            ("newer", |stop| stop.generation = Generation(5)),
            ("attempt", |stop| stop.job_id = stop.job_id.next_attempt()),
        ];
        for (id, change) in changes {
            let mut request = stop_request(&run.job, id, true);
            change(&mut request);
            match control::stop(&run.job, &request, Duration::from_secs(30)).unwrap() {
                StopAnswer::Stale(why) => stale.push(why),
                other => panic!("{id}: {other:?}"),
            }
        }
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (exited(5), Cause::OwnEnd));
        assert_eq!((receipt.stops.len(), signals(&run).len()), (0, 0));
        let dropped = run.ledger().into_iter().filter_map(|record| match record {
            Record::StopDropped { stale, .. } => Some(stale),
            _ => None,
        });
        assert_eq!(dropped.collect::<Vec<_>>(), stale);
    });
}

#[test]
fn a_repeated_stop_is_one_stop() {
    let ground = Ground::new("twice");
    let run = ground.staying(&["ignore=TERM"]);
    for id in ["s1", "s1", "s2", "s1"] {
        assert_eq!(run.stop(id, false), StopAnswer::Accepted);
    }
    let receipt = run.settled();
    assert_eq!(receipt.stops, ["s1", "s2"]);
    assert_eq!(receipt.cause, Cause::Stop { id: "s1".to_owned() }, "the first one ended it");
    let accepted = run.ledger().iter().filter(|record| matches!(record, Record::StopAccepted { .. })).count();
    assert_eq!(accepted, 2);
}

#[test]
fn a_later_force_does_not_wait_for_the_grace() {
    let ground = Ground::new("force-later");
    let run = ground.staying_with(&["ignore=TERM"], |ask| ask.manner.grace = Millis(600_000));
    assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
    run.until_said("that it is being ended", |say| matches!(say, Say::Ending { .. }));
    assert_eq!(run.stop("s2", true), StopAnswer::Accepted);
    let receipt = run.settled();
    assert_eq!(
        (receipt.exit.clone(), receipt.cause.clone()),
        (signaled(KILL), Cause::Stop { id: "s1".to_owned() })
    );
}

/// A stop against an end of its own, many times: whoever wins, there is one receipt, and it fits.
#[test]
fn a_stop_races_an_exit() {
    in_all_modes("race-exit", |ground, mode| {
        let mut random = Random::new("a_stop_races_an_exit");
        let mut won = [0, 0, 0];
        for _ in 0..25 {
            let mut ask = ground.ask(&["say=x", &format!("sleep={}", random.below(4)), "exit=3"]);
            ask.work.containment = Some(mode);
            let run = ground.started(&ask);
            std::thread::sleep(Duration::from_micros(random.below(6000)));
            let answer = run.stop("s1", random.below(2) == 0);
            let receipt = run.settled();
            let text = std::fs::read(run.job.path().join("receipt.json")).unwrap();
            check_race(&run, &receipt, &answer);
            run.closed();
            assert_eq!(std::fs::read(run.job.path().join("receipt.json")).unwrap(), text, "written once");
            won[match (&receipt.cause, answer) {
                (Cause::Stop { .. }, _) => 0,
                (_, StopAnswer::Accepted) => 1,
                _ => 2,
            }] += 1;
        }
        eprintln!("{mode:?}: stopped, stopped too late, ended before: {won:?}");
    });
}

fn check_race(run: &Run, receipt: &Receipt, answer: &StopAnswer) {
    let noted = run.ledger().iter().any(|record| matches!(record, Record::StopAccepted { .. }));
    match (&receipt.cause, answer) {
        (Cause::Stop { id }, _) => {
            assert_eq!((id.as_str(), receipt.stops.as_slice()), ("s1", ["s1".to_owned()].as_slice()))
        }
        (Cause::OwnEnd, StopAnswer::Accepted) => {
            assert_eq!(receipt.exit, exited(3));
            assert!(!receipt.stops.is_empty() || noted, "a stop was accepted and is nowhere");
        }
        (Cause::OwnEnd, StopAnswer::NoKeeper) => {
            assert_eq!((&receipt.exit, receipt.stops.len()), (&exited(3), 0))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_stops_with_long_names_cannot_prevent_the_receipt() {
    let ground = Ground::new("many-stops");
    let run = ground.staying(&["ignore=TERM"]);
    for number in 0..200 {
        let id = format!("{number}-{}", "s".repeat(200));
        if run.stop(&id, false) != StopAnswer::Accepted {
            break;
        }
    }
    assert_eq!(run.settled().exit, signaled(KILL));
}

#[test]
fn one_stop_with_an_endless_name_cannot_prevent_the_receipt() {
    let ground = Ground::new("endless-stop");
    let run = ground.started(&ground.ask(&["forever"]));
    let request = stop_request(&run.job, &"s".repeat(40_000), false);
    // It may well be refused; then another ends the job.
    if !matches!(control::stop(&run.job, &request, Duration::from_secs(30)), Ok(StopAnswer::Accepted)) {
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
    }
    assert_eq!(run.settled().exit, signaled(TERM));
}

#[test]
fn stale_stops_with_endless_names_leave_the_job_readable() {
    let ground = Ground::new("stale-endless");
    let run = ground.staying(&["say=x"]);
    for number in 0..320 {
        let mut request = stop_request(&run.job, &format!("{number}-{}", "s".repeat(55_000)), false);
        request.generation = Generation(9);
        let _ = control::stop(&run.job, &request, Duration::from_secs(30));
    }
    run.job.look().expect("the job can be looked at");
    assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
    assert_eq!(run.settled().exit, signaled(TERM));
}

#[test]
fn a_crowd_of_idle_watchers_cannot_keep_a_stop_out() {
    let ground = Ground::new("crowd");
    let run = ground.started(&ground.ask(&["forever"]));
    // Where its door is crowded for a moment, one waits.
    let mut crowd: Vec<Watch> = Vec::new();
    while crowd.len() < 300 {
        match wait_within(Duration::from_secs(1), &mut || Watch::connect(&run.job, false).ok().flatten()) {
            Some(watch) => crowd.push(watch),
            None => break,
        }
    }
    let answer = control::stop(&run.job, &stop_request(&run.job, "s1", false), Duration::from_secs(5));
    assert!(
        matches!(answer, Ok(StopAnswer::Accepted)),
        "{answer:?} while the keeper lives: {:?}",
        run.state()
    );
    assert_eq!(run.settled().exit, signaled(TERM));
}

#[test]
fn asking_while_many_others_ask_is_no_error() {
    let ground = Ground::new("rush");
    let run = ground.started(&ground.ask(&["forever"]));
    // The keeper is held up for a moment, as a busy machine would.
    kill_process(run.warden(), Signal::STOP).unwrap();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let job = &run.job;
        let ask = move |number: usize| {
            control::stop(job, &stop_request(job, &format!("s{number}"), false), Duration::from_secs(20))
        };
        let threads: Vec<_> = (0..200).map(|number| scope.spawn(move || ask(number))).collect();
        std::thread::sleep(Duration::from_millis(200));
        kill_process(run.warden(), Signal::CONT).unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let errors: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(errors.is_empty(), "{} of 200 were turned away: {:?}", errors.len(), errors[0]);
    assert_eq!(run.settled().exit, signaled(TERM));
}

#[test]
fn clients_that_talk_nonsense_or_never_read_disturb_nobody() {
    let ground = Ground::new("nonsense");
    let go = ground.file("go");
    let run = ground.started(&ground.ask(&[
        format!("wait={}", go.display()),
        "spew=3000000".into(),
        "exit=0".into(),
    ]));
    let deaf: Vec<Watch> = (0..20).map(|_| Watch::connect(&run.job, true).unwrap().unwrap()).collect();
    let loud = Watch::connect(&run.job, false).unwrap().unwrap();
    for message in [
        b"{".as_slice(),
        b"\n\n\n",
        b"{\"ask\":\"stop\"}",
        b"\0\0\0\0",
        b"{\"ask\":\"nothing\"}",
        &[b'x'; 60_000],
        &[b'{'; 200_000],
    ] {
        let _ = rustix::net::send(loud.socket(), message, rustix::net::SendFlags::NOSIGNAL);
    }
    // Nothing at all: to the keeper that is a client that has gone.
    let empty = Watch::connect(&run.job, false).unwrap().unwrap();
    let _ = rustix::net::send(empty.socket(), b"", rustix::net::SendFlags::NOSIGNAL);
    let mut refused = 0;
    while let Notice::Said(Say::Refused { .. }) = loud.next(Some(Duration::from_secs(5))).unwrap() {
        refused += 1;
        if refused == 6 {
            break;
        }
    }
    assert!(refused >= 6, "{refused}");
    std::fs::write(&go, "").unwrap();
    let receipt = run.settled();
    assert_eq!(receipt.exit, exited(0));
    run.whole_output(&receipt);
    assert!(deaf[0].socket().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn signals_meant_for_the_keeper_do_not_reach_the_command() {
    in_all_modes("keeper-signals", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&["say=a", &format!("wait={}", go.display()), "say=b", "exit=5"]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            kill_process(run.warden(), signal).unwrap();
            kill_process(run.scribe(), signal).unwrap();
        }
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), run.whole_output(&receipt).text().as_str()), (exited(5), "a\nb\n"));
    });
}

#[test]
fn silence_is_a_stall_where_a_limit_was_set_and_work_is_none() {
    let ground = Ground::new("stall");
    let mut ask = ground.ask(&["say=x", "forever"]);
    ask.work.limits.idle = Some(Millis(300));
    let (run, receipt) = ground.run(&ask);
    assert_eq!(receipt.cause, Cause::Stall { idle_ms: 300 });
    assert_eq!(run.whole_output(&receipt).text(), "x\n");

    let mut ask = ground.ask(&["chatter=800", "exit=0"]);
    ask.work.limits.idle = Some(Millis(400));
    let (_, receipt) = ground.run(&ask);
    assert_eq!((receipt.exit, receipt.cause), (exited(0), Cause::OwnEnd));
}

/// The command's own end wins over a stop that comes while only its stragglers are left.
#[test]
fn a_stop_after_the_leaders_end_is_not_its_cause() {
    let ground = Ground::new("stop-stragglers");
    let mut ask = ground.ask(&["orphan=setsid,ignore=TERM,forever", "exit=2"]);
    ask.manner.linger = Millis(60_000);
    ask.work.containment = Some(Boundary::Subreaper);
    let run = ground.started(&ask);
    run.until_said("its exit", |say| matches!(say, Say::Exited { .. }));
    assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
    let receipt = run.settled();
    assert_eq!(
        (receipt.exit.clone(), receipt.cause.clone(), receipt.stops.len()),
        (exited(2), Cause::OwnEnd, 1)
    );
}

/// A command that was killed by somebody else was not stopped by us.
#[test]
fn a_kill_from_outside_is_the_commands_own_end() {
    in_all_modes("outside", |ground, mode| {
        let mut ask = ground.ask(&["forever"]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        let command = wait_for("the command", || run.command_processes().first().copied());
        kill(command);
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (signaled(KILL), Cause::OwnEnd));
    });
}
