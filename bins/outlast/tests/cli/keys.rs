//! Idempotency keys.

use crate::scene::Scene;

#[test]
fn the_same_result_for_as_long_as_it_is_kept() {
    let scene = Scene::new();
    let words =
        ["run", "--idempotency-key", "deploy-1", "--", "sh", "-c", "echo x >> runs; echo result; exit 3"];
    let first = scene.ask(&words).exits(3);
    assert!(first["meta"].get("idempotency_hit").is_none());
    for _ in 0..2 {
        let again = scene.ask(&words).exits(3);
        assert_eq!(again["data"]["job_id"], first["data"]["job_id"]);
        assert_eq!(again["meta"]["idempotency_hit"], true);
        assert_eq!(again["data"]["effect"], "noop");
        assert_eq!(again["data"]["output"]["stdout"]["text"], "result\n");
        assert_eq!(again["warnings"], serde_json::json!([]));
    }
    assert_eq!(scene.read("runs"), "x\n");
}

#[test]
fn another_command_under_the_same_key_is_refused() {
    let scene = Scene::new();
    scene.ask(&["run", "--idempotency-key", "k", "--", "true"]).exits(0);
    let answer = scene.ask(&["run", "--idempotency-key", "k", "--timeout", "1m", "--", "echo", "x"]).exits(6);
    assert_eq!(answer["error"]["code"], "KEY_CONFLICT");
    assert_eq!(answer["error"]["phase"], "validation");
    assert_eq!(answer["error"]["context"]["differs"], serde_json::json!(["command", "timeout"]));
}

#[test]
fn a_removed_job_s_key_is_still_answered() {
    let scene = Scene::new();
    let words = ["run", "--idempotency-key", "k", "--", "sh", "-c", "echo x >> runs; exit 4"];
    let first = scene.ask(&words).exits(4);
    let collected = scene.ask(&["job", "gc", "--keep", "0"]).exits(0);
    assert_eq!(collected["data"]["removed"], serde_json::json!([first["data"]["job_id"]]));
    let again = scene.ask(&words).exits(4);
    assert_eq!(again["data"]["job_id"], first["data"]["job_id"]);
    assert_eq!(again["meta"]["idempotency_hit"], true);
    assert!(again["data"]["output"].is_null() && again["data"]["output_unavailable"].is_string());
    assert_eq!(scene.read("runs"), "x\n");
    scene.ask(&["run", "--idempotency-key", "k", "--", "echo", "other"]).exits(6);
    let job = Scene::job_of(&first);
    let waited = scene.ask(&["job", "wait", &job]).exits(4);
    assert_eq!(waited["data"]["exit"]["code"], 4);
    scene.ask(&["job", "logs", &job]).exits(5);
}
