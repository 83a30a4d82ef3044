//! Reading output from anywhere, any number of times.

use crate::scene::{Scene, finish};

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
    let gap = &output["gaps"][0];
    let job = Scene::job_of(&answer);
    let from = (gap["from"].as_u64().unwrap() - 10).to_string();
    for follow in [&[][..], &["--follow"]] {
        let page = scene.ask(&[&["job", "logs", "--cursor", &from, &job], follow].concat()).json();
        assert_eq!(page["data"]["next_cursor"], gap["to"], "one page takes it: {page:#}");
        assert_eq!(page["data"]["gaps"], serde_json::json!([gap]));
        let next = gap["to"].to_string();
        let page = scene.ask(&[&["job", "logs", "--cursor", &next, &job], follow].concat()).json();
        assert_eq!(page["data"]["gaps"], serde_json::json!([]), "{page:#}");
        assert_eq!(page["data"]["chunks"][0]["cursor"], gap["to"]);
    }
}

#[test]
fn a_cursor_beyond_the_end_finds_nothing() {
    let scene = Scene::new();
    let job = job(&scene, "echo a");
    let answer = scene.ask(&["job", "logs", "--cursor", "1000", &job]).exits(0);
    assert_eq!(answer["data"]["chunks"], serde_json::json!([]));
    assert_eq!(answer["data"]["more"], false);
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let scene = Scene::new();
    let job = job(&scene, "echo a");
    for words in [
        &["job", "logs", &job][..],
        &["job", "logs", "--raw", &job],
        &["job", "logs", "--output", "text", &job],
        &["job", "list", "--all"],
        &["job", "status", &job],
        &["job", "explain", &job],
        &["job", "cancel", &job],
        &["doctor"],
        &["schema"],
        &["completions", "bash"],
        &["help", "run"],
        &["--version"],
    ] {
        let mut call = scene.call(words);
        call.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let answer = finish(call);
        assert_eq!(answer.code, 12, "{words:?}: {answer:?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{words:?}: {answer:?}");
        assert!(answer.stderr.contains("No space left"), "{words:?}: {answer:?}");
    }
}

#[test]
fn who_stops_reading_is_told_how_far_it_was() {
    let scene = Scene::new();
    let script = "seq 1 100; while [ ! -e end ]; do sleep 0.02; done";
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "sh", "-c", script]).exits(0));
    scene.until("output", || {
        let status = scene.ask(&["job", "status", &job]).exits(14);
        (status["data"]["progress"]["done"] == 292).then_some(())
    });
    let mut call = scene.call(&["job", "logs", "--follow", "--raw", "--budget", "0", &job]);
    let mut child = call.spawn().unwrap();
    let mut read = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut read).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(14), "{said}");
    assert!(said.contains("output was read up to cursor 292"), "{said}");
    scene.write("end", "");
}

#[test]
fn a_lost_log_is_no_empty_success() {
    let scene = Scene::new();
    let job = job(&scene, "echo one; echo two >&2");
    let mut segments = 0;
    for entry in std::fs::read_dir(scene.home().join("jobs").join(&job)).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("log.") {
            std::fs::remove_file(entry.path()).unwrap();
            segments += 1;
        }
    }
    assert!(segments > 0);
    let lost = serde_json::json!({ "from": 0, "to": 8, "cause": "lost" });
    let waited = scene.ask(&["job", "wait", &job]).exits(0);
    assert_eq!(waited["data"]["output"]["gaps"], serde_json::json!([lost]), "{waited:#}");
    assert_eq!(waited["data"]["output"]["stdout"]["truncated"], true);
    assert_eq!(waited["data"]["output"]["stderr"]["truncated"], true);
    assert_eq!(waited["warnings"][0]["code"], "OUTPUT_UNAVAILABLE");
    let page = scene.ask(&["job", "logs", &job]).exits(0);
    assert_eq!(page["data"]["gaps"], serde_json::json!([lost]), "{page:#}");
    assert_eq!((&page["data"]["truncated"], &page["data"]["more"]), (&true.into(), &false.into()));
    assert_eq!(page["warnings"][0]["code"], "OUTPUT_UNAVAILABLE");
    for words in [&["job", "wait", "--output", "text"][..], &["job", "logs", "--raw"]] {
        let told = scene.ask(&[words, &[&job]].concat());
        assert!(told.stdout.is_empty());
        assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
        assert!(told.stderr.contains("from cursor 0 to 8"), "{}", told.stderr);
    }
}

#[test]
fn a_limit_too_small_for_a_log_is_refused() {
    let scene = Scene::new();
    let refused = scene.ask(&["run", "--log-limit", "65535", "--", "true"]).exits(2);
    assert_eq!(refused["error"]["code"], "BAD_ARGUMENT");
    assert!(refused["error"]["message"].as_str().unwrap().contains("64KiB"), "{refused:#}");
    scene.ask(&["run", "--log-limit", "64KiB", "--", "true"]).exits(0);
}
