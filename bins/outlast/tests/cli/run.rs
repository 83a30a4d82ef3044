//! `outlast run` in the foreground.

use crate::scene::{Scene, finish};

#[test]
fn a_command_is_answered_with_its_output_and_its_receipt() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "sh", "-c", "echo out; echo err >&2"]).exits(0);
    let data = &answer["data"];
    assert_eq!(data["state"], "settled");
    assert_eq!(data["exit"], serde_json::json!({"kind": "exited", "code": 0}));
    assert_eq!(data["output"]["stdout"]["text"], "out\n");
    assert_eq!(data["output"]["stderr"]["text"], "err\n");
    assert_eq!(data["output"]["final_cursor"], 8);
    assert_eq!(data["receipt"]["drain"]["kind"], "complete");
    assert_eq!(data["receipt"]["blake3"].as_str().map(str::len), Some(64));
    assert!(data["continue_command"].is_null() && data["cancel_command"].is_null());
    assert_eq!(answer["meta"]["budget_ms"], 30_000);
    assert_eq!(answer["meta"]["timeout_ms"], 3_600_000);
}

#[test]
fn a_command_keeps_its_own_exit_code() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "sh", "-c", "exit 7"]).exits(7);
    assert_eq!(answer["error"]["code"], "COMMAND_FAILED");
    assert_eq!(answer["error"]["retryable"], false);
    let answer = scene.ask(&["run", "--", "sh", "-c", "kill -9 $$"]).exits(137);
    assert_eq!(answer["data"]["exit"]["kind"], "signaled");
    let answer = scene.ask(&["run", "--", "/nonexistent/program"]).exits(127);
    assert_eq!(answer["error"]["code"], "EXEC_FAILED");
    let plain = scene.write("plain", "no program");
    let answer = scene.ask(&["run", "--", plain.to_str().unwrap()]).exits(126);
    assert_eq!(answer["error"]["code"], "EXEC_FAILED");
}

#[test]
fn a_command_that_exits_14_is_not_incomplete() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "sh", "-c", "exit 14"]).exits(14);
    assert_eq!(answer["error"]["code"], "COMMAND_FAILED");
    assert_eq!(answer["error"]["retryable"], false);
    assert_eq!(answer["data"]["state"], "settled");
}

#[test]
fn text_is_the_command_s_own_bytes() {
    let scene = Scene::new();
    let script = r"printf 'a\000\377\033[31m'; printf 'e\376' >&2; exit 3";
    let answer = scene.ask(&["run", "--output", "text", "--", "sh", "-c", script]);
    assert_eq!(answer.code, 3);
    assert_eq!(answer.stdout, b"a\0\xff\x1b[31m");
    assert_eq!(answer.stderr.as_bytes(), "e\u{fffd}".as_bytes());
}

#[test]
fn bytes_that_are_no_text_are_told() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "printf", r"a\377"]).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "a\u{fffd}");
    assert_eq!(answer["data"]["output"]["stdout"]["lossy"], true);
}

#[test]
fn long_output_is_bounded_and_the_rest_can_be_read() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--", "seq", "1", "100000"]).exits(0);
    let stdout = &answer["data"]["output"]["stdout"];
    assert_eq!(stdout["bytes"], 588_895);
    assert_eq!(stdout["truncated"], true);
    let text = stdout["text"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n") && text.ends_with("99999\n100000\n"));
    assert!(text.len() < 33_000, "{}", text.len());
    let answer = scene.line(&answer["data"]["output"]["read_more_command"]).exits(0);
    assert_eq!(answer["data"]["cursor"], 16_384);
    assert_eq!(answer["data"]["more"], true);
    let small = scene.ask(&["run", "--max-output", "10", "--", "seq", "1", "1000"]).exits(0);
    let text = small["data"]["output"]["stdout"]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("1\n2\n3") && text.ends_with("1000\n"), "{text}");
}

#[test]
fn surroundings_are_the_ones_asked_for() {
    let scene = Scene::new();
    std::fs::create_dir(scene.work().join("sub")).unwrap();
    let answer =
        scene.ask(&["run", "--cwd", "sub", "--env", "A=1 2", "--", "sh", "-c", "pwd; echo $A"]).exits(0);
    let expected = format!("{}\n1 2\n", std::fs::canonicalize(scene.work().join("sub")).unwrap().display());
    assert_eq!(answer["data"]["output"]["stdout"]["text"], expected);
    let answer = scene.ask(&["run", "--cwd", "nowhere", "--", "true"]).exits(4);
    assert_eq!(answer["error"]["code"], "CWD_NOT_FOUND");
    assert_eq!(answer["error"]["phase"], "validation");
}

#[test]
fn the_budget_variable_is_not_passed_on() {
    let scene = Scene::new();
    let mut call =
        scene.call(&["run", "--", "sh", "-c", "echo [${AGENT_CALL_BUDGET_MS-none}] $OUTLAST_JOB_ID"]);
    call.env("AGENT_CALL_BUDGET_MS", "20000");
    let answer = finish(call).exits(0);
    assert_eq!(answer["meta"]["budget_ms"], 20_000);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], format!("[none] {}\n", Scene::job_of(&answer)));
}

#[test]
fn standard_input_is_empty_unless_given() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--budget", "20s", "--", "cat"]).exits(0);
    assert_eq!(answer["data"]["output"]["final_cursor"], 0);
}

