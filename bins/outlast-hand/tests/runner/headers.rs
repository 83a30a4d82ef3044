//! What a call carries: versions, and the facts that make it this hand's.

use crate::support::*;
use outlast_hand::dropped;
use outlast_wire::call;
use outlast_wire::client::{request_id, unix_ms};

fn hello(scene: &Scene, body: &str) -> Answer {
    scene.call("POST", "/hello", &[], body.as_bytes())
}

#[test]
fn versions() {
    scene("versions", async |scene| {
        for (offer, chosen) in [("[1]", 1), ("[1,99]", 1), ("[99,1]", 1), ("[0,1]", 1)] {
            let answer = hello(scene, &format!(r#"{{"versions":{offer}}}"#)).json();
            assert_eq!(answer["protocol"], chosen, "{offer}");
            assert_eq!(answer["offered"].to_string(), offer, "as it was seen");
            assert_eq!(answer["supported"].to_string(), "[1]");
        }
        let none = hello(scene, r#"{"versions":[0]}"#);
        assert_eq!((none.status, none.problem().code.as_str()), (409, "NO_COMMON_VERSION"));
        assert!(!none.problem().retryable);
        let many = format!(r#"{{"versions":{:?}}}"#, vec![1; 33]);
        for wrong in [
            r#"{"versions":[]}"#,
            &many,
            r#"{"versions":[-1]}"#,
            r#"{"versions":[4294967296]}"#,
            r#"{"versions":["1"]}"#,
            r#"{}"#,
            r#"{"versions":[1],"more":1}"#,
            r#"[1]"#,
            "",
        ] {
            assert_eq!(hello(scene, wrong).status, 422, "{wrong}");
        }
        let long = format!(r#"{{"versions":[1],"client":"{}"}}"#, "x".repeat(201));
        assert_eq!(hello(scene, &long).status, 422);
    });
}

#[test]
fn what_a_hand_says_of_itself_is_true() {
    scene("hello", async |scene| {
        let hello = scene.hello();
        assert_eq!(hello.runner_pid, scene.runner_pid().as_raw_nonzero().get() as u32);
        assert_eq!(hello.sandbox, scene.ground.home.sandbox());
        assert_eq!(hello.sandbox_generation, scene.ground.home.sandbox_generation());
        assert_eq!(hello.uid, rustix::process::geteuid().as_raw());
        let away = unix_ms().abs_diff(hello.now_ms);
        assert!(away < 60_000, "its clock is {away} ms away");
        for name in crate::ground::modes() {
            let offer = hello.containment.iter().find(|offer| offer.name == name.name());
            assert!(offer.is_some_and(|offer| offer.available), "{name:?}: {offer:?}");
        }
        let client = scene.client().await;
        ran(&client, &scene.sh("k", "true")).await;
        assert!(scene.hello().mutation_mark > hello.mutation_mark, "a job that ended left its mark");
    });
}

fn with(headers: &[(String, String)], name: &str, value: Option<&str>) -> Vec<(String, String)> {
    let mut changed: Vec<_> = headers.iter().filter(|(known, _)| known != name).cloned().collect();
    if let Some(value) = value {
        changed.push((name.to_owned(), value.to_owned()));
    }
    changed
}

#[test]
fn headers_that_are_missing_or_say_nothing() {
    scene("headers", async |scene| {
        let hello = scene.hello();
        let headers = scene.bound(&hello);
        let fence = |headers: &[(String, String)]| scene.call("POST", "/v1/fence", headers, b"{}");
        assert_eq!(fence(&headers).status, 200);
        let long = "r".repeat(129);
        let wrong: [(&str, &[Option<&str>]); 5] = [
            (call::REQUEST_ID, &[None, Some(""), Some("a b"), Some("ü"), Some(&long)]),
            (
                call::EXPIRES_AT,
                &[None, Some(""), Some("-1"), Some("soon"), Some("1e3"), Some("18446744073709551616")],
            ),
            (call::SANDBOX, &[None]),
            (call::SANDBOX_GENERATION, &[None, Some("x"), Some("1.0"), Some("-1")]),
            (call::GENERATION, &[None, Some(""), Some("0x1"), Some("99999999999999999999")]),
        ];
        for (name, values) in wrong {
            for value in values {
                let answer = fence(&with(&headers, name, *value));
                let problem = answer.problem();
                assert_eq!((answer.status, problem.code.as_str()), (400, "BAD_HEADER"), "{name}: {value:?}");
                assert!(problem.detail.contains(name), "{problem}");
            }
        }
        for value in [Some(""), Some(&*"s".repeat(513)), Some("\u{7f}")] {
            let answer = fence(&with(&headers, call::SCOPE, value));
            assert_eq!(answer.status, 400, "{value:?}: {}", answer.text());
        }
        // The same facts twice, saying different things, are no facts.
        for (name, other) in [(call::GENERATION, "7"), (call::SCOPE, "other"), (call::SANDBOX, "other")] {
            let mut twice = headers.clone();
            twice.push((name.to_owned(), other.to_owned()));
            let answer = fence(&with(&twice, call::REQUEST_ID, Some(&request_id().unwrap())));
            assert_eq!(answer.status, 400, "{name} twice: {}", answer.text());
        }
        assert_eq!(dropped::read(&scene.ground.home, 100), [], "mistakes are not stale");
    });
}

#[test]
fn what_is_stale_is_dropped_and_recorded() {
    scene("stale", async |scene| {
        let hello = scene.hello();
        let headers = scene.bound(&hello);
        let now = unix_ms();
        let other_generation = (hello.sandbox_generation.0 + 1).to_string();
        let rows = [
            (call::EXPIRES_AT, (now - 1).to_string()),
            (call::EXPIRES_AT, "0".to_owned()),
            (call::SANDBOX, "another".to_owned()),
            (call::SANDBOX, String::new()),
            (call::SANDBOX_GENERATION, other_generation),
            (call::SANDBOX_GENERATION, "0".to_owned()),
        ];
        let effect = scene.ground.file("effect");
        let admission = scene.sh("k", &format!("echo x > {}", effect.display()));
        let body = serde_json::to_vec(&admission).unwrap();
        for (number, (name, value)) in rows.iter().enumerate() {
            let request = format!("request-{number}");
            let headers = with(&with(&headers, name, Some(value)), call::REQUEST_ID, Some(&request));
            let answer = scene.call("POST", "/v1/jobs?until=settled&wait_ms=1000", &headers, &body);
            assert_eq!((answer.status, answer.problem().code.as_str()), (409, "STALE"), "{name}: {value}");
            let records = dropped::read(&scene.ground.home, 100);
            assert_eq!(records.len(), number + 1);
            let record = records.last().unwrap();
            assert_eq!(record.request_id.as_deref(), Some(request.as_str()));
            assert!(record.carried.contains(value.as_str()), "{record:?}");
            assert!(record.by.contains("uid"), "{record:?}");
        }
        let far = (now + 3_600_000 + 60_000).to_string();
        let answer = scene.call("POST", "/v1/jobs", &with(&headers, call::EXPIRES_AT, Some(&far)), &body);
        assert_eq!(
            (answer.status, answer.problem().code.as_str()),
            (400, "BAD_HEADER"),
            "it is no call for ever"
        );
        let most = u64::MAX.to_string();
        let answer = scene.call("POST", "/v1/jobs", &with(&headers, call::EXPIRES_AT, Some(&most)), &body);
        assert_eq!(answer.status, 400);
        assert_eq!(scene.call("GET", "/v1/jobs", &[], b"").json()["jobs"], serde_json::json!([]));
        assert!(!effect.exists());
        // Reads carry none of it.
        assert_eq!(scene.call("GET", "/v1/fence", &[], b"").status, 200);
    });
}

#[test]
fn a_request_id_is_one_request() {
    scene("request-id", async |scene| {
        let hello = scene.hello();
        let headers = scene.bound(&hello);
        let effect = scene.ground.file("effect");
        let first = serde_json::to_vec(&scene.sh("k", &format!("echo x >> {}", effect.display()))).unwrap();
        let other = serde_json::to_vec(&scene.sh("l", "true")).unwrap();
        let path = "/v1/jobs?until=settled&wait_ms=20000";
        let answer = scene.call("POST", path, &headers, &first);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let job = answer.json()["job_id"].clone();
        for _ in 0..3 {
            let again = scene.call("POST", path, &headers, &first);
            assert_eq!((again.status, &again.json()["job_id"]), (200, &job));
        }
        assert_eq!(std::fs::read_to_string(&effect).unwrap(), "x\n");
        let reused = scene.call("POST", path, &headers, &other);
        assert_eq!((reused.status, reused.problem().code.as_str()), (409, "REQUEST_ID_REUSED"));
        assert_eq!(dropped::read(&scene.ground.home, 100).len(), 1);
        // The same body to another path is another request.
        let elsewhere = scene.call("POST", "/v1/fence", &headers, b"{}");
        assert_eq!(elsewhere.status, 409);
        let job = job.as_str().unwrap();
        let stop = format!("/v1/jobs/{job}/stop");
        let headers = with(&headers, call::REQUEST_ID, Some("stops"));
        assert_eq!(
            scene.call("POST", &stop, &headers, br#"{"id":"s"}"#).json()["outcome"],
            "already_settled"
        );
        assert_eq!(
            scene.call("POST", &stop, &headers, br#"{"id":"s"}"#).json()["outcome"],
            "already_settled"
        );
        assert_eq!(scene.call("POST", &stop, &headers, br#"{"id":"t"}"#).status, 409);
        // In another scope it is another id.
        let scoped = with(&headers, call::SCOPE, Some("other"));
        assert_eq!(scene.call("POST", "/v1/fence", &scoped, b"{}").status, 200);
    });
}
