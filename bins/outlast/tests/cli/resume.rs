//! Work that continues where it was: the check of the agent specification's challenge 79, to the letter.

use crate::scene::{Scene, example, finish};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// 40 chunks of 64 KiB.
const CHUNKS: usize = 40;

fn big_file(scene: &Scene) {
    scene.write("big.csv", "a,b,c,d\n".repeat(CHUNKS * 8192));
}

fn done(answer: &Value) -> u64 {
    answer["data"]["progress"]["done"].as_u64().unwrap_or_else(|| panic!("no progress in {answer:#}"))
}

/// One call under the harness's budget and its outer limit.
fn bounded(scene: &Scene, words: &[&str], budget_ms: &str) -> crate::scene::Answer {
    let mut call = scene.call(words);
    call.env("AGENT_CALL_BUDGET_MS", budget_ms);
    let answer = finish(call);
    assert!(answer.took < Duration::from_secs(10), "the outer limit would have killed it: {:?}", answer.took);
    answer
}

#[test]
fn challenge_79() {
    let scene = Scene::new();
    big_file(&scene);
    let program = example("count_bytes");
    let words = ["run", "--resume", "--", &program, "big.csv", "--chunk-bytes", "65536", "--delay-ms", "500"];

    // "Run a command whose work takes 20 s with AGENT_CALL_BUDGET_MS=3000 under an outer 10 s timeout: verify exit 14
    // within about 4 s and a continue_command; run it until exit 0."
    let answer = bounded(&scene, &words, "3000");
    assert!(answer.took < Duration::from_millis(4000), "{:?}", answer.took);
    let mut value = answer.exits(14);
    let mut before = done(&value);
    assert!(before > 0);
    let next = value["data"]["continue_command"].clone();
    loop {
        let line = format!("AGENT_CALL_BUDGET_MS=3000 {}", next.as_str().unwrap());
        let answer = scene.line(&line.into());
        value = answer.json();
        assert!(done(&value) > before, "{} after {before}", done(&value));
        before = done(&value);
        if answer.code != 14 {
            break;
        }
    }
    assert_eq!(value["meta"]["exit_code"], 0);
    assert_eq!(value["data"]["output"]["stdout"]["text"], "327680 lines, 2621440 bytes\n");
    assert!(value["meta"]["duration_ms"].as_u64() >= Some(20_000));

    // "Repeat, kill -9 the process group midway, rerun the identical invocation, and verify that progress.done does not
    // restart from zero."
    let first = bounded(&scene, &words, "3000").exits(14);
    let group = scene.process("count_bytes");
    rustix::process::kill_process_group(rustix::process::Pid::from_raw(group).unwrap(), Signal::KILL)
        .unwrap();
    scene.until("the killed attempt to be settled", || {
        let state = scene.ask(&["job", "status", &Scene::job_of(&first)]).json()["data"]["state"].clone();
        (state == "settled").then_some(())
    });
    let second = bounded(&scene, &words, "1000").exits(14);
    assert_eq!(second["data"]["attempt"], 2);
    assert!(done(&second) >= done(&first), "{} after {}", done(&second), done(&first));
}

#[test]
fn killing_the_caller_s_group_leaves_the_job() {
    let scene = Scene::new();
    big_file(&scene);
    let program = example("count_bytes");
    let words = ["run", "--resume", "--", &program, "big.csv", "--chunk-bytes", "65536", "--delay-ms", "50"];
    use std::os::unix::process::CommandExt;
    let mut call = scene.call(&words);
    let mut child = call.process_group(0).spawn().unwrap();
    scene.process("count_bytes");
    let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    child.wait().unwrap();
    let answer = bounded(&scene, &words, "9000").exits(0);
    assert_eq!(answer["data"]["attempt"], 1, "it attached to the same job");
    assert!(answer["data"]["attached"]["started_at"].is_string());
    assert_eq!(done(&answer), 2_621_440);
}

