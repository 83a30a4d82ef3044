//! A thousand calls that are almost right.

use crate::ground::Random;
use crate::support::*;
use outlast_wire::client::request_id;

/// Words that make a difference where they come to stand.
const WORDS: &[&str] = &[
    "",
    "null",
    "0",
    "-1",
    "1e308",
    "18446744073709551615",
    "18446744073709551616",
    "\"\"",
    "{}",
    "[]",
    "true",
    "\\u0000",
    "\\ud800",
    "\"hex\"",
    "..",
    "/",
    "\r\n",
    "\0",
    "%00",
    "{\"hex\":\"ff\"}",
    "ü",
    "argv",
    "script",
    "\"kind\":",
    "content-length: 5\r\n",
    "transfer-encoding: chunked\r\n",
    "outlast-scope: \r\n",
    "accept: application/vnd.outlast.records\r\n",
    " HTTP/1.1\r\n",
];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.insert(at, random.below(256) as u8),
            3 => {
                let end = (at + random.below(40) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(60) as usize).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len() as u64 + 1) as usize;
                bytes.splice(to..to, part);
            }
            _ => {
                let word = WORDS[random.below(WORDS.len() as u64) as usize];
                let end = (at + random.below(8) as usize).min(bytes.len());
                bytes.splice(at..end, word.bytes());
            }
        }
    }
}

#[test]
fn a_thousand_calls_that_are_almost_right() {
    scene("mutations", async |scene| {
        let mut random = Random::new("mutations");
        let hello = scene.hello();
        let client = scene.client().await;
        let pid = scene.runner_pid();
        let mut admission = scene.argv("victim", &["cat"]);
        admission.stdin = outlast_wire::admission::StdinFrom::Open;
        let id = started(&client, &admission).await.job_id;
        let mut told = std::collections::BTreeMap::<u16, u32>::new();
        for number in 0..1000 {
            // What is admitted ends at once; what is mutated into another command is one of this folder's, without effect.
            let mut small = scene.argv(&format!("m-{number}"), &["true", "x"]);
            small.limits.deadline = Some(outlast_core::time::Millis(2000));
            let small = serde_json::to_vec(&small).unwrap();
            let settle = br#"{"how":"prove"}"#.to_vec();
            let (method, path, body) = match number % 10 {
                0..=2 => ("POST", "/v1/jobs?until=started&wait_ms=10".to_owned(), small),
                3 => ("POST", format!("/v1/jobs/{id}/settle"), settle),
                4 => ("POST", "/v1/seal".to_owned(), br#"{"run":"r"}"#.to_vec()),
                5 => ("GET", format!("/v1/jobs/{id}/output?from=0&max=10&wait_ms=1"), Vec::new()),
                6 => ("GET", format!("/v1/jobs/{id}?until=exited&wait_ms=1"), Vec::new()),
                7 => ("PUT", format!("/v1/jobs/{id}/stdin?offset=0&close=false"), b"some".to_vec()),
                8 => ("POST", format!("/v1/jobs/{id}/resize"), br#"{"rows":3,"cols":4}"#.to_vec()),
                _ => ("POST", "/hello".to_owned(), br#"{"versions":[1],"client":"x"}"#.to_vec()),
            };
            let headers = scene.bound(&hello);
            let bytes = match random.below(3) {
                // The body alone, so that much gets past the headers.
                0 | 1 if !body.is_empty() => {
                    let mut body = body;
                    mutate(&mut random, &mut body);
                    request(method, &path, &headers, &body)
                }
                _ => {
                    let mut bytes = request(method, &path, &headers, &body);
                    mutate(&mut random, &mut bytes);
                    bytes
                }
            };
            let mut stream = scene.connect();
            let _ = std::io::Write::write_all(&mut stream, &bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let answer = drain(&mut stream);
            let status = Answer::read(&answer).map_or(0, |answer| answer.status);
            *told.entry(status).or_default() += 1;
            assert!(
                status < 500,
                "call {number} was answered {}\n{}",
                String::from_utf8_lossy(&answer),
                String::from_utf8_lossy(&bytes)
            );
            assert_eq!(scene.runner_pid(), pid);
        }
        println!("mutations: answers by status: {told:?}");
        assert!(told.contains_key(&200) && told.len() > 4, "{told:?}");
        for job in client.list(None, 1000).await.unwrap().jobs {
            let _ = client.stop(&request_id().unwrap(), job.job_id, &stop("end", true)).await.unwrap();
        }
        // Some were admitted into scopes, and under generations, that a mutation made.
        let home = &scene.ground.home;
        until("all jobs to end", || {
            let open = home.jobs().unwrap().into_iter().filter(|id| {
                let job = home.job(*id).unwrap();
                job.is_some_and(|job| job.receipt().unwrap().is_none())
            });
            (open.count() == 0).then_some(())
        })
        .await;
    });
}
