//! Output, from any cursor, by any number of readers, whoever of them stays.

use crate::ground::{LONG, kill, spewed};
use crate::hostile::{PREFACE, frame, get};
use crate::lifecycle::{all, both};
use crate::support::*;
use outlast_core::id::Cursor;
use outlast_core::ledger::StartMark;
use outlast_wire::client::{Http, Read, Tail, Until, request_id};
use outlast_wire::records::{Head, Stream, records};
use rustix::process::Pid;
use std::io::Write as _;
use std::time::{Duration, Instant};

#[test]
fn raw_bytes_and_records() {
    scene("records", async |scene| {
        let client = scene.client().await;
        let script = "i=0; while [ $i -lt 50 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; printf '\\0\\377\\n'";
        let receipt = ran(&client, &scene.sh("k", script)).await;
        let id = receipt.job_id;
        let (raw, end) = read_all(&client, id, Read::default()).await;
        assert_eq!((end.next, end.committed), (receipt.output.final_cursor, receipt.output.final_cursor));
        assert_eq!(blake3_of(&receipt), blake3::hash(&raw).to_hex().to_string());
        assert!(raw.windows(3).any(|three| three == b"\0\xff\n"), "bytes are not text");

        let (whole, _) = read_all(&client, id, Read { records: true, ..Read::default() }).await;
        let mut at = 0;
        let (mut out, mut err, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        for record in records(&whole) {
            let (head, payload) = record.unwrap();
            let Head::Data { stream, offset, time_us, length } = head else { panic!("{head:?}") };
            assert_eq!((offset.0, length), (at, payload.len()), "no byte is missing");
            assert!(time_us >= receipt.times.admitted.0 && time_us <= receipt.times.settled.0);
            at += length as u64;
            joined.extend_from_slice(payload);
            match stream {
                Stream::Stdout => out.extend_from_slice(payload),
                Stream::Stderr => err.extend_from_slice(payload),
            }
        }
        assert_eq!(joined, raw);
        for (name, expected) in [("stdout", &out), ("stderr", &err)] {
            let (one, _) = read_all(&client, id, Read { stream: Some(name), ..Read::default() }).await;
            assert_eq!(one, *expected, "{name}");
            let wanted = Read { stream: Some(name), records: true, max: Some(7), ..Read::default() };
            let (one, _) = read_all(&client, id, wanted).await;
            let payload: Vec<u8> = records(&one).flat_map(|record| record.unwrap().1.to_vec()).collect();
            assert_eq!(payload, *expected, "{name} as records");
        }
        assert!(String::from_utf8(err).unwrap().ends_with("err 49\n"));

        // Byte by byte, from anywhere.
        let mut from = Cursor(raw.len() as u64 - 40);
        let mut tail = Vec::new();
        while from.0 < raw.len() as u64 {
            let one = client.read(id, Read { from, max: Some(1), ..Read::default() }).await.unwrap();
            assert_eq!((one.body.len(), one.next.0), (1, from.0 + 1));
            tail.extend_from_slice(&one.body);
            from = one.next;
        }
        assert_eq!(tail, raw[raw.len() - 40..]);
    });
}

#[test]
fn what_the_log_does_not_keep_is_stated() {
    scene("gaps", async |scene| {
        let client = scene.client().await;
        let mut admission = scene.sh("k", "head -c 12000000 /dev/zero | tr '\\0' x; echo; echo the end");
        admission.limits.log_bytes = Some(3 << 20);
        let receipt = ran(&client, &admission).await;
        let [gap] = receipt.output.gaps.as_slice() else { panic!("{receipt:?}") };
        let to = gap.to.unwrap();
        let (raw, end) = read_all(&client, receipt.job_id, Read::default()).await;
        assert_eq!(raw.len() as u64 + (to.0 - gap.from.0), receipt.output.final_cursor.0);
        assert_eq!(end.next, receipt.output.final_cursor);
        assert!(raw.ends_with(b"xx\nthe end\n"));
        // From before, within and behind the gap.
        for from in [Cursor(gap.from.0 - 3), gap.from, Cursor(gap.from.0 + 5), to] {
            let read = Read { from, max: Some(100), ..Read::default() };
            let mut raw = client.read(receipt.job_id, read).await.unwrap();
            if from < gap.from {
                assert_eq!(&raw.body[..3], b"xxx");
                if raw.gaps.is_empty() {
                    raw = client.read(receipt.job_id, Read { from: raw.next, ..read }).await.unwrap();
                }
            }
            if from < to {
                let stated = format!("{}-{to};log_limit", gap.from.max(from));
                let other = format!("{}-{to};log_limit", gap.from);
                assert!(raw.gaps == stated || raw.gaps == other, "{from}: {}", raw.gaps);
                assert!(raw.next >= to);
            } else {
                assert_eq!(raw.gaps, "");
            }
        }
        let wanted = Read { records: true, ..Read::default() };
        let (whole, _) = read_all(&client, receipt.job_id, wanted).await;
        let gaps: Vec<_> = records(&whole)
            .map(Result::unwrap)
            .filter_map(|(head, why)| match head {
                Head::Gap { from, to, .. } => Some((from, to, String::from_utf8_lossy(why).into_owned())),
                Head::Data { .. } => None,
            })
            .collect();
        assert_eq!(gaps, [(gap.from, Some(to), "log_limit".to_owned())]);
    });
}

#[test]
fn what_is_shown_and_what_is_committed() {
    scene("committed", async |scene| {
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "echo some; exec sleep 1000").await.job_id;
        let shown = client.read(id, Read { wait: LONG, ..Read::default() }).await.unwrap();
        assert_eq!(&shown.body[..], b"some\n");
        assert!(shown.committed <= shown.next);
        let began = Instant::now();
        let synced = client.read(id, Read { committed: true, ..Read::default() }).await.unwrap();
        assert_eq!((&synced.body[..], synced.committed), (&b"some\n"[..], Cursor(5)));
        // Synced again, with nothing new: answered as soon.
        let synced = client.read(id, Read { committed: true, ..Read::default() }).await.unwrap();
        assert_eq!(synced.committed, Cursor(5));
        assert!(began.elapsed() < Duration::from_secs(10), "synced after {:?}", began.elapsed());
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().committed, Cursor(5));
        stop_now(&client, id).await;
        let synced = client.read(id, Read { committed: true, ..Read::default() }).await.unwrap();
        assert_eq!((synced.committed, synced.tail), (Cursor(5), Tail::Ended));
    });
}

