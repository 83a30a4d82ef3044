//! Keepers that are lost: scribes, wardens, both, at every moment.
//!
//! A lost scribe is replaced, and the job ends as if nothing had happened but for a stated gap. A lost warden leaves
//! the job unknown: output is drained on, nothing new is admitted in its workspace, and only what proves its death
//! settles it.

use crate::support::{
    Ground, Random, Run, be_init, exited, in_all_modes, kill, launch_keeper, lives, settle_now, wait_for,
};
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Cause, Exit};
use outlast_core::ledger::Record;
use outlast_core::receipt::{Authority, Drain, OutputHash, Receipt};
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Refusal, admit};
use outlast_hand::control::StopAnswer;
use outlast_hand::settle::{Outcome, Settle, settle};
use rustix::process::{Signal, kill_process};
use std::time::{Duration, Instant};

// ---- the scribe

/// What must hold of a job whose scribe was lost while output may have been under way.
fn assert_scribe_replaced(run: &Run, receipt: &Receipt) {
    assert_eq!(receipt.authority, Authority::Keeper);
    let restarts =
        run.ledger().iter().filter(|record| matches!(record, Record::ScribeRestarted { .. })).count();
    assert!(restarts > 0);
    assert!(matches!(receipt.output.hash, OutputHash::Unknown { .. }), "{:?}", receipt.output.hash);
    assert!(receipt.output.gaps.iter().any(|gap| gap.cause == "scribe_lost"), "{:?}", receipt.output.gaps);
    // A reader is shown once what several scribes lost at the same place.
    let mut gaps = receipt.output.gaps.clone();
    gaps.dedup();
    let mut seen = run.output().gaps;
    seen.dedup();
    assert_eq!(seen, gaps);
}

/// Lines that `chatter` wrote: all whole ones are in order, and what is missing was missing in one piece.
fn assert_lines_in_order(text: &str, total: usize, gaps: usize) {
    let numbers: Vec<usize> =
        text.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
    assert!(numbers.is_sorted(), "out of order");
    let jumps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert!(jumps <= gaps, "{jumps} jumps, {gaps} gaps stated");
    assert_eq!(numbers.last(), Some(&(total - 1)), "the end is there");
}

#[test]
fn a_scribe_that_is_killed_is_replaced_and_the_job_ends_as_it_would() {
    in_all_modes("scribe", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[
            "say=before",
            "chatter=300",
            &format!("wait={}", go.display()),
            "say=after",
            "err=after",
            "exit=3",
        ]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        let mut random = Random::new("scribe");
        for _ in 0..3 {
            let scribe = run.scribe();
            std::thread::sleep(Duration::from_millis(random.below(60)));
            kill(scribe);
            wait_for("another scribe", || run.scribe_now().filter(|now| *now != scribe));
        }
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), receipt.cause.clone()), (exited(3), Cause::OwnEnd));
        assert_scribe_replaced(&run, &receipt);
        assert_eq!(receipt.output.drain, Drain::Complete);
        let seen = run.output();
        assert!(
            seen.text().ends_with("after\n") && String::from_utf8_lossy(&seen.stderr) == "after\n",
            "{}",
            seen.text()
        );
        assert_lines_in_order(&seen.text(), 300, receipt.output.gaps.len());
    });
}

#[test]
fn a_scribe_that_is_lost_before_any_output_changes_nothing() {
    in_all_modes("scribe-idle", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[format!("wait={}", go.display()), "exit=0".into()]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        let scribe = run.scribe();
        kill(scribe);
        wait_for("another scribe", || run.scribe_now().filter(|now| *now != scribe));
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!(
            (receipt.exit, receipt.cause, receipt.authority),
            (exited(0), Cause::OwnEnd, Authority::Keeper)
        );
    });
}

