//! Stopping, and its proof.

use crate::scene::Scene;

fn background(scene: &Scene, script: &str) -> String {
    Scene::job_of(
        &scene
            .ask(&["run", "--background", "--allow-detach", "--grace", "300ms", "--", "sh", "-c", script])
            .exits(0),
    )
}

#[test]
fn a_cancel_is_answered_with_the_proof() {
    let scene = Scene::new();
    let job = background(&scene, "sleep 1000 & setsid sleep 1000 & sleep 1000");
    scene.until("its tree", || {
        (scene.processes().iter().filter(|(_, name)| name == "sleep").count() == 3).then_some(())
    });
    let answer = scene.ask(&["job", "cancel", &job]).exits(0);
    assert!(answer["data"]["receipt"]["death"].is_string());
    assert_eq!(answer["data"]["state"], "settled");
    assert!(scene.processes().iter().all(|(_, name)| name != "sleep"), "answered before it was so");
    let again = scene.ask(&["job", "cancel", &job]).exits(0);
    assert_eq!(again["data"]["effect"], "noop");
    assert_eq!(again["data"]["receipt"], answer["data"]["receipt"]);
    let again = scene.ask(&["job", "cancel", "--output", "text", &job]);
    assert!(again.text().starts_with(&format!("was already over: {job}  ")), "{again:?}");
    let job = background(&scene, "sleep 1000; :");
    let stopped = scene.ask(&["job", "cancel", "--output", "text", &job]);
    assert!(stopped.text().starts_with(&format!("stopped: {job}  ")), "{stopped:?}");
}

#[test]
fn term_is_followed_by_kill_for_those_who_ignore_it() {
    let scene = Scene::new();
    let job = background(&scene, "trap '' TERM; touch began; while :; do sleep 0.05; done");
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    let answer = scene.ask(&["job", "cancel", &job]).exits(0);
    assert_eq!(answer["data"]["exit"]["signal"], 9);
    assert!(answer["data"]["duration_ms"].as_u64() >= Some(300), "the grace was kept");
}

#[test]
fn a_cancel_whose_proof_is_not_there_yet_says_stopping() {
    let scene = Scene::new();
    let words = [
        "run",
        "--background",
        "--grace",
        "60s",
        "--",
        "sh",
        "-c",
        "trap '' TERM; touch began; while :; do sleep 0.05; done",
    ];
    let job = Scene::job_of(&scene.ask(&words).exits(0));
    scene.until("it to begin", || scene.work().join("began").exists().then_some(()));
    let answer = scene.ask(&["job", "cancel", "--budget", "300ms", &job]).exits(14);
    assert_eq!(answer["data"]["state"], "stopping");
    assert_eq!(answer["error"]["retryable"], true);
    let forced = scene.ask(&["job", "cancel", "--force", &job]).exits(0);
    assert_eq!(forced["data"]["exit"]["signal"], 9);
}

#[test]
fn one_of_two_is_stopped_and_the_other_runs_on() {
    let scene = Scene::new();
    let one = background(&scene, "sleep 1001; :");
    let two = background(&scene, "sleep 1002; :");
    let list = scene.ask(&["job", "list"]).exits(0);
    assert_eq!(list["data"]["count"], 2);
    scene.ask(&["job", "cancel", &one]).exits(0);
    assert_eq!(scene.ask(&["job", "status", &two]).exits(14)["data"]["state"], "running");
    assert_eq!(
        scene.ask(&["job", "list"]).exits(0)["data"]["count"],
        1,
        "a cancelled job is nobody's business any more"
    );
}

#[test]
fn a_job_whose_command_was_killed_from_outside_is_settled_not_running_for_ever() {
    let scene = Scene::new();
    let job = background(&scene, "exec sleep 1003");
    crate::scene::kill(scene.process("sleep"), rustix::process::Signal::KILL);
    let answer = scene.ask(&["job", "cancel", "--budget", "20s", &job]).exits(0);
    assert_eq!(answer["data"]["exit"]["signal"], 9);
    let waited = scene.ask(&["job", "wait", &job]);
    assert_eq!(waited.exits(137)["error"]["code"], "COMMAND_FAILED");
}