#[test]
fn many_readers_of_one_job() {
    const BYTES: usize = 2_000_000;
    scene("many", async |scene| {
        let client = scene.client().await;
        let go = scene.ground.file("go");
        let misbehave = crate::ground::misbehave();
        let (waits, spews) = (format!("wait={}", go.display()), format!("spew={BYTES}"));
        let words = [misbehave.to_str().unwrap(), &waits, &spews];
        let id = started(&client, &scene.argv("k", &words)).await.job_id;
        // All of them begin before there is any output; each on a connection of its own.
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(scene.client().await);
        }
        let readers =
            all(clients.iter().map(|client| read_all(client, id, Read { wait: LONG, ..Read::default() })));
        let (outputs, ()) = both(readers, async {
            client.job(id, Until::Now, Duration::ZERO).await.unwrap();
            std::fs::write(&go, b"").unwrap();
        })
        .await;
        let expected = spewed(BYTES);
        for (output, _) in outputs {
            assert!(output == expected, "a reader has {} bytes", output.len());
        }
        settled(&client, id).await;
    });
}

#[test]
fn a_follower_is_told_soon() {
    scene("soon", async |scene| {
        let client = scene.client().await;
        let mut admission = scene.argv("k", &["cat"]);
        admission.stdin = outlast_wire::admission::StdinFrom::Open;
        let id = started(&client, &admission).await.job_id;
        let mut from = Cursor(0);
        for _ in 0..50 {
            // It waits before there is any, and is answered as soon as there is: no pause of a second in between.
            let read = client.read(id, Read { from, wait: LONG, ..Read::default() });
            let (request, byte) = (request_id().unwrap(), bytes::Bytes::from_static(b"x"));
            let write = client.write_stdin(&request, id, from, byte, false, LONG);
            let began = Instant::now();
            let (read, written) = both(read, write).await;
            assert_eq!(&read.unwrap().body[..], b"x");
            assert!(began.elapsed() < Duration::from_secs(10));
            from = written.unwrap().taken;
        }
        stop_now(&client, id).await;
    });
}

