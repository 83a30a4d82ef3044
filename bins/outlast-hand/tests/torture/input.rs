//! Standard input and terminals.

use crate::support::{Ground, Run, exited, in_all_modes, spewed, wait_for};
use outlast_core::exit::Exit;
use outlast_core::id::Cursor;
use outlast_core::receipt::Drain;
use outlast_core::spec::Stdin;
use outlast_hand::control::{self, StdinAnswer};
use std::io;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn give(run: &Run, offset: u64, bytes: &[u8], close: bool) -> io::Result<StdinAnswer> {
    control::write_stdin(&run.job, Cursor(offset), bytes, close, PATIENCE)
}

#[test]
fn without_input_a_command_reads_an_end() {
    in_all_modes("stdin-null", |ground, mode| {
        let mut ask = ground.ask(&["cat", "say=done"]);
        ask.work.containment = Some(mode);
        let (run, receipt) = ground.run(&ask);
        assert_eq!(run.whole_output(&receipt).text(), "done\n");
        run.closed();
        assert_eq!(give(&run, 0, b"x", false).unwrap_err().kind(), io::ErrorKind::NotConnected);
    });
}

#[test]
fn spooled_input_is_read_whole() {
    in_all_modes("stdin-spooled", |ground, mode| {
        let bytes = spewed(3_000_000);
        std::fs::write(ground.home.path().join("tmp/spooled"), &bytes).unwrap();
        let mut ask = ground.ask(&["cat"]);
        ask.work.containment = Some(mode);
        ask.work.stdin =
            Stdin::Spooled { blake3: blake3::hash(&bytes).to_hex().to_string(), bytes: bytes.len() as u64 };
        ask.stdin = Some("spooled".to_owned());
        let run = ground.started(&ask);
        assert_eq!(give(&run, 0, b"x", false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let receipt = run.settled();
        assert!(run.whole_output(&receipt).stdout == bytes);
    });
}

#[test]
fn open_input_is_taken_once_whatever_is_repeated() {
    in_all_modes("stdin-open", |ground, mode| {
        let mut ask = ground.ask(&["cat", "exit=0"]);
        ask.work.containment = Some(mode);
        ask.work.stdin = Stdin::Open;
        let run = ground.started(&ask);
        let taken = |offset, closed| StdinAnswer { taken: Cursor(offset), closed };
        assert_eq!(give(&run, 0, b"hello ", false).unwrap(), taken(6, false));
        assert_eq!(give(&run, 0, b"hello ", false).unwrap(), taken(6, false), "repeated");
        assert_eq!(give(&run, 3, b"lo wor", false).unwrap(), taken(9, false), "in part repeated");
        assert_eq!(give(&run, 10, b"x", false).unwrap_err().kind(), io::ErrorKind::InvalidInput, "a gap");
        assert_eq!(give(&run, 0, b"", false).unwrap(), taken(9, false));
        assert_eq!(give(&run, 9, b"ld\n", true).unwrap(), taken(12, true));
        let receipt = run.settled();
        assert_eq!(run.whole_output(&receipt).text(), "hello world\n");
        run.closed();
        assert_eq!(give(&run, 12, b"more", false).unwrap_err().kind(), io::ErrorKind::NotConnected);
    });
}

#[test]
fn more_input_than_a_pipe_holds_arrives_whole() {
    let ground = Ground::new("stdin-much");
    let mut ask = ground.ask(&["sleep=300", "cat"]);
    ask.work.stdin = Stdin::Open;
    let run = ground.started(&ask);
    let bytes = spewed(1_500_000);
    let answer = give(&run, 0, &bytes, true).unwrap();
    assert_eq!(answer, StdinAnswer { taken: Cursor(1_500_000), closed: true });
    let receipt = run.settled();
    assert!(run.whole_output(&receipt).stdout == bytes);
}

#[test]
fn a_close_is_answered_and_may_be_repeated() {
    let ground = Ground::new("stdin-close");
    let go = ground.file("go");
    let mut ask = ground.ask(&["cat".to_owned(), "say=closed".into(), format!("wait={}", go.display())]);
    ask.work.stdin = Stdin::Open;
    let run = ground.started(&ask);
    for _ in 0..2 {
        assert_eq!(give(&run, 0, b"", true).unwrap(), StdinAnswer { taken: Cursor(0), closed: true });
    }
    assert_eq!(give(&run, 0, b"late", false).unwrap(), StdinAnswer { taken: Cursor(0), closed: true });
    wait_for("its end of input", || (run.output().text() == "closed\n").then_some(()));
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.settled().exit, exited(0));
}

#[test]
fn input_for_a_command_that_has_ended_or_does_not_read_is_said_to_be_closed_or_full() {
    let ground = Ground::new("stdin-ended");
    let mut ask = ground.ask(&["orphan=setsid,forever", "exit=0"]);
    ask.work.stdin = Stdin::Open;
    ask.manner.linger = outlast_core::time::Millis(60_000);
    let run = ground.started(&ask);
    run.until_said("its exit", |say| matches!(say, control::Say::Exited { .. }));
    assert!(give(&run, 0, b"x", false).unwrap().closed);
    run.stop("s1", false);
    run.settled();

    // Nobody reads: a bounded wait, and the answer says how much was taken.
    let mut ask = ground.ask(&["forever"]);
    ask.work.stdin = Stdin::Open;
    let run = ground.started(&ask);
    let answer =
        control::write_stdin(&run.job, Cursor(0), &vec![b'x'; 200_000], false, Duration::from_millis(300))
            .unwrap();
    assert!(!answer.closed && (1..200_000).contains(&answer.taken.0), "{answer:?}");
    run.stop("s2", false);
    run.settled();

    // It closes its input: a broken pipe is told, and harms nobody.
    let go = ground.file("go");
    let mut ask = ground.ask(&["close=0".to_owned(), "say=x".into(), format!("wait={}", go.display())]);
    ask.work.stdin = Stdin::Open;
    let run = ground.started(&ask);
    wait_for("it to close", || (run.output().text() == "x\n").then_some(()));
    assert!(give(&run, 0, b"x", false).unwrap().closed);
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.settled().exit, exited(0));
}

