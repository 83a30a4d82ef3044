//! Ways out of a boundary, and processes that do not die when they are killed.

use crate::as_root;
use crate::support::{all_processes, exited, lives, stat_of, wait_for};
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Cause, Exit};
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_hand::control::{Say, StopAnswer};
use rustix::process::Pid;
use std::path::{Path, PathBuf};

const UNIFIED: &str = "/sys/fs/cgroup/unified";
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// The mount of the unified hierarchy, wherever this machine has it.
fn unified() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup2 mount");
    PathBuf::from(line.split(' ').nth(4).unwrap_or(UNIFIED))
}

#[test]
fn who_leaves_the_cgroup_is_ended_and_reaped_all_the_same() {
    let root = unified().display().to_string();
    for leader_leaves in [false, true] {
        let ground = as_root("escape");
        let (out, ready) = (ground.file("out"), ground.file("ready"));
        let escape = format!("escape={root}");
        let mut deeds = vec![
            format!("orphan=setsid,ignore=TERM,escape={root},touch={},forever", out.display()),
            format!("wait={}", out.display()),
        ];
        if leader_leaves {
            deeds.extend(["ignore=TERM".to_owned(), escape]);
        }
        deeds.extend([format!("touch={}", ready.display()), "forever".to_owned()]);
        let mut ask = ground.ask(&deeds);
        ask.work.containment = Some(Boundary::Cgroup2Subreaper);
        ask.manner.grace = outlast_core::time::Millis(100);
        let run = ground.started(&ask);
        run.until_file(&ready);
        let escapees = run.command_processes();
        assert_eq!(escapees.len(), 2);
        let leaf = ground.cgroups()[0].join(format!("{}-command", run.job.id()));
        let inside = std::fs::read_to_string(leaf.join("cgroup.procs")).unwrap();
        assert_eq!(inside.lines().count(), usize::from(!leader_leaves), "it has left its leaf");
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        let receipt = run.settled();
        assert!(!escapees.iter().any(|process| lives(*process)), "proved dead, and alive");
        let signal = if leader_leaves { 9 } else { 15 };
        assert_eq!(receipt.exit, Exit::Signaled { signal, core_dumped: false });
        assert!(
            matches!(receipt.death, Evidence::CgroupEmptyAndReaped { reaped, .. } if reaped >= 2),
            "{:?}",
            receipt.death
        );
    }
}