#[test]
fn a_pause_saves_and_the_same_call_continues() {
    let scene = Scene::new();
    big_file(&scene);
    let program = example("count_bytes");
    let options = ["--chunk-bytes", "65536", "--delay-ms", "30"];
    let mut words =
        vec!["run", "--new", "--resume", "--no-detach", "--budget", "500ms", "--", &program, "big.csv"];
    words.extend(options);
    let mut value = scene.ask(&words).exits(14);
    assert_eq!(value["data"]["state"], "paused");
    assert!(scene.processes().iter().all(|(_, name)| name != "count_bytes"), "a paused job runs nothing");
    let next = value["data"]["continue_command"].as_str().unwrap().to_owned();
    assert!(!next.contains("--new"), "{next}");
    let by_id = scene.ask(&["job", "status", &Scene::job_of(&value)]).exits(14);
    assert!(by_id["data"]["continue_command"].as_str().unwrap().contains("job retry"));
    let mut rounds = 0;
    while value["meta"]["exit_code"] == 14 {
        let before = done(&value);
        let answer = scene.line(&next.clone().into());
        value = answer.json();
        assert!(done(&value) > before);
        rounds += 1;
        assert!(rounds < 20, "it does not get on");
    }
    assert_eq!(value["data"]["output"]["stdout"]["text"], "327680 lines, 2621440 bytes\n");
    assert!(rounds > 1 && value["data"]["attempt"].as_u64() > Some(1));
}

#[test]
fn a_save_that_takes_long_does_not_hold_the_call() {
    let scene = Scene::new();
    let script = "trap '' TERM; while [ ! -e end ]; do sleep 0.05; done";
    let words =
        ["run", "--resume", "--no-detach", "--budget", "500ms", "--grace", "60s", "--", "sh", "-c", script];
    let answer = scene.ask(&words);
    assert!(answer.took < Duration::from_secs(4), "{:?}", answer.took);
    let value = answer.exits(14);
    assert_eq!(value["data"]["state"], "stopping");
    let go_on = value["data"]["continue_command"].as_str().unwrap();
    assert!(go_on.contains("run --resume --no-detach"), "{go_on}");
    let attached = scene.line(&go_on.into()).exits(14);
    assert_eq!(attached["data"]["job_id"], value["data"]["job_id"]);
    scene.write("end", "");
    scene.ask(&["job", "wait", "--budget", "20s", &Scene::job_of(&value)]);
}

#[test]
fn sigterm_pauses_too() {
    let scene = Scene::new();
    big_file(&scene);
    let program = example("count_bytes");
    let words = [
        "run",
        "--resume",
        "--no-detach",
        "--",
        &program,
        "big.csv",
        "--chunk-bytes",
        "65536",
        "--delay-ms",
        "50",
    ];
    let call = scene.start(&words);
    scene.process("count_bytes");
    call.signal(Signal::TERM);
    let value = call.finish().exits(14);
    assert_eq!(value["data"]["state"], "paused");
    assert!(done(&value) > 0, "one save was finished");
}

#[test]
fn a_resumable_job_that_succeeded_starts_anew() {
    let scene = Scene::new();
    scene.write("small.csv", "a\nb\n");
    let words = ["run", "--resume", "--", &example("count_bytes"), "small.csv"];
    let first = scene.ask(&words).exits(0);
    let second = scene.ask(&words).exits(0);
    assert_ne!(first["data"]["job_id"], second["data"]["job_id"]);
    assert_eq!(second["data"]["attempt"], 1);
    assert_eq!(second["data"]["output"]["stdout"]["text"], "2 lines, 4 bytes\n");
}

#[test]
fn a_cancelled_job_starts_from_the_beginning() {
    let scene = Scene::new();
    big_file(&scene);
    let program = example("count_bytes");
    let words = [
        "run",
        "--resume",
        "--budget",
        "500ms",
        "--",
        &program,
        "big.csv",
        "--chunk-bytes",
        "65536",
        "--delay-ms",
        "100",
    ];
    let first = scene.ask(&words).exits(14);
    scene.line(&first["data"]["cancel_command"]).exits(0);
    let second = scene.ask(&words).exits(14);
    assert_eq!(second["data"]["attempt"], 1);
    assert!(done(&second) <= done(&first) + 65_536);
}
