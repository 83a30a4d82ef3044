//! Who means harm: bytes that are no call, calls without end, connections without number.

use crate::ground::{LONG, Random};
use crate::support::*;
use outlast_core::id::JobId;
use outlast_wire::client::{Http, Until, request_id};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The runner serves others.
#[track_caller]
fn serves(scene: &Scene) {
    let began = Instant::now();
    let answer = scene.call("GET", "/v1/fence", &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(began.elapsed() < Duration::from_secs(5), "served after {:?}", began.elapsed());
}

/// Reads the head of an answer on a connection that stays.
fn first_answer(stream: &mut UnixStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    Answer::read(&bytes)
}

fn head(method: &str, path: &str, headers: &[(String, String)], last: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: hand\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(last);
    text.push_str("\r\n\r\n");
    text.into_bytes()
}

/// Whoever has said all there is, and closes the input of `connect`, still gets the answer: at once, and after a wait. One
/// whose reader goes is gone, though it never closed its input.
#[test]
fn connect_answers_whoever_has_closed_its_input() {
    scene("half-closed", async |scene| {
        let client = scene.client().await;
        let go = scene.ground.file("go");
        let script = format!("while [ ! -e '{}' ]; do sleep 0.02; done; echo x", go.display());
        let id = started(&client, &scene.argv("k", &["sh", "-c", &script])).await.job_id;
        let connect = || {
            let mut command = std::process::Command::new(PROGRAM);
            command.args(["connect", "--no-start", "--home"]).arg(scene.ground.home.path());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let output = format!("/v1/jobs/{id}/output?wait_ms=20000");
        for (path, expected) in [("/v1/fence", "generation"), (output.as_str(), "x")] {
            let mut child = connect();
            let mut input = child.stdin.take().unwrap();
            input.write_all(&head("GET", path, &[], "connection: close")).unwrap();
            drop(input);
            std::fs::write(&go, "").unwrap();
            let told = child.wait_with_output().unwrap();
            let answer = Answer::read(&told.stdout).expect("an answer");
            assert!(told.status.success() && answer.status == 200, "{path}: {}", answer.text());
            assert!(answer.text().contains(expected), "{path}: {}", answer.text());
        }
        let mut child = connect();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success());
    });
}

/// A call whose headers came in time and whose body did not is dropped.
#[test]
fn a_body_that_comes_after_the_expiry_changes_nothing() {
    scene("late-body", async |scene| {
        let client = scene.client().await;
        let id = started(&client, &scene.sh("k", "exec sleep 600")).await.job_id;
        let mut headers = scene.bound(&scene.hello());
        let expires = outlast_wire::client::unix_ms() + 300;
        for (name, value) in &mut headers {
            if name == outlast_wire::call::EXPIRES_AT {
                *value = expires.to_string();
            }
        }
        let body = br#"{"id": "late"}"#;
        let whole = request("POST", &format!("/v1/jobs/{id}/stop"), &headers, body);
        let (first, rest) = whole.split_at(whole.len() - 5);
        let mut stream = scene.connect();
        stream.write_all(first).unwrap();
        until("the expiry", || (outlast_wire::client::unix_ms() > expires).then_some(())).await;
        stream.write_all(rest).unwrap();
        let answer = Answer::read(&drain(&mut stream)).expect("an answer");
        assert_eq!((answer.status, answer.problem().code.as_str()), (409, "STALE"), "{}", answer.text());
        assert!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().ending.is_none());
        assert_eq!(stop_now(&client, id).await.stops, ["the-end"]);
    });
}

/// A log that could keep nothing is refused before anything starts.
#[test]
fn a_limit_that_keeps_no_output_is_refused() {
    scene("least-log", async |scene| {
        let client = scene.client().await;
        for bytes in [1, 1000, 65_535] {
            let mut admission = scene.sh("k", "echo hi");
            admission.limits.log_bytes = Some(bytes);
            let refused = client.admit(&request_id().unwrap(), &admission, Until::Now, Duration::ZERO).await;
            assert_eq!(problem_of(refused).code, "BAD_LIMIT", "{bytes}");
        }
        let mut admission = scene.sh("k", "echo hi");
        admission.limits.log_bytes = Some(65_536);
        ran(&client, &admission).await;
    });
}

