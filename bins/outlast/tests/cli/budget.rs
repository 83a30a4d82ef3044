//! One call, bounded.

use crate::scene::{Scene, finish};
use std::time::Duration;

#[test]
fn the_budget_hands_off_and_the_work_goes_on() {
    let scene = Scene::new();
    let script = "echo began; while [ ! -e go ]; do sleep 0.05; done; echo done";
    let mut call = scene.call(&["run", "--", "sh", "-c", script]);
    call.env("AGENT_CALL_BUDGET_MS", "400");
    let answer = finish(call);
    assert!(
        answer.took >= Duration::from_millis(400) && answer.took < Duration::from_millis(1400),
        "{:?}",
        answer.took
    );
    let value = answer.exits(14);
    assert_eq!(value["error"]["code"], "INCOMPLETE");
    assert_eq!(value["error"]["retryable"], true);
    assert_eq!(value["meta"]["budget_ms"], 400);
    let data = &value["data"];
    assert_eq!(data["state"], "running");
    assert_eq!(data["output"]["stdout"]["text"], "began\n");
    assert_eq!(data["progress"], serde_json::json!({"done": 6, "unit": "bytes"}));
    assert!(data["activity"]["processes"].as_u64() >= Some(1));
    scene.write("go", "");
    let result = scene.line(&data["continue_command"]).exits(0);
    assert_eq!(result["data"]["job_id"], data["job_id"]);
    assert_eq!(result["data"]["output"]["stdout"]["text"], "began\ndone\n");
    assert!(
        result["meta"]["duration_ms"].as_u64() >= Some(400),
        "the work's duration, not the call's: {result:#}"
    );
}

#[test]
fn the_option_beats_the_variable_and_zero_turns_it_off() {
    let scene = Scene::new();
    let mut call = scene.call(&["run", "--budget", "0", "--", "sh", "-c", "sleep 0.3"]);
    call.env("AGENT_CALL_BUDGET_MS", "1");
    let answer = finish(call).exits(0);
    assert_eq!(answer["meta"]["budget_ms"], 0);
    let mut call = scene.call(&["run", "--", "true"]);
    call.env("AGENT_CALL_BUDGET_MS", "soon");
    let answer = finish(call).exits(2);
    assert_eq!(answer["error"]["code"], "BAD_ARGUMENT");
    assert!(answer["error"]["message"].as_str().unwrap().contains("AGENT_CALL_BUDGET_MS"));
}

#[test]
fn inside_a_job_there_is_no_budget_of_its_own() {
    let scene = Scene::new();
    let script = format!("{} run -- true", env!("CARGO_BIN_EXE_outlast"));
    let answer = scene.ask(&["run", "--", "sh", "-c", &script]).exits(0);
    let inner: serde_json::Value =
        serde_json::from_str(answer["data"]["output"]["stdout"]["text"].as_str().unwrap()).unwrap();
    assert_eq!(inner["ok"], true);
    assert!(inner["meta"].get("budget_ms").is_none(), "{inner:#}");
}

#[test]
fn with_on_limit_stop_nothing_is_left() {
    let scene = Scene::new();
    let script = "(trap '' TERM; sleep 100) & sleep 100; wait";
    let answer = scene
        .ask(&["run", "--budget", "300ms", "--grace", "200ms", "--on-limit", "stop", "-c", script])
        .exits(10);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert_eq!(answer["error"]["retryable"], false);
    assert_eq!(answer["data"]["cause"], serde_json::json!({"kind": "call_budget", "after_ms": 300}));
    assert!(answer["data"]["receipt"]["death"].is_string());
    scene.until("every process to be gone", || scene.processes().is_empty().then_some(()));
    let answer =
        scene.ask(&["run", "--budget", "20s", "--on-limit", "stop", "--", "echo", "in time"]).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "in time\n");
}

#[test]
fn the_exit_is_told_before_the_receipt() {
    let scene = Scene::new();
    // The leader ends at once; what it left behind lingers past the budget.
    let call = ["run", "--budget", "500ms", "--linger", "60s", "--allow-detach", "-c", "sleep 100 & exit 3"];
    let answer = scene.ask(&call).exits(14);
    assert_eq!(answer["data"]["exit"], serde_json::json!({"kind": "exited", "code": 3}));
    assert_eq!(answer["data"]["state"], "running");
}

#[test]
fn a_wait_keeps_its_budget_too() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "sh", "-c", "sleep 100; :"]).exits(0));
    for verb in ["wait", "logs"] {
        let mut words = vec!["job", verb, "--budget", "300ms", &job];
        if verb == "logs" {
            words.push("--follow");
        }
        let answer = scene.ask(&words);
        assert!(answer.took < Duration::from_millis(1300), "{verb}: {:?}", answer.took);
        assert_eq!(answer.exits(14)["error"]["code"], "INCOMPLETE");
    }
}

#[test]
fn in_text_the_hand_off_is_a_sentence_and_two_commands_to_copy() {
    let scene = Scene::new();
    let words =
        ["run", "--output", "text", "--budget", "300ms", "--", "sh", "-c", "echo a; tail -f /dev/null; :"];
    let answer = scene.ask(&words);
    assert_eq!(answer.code, 14);
    assert_eq!(answer.text(), "a\n");
    let job = scene.only_job();
    let program = env!("CARGO_BIN_EXE_outlast");
    assert_eq!(
        answer.stderr,
        format!(
            "outlast: the call's budget of 300ms is over; the work continues in the background (2 B of output)\n  \
             continue: {program} job wait {job} --output text\n  cancel:   {program} job cancel {job} --output text\n"
        )
    );
    let attached = scene.ask(&words);
    assert!(
        attached.stderr.starts_with(&format!("outlast: attached to job {job}, which began ")),
        "{}",
        attached.stderr
    );
}

#[test]
fn a_stop_at_the_limit_does_not_wait_for_who_ignores_it() {
    let scene = Scene::new();
    let words = ["run", "--budget", "500ms", "--on-limit", "stop", "--", "sh", "-c"];
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    let answer = scene.ask(&[&words[..], &[script]].concat());
    assert!(answer.took < Duration::from_secs(4), "{:?}", answer.took);
    assert_eq!(answer.exits(10)["error"]["code"], "TIMEOUT");
}
