//! Standard input, spools, terminals.

use crate::ground::LONG;
use crate::support::*;
use bytes::Bytes;
use outlast_core::id::Cursor;
use outlast_wire::admission::StdinFrom;
use outlast_wire::client::{Client, Read, Until, request_id};
use outlast_wire::verbs::{Resize, StdinTaken};
use std::time::Duration;

#[test]
fn input_is_taken_in_order_each_byte_once() {
    scene("stdin", async |scene| {
        let client = scene.client().await;
        let mut admission = scene.argv("k", &["cat"]);
        admission.stdin = StdinFrom::Open;
        let id = started(&client, &admission).await.job_id;
        let write = async |offset: u64, bytes: &'static str, close: bool| {
            let bytes = Bytes::from_static(bytes.as_bytes());
            client.write_stdin(&request_id().unwrap(), id, Cursor(offset), bytes, close, LONG).await
        };
        let taken = |taken: u64, closed: bool| StdinTaken { taken: Cursor(taken), closed };
        assert_eq!(write(0, "hello", false).await.unwrap(), taken(5, false));
        assert_eq!(write(0, "hello", false).await.unwrap(), taken(5, false), "a repetition is none");
        assert_eq!(write(3, "lo wor", false).await.unwrap(), taken(9, false), "what overlaps goes on");
        assert_eq!(write(1, "el", false).await.unwrap(), taken(9, false), "what is past is past");
        for gap in [10, 1 << 40, u64::MAX] {
            let refused = problem_of(write(gap, "x", false).await);
            assert_eq!((refused.status, refused.code.as_str()), (409, "BAD_OFFSET"), "{gap}");
        }
        assert_eq!(write(9, "ld", true).await.unwrap(), taken(11, true));
        assert_eq!(write(9, "ld", true).await.unwrap(), taken(11, true), "closed once");
        let (output, _) = read_all(&client, id, Read::default()).await;
        assert_eq!(output, b"hello world");
        settled(&client, id).await;
        assert_eq!(write(11, "more", false).await.unwrap(), taken(11, true), "nobody reads any more");
    });
}

#[test]
fn much_input_to_a_slow_reader() {
    scene("stdin-much", async |scene| {
        let client = scene.client().await;
        let mut admission = scene.sh("k", "head -c 1000 >/dev/null; sleep 0.2; wc -c");
        admission.stdin = StdinFrom::Open;
        let id = started(&client, &admission).await.job_id;
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let total = 3u64 << 20;
        let mut taken = Cursor(0);
        let mut calls = 0;
        while taken.0 < total {
            // As a client does whose answer says how far it came.
            let rest = piece.slice(..piece.len().min((total - taken.0) as usize));
            let wait = Duration::from_millis(50);
            let answer =
                client.write_stdin(&request_id().unwrap(), id, taken, rest, false, wait).await.unwrap();
            assert!(answer.taken >= taken && !answer.closed, "{answer:?}");
            taken = answer.taken;
            calls += 1;
            assert!(calls < 10_000, "it does not go on");
        }
        let end = client.write_stdin(&request_id().unwrap(), id, taken, empty(), true, LONG).await.unwrap();
        assert!(end.closed);
        let (output, _) = read_all(&client, id, Read::default()).await;
        assert_eq!(String::from_utf8_lossy(&output).trim(), (total - 1000).to_string());
        settled(&client, id).await;
    });
}

#[test]
fn input_for_who_takes_none() {
    scene("stdin-none", async |scene| {
        let client = scene.client().await;
        let id = scene.shell_job(&client, "k", "exec sleep 1000").await.job_id;
        let refused = client.write_stdin(&request_id().unwrap(), id, Cursor(0), empty(), true, LONG).await;
        assert_eq!(problem_of(refused).code, "NO_OPEN_STDIN");
        let refused = client.resize(&request_id().unwrap(), id, Resize { rows: 3, cols: 4 }).await;
        assert_eq!(problem_of(refused).code, "NO_TERMINAL");
        stop_now(&client, id).await;
        let refused = client.resize(&request_id().unwrap(), id, Resize { rows: 3, cols: 4 }).await;
        assert_eq!(problem_of(refused).code, "NO_TERMINAL");
    });
}

