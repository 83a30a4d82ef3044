//! Output: every byte, in order, once, or a stated gap.

use crate::support::{Ground, at_once, exited, in_all_modes, is_root, kill, spewed, wait_for};
use outlast_core::exit::Exit;
use outlast_core::id::Cursor;
use outlast_core::receipt::{Drain, OutputHash};
use outlast_core::spec::Boundary;
use outlast_hand::control::{self, Notice, Say, Watch};
use std::time::Duration;

fn boundary() -> Boundary {
    if is_root() { Boundary::Cgroup2Subreaper } else { Boundary::Subreaper }
}

#[test]
fn bytes_are_kept_as_they_are() {
    let all: Vec<u8> = (0..=255).cycle().take(256 * 400).collect();
    let mut line = vec![b'x'; 4 << 20];
    line.extend(b"\n\nEND\n");
    let rows: [(&[&str], Vec<u8>); 6] = [
        (&["line=4194304", "say=", "say=END"], line),
        (&["binary=400"], all),
        (&["spew=1"], spewed(1)),
        (&["spew=65536"], spewed(65536)),
        (&["spew=16777217"], spewed(16_777_217)),
        (&["exit=0"], Vec::new()),
    ];
    at_once(&rows, |(deeds, expected)| {
        let ground = Ground::new("bytes");
        let (run, receipt) = ground.run(&ground.ask(deeds));
        let seen = run.whole_output(&receipt);
        assert!(
            seen.stdout == *expected,
            "{deeds:?}: {} bytes, {} expected",
            seen.stdout.len(),
            expected.len()
        );
        assert_eq!((receipt.output.drain, receipt.exit), (Drain::Complete, exited(0)));
    });
}

#[test]
fn lines_of_text_with_nul_bytes_and_halves_of_characters() {
    let ground = Ground::new("odd");
    let script = r"printf 'a\0b\n'; printf '\303'; printf '\244\n'; printf '\377\376'; printf '\342\202' >&2; printf '\nno newline at the end'";
    let (run, receipt) = ground.run(&ground.ask_argv(&["bash", "-c", script]));
    let seen = run.whole_output(&receipt);
    assert_eq!(seen.stdout, b"a\0b\n\xc3\xa4\n\xff\xfe\nno newline at the end");
    assert_eq!(seen.stderr, b"\xe2\x82");
}

/// What other tools show as empty: the exit is known before the output was read.
#[test]
fn output_is_there_as_soon_as_the_job_is_settled() {
    in_all_modes("echo", |ground, mode| {
        let count = if is_root() { 34 } else { 20 };
        for _ in 0..count {
            let mut ask = ground.ask_argv(&["echo", "x"]);
            ask.work.containment = Some(mode);
            let (run, receipt) = ground.run(&ask);
            assert_eq!(run.whole_output(&receipt).text(), "x\n");
            assert!(run.output().ended, "the log has its end record");
        }
    });
}

#[test]
fn a_flood_that_nobody_reads_is_logged_whole() {
    let ground = Ground::new("flood");
    let bytes = 64 << 20;
    let mut ask = ground.ask(&[format!("spew={bytes}"), "exit=0".into()]);
    ask.work.containment = Some(boundary());
    let (run, receipt) = ground.run(&ask);
    assert_eq!(receipt.output.final_cursor.0, bytes);
    let expected = blake3::hash(&spewed(bytes as usize)).to_hex().to_string();
    assert_eq!(receipt.output.hash, OutputHash::Blake3 { value: expected });
    let seen = run.whole_output(&receipt);
    assert_eq!(seen.stdout.len() as u64, bytes);
}