/// The record of the TERM is with the scribe when it dies. What is told to its successor must not read as a KILL out
/// of the blue.
#[test]
fn a_scribe_that_dies_with_a_stop_in_its_hands() {
    in_all_modes("scribe-stop", |ground, mode| {
        let ready = ground.file("ready");
        let mut ask =
            ground.ask(&["ignore=TERM".to_owned(), format!("touch={}", ready.display()), "forever".into()]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        run.until_file(&ready);
        let scribe = run.scribe();
        kill_process(scribe, Signal::STOP).unwrap();
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        kill(scribe);
        let receipt = run.settled();
        assert_eq!(receipt.exit, Exit::Signaled { signal: 9, core_dumped: false });
        assert_eq!(
            (receipt.cause, receipt.stops),
            (Cause::Stop { id: "s1".to_owned() }, vec!["s1".to_owned()])
        );
        ground.verified();
    });
}

/// The tree is dead, the pipe is held by somebody outside, the scribe waits for the drain time: now it dies.
#[test]
fn a_scribe_that_dies_while_it_drains() {
    in_all_modes("scribe-drain", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[format!("wait={}", go.display()), "say=x".into(), "exit=1".into()]);
        ask.work.containment = Some(mode);
        ask.manner.drain = Millis(1500);
        let run = ground.started(&ask);
        let command = wait_for("the command", || run.command_processes().first().copied());
        let held = std::fs::OpenOptions::new().write(true).open(format!("/proc/{command}/fd/1")).unwrap();
        std::fs::write(&go, "").unwrap();
        wait_for("its death", || {
            run.ledger().iter().any(|record| matches!(record, Record::Dead { .. })).then_some(())
        });
        kill(run.scribe());
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), receipt.authority.clone()), (exited(1), Authority::Keeper));
        assert!(matches!(receipt.output.drain, Drain::Incomplete { .. }), "{:?}", receipt.output.drain);
        assert_scribe_replaced(&run, &receipt);
        drop(held);
        ground.verified();
    });
}

#[test]
fn scribes_that_die_as_fast_as_they_come_cannot_keep_a_job_from_its_end() {
    let ground = Ground::new("scribe-again");
    let mut ask = ground.ask(&["chatter=100000"]);
    ask.work.limits.deadline = Some(Millis(1500));
    let run = ground.started(&ask);
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        run.scribe_now().into_iter().for_each(kill);
    }
    // Now one is let live; by then the tree has been ended, for that needs no scribe.
    assert_eq!(run.command_processes(), []);
    let receipt = run.settled();
    assert_eq!(receipt.cause, Cause::Deadline { after_ms: 1500 });
    assert_scribe_replaced(&run, &receipt);
}

// ---- the warden

fn kill_warden(run: &Run) {
    kill(run.warden());
    wait_for("the job to be unknown", || (run.state().state == State::Unknown).then_some(()));
}

/// What a settler may say of a job whose warden is gone and whose tree has ended, by its boundary.
#[track_caller]
fn assert_settled_as_far_as_proof_goes(outcome: &Outcome, mode: Boundary) -> Option<Receipt> {
    match (outcome, mode) {
        (Outcome::Settled(receipt), Boundary::PidNamespace) => {
            assert!(matches!(receipt.death, Evidence::PidNamespaceInitGone { .. }), "{:?}", receipt.death);
            assert!(matches!(receipt.authority, Authority::Settler { .. }));
            Some((**receipt).clone())
        }
        (Outcome::StillUnknown { .. }, Boundary::Cgroup2Subreaper | Boundary::Subreaper) => None,
        other => panic!("{other:?}"),
    }
}

/// A person's word, where nothing else will do: the ground may then be left.
fn attest(ground: &Ground, run: &Run) {
    if run.job.receipt().unwrap().is_none() {
        wait_for("its keeper to be gone", || run.keepers().is_empty().then_some(()));
        let outcome = settle_now(ground, run, &Settle::Attest { name: "a tester".to_owned() });
        let Outcome::Attested(attestation) = outcome else { panic!("{outcome:?}") };
        assert_eq!(attestation.name, "a tester");
        assert!(attestation.seen.is_empty(), "{:?}", attestation.seen);
    }
}