#[test]
fn spooled_input() {
    scene("spool", async |scene| {
        let client = scene.client().await;
        let input: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
        let spooled = client.spool(&request_id().unwrap(), Bytes::from(input.clone())).await.unwrap();
        assert_eq!(spooled.bytes, input.len() as u64);
        assert_eq!(spooled.blake3, blake3::hash(&input).to_hex().to_string());
        let mut admission = scene.argv("k", &["cat"]);
        admission.stdin = StdinFrom::Spooled { spool: spooled.spool.clone() };
        let view = started(&client, &admission).await;
        let (output, _) = read_all(&client, view.job_id, Read::default()).await;
        assert_eq!(output, input);
        let again = client.admit(&request_id().unwrap(), &admission, Until::Settled, LONG).await.unwrap();
        assert_eq!(again.job_id, view.job_id, "a repetition finds the job, though its input is taken");
        // Spooled anew, the same bytes are the same input.
        let anew = client.spool(&request_id().unwrap(), Bytes::from(input.clone())).await.unwrap();
        assert_ne!(anew.spool, spooled.spool);
        admission.stdin = StdinFrom::Spooled { spool: anew.spool };
        let again = client.admit(&request_id().unwrap(), &admission, Until::Settled, LONG).await.unwrap();
        assert_eq!(again.job_id, view.job_id);

        let admit = async |key: &str, spool: &str| {
            let mut admission = scene.argv(key, &["cat"]);
            admission.stdin = StdinFrom::Spooled { spool: spool.to_owned() };
            client.admit(&request_id().unwrap(), &admission, Until::Now, Duration::ZERO).await
        };
        let hash = "0".repeat(64);
        let under = spooled.spool.split('.').nth(2).unwrap();
        for name in [
            "",
            "x",
            "../home.json",
            "/etc/passwd",
            "spool.../../x",
            &format!("spool.{}.{hash}.3", "0".repeat(24)),
            &format!("spool.{}.{under}.{hash}.3", "0".repeat(24)),
            &format!("spool.{}.{under}.{hash}.99999999999999999999", "0".repeat(24)),
            &spooled.spool,
        ] {
            let refused = problem_of(admit("another", name).await);
            assert_eq!((refused.status, refused.code.as_str()), (422, "NO_SUCH_SPOOL"), "{name}");
        }
    });
}

#[test]
fn a_spool_tells_the_truth_about_itself() {
    scene("spool-lie", async |scene| {
        let client = scene.client().await;
        let spooled = client.spool(&request_id().unwrap(), Bytes::from_static(b"abc")).await.unwrap();
        let parts: Vec<&str> = spooled.spool.split('.').collect();
        let lie = format!("spool.{}.{}.{}.{}", parts[1], parts[2], "1".repeat(64), 3);
        let mut admission = scene.argv("k", &["cat"]);
        admission.stdin = StdinFrom::Spooled { spool: lie };
        let refused = client.admit(&request_id().unwrap(), &admission, Until::Now, Duration::ZERO).await;
        assert_eq!(problem_of(refused).code, "NO_SUCH_SPOOL", "a name is not what was spooled");
    });
}

/// What one scope spooled is none to another, by its own name and by one that names the other scope; it is still there for
/// the scope that made it.
#[test]
fn a_spool_belongs_to_its_scope() {
    scene("spool-scope", async |scene| {
        let owner = scene.client_of("owner").await;
        let other = scene.client_of("other").await;
        let spool = async |client: &Client| {
            client.spool(&request_id().unwrap(), Bytes::from_static(b"a secret")).await.unwrap().spool
        };
        let theirs = spool(&owner).await;
        let own = spool(&other).await;
        let under = |spool: &str| spool.split('.').nth(2).unwrap().to_owned();
        assert_ne!(under(&theirs), under(&own), "the scope is in the name");
        assert!(!theirs.contains("owner"), "and not to be read there: {theirs}");
        let admit = async |client: &Client, key: &str, spool: &str| {
            let mut admission = scene.argv(key, &["cat"]);
            admission.stdin = StdinFrom::Spooled { spool: spool.to_owned() };
            client.admit(&request_id().unwrap(), &admission, Until::Settled, LONG).await
        };
        for name in [theirs.clone(), theirs.replace(&under(&theirs), &under(&own))] {
            let refused = problem_of(admit(&other, "k", &name).await);
            assert_eq!((refused.status, refused.code.as_str()), (422, "NO_SUCH_SPOOL"), "{name}");
        }
        for (client, name) in [(&owner, &theirs), (&other, &own)] {
            let id = admit(client, "k", name).await.unwrap().job_id;
            assert_eq!(read_all(client, id, Read::default()).await.0, b"a secret");
            settled(client, id).await;
        }
    });
}

#[test]
fn a_terminal_has_the_size_that_is_asked_for() {
    scene("resize", async |scene| {
        let client = scene.client().await;
        let mut admission =
            scene.sh("k", "trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.02; done");
        admission.tty = true;
        admission.window = Some((11, 22));
        let id = started(&client, &admission).await.job_id;
        let seen = async |wanted: &str| {
            let mut all = Vec::new();
            let mut from = Cursor(0);
            while !String::from_utf8_lossy(&all).contains(wanted) {
                let read = client.read(id, Read { from, wait: LONG, ..Read::default() }).await.unwrap();
                assert!(read.next > from, "{wanted} never came: {}", String::from_utf8_lossy(&all));
                from = read.next;
                all.extend_from_slice(&read.body);
            }
        };
        seen("11 22").await;
        seen("ready").await;
        client.resize(&request_id().unwrap(), id, Resize { rows: 33, cols: 77 }).await.unwrap();
        seen("33 77").await;
        // A terminal takes input.
        let taken = client
            .write_stdin(&request_id().unwrap(), id, Cursor(0), Bytes::from_static(b"typed\n"), false, LONG)
            .await
            .unwrap();
        assert_eq!(taken.taken, Cursor(6));
        seen("typed").await;
        stop_now(&client, id).await;
    });
}
