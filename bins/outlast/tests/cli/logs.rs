//! Reading output from anywhere, any number of times.

use crate::scene::Scene;

fn job(scene: &Scene, script: &str) -> String {
    Scene::job_of(&scene.ask(&["run", "--", "sh", "-c", script]).json())
}

#[test]
fn pages_follow_each_other_without_overlap() {
    let scene = Scene::new();
    let job = job(&scene, "seq 1 3000");
    let whole: String = (1..=3000).map(|n| format!("{n}\n")).collect();
    let mut read = String::new();
    let mut answer = scene.ask(&["job", "logs", "--max-output", "1000", &job]).exits(0);
    loop {
        for chunk in answer["data"]["chunks"].as_array().unwrap() {
            assert_eq!(chunk["cursor"], read.len());
            read.push_str(chunk["text"].as_str().unwrap());
        }
        assert_eq!(answer["data"]["next_cursor"], read.len());
        if answer["data"]["more"] == false {
            break;
        }
        let line = format!("{} --max-output 1000", answer["data"]["continue_command"].as_str().unwrap());
        answer = scene.line(&line.into()).exits(0);
    }
    assert_eq!(read, whole);
    assert_eq!(answer["data"]["final_cursor"], whole.len());
}

#[test]
fn raw_is_exact_and_text_is_a_view() {
    let scene = Scene::new();
    let job = job(
        &scene,
        r"printf 'a\000\377\033]0;t\007b'; printf 'ghp_0123456789abcdefghijABCDEFGHIJ012345\n' >&2",
    );
    let raw = scene.ask(&["job", "logs", "--raw", &job]);
    assert_eq!(raw.code, 0);
    assert_eq!(raw.stdout.len(), 10 + 41);
    assert!(raw.stdout.windows(10).any(|part| part == b"abcdefghij"), "raw hides nothing");
    let one = scene.ask(&["job", "logs", "--raw", "--stream", "stdout", &job]);
    assert_eq!(one.stdout, b"a\0\xff\x1b]0;t\x07b");
    let view = scene.ask(&["job", "logs", "--output", "text", &job]);
    assert_eq!(view.stdout, b"a\0\xff\x1b]0;t\x07b");
    assert!(!view.stderr.contains("abcdefghij"), "{}", view.stderr);
    let json = scene.ask(&["job", "logs", &job]).exits(0);
    assert!(!json.to_string().contains("abcdefghij"));
}

#[test]
fn follow_waits_for_what_is_to_come() {
    let scene = Scene::new();
    let script =
        "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; while [ ! -e end ]; do sleep 0.02; done";
    let answer = scene.ask(&["run", "--background", "--", "sh", "-c", script]).exits(0);
    let job = Scene::job_of(&answer);
    let follow = scene.start(&["job", "logs", "--follow", "--output", "text", "--budget", "0", &job]);
    let page = scene.start(&["job", "logs", "--follow", "--max-output", "4", "--cursor", "4", &job]);
    scene.write("go", "");
    let page = page.finish().exits(14);
    assert_eq!(page["data"]["chunks"][0]["text"], "two\n");
    assert!(page["data"]["continue_command"].as_str().unwrap().contains("--cursor 8 --follow"));
    scene.write("end", "");
    let followed = follow.finish();
    assert_eq!((followed.code, followed.text()), (0, "one\ntwo\n"));
}

#[test]
fn output_past_its_limit_is_a_stated_gap() {
    let scene = Scene::new();
    let words =
        ["run", "--log-limit", "3MiB", "--", "sh", "-c", "yes 0123456789abcdef | head -c 20000000; echo END"];
    let answer = scene.ask(&words).exits(0);
    let output = &answer["data"]["output"];
    assert_eq!(output["final_cursor"], 20_000_004);
    assert_eq!(output["stdout"]["bytes"], 20_000_004);
    assert!(output["stdout"]["text"].as_str().unwrap().ends_with("END\n"));
    assert_eq!(output["gaps"][0]["cause"], "log_limit", "{output:#}");
}

#[test]
fn a_cursor_beyond_the_end_finds_nothing() {
    let scene = Scene::new();
    let job = job(&scene, "echo a");
    let answer = scene.ask(&["job", "logs", "--cursor", "1000", &job]).exits(0);
    assert_eq!(answer["data"]["chunks"], serde_json::json!([]));
    assert_eq!(answer["data"]["more"], false);
}
