//! Who may call, and what they find.

use crate::ground::{LONG, is_root};
use crate::support::*;
use outlast_core::id::JobId;
use outlast_wire::call;
use outlast_wire::client::{Client, Http, Read, Until, request_id};
use outlast_wire::verbs::{Resize, Settle};
use rustix::fs::{Mode, OFlags};
use rustix::process::Uid;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

/// Asks as another user does who may open the socket (which its folder and mode prevent in the first place).
fn asked_as_nobody(scene: &Scene) -> Vec<u8> {
    let path = scene.ground.home.path().join("runner.sock");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    // By a descriptor of the socket itself, so that the folders above it need not be opened to everybody.
    let socket = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let hello = request("POST", "/hello", &[], br#"{"versions":[1]}"#);
    let asked = std::thread::spawn(move || {
        // Of this thread alone.
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.write_all(&hello);
        drain(&mut stream)
    })
    .join()
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    asked
}

#[test]
fn another_user_is_dropped() {
    if !is_root() {
        return;
    }
    scene("other-uid", async |scene| {
        let mode =
            std::fs::metadata(scene.ground.home.path().join("runner.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(asked_as_nobody(scene), b"", "not even an error");
        assert_eq!(scene.call("GET", "/v1/fence", &[], b"").status, 200);
    });
    scene_with(
        "allowed-uid",
        |_| vec!["--allow-uid".into(), NOBODY.to_string()],
        async |scene| {
            let answer = Answer::read(&asked_as_nobody(scene)).expect("an answer");
            assert_eq!(answer.status, 200);
        },
    );
}

#[test]
fn the_socket_is_its_owners() {
    scene("socket", async |scene| {
        let path = scene.ground.home.path();
        let mode =
            |path: &std::path::Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path) & 0o077, 0, "{:o}", mode(path));
        for name in ["runner.lock", "runner.json"] {
            assert_eq!(mode(&path.join(name)) & 0o077, 0, "{name}: {:o}", mode(&path.join(name)));
        }
        // A file that stands where a socket should be is not removed.
        scene.end_runner();
        std::fs::write(path.join("runner.sock"), b"a person's").unwrap();
        let refused = Command::new(PROGRAM).args(["serve", "--home"]).arg(path).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(std::fs::read(path.join("runner.sock")).unwrap(), b"a person's");
        std::fs::remove_file(path.join("runner.sock")).unwrap();
        // A socket that was left is.
        drop(std::os::unix::net::UnixListener::bind(path.join("runner.sock")).unwrap());
        scene.start();
        assert_eq!(scene.call("GET", "/v1/fence", &[], b"").status, 200);
    });
}

/// What each call about a job answers, as status and body with the id cut out.
async fn all_answers(client: &Client, id: JobId) -> Vec<String> {
    let of = |text: String| text.replace(&id.to_string(), "ID");
    let mut answers = Vec::new();
    let mut push = |what: &str, answer: Result<String, outlast_wire::client::ClientError>| {
        let text = match answer {
            Ok(text) => text,
            Err(error) => error.problem().map_or_else(|| error.to_string(), |problem| format!("{problem:?}")),
        };
        answers.push(of(format!("{what}: {text}")));
    };
    let r = || request_id().unwrap();
    let json = |value: &dyn std::fmt::Debug| format!("{value:?}");
    push("look", client.job(id, Until::Settled, Duration::from_millis(50)).await.map(|view| json(&view)));
    push("read", client.read(id, Read::default()).await.map(|output| json(&output)));
    push(
        "sync",
        client.read(id, Read { committed: true, ..Read::default() }).await.map(|output| json(&output)),
    );
    push("stop", client.stop(&r(), id, &stop("s", true)).await.map(|stopped| json(&stopped)));
    push("settle", client.settle(&r(), id, &Settle::Asked).await.map(|settled| json(&settled)));
    let attest = Settle::Attest { name: "eve".into() };
    push("attest", client.settle(&r(), id, &attest).await.map(|settled| json(&settled)));
    let written = client.write_stdin(&r(), id, Default::default(), empty(), true, Duration::ZERO).await;
    push("stdin", written.map(|taken| json(&taken)));
    let resized = client.resize(&r(), id, Resize { rows: 1, cols: 1 }).await;
    push("resize", resized.map(|()| String::new()));
    let brain = outlast_core::id::BrainId::new("eve").unwrap();
    let acknowledged = client.acknowledge(&r(), id, brain, Default::default()).await;
    push("acknowledge", acknowledged.map(|acknowledged| json(&acknowledged)));
    answers
}

#[test]
fn another_scopes_job_is_none() {
    scene("scopes", async |scene| {
        let owner = scene.client_of("owner").await;
        let id = started(&owner, &scene.sh("k", "echo some; exec sleep 1000")).await.job_id;
        let missing: JobId = {
            let text = id.to_string();
            // Another one of the same shape, that does not exist.
            let first = if text.starts_with('0') { '1' } else { '0' };
            format!("{first}{}", &text[1..]).parse().unwrap()
        };
        for scope in ["other", "default", "owner ", "Owner", "owner/x"] {
            let Ok(other) = scene.try_client(Http::Two, None, scope).await else { continue };
            let theirs = all_answers(&other, id).await;
            let none = all_answers(&other, missing).await;
            assert_eq!(theirs, none, "{scope}");
            assert!(theirs.iter().all(|answer| answer.contains("NO_SUCH_JOB")), "{scope}: {theirs:#?}");
            assert!(other.list(None, 1000).await.unwrap().jobs.is_empty());
            assert!(other.list(Some(missing), 1000).await.unwrap().jobs.is_empty());
        }
        let view = owner.job(id, Until::Now, Duration::ZERO).await.unwrap();
        assert_eq!(view.state, outlast_core::status::State::Running);
        stop_now(&owner, id).await;
    });
}

fn new_token(scene: &crate::ground::Ground, options: &[&str]) -> String {
    let made = Command::new(PROGRAM)
        .args(["token", "new", "--file"])
        .arg(scene.file("tokens"))
        .args(options)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_token_opens_its_scopes_alone() {
    let mut tokens = Vec::new();
    let options = |ground: &crate::ground::Ground| {
        tokens.push(new_token(ground, &["--scope", "team-a", "--name", "a"]));
        tokens.push(new_token(ground, &["--name", "all"]));
        tokens.push(new_token(ground, &["--scope", "team-a", "--name", "late", "--expires", "0"]));
        vec!["--token-file".into(), ground.file("tokens").display().to_string()]
    };
    scene_with("tokens", options, async |scene| {
        // Hashed at rest: the file of tokens holds none of them.
        let file = std::fs::read_to_string(scene.ground.file("tokens")).unwrap();
        let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert_eq!(lines, 3, "{file}");
        let call = |token: &str, method: &str, path: &str, scope: &str| {
            let headers = vec![
                ("authorization".to_owned(), format!("Bearer {token}")),
                ("outlast-scope".to_owned(), scope.to_owned()),
            ];
            scene.call(method, path, &headers, b"")
        };
        // Another one, made while the runner runs, is good at once or after a moment.
        let added = new_token(&scene.ground, &["--scope", "team-b", "--name", "b"]);
        until("the new token to be good", || {
            (call(&added, "GET", "/v1/fence", "team-b").status == 200).then_some(())
        })
        .await;
        assert!(!std::fs::read_to_string(scene.ground.file("tokens")).unwrap().contains(&added));
        let other = call(&added, "GET", "/v1/fence", "team-a");
        assert_eq!(other.status, 404, "{}", other.text());
        let mut wrong = added.clone();
        let last = wrong.pop().unwrap();
        wrong.push(if last == 'a' { 'b' } else { 'a' });
        for bad in [wrong.as_str(), "", "x", &added[1..], &format!("{added}x"), &added.to_uppercase()] {
            let answer = call(bad, "GET", "/v1/fence", "team-b");
            assert_eq!((answer.status, answer.problem().code.as_str()), (401, "UNAUTHENTICATED"), "{bad}");
            assert!(answer.head.to_lowercase().contains("www-authenticate: bearer"));
            assert!(bad.len() < 8 || !answer.text().contains(bad), "a token in an answer");
        }
        let basic = vec![("authorization".to_owned(), format!("Basic {added}"))];
        assert_eq!(scene.call("GET", "/v1/fence", &basic, b"").status, 401);
        // Whoever presents one is held to it, on a socket that proves who calls, too.
        let scoped = scene.try_client(Http::Two, Some(&added), "team-a").await.unwrap();
        let id = {
            let owner = scene.client_of("team-a").await;
            started(&owner, &scene.sh("k", "true")).await.job_id
        };
        let missing: JobId = "0000000000000000.1.1".parse().unwrap();
        let theirs = all_answers(&scoped, id).await;
        assert_eq!(theirs, all_answers(&scoped, missing).await);
        assert!(theirs.iter().all(|answer| answer.contains("NO_SUCH_SCOPE")), "{theirs:#?}");
        let refused =
            scoped.admit(&request_id().unwrap(), &scene.sh("x", "true"), Until::Now, Duration::ZERO).await;
        assert_eq!(problem_of(refused).status, 404);
        let own = scene.try_client(Http::Two, Some(&added), "team-b").await.unwrap();
        ran(&own, &scene.sh("x", "true")).await;
        settled(&scene.client_of("team-a").await, id).await;
        // Revoked by taking its line away.
        let file = std::fs::read_to_string(scene.ground.file("tokens")).unwrap();
        let kept: Vec<&str> = file.lines().collect();
        std::fs::write(scene.ground.file("tokens"), kept[..kept.len() - 1].join("\n") + "\n").unwrap();
        until("the token to be good no more", || {
            (call(&added, "GET", "/v1/fence", "team-b").status == 401).then_some(())
        })
        .await;
    });
    assert_eq!(tokens.len(), 3);
}

/// Waits of a token that is revoked meanwhile are answered as if they had come after it: at once where nothing else ends
/// them, and also where what they waited for comes first.
#[test]
fn no_wait_outlives_its_token() {
    let options = |ground: &crate::ground::Ground| {
        new_token(ground, &["--name", "other"]);
        vec!["--token-file".into(), ground.file("tokens").display().to_string()]
    };
    scene_with("token-waits", options, async |scene| {
        let owner = scene.client().await;
        let mut admission = scene.argv("k", &["sleep", "1000"]);
        admission.stdin = outlast_wire::admission::StdinFrom::Open;
        let id = started(&owner, &admission).await.job_id;
        let wait = Duration::from_secs(50);
        let tokens = scene.ground.file("tokens");
        let token = new_token(&scene.ground, &["--name", "goes"]);
        let lines = std::fs::read_to_string(&tokens).unwrap();
        for ends in [false, true] {
            std::fs::write(&tokens, &lines).unwrap();
            let client = scene.try_client(Http::Two, Some(&token), call::DEFAULT_SCOPE).await.unwrap();
            // More than the pipe to the command holds.
            let much = bytes::Bytes::from(vec![b'x'; 1 << 20]);
            let (r, r_admit) = (request_id().unwrap(), request_id().unwrap());
            let asked = Instant::now();
            let waiting = async {
                let answers = tokio::join!(
                    client.job(id, Until::Settled, wait),
                    client.read(id, Read { wait, ..Read::default() }),
                    client.write_stdin(&r, id, Default::default(), much, false, wait),
                    client.admit(&r_admit, &admission, Until::Settled, wait),
                );
                let (job, read, stdin, admitted) = answers;
                [problem_of(job), problem_of(read), problem_of(stdin), problem_of(admitted)]
            };
            let revoking = async {
                // Sent after them on the same connection: once it is answered, they have been let in.
                client.list(None, 1).await.unwrap();
                std::fs::write(&tokens, "").unwrap();
                if ends {
                    stop_now(&owner, id).await;
                }
            };
            let (answers, ()) = tokio::join!(waiting, revoking);
            for answer in answers {
                assert_eq!((answer.status, answer.code.as_str()), (401, "UNAUTHENTICATED"), "{answer:?}");
            }
            assert!(asked.elapsed() < wait, "they waited to their end");
        }
    });
}

#[test]
fn a_token_where_none_is_known_is_refused() {
    scene("no-tokens", async |scene| {
        let headers = vec![("authorization".to_owned(), "Bearer x".to_owned())];
        let answer = scene.call("GET", "/v1/fence", &headers, b"");
        assert_eq!((answer.status, answer.problem().code.as_str()), (401, "UNAUTHENTICATED"));
    });
}