#[test]
fn two_streams_are_told_apart_and_one_pipe_keeps_exact_order() {
    let ground = Ground::new("streams");
    let lines = |of: &dyn Fn(usize) -> bool| {
        (0..2000).filter(|n| of(*n)).map(|n| format!("{n}\n")).collect::<String>()
    };
    let (run, receipt) = ground.run(&ground.ask(&["alternate=2000"]));
    let seen = run.whole_output(&receipt);
    assert_eq!(seen.text(), lines(&|n| n % 2 == 0));
    assert_eq!(String::from_utf8_lossy(&seen.stderr), lines(&|n| n % 2 == 1));

    let mut ask = ground.ask(&["alternate=2000"]);
    ask.work.merge = true;
    let (run, receipt) = ground.run(&ask);
    let seen = run.whole_output(&receipt);
    assert_eq!((seen.text(), seen.stderr.len()), (lines(&|_| true), 0));
}

#[test]
fn past_its_limit_the_log_keeps_head_and_tail_and_says_so() {
    in_all_modes("limit", |ground, mode| {
        let bytes = 20 << 20;
        let mut ask = ground.ask(&[format!("spew={bytes}"), "say=the end".into(), "exit=0".into()]);
        ask.work.containment = Some(mode);
        ask.work.limits.log_bytes = Some(2 << 20);
        let (run, receipt) = ground.run(&ask);
        assert_eq!(receipt.exit, exited(0), "the command was never blocked");
        let mut expected = spewed(bytes as usize);
        expected.extend(b"the end\n");
        assert_eq!(receipt.output.final_cursor.0, expected.len() as u64);
        assert_eq!(
            receipt.output.hash,
            OutputHash::Blake3 { value: blake3::hash(&expected).to_hex().to_string() }
        );
        assert_eq!(receipt.output.drain, Drain::Complete);
        let seen = run.output();
        assert_eq!(seen.gaps, receipt.output.gaps, "log and receipt state the same");
        let [gap] = receipt.output.gaps.as_slice() else { panic!("{:?}", receipt.output.gaps) };
        let (from, to) = (gap.from.0 as usize, gap.to.expect("its length is known").0 as usize);
        assert_eq!(gap.cause, "log_limit");
        // The first MiB, or a sixteenth of a smaller limit; and the newest that fits.
        assert!(
            from >= (2 << 20) / 16 && expected.len() - to >= (2 << 20) / 2,
            "{gap:?} of {}",
            expected.len()
        );
        assert!(seen.stdout[..from] == expected[..from] && seen.stdout[from..] == expected[to..]);
        let stored: u64 = std::fs::read_dir(run.job.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("log."))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert!(stored <= (2 << 20) + (1 << 20), "{stored} bytes on disk for a limit of 2 MiB");
    });
}

