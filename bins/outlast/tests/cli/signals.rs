//! Whatever ends the call leaves the work.

use crate::scene::Scene;
use rustix::process::Signal;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

const LONG: [&str; 7] = [
    "run",
    "--budget",
    "0",
    "--",
    "sh",
    "-c",
    "touch began; while [ ! -e go ]; do sleep 0.02; done; echo done",
];

fn goes_on(scene: &Scene) {
    let job = scene.only_job();
    scene.write("go", "");
    let result = scene.ask(&["job", "wait", &job]).exits(0);
    assert_eq!(result["data"]["output"]["stdout"]["text"], "done\n");
}

#[test]
fn sigterm_and_sighup_hand_off_at_once() {
    for signal in [Signal::TERM, Signal::HUP] {
        let scene = Scene::new();
        let call = scene.start(&LONG);
        scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
        call.signal(signal);
        let answer = call.finish();
        let value = answer.exits(14);
        assert_eq!(value["error"]["code"], "INCOMPLETE");
        assert_eq!(value["data"]["state"], "running");
        goes_on(&scene);
    }
}

#[test]
fn an_interrupt_without_a_terminal_only_ends_the_call() {
    let scene = Scene::new();
    let call = scene.start(&LONG);
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    call.signal(Signal::INT);
    call.finish().exits(14);
    goes_on(&scene);
}

#[test]
fn a_closed_standard_output_hands_off_at_once() {
    for output in ["json", "text"] {
        let scene = Scene::new();
        let words: Vec<&str> = [&LONG[..1], &["--output", output], &LONG[1..]].concat();
        let mut call = scene.start(&words);
        scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
        drop(call.child.stdout.take());
        let answer = call.finish();
        assert_eq!(answer.code, 14, "{output}: {answer:?}");
        goes_on(&scene);
    }
}

#[test]
fn the_caller_s_pipes_end_with_the_call() {
    let scene = Scene::new();
    let mut call = scene.call(&["run", "--budget", "300ms", "--", "sh", "-c", "sleep 100; :"]);
    let mut child = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let began = std::time::Instant::now();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    out.read_to_end(&mut a).unwrap();
    err.read_to_end(&mut b).unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "a job held the caller's pipes open");
    assert_eq!(child.wait().unwrap().code(), Some(14));
}

#[test]
fn a_reader_that_stops_reading_does_not_hold_the_call() {
    let scene = Scene::new();
    // Nobody reads the pipe: it fills, and the budget must be kept all the same.
    let mut call = scene.call(&[
        "run",
        "--output",
        "text",
        "--budget",
        "500ms",
        "--",
        "sh",
        "-c",
        "yes | head -c 2000000; sleep 100",
    ]);
    let mut child = call.spawn().unwrap();
    let began = std::time::Instant::now();
    let status = child.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(status.code(), Some(14));
}

#[test]
fn a_second_sigterm_exits_at_once() {
    let scene = Scene::new();
    // Paused, it may save; this one never ends by TERM, so only a second word ends the call.
    let words = [
        "run",
        "--budget",
        "0",
        "--resume",
        "--no-detach",
        "--grace",
        "60s",
        "--",
        "sh",
        "-c",
        "trap '' TERM; touch began; while :; do sleep 0.05; done",
    ];
    let call = scene.start(&words);
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    call.signal(Signal::TERM);
    let job = scene.only_job();
    scene.until("the stop", || {
        let status = scene.ask(&["job", "status", &job]).json();
        (status["data"]["state"] == "stopping").then_some(())
    });
    call.signal(Signal::TERM);
    let answer = call.finish();
    assert_eq!(answer.code, 143);
    assert!(answer.stdout.is_empty(), "it says nothing more");
}

#[test]
fn a_caller_that_leaves_nothing_behind_stops_the_work() {
    let scene = Scene::new();
    let words = ["run", "--budget", "60s", "--on-limit", "stop", "--", "sh", "-c", "touch began; sleep 100"];
    let call = scene.start(&words);
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    call.signal(Signal::TERM);
    let answer = call.finish();
    // It leaves at once; where the stop was as quick, with how it ended.
    let code = if answer.code == 14 { 14 } else { 130 };
    let job = Scene::job_of(&answer.exits(code));
    let result = scene.ask(&["job", "wait", "--budget", "20s", &job]).exits(143);
    assert_eq!(result["error"]["code"], "CANCELLED");
}

#[test]
fn a_job_outlives_whoever_started_it_and_nobody_s_signal_reaches_it() {
    let scene = Scene::new();
    let mut call = scene.start(&LONG);
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    call.child.kill().unwrap();
    call.child.wait().unwrap();
    goes_on(&scene);
}
