//! What must be nowhere: values of secrets, and of what a command inherits.

use crate::ground::Random;
use crate::support::*;
use outlast_core::bytes::Bytes as Text;
use outlast_wire::client::{Read, Until, request_id};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

fn holds(bytes: &[u8], what: &str) -> bool {
    bytes.windows(what.len()).any(|part| part == what.as_bytes())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut word = 0u32;
        for at in 0..3 {
            word = word << 8 | u32::from(*three.get(at).unwrap_or(&0));
        }
        for at in 0..=three.len() {
            text.push(char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

#[test]
fn a_canary_is_nowhere() {
    scene("canary", async |scene| {
        let mut random = Random::new("canary");
        let mut canary = |begin: &str| {
            let rest: String = (0..24).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
            format!("{begin}{rest}")
        };
        let (secret, inherited) = (canary("SECRET"), canary("INHERITED"));
        let hello = scene.hello();
        let client = scene.client().await;
        let mut said: Vec<Vec<u8>> = Vec::new();

        // A command that has both, says one of them in many ways, and the other's length.
        let script = "echo is $CANARY; printf %s \"$CANARY\" | base64 -w0; echo; echo ${#INHERITED_CANARY}; \
                      echo $CANARY >&2; env | grep -c CANARY; printf '%s' \"$CANARY\" | cut -c1-10 | tr -d '\\n'; sleep 0.1; printf '%s\\n' \"$CANARY\" | cut -c11-";
        let mut admission = scene.sh("k", script);
        admission.secrets.insert("CANARY".into(), Text::from(secret.as_str()));
        admission.inherited.insert("INHERITED_CANARY".into(), Text::from(inherited.as_str()));
        assert!(!format!("{admission:?}").contains(&secret));
        let body = serde_json::to_vec(&admission).unwrap();
        let answer = scene.call("POST", "/v1/jobs?until=settled&wait_ms=20000", &scene.bound(&hello), &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        said.push(answer.text().into_bytes());
        let id = serde_json::from_value(answer.json()["job_id"].clone()).unwrap();
        let receipt = settled(&client, id).await;
        said.push(serde_json::to_vec(&receipt).unwrap());
        let (raw, _) = read_all(&client, id, Read::default()).await;
        let (framed, _) = read_all(&client, id, Read { records: true, ..Read::default() }).await;
        let text = String::from_utf8_lossy(&raw).into_owned();
        assert!(text.contains("is ") && text.contains(&format!("\n{}\n", inherited.len())), "{text}");
        assert_eq!(blake3_of(&receipt), blake3::hash(&raw).to_hex().to_string(), "of what is kept");
        said.extend([raw, framed]);

        // Errors of all kinds, with the values in them.
        let with = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(&admission).unwrap();
            value["key"] = serde_json::json!("errors");
            change(&mut value);
            value
        };
        let s = secret.as_str();
        let values = [
            with(&|v| v["command"] = serde_json::json!({"argv": ["echo", s]})),
            with(&|v| {
                v["command"] = serde_json::json!({"script": {"shell": "sh", "text": format!("echo {s}")}})
            }),
            with(&|v| v["env"] = serde_json::json!({"COPY": s})),
            with(&|v| v["key"] = serde_json::json!(format!("key {s}"))),
            with(&|v| v["secrets"] = serde_json::json!({"CANARY": [s]})),
            with(&|v| v["secrets"] = serde_json::json!({"CANARY": {"hex": s}})),
            with(&|v| v["secrets"] = serde_json::json!(s)),
            with(&|v| v["secrets"] = serde_json::json!({"CANARY": format!("{s}\0")})),
            with(&|v| v["inherited"] = serde_json::json!([inherited.as_str()])),
            with(&|v| v["inherited"] = serde_json::json!({"A": format!("{inherited}\0")})),
            with(&|v| v["secrets"] = serde_json::json!({"SHORT": "x"})),
            with(&|v| v["cwd"] = serde_json::json!("/nowhere")),
            with(&|v| v["attempt"] = serde_json::json!(s)),
            with(&|v| v["kind"] = serde_json::json!(s)),
            with(&|v| v["stdin"] = serde_json::json!({"kind": s})),
            with(&|v| v["caller"] = serde_json::json!(s)),
        ];
        let mut statuses = Vec::new();
        for value in values {
            let body = serde_json::to_vec(&value).unwrap();
            let answer = scene.call("POST", "/v1/jobs", &scene.bound(&hello), &body);
            statuses.push(answer.status);
            assert!((400..500).contains(&answer.status), "{value}: {}", answer.text());
            said.push(answer.text().into_bytes());
            // Cut short, it is no JSON, and the error is another.
            let answer = scene.call("POST", "/v1/jobs", &scene.bound(&hello), &body[..body.len() - 2]);
            said.push(answer.text().into_bytes());
        }
        // A conflict, a replay, a stale call, with the values in what is refused.
        let mut other = admission.clone();
        other.secrets.insert("CANARY".into(), Text::from(canary("SECRET").as_str()));
        let conflict =
            problem_of(client.admit(&request_id().unwrap(), &other, Until::Now, Duration::ZERO).await);
        assert_eq!(conflict.code, "KEY_CONFLICT");
        assert!(conflict.context.as_ref().unwrap().to_string().contains("secret"), "{conflict:?}");
        said.push(serde_json::to_vec(&conflict).unwrap());
        let mut stale = scene.bound(&hello);
        stale
            .iter_mut()
            .filter(|(name, _)| name == "outlast-expires-at")
            .for_each(|(_, value)| *value = "1".into());
        said.push(scene.call("POST", "/v1/jobs", &stale, &body).text().into_bytes());
        said.push(scene.call("GET", "/v1/jobs", &[], b"").text().into_bytes());
        said.push(scene.call("GET", &format!("/v1/jobs/{id}"), &[], b"").text().into_bytes());

        let mut files = Vec::new();
        files_below(scene.ground.home.path(), &mut files);
        files_below(&scene.ground.file("work"), &mut files);
        files.push(scene.ground.file("runner.err"));
        assert!(files.len() > 5);
        for canary in [&secret, &inherited] {
            let encoded = base64(canary.as_bytes());
            // What of a base64 text does not depend on what stands before it.
            let inner = &encoded[..encoded.len() - 4];
            for file in &files {
                let bytes = std::fs::read(file).unwrap_or_default();
                assert!(!holds(&bytes, canary), "{} holds {canary}", file.display());
                assert!(!holds(&bytes, inner), "{} holds {canary} in base64", file.display());
            }
            for bytes in &said {
                assert!(!holds(bytes, canary), "an answer has {canary}: {}", String::from_utf8_lossy(bytes));
                assert!(!holds(bytes, inner), "an answer has {canary} in base64");
            }
            // Nor on a command line.
            for process in crate::ground::all_processes() {
                let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
                assert!(!holds(&words, canary), "on a command line");
            }
        }
        println!("canary: {} files, {} answers, refusals {statuses:?}", files.len(), said.len());
    });
}

#[test]
fn a_command_inherits_what_is_named_and_no_more() {
    scene_with(
        "inherit",
        |_| vec!["--inherit".into(), "LANG".into()],
        async |scene| {
            let client = scene.client().await;
            let mut admission = scene.argv("k", &["/usr/bin/env"]);
            admission.env.insert("GIVEN".into(), Text::from("1"));
            let id = ran(&client, &admission).await.job_id;
            let (output, _) = read_all(&client, id, Read::default()).await;
            let text = String::from_utf8_lossy(&output).into_owned();
            let mut names: Vec<&str> =
                text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
            names.retain(|name| !name.starts_with("OUTLAST_"));
            names.sort_unstable();
            assert_eq!(names, ["GIVEN", "LANG"], "{text}");
        },
    );
}
