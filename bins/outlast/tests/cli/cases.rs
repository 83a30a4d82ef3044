//! Cases from the field (A–F, J, K), each by its number, through the command line.

use crate::scene::{Scene, finish};
use std::time::Duration;

/// Runs it and says how long the call took, and what it answered.
fn run(scene: &Scene, options: &[&str], command: &[&str]) -> (Duration, serde_json::Value) {
    let words: Vec<&str> =
        [&["run", "--linger", "300ms", "--budget", "25s"], options, &["--"], command].concat();
    let answer = scene.ask(&words);
    (answer.took, answer.json())
}

fn sh(scene: &Scene, options: &[&str], script: &str) -> (Duration, serde_json::Value) {
    run(scene, &[&["--allow-detach"], options].concat(), &["bash", "-c", script])
}

fn nothing_left(scene: &Scene) {
    scene.until("every process to be gone", || scene.processes().is_empty().then_some(()));
}

#[test]
fn a1_a_timeout_ends_the_call_and_the_tree() {
    let scene = Scene::new();
    let (took, answer) =
        sh(&scene, &["--timeout", "500ms"], "mkfifo p; (while :; do echo c; sleep 0.1; done) >p & cat p");
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert!(took < Duration::from_secs(4), "{took:?}");
    nothing_left(&scene);
}

#[test]
fn a_exit_is_not_held_up_by_who_holds_the_pipe() {
    for (case, script, code) in [
        (2, "exec > >(tee f) 2>&1; true", 0),
        (4, "sleep 600 & exit 0", 0),
        (5, "sleep 10 &", 0),
        (7, "timeout 1 sh -c 'setsid sleep 600 & sleep 600'", 124),
        (8, "sleep 8 &", 0),
        (10, "sleep 600 & exit 0", 0),
        (11, "(sleep 300 &) ; true", 0),
    ] {
        let scene = Scene::new();
        let (took, answer) = sh(&scene, &[], script);
        assert_eq!(answer["meta"]["exit_code"], code, "case {case}: {answer:#}");
        assert!(took < Duration::from_secs(5), "case {case}: {took:?}");
        nothing_left(&scene);
    }
}

#[test]
fn a13_a_server_is_cut_over_and_a14_an_ampersand_is_refused() {
    let scene = Scene::new();
    let answer =
        scene.ask(&["run", "--budget", "300ms", "--", "bash", "-c", "while :; do sleep 1; done"]).exits(14);
    assert_eq!(answer["data"]["state"], "running");
    let refused = scene.ask(&["run", "-c", "sleep 300 & echo started"]).exits(2);
    assert_eq!(refused["error"]["code"], "DETACH_REFUSED");
}

#[test]
fn b16_b19_a_deadline_holds_in_the_background_and_says_so() {
    let scene = Scene::new();
    let job = Scene::job_of(
        &scene.ask(&["run", "--background", "--timeout", "300ms", "--", "sleep", "600"]).exits(0),
    );
    let answer = scene.ask(&["job", "wait", "--budget", "20s", &job]).exits(10);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert_eq!(answer["data"]["cause"]["kind"], "deadline");
}

#[test]
fn b17_what_still_runs_is_said_to_run() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--budget", "300ms", "--", "sleep", "1000"]).exits(14);
    assert_eq!(answer["data"]["state"], "running");
    assert!(answer["error"]["message"].as_str().unwrap().contains("continues in the background"));
}

#[test]
fn b28_silence_is_no_failure() {
    let scene = Scene::new();
    let (_, answer) = sh(&scene, &[], "echo start; sleep 1; echo end");
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "start\nend\n");
}

#[test]
fn b31_who_ignores_term_is_killed() {
    let scene = Scene::new();
    let (took, answer) =
        sh(&scene, &["--timeout", "300ms", "--grace", "300ms"], "trap '' TERM; sleep 999 & wait");
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert!(took < Duration::from_secs(4), "{took:?}");
    nothing_left(&scene);
}

