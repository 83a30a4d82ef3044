//! Jobs that lost their keeper: unknown is a state, and nothing is made up.

use crate::scene::{Scene, kill};
use rustix::process::Signal;
use std::time::Duration;

/// Starts a job and kills its warden.
fn lose(scene: &Scene, words: &[&str]) -> String {
    let job = Scene::job_of(&scene.ask(words).exits(0));
    kill(scene.process("outlast-warden"), Signal::KILL);
    scene.until("the warden to be gone", || {
        scene.processes().iter().all(|(_, name)| name != "outlast-warden").then_some(())
    });
    job
}

const WORDS: [&str; 8] =
    ["run", "--background", "--containment", "subreaper", "--", "sh", "-c", "echo partial; sleep 1000; :"];

#[test]
fn a_wait_for_a_lost_job_does_not_hang() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&WORDS).exits(0));
    scene.until("output", || {
        (scene.ask(&["job", "logs", &job]).exits(0)["data"]["next_cursor"] == 8).then_some(())
    });
    kill(scene.process("outlast-warden"), Signal::KILL);
    let answer = scene.ask(&["job", "wait", "--budget", "20s", &job]);
    assert!(answer.took < Duration::from_secs(10));
    let value = answer.exits(1);
    assert_eq!(value["error"]["code"], "JOB_LOST");
    assert_eq!(value["error"]["retryable"], false);
    assert_eq!(value["error"]["detail"], "partial\n");
    assert_eq!(value["error"]["context"]["_trusted"], false);
    assert_eq!(value["data"]["state"], "unknown");
    assert!(value["data"]["exit"].is_null());
    assert!(value["error"]["suggestion"].as_str().unwrap().contains(&format!("job retry {job}")));
    assert!(value["error"]["fix_command"].as_str().unwrap().contains(&format!("job settle {job}")));
    let all_forms = || {
        for form in [&["--output", "text"][..], &["--raw"], &["--output", "text", "--follow"]] {
            let written = scene.ask(&[&["job", "logs", &job], form].concat());
            assert_eq!((written.code, written.text()), (0, "partial\n"), "{form:?}");
        }
    };
    all_forms();
    end(&scene, &job);
    all_forms();
}

/// Ends what is left, by a person's word.
fn end(scene: &Scene, job: &str) {
    scene.ask(&["job", "settle", "--budget", "20s", job]);
    scene.ask(&["job", "settle", job, "--attest", "the test", "--yes"]).exits(0);
}

#[test]
fn its_workspace_admits_nothing_until_it_is_settled() {
    let scene = Scene::new();
    let job = lose(&scene, &WORDS);
    let refused = scene.ask(&["run", "--", "true"]).exits(6);
    assert_eq!(refused["error"]["code"], "WORKSPACE_UNKNOWN");
    assert!(refused["error"]["fix_command"].as_str().unwrap().contains(&format!("job settle {job}")));
    let settled = scene.ask(&["job", "settle", "--budget", "20s", &job]).exits(4);
    assert_eq!(settled["error"]["code"], "DEATH_NOT_PROVED");
    let shown = scene.ask(&["job", "settle", &job, "--attest", "ada"]).exits(4);
    assert_eq!(shown["error"]["code"], "CONFIRMATION_REQUIRED");
    assert_eq!(
        shown["error"]["context"]["processes"],
        serde_json::json!([]),
        "asked to settle, its tree was ended"
    );
    assert!(shown["error"].get("fix_command").is_none(), "no word is put into anyone's mouth: {shown:#}");
    assert!(shown["error"]["suggestion"].as_str().unwrap().contains("look first"), "{shown:#}");
    assert_eq!(scene.ask(&["job", "list"]).exits(0)["data"]["count"], 1);
    let attested = scene.ask(&["job", "settle", &job, "--attest", "ada", "--yes"]).exits(0);
    assert_eq!(attested["data"]["attested"]["name"], "ada");
    assert_eq!(attested["data"]["state"], "unknown", "a word is no proof");
    scene.ask(&["run", "--", "true"]).exits(0);
    assert_eq!(scene.ask(&["job", "list"]).exits(0)["data"]["count"], 0, "nobody has to do with it any more");
    assert_eq!(scene.ask(&["job", "list", "--all"]).exits(0)["data"]["jobs"][0]["state"], "settled");
    let listed = scene.ask(&["job", "list", "--all", "--output", "text"]);
    assert!(listed.text().contains("unknown (attested)"), "{}", listed.text());
    let waited = scene.ask(&["job", "wait", &job]).exits(1);
    assert_eq!(waited["error"]["code"], "JOB_LOST");
    assert!(waited["error"]["fix_command"].as_str().unwrap().contains("job retry"));
}