/// A body that does not fit says where, and what belongs there; what stands there is not repeated.
#[test]
fn bodies_that_do_not_fit_are_told_what_belongs_there() {
    scene("unfit", async |scene| {
        let hello = scene.hello();
        for (body, told) in [
            (r#"{"key": "k", "command": ["hunter2"], "cwd": "/"}"#, "does not belong"),
            (r#"{"key": "k", "command": {"argv": "hunter2"}, "cwd": "/"}"#, "expected a sequence"),
            (r#"{"key": "k", "cwd": "/"}"#, "missing field `command`"),
            (r#"{"key": "k", "command": {"argv": ["x"]}, "cwd": "/", "deadline": 1}"#, "`limits`"),
            (r#"{"key": "k", "command": {"argv": ["x"]}, "cwd": "/", "kind": "hunter2"}"#, "`service`"),
            (r#"{"key": "hunter2""#, "is no JSON"),
        ] {
            let answer = scene.call("POST", "/v1/jobs", &scene.bound(&hello), body.as_bytes());
            assert_eq!(answer.status, 422, "{body}");
            let text = answer.text();
            assert!(text.contains("BAD_BODY") && text.contains(told), "{body}: {text}");
            assert!(!text.contains("hunter2"), "{body}: {text}");
        }
    });
}

/// A refusal that leaves a body unread ends its connection, and says so; one whose body is little and on its way does not
/// end it.
#[test]
fn a_refusal_says_whether_its_connection_goes_on() {
    scene("unread", async |scene| {
        let hello = scene.hello();
        let bound = scene.bound(&hello);
        let mut stale = bound.clone();
        stale.iter_mut().find(|(name, _)| name == "outlast-sandbox").unwrap().1 = "another".into();
        let closes = |answer: &Answer| answer.head.to_lowercase().contains("connection: close");
        let much = vec![b' '; 64 << 10];
        for (path, headers, status) in
            [("/v1/jobs", &stale, 409), ("/nothing", &bound, 404), ("/v1/jobs", &Vec::new(), 400)]
        {
            // None of a large body was sent.
            let mut stream = scene.connect();
            let length = format!("content-length: {}", much.len());
            stream.write_all(&head("POST", path, headers, &length)).unwrap();
            let answer = first_answer(&mut stream).expect("an answer");
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            assert!(closes(&answer), "{path}: {}", answer.text());
            assert_eq!(stream.read(&mut [0; 4096]).unwrap_or(0), 0, "{path}: it stays open");
            // Nor one of a length that nobody knows.
            let mut stream = scene.connect();
            stream.write_all(&head("POST", path, headers, "transfer-encoding: chunked")).unwrap();
            let answer = first_answer(&mut stream).expect("an answer");
            assert!(answer.status == status && closes(&answer), "{path}: {}", answer.text());
            // Whoever asks whether to send a body is told no, and sends another call only elsewhere.
            let mut stream = scene.connect();
            let expects = "content-length: 2\r\nexpect: 100-continue";
            stream.write_all(&head("POST", path, headers, expects)).unwrap();
            let answer = first_answer(&mut stream).expect("an answer");
            assert!(answer.status == status && closes(&answer), "{path}: {}", answer.text());
            // A little one, which comes a little later than its head, and again on the same connection.
            let mut stream = scene.connect();
            for _ in 0..3 {
                stream.write_all(&head("POST", path, headers, "content-length: 2")).unwrap();
                stream.write_all(b"{}").unwrap();
                let answer = first_answer(&mut stream).expect("an answer");
                assert!(answer.status == status && !closes(&answer), "{path}: {}", answer.text());
            }
        }
        // What was read is no reason to close.
        let mut stream = scene.connect();
        for _ in 0..2 {
            stream.write_all(&head("POST", "/hello", &[], "transfer-encoding: chunked")).unwrap();
            stream.write_all(b"10\r\n{\"versions\": [1]\r\n1\r\n}\r\n0\r\n\r\n").unwrap();
            let answer = first_answer(&mut stream).expect("an answer");
            assert!(answer.status == 200 && !closes(&answer), "{}", answer.text());
        }
    });
}

#[test]
fn bodies_beyond_the_limit() {
    scene("bodies", async |scene| {
        let hello = scene.hello();
        let client = scene.client().await;
        let mut admission = scene.argv("k", &["cat"]);
        admission.stdin = outlast_wire::admission::StdinFrom::Open;
        let id = started(&client, &admission).await.job_id;
        let stdin = format!("/v1/jobs/{id}/stdin?offset=0");
        for (method, path, limit) in [
            ("POST", "/v1/jobs", 8u64 << 20),
            ("POST", "/v1/seal", 8 << 20),
            ("POST", "/hello", 8 << 20),
            ("PUT", stdin.as_str(), 1 << 20),
            ("POST", "/v1/spool", 1 << 30),
        ] {
            let headers = scene.bound(&hello);
            // Announced: refused before any of it came.
            for announced in [limit + 1, u64::MAX / 2, u64::MAX] {
                let mut stream = scene.connect();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                stream
                    .write_all(&head(method, path, &headers, &format!("content-length: {announced}")))
                    .unwrap();
                let answer = first_answer(&mut stream);
                let answer =
                    answer.unwrap_or_else(|| panic!("{path}: no answer to {announced} announced bytes"));
                assert!(
                    answer.status == 413 || (announced == u64::MAX && [400, 431].contains(&answer.status)),
                    "{path} {announced}: {}",
                    answer.text()
                );
            }
            if limit > 8 << 20 {
                continue;
            }
            // Counted: refused as soon as it is too much.
            let mut stream = scene.connect();
            stream.write_all(&head(method, path, &headers, "transfer-encoding: chunked")).unwrap();
            let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
            let mut sent = 0;
            while sent <= limit + (1 << 20) && stream.write_all(&chunk).is_ok() {
                sent += 0x10000;
            }
            let answer = first_answer(&mut stream).unwrap_or_else(|| panic!("{path}: no answer to chunks"));
            assert_eq!(answer.status, 413, "{path}: {}", answer.text());
        }
        serves(scene);
        stop_now(&client, id).await;
        let left = std::fs::read_dir(scene.ground.home.path().join("tmp")).unwrap().count();
        assert_eq!(left, 0, "spools that were never finished are left");
    });
}

#[test]
fn a_spool_that_breaks_off_leaves_nothing() {
    scene("spool-broken", async |scene| {
        let hello = scene.hello();
        for _ in 0..5 {
            let mut stream = scene.connect();
            let head = head("POST", "/v1/spool", &scene.bound(&hello), "content-length: 1000000");
            stream.write_all(&[head.as_slice(), &[b'x'; 100_000]].concat()).unwrap();
            drop(stream);
        }
        serves(scene);
        let tmp = scene.ground.home.path().join("tmp");
        let names = || {
            let entries = std::fs::read_dir(&tmp).unwrap().flatten();
            entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
        };
        let end = Instant::now() + Duration::from_secs(10);
        while !names().is_empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(names(), Vec::<std::ffi::OsString>::new());
    });
}

#[test]
fn headers_without_end() {
    scene("big-headers", async |scene| {
        let big = vec![("x-big".to_owned(), "x".repeat(100 << 10))];
        let answer = Answer::read(&scene.raw(&request("GET", "/v1/fence", &big, b"")));
        assert!(answer.is_none_or(|answer| answer.status == 431), "served");
        let many: Vec<_> = (0..5000).map(|n| (format!("x-{n}"), "y".to_owned())).collect();
        let answer = Answer::read(&scene.raw(&request("GET", "/v1/fence", &many, b"")));
        assert!(answer.is_none_or(|answer| (400..500).contains(&answer.status)), "served");
        let answer =
            Answer::read(&scene.raw(&request("GET", &format!("/{}", "x".repeat(100 << 10)), &[], b"")));
        assert!(answer.is_none_or(|answer| (400..500).contains(&answer.status)), "served");
        serves(scene);
        let memory = scene.runner_memory();
        assert!(memory < 64 << 10, "{memory} KiB");
    });
}

#[test]
fn who_is_slow_keeps_nobody_waiting() {
    scene("slow", async |scene| {
        let hello = scene.hello();
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        let mut slow = Vec::new();
        for number in 0..100 {
            let mut stream = scene.connect();
            let bytes = match number % 4 {
                0 => b"GET /v1/fence HTTP/1.1\r\nhost: ha".to_vec(),
                1 => b"PRI * HTTP/2.0\r\n\r\nSM".to_vec(),
                2 => head("POST", "/v1/jobs", &scene.bound(&hello), "content-length: 1000"),
                _ => Vec::new(),
            };
            stream.write_all(&bytes).unwrap();
            slow.push(stream);
        }
        serves(scene);
        stop_now(&client, id).await;
        drop(slow);
    });
}

#[test]
fn slow_bodies_never_take_the_memory_that_a_stop_needs() {
    scene("slow-bodies", async |scene| {
        let hello = scene.hello();
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        let mut slow = Vec::new();
        for number in 0..32 {
            let mut stream = scene.connect();
            let last = if number % 2 == 0 { "content-length: 8388608" } else { "transfer-encoding: chunked" };
            stream.write_all(&head("POST", "/v1/jobs", &scene.bound(&hello), last)).unwrap();
            slow.push(stream);
        }
        // Behind them on the loop.
        serves(scene);
        let began = Instant::now();
        let stopped = client.stop(&request_id().unwrap(), id, &stop("s", true)).await;
        assert!(stopped.is_ok(), "{stopped:?} after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(5), "answered after {:?}", began.elapsed());
        settled(&client, id).await;
        drop(slow);
    });
}

#[test]
fn bytes_that_are_no_call() {
    scene("garbage", async |scene| {
        let mut random = Random::new("garbage");
        let tls_hello = [
            &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..],
            &[7; 32],
            &[0, 0, 2, 0x13, 1, 1, 0, 0, 153],
            &[0; 153],
        ]
        .concat();
        let mut rows: Vec<Vec<u8>> = vec![
            tls_hello,
            b"GET /\r\n\r\n".to_vec(),
            b"GET / HTTP/0.9\r\n\r\n".to_vec(),
            b"GET / HTTP/3.0\r\nhost: x\r\n\r\n".to_vec(),
            b"\r\n\r\n\r\n\r\n\r\n".to_vec(),
            b"\0\0\0\0\0\0\0\0\n\n".to_vec(),
            b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
            b"CONNECT hand:1 HTTP/1.1\r\nhost: hand\r\n\r\n".to_vec(),
            b"OPTIONS * HTTP/1.1\r\nhost: hand\r\nconnection: close\r\n\r\n".to_vec(),
            b"TRACE / HTTP/1.1\r\nhost: hand\r\nconnection: close\r\n\r\n".to_vec(),
            b"GET http://elsewhere/v9/fence HTTP/1.1\r\nhost: \xff\xfe\r\nconnection: close\r\n\r\n".to_vec(),
            b"GET /v1/jobs/%2e%2e/%00 HTTP/1.1\r\nhost: hand\r\nconnection: close\r\n\r\n".to_vec(),
            b"GET /v1/jobs?after=\x01 HTTP/1.1\r\nhost: hand\r\nconnection: close\r\n\r\n".to_vec(),
            b"POST /hello HTTP/1.1\r\nhost: hand\r\nupgrade: h2c\r\nconnection: upgrade, close\r\ncontent-length: 0\r\n\r\n".to_vec(),
        ];
        for length in [1, 10, 100, 1000, 10_000, 100_000] {
            rows.push((0..length).map(|_| random.below(256) as u8).collect());
        }
        for row in rows {
            let mut stream = scene.connect();
            let _ = stream.write_all(&row);
            // What says no more is what an attacker that waits looks like; this one ends.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let bytes = drain(&mut stream);
            let shown = String::from_utf8_lossy(&row[..row.len().min(60)]).into_owned();
            if let Some(answer) = Answer::read(&bytes) {
                assert!((400..500).contains(&answer.status), "{shown:?}: {}", answer.text());
            } else {
                assert!(!bytes.starts_with(b"HTTP/1.1 2"), "{shown:?}: {bytes:?}");
            }
            serves(scene);
        }
    });
}

#[test]
fn requests_within_requests() {
    scene("smuggling", async |scene| {
        let hello = scene.hello();
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        // What would stop the job, if it were taken for a request.
        let inner = {
            let headers = scene.bound(&hello);
            request("POST", &format!("/v1/jobs/{id}/stop"), &headers, br#"{"id":"smuggled","force":true}"#)
        };
        let length = inner.len();
        let rows = [
            // Two lengths: neither is believed.
            format!("content-length: 2\r\ncontent-length: {}", length + 2),
            format!("content-length: 2, {}", length + 2),
            "content-length: +2".to_owned(),
            "content-length: 0x2".to_owned(),
            "content-length: 2 2".to_owned(),
            "content-length: -1".to_owned(),
            // A length and chunks.
            format!("content-length: {}\r\ntransfer-encoding: chunked", length + 2),
            format!("transfer-encoding: chunked\r\ncontent-length: {}", length + 2),
            "transfer-encoding: chunked, identity".to_owned(),
            "transfer-encoding: xchunked".to_owned(),
            "transfer-encoding : chunked".to_owned(),
            "transfer-encoding: identity\r\ncontent-length: 2".to_owned(),
        ];
        for row in rows {
            let stopped = |scene: &Scene| {
                let job = scene.ground.home.job(id).unwrap().unwrap();
                job.receipt().unwrap().is_some() || job.look().unwrap().ledger.ending.is_some()
            };
            // As a body of the outer one by one way to count, and the next request by the other.
            let mut bytes = head("POST", "/v1/fence", &scene.bound(&hello), &row);
            bytes.extend_from_slice(b"{}");
            let mut stream = scene.connect();
            stream.write_all(&bytes).unwrap();
            let first = first_answer(&mut stream_half(&stream));
            // Only a connection that closes is safe; whatever follows must not be taken for a call.
            if let Some(answer) = &first {
                assert!(
                    answer.status >= 400 || row.contains("content-length: 2\r\n"),
                    "{row}: {}",
                    answer.text()
                );
            }
            let _ = stream.write_all(&inner);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let rest = drain(&mut stream);
            assert!(!String::from_utf8_lossy(&rest).contains("accepted"), "{row}");
            assert!(!stopped(scene), "{row}: the inner request was done");
        }
        stop_now(&client, id).await;
    });
}

fn stream_half(stream: &UnixStream) -> UnixStream {
    let half = stream.try_clone().unwrap();
    half.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    half
}

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET`, all of it literal or in the static table.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    assert!(path.len() < 127, "lengths of one byte alone");
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x04hand");
    frame(1, 0x5, stream, &block)
}

fn get_fence(stream: u32) -> Vec<u8> {
    get(stream, "/v1/fence")
}

#[test]
fn frames_that_are_none() {
    scene("h2-garbage", async |scene| {
        let mut random = Random::new("h2-garbage");
        let settings = frame(4, 0, 0, &[]);
        let good = scene.raw(&[PREFACE, &settings, &get_fence(1), &frame(7, 0, 0, &[0; 8])].concat());
        assert!(
            String::from_utf8_lossy(&good).contains("\"generation\""),
            "the helper speaks HTTP/2: {good:?}"
        );
        let mut rows = vec![
            frame(0, 0, 1, b"data of no stream"),
            frame(1, 0x5, 0, &[0x82]),
            frame(1, 0x5, 2, &[0x82]),
            frame(1, 0x4, 1, &[0xff; 200]),
            frame(9, 0x4, 1, b"continuation of nothing"),
            frame(8, 0, 0, &[0; 4]),
            frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
            frame(4, 0, 1, &[]),
            frame(6, 0, 0, b"short"),
            frame(3, 0, 0, &[0; 4]),
            frame(5, 0, 1, &[0; 8]),
            frame(0xfe, 0xff, 77, b"unknown"),
            // A frame of 16 MiB is announced, and never comes.
            vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
        ];
        // Headers that never end.
        let mut endless = frame(1, 0, 1, &[0x82]);
        for _ in 0..2000 {
            endless.extend(frame(
                9,
                0,
                1,
                &[&[0x00, 0x01, b'x', 0x7f, 0x81, 0x01][..], &[b'y'; 256]].concat(),
            ));
        }
        rows.push(endless);
        // A settings flood, and pings.
        rows.push(frame(4, 0, 0, &[]).repeat(5000));
        rows.push(frame(6, 0, 0, &[7; 8]).repeat(5000));
        // Empty data without end.
        rows.push([get_fence(1), frame(0, 0, 1, &[]).repeat(5000)].concat());
        for _ in 0..50 {
            let length = random.below(300) as usize;
            let payload: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            rows.push(frame(
                random.below(12) as u8,
                random.below(256) as u8,
                random.below(4) as u32,
                &payload,
            ));
        }
        for row in rows {
            let mut stream = scene.connect();
            let _ = stream.write_all(&[PREFACE, &settings, &row].concat());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            drain(&mut stream);
        }
        serves(scene);
        let memory = scene.runner_memory();
        assert!(memory < 64 << 10, "{memory} KiB");
    });
}

#[test]
fn streams_that_are_reset_at_once() {
    scene("rapid-reset", async |scene| {
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        let mut flood = [PREFACE, &frame(4, 0, 0, &[])].concat();
        for number in 0..10_000u32 {
            flood.extend(get_fence(number * 2 + 1));
            flood.extend(frame(3, 0, number * 2 + 1, &[0, 0, 0, 8]));
        }
        let mut stream = scene.connect();
        let flooding = std::thread::spawn(move || {
            let _ = stream.write_all(&flood);
            drop(stream.shutdown(std::net::Shutdown::Write));
            drain(&mut stream).len()
        });
        serves(scene);
        stop_now(&client, id).await;
        flooding.join().unwrap();
        serves(scene);
        let memory = scene.runner_memory();
        assert!(memory < 96 << 10, "{memory} KiB");
    });
}

#[test]
fn connections_without_number() {
    const MANY: usize = 2000;
    scene("connections", async |scene| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        let other = scene.shell_job(&client, "l", "exec sleep 1000").await.job_id;
        let ground = &scene.ground;
        let flood = std::thread::scope(|threads| {
            let open = || (0..MANY / 8).map(|_| connect(ground)).collect::<Vec<_>>();
            let openers: Vec<_> = (0..8).map(|_| threads.spawn(open)).collect();
            openers.into_iter().flat_map(|opener| opener.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(flood.len(), MANY);
        // A new connection with a stop, all of it within the bound.
        let began = Instant::now();
        let fresh = scene.try_client(Http::Two, None, "default").await.unwrap();
        let stopped = fresh.stop(&request_id().unwrap(), id, &stop("s", true)).await.unwrap();
        let took = began.elapsed();
        assert_eq!(stopped, outlast_wire::verbs::Stopped::Accepted);
        assert!(took < Duration::from_secs(5), "answered after {took:?}");
        stop_now(&fresh, other).await;
        settled(&fresh, id).await;
        drop(flood);
        let back = async || scene.try_client(Http::One, None, "default").await.is_ok();
        assert!(back().await);
    });
}

#[test]
fn values_that_nobody_means() {
    scene("values", async |scene| {
        let hello = scene.hello();
        let post = |body: &[u8]| {
            let answer =
                scene.call("POST", "/v1/jobs?until=settled&wait_ms=20000", &scene.bound(&hello), body);
            assert!(answer.status < 500, "{}", answer.text());
            answer
        };
        let good = serde_json::to_value(scene.sh("k", "true")).unwrap();
        let with = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = good.clone();
            change(&mut value);
            serde_json::to_vec(&value).unwrap()
        };
        // Deep, wide, long.
        for deep in ["[", "{\"a\":", "[{\"key\":["] {
            assert_eq!(post(deep.repeat(100_000).as_bytes()).status, 422, "{deep}");
        }
        let text = String::from_utf8(with(&|_| ())).unwrap();
        let deep_field =
            text.replacen('{', &format!("{{\"command\":{}1{},", "[".repeat(5000), "]".repeat(5000)), 1);
        assert_eq!(post(deep_field.as_bytes()).status, 422);
        assert_eq!(post(text.replacen('{', "{\"key\":\"again\",", 1).as_bytes()).status, 422, "a key twice");
        for nonsense in [
            &b""[..],
            b"null",
            b"[]",
            b"1",
            b"\"x\"",
            b"{",
            b"{}x",
            b"\xff\xfe",
            b"{\"key\":\"\xff\"}",
            b"\xef\xbb\xbf{}",
        ] {
            assert_eq!(post(nonsense).status, 422, "{nonsense:?}");
        }
        // NUL, where no program can be given one.
        for body in [
            with(&|v| v["command"] = serde_json::json!({"argv": ["echo", "a\0b"]})),
            with(&|v| v["command"] = serde_json::json!({"argv": ["ec\0ho"]})),
            with(&|v| v["command"] = serde_json::json!({"argv": [{"hex": "00"}]})),
            with(&|v| v["command"] = serde_json::json!({"argv": []})),
            with(&|v| v["command"] = serde_json::json!({"argv": [""]})),
            with(&|v| v["command"] = serde_json::json!({"script": {"shell": "s\0h", "text": "true"}})),
            with(&|v| v["env"] = serde_json::json!({"A": "b\0c"})),
            with(&|v| v["env"] = serde_json::json!({"A=B": "c"})),
            with(&|v| v["env"] = serde_json::json!({"": "c"})),
            with(&|v| v["env"] = serde_json::json!({"A\0": "c"})),
            with(&|v| v["inherited"] = serde_json::json!({"A\0": "c"})),
            with(&|v| v["secrets"] = serde_json::json!({"A": "0123456789\0"})),
            with(&|v| v["cwd"] = serde_json::json!("/tmp\0/x")),
            with(&|v| v["cwd"] = serde_json::json!("relative")),
            with(&|v| v["cwd"] = serde_json::json!("/nowhere/at/all")),
            with(&|v| v["cwd"] = serde_json::json!("/etc/passwd")),
            with(&|v| v["cwd"] = serde_json::json!("")),
            with(&|v| v["cwd"] = serde_json::json!("/".to_owned() + &"x/".repeat(100_000))),
            with(&|v| v["workspace"] = serde_json::json!("/nowhere")),
            with(&|v| v["key"] = serde_json::json!("")),
            with(&|v| v["key"] = serde_json::json!("x".repeat(513))),
            with(&|v| v["key"] = serde_json::json!("a\nb")),
            with(&|v| v["command"] = serde_json::json!({"argv": [{"hex": "0"}]})),
            with(&|v| v["command"] = serde_json::json!({"argv": [{"hex": "zz"}]})),
            with(&|v| v["command"] = serde_json::json!({"argv": [{"hex": 1}]})),
            with(&|v| v["attempt"] = serde_json::json!(0)),
            with(&|v| v["attempt"] = serde_json::json!(-1)),
            with(&|v| v["attempt"] = serde_json::json!(4_294_967_296u64)),
            with(&|v| v["grace"] = serde_json::json!(-1)),
            with(&|v| v["grace"] = serde_json::json!(1.5)),
            with(&|v| v["grace"] = serde_json::json!(18_446_744_073_709_551_616.0)),
            with(&|v| v["window"] = serde_json::json!([70_000, 1])),
            with(&|v| v["stdin"] = serde_json::json!({"kind": "file"})),
            with(&|v| v["unknown"] = serde_json::json!(1)),
        ] {
            let answer = post(&body);
            assert_eq!(
                answer.status,
                422,
                "{}: {}",
                String::from_utf8_lossy(&body[..body.len().min(300)]),
                answer.text()
            );
        }
        for number in ["1e999", "1e400", "99999999999999999999999999", "-0", "0.0", "1E1"] {
            let body =
                text.replacen('{', &format!("{{\"linger\":{number},"), 1).replacen("\"linger\":200,", "", 1);
            post(body.as_bytes());
        }
        // The largest numbers that are numbers: accepted, and nothing overflows.
        let most = with(&|v| {
            v["key"] = serde_json::json!("most");
            for name in ["grace", "linger"] {
                v[name] = serde_json::json!(u64::MAX);
            }
            for name in ["deadline", "idle", "log_bytes"] {
                v["limits"][name] = serde_json::json!(u64::MAX);
            }
        });
        let answer = post(&most);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let none = with(&|v| {
            v["key"] = serde_json::json!("none");
            v["grace"] = serde_json::json!(0);
            v["linger"] = serde_json::json!(0);
            for name in ["deadline", "idle", "log_bytes", "pids", "memory_bytes"] {
                v["limits"][name] = serde_json::json!(0);
            }
        });
        assert_eq!(post(&none).status, 200);
        // Bytes that are no text survive.
        let bytes = with(&|v| {
            v["key"] = serde_json::json!("bytes");
            v["command"] =
                serde_json::json!({"argv": ["printf", "%s", {"hex": "ff00fe".replace("00", "0a")}]});
        });
        let answer = post(&bytes);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id: JobId = serde_json::from_value(answer.json()["job_id"].clone()).unwrap();
        let client = scene.client().await;
        let view = client.job(id, Until::Settled, LONG).await.unwrap();
        assert!(view.receipt.is_some());
        let read = scene.call("GET", &format!("/v1/jobs/{id}/output"), &[], b"");
        assert_eq!(read.body, b"\xff\x0a\xfe");
        for job in client.list(None, 1000).await.unwrap().jobs {
            settled(&client, job.job_id).await;
        }
        // Too many.
        let words = with(&|v| v["command"] = serde_json::json!({"argv": vec!["true"; 20_000]}));
        assert_eq!(post(&words).status, 413);
        let variables: std::collections::BTreeMap<String, &str> =
            (0..20_000).map(|n| (format!("V{n}"), "x")).collect();
        let variables = with(&|v| v["inherited"] = serde_json::json!(variables));
        assert_eq!(post(&variables).status, 413);
        serves(scene);
    });
}

#[test]
fn paths_and_methods_that_are_none() {
    scene("paths", async |scene| {
        for path in [
            "/",
            "//",
            "/v1",
            "/v2/jobs",
            "/v1/jobs/",
            "/v1/jobs/x",
            "/v1/jobs/x/output",
            "/v1/jobs/../../etc/passwd/output",
            "/v1/jobs/0000000000000000.1.1/../stop",
            "/v1/jobs/0000000000000000.1.0",
            "/v1/jobs/0000000000000000.01.1",
            "/v1/jobs/0000000000000000.1.4294967296",
            "/v1/jobs/..%2f..%2fhome.json",
            "/runner.sock",
            "/metrics",
        ] {
            let answer = scene.call("GET", path, &[], b"");
            assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        }
        for (method, path) in [
            ("DELETE", "/v1/jobs"),
            ("PATCH", "/hello"),
            ("GET", "/hello"),
            ("PUT", "/v1/seal"),
            ("HEAD", "/v1/jobs"),
        ] {
            let answer = scene.call(method, path, &[], b"");
            assert_eq!(answer.status, 405, "{method} {path}");
        }
        serves(scene);
    });
}