#[test]
fn a_cursor_beyond_the_end() {
    scene("beyond", async |scene| {
        let client = scene.client().await;
        let running = scene.shell_job(&client, "running", "echo 12345; exec sleep 1000").await.job_id;
        client.read(running, Read { wait: LONG, ..Read::default() }).await.unwrap();
        let ended = ran(&client, &scene.sh("ended", "echo 12345")).await.job_id;
        let silent = ran(&client, &scene.sh("silent", "true")).await.job_id;
        for from in [7, 1 << 40, u64::MAX - 1, u64::MAX] {
            for records in [false, true] {
                for id in [running, ended, silent] {
                    let read = Read {
                        from: Cursor(from),
                        records,
                        wait: Duration::from_millis(50),
                        ..Read::default()
                    };
                    match client.read(id, read).await {
                        Ok(output) => assert!(
                            output.body.is_empty() && output.next.0 <= from && output.committed.0 <= 6,
                            "{from} {id}: {output:?}"
                        ),
                        Err(error) => {
                            let status = error.problem().map(|problem| problem.status);
                            assert!(
                                status.is_some_and(|status| (400..500).contains(&status)),
                                "{from} {id}: {error}"
                            );
                        }
                    }
                }
            }
        }
        // And the end itself is an end.
        let end = client.read(ended, Read { from: Cursor(6), wait: LONG, ..Read::default() }).await.unwrap();
        assert_eq!((end.tail, end.next, end.body.len()), (Tail::Ended, Cursor(6), 0));
        let end = client.read(silent, Read { wait: LONG, ..Read::default() }).await.unwrap();
        assert_eq!((end.tail, end.next), (Tail::Ended, Cursor(0)));
        stop_now(&client, running).await;
    });
}

#[test]
fn a_reader_that_vanishes_leaves_nothing() {
    scene("vanish", async |scene| {
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "echo some; exec sleep 1000").await.job_id;
        let path = format!("/v1/jobs/{id}/output?from=5&wait_ms=50000");
        let descriptors = || {
            let folder = std::fs::read_dir(format!("/proc/{}/fd", scene.runner_pid()));
            folder.map_or(0, |entries| entries.count())
        };
        let before = descriptors();
        for _ in 0..100 {
            let mut stream = scene.connect();
            stream.write_all(&request("GET", &path, &[], b"")).unwrap();
            drop(stream);
            // And one of HTTP/2.
            let gone = scene.client().await;
            let read = Read { from: Cursor(5), wait: LONG, ..Read::default() };
            let left = tokio::time::timeout(Duration::from_millis(1), gone.read(id, read)).await;
            assert!(left.is_err());
        }
        until("the connections to go", || (descriptors() <= before + 8).then_some(())).await;
        let read = client.read(id, Read::default()).await.unwrap();
        assert_eq!(&read.body[..], b"some\n");
        stop_now(&client, id).await;
    });
}

