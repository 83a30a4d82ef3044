//! The identical call is the same call.

use crate::scene::{Scene, finish};

#[test]
fn the_identical_call_attaches_while_the_job_runs() {
    let scene = Scene::new();
    let script = "echo x >> runs; while [ ! -e go ]; do sleep 0.02; done; echo done";
    let words = ["run", "--budget", "300ms", "--", "sh", "-c", script];
    let first = scene.ask(&words).exits(14);
    let second = scene.ask(&words).exits(14);
    assert_eq!(first["data"]["job_id"], second["data"]["job_id"]);
    assert!(first["data"].get("attached").is_none());
    assert!(second["data"]["attached"]["started_at"].is_string());
    scene.write("go", "");
    let third = scene.ask(&["run", "--budget", "20s", "--", "sh", "-c", script]).exits(0);
    assert_eq!(
        third["data"]["job_id"], first["data"]["job_id"],
        "how long to wait is no part of the identity"
    );
    assert_eq!(third["data"]["output"]["stdout"]["text"], "done\n");
    assert_eq!(scene.read("runs"), "x\n", "it ran once");
}

#[test]
fn a_result_nobody_received_is_handed_over_once_and_said_to_be_old() {
    let scene = Scene::new();
    let words = ["run", "--budget", "200ms", "--", "sh", "-c", "echo x >> runs; sleep 0.5; echo result"];
    let first = scene.ask(&words).exits(14);
    let job = Scene::job_of(&first);
    scene.until("the job to be settled", || (scene.ask(&["job", "status", &job]).code == 0).then_some(()));
    let second = scene.ask(&words).exits(0);
    assert_eq!(second["data"]["job_id"], first["data"]["job_id"]);
    let warnings = second["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == "EARLIER_RUN"), "{warnings:?}");
    assert!(second["data"]["attached"]["ended_at"].is_string());
    assert_eq!(second["data"]["output"]["stdout"]["text"], "result\n");
    let third = scene
        .ask(&["run", "--budget", "20s", "--", "sh", "-c", "echo x >> runs; sleep 0.5; echo result"])
        .exits(0);
    assert_ne!(third["data"]["job_id"], first["data"]["job_id"], "after that it is a new job");
    assert!(third["data"].get("attached").is_none());
    assert_eq!(scene.read("runs"), "x\nx\n");
}

#[test]
fn a_wait_receives_the_result_for_good() {
    let scene = Scene::new();
    let words = ["run", "--background", "--", "sh", "-c", "echo x >> runs"];
    let first = scene.ask(&words).exits(0);
    scene.ask(&["job", "wait", &Scene::job_of(&first)]).exits(0);
    let second = scene.ask(&words).exits(0);
    assert_ne!(second["data"]["job_id"], first["data"]["job_id"]);
    scene.until_written("runs", "x\nx\n");
}

#[test]
fn what_is_different_is_another_call() {
    let scene = Scene::new();
    std::fs::create_dir(scene.work().join("sub")).unwrap();
    scene.write("in", "x");
    let base = ["run", "--background", "--", "sh", "-c", "sleep 100; :"];
    let job = |words: &[&str]| Scene::job_of(&scene.ask(words).exits(0));
    let first = job(&base);
    assert_eq!(job(&base), first);
    let other_words = job(&["run", "--background", "--", "sh", "-c", "sleep 100; : "]);
    let other_folder = job(&["run", "--background", "--cwd", "sub", "--", "sh", "-c", "sleep 100; :"]);
    let other_input = job(&["run", "--background", "--stdin", "in", "--", "sh", "-c", "sleep 100; :"]);
    let new = job(&["run", "--background", "--new", "--", "sh", "-c", "sleep 100; :"]);
    let mut call = scene.call(&base);
    call.env("OUTLAST_SCOPE", "another");
    let other_scope = Scene::job_of(&finish(call).exits(0));
    let mut all = vec![first, other_words, other_folder, other_input, new, other_scope.clone()];
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6);
    let mut cancel = scene.call(&["job", "cancel", "--force", &other_scope]);
    cancel.env("OUTLAST_SCOPE", "another");
    finish(cancel).exits(0);
}

#[test]
fn a_cancelled_job_is_never_found() {
    let scene = Scene::new();
    let words = ["run", "--background", "--", "sh", "-c", "sleep 100; :"];
    let first = scene.ask(&words).exits(0);
    scene.line(&first["data"]["cancel_command"]).exits(0);
    let second = scene.ask(&words).exits(0);
    assert_ne!(first["data"]["job_id"], second["data"]["job_id"]);
}

#[test]
fn jobs_of_another_scope_do_not_exist() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--", "true"]).exits(0));
    for verb in ["wait", "status", "logs", "cancel", "settle", "retry", "explain"] {
        let foreign = |id: &str| {
            let mut call = scene.call(&["job", verb, id]);
            call.env("OUTLAST_SCOPE", "another");
            finish(call).exits(5)["error"]["message"].as_str().unwrap().replace(id, "ID")
        };
        assert_eq!(
            foreign(&job),
            foreign("0000000000000000.1.1"),
            "{verb} tells a foreign job from a missing one"
        );
    }
    let mut list = scene.call(&["job", "list", "--all"]);
    list.env("OUTLAST_SCOPE", "another");
    assert_eq!(finish(list).exits(0)["data"]["count"], 0);
}

#[test]
fn a_job_is_named_by_any_beginning_of_its_id() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--", "echo", "1"]).exits(0));
    assert_eq!(scene.ask(&["job", "status", &job[..6]]).exits(0)["data"]["job_id"], job.as_str());
    scene.ask(&["run", "--new", "--", "echo", "1"]).exits(0);
    let answer = scene.ask(&["job", "status", &job[..6]]).exits(2);
    assert_eq!(answer["error"]["code"], "AMBIGUOUS_ID");
    for nothing in ["zzzz", "../../etc", "", "7k2m9qxw4t1rz5cb.1.1"] {
        assert_eq!(
            scene.ask(&["job", "status", nothing]).exits(5)["error"]["code"],
            "JOB_NOT_FOUND",
            "{nothing}"
        );
    }
}

#[test]
fn many_identical_calls_at_once_start_one_job() {
    let scene = Scene::new();
    let words = ["run", "--budget", "20s", "--", "sh", "-c", "echo x >> runs; sleep 0.3; echo r"];
    let calls: Vec<_> = (0..8).map(|_| scene.start(&words)).collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.finish().exits(0)).collect();
    for answer in &answers {
        assert_eq!(answer["data"]["output"]["stdout"]["text"], "r\n");
    }
    // Whoever comes after the first result was handed over starts a new run, and says nothing else.
    let mut jobs: Vec<_> = answers.iter().map(Scene::job_of).collect();
    jobs.sort();
    jobs.dedup();
    assert_eq!(scene.read("runs").lines().count(), jobs.len());
}