#[test]
fn c_nothing_escapes_a_stop() {
    for (case, script) in [
        (32, "sleep 900 & wait"),
        (34, "for j in 1 2; do (while :; do :; done) & done; sleep 28"),
        (37, "setsid sh -c 'sleep 3000'"),
        (38, "(trap '' TERM; while :; do sleep 1; done) & sleep 1000"),
    ] {
        let scene = Scene::new();
        let words = ["run", "--background", "--allow-detach", "--grace", "200ms", "--", "bash", "-c", script];
        let job = Scene::job_of(&scene.ask(&words).exits(0));
        let answer = scene.ask(&["job", "cancel", "--budget", "20s", &job]).exits(0);
        assert!(answer["data"]["receipt"]["death"].is_string(), "case {case}");
        nothing_left(&scene);
    }
}

#[test]
fn c35_no_new_run_before_the_death_proof() {
    let scene = Scene::new();
    let script = "for i in $(seq 1000); do echo $i >> f; sleep 0.01; done";
    let (_, answer) = sh(&scene, &["--timeout", "200ms"], script);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    let lines = scene.read("f").lines().count();
    let (_, second) = sh(&scene, &["--timeout", "200ms"], script);
    assert_eq!(second["error"]["code"], "TIMEOUT");
    let text = scene.read("f");
    let second_run: Vec<&str> = text.lines().skip(lines).collect();
    assert!(
        second_run.iter().enumerate().all(|(at, line)| *line == (at + 1).to_string()),
        "two runs wrote at once"
    );
}

#[test]
fn c47_a_shell_that_kills_itself_is_answered() {
    let scene = Scene::new();
    let (_, answer) = sh(&scene, &[], "kill -9 $$; echo killed");
    assert_eq!(answer["meta"]["exit_code"], 137);
}

#[test]
fn d49_orphans_are_reaped() {
    let scene = Scene::new();
    let script = "for i in $(seq 200); do (sleep 0.01 &); done; sleep 0.3; ps --ppid $PPID -o stat= | grep -c '^Z' || true";
    let (_, answer) = sh(&scene, &["--containment", "subreaper"], script);
    assert_eq!(answer["meta"]["exit_code"], 0);
    let zombies: u64 = answer["data"]["output"]["stdout"]["text"].as_str().unwrap().trim().parse().unwrap();
    assert!(zombies < 50, "{zombies} zombies");
}

#[test]
fn e52_a_long_line_is_ordinary() {
    let scene = Scene::new();
    let (_, answer) =
        sh(&scene, &["--max-output", "100"], r"head -c 4194304 /dev/zero | tr '\0' x; echo; echo END");
    assert_eq!(answer["meta"]["exit_code"], 0);
    assert_eq!(answer["data"]["output"]["stdout"]["bytes"], 4_194_304 + 5);
    assert!(answer["data"]["output"]["stdout"]["text"].as_str().unwrap().ends_with("END\n"));
}

#[test]
fn e53_fast_output_is_never_empty() {
    let scene = Scene::new();
    for n in 0..30 {
        let text = format!("x{n}");
        let answer = scene.ask(&["run", "--", "echo", &text]).exits(0);
        assert_eq!(answer["data"]["output"]["stdout"]["text"], format!("{text}\n"));
    }
}

#[test]
fn e55_exit_and_output_stay_addressable() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--", "sh", "-c", "echo x; exit 5"]).exits(5));
    for _ in 0..2 {
        let answer = scene.ask(&["job", "wait", &job]).exits(5);
        assert_eq!(answer["data"]["output"]["stdout"]["text"], "x\n");
    }
}

#[test]
fn e62_e71_much_output_with_orphans_is_whole() {
    let scene = Scene::new();
    let (_, answer) = sh(&scene, &[], "yes | head -c 20000000; sleep 99 &");
    assert_eq!(answer["data"]["output"]["stdout"]["bytes"], 20_000_000);
    assert_eq!(answer["data"]["receipt"]["drain"]["kind"], "complete");
}