#[test]
fn a_secret_is_masked_wherever_it_is_printed() {
    let scene = Scene::new();
    let mut call = scene.call(&[
        "run",
        "--secret",
        "TOKEN_X",
        "--",
        "sh",
        "-c",
        "echo [$TOKEN_X]; printf hunter; printf 2-long",
    ]);
    call.env("TOKEN_X", "hunter2-long");
    let answer = finish(call).exits(0);
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "[************]\n************");
    let answer = scene.ask(&["run", "--secret", "NOT_SET_X", "--", "true"]).exits(4);
    assert_eq!(answer["error"]["code"], "SECRET_NOT_SET");
    let mut short = scene.call(&["run", "--secret", "TOKEN_X", "--", "true"]);
    short.env("TOKEN_X", "ab");
    assert_eq!(finish(short).exits(4)["error"]["code"], "SECRET_NOT_MASKABLE");
}

#[test]
fn a_pipeline_is_judged_by_every_stage() {
    let scene = Scene::new();
    for (script, code) in [
        ("sh -c 'exit 101' | tail -n 20", 101),
        ("yes | head -n 1", 0),
        ("grep zzz /dev/null | wc -l", 0),
        ("true | grep zzz", 1),
    ] {
        for shell in ["bash", "dash"] {
            let answer = scene.ask(&["run", "--new", "--shell", shell, "-c", script]).exits(code);
            let data = &answer["data"];
            assert_eq!(data["stages"]["kind"], "captured", "{shell} {script}: {data:#}");
            assert_eq!(data["effective_status"], code, "{shell} {script}");
            assert!(data["shell_status"].is_u64());
        }
    }
    let answer = scene.ask(&["run", "--output", "text", "-c", "sh -c 'exit 101' | tail -n 20"]);
    assert_eq!(answer.code, 101);
    assert!(answer.stderr.contains("a stage of its pipeline failed with status 101"), "{}", answer.stderr);
}

#[test]
fn a_service_or_background_job_is_answered_once_it_has_started() {
    let scene = Scene::new();
    for option in ["--background", "--service"] {
        let answer = scene.ask(&["run", option, "--", "sh", "-c", "sleep 100; :"]).exits(0);
        assert_eq!(answer["ok"], true);
        assert_eq!(answer["data"]["state"], "running", "{answer:#}");
        let status = scene.ask(&["job", "status", &Scene::job_of(&answer)]).exits(14);
        assert_eq!(status["error"]["code"], "INCOMPLETE");
        let cancelled = scene.line(&answer["data"]["cancel_command"]).exits(0);
        assert_eq!(cancelled["data"]["cause"]["kind"], "stop");
        let again = scene.line(&answer["data"]["continue_command"]).exits(143);
        assert_eq!(again["error"]["code"], "CANCELLED");
    }
    let answer = scene.ask(&["run", "--background", "--output", "text", "--", "sh", "-c", "sleep 101; :"]);
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.text().trim().parse::<outlast_core::id::JobId>().map(|id| id.to_string()).unwrap(),
        answer.text().trim()
    );
    let failed = scene.ask(&["run", "--background", "--", "/nonexistent/program"]).exits(127);
    assert_eq!(failed["error"]["code"], "EXEC_FAILED");
}

#[test]
fn a_deadline_ends_the_whole_tree() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "--timeout", "300ms", "--", "sh", "-c", "echo a; sleep 100"]).exits(10);
    assert_eq!(answer["error"]["code"], "TIMEOUT");
    assert_eq!(answer["error"]["retryable"], false);
    assert_eq!(answer["data"]["cause"]["kind"], "deadline");
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "a\n", "output so far is kept");
    assert_eq!(answer["meta"]["timeout_ms"], 300);
}

#[test]
fn silence_past_the_idle_limit_is_a_stall() {
    let scene = Scene::new();
    let answer =
        scene.ask(&["run", "--idle-timeout", "300ms", "--", "sh", "-c", "echo a; sleep 100"]).exits(10);
    assert_eq!(answer["error"]["code"], "STALLED");
}

#[test]
fn a_containment_that_cannot_be_had_is_an_error() {
    let scene = Scene::new();
    let offers = scene.ask(&["doctor"]).exits(0);
    for offer in offers["data"]["offers"]["containment"].as_array().unwrap() {
        let name = offer["name"].as_str().unwrap();
        let answer = scene.ask(&["run", "--new", "--containment", name, "--", "true"]);
        if offer["available"] == true {
            assert_eq!(answer.exits(0)["data"]["receipt"]["boundary"], name);
        } else {
            assert_eq!(answer.exits(4)["error"]["code"], "CONTAINMENT_UNAVAILABLE");
        }
    }
}

#[test]
fn a_secret_in_the_command_is_refused_before_anything_is_written() {
    let scene = Scene::new();
    let value = "s3cr3t-value-of-mine";
    let with = format!("echo {value}");
    let set = format!("A={value}");
    for words in [
        &["--", "echo", value][..],
        &["-c", &with],
        &["--env", &set, "--", "true"],
        &["--idempotency-key", value, "--", "true"],
    ] {
        let mut call = scene.call(&[&["run", "--secret", "TOKEN_X"], words].concat());
        call.env("TOKEN_X", format!("{value}\n"));
        let answer = finish(call);
        let refused = answer.exits(2);
        assert_eq!(refused["error"]["code"], "SECRET_IN_COMMAND", "{words:?}");
        assert_eq!(refused["error"]["phase"], "validation");
        assert!(refused["error"]["suggestion"].as_str().unwrap().contains("-c 'echo \"$TOKEN_X\"'"));
        assert!(!answer.text().contains(value) && !answer.stderr.contains(value), "{answer:?}");
        assert!(!scene.home().exists(), "nothing was written");
    }
}
