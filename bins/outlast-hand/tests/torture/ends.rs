//! How a command ends, and what it is started with.

use crate::support::{at_once, exited, in_all_modes, is_root, misbehave};
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Cause, Exit};
use outlast_core::receipt::{Authority, Drain, Receipt, TerminalMutation};
use outlast_core::spec::{Boundary, Command, Stdin};
use std::os::unix::fs::PermissionsExt;

/// What every receipt of a keeper must say of its death proof.
fn assert_proved(receipt: &Receipt, mode: Boundary) {
    assert_eq!(receipt.authority, Authority::Keeper);
    assert_eq!(receipt.boundary, Some(mode));
    let fits = match (&receipt.death, mode) {
        (Evidence::CgroupEmptyAndReaped { reaped, .. }, Boundary::Cgroup2Subreaper) => *reaped > 0,
        (Evidence::AllReaped { reaped, .. }, Boundary::Subreaper) => *reaped > 0,
        (Evidence::PidNamespaceInitReaped { init_pid, namespace, .. }, Boundary::PidNamespace) => {
            *init_pid > 1 && *namespace > 1
        }
        _ => false,
    };
    assert!(fits, "{:?} in {mode:?}", receipt.death);
    assert!(matches!(receipt.terminal_mutation, TerminalMutation::Marked { .. }));
    assert_eq!(receipt.output.drain, Drain::Complete);
}

#[test]
fn statuses_and_signals_are_the_commands_own() {
    let signaled = |signal| Exit::Signaled { signal, core_dumped: false };
    let rows: [(&str, Exit, u8); 7] = [
        ("exit=0", exited(0), 0),
        ("exit=3", exited(3), 3),
        ("exit=255", exited(255), 255),
        ("exit=143", exited(143), 143),
        ("signal=TERM", signaled(15), 143),
        ("signal=KILL", signaled(9), 137),
        ("signal=SEGV", signaled(11), 139),
    ];
    in_all_modes("statuses", |ground, mode| {
        for (deed, exit, status) in &rows {
            let mut ask = ground.ask(&["say=before", deed]);
            ask.work.containment = Some(mode);
            let (run, receipt) = ground.run(&ask);
            let told = match &receipt.exit {
                // Whether a core is dumped is the machine's choice.
                Exit::Signaled { signal, .. } => signaled(*signal),
                other => other.clone(),
            };
            assert_eq!((&told, receipt.exit.shell_status()), (exit, Some(*status)), "{deed}");
            assert_eq!(receipt.cause, Cause::OwnEnd);
            assert_eq!(run.whole_output(&receipt).text(), "before\n");
            assert_proved(&receipt, mode);
        }
    });
}

