//! Every command keeps to the envelope. (Each JSON answer in these tests is checked against the schema.)

use crate::scene::{Scene, finish};

#[test]
fn wrong_arguments_are_an_envelope_too() {
    let scene = Scene::new();
    for (words, command) in [
        (&["run"][..], "run"),
        (&["run", "--nonsense", "--", "true"], "run"),
        (&["run", "--budget", "soon", "--", "true"], "run"),
        (&["run", "true"], "run"),
        (&["job", "wait"], "job wait"),
        (&["job", "nonsense"], "outlast"),
        (&["nonsense"], "outlast"),
        (&[], "outlast"),
        (&["job", "resize", "x", "0", "80"], "job resize"),
    ] {
        let answer = scene.ask(words).exits(2);
        assert_eq!(answer["error"]["code"], "BAD_ARGUMENT", "{words:?}");
        assert_eq!(answer["error"]["phase"], "validation");
        assert_eq!(answer["meta"]["command"], command, "{words:?}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(!message.ends_with(':'), "{message}");
        let fix = answer["error"]["fix_command"].as_str().unwrap();
        assert!(fix.starts_with("outlast help") || fix.starts_with("outlast run -- "), "{fix}");
    }
    assert!(!scene.home().exists(), "nothing was done");
    let text = scene.ask(&["run", "--output", "text"]);
    assert_eq!(text.code, 2);
    assert!(text.stdout.is_empty() && text.stderr.contains("Usage"));
    let missing = scene.ask(&["job", "wait"]).exits(2);
    assert!(missing["error"]["message"].as_str().unwrap().contains("<JOB>"), "{missing:#}");
    let text = scene.ask(&["run", "--output", "text", "sleep", "1"]);
    let hint = "hint: put the command after --: outlast run --output text -- sleep 1\n";
    assert!(text.code == 2 && text.stderr.ends_with(hint), "{text:?}");
    for (option, value) in [("--memory-limit", "1000"), ("--pids-limit", "0")] {
        let answer = scene.ask(&["run", option, value, "--", "true"]).exits(2);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(option) && message.contains("at least 1"), "{message}");
    }
}

#[test]
fn bad_surroundings_are_named() {
    let scene = Scene::new();
    let mut call = scene.call(&["run", "--", "true"]);
    call.env("OUTLAST_SCOPE", "a\nb");
    assert!(finish(call).exits(2)["error"]["message"].as_str().unwrap().contains("OUTLAST_SCOPE"));
    let mut call = scene.call(&["run", "--", "true"]);
    for name in ["OUTLAST_HOME", "XDG_STATE_HOME", "HOME"] {
        call.env_remove(name);
    }
    assert_eq!(finish(call).exits(4)["error"]["code"], "HOME_NOT_SET");
    let file = scene.write("file", "");
    let answer = scene.ask(&["run", "--home", file.to_str().unwrap(), "--", "true"]).exits(4);
    assert_eq!(answer["error"]["code"], "HOME_UNUSABLE");
    assert_eq!(answer["error"]["retryable"], false);
    let below = file.join("home");
    for words in [&["run", "--", "true"][..], &["job", "list"], &["doctor"]] {
        let mut call = scene.call(words);
        call.env("OUTLAST_HOME", &below);
        assert_eq!(finish(call).exits(4)["error"]["code"], "HOME_UNUSABLE", "{words:?}");
    }
}

#[test]
fn a_home_that_was_named_is_named_again() {
    let scene = Scene::new();
    let other = scene.work().join("other home");
    let words = ["run", "--home", other.to_str().unwrap(), "--background", "--", "sh", "-c", "sleep 1000; :"];
    let answer = scene.ask(&words).exits(0);
    let cancel = answer["data"]["cancel_command"].clone();
    assert!(cancel.as_str().unwrap().contains("--home '"), "{cancel}");
    scene.line(&cancel).exits(0);
    assert!(!scene.home().exists());
}

#[test]
fn reading_an_empty_home_makes_none() {
    let scene = Scene::new();
    assert_eq!(scene.ask(&["job", "list"]).exits(0)["data"]["jobs"], serde_json::json!([]));
    scene.ask(&["job", "wait", "abc"]).exits(5);
    scene.ask(&["job", "gc"]).exits(0);
    assert!(!scene.home().exists());
}

#[test]
fn the_rest_of_the_commands() {
    let scene = Scene::new();
    let done = Scene::job_of(&scene.ask(&["run", "--", "echo", "a"]).exits(0));
    scene.ask(&["job", "list", "--all"]).exits(0);
    scene.ask(&["job", "status", &done]).exits(0);
    scene.ask(&["job", "explain", &done]).exits(0);
    scene.ask(&["job", "logs", &done]).exits(0);
    scene.ask(&["job", "settle", &done]).exits(0);
    assert_eq!(scene.ask(&["job", "resize", &done, "24", "80"]).exits(4)["error"]["code"], "NO_TERMINAL");
    let verified = scene.ask(&["doctor", "--verify"]).exits(0);
    assert_eq!(verified["data"]["verify"]["violations"], serde_json::json!([]));
    let schema: serde_json::Value = serde_json::from_str(scene.ask(&["schema"]).text()).unwrap();
    assert_eq!(schema["required"].as_array().map(Vec::len), Some(5));
    for shell in ["bash", "zsh", "fish"] {
        let completions = scene.ask(&["completions", shell]);
        assert!(completions.code == 0 && completions.text().contains("idempotency-key"));
    }
}

#[test]
fn retrying_a_job_keeps_its_command_and_its_input() {
    let scene = Scene::new();
    scene.write("in", "input\n");
    let words = ["run", "--stdin", "in", "--env", "A=1", "--", "sh", "-c", "cat; echo $A; exit 5"];
    let first = scene.ask(&words).exits(5);
    let again = scene.ask(&["job", "retry", &Scene::job_of(&first)]).exits(5);
    assert_eq!(again["data"]["attempt"], 2);
    assert_eq!(again["data"]["output"]["stdout"]["text"], "input\n1\n");
}
