//! Many at once: admissions, settlers, keepers.

use crate::support::{
    Ground, Random, exited, how, keeper_program, kill, launch_keeper, modes, settle_now, stop_request,
    try_launch, wait_for,
};
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Exit, NotStarted};
use outlast_core::id::{Generation, Key};
use outlast_core::ledger::{Record, StartMark};
use outlast_core::receipt::Authority;
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Refusal, Request, admit};
use outlast_hand::control;
use outlast_hand::home::Home;
use outlast_hand::launch::{Launch, hold};
use outlast_hand::nest::Nest;
use outlast_hand::settle::{Outcome, Settle, settle};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Does the same from eight threads at the same moment, each with the home opened for itself.
fn eight<T: Send>(ground: &Ground, act: impl Fn(&Home, usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (barrier, act, path) = (&barrier, &act, ground.home.path());
                scope.spawn(move || {
                    let home = Home::open(path).unwrap();
                    barrier.wait();
                    act(&home, number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

type Change = fn(&mut Request);

fn with_key(mut request: Request, key: &str) -> Request {
    request.key = Some(Key::new(key).unwrap());
    request.find = Find::Identical;
    request
}

#[test]
fn one_key_is_admitted_once_however_many_ask() {
    let ground = Ground::new("one-key");
    let counter = ground.file("counter");
    for round in 0..5 {
        let ask = with_key(
            ground.ask_argv(&["sh", "-c", &format!("echo x >> '{}'", counter.display())]),
            &format!("k{round}"),
        );
        let answers = eight(&ground, |home, _| match admit(home, &ask).unwrap() {
            Admitted::New(job) => {
                launch_keeper(&job);
                true
            }
            Admitted::Existing(_) => false,
            Admitted::Removed(_) => panic!("removed"),
        });
        assert_eq!(answers.iter().filter(|new| **new).count(), 1);
    }
    for id in ground.home.jobs().unwrap() {
        let job = ground.home.job(id).unwrap().unwrap();
        wait_for("a receipt", || job.receipt().unwrap());
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "x\n".repeat(5), "each once");
}

#[test]
fn new_calls_that_are_alike_are_each_their_own() {
    let ground = Ground::new("alike");
    let ask = ground.ask(&["exit=0"]);
    let mut ids = eight(&ground, |home, _| match admit(home, &ask).unwrap() {
        Admitted::New(job) => {
            launch_keeper(&job);
            wait_for("a receipt", || job.receipt().unwrap());
            job.id()
        }
        other => panic!("{other:?}"),
    });
    ids.sort_unstable();
    let numbers: Vec<u32> = ids.iter().map(|id| id.number.get()).collect();
    assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
}

#[test]
fn the_same_key_for_another_command_names_what_differs() {
    let ground = Ground::new("conflict");
    let ask = with_key(ground.ask(&["exit=0"]), "k");
    let (run, _) = ground.run(&ask);
    let changes: [(&str, Change); 3] = [
        ("timeout", |request| request.work.limits.deadline = Some(Millis(1))),
        ("env", |request| drop(request.work.env.insert("A".to_owned(), "b".into()))),
        ("merge", |request| request.work.merge = true),
    ];
    for (name, change) in changes {
        let mut other = ask.clone();
        change(&mut other);
        match admit(&ground.home, &other) {
            Err(Refusal::Conflict { job_id, differs }) => {
                assert_eq!((job_id, differs.as_slice()), (run.job.id(), [name].as_slice()))
            }
            answer => panic!("{name}: {answer:?}"),
        }
    }
    assert!(
        matches!(admit(&ground.home, &ask).unwrap(), Admitted::Existing(job) if job.id() == run.job.id())
    );
}

#[test]
fn an_attempt_follows_a_proved_death_alone_and_once() {
    let ground = Ground::new("attempts");
    let mut first = with_key(ground.ask(&["exit=1"]), "k");
    let (run, _) = ground.run(&first);
    first.find = Find::NextAttempt(run.job.id());
    let admitted = eight(&ground, |home, _| match admit(home, &first) {
        Ok(Admitted::New(job)) => {
            launch_keeper(&job);
            Some(job.id())
        }
        Err(Refusal::NotTheLatest { .. }) => None,
        other => panic!("{other:?}"),
    });
    let admitted: Vec<_> = admitted.into_iter().flatten().collect();
    assert_eq!(admitted, [run.job.id().next_attempt()]);
    let second = ground.home.job(admitted[0]).unwrap().unwrap();
    wait_for("a receipt", || second.receipt().unwrap());
    assert!(
        matches!(admit(&ground.home, &first), Err(Refusal::NotTheLatest { latest, .. }) if latest == second.id())
    );
}

#[test]
fn generations_only_grow() {
    let ground = Ground::new("generations");
    let ask = |generation: u64| {
        let mut ask = ground.ask(&["exit=0"]);
        ask.generation = Generation(generation);
        ask
    };
    let (_, receipt) = ground.run(&ask(5));
    assert_eq!(receipt.generation, Generation(5));
    assert!(
        matches!(admit(&ground.home, &ask(4)), Err(Refusal::ClosedGeneration(closed)) if closed.highest == Generation(5))
    );
    // Eight raise it at once; the highest stays.
    eight(&ground, |home, number| {
        if let Ok(Admitted::New(job)) = admit(home, &ask(10 + number as u64)) {
            launch_keeper(&job);
            wait_for("a receipt", || job.receipt().unwrap());
        }
    });
    assert!(
        matches!(admit(&ground.home, &ask(16)), Err(Refusal::ClosedGeneration(closed)) if closed.highest == Generation(17))
    );
}

#[test]
fn settlers_at_once_make_one_receipt() {
    crate::support::be_init();
    let ground = Ground::new("settlers");
    let mut ask = ground.ask(&["say=x", "forever"]);
    ask.work.containment = Some(Boundary::PidNamespace);
    let run = ground.started(&ask);
    kill(run.warden());
    wait_for("the job to be unknown", || (run.state().state == State::Unknown).then_some(()));
    let id = run.job.id();
    let receipts = eight(&ground, |home, _| {
        let job = home.job(id).unwrap().unwrap();
        wait_for("a settled job", || match settle(home, &job, &Settle::Asked).unwrap() {
            Outcome::Settled(receipt) => Some(*receipt),
            Outcome::Busy => None,
            other => panic!("{other:?}"),
        })
    });
    let written = run.job.receipt().unwrap().unwrap();
    assert!(receipts.iter().all(|receipt| *receipt == written), "all saw the one that is written");
    assert!(matches!(written.death, Evidence::PidNamespaceInitGone { .. }));
    let marks = std::fs::metadata(ground.home.path().join("marks")).unwrap().len();
    assert_eq!(marks, 16, "one mark was taken");
}

/// Nobody launched a keeper. After its patience a settler takes the start mark; the keeper that comes then starts
/// nothing and leaves nothing.
#[test]
fn a_keeper_that_comes_after_the_settler_starts_nothing() {
    let ground = Ground::new("late");
    let ran = ground.file("ran");
    let job = ground.admit(&ground.ask(&[format!("touch={}", ran.display())]));
    let receipts = wait_for("the patience to end", || {
        let outcomes = eight(&ground, |home, _| {
            settle(home, &home.job(job.id()).unwrap().unwrap(), &Settle::IfDue).unwrap()
        });
        let settled = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Settled(receipt) => Some(*receipt),
            _ => None,
        });
        Some(settled.collect::<Vec<_>>()).filter(|receipts| !receipts.is_empty())
    });
    let receipt = job.receipt().unwrap().unwrap();
    assert_eq!(receipt.exit, Exit::NotStarted { why: NotStarted::NoKeeper });
    assert!(matches!(receipt.death, Evidence::NeverStarted { .. }));
    assert!(matches!(job.start_mark().unwrap(), Some(StartMark::Settler { .. })));
    assert!(receipts.iter().all(|other| other.exit == receipt.exit && other.death == receipt.death));
    let text = std::fs::read(job.path().join("receipt.json")).unwrap();

    let late = launch_keeper(&job);
    wait_for("the late keeper to go", || ground.processes().is_empty().then_some(()));
    drop(late);
    assert!(!ran.exists(), "it started the command");
    assert_eq!(std::fs::read(job.path().join("receipt.json")).unwrap(), text);
    assert_eq!(
        job.look().unwrap().ledger,
        outlast_core::ledger::Summary::default(),
        "it noted something about a job that is not its own"
    );
}

/// A keeper prepares itself while its job becomes durable. One that never gets leave has started nothing, whatever became of
/// its launcher, and the job is settled as never started.
#[test]
fn a_keeper_without_leave_starts_nothing() {
    crate::support::be_init();
    let ground = Ground::new("no-leave");
    let ran = ground.file("ran");
    let nest = Arc::new(Nest::start(ground.home.path(), Some(&keeper_program())).unwrap());
    let nests = [None, Some(nest)];
    for (nest, mode) in nests.iter().flat_map(|nest| modes().into_iter().map(move |mode| (nest, mode))) {
        let mut ask = ground.ask_argv(&["touch", ran.to_str().unwrap()]);
        ask.work.containment = Some(mode);
        let job = ground.admit(&ask);
        let how = Launch { nest: nest.clone(), ..how() };
        let held = hold(&job, &how).unwrap();
        // It has come as far as it may.
        wait_for("the keeper to listen", || job.path().join("control").exists().then_some(()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(job.start_mark().unwrap().is_none(), "{mode:?}: it took the start mark");
        drop(held);
        wait_for("the keeper to go", || ground.processes().is_empty().then_some(()));
        assert!(job.start_mark().unwrap().is_none() && !ran.exists(), "{mode:?}");
        // Who comes with leave runs it.
        let launched = hold(&job, &how).unwrap().go();
        let receipt = wait_for("a receipt", || job.receipt().unwrap());
        assert_eq!((receipt.exit, ran.exists()), (exited(0), true), "{mode:?}");
        drop(launched);
        std::fs::remove_file(&ran).unwrap();
    }
}

#[test]
fn keepers_at_once_start_one_command() {
    let ground = Ground::new("two-keepers");
    for mode in crate::support::modes() {
        let starts = ground.file(&format!("starts-{}", mode.name()));
        let mut ask =
            ground.ask_argv(&["sh", "-c", &format!("echo x >> '{}'; echo out; exit 3", starts.display())]);
        ask.work.containment = Some(mode);
        let job = ground.admit(&ask);
        let keepers = eight(&ground, |home, _| try_launch(&home.job(job.id()).unwrap().unwrap()));
        let errors: Vec<_> = keepers.iter().filter_map(|keeper| keeper.as_ref().err()).collect();
        assert!(errors.is_empty(), "{mode:?}: {errors:?}");
        let receipt = wait_for("a receipt", || job.receipt().unwrap());
        drop(keepers);
        wait_for("all keepers to go", || ground.processes().is_empty().then_some(()));
        let started = std::fs::read_to_string(&starts).unwrap_or_default();
        match receipt.authority {
            Authority::Keeper => {
                assert_eq!((started.as_str(), &receipt.exit), ("x\n", &exited(3)), "{mode:?}")
            }
            // One of them met the groups of another and could not have its own: nothing was started, and that is said.
            Authority::Settler { .. } => assert_eq!(
                (started.as_str(), &receipt.exit),
                ("", &Exit::NotStarted { why: NotStarted::SetUpFailed })
            ),
        }
        let text = std::fs::read(job.path().join("ledger.jsonl")).unwrap_or_default();
        let ends = String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| line.contains("\"what\":\"drained\""))
            .count();
        assert!(
            ends <= 1,
            "{mode:?}: a keeper that started nothing noted an end of output\n{}",
            ground.story()
        );
    }
}

/// The winner loses its warden; the loser, that waited for it, must not speak of the winner's output.
#[test]
fn a_second_keeper_says_nothing_of_the_output_of_a_lost_first() {
    crate::support::be_init();
    let ground = Ground::new("second-keeper");
    let go = ground.file("go");
    let mut ask = ground.ask(&["say=precious".to_owned(), format!("wait={}", go.display())]);
    ask.work.containment = Some(Boundary::PidNamespace);
    let run = ground.started(&ask);
    let second = launch_keeper(&run.job);
    let mut random = Random::new("second-keeper");
    std::thread::sleep(Duration::from_millis(20 + random.below(30)));
    kill(run.warden());
    std::fs::write(&go, "").unwrap();
    wait_for("both keepers to go", || ground.processes().is_empty().then_some(()));
    drop(second);
    let Outcome::Settled(receipt) = settle_now(&ground, &run, &Settle::Asked) else {
        panic!("{}", ground.story())
    };
    assert_eq!(receipt.output.final_cursor.0, 9, "{:?}", receipt.output);
    assert_eq!(run.output().text(), "precious\n");
}

#[test]
fn stops_at_once_end_a_job_once() {
    let ground = Ground::new("stops-at-once");
    let run = ground.started(&ground.ask(&["on-term", "forever"]));
    wait_for("its handler", || {
        let command = *run.command_processes().first()?;
        let status = std::fs::read_to_string(format!("/proc/{command}/status")).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim().to_owned();
        (u64::from_str_radix(&caught, 16).ok()? & (1 << 14) != 0).then_some(())
    });
    let id = run.job.id();
    eight(&ground, |home, number| {
        let job = home.job(id).unwrap().unwrap();
        control::stop(&job, &stop_request(&job, &format!("s{number}"), false), Duration::from_secs(20))
            .unwrap()
    });
    let receipt = run.settled();
    assert_eq!(receipt.exit, exited(7));
    let terms =
        run.ledger().iter().filter(|record| matches!(record, Record::Signaled { signal: 15, .. })).count();
    assert_eq!(terms, 1);
}
