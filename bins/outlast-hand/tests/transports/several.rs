//! Several hands on one machine.

use crate::ground::{Ground, LONG, wait_for};
use crate::support::*;
use outlast_core::id::JobId;
use outlast_core::status::State;
use outlast_wire::address::Address;
use outlast_wire::call;
use outlast_wire::client::{Client, Until, request_id, unix_ms};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NOBODY: u32 = 65534;

/// A stop to whoever listens on a socket, meant for the hand that `meant` is a client of.
fn stop_by_mistake(folder: &Path, meant: &Client, id: JobId) -> String {
    let dir = std::fs::File::open(folder).unwrap();
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/runner.sock", dir.as_raw_fd())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let hello = meant.hello();
    let body = r#"{"id": "by-mistake", "force": true}"#;
    let request = format!(
        "POST /v1/jobs/{id}/stop HTTP/1.1\r\nhost: hand\r\nconnection: close\r\ncontent-type: application/json\r\n\
         {}: default\r\n{}: {}\r\n{}: {}\r\n{}: {}\r\n{}: {}\r\n{}: 0\r\ncontent-length: {}\r\n\r\n{body}",
        call::SCOPE,
        call::REQUEST_ID,
        request_id().unwrap(),
        call::EXPIRES_AT,
        unix_ms() + 60_000,
        call::SANDBOX,
        hello.sandbox,
        call::SANDBOX_GENERATION,
        hello.sandbox_generation,
        call::GENERATION,
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a job's command wrote.
async fn wrote(client: &Client, id: JobId, bytes: usize) -> String {
    let mut reader = Reader::default();
    reader.read(client, id, bytes).await.unwrap();
    String::from_utf8_lossy(&reader.bytes).trim().to_owned()
}

#[test]
fn three_hands_one_of_another_user_know_nothing_of_each_other() {
    needs(&["unshare", "mount", "setpriv", "chown"]);
    let grounds = [Ground::new("several-a"), Ground::new("several-b")];
    // The third's home and program, where another user finds them whoever may enter the folders above.
    let folder = grounds[0].file("nobody");
    for name in ["bin", "work"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let program = folder.join("bin/outlast-hand");
    std::fs::copy(PROGRAM, &program).unwrap();
    done(tool("chown").arg("-R").arg(format!("{NOBODY}:{NOBODY}")).arg(&folder));
    let mut as_nobody = tool("unshare");
    as_nobody.args(["--mount", "--propagation", "private", "sh", "-c"]);
    as_nobody.arg(
        r#"mount --bind "$1" /mnt && exec setpriv --reuid "$2" --regid "$2" --clear-groups --pdeathsig KILL \
            /mnt/bin/outlast-hand serve --home /mnt/home"#,
    );
    as_nobody.arg("sh").arg(&folder).arg(NOBODY.to_string());

    let runners = [Runner::serve(&grounds[0], &[]), Runner::serve(&grounds[1], &[])];
    let third = Runner::start(as_nobody, &grounds[0].file("nobody.err"));
    let homes = [grounds[0].home.path().to_owned(), grounds[1].home.path().to_owned(), folder.join("home")];
    let works = [grounds[0].file("work"), grounds[1].file("work"), "/mnt/work".into()];
    let uids = [0, 0, NOBODY];
    play(async {
        let mut hands = Vec::new();
        for ((home, work), uid) in homes.iter().zip(&works).zip(uids) {
            let client = Way::to(Address::Unix(home.join("runner.sock"))).client().await;
            assert_eq!(client.hello().uid, uid);
            let script = "echo $(id -u) $(id -g); exec sleep 600";
            let id = started(&client, &sh(work, "the same key", script)).await.job_id;
            assert_eq!(wrote(&client, id, 4).await, format!("{uid} {uid}"));
            hands.push((client, id, home));
        }
        for (at, (client, id, _)) in hands.iter().enumerate() {
            assert_eq!(client.list(None, 10).await.unwrap().jobs.len(), 1);
            for (other, (meant, other_id, home)) in hands.iter().enumerate().filter(|(other, _)| *other != at)
            {
                assert_ne!(id, other_id);
                assert_ne!(client.hello().sandbox, meant.hello().sandbox);
                let looked = client.job(*other_id, Until::Now, Duration::ZERO).await;
                assert_eq!(problem_of(looked).code, "NO_SUCH_JOB");
                // Meant for `client`'s hand, and for its job: dropped by another, which records it.
                let answer = stop_by_mistake(home, client, *id);
                assert!(
                    answer.starts_with("HTTP/1.1 409") && answer.contains("STALE"),
                    "{at}, {other}: {answer}"
                );
                // With the job that is there, it is no better.
                let answer = stop_by_mistake(home, client, *other_id);
                assert!(
                    answer.starts_with("HTTP/1.1 409") && answer.contains("STALE"),
                    "{at}, {other}: {answer}"
                );
            }
        }
        for (client, id, _) in &hands {
            assert_eq!(client.job(*id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        }
        // The end of one is no other's.
        stop_now(&hands[0].0, hands[0].1).await;
        for (client, id, _) in &hands[1..] {
            assert_eq!(client.job(*id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
            stop_now(client, *id).await;
        }
    });
    third.end();
    runners.into_iter().for_each(Runner::end);
    // As Ground does it for its own home.
    let left = || {
        let here = format!("{NOBODY}");
        let of_nobody = |entry: std::fs::DirEntry| {
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?;
            let words = std::fs::read(entry.path().join("cmdline")).ok()?;
            (uid == here && words.starts_with(b"/mnt/bin/outlast-hand")).then_some(())
        };
        std::fs::read_dir("/proc").unwrap().flatten().find_map(of_nobody)
    };
    wait_for("the end of the other user's keepers", || left().is_none().then_some(()));
}