#[test]
fn programs_that_cannot_be_executed() {
    in_all_modes("unexecutable", |ground, mode| {
        let path = |name: &str| ground.file(name).into_os_string();
        let write = |name: &str, text: &str, mode: u32| {
            std::fs::write(ground.file(name), text).unwrap();
            std::fs::set_permissions(ground.file(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write("plain", "#!/bin/sh\n", 0o644);
        write("no-shebang", "exit 5\n", 0o755);
        write("bad-shebang", "#!/nonexistent/interpreter\nexit 5\n", 0o755);
        write("empty", "", 0o755);
        let (noent, acces, noexec) = (libc::ENOENT, libc::EACCES, libc::ENOEXEC);
        let rows = [
            (path("nothing-here"), None, noent, 127),
            ("no-such-program-anywhere".into(), None, noent, 127),
            ("".into(), None, noent, 127),
            (path("plain"), None, acces, 126),
            (path("work"), None, acces, 126),
            (path("plain/below"), None, noent, 127),
            (path("no-shebang"), None, noexec, 126),
            (path("bad-shebang"), None, noent, 127),
            (path("empty"), None, noexec, 126),
            ("true".into(), Some(path("gone")), noent, 127),
            ("true".into(), Some(path("plain")), libc::ENOTDIR, 127),
        ];
        for (program, cwd, errno, status) in rows {
            let mut ask = ground.ask_argv(&[&program]);
            ask.work.containment = Some(mode);
            if let Some(cwd) = &cwd {
                ask.work.cwd = outlast_core::bytes::Bytes(cwd.as_encoded_bytes().to_vec());
            }
            let (_, receipt) = ground.run(&ask);
            let Exit::ExecFailed { errno: found, stage } = &receipt.exit else {
                panic!("{program:?} in {cwd:?}: {:?}", receipt.exit)
            };
            assert_eq!(
                (*found, receipt.exit.shell_status()),
                (errno, Some(status)),
                "{program:?} in {cwd:?}"
            );
            let expected = if cwd.is_some() { "change to its working directory" } else { "execute" };
            assert_eq!(stage, expected, "{program:?}: said alike in all modes");
            assert_eq!(receipt.output.final_cursor.0, 0);
        }
    });
}

#[test]
fn nothing_of_the_keepers_reaches_the_command() {
    in_all_modes("inheritance", |ground, mode| {
        let mut ask = ground.ask(&["descriptors"]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        assert_eq!(run.whole_output(&receipt).text(), "0,1,2 session=true\n", "{:?}", receipt.exit);

        let mut ask = ground.ask_argv(&["grep", "-E", "^(SigBlk|SigIgn|SigPnd|ShdPnd)", "/proc/self/status"]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        let text = run.whole_output(&receipt).text();
        assert!(
            text.lines().count() == 4 && text.lines().all(|line| line.ends_with("\t0000000000000000")),
            "{text}"
        );

        let mut ask = ground.ask_argv(&["cat", "/proc/self/oom_score_adj"]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        assert_eq!(run.whole_output(&receipt).text(), own, "the keeper's protection is its own");

        let mut ask = ground.ask_argv(&["env"]);
        ask.work.containment = Some(mode);
        ask.work.env.insert("GIVEN".to_owned(), "a b".into());
        let (run, receipt) = ground.run(&ask);
        let text = run.whole_output(&receipt).text();
        let mut names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.sort_unstable();
        assert_eq!(names, ["GIVEN", "OUTLAST_JOB_ID", "OUTLAST_PROGRESS", "PATH"]);
    });
}

#[test]
fn a_namespace_shows_the_command_its_own_processes_only() {
    let ground = crate::support::Ground::new("own-proc");
    let mut ask = ground.ask_argv(&["sh", "-c", "echo $$; ls /proc | grep -c '^[0-9]*$'; cat /proc/1/comm"]);
    ask.work.containment = Some(Boundary::PidNamespace);
    let (run, receipt) = ground.run(&ask);
    let text = run.whole_output(&receipt).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2], "outlast-init", "{text}");
    assert_ne!(lines[0], "1", "the command is never process 1");
    assert!(lines[1].parse::<u32>().unwrap() <= 6, "{text}");
}

#[test]
fn a_boundary_that_is_missing_is_an_error_and_starts_nothing() {
    let ground = crate::support::Ground::new("missing");
    let mark = ground.file("ran");
    let asks = {
        let mut cgroup = ground.ask(&[format!("touch={}", mark.display())]);
        cgroup.work.containment = Some(Boundary::Cgroup2Subreaper);
        let mut user = ground.ask(&[format!("touch={}", mark.display())]);
        user.work.user = Some(outlast_core::spec::RunAs { uid: 65534, gid: 65534 });
        let mut pids = ground.ask(&[format!("touch={}", mark.display())]);
        pids.work.limits.pids = Some(10);
        [(cgroup, "CONTAINMENT_UNAVAILABLE"), (user, "USER_UNAVAILABLE"), (pids, "LIMIT_UNAVAILABLE")]
    };
    if is_root() {
        // Root has them all.
        return;
    }
    for (ask, code) in &asks {
        let run = ground.start(ask);
        run.until_said(
            code,
            |say| matches!(say, outlast_hand::control::Say::Failed { code: said, .. } if said == code),
        );
        let receipt = run.settled();
        assert!(matches!(receipt.exit, Exit::NotStarted { .. }), "{:?}", receipt.exit);
        assert!(matches!(receipt.death, Evidence::NeverStarted { .. }));
    }
    assert!(!mark.exists());
}

#[test]
fn scripts_are_bytes_and_stdin_is_the_commands_own() {
    let ground = crate::support::Ground::new("scripts");
    let rows: [(&str, &str, u8); 4] = [
        ("printf '\\nabc'", "\nabc", 0),
        ("cat; echo after", "after\n", 0),
        ("echo \"$0\" | grep -c /script; exit 4", "1\n", 4),
        ("kill -9 $$", "", 137),
    ];
    at_once(&rows, |(text, output, status)| {
        let mut ask = ground.ask_argv(&["unused"]);
        ask.work.command = Command::Script { shell: "sh".into(), text: (*text).into() };
        ask.work.stdin = Stdin::Null;
        let (run, receipt) = ground.run(&ask);
        assert_eq!(
            (run.whole_output(&receipt).text().as_str(), receipt.exit.shell_status()),
            (*output, Some(*status)),
            "{text}"
        );
    });
}

#[test]
fn deletion_of_the_working_folder_or_the_program_harms_nobody() {
    let ground = crate::support::Ground::new("deleted");
    let own = ground.file("own-misbehave");
    std::fs::copy(misbehave(), &own).unwrap();
    let go = ground.file("go");
    let mut ask = ground.ask_argv(&[
        own.as_os_str(),
        format!("wait={}", go.display()).as_ref(),
        "say=done".as_ref(),
        "exit=6".as_ref(),
    ]);
    let cwd = ground.file("work/inner");
    std::fs::create_dir(&cwd).unwrap();
    ask.work.cwd = outlast_core::bytes::Bytes(cwd.into_os_string().into_encoded_bytes());
    let run = ground.started(&ask);
    std::fs::remove_file(&own).unwrap();
    std::fs::remove_dir(ground.file("work/inner")).unwrap();
    std::fs::write(&go, "").unwrap();
    let receipt = run.settled();
    assert_eq!((receipt.exit.clone(), run.whole_output(&receipt).text().as_str()), (exited(6), "done\n"));
}