#[test]
fn e68_a_producer_is_never_blocked_by_its_reader() {
    let scene = Scene::new();
    let (_, answer) = sh(&scene, &[], "yes | head -c 1000000 >&1; touch done");
    assert_eq!(answer["meta"]["exit_code"], 0);
    assert!(scene.work().join("done").exists());
}

#[test]
fn h94_bytes_are_untouched() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "printf", r"\nabc"]).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "\nabc");
}

#[test]
fn j109_j110_a_command_has_its_own_input() {
    let scene = Scene::new();
    let mut call = scene.call(&["run", "--budget", "20s", "--", "sh", "-c", "cat; echo after"]);
    // The caller's own input is a terminal-like pipe that never ends: the command must not see it.
    let (read, _write) = std::io::pipe().unwrap();
    call.stdin(read);
    let answer = finish(call).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "after\n");
}

#[test]
fn j113_the_end_of_a_pseudo_terminal_is_an_end() {
    let scene = Scene::new();
    let answer =
        scene.ask(&["run", "--tty", "--", "sh", "-c", "test -t 0 && test -t 1 && echo tty; exit 6"]).exits(6);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "tty\r\n");
    assert_eq!(answer["data"]["receipt"]["drain"]["kind"], "complete");
}

#[test]
fn k115_a_limit_is_never_minus_one() {
    let scene = Scene::new();
    let (_, answer) = run(&scene, &["--timeout", "200ms"], &["sleep", "99"]);
    assert_eq!(answer["meta"]["exit_code"], 10);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert_eq!(answer["data"]["exit"]["kind"], "signaled");
}

#[test]
fn e70_f73_bytes_are_kept_with_no_reader_and_hash_to_what_the_receipt_says() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "seq", "1", "2000000"]).exits(0));
    let answer = scene.ask(&["job", "wait", "--budget", "25s", &job]).exits(0);
    let raw = scene.ask(&["job", "logs", "--raw", &job]);
    assert_eq!(raw.stdout.len(), 14_888_896);
    assert_eq!(
        blake3::hash(&raw.stdout).to_hex().as_str(),
        answer["data"]["receipt"]["blake3"].as_str().unwrap()
    );
}

#[test]
fn f74_endless_output_is_bounded_and_what_is_kept_is_read_at_once() {
    let scene = Scene::new();
    let words = ["run", "--timeout", "1s", "--log-limit", "4MiB", "--", "yes"];
    let answer = scene.ask(&words).exits(10);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert_eq!(answer["data"]["output"]["gaps"][0]["cause"], "log_limit");
    let answer = scene.ask(&["run", "--", "echo", "next"]);
    assert!(answer.took < Duration::from_secs(2), "{:?}", answer.took);
    answer.exits(0);
}

#[test]
fn f76_a_fork_storm_is_outside_the_keeper() {
    let scene = Scene::new();
    let script = "for i in $(seq 200); do sleep 100 & done; wait";
    let answer = scene.ask(&[
        "run",
        "--pids-limit",
        "20",
        "--timeout",
        "1s",
        "--grace",
        "200ms",
        "--",
        "bash",
        "-c",
        script,
    ]);
    if answer.code == 4 {
        assert_eq!(answer.json()["error"]["code"], "LIMIT_UNAVAILABLE", "{answer:?}");
        return;
    }
    let value = answer.json();
    assert!(value["data"]["receipt"]["death"].is_string(), "{value:#}");
    nothing_left(&scene);
}

#[test]
fn j112_the_end_of_input_is_a_call_with_an_answer() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--stdin", "open", "--", "cat"]).exits(0));
    let closed = scene.ask(&["job", "stdin", "--close", &job]).exits(0);
    assert_eq!(closed["data"]["closed"], true);
    scene.ask(&["job", "wait", "--budget", "20s", &job]).exits(0);
}