#[test]
fn processes_that_carry_the_mark_are_shown_before_anyone_attests() {
    let scene = Scene::new();
    let job = lose(&scene, &["run", "--background", "--containment", "subreaper", "--", "sleep", "1000"]);
    let shown = scene.ask(&["job", "settle", &job, "--attest", "ada"]).exits(4);
    assert_eq!(shown["error"]["context"]["processes"][0]["name"], "sleep");
    assert_eq!(shown["error"]["context"]["_source"], "external");
    end(&scene, &job);
}

#[test]
fn a_namespace_proves_the_death_and_a_later_attempt_may_follow() {
    let scene = Scene::new();
    let offers = scene.ask(&["doctor"]).exits(0);
    let offers = offers["data"]["offers"]["containment"].as_array().unwrap().clone();
    if offers.iter().any(|offer| offer["name"] == "pid_namespace" && offer["available"] != true) {
        eprintln!("skipped: no PID namespaces here");
        return;
    }
    let words = [
        "run",
        "--background",
        "--containment",
        "pid_namespace",
        "--",
        "sh",
        "-c",
        "echo x >> runs; sleep 1000; :",
    ];
    let job = lose(&scene, &words);
    let settled = scene.ask(&["job", "settle", "--budget", "20s", &job]).exits(0);
    assert_eq!(settled["data"]["receipt"]["death"], "pid_namespace_init_gone");
    let lost = scene.ask(&["job", "wait", &job]).exits(1);
    assert_eq!(lost["error"]["code"], "JOB_LOST");
    let retry = lost["error"]["fix_command"].as_str().unwrap();
    let retried = scene.line(&format!("{retry} --background").into()).exits(0);
    assert_eq!(retried["data"]["attempt"], 2);
    let stale = scene.ask(&["job", "retry", &job]).exits(6);
    assert_eq!(stale["error"]["code"], "NOT_THE_LATEST");
}

#[test]
fn a_living_job_is_neither_settled_nor_retried() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "sh", "-c", "sleep 1000; :"]).exits(0));
    assert_eq!(scene.ask(&["job", "settle", &job]).exits(4)["error"]["code"], "KEEPER_LIVES");
    assert_eq!(
        scene.ask(&["job", "settle", &job, "--attest", "a", "--yes"]).exits(4)["error"]["code"],
        "KEEPER_LIVES"
    );
    let refused = scene.ask(&["job", "retry", &job]).exits(6);
    assert_eq!(refused["error"]["code"], "NOT_PROVED_DEAD");
    let suggestion = refused["error"]["suggestion"].as_str().unwrap();
    assert!(
        suggestion.contains(&format!("job wait {job}")) && !suggestion.contains("settle"),
        "{suggestion}"
    );
    assert!(refused["error"]["fix_command"].as_str().unwrap().contains("job cancel"));
    assert_eq!(scene.ask(&["job", "status", &job]).exits(14)["data"]["state"], "running");
}

#[test]
fn explain_names_who_owes_what() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "sh", "-c", "sleep 1000; :"]).exits(0));
    let running = scene.ask(&["job", "explain", &job]).exits(0);
    let owed: Vec<_> = running["data"]["obligations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|obligation| obligation.get("settled_by").is_none())
        .map(|obligation| {
            (
                obligation["what"].as_str().unwrap().to_owned(),
                obligation["owed_by"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert!(owed.contains(&("death_proof".to_owned(), "warden".to_owned())), "{owed:?}");
    scene.ask(&["job", "cancel", &job]).exits(0);
    let settled = scene.ask(&["job", "explain", &job]).exits(0);
    assert!(settled["data"]["obligations"].as_array().unwrap().iter().all(|o| o["settled_by"].is_string()));
    assert_eq!(settled["data"]["receipt"]["job_id"], job.as_str());
    let text = scene.ask(&["job", "explain", "--output", "text", &job]);
    assert!(text.text().contains("settled  death proof"), "{}", text.text());
}
