//! What a settler, a keeper or a collector must not take for its own: pids of another namespace, marks of another job,
//! ids that were used before.

use crate::support::{Ground, Run, be_init, in_all_modes, keeper_program, kill, lives, settle_now, wait_for};
use outlast_core::id::Key;
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_hand::admit::Find;
use outlast_hand::launch::{Launch, launch};
use outlast_hand::settle::{Outcome, Settle};
use outlast_hand::{clock, gc};

fn attested(ground: &Ground, run: &Run) {
    let outcome = settle_now(ground, run, &Settle::Attest { name: "a tester".to_owned() });
    assert!(matches!(outcome, Outcome::Attested(_) | Outcome::Settled(_)), "{outcome:?}");
}

#[test]
fn pids_of_another_namespace_prove_nothing_and_are_not_signalled() {
    be_init();
    in_all_modes("namespace", |ground, mode| {
        let run = ground.staying_with(&[], |ask| ask.work.containment = Some(mode));
        let command = *run.command_processes().first().unwrap();
        // Not the namespace's init, which would take the command with it.
        let (warden, scribe) = (run.warden(), run.scribe());
        kill(warden);
        kill(scribe);
        wait_for("the keeper to be gone", || (!lives(warden) && !lives(scribe)).then_some(()));
        // As if its keeper had been in another namespace, where these numbers are other processes.
        let path = run.job.path().join("start.json");
        let there = std::fs::read_to_string(&path).unwrap();
        let own = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid").unwrap());
        let elsewhere = there.replace(&format!("\"pid_namespace\":{own}"), "\"pid_namespace\":1");
        assert_ne!(there, elsewhere);
        std::fs::write(&path, elsewhere).unwrap();
        let outcome = settle_now(ground, &run, &Settle::Asked);
        assert!(
            matches!(&outcome, Outcome::StillUnknown { why } if why.contains("namespace")),
            "{outcome:?}"
        );
        assert!(lives(command), "nothing was signalled");
        assert_eq!(run.state().state, State::Unknown);
        std::fs::write(&path, there).unwrap();
        settle_now(ground, &run, &Settle::Asked);
        wait_for("its end", || (!lives(command)).then_some(()));
        attested(ground, &run);
    });
}

#[test]
fn a_job_does_not_carry_the_marks_of_the_job_that_started_it() {
    let ground = Ground::new("marks");
    let job = ground.admit(&ground.ask(&["forever"]));
    let mut environment: Vec<(std::ffi::OsString, std::ffi::OsString)> =
        vec![("PATH".into(), "/usr/bin:/bin".into()), ("KEPT".into(), "1".into())];
    for mark in ["OUTLAST_JOB_ID", "OUTLAST_PROGRESS", "OUTLAST_CHECKPOINT", "OUTLAST_STAGES"] {
        environment.push((mark.into(), "of-the-outer-job".into()));
    }
    let how = Launch { watch_output: false, program: Some(keeper_program()), environment, nest: None };
    let run = Run { watch: launch(&job, &how).unwrap().watch, job, said: Default::default() };
    let command = wait_for("the command", || run.command_processes().first().copied());
    let environ = wait_for("its environment", || {
        let text = std::fs::read_to_string(format!("/proc/{}/environ", command.as_raw_nonzero())).ok()?;
        text.contains("KEPT=1").then_some(text)
    });
    assert!(environ.contains(&format!("OUTLAST_JOB_ID={}", run.job.id())), "{environ:?}");
    assert!(!environ.contains("of-the-outer-job"), "{environ:?}");
    for keeper in run.keepers() {
        // Only root may look.
        let seen = std::fs::read_to_string(format!("/proc/{}/environ", keeper.as_raw_nonzero()));
        assert!(!seen.unwrap_or_default().contains("of-the-outer-job"));
    }
    run.stop("end", true);
    run.settled();
}

#[test]
fn a_warden_that_dies_before_its_first_word_does_not_take_the_output_with_it() {
    be_init();
    in_all_modes("first-word", |ground, mode| {
        if mode == Boundary::PidNamespace {
            // The command's parent is the namespace's init there, which it cannot kill.
            return;
        }
        let script = "kill -9 $PPID; echo still; sleep 0.2; echo done";
        let mut ask = ground.ask_argv(&["/bin/sh", "-c", script]);
        ask.work.containment = Some(mode);
        let run = ground.start(&ask);
        let output = wait_for("the end of output", || run.job.look().unwrap().ledger.drained);
        assert_eq!(output.final_cursor.0, 11);
        assert_eq!(run.output().stdout, b"still\ndone\n");
        wait_for("the scribe to finish", || run.keepers().is_empty().then_some(()));
        assert_eq!(run.state().state, State::Unknown);
        attested(ground, &run);
    });
}

#[test]
fn what_was_collected_is_not_run_again_under_its_old_name() {
    be_init();
    let ground = Ground::new("collected");
    let plain = ground.ask(&["exit=0"]);
    let (first, _) = ground.run(&plain);
    let keyed = ground.staying_with(&[], |ask| {
        ask.key = Some(Key::new("k").unwrap());
        ask.find = Find::Identical;
    });
    keyed.keepers().iter().for_each(|keeper| kill(*keeper));
    wait_for("the keeper to be gone", || keyed.keepers().is_empty().then_some(()));
    settle_now(&ground, &keyed, &Settle::Asked);
    attested(&ground, &keyed);
    let collected = gc::collect(&ground.home, clock::unix_now(), Millis(0)).unwrap();
    assert_eq!(collected.removed, [first.job.id()]);
    assert!(ground.home.job(keyed.job.id()).unwrap().is_some(), "an attested job still answers its key");
    let again = ground.admit(&plain);
    assert_eq!(again.id().call, first.job.id().call);
    assert!(again.id().number > first.job.id().number, "{} is not used twice", first.job.id());
    let run =
        Run { watch: crate::support::launch_keeper(&again).watch, job: again, said: Default::default() };
    run.settled();
}