#[test]
fn a_reader_that_never_reads_keeps_nobody_from_reading() {
    const BYTES: usize = 48 << 20;
    scene("never-reads", async |scene| {
        let client = scene.client().await;
        let misbehave = crate::ground::misbehave();
        let spew = format!("spew={BYTES}");
        let receipt = ran(&client, &scene.argv("k", &[misbehave.to_str().unwrap(), &spew])).await;
        let id = receipt.job_id;
        let mut stuck = Vec::new();
        for number in 0..60u64 {
            let mut stream = scene.connect();
            let path = format!("/v1/jobs/{id}/output?from={}&max=4194304", number << 19);
            let asked = match number % 2 {
                0 => format!("GET {path} HTTP/1.1\r\nhost: hand\r\n\r\n").repeat(50).into_bytes(),
                // One that takes all frames, and grants no byte of data.
                _ => {
                    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
                    let streams = (0..20).flat_map(|number| get(number * 2 + 1, &path));
                    [PREFACE, &settings].concat().into_iter().chain(streams).collect()
                }
            };
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&asked);
            stuck.push(stream);
        }
        // An honest reader, meanwhile: everything, within the bound.
        let began = Instant::now();
        let honest = async {
            let mut all = Vec::new();
            let mut from = Cursor(0);
            let mut refused = 0;
            loop {
                match client.read(id, Read { from, wait: LONG, ..Read::default() }).await {
                    Ok(output) => {
                        all.extend_from_slice(&output.body);
                        from = output.next;
                        if output.tail == Tail::Ended {
                            return (all, refused);
                        }
                    }
                    Err(error) => {
                        let problem = error.problem().cloned().unwrap_or_else(|| panic!("{error}"));
                        assert!(problem.retryable, "{problem}");
                        refused += 1;
                        assert!(
                            began.elapsed() < 2 * LONG,
                            "refused {refused} times, for {:?}",
                            began.elapsed()
                        );
                    }
                }
            }
        };
        let (whole, refused) = honest.await;
        assert!(whole == spewed(BYTES));
        println!("never-reads: refused {refused} times, done after {:?}", began.elapsed());
        let memory = scene.runner_memory();
        assert!(memory < 160 << 10, "the runner has {memory} KiB");
        let other = scene.shell_job(&client, "other", "exec sleep 1000").await.job_id;
        stop_now(&client, other).await;
        drop(stuck);
    });
}

#[test]
fn output_of_a_job_whose_scribe_was_killed() {
    scene("scribe", async |scene| {
        let client = scene.client().await;
        let script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.01; done";
        let id = started(&client, &scene.sh("k", script)).await.job_id;
        let first = client.read(id, Read { wait: LONG, ..Read::default() }).await.unwrap();
        assert!(!first.body.is_empty());
        let job = scene.ground.home.job(id).unwrap().unwrap();
        let Some(StartMark::Keeper(mark)) = job.start_mark().unwrap() else { panic!("no keeper") };
        let warden = i32::try_from(mark.warden_pid).unwrap();
        let scribe = || {
            crate::ground::all_processes().find(|process| {
                let comm = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                let fields = crate::ground::stat_of(*process).map(|(_, fields)| fields).unwrap_or_default();
                let parent = fields.get(1).and_then(|parent| parent.parse::<i32>().ok());
                comm.trim() == "outlast-scribe" && parent == Some(warden)
            })
        };
        kill(until("a scribe", scribe).await);
        let (whole, end) = read_all(&client, id, Read { records: true, ..Read::default() }).await;
        let receipt = settled(&client, id).await;
        assert_eq!(end.next, receipt.output.final_cursor);
        assert_eq!(receipt.exit, outlast_core::exit::Exit::Exited { code: 0 });
        // Data and gaps tile it, and gaps are those of the receipt.
        let mut at = Cursor(0);
        let mut text = Vec::new();
        let mut gaps = 0;
        for record in records(&whole) {
            match record.unwrap() {
                (Head::Data { offset, length, .. }, bytes) => {
                    assert_eq!(offset, at);
                    at = Cursor(offset.0 + length as u64);
                    text.extend_from_slice(bytes);
                }
                (Head::Gap { from, to, .. }, _) => {
                    assert_eq!(from, at);
                    at = to.unwrap_or(from);
                    gaps += 1;
                }
            }
        }
        assert_eq!(at, receipt.output.final_cursor);
        assert_eq!(gaps, receipt.output.gaps.len(), "{:?}", receipt.output.gaps);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("line 0\n") && text.ends_with("line 299\n"), "{text}");
        let warden = Pid::from_raw(warden).unwrap();
        until("the warden to go", || (!crate::ground::lives(warden)).then_some(())).await;
    });
}