/// An empty leaf alone proves nothing: the leader is gone, the leaf is empty, the escapee lives and is waited for.
#[test]
fn an_empty_leaf_is_no_proof_while_an_escapee_lives() {
    let ground = as_root("escape-alive");
    let out = ground.file("out");
    let mut ask = ground.ask(&[
        format!("orphan=setsid,escape={},touch={},forever", unified().display(), out.display()),
        format!("wait={}", out.display()),
        "exit=0".to_owned(),
    ]);
    ask.work.containment = Some(Boundary::Cgroup2Subreaper);
    ask.manner.linger = outlast_core::time::Millis(60_000);
    let run = ground.started(&ask);
    run.until_said("its exit", |say| *say == Say::Exited { exit: exited(0) });
    let leaf = ground.cgroups()[0].join(format!("{}-command", run.job.id()));
    wait_for("an empty leaf", || {
        std::fs::read_to_string(leaf.join("cgroup.events")).ok()?.contains("populated 0").then_some(())
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(run.job.receipt().unwrap().is_none(), "settled while the escapee lives");
    let escapee = run.command_processes()[0];
    assert!(lives(escapee));
    run.stop("s1", false);
    let receipt = run.settled();
    assert!(!lives(escapee));
    assert_eq!((receipt.exit, receipt.cause), (exited(0), Cause::OwnEnd));
}

/// Thaws and removes its group, whatever becomes of the test.
struct Frozen(PathBuf);

impl Frozen {
    fn new(name: &str, processes: &[Pid]) -> Frozen {
        let group = Path::new(FREEZER).join(format!("torture-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).expect("a freezer hierarchy of version 1");
        let frozen = Frozen(group);
        for process in processes {
            std::fs::write(frozen.0.join("cgroup.procs"), process.to_string()).unwrap();
        }
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        wait_for("it to freeze", || {
            (std::fs::read_to_string(frozen.0.join("freezer.state")).unwrap().trim() == "FROZEN")
                .then_some(())
        });
        frozen
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        wait_for("its group to be empty", || std::fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn what_is_killed_and_does_not_die_is_stopping_until_it_does() {
    for mode in [Boundary::Cgroup2Subreaper, Boundary::Subreaper, Boundary::PidNamespace] {
        let ground = as_root("frozen");
        let run = ground.staying_with(&["say=x"], |ask| {
            ask.work.containment = Some(mode);
            ask.manner.grace = outlast_core::time::Millis(50);
        });
        let command = run.command_processes();
        let frozen = Frozen::new(&format!("{}-{}", mode.name(), run.job.id()), &command);
        assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        run.until_said("that it is being ended", |say| matches!(say, Say::Ending { .. }));
        wait_for("KILL", || {
            let killed =
                |record: &_| matches!(record, outlast_core::ledger::Record::Signaled { signal: 9, .. });
            run.ledger().iter().any(killed).then_some(())
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(run.state().state, State::Stopping, "{:?}", run.state());
        assert!(run.job.receipt().unwrap().is_none(), "settled, and frozen: {:?}", run.job.receipt());
        assert!(command.iter().all(|process| lives(*process)));
        assert_eq!(run.stop("s1", true), StopAnswer::Accepted, "the keeper still answers");
        frozen.thaw();
        let receipt = run.settled();
        assert!(!command.iter().any(|process| lives(*process)));
        assert_eq!(receipt.cause, Cause::Stop { id: "s1".to_owned() });
        assert_eq!(run.whole_output(&receipt).text(), "x\n");
    }
}

/// Inside its PID namespace the pids of a job are used again and again; nothing of ours goes by a bare pid.
#[test]
fn pids_that_are_used_again_confuse_nobody() {
    let ground = as_root("pid-reuse");
    // Every child gets the same pid, which had belonged to the one before.
    let script = "for i in $(seq 200); do echo 50 > /proc/sys/kernel/ns_last_pid && sh -c 'echo $$' & wait $!; done; exit 7";
    let mut ask = ground.ask_argv(&["sh", "-c", script]);
    ask.work.containment = Some(Boundary::PidNamespace);
    let (run, receipt) = ground.run(&ask);
    let text = run.whole_output(&receipt).text();
    let same = text.lines().filter(|pid| *pid == "51" || *pid == "52").count();
    assert!(same >= 150, "{same} of {} had the pid of another: {text}", text.lines().count());
    assert_eq!((receipt.exit, receipt.stragglers.len()), (exited(7), 0));
}

#[test]
fn what_kills_its_callers_group_does_not_kill_the_keeper() {
    let ground = as_root("group-kill");
    let run = ground.staying(&["say=x"]);
    let keepers = run.keepers();
    assert!(keepers.len() >= 2, "{keepers:?}");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let of = |process: &Pid| std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let unified_line = |text: &str| text.lines().find(|line| line.starts_with("0::")).map(str::to_owned);
    for keeper in &keepers {
        assert_ne!(unified_line(&of(keeper)), unified_line(&own), "the keeper is in a group of its own");
    }
    let command = run.command_processes()[0];
    assert_ne!(unified_line(&of(&command)), unified_line(&of(&keepers[0])), "and the command in another");
    // Nor does the end of its caller's session: it leads one of its own.
    let session = |process: Pid| stat_of(process).and_then(|(_, fields)| fields.get(3).cloned());
    let ours = session(rustix::process::getpid());
    assert!(keepers.iter().all(|keeper| session(*keeper) != ours));
    assert!(all_processes().count() > 2);
    run.stop("s1", true);
    run.settled();
}
