//! What commands read.

use crate::scene::{Scene, finish, kill};
use rustix::process::Signal;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn input_is_copied_whole_before_anything_starts() {
    let scene = Scene::new();
    scene.write("in", b"\nabc\0\xff");
    let answer = scene.ask(&["run", "--stdin", "in", "--", "od", "-An", "-tx1"]).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], " 0a 61 62 63 00 ff\n");
    let mut call = scene.call(&["run", "--stdin", "-", "--", "cat"]);
    let mut child = call.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    let output = child.wait_with_output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["data"]["output"]["stdout"]["text"], "from a pipe");
}

#[test]
fn input_that_does_not_end_starts_nothing() {
    let scene = Scene::new();
    let mut call = scene.call(&["run", "--stdin", "-", "--budget", "300ms", "--", "touch", "began"]);
    let mut child = call.stdin(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held);
    assert_eq!(output.status.code(), Some(4));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["error"]["code"], "INPUT_INCOMPLETE");
    assert!(!scene.work().join("began").exists());
    assert_eq!(scene.ask(&["job", "list", "--all"]).exits(0)["data"]["count"], 0);
    assert_eq!(std::fs::read_dir(scene.home().join("tmp")).unwrap().count(), 0, "the half copy is removed");
    let missing = scene.ask(&["run", "--stdin", "nowhere", "--", "true"]).exits(4);
    assert_eq!(missing["error"]["code"], "INPUT_NOT_FOUND");
    let folder = scene.ask(&["run", "--stdin", ".", "--", "true"]).exits(2);
    assert_eq!(folder["error"]["code"], "BAD_ARGUMENT");
    assert_eq!(folder["error"]["retryable"], false);
}

#[test]
fn an_open_pipe_is_written_by_offsets_and_closed_by_a_call() {
    let scene = Scene::new();
    let job = Scene::job_of(
        &scene
            .ask(&["run", "--background", "--stdin", "open", "--", "sh", "-c", "cat > f; echo closed"])
            .exits(0),
    );
    let send = |words: &[&str], text: &str| {
        let words: Vec<&str> = [&["job", "stdin", &job], words].concat();
        let mut call = scene.call(&words);
        let mut child = call.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(send(&[], "hello ")["data"]["offset"], 6);
    assert_eq!(send(&["--offset", "0"], "hello ")["data"]["offset"], 6, "said twice, written once");
    assert_eq!(send(&[], "world")["data"]["offset"], 11);
    let beyond = send(&["--offset", "100"], "x");
    assert_eq!(beyond["error"]["code"], "OFFSET_CONFLICT", "{beyond:#}");
    let closed = send(&["--close"], "!");
    assert_eq!(closed["data"]["closed"], true, "{closed:#}");
    let result = scene.ask(&["job", "wait", "--budget", "20s", &job]).exits(0);
    assert_eq!(result["data"]["output"]["stdout"]["text"], "closed\n");
    assert_eq!(scene.read("f"), "hello world!");
    let late = send(&[], "too late");
    assert_eq!(late["data"]["effect"], "noop");
    assert_eq!(late["data"]["state"], "settled");
    let other = Scene::job_of(&scene.ask(&["run", "--", "true"]).exits(0));
    assert_eq!(scene.ask(&["job", "stdin", &other]).exits(4)["error"]["code"], "NO_OPEN_STDIN");
}

#[test]
fn a_command_that_does_not_read_holds_nobody_up() {
    let scene = Scene::new();
    let job = Scene::job_of(
        &scene.ask(&["run", "--background", "--stdin", "open", "--", "sh", "-c", "sleep 1000; :"]).exits(0),
    );
    scene.write("much", vec![b'x'; 4 << 20]);
    let mut call = scene.call(&["job", "stdin", "--budget", "500ms", &job]);
    call.stdin(std::fs::File::open(scene.work().join("much")).unwrap());
    let answer = finish(call);
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
    let value = answer.exits(14);
    let offset = value["data"]["offset"].as_u64().unwrap();
    assert!(offset > 0 && offset < 4 << 20);
    assert!(value["error"]["fix_command"].as_str().unwrap().contains(&format!("--offset {offset}")));
}

#[test]
fn input_that_never_ends_is_bounded_by_the_budget() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--stdin", "/dev/zero", "--budget", "1s", "--", "touch", "began"]);
    assert!(answer.took < Duration::from_secs(10), "{:?}", answer.took);
    assert_eq!(answer.exits(4)["error"]["code"], "INPUT_INCOMPLETE");
    assert!(!scene.work().join("began").exists());
    assert_eq!(std::fs::read_dir(scene.home().join("tmp")).unwrap().count(), 0, "the half copy is removed");
    scene.write("in", "small");
    let none = scene.ask(&["run", "--stdin", "in", "--budget", "0", "--", "sh", "-c", "cat > f"]).json();
    scene.until_written("f", "small");
    scene.ask(&["job", "wait", "--budget", "20s", &Scene::job_of(&none)]).exits(0);
}

#[test]
fn callers_at_once_lose_nothing() {
    let scene = Scene::new();
    let words = ["run", "--background", "--stdin", "open", "--", "sh", "-c", "sort > f"];
    let job = Scene::job_of(&scene.ask(&words).exits(0));
    let callers: Vec<_> = (0..8)
        .map(|n| {
            let name = format!("in{n}");
            scene.write(&name, format!("line {n}\n"));
            let mut call = scene.call(&["job", "stdin", &job]);
            call.stdin(std::fs::File::open(scene.work().join(name)).unwrap());
            call.spawn().unwrap()
        })
        .collect();
    for caller in callers {
        assert!(caller.wait_with_output().unwrap().status.success());
    }
    scene.ask(&["job", "stdin", "--close", &job]).exits(0);
    scene.ask(&["job", "wait", "--budget", "20s", &job]).exits(0);
    assert_eq!(scene.read("f"), (0..8).map(|n| format!("line {n}\n")).collect::<String>());
}

#[test]
fn a_keeper_that_does_not_answer_is_no_success() {
    let scene = Scene::new();
    let words = ["run", "--background", "--stdin", "open", "--", "sh", "-c", "sleep 1000; :"];
    let job = Scene::job_of(&scene.ask(&words).exits(0));
    let warden = scene.process("outlast-warden");
    scene.write("in", "x");
    kill(warden, Signal::STOP);
    let [given, asked] = [&["--offset", "0"][..], &[]].map(|offset| {
        let mut call = scene.call(&[&["job", "stdin", "--budget", "1s", &job], offset].concat());
        call.stdin(std::fs::File::open(scene.work().join("in")).unwrap());
        finish(call)
    });
    kill(warden, Signal::CONT);
    for answer in [given, asked] {
        assert!(answer.took < Duration::from_secs(4), "{:?}", answer.took);
        assert_eq!(answer.exits(14)["error"]["code"], "INCOMPLETE");
    }
}