#[test]
fn a_command_that_opens_its_output_again_destroys_nothing() {
    in_all_modes("reopen", |ground, mode| {
        let mut ask = ground.ask(&["say=before", "reopen", "say=after", "exit=0"]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        assert_eq!(run.whole_output(&receipt).text(), "before\nthrough a new descriptor\nafter\n");
        let mut ask = ground.ask_argv(&[
            "sh",
            "-c",
            "echo one; echo warn > /dev/stdout; echo two > /dev/stderr; echo three",
        ]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        let seen = run.whole_output(&receipt);
        assert_eq!(
            (seen.text().as_str(), seen.stderr.as_slice()),
            ("one\nwarn\nthree\n", b"two\n".as_slice())
        );
    });
}

#[test]
fn a_command_that_closes_its_output_still_runs() {
    in_all_modes("closed", |ground, mode| {
        let go = ground.file("go");
        let mut ask =
            ground.ask(&["say=x", "close=1", "close=2", &format!("wait={}", go.display()), "exit=4"]);
        ask.work.containment = Some(mode);
        let run = ground.started(&ask);
        wait_for("its output", || (run.output().text() == "x\n").then_some(()));
        assert_eq!(control::sync(&run.job, Duration::from_secs(10)).unwrap(), Some(Cursor(2)));
        assert!(run.job.receipt().unwrap().is_none());
        std::fs::write(&go, "").unwrap();
        let receipt = run.settled();
        assert_eq!((receipt.exit.clone(), receipt.output.drain.clone()), (exited(4), Drain::Complete));
        run.whole_output(&receipt);
    });
}

/// Output that was logged between a reader's look and the keeper's hearing of it was told to nobody: so whoever begins to
/// follow is told once, whether or not more comes.
#[test]
fn who_begins_to_follow_is_told_of_what_is_there() {
    let ground = Ground::new("follow");
    let run = ground.started(&ground.ask(&["say=x", "forever"]));
    wait_for("its output", || (run.output().end == 2).then_some(()));
    for _ in 0..3 {
        let watch = Watch::connect(&run.job, true).unwrap().expect("a keeper that listens");
        wait_for("word of output", || match watch.next(Some(Duration::ZERO)).unwrap() {
            Notice::Said(Say::Output) => Some(()),
            _ => None,
        });
    }
    run.stop("s1", true);
    run.settled();
}

#[test]
fn a_reader_who_asks_is_told_a_cursor_that_is_synced() {
    let ground = Ground::new("sync");
    let go = ground.file("go");
    let run = ground.started(&ground.ask(&["spew=100000".to_owned(), format!("wait={}", go.display())]));
    wait_for("its output", || (run.output().end == 100_000).then_some(()));
    assert_eq!(control::sync(&run.job, Duration::from_secs(10)).unwrap(), Some(Cursor(100_000)));
    assert_eq!(run.job.committed().unwrap(), Cursor(100_000));
    // And without being asked, within half a second or so.
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.settled().output.final_cursor, Cursor(100_000));
    assert_eq!(run.job.committed().unwrap(), Cursor(100_000));
}

#[test]
fn dirty_output_is_synced_without_a_reader() {
    let ground = Ground::new("self-sync");
    let run = ground.started(&ground.ask(&["say=hello", "forever"]));
    wait_for("a committed cursor", || (run.job.committed().unwrap() == Cursor(6)).then_some(()));
    wait_for("the command", || run.command_processes().first().copied().inspect(|command| kill(*command)));
    assert_eq!(run.settled().exit, Exit::Signaled { signal: 9, core_dumped: false });
}

/// A pipeline's middle may end early; a writer that meets a closed pipe of its own dies of SIGPIPE as anywhere.
#[test]
fn pipes_inside_the_command_behave_as_anywhere() {
    let ground = Ground::new("sigpipe");
    let script = "set -o pipefail; yes | head -c 1000000 | wc -c; echo ${PIPESTATUS[0]}; trap '' PIPE; yes 2>&1 | head -1";
    let (run, receipt) = ground.run(&ground.ask_argv(&["bash", "-c", script]));
    assert!(run.whole_output(&receipt).text().starts_with("1000000\n141\ny\n"), "{}", run.output().text());
}

#[test]
fn secrets_are_masked_across_pieces_and_in_both_streams() {
    let ground = Ground::new("secrets");
    let secret = "correct-horse-battery";
    let mut ask = ground.ask_argv(&[
        "sh",
        "-c",
        "printf 'a correct-horse'; sleep 0.2; printf -- '-battery b\n'; echo \"$TOKEN\" >&2",
    ]);
    ask.work.secrets.insert("TOKEN".to_owned(), ground.home.secret_hash(secret.as_bytes()));
    let job = ground.admit(&ask);
    let how = outlast_hand::launch::Launch {
        watch_output: false,
        program: Some(crate::support::keeper_program()),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into()), ("TOKEN".into(), secret.into())],
        nest: None,
    };
    let launched = outlast_hand::launch::launch(&job, &how).unwrap();
    wait_for("a receipt", || job.receipt().unwrap());
    drop(launched);
    let mut everything = Vec::new();
    // The command itself holds the halves, so its spec does.
    let written =
        |entry: &std::fs::DirEntry| entry.file_type().unwrap().is_file() && entry.file_name() != "spec.json";
    for entry in std::fs::read_dir(job.path()).unwrap().flatten().filter(written) {
        everything.extend(std::fs::read(entry.path()).unwrap());
    }
    for part in ["correct-horse", "horse-battery", secret] {
        assert!(!everything.windows(part.len()).any(|bytes| bytes == part.as_bytes()), "`{part}` is at rest");
    }
}
