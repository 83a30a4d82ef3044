//! A machine in trouble: a fork bomb, a full disk.

use crate::ground::{LONG, is_root, lives};
use crate::support::*;
use outlast_core::exit::Cause;
use outlast_core::time::Millis;
use outlast_wire::client::{Read, Until, request_id};
use outlast_wire::verbs::Stopped;
use outlast_wire::view::JobView;
use rustix::process::Pid;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_fork_bomb_stops_neither_stops_nor_deadlines() {
    if !is_root() {
        return;
    }
    scene("bomb", async |scene| {
        let client = scene.client().await;
        let misbehave = crate::ground::misbehave();
        let bomb = |key: &str, deadline: u64| {
            let mut admission = scene.argv(key, &[misbehave.to_str().unwrap(), "bomb"]);
            admission.limits.pids = Some(100);
            admission.limits.deadline = Some(Millis(deadline));
            admission
        };
        let stopped = started(&client, &bomb("stopped", 120_000)).await.job_id;
        let due = started(&client, &bomb("due", 1500)).await.job_id;
        let beside = started(&client, &scene.sh("beside", "echo beside")).await.job_id;
        assert_eq!(settled(&client, beside).await.cause, Cause::OwnEnd);
        let began = Instant::now();
        let fresh = scene.client().await;
        let answer = fresh.stop(&request_id().unwrap(), stopped, &stop("s", false)).await.unwrap();
        assert_eq!(answer, Stopped::Accepted);
        assert!(began.elapsed() < Duration::from_secs(5), "answered after {:?}", began.elapsed());
        assert_eq!(settled(&client, stopped).await.cause, Cause::Stop { id: "s".into() });
        assert_eq!(settled(&client, due).await.cause, Cause::Deadline { after_ms: 1500 });
    });
}