#[test]
fn without_a_warden_output_is_drained_to_its_end_and_the_exit_is_never_made_up() {
    be_init();
    in_all_modes("warden", |ground, mode| {
        let go = ground.file("go");
        let mut ask = ground.ask(&[
            "say=before",
            &format!("wait={}", go.display()),
            "spew=3000000",
            "err=after",
            "exit=3",
        ]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        kill_warden(&run);
        std::fs::write(&go, "").unwrap();
        let output = wait_for("the end of output", || run.job.look().unwrap().ledger.drained);
        assert_eq!(output.drain, Drain::Complete);
        let seen = run.output();
        let mut expected = b"before\n".to_vec();
        expected.extend(crate::support::spewed(3_000_000));
        assert_eq!(
            (seen.stdout == expected, seen.stderr.as_slice(), seen.end),
            (true, b"after\n".as_slice(), output.final_cursor.0)
        );
        assert_eq!(output.hash, OutputHash::Blake3 { value: blake3::hash(&seen.all).to_hex().to_string() });
        wait_for("the scribe to finish", || run.scribe_of_nobody().is_none().then_some(()));

        let exit = run.job.look().unwrap().ledger.exited.map(|(_, exit)| exit);
        match mode {
            // Linux 6.15 tells whoever held the pidfd.
            Boundary::Cgroup2Subreaper | Boundary::Subreaper => assert_eq!(exit, Some(exited(3))),
            // What is known to the settler is the end of the namespace's init, which is not the command's.
            Boundary::PidNamespace => assert!(
                matches!(exit, None | Some(Exit::Unknown { .. }) | Some(Exit::Exited { code: 3 })),
                "{exit:?}"
            ),
        }
        assert_eq!(run.state().state, State::Unknown);
        let outcome = settle_now(ground, &run, &Settle::IfDue);
        if let Some(receipt) = assert_settled_as_far_as_proof_goes(&outcome, mode) {
            assert!(
                matches!(receipt.exit, Exit::Unknown { .. } | Exit::Exited { code: 3 }),
                "{:?}",
                receipt.exit
            );
            assert_eq!((receipt.cause, receipt.output.drain), (Cause::KeeperLost, Drain::Complete));
        }
        ground.verified();
        attest(ground, &run);
    });
}

#[test]
fn an_unknown_job_closes_its_workspace_until_it_is_settled() {
    be_init();
    in_all_modes("workspace", |ground, mode| {
        let inner = ground.file("work/inner");
        std::fs::create_dir(&inner).unwrap();
        let bytes =
            |path: &std::path::Path| outlast_core::bytes::Bytes(path.as_os_str().as_encoded_bytes().to_vec());
        let mut ask = ground.ask(&["say=x", "forever"]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        kill_warden(&run);
        let refused = |find: Find, workspace: &std::path::Path| {
            let mut other = ground.ask(&["exit=0"]);
            other.work.containment = Some(mode);
            other.find = find;
            other.manner.workspace = bytes(workspace);
            match admit(&ground.home, &other) {
                Ok(Admitted::New(job)) => Ok(job),
                Ok(other) => panic!("{other:?}"),
                Err(refusal) => Err(refusal),
            }
        };
        for workspace in [ground.file("work"), inner.clone(), ground.dir.clone()] {
            let refusal = refused(Find::New, &workspace);
            assert!(
                matches!(refusal, Err(Refusal::WorkspaceUnknown { job_id }) if job_id == run.job.id()),
                "{workspace:?}: {refusal:?}"
            );
        }
        assert!(matches!(
            refused(Find::NextAttempt(run.job.id()), &inner),
            Err(Refusal::NotProvedDead { .. })
        ));
        // The same call attaches, and nothing is started.
        let mut same = ask.clone();
        same.find = Find::Identical;
        assert!(
            matches!(admit(&ground.home, &same), Ok(Admitted::Existing(job)) if job.id() == run.job.id())
        );
        // Somewhere else work goes on.
        let elsewhere = ground.file("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let job = refused(Find::New, &elsewhere).unwrap();
        let other = launch_keeper(&job);
        wait_for("a receipt", || job.receipt().unwrap());
        drop(other);
        assert!(
            run.command_processes().iter().any(|command| lives(*command)),
            "before its deadline it is left alone"
        );

        let outcome = settle_now(ground, &run, &Settle::Asked);
        assert_eq!(run.command_processes(), [], "its tree was ended");
        if let Some(receipt) = assert_settled_as_far_as_proof_goes(&outcome, mode) {
            assert!(
                matches!(receipt.exit, Exit::Unknown { .. } | Exit::Signaled { signal: 15, .. }),
                "{:?}",
                receipt.exit
            );
        }
        assert_eq!(run.output().text(), "x\n");
        if mode != Boundary::PidNamespace {
            assert!(
                matches!(refused(Find::New, &inner), Err(Refusal::WorkspaceUnknown { .. })),
                "an emptied cgroup proves nothing"
            );
        }
        attest(ground, &run);
        let job = refused(Find::New, &inner).unwrap();
        launch_keeper(&job);
        wait_for("a receipt", || job.receipt().unwrap());
        let mut again = ask.clone();
        again.find = Find::NextAttempt(run.job.id());
        again.work.limits.deadline = Some(Millis(100));
        let second = ground.admit(&again);
        assert_eq!(second.id(), run.job.id().next_attempt());
        launch_keeper(&second);
        wait_for("a receipt", || second.receipt().unwrap());
    });
}

#[test]
fn a_warden_that_is_lost_while_it_stops_a_job_leaves_the_reason() {
    be_init();
    in_all_modes("warden-stop", |ground, mode| {
        let run = ground.staying_with(&["ignore=TERM"], |ask| {
            ask.work.containment = Some(mode);
            ask.manner.grace = Millis(60_000);
        });
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        wait_for("a note of it", || run.job.look().unwrap().ledger.ending.map(drop));
        kill_warden(&run);
        assert!(!run.command_processes().is_empty());
        // The settler gives the grace again; this test does not want to wait for all of it.
        run.command_processes().into_iter().for_each(kill);
        let outcome = settle_now(ground, &run, &Settle::Asked);
        if let Some(receipt) = assert_settled_as_far_as_proof_goes(&outcome, mode) {
            assert_eq!(
                (receipt.cause, receipt.stops),
                (Cause::Stop { id: "s1".to_owned() }, vec!["s1".to_owned()])
            );
        }
        assert_eq!(run.command_processes(), []);
        attest(ground, &run);
    });
}

#[test]
fn a_scribe_that_hangs_cannot_keep_a_tree_from_its_deadline() {
    in_all_modes("scribe-hangs", |ground, mode| {
        let run = ground.staying_with(&["say=x", "on-term"], |ask| {
            ask.work.containment = Some(mode);
            ask.work.limits.deadline = Some(Millis(600));
        });
        let scribe = run.scribe();
        kill_process(scribe, Signal::STOP).unwrap();
        wait_for("its deadline", || run.command_processes().is_empty().then_some(()));
        assert!(run.job.receipt().unwrap().is_none());
        kill_process(scribe, Signal::CONT).unwrap();
        let receipt = run.settled();
        assert_eq!(
            (receipt.exit.clone(), receipt.cause.clone()),
            (exited(7), Cause::Deadline { after_ms: 600 })
        );
        assert_eq!(run.whole_output(&receipt).text(), "x\nlast words\n");
    });
}

#[test]
fn past_its_deadline_a_job_without_warden_is_ended_by_whoever_looks() {
    be_init();
    in_all_modes("overdue", |ground, mode| {
        let mut ask = ground.ask(&["ignore=TERM", "orphan=setsid,ignore=TERM,forever", "forever"]);
        ask.work.containment = Some(mode);
        ask.work.limits.deadline = Some(Millis(700));
        ask.manner.grace = Millis(100);
        let run = ground.started(&ask);
        kill_warden(&run);
        let outcome = wait_for("its deadline", || {
            let outcome = settle(&ground.home, &run.job, &Settle::IfDue).unwrap();
            run.command_processes().is_empty().then_some(outcome)
        });
        assert_settled_as_far_as_proof_goes(&outcome, mode);
        attest(ground, &run);
    });
}

#[test]
fn with_warden_and_scribe_gone_what_was_lost_is_stated() {
    be_init();
    in_all_modes("both", |ground, mode| {
        let ready = ground.file("ready");
        let mut ask = ground.ask(&[
            "say=kept",
            "sleep=700",
            &format!("touch={}", ready.display()),
            "chatter=100000",
            "forever",
        ]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        run.until_file(&ready);
        wait_for("output", || run.output().text().contains("line").then_some(()));
        let (warden, scribe) = (run.warden(), run.scribe());
        kill_process(scribe, Signal::STOP).unwrap();
        // What is written now is in the pipe, and goes with it.
        std::thread::sleep(Duration::from_millis(50));
        kill(warden);
        kill(scribe);
        wait_for("the job to be unknown", || (run.state().state == State::Unknown).then_some(()));
        let outcome = settle_now(ground, &run, &Settle::Asked);
        assert_eq!(run.command_processes(), []);
        if let Some(receipt) = assert_settled_as_far_as_proof_goes(&outcome, mode) {
            assert!(matches!(receipt.output.drain, Drain::Lost { .. }), "{:?}", receipt.output.drain);
            assert!(
                matches!(receipt.output.hash, OutputHash::Unknown { .. }) || !receipt.output.gaps.is_empty(),
                "output was lost with the pipe, so nobody knows its hash: {:?}",
                receipt.output
            );
        }
        assert!(run.output().text().starts_with("kept\nline 000000\n"));
        attest(ground, &run);
    });
}

#[test]
fn everything_is_killed_at_random_moments() {
    be_init();
    in_all_modes("random", |ground, mode| {
        let mut random = Random::new("everything_is_killed_at_random_moments");
        for _ in 0..12 {
            let mut ask = ground.ask(&["say=a", "chatter=20", "orphan=say=b", "exit=3"]);
            ask.work.containment = Some(mode);
            let run = ground.start(&ask);
            let delay = Duration::from_micros(random.below(45_000));
            std::thread::sleep(delay);
            let victims = match random.below(4) {
                0 => run.keepers(),
                1 => run.command_processes(),
                2 => run.keepers().into_iter().take(1).collect(),
                _ => [run.keepers(), run.command_processes()].concat(),
            };
            victims.iter().for_each(|victim| kill(*victim));
            let receipt = wait_for("an end", || {
                if let Some(receipt) = run.job.receipt().unwrap() {
                    return Some(Some(receipt));
                }
                let unknown = run.state().state == State::Unknown;
                match unknown.then(|| settle(&ground.home, &run.job, &Settle::Asked).unwrap()) {
                    // A namespace's init proves a death only where its birth was noted.
                    Some(Outcome::StillUnknown { .. })
                        if mode != Boundary::PidNamespace
                            || run.job.look().unwrap().ledger.started.is_none() =>
                    {
                        Some(None)
                    }
                    _ => None,
                }
            });
            if let Some(receipt) = receipt {
                let honest = match (&receipt.exit, &receipt.death) {
                    (Exit::NotStarted { .. }, death) => matches!(death, Evidence::NeverStarted { .. }),
                    (Exit::Exited { code }, _) => *code == 3,
                    (Exit::Signaled { signal, .. }, _) => [9, 15, 13].contains(signal),
                    (Exit::Unknown { .. }, _) => true,
                    (Exit::ExecFailed { .. }, _) => false,
                };
                assert!(honest, "{receipt:?}");
            }
            assert_eq!(run.command_processes(), [], "after {delay:?}");
            ground.verified();
            attest(ground, &run);
        }
    });
}

/// Killed before it has the start mark, a keeper has started nothing, and the job is settled so.
#[test]
fn a_keeper_that_dies_before_its_start_mark_started_nothing() {
    let ground = Ground::new("unborn");
    let ran = ground.file("ran");
    let mut random = Random::new("unborn");
    let mut jobs = Vec::new();
    for number in 0..20 {
        let mut ask = ground.ask(&[format!("touch={}", ran.display())]);
        // Each a workspace of its own, or the first unknown one would refuse the others.
        ask.manner.workspace = format!("/nonexistent/{number}").as_str().into();
        let job = ground.admit(&ask);
        launch_keeper(&job);
        std::thread::sleep(Duration::from_micros(random.below(1500)));
        wait_for("all to be killed", || {
            let processes = ground.processes();
            processes.iter().for_each(|process| kill(*process));
            processes.is_empty().then_some(())
        });
        jobs.push((job.start_mark().unwrap().is_some(), job));
        if ran.exists() {
            assert!(jobs.last().unwrap().0, "it was started without a start mark");
            std::fs::remove_file(&ran).unwrap();
        }
    }
    eprintln!(
        "{} of 20 were killed before the start mark",
        jobs.iter().filter(|(marked, _)| !marked).count()
    );
    for (marked, job) in &jobs {
        // Without a mark, the patience for a keeper that may still come.
        let receipt = wait_for("an end", || match settle(&ground.home, job, &Settle::IfDue).unwrap() {
            Outcome::Settled(receipt) => Some(Some(*receipt)),
            Outcome::StillUnknown { .. } => Some(None),
            Outcome::Busy | Outcome::KeeperLives => None,
            Outcome::Attested(_) => panic!("nobody attested"),
        });
        match receipt {
            None => drop(settle(&ground.home, job, &Settle::Attest { name: "a tester".to_owned() }).unwrap()),
            Some(receipt) if *marked => assert_eq!(receipt.authority, Authority::Keeper),
            Some(receipt) => assert!(matches!(receipt.death, Evidence::NeverStarted { .. })),
        }
    }
    assert!(!ran.exists());
}