#[test]
fn a_terminal_is_one_and_changes_its_size() {
    in_all_modes("tty", |ground, mode| {
        let mut ask = ground.ask(&["terminal", "resized=50x132", "exit=3"]);
        ask.work.containment = Some(mode);
        ask.work.tty = true;
        ask.manner.window = Some((50, 132));
        let run = ground.started(&ask);
        wait_for("its first size", || run.output().text().contains('\n').then_some(()));
        control::resize(&run.job, 24, 90).unwrap();
        let receipt = run.settled();
        assert_eq!(run.whole_output(&receipt).text(), "true true true 50x132\r\n24x90\r\n");
        assert_eq!((receipt.exit, receipt.output.drain), (exited(3), Drain::Complete));
    });
}

#[test]
fn a_terminal_takes_input_control_characters_and_an_end() {
    in_all_modes("tty-input", |ground, mode| {
        let mut ask = ground.ask(&["say=ready", "cat", "say=end"]);
        ask.work.containment = Some(mode);
        ask.work.tty = true;
        let run = ground.started(&ask);
        wait_for("it to be ready", || run.output().text().contains("ready").then_some(()));
        give(&run, 0, b"typed\n", false).unwrap();
        wait_for("its echo", || (run.output().text().matches("typed").count() == 2).then_some(()));
        give(&run, 6, b"", true).unwrap();
        let receipt = run.settled();
        assert_eq!(receipt.exit, exited(0));
        assert!(run.whole_output(&receipt).text().ends_with("end\r\n"));

        let mut ask = ground.ask(&["say=ready", "forever"]);
        ask.work.containment = Some(mode);
        ask.work.tty = true;
        let run = ground.started(&ask);
        wait_for("it to be ready", || run.output().text().contains("ready").then_some(()));
        give(&run, 0, b"\x03", false).unwrap();
        let receipt = run.settled();
        assert_eq!(receipt.exit, Exit::Signaled { signal: 2, core_dumped: false }, "Ctrl-C");
    });
}

#[test]
fn who_holds_a_terminal_after_the_leader_is_a_straggler_like_any() {
    in_all_modes("tty-held", |ground, mode| {
        let mut ask =
            ground.ask(&["orphan=setsid,ignore=TERM,ignore=HUP,say=held,forever", "sleep=100", "exit=2"]);
        ask.work.containment = Some(mode);
        ask.work.tty = true;
        let (run, receipt) = ground.run(&ask);
        assert_eq!((receipt.exit.clone(), receipt.stragglers.len()), (exited(2), 1));
        assert!(run.whole_output(&receipt).text().contains("held"));
    });
}

#[test]
fn a_job_without_a_terminal_has_no_size() {
    let ground = Ground::new("no-tty");
    let run = ground.started(&ground.ask(&["forever"]));
    assert_eq!(control::resize(&run.job, 10, 10).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    run.stop("s1", true);
    run.settled();
}
