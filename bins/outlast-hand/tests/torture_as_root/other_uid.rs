//! Commands of another user: what they may not do, and what that proves.

use crate::as_root;
use crate::support::{be_init, exited, kill, settle_now, wait_for};
use outlast_core::bytes::Bytes;
use outlast_core::evidence::{Evidence, Isolation};
use outlast_core::exit::Cause;
use outlast_core::spec::{Boundary, RunAs};
use outlast_core::status::State;
use outlast_hand::admit::{Admitted, Find, Request, admit};
use outlast_hand::settle::{Outcome, Settle};
use std::os::unix::fs::PermissionsExt;

const NOBODY: RunAs = RunAs { uid: 65534, gid: 65534 };

fn as_nobody(mut ask: Request, mode: Boundary) -> Request {
    ask.work.containment = Some(mode);
    ask.work.user = Some(NOBODY);
    ask.work.cwd = Bytes(b"/".to_vec());
    ask
}

#[test]
fn it_has_no_rights_no_groups_and_no_way_into_the_home() {
    for mode in [Boundary::Cgroup2Subreaper, Boundary::Subreaper, Boundary::PidNamespace] {
        let ground = as_root("other");
        let home = ground.home.path().display();
        let script = format!(
            "id -u; id -g; id -G; grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status | cut -f2 | tr '\\n' ' '; echo; \
             ls {home}/jobs 2>&1 | grep -c denied; cat {home}/home.json 2>&1 | grep -c denied; \
             echo again > /dev/stdout; echo err > /dev/stderr; \
             echo '{{\"done\":1,\"total\":2,\"unit\":\"x\"}}' > $OUTLAST_PROGRESS && echo progress; \
             echo 0 > {}/cgroup.procs; exit 4",
            "/sys/fs/cgroup/unified"
        );
        let ask = as_nobody(ground.ask_argv(&["sh", "-c", &script]), mode);
        let (run, receipt) = ground.run(&ask);
        let text = run.whole_output(&receipt).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["65534", "65534", "65534"], "{text}");
        let caps: Vec<&str> = lines[3].split_whitespace().collect();
        assert!(
            caps[..2].iter().all(|cap| cap.chars().all(|c| c == '0')) && caps.last() == Some(&"1"),
            "{text}"
        );
        assert_eq!(lines[4..], ["1", "1", "again", "progress"], "{text}");
        let expected =
            if mode == Boundary::PidNamespace { Isolation::PidNamespace } else { Isolation::OtherUid };
        assert_eq!((receipt.isolation, receipt.exit.clone()), (Some(expected), exited(4)));
        assert!(
            String::from_utf8_lossy(&run.output().stderr).contains("enied"),
            "it may not leave its group"
        );
        assert_eq!(run.job.progress().map(|progress| progress.done), Some(1));
    }
}

#[test]
fn without_its_warden_an_emptied_closed_cgroup_proves_its_death() {
    be_init();
    for asked in [true, false] {
        let ground = as_root("closed");
        std::fs::set_permissions(&ground.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let go = ground.file("go");
        let deeds = [
            "say=x".to_owned(),
            "orphan=setsid,ignore=TERM,say=y,sleep=300".into(),
            format!("wait={}", go.display()),
            "exit=3".into(),
        ];
        let ask = as_nobody(ground.ask(&deeds), Boundary::Cgroup2Subreaper);
        let run = ground.started(&ask);
        wait_for("its output", || run.output().text().contains('y').then_some(()));
        kill(run.warden());
        wait_for("the job to be unknown", || (run.state().state == State::Unknown).then_some(()));
        if asked {
            assert!(
                matches!(settle_now(&ground, &run, &Settle::IfDue), Outcome::StillUnknown { .. }),
                "it lives"
            );
            assert!(!run.command_processes().is_empty(), "and is left alone before its time");
        } else {
            std::fs::write(&go, "").unwrap();
            wait_for("its end", || run.command_processes().is_empty().then_some(()));
        }
        let how = if asked { Settle::Asked } else { Settle::IfDue };
        let outcome = settle_now(&ground, &run, &how);
        let Outcome::Settled(receipt) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(receipt.death, Evidence::ClosedCgroupEmptied { .. }), "{:?}", receipt.death);
        assert_eq!((&receipt.cause, run.command_processes().len()), (&Cause::KeeperLost, 0));
        assert!(receipt.output.final_cursor.0 == 4 && run.output().text().len() == 4, "{:?}", receipt.output);
        if !asked {
            assert_eq!(receipt.exit, exited(3), "the scribe had learnt it from the kernel");
        }
        let mut again = ask.clone();
        again.find = Find::NextAttempt(run.job.id());
        let Ok(Admitted::New(second)) = admit(&ground.home, &again) else {
            panic!("no second attempt over a proof")
        };
        std::fs::write(&go, "").unwrap();
        crate::support::launch_keeper(&second);
        wait_for("a receipt", || second.receipt().unwrap());
    }
}