#[test]
fn what_reads_may_ask_for() {
    scene("parameters", async |scene| {
        let client = scene.try_client(Http::One, None, "default").await.unwrap();
        let id = ran(&client, &scene.sh("k", "echo some")).await.job_id;
        for bad in [
            "max=0",
            "max=4194305",
            "from=x",
            "stream=all",
            "wait_ms=-1",
            "x=1",
            "from=1&from=1",
            "committed=1",
        ] {
            let answer = scene.call("GET", &format!("/v1/jobs/{id}/output?{bad}"), &[], b"");
            assert_eq!((answer.status, answer.problem().code.as_str()), (400, "BAD_PARAMETER"), "{bad}");
        }
        let accept = vec![("accept".to_owned(), "text/html".to_owned())];
        let answer = scene.call("GET", &format!("/v1/jobs/{id}/output"), &accept, b"");
        assert_eq!(answer.status, 406);
        let answer = scene.call("GET", &format!("/v1/jobs/{id}/output"), &[], b"");
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"some\n"[..]));
        // It is data of a stranger's making: never shown, never kept.
        let head = answer.head.to_lowercase();
        for line in
            ["x-content-type-options: nosniff", "content-disposition: attachment", "cache-control: no-store"]
        {
            assert!(head.contains(line), "{head}");
        }
    });
}

/// Output that ended and could not be stored is a gap that is stated, up to the final cursor.
#[test]
fn what_could_not_be_stored_is_a_gap_up_to_the_end() {
    scene("unstored", async |scene| {
        let client = scene.client().await;
        let admission = scene.sh("k", "echo hello");
        let id = ran(&client, &admission).await.job_id;
        // As the receipt of a job whose disk was full has it.
        let path = scene.ground.home.path().join("jobs").join(id.to_string()).join("receipt.json");
        let mut receipt: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let whole = receipt.clone();
        receipt["output"]["final_cursor"] = 600.into();
        receipt["output"]["gaps"] = serde_json::json!([{ "from": 6, "to": 600, "cause": "storage_failed" }]);
        std::fs::write(&path, receipt.to_string()).unwrap();
        for (from, body, gap) in [
            (0, &b"hello\n"[..], "6-600;storage_failed"),
            (6, b"", "6-600;storage_failed"),
            (40, b"", "40-600;storage_failed"),
        ] {
            let output = client.read(id, Read { from: Cursor(from), ..Read::default() }).await.unwrap();
            assert_eq!((&output.body[..], output.gaps.as_str()), (body, gap), "from {from}");
            assert_eq!((output.next, output.tail), (Cursor(600), Tail::Ended), "from {from}");
        }
        let end = client.read(id, Read { from: Cursor(600), ..Read::default() }).await.unwrap();
        assert_eq!((end.gaps.as_str(), end.next, end.tail), ("", Cursor(600), Tail::Ended));
        std::fs::write(&path, whole.to_string()).unwrap();
        // All of it in an answer that it just fits is the end of it.
        let output = client.read(id, Read { max: Some(6), ..Read::default() }).await.unwrap();
        assert_eq!((output.next, output.tail), (Cursor(6), Tail::Ended));
        // One that cannot be read is listed as such.
        std::fs::write(&path, &whole.to_string()[..100]).unwrap();
        let list = client.list(None, 10).await.unwrap();
        assert_eq!((list.jobs.len(), list.unreadable.as_slice()), (0, &[id][..]));
        std::fs::write(&path, whole.to_string()).unwrap();
    });
}
