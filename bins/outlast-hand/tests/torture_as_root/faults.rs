//! Disks that are full or broken, and what an idle keeper costs.

use crate::as_root;
use crate::support::{Ground, Run, keeper_program, note, wait_for};
use outlast_core::exit::{Cause, Exit};
use outlast_core::receipt::{Authority, Drain, Receipt};
use outlast_core::time::Millis;
use outlast_hand::control::StopAnswer;
use std::path::PathBuf;
use std::process::Command;

/// A small file system to fill. It is unmounted whatever becomes of the test.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(name: &str, bytes: u64) -> Tmpfs {
        let path = crate::support::tmp().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={bytes},mode=755");
        rustix::mount::mount(
            "tmpfs",
            &path,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(std::ffi::CString::new(options).unwrap().as_c_str()),
        )
        .expect("root mounts a tmpfs");
        Tmpfs(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn assert_storage_told(run: &Run, receipt: &Receipt) {
    assert_eq!(receipt.authority, Authority::Keeper);
    let stated = matches!(receipt.output.drain, Drain::StorageFailed { .. })
        || receipt.output.gaps.iter().any(|gap| gap.cause == "storage_failed");
    assert!(stated, "{:?}", receipt.output);
    assert!(run.output().all.len() as u64 <= receipt.output.final_cursor.0, "{:?}", receipt.output);
}

#[test]
fn a_full_disk_cannot_keep_a_job_from_its_deadline_its_stop_or_its_receipt() {
    assert!(crate::support::is_root(), "this test needs root");
    for (name, deadline, deeds) in [
        ("full-deadline", Some(Millis(1200)), ["ignore=HUP", "spew=40000000", "forever"]),
        ("full-stop", None, ["ignore=HUP", "spew=40000000", "forever"]),
        ("full-exit", None, ["ignore=HUP", "spew=40000000", "exit=0"]),
    ] {
        let disk = Tmpfs::new(name, 1 << 20);
        let ground = Ground::in_dir(disk.0.join("ground"));
        let mut ask = ground.ask(&deeds);
        ask.work.limits.deadline = deadline;
        let run = ground.started(&ask);
        if name == "full-stop" {
            wait_for("the disk to be full", || {
                run.job.look().unwrap().ledger.storage_failed.is_some().then_some(()).or_else(|| {
                    // Not even the note may fit.
                    let free = rustix::fs::statvfs(&disk.0).unwrap();
                    (free.f_bavail == 0).then_some(())
                })
            });
            assert_eq!(run.stop("s1", false), StopAnswer::Accepted);
        }
        let receipt = run.settled();
        match name {
            "full-deadline" => assert_eq!(receipt.cause, Cause::Deadline { after_ms: 1200 }),
            "full-stop" => assert_eq!(receipt.cause, Cause::Stop { id: "s1".to_owned() }),
            _ => assert_eq!(receipt.exit, Exit::Exited { code: 0 }, "it was not blocked"),
        }
        assert_storage_told(&run, &receipt);
        drop(ground);
    }
}

#[test]
fn a_disk_that_is_full_before_the_start_starts_nothing_or_ends_well() {
    assert!(crate::support::is_root(), "this test needs root");
    let disk = Tmpfs::new("full-before", 1 << 20);
    let ground = Ground::in_dir(disk.0.join("ground"));
    let job = ground.admit(&ground.ask(&["say=x", "exit=0"]));
    std::fs::write(disk.0.join("filler"), vec![0; 4 << 20]).unwrap_err();
    let launched = crate::support::try_launch(&job);
    // It may have found the room for all it needs: then the job ends with a receipt. Else there is none, and once there
    // is room again it is settled as never started.
    let _ =
        crate::support::wait_within(std::time::Duration::from_secs(2), &mut || job.receipt().ok().flatten());
    std::fs::remove_file(disk.0.join("filler")).unwrap();
    let receipt = wait_for("an end", || {
        let _ = outlast_hand::settle::settle(&ground.home, &job, &outlast_hand::settle::Settle::IfDue);
        job.receipt().unwrap()
    });
    assert!(matches!(receipt.exit, Exit::Exited { code: 0 } | Exit::NotStarted { .. }), "{receipt:?}");
    drop(launched);
}

/// Where `strace` is there and allowed: system calls of the scribe that fail.
#[test]
fn a_scribe_whose_disk_fails_still_settles_the_job() {
    let faults: [(&str, &str, bool); 8] = [
        ("fdatasync", "error=EIO", true),
        ("fdatasync", "error=EIO:when=1", true),
        ("write,pwrite64,writev,pwritev", "error=ENOSPC:when=2+", true),
        ("write,pwrite64,writev,pwritev", "error=EIO:when=1", true),
        ("openat", "error=EMFILE:when=1..3", false),
        ("fsync", "error=EIO:when=1", true),
        ("renameat,renameat2,rename", "error=ENOSPC:when=1..2", false),
        ("fdatasync", "delay_enter=300000", false),
    ];
    crate::support::at_once(&faults, |(calls, fault, touches_the_log)| {
        let ground = as_root(&format!("strace-{}", calls.split(',').next().unwrap()));
        let go = ground.file("go");
        let mut ask = ground.ask(&[
            "say=before",
            &format!("wait={}", go.display()),
            "spew=500000",
            "on-term",
            "forever",
        ]);
        ask.work.limits.deadline = Some(Millis(3000));
        let run = ground.started(&ask);
        let Some(tracer) = Tracer::attach(run.scribe(), calls, fault) else {
            note("strace is missing or not allowed: system calls were not made to fail");
            run.stop("s1", true);
            run.settled();
            return;
        };
        std::fs::write(&go, "").unwrap();
        // The deadline needs no disk. A receipt does: where nothing can be written it comes when something can.
        wait_for("its deadline", || run.command_processes().is_empty().then_some(()));
        let _ = crate::support::wait_within(std::time::Duration::from_secs(1), &mut || {
            run.job.receipt().unwrap()
        });
        drop(tracer);
        let receipt = run.settled();
        assert_eq!(receipt.cause, Cause::Deadline { after_ms: 3000 }, "{calls} {fault}");
        assert_eq!(receipt.exit, Exit::Exited { code: 7 });
        let counted =
            receipt.output.stdout_bytes.zip(receipt.output.stderr_bytes).map(|(out, err)| out + err);
        if !matches!(receipt.output.drain, Drain::StorageFailed { .. }) {
            assert_eq!(
                Some(receipt.output.final_cursor.0),
                counted,
                "{calls} {fault}: gaps are as long as what was lost"
            );
        }
        if *touches_the_log {
            let sound = receipt.output.gaps.is_empty() && receipt.output.drain == Drain::Complete;
            assert!(
                !sound || run.whole_output(&receipt).all.len() > 500_000,
                "{calls} {fault}: {:?}",
                receipt.output
            );
        } else {
            run.whole_output(&receipt);
        }
        note(&format!("strace {calls} {fault} ran as uid 0: ok"));
    });
}

/// A scribe is lost, and its successor cannot read what it left at first.
#[test]
fn a_successor_whose_disk_fails_tries_again() {
    let ground = as_root("strace-successor");
    let go = ground.file("go");
    let run = ground.started(&ground.ask(&[
        "say=before",
        &format!("wait={}", go.display()),
        "say=after",
        "exit=0",
    ]));
    wait_for("its first output", || (run.job.committed().unwrap().0 == 7).then_some(()));
    let scribe = run.scribe();
    let Some(tracer) = Tracer::attach_with(run.warden(), &["-f"], "fdatasync", "error=EIO:when=1") else {
        note("strace is missing or not allowed: a successor's disk was not made to fail");
        run.stop("s1", true);
        run.settled();
        return;
    };
    rustix::process::kill_process(scribe, rustix::process::Signal::KILL).unwrap();
    wait_for("its failure", || run.job.look().unwrap().ledger.storage_failed);
    drop(tracer);
    std::thread::sleep(std::time::Duration::from_millis(700));
    std::fs::write(&go, "").unwrap();
    let receipt = run.settled();
    assert_eq!(receipt.output.drain, Drain::Complete, "{:?}", receipt.output);
    let seen = run.output();
    assert!(seen.text().starts_with("before\n") && seen.text().ends_with("after\n"), "{:?}", seen.text());
    assert_eq!(seen.end, receipt.output.final_cursor.0);
}

/// A running strace. It lets go when it is dropped.
pub(crate) struct Tracer(std::process::Child);

impl Tracer {
    /// `None` where there is no strace, or it may not attach.
    pub(crate) fn attach(process: rustix::process::Pid, calls: &str, fault: &str) -> Option<Tracer> {
        Tracer::attach_with(process, &[], calls, fault)
    }

    fn attach_with(
        process: rustix::process::Pid,
        options: &[&str],
        calls: &str,
        fault: &str,
    ) -> Option<Tracer> {
        use std::io::{BufRead, BufReader};
        let mut child = Command::new("strace")
            .args(options)
            .args([
                "-p",
                &process.to_string(),
                "-e",
                &format!("trace={calls}"),
                "-e",
                &format!("inject={calls}:{fault}"),
            ])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .ok()?;
        let mut lines = BufReader::new(child.stderr.take()?).lines();
        let attached = lines.next()?.ok()?.contains("attached");
        // It must not be blocked by us.
        std::thread::spawn(move || lines.for_each(drop));
        attached.then_some(Tracer(child))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let own = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Meaningful for a release build; printed for any.
#[test]
fn what_an_idle_keeper_costs_is_printed() {
    let ground = as_root("idle");
    let run = ground.staying(&["say=x"]);
    // Buffers are given back a moment after the last output.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut total = 0;
    for keeper in run.keepers() {
        let rollup = std::fs::read_to_string(format!("/proc/{keeper}/smaps_rollup")).unwrap();
        let value = |name: &str| -> u64 {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
        };
        total += value("Private_Dirty:");
        println!(
            "{keeper}: anonymous {} KiB, private dirty {} KiB",
            value("Anonymous:"),
            value("Private_Dirty:")
        );
    }
    note(&format!("an idle keeper ({}): {total} KiB private dirty", keeper_program().display()));
    run.stop("s1", true);
    run.settled();
}