#[test]
fn a_full_disk_stops_neither_stops_nor_deadlines() {
    if !is_root() {
        return;
    }
    let socket = |ground: &crate::ground::Ground| ground.file("full.sock").display().to_string();
    scene("full", async |scene| {
        // The home of another runner, on a small disk of its own that only its namespace sees.
        scene.end_runner();
        let home = scene.ground.file("small");
        std::fs::create_dir(&home).unwrap();
        let place = socket(&scene.ground);
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o size=8m,mode=700 small \"$1\" && exec \"$2\" serve --home \"$1\" --listen \"unix:$3\"";
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&home).arg(PROGRAM).arg(&place);
        scene.start_as(command);
        let inside = std::path::PathBuf::from(format!("/proc/{}/root", scene.runner_pid()));
        let inside = inside.join(home.strip_prefix("/").unwrap());
        let dial = async || {
            let stream = tokio::net::UnixStream::connect(&place).await.unwrap();
            let scope = outlast_core::id::Scope::new("default").unwrap();
            outlast_wire::client::Client::begin(stream, outlast_wire::client::Http::Two, None, scope)
                .await
                .unwrap()
        };
        let client = dial().await;
        let stays = "echo begun; exec sleep 1000";
        let stopped = started(&client, &scene.sh("stopped", stays)).await;
        let mut admission = scene.sh("due", stays);
        admission.limits.deadline = Some(Millis(3000));
        let due = started(&client, &admission).await;
        for id in [stopped.job_id, due.job_id] {
            client.read(id, Read { wait: LONG, committed: true, ..Read::default() }).await.unwrap();
        }
        let warden = |view: &JobView| Pid::from_raw(view.keeper_pid.unwrap() as i32).unwrap();
        let wardens = [warden(&stopped), warden(&due)];
        let leader = |id: outlast_core::id::JobId| {
            let ledger =
                std::fs::read_to_string(inside.join("jobs").join(format!("{id}")).join("ledger.jsonl"))
                    .unwrap();
            let line =
                ledger.lines().find(|line| line.contains("\"started\"")).expect("it started").to_owned();
            let record: serde_json::Value = serde_json::from_str(&line).unwrap();
            let pid = record["pid"].as_i64().or_else(|| record["started"]["pid"].as_i64());
            Pid::from_raw(pid.unwrap_or_else(|| panic!("{line}")) as i32).unwrap()
        };
        let leaders = [leader(stopped.job_id), leader(due.job_id)];
        assert!(leaders.iter().all(|leader| lives(*leader)));

        let mut fill = std::fs::File::create(inside.join("fill")).unwrap();
        let full = (0..4096).map(|_| fill.write_all(&[0; 4096])).find_map(Result::err).expect("it fills up");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

        let refused =
            client.admit(&request_id().unwrap(), &scene.sh("more", "true"), Until::Now, Duration::ZERO).await;
        let refused = problem_of(refused);
        assert_eq!(
            (refused.status, refused.code.as_str(), refused.retryable),
            (507, "STORAGE_FULL", true),
            "{refused}"
        );
        let spooled = client.spool(&request_id().unwrap(), bytes::Bytes::from(vec![b'x'; 100_000])).await;
        assert_eq!(problem_of(spooled).code, "STORAGE_FULL");
        let sealed = client.seal(&request_id().unwrap(), outlast_core::id::RunId::new("r").unwrap()).await;
        assert_eq!(problem_of(sealed).code, "STORAGE_FULL", "what is not durable is not said");

        // Looks and reads go on, and a stop is taken by who connects now.
        let fresh = dial().await;
        assert_eq!(fresh.list(None, 10).await.unwrap().jobs.len(), 2);
        let read = fresh.read(stopped.job_id, Read::default()).await.unwrap();
        assert_eq!(&read.body[..], b"begun\n");
        let answer = fresh.stop(&request_id().unwrap(), stopped.job_id, &stop("s", false)).await.unwrap();
        assert_eq!(answer, Stopped::Accepted);
        for leader in leaders {
            until("the command to end", || (!lives(leader)).then_some(())).await;
        }
        // With room again, both have receipts that say why they ended.
        drop(fill);
        std::fs::remove_file(inside.join("fill")).unwrap();
        let receipt = settled(&fresh, stopped.job_id).await;
        assert_eq!(receipt.cause, Cause::Stop { id: "s".into() });
        let receipt = settled(&fresh, due.job_id).await;
        assert_eq!(receipt.cause, Cause::Deadline { after_ms: 3000 });
        ran(&fresh, &scene.sh("more", "true")).await;
        for warden in wardens {
            until("the keepers to go", || (!lives(warden)).then_some(())).await;
        }
        until("its groups to go", || groups_of(&home).is_empty().then_some(())).await;
    });
}

/// What many waiters and readers took goes back to the machine once they have gone.
#[test]
fn memory_of_many_comes_back() {
    scene("memory", async |scene| {
        let client = scene.client().await;
        let waited = started(&client, &scene.argv("waited", &["sleep", "1000"])).await.job_id;
        let large = started(&client, &scene.sh("large", "head -c 30000000 /dev/urandom")).await.job_id;
        settled(&client, large).await;
        let mut waiters = Vec::new();
        for _ in 0..4 {
            let client = Arc::new(scene.client().await);
            for number in 0..200 {
                let client = Arc::clone(&client);
                waiters.push(tokio::spawn(async move {
                    let wait = Duration::from_secs(50);
                    match number % 2 {
                        0 => drop(client.job(waited, Until::Settled, wait).await),
                        _ => drop(client.read(waited, Read { wait, ..Read::default() }).await),
                    }
                }));
            }
        }
        let mut readers = Vec::new();
        for _ in 0..20 {
            let client = scene.client().await;
            let read = Read { max: Some(4 << 20), ..Read::default() };
            readers.push(tokio::spawn(async move { read_all(&client, large, read).await.0.len() }));
        }
        for reader in readers {
            assert_eq!(reader.await.unwrap(), 30_000_000);
        }
        let most = scene.runner_memory();
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "they wait all the time");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        drop(waiters);
        until("memory to come back", || (scene.runner_memory() < most / 3).then_some(())).await;
        let left = scene.runner_memory();
        assert!(left < 12 << 10, "{left} KiB are left of {most}");
        stop_now(&client, waited).await;
    });
}
