//! A machine that was restarted. `OUTLAST_TEST_BOOT_ID` pretends it, in builds with debug assertions.

use crate::support::{Ground, at_once, kill, wait_for};
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Cause, Exit};
use outlast_core::receipt::Drain;
use outlast_core::status::State;
use outlast_hand::admit::{Admitted, Find, admit};
use outlast_hand::settle::{Outcome, Settle, settle};
use std::process::Command;

/// The part that runs in the next boot. A process has one environment, so it is this test in a process of its own.
const NEXT_BOOT: &str = "OUTLAST_TEST_BOOT_ID";

#[test]
fn after_a_restart_every_job_is_settled_by_it() {
    if let Some(folder) = std::env::var_os("OUTLAST_TORTURE_NEXT_BOOT") {
        in_the_next_boot(Ground::in_dir(folder.into()));
        return;
    }
    let ground = Ground::new("reboot");
    ground.unverified.store(true, std::sync::atomic::Ordering::Relaxed);
    let rows: Vec<_> = crate::support::modes();
    at_once(&rows, |mode| {
        let mut ask = ground.ask(&["say=kept", "forever"]);
        ask.work.containment = Some(*mode);
        let run = ground.started(&ask);
        wait_for("its output", || (run.job.committed().unwrap().0 == 5).then_some(()));
    });
    // What a power cut does to processes.
    ground.processes().into_iter().for_each(kill);
    wait_for("all to be gone", || ground.processes().is_empty().then_some(()));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reboot::after_a_restart_every_job_is_settled_by_it", "--nocapture"])
        .env("OUTLAST_TORTURE_NEXT_BOOT", &ground.dir)
        .env(NEXT_BOOT, "00000000-0000-4000-8000-000000000002")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn in_the_next_boot(ground: Ground) {
    let ids = ground.home.jobs().unwrap();
    assert_eq!(ids.len(), crate::support::modes().len());
    for id in &ids {
        let job = ground.home.job(*id).unwrap().unwrap();
        assert_eq!(outlast_core::status::project(&job.look().unwrap()).state, State::Unknown);
    }
    for id in ids {
        let job = ground.home.job(id).unwrap().unwrap();
        let Outcome::Settled(receipt) = settle(&ground.home, &job, &Settle::IfDue).unwrap() else {
            panic!("not settled")
        };
        assert!(matches!(receipt.exit, Exit::Unknown { .. }), "{:?}", receipt.exit);
        assert_eq!(receipt.cause, Cause::Reboot);
        assert!(
            matches!(&receipt.death, Evidence::BootChanged { started_in, settled_in } if started_in != settled_in)
        );
        assert!(matches!(receipt.output.drain, Drain::Lost { .. }));
        assert_eq!(receipt.output.final_cursor.0, 5);

        let mut ask = ground.ask(&["exit=0"]);
        ask.work.containment = job.spec().work.containment;
        ask.find = Find::NextAttempt(id);
        let Ok(Admitted::New(second)) = admit(&ground.home, &ask) else { panic!("no second attempt") };
        assert_eq!(second.id(), id.next_attempt());
        crate::support::launch_keeper(&second);
        wait_for("a receipt", || second.receipt().unwrap());
    }
    ground.verified();
}
