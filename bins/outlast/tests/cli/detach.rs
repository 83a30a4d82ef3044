//! What would leave the job.

use crate::scene::Scene;

#[test]
fn leaving_syntax_is_refused_with_its_place_and_a_remedy() {
    let scene = Scene::new();
    for words in [
        &["run", "-c", "touch began\nsleep 300 & echo started"][..],
        &["run", "--", "nohup", "touch", "began"],
        &["run", "--", "bash", "-c", "touch began; setsid sleep 300"],
    ] {
        let answer = scene.ask(words).exits(2);
        assert_eq!(answer["error"]["code"], "DETACH_REFUSED", "{words:?}");
        assert_eq!(answer["error"]["phase"], "validation");
        assert!(answer["error"]["suggestion"].is_string());
        let finding = &answer["error"]["context"]["findings"][0];
        assert!(finding["line"].is_u64() && finding["excerpt"].is_string());
        assert_eq!(answer["error"]["context"]["_trusted"], false);
    }
    assert!(!scene.work().join("began").exists(), "nothing was started");
}

#[test]
fn allowed_it_runs_and_is_ended_all_the_same() {
    let scene = Scene::new();
    let words = ["run", "--allow-detach", "--linger", "200ms", "-c", "setsid sleep 300 & echo started"];
    let answer = scene.ask(&words).exits(0);
    assert_eq!(answer["warnings"][0]["code"], "DETACH_ALLOWED");
    assert_eq!(answer["data"]["stragglers"][0]["name"], "sleep");
    assert_eq!(answer["data"]["output"]["stdout"]["text"], "started\n");
}

#[test]
fn waiting_only_is_a_warning_to_a_person() {
    let scene = Scene::new();
    let answer = scene.ask(&["run", "-c", "while ! test -e /; do sleep 1; done"]).exits(0);
    assert_eq!(answer["warnings"][0]["code"], "BUSY_WAIT");
    let words = [
        "run",
        "--new",
        "--output",
        "text",
        "--budget",
        "1s",
        "-c",
        "while ! test -e go; do sleep 0.1; done",
    ];
    let said = scene.ask(&words).stderr;
    assert!(said.starts_with("outlast: warning: "), "{said}");
    assert_eq!(said.matches("BUSY_WAIT").count(), 1, "{said}");
    for job in scene.ask(&["job", "list"]).exits(0)["data"]["jobs"].as_array().unwrap() {
        let id = job["job_id"].as_str().unwrap();
        let status = scene.ask(&["job", "status", "--output", "text", id]);
        assert!(!status.stderr.contains("warning"), "{status:?}");
    }
}

#[test]
fn what_only_looks_like_it_is_not_refused() {
    let scene = Scene::new();
    scene.write("f", "nohup\n");
    for script in [
        "grep nohup f",
        "true && true",
        "true 2>&1",
        "true & true & wait",
        "echo 'a & b' \"$((3 & 1))\"",
        "cat <<'EOF'\nnohup x &\nEOF",
    ] {
        scene.ask(&["run", "-c", script]).exits(0);
    }
}
