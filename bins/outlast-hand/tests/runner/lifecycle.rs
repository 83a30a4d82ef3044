//! Runners that die, come again, and find everything; keepers that die; commands that are admitted once.

use crate::ground::{LONG, kill, launch_keeper};
use crate::support::*;
use outlast_core::evidence::Evidence;
use outlast_core::exit::{Cause, Exit, NotStarted};
use outlast_core::id::{Attempt, Cursor, Generation, JobId};
use outlast_core::spec::Boundary;
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_hand::dropped;
use outlast_wire::client::{Client, Http, Read, Tail, Until, request_id};
use outlast_wire::verbs::{Settle, Settled, Stopped};
use outlast_wire::view::Arrival;
use rustix::process::Pid;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A reader that outlives connections and runners.
async fn follow(scene: &Scene, id: JobId, read_bytes: Rc<std::cell::Cell<u64>>) -> Vec<u8> {
    let mut all = Vec::new();
    let mut from = Cursor(0);
    let end = Instant::now() + 2 * LONG;
    loop {
        let Ok(client) = scene.try_client(Http::Two, None, "default").await else { continue };
        loop {
            let read = Read { from, max: Some(700), wait: Duration::from_secs(20), ..Read::default() };
            match client.read(id, read).await {
                Ok(output) => {
                    all.extend_from_slice(&output.body);
                    read_bytes.set(all.len() as u64);
                    from = output.next;
                    if output.tail == Tail::Ended {
                        return all;
                    }
                }
                Err(error) if error.is_of_connection() => break,
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < end, "the output of {id} does not end");
        }
    }
}

/// A wait that outlives connections and runners.
async fn wait_on(scene: &Scene, id: JobId) {
    loop {
        let Ok(client) = scene.try_client(Http::Two, None, "default").await else { continue };
        match client.job(id, Until::Settled, Duration::from_secs(50)).await {
            Ok(view) if view.receipt.is_some() => return,
            Ok(_) => {}
            Err(error) if error.is_of_connection() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) async fn all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    std::future::poll_fn(|context| {
        let mut ready = true;
        for (future, result) in &mut waiting {
            let Some(polled) = future.as_mut() else { continue };
            match polled.as_mut().poll(context) {
                std::task::Poll::Ready(value) => (*future, *result) = (None, Some(value)),
                std::task::Poll::Pending => ready = false,
            }
        }
        if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().map(|(_, result)| result.unwrap()).collect()
}

pub(crate) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut left, mut right) = (None, None);
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|context| {
        if left.is_none()
            && let std::task::Poll::Ready(value) = a.as_mut().poll(context)
        {
            left = Some(value);
        }
        if right.is_none()
            && let std::task::Poll::Ready(value) = b.as_mut().poll(context)
        {
            right = Some(value);
        }
        if left.is_some() && right.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (left.unwrap(), right.unwrap())
}

#[test]
fn a_killed_runner_is_a_lost_connection() {
    const JOBS: usize = 20;
    scene("killed", async |scene| {
        let effects = scene.ground.file("effects");
        let go = scene.ground.file("go");
        let script = format!(
            "echo $1 >> {}; i=0; while [ $i -lt 150 ]; do echo \"job $1 line $i\"; i=$((i+1)); [ -e {} ] || sleep 0.01; done; exit $1",
            effects.display(),
            go.display()
        );
        let admission = |number: usize| {
            scene.argv(&format!("job-{number}"), &["sh", "-c", &script, "sh", &number.to_string()])
        };
        let client = scene.client().await;
        let mut ids = Vec::new();
        for number in 0..JOBS {
            ids.push(started(&client, &admission(number)).await.job_id);
        }
        let epoch = client.hello().runner_epoch;
        let progress: Vec<_> = ids.iter().map(|_| Rc::new(std::cell::Cell::new(0))).collect();
        let readers = all(ids.iter().zip(&progress).map(|(id, bytes)| follow(scene, *id, Rc::clone(bytes))));
        let waiters = all(ids.iter().map(|id| wait_on(scene, *id)));
        let disaster = async {
            let begun = || progress.iter().all(|bytes| bytes.get() > 0).then_some(());
            until("each reader to have begun", begun).await;
            scene.kill_runner();
            scene.start();
            let client = scene.client().await;
            assert_eq!(client.hello().runner_epoch, epoch + 1);
            let listed = client.list(None, 1000).await.unwrap().jobs;
            assert_eq!(listed.len(), JOBS);
            for (number, id) in ids.iter().enumerate() {
                let (request, admission) = (request_id().unwrap(), admission(number));
                let again = client.admit(&request, &admission, Until::Now, Duration::ZERO).await.unwrap();
                assert_eq!((again.job_id, again.arrival), (*id, Some(Arrival::Existing)));
            }
            // And another one, with everybody connected again.
            scene.kill_runner();
            scene.start();
            std::fs::write(&go, b"").unwrap();
        };
        let ((outputs, _), ()) = both(both(readers, waiters), disaster).await;
        let client = scene.client().await;
        for (number, (id, output)) in ids.iter().zip(outputs).enumerate() {
            let receipt = settled(&client, *id).await;
            assert_eq!(blake3_of(&receipt), blake3::hash(&output).to_hex().to_string(), "{id}");
            assert_eq!(receipt.output.final_cursor, Cursor(output.len() as u64));
            assert_eq!(receipt.exit, Exit::Exited { code: number as u8 });
            assert_eq!(receipt.cause, Cause::OwnEnd);
        }
        let mut ran: Vec<usize> =
            std::fs::read_to_string(&effects).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        ran.sort_unstable();
        assert_eq!(ran, (0..JOBS).collect::<Vec<_>>(), "each ran once");
    });
}

#[test]
fn a_runner_that_is_told_to_end_answers_who_waits() {
    scene("term", async |scene| {
        let client = scene.client().await;
        let job = scene.shell_job(&client, "waits", "echo begun; exec sleep 1000").await.job_id;
        let begun = client.read(job, Read { wait: LONG, ..Read::default() }).await.unwrap();
        assert_eq!(&begun.body[..], b"begun\n");
        let other = scene.try_client(Http::One, None, "default").await.unwrap();
        let admission = scene.sh("waits", "echo begun; exec sleep 1000");
        let admission_id = request_id().unwrap();
        let answers = async {
            let wait = Duration::from_secs(50);
            let reading = client.read(job, Read { from: begun.next, wait, ..Read::default() });
            let waiting = client.job(job, Until::Settled, wait);
            let admitting = other.admit(&admission_id, &admission, Until::Settled, wait);
            both(both(reading, waiting), admitting).await
        };
        let told = async {
            // They wait once the runner has them: another call on the same connections is answered behind them.
            client.job(job, Until::Now, Duration::ZERO).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let told_at = Instant::now();
            scene.term_runner();
            told_at
        };
        let (((read, view), admitted), told_at) = both(answers, told).await;
        // Far below the 50 s they asked for; the bound is a machine's under load.
        assert!(told_at.elapsed() < Duration::from_secs(10), "answered after {:?}", told_at.elapsed());
        let read = read.unwrap();
        assert_eq!((read.next, read.tail, read.body.len()), (begun.next, Tail::Open, 0));
        assert_eq!(view.unwrap().state, State::Running);
        assert_eq!(admitted.unwrap().arrival, Some(Arrival::Existing));
        drop((client, other));
        scene.end_runner();
        scene.start();
        let client = scene.client().await;
        assert_eq!(client.job(job, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        let receipt = stop_now(&client, job).await;
        assert_eq!(receipt.cause, Cause::Stop { id: "the-end".into() });
    });
}

#[test]
fn a_home_has_one_runner() {
    scene("one", async |scene| {
        let epoch = scene.hello().runner_epoch;
        for _ in 0..2 {
            let second = Command::new(PROGRAM)
                .args(["serve", "--home"])
                .arg(scene.ground.home.path())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert_eq!(second.status.code(), Some(6), "{second:?}");
            assert!(String::from_utf8_lossy(&second.stderr).contains("already"), "{second:?}");
            assert!(second.stdout.is_empty());
        }
        assert_eq!(scene.hello().runner_epoch, epoch, "who was refused counts for nothing");
        scene.end_runner();
        scene.start();
        assert_eq!(scene.hello().runner_epoch, epoch + 1);
    });
}

/// Keepers come out of the runner's nest. Without it they are started as programs, and none that it bore notices its end.
#[test]
fn a_nest_that_is_gone_is_missed_by_nobody() {
    scene("nest", async |scene| {
        let name =
            |process: Pid| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let parent_of = |view: &outlast_wire::view::JobView| {
            crate::ground::parent_of(warden_of(view)).and_then(Pid::from_raw).unwrap()
        };
        let client = scene.client().await;
        let born = started(&client, &scene.sh("born", "exec sleep 600")).await;
        let nest = parent_of(&born);
        assert_eq!(name(nest), "outlast-nest\n");
        let environment = std::fs::read(format!("/proc/{nest}/environ")).unwrap();
        assert!(environment.is_empty(), "what it does not have it cannot tell");
        kill(nest);
        until("the end of the nest", || (!crate::ground::lives(nest)).then_some(())).await;
        let loaded = started(&client, &scene.sh("loaded", "exec sleep 600")).await;
        assert_ne!(name(parent_of(&loaded)), "outlast-nest\n");
        for job in [born.job_id, loaded.job_id] {
            let receipt = stop_now(&client, job).await;
            assert_eq!(receipt.cause, Cause::Stop { id: "the-end".into() });
        }
        drop(client);
        // The next runner has its own, which goes with it.
        scene.end_runner();
        scene.start();
        let client = scene.client().await;
        let born = started(&client, &scene.sh("again", "exec sleep 600")).await;
        let nest = parent_of(&born);
        assert_eq!(name(nest), "outlast-nest\n");
        scene.kill_runner();
        until("the end of the nest", || (!crate::ground::lives(nest)).then_some(())).await;
        assert!(crate::ground::lives(warden_of(&born)));
        scene.start();
        let client = scene.client().await;
        stop_now(&client, born.job_id).await;
    });
}

/// Whoever takes the start mark says why, and whoever writes the receipt says the same, once: not even a keeper's launch
/// that was stuck and goes on later changes it.
#[test]
fn a_receipt_of_what_never_started_is_written_once() {
    scene("stuck-nest", async |scene| {
        let client = scene.client().await;
        let first = started(&client, &scene.sh("first", "exec sleep 600")).await;
        let nest = crate::ground::parent_of(warden_of(&first)).and_then(Pid::from_raw).unwrap();
        let signal = |signal| rustix::process::kill_process(nest, signal).unwrap();
        signal(rustix::process::Signal::STOP);
        let admission = scene.sh("stuck", "echo hi");
        let stuck = client.admit("stuck", &admission, Until::Now, Duration::ZERO).await.unwrap().job_id;
        let stopped = client.stop(&request_id().unwrap(), stuck, &stop("mine", false)).await.unwrap();
        assert_eq!(stopped, Stopped::NeverStarted);
        let path = scene.ground.home.path().join("jobs").join(stuck.to_string()).join("receipt.json");
        let receipt = std::fs::read(&path).unwrap();
        // One that nobody stops is settled when no keeper came.
        let other = scene.sh("other", "echo hi");
        let other = client.admit("other", &other, Until::Settled, LONG).await.unwrap();
        assert_eq!(other.receipt.unwrap().exit, Exit::NotStarted { why: NotStarted::NoKeeper });
        signal(rustix::process::Signal::CONT);
        // It does one after the other: when this one has run, it has been through those before.
        assert_eq!(ran(&client, &scene.sh("last", "echo hi")).await.exit, Exit::Exited { code: 0 });
        let view = client.job(stuck, Until::Now, Duration::ZERO).await.unwrap();
        assert_eq!(view.verdict.unwrap().exit_code, 143);
        assert_eq!(view.receipt.unwrap().exit, Exit::NotStarted { why: NotStarted::Cancelled });
        assert_eq!(std::fs::read(&path).unwrap(), receipt);
        stop_now(&client, first.job_id).await;
    });
}

#[test]
fn a_killed_runner_leaves_no_group() {
    scene("group", async |scene| {
        let group = group_of(scene.runner_pid().as_raw_nonzero().get() as u32);
        assert_eq!(group.is_some(), crate::ground::is_root());
        let Some(group) = group else { return };
        // As a machine would: nothing of this test's tidies.
        let _ = rustix::process::kill_process(scene.runner_pid(), rustix::process::Signal::KILL);
        let before = Instant::now();
        let second = loop {
            let child = Command::new(PROGRAM)
                .args(["serve", "--idle-exit", "0", "--home"])
                .arg(scene.ground.home.path())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            if child.status.code() != Some(6) {
                break child;
            }
            assert!(before.elapsed() < LONG);
        };
        assert!(second.status.success(), "{second:?}");
        let left = group.exists();
        scene.kill_runner();
        assert!(!left, "the next runner left {} of the one that was killed", group.display());
        scene.start();
    });
}

fn warden_of(view: &outlast_wire::view::JobView) -> Pid {
    Pid::from_raw(view.keeper_pid.unwrap() as i32).unwrap()
}

#[test]
fn a_lost_keeper_is_settled_unasked_where_that_can_be_proved() {
    scene("lost-proved", async |scene| {
        let client = scene.client().await;
        // Its command outlives the keeper, and ends by itself while nobody asks.
        let go = scene.ground.file("go");
        let wait = format!("echo some; while [ ! -e {} ]; do sleep 0.02; done; exit 3", go.display());
        let mut admission = scene.sh("lost", &wait);
        admission.containment = Some(Boundary::PidNamespace);
        let view = started(&client, &admission).await;
        client.read(view.job_id, Read { wait: LONG, ..Read::default() }).await.unwrap();
        kill(warden_of(&view));
        let unknown = client.job(view.job_id, Until::Settled, LONG).await.unwrap();
        assert_eq!((unknown.state, unknown.receipt), (State::Unknown, None), "its init lives");
        std::fs::write(&go, b"").unwrap();
        // The files say so before anybody asks.
        let job = scene.ground.home.job(view.job_id).unwrap().unwrap();
        let receipt = until("a receipt", || job.receipt().unwrap()).await;
        assert!(matches!(receipt.death, Evidence::PidNamespaceInitGone { .. }), "{receipt:?}");
        assert_eq!(receipt.cause, Cause::KeeperLost);
        assert!(matches!(receipt.exit, Exit::Unknown { .. } | Exit::Exited { code: 3 }), "{receipt:?}");
        let (output, _) = read_all(&client, view.job_id, Read::default()).await;
        assert_eq!(output, b"some\n");
        let again = client.stop(&request_id().unwrap(), view.job_id, &stop("late", false)).await.unwrap();
        assert_eq!(again, Stopped::AlreadySettled);
    });
}

#[test]
fn a_lost_keepers_deadline_is_kept_by_the_runner() {
    scene("lost-deadline", async |scene| {
        let client = scene.client().await;
        let mut admission = scene.sh("lost", "trap '' TERM; echo some; while :; do sleep 0.1; done");
        admission.containment = Some(Boundary::PidNamespace);
        admission.limits.deadline = Some(Millis(3000));
        let view = started(&client, &admission).await;
        kill(warden_of(&view));
        let job = scene.ground.home.job(view.job_id).unwrap().unwrap();
        let receipt = until("a receipt", || job.receipt().unwrap()).await;
        assert!(matches!(receipt.death, Evidence::PidNamespaceInitGone { .. }), "{receipt:?}");
        assert_eq!(receipt.cause, Cause::KeeperLost);
        let asked = scene.sh("asked", "exec sleep 1000");
        let asked = outlast_wire::admission::Admission { containment: Some(Boundary::PidNamespace), ..asked };
        let view = started(&client, &asked).await;
        kill(warden_of(&view));
        client.job(view.job_id, Until::Settled, LONG).await.unwrap();
        let settled = client.settle(&request_id().unwrap(), view.job_id, &Settle::Asked).await.unwrap();
        assert_eq!(settled, Settled::Settled);
    });
}

#[test]
fn what_was_lost_while_no_runner_ran_is_settled_by_the_next() {
    scene("lost-meanwhile", async |scene| {
        let client = scene.client().await;
        let go = scene.ground.file("go");
        let script = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
        let mut admission = scene.sh("lost", &script);
        admission.containment = Some(Boundary::PidNamespace);
        let view = started(&client, &admission).await;
        let ended = started(&client, &scene.sh("ends", &script)).await;
        scene.kill_runner();
        kill(warden_of(&view));
        std::fs::write(&go, b"").unwrap();
        let receipt_of = |id: JobId| scene.ground.home.job(id).unwrap().unwrap().receipt().unwrap();
        let receipt = until("its keeper's receipt", || receipt_of(ended.job_id)).await;
        assert_eq!(receipt.cause, Cause::OwnEnd, "a keeper needs no runner");
        scene.start();
        let receipt = until("a settler's receipt", || receipt_of(view.job_id)).await;
        assert_eq!(receipt.cause, Cause::KeeperLost);
        let client = scene.client().await;
        assert_eq!(client.job(ended.job_id, Until::Settled, LONG).await.unwrap().state, State::Settled);
    });
}

#[test]
fn a_lost_keeper_without_proof_is_unknown_and_waits_end() {
    let boundaries = match crate::ground::is_root() {
        true => vec![Boundary::Cgroup2Subreaper, Boundary::Subreaper],
        false => vec![Boundary::Subreaper],
    };
    for boundary in boundaries {
        scene(&format!("lost-{}", boundary.name().replace('+', "-")), async |scene| {
            let client = scene.client().await;
            let mut admission = scene.sh("lost", "trap '' TERM; echo some; while :; do sleep 0.1; done");
            admission.containment = Some(boundary);
            let view = started(&client, &admission).await;
            let id = view.job_id;
            client.read(id, Read { wait: LONG, ..Read::default() }).await.unwrap();
            let (waited, ()) = both(client.job(id, Until::Settled, Duration::from_secs(50)), async {
                client.job(id, Until::Now, Duration::ZERO).await.unwrap();
                kill(warden_of(&view));
            })
            .await;
            let waited = waited.unwrap();
            assert_eq!((waited.state, waited.receipt), (State::Unknown, None));
            let again = client.job(id, Until::Settled, Duration::from_secs(50)).await.unwrap();
            assert_eq!(again.state, State::Unknown, "and whoever waits later is told as well");

            // Its workspace takes nothing new; the refusal names the job.
            let next = scene.sh("next", "true");
            let refused = client.admit(&request_id().unwrap(), &next, Until::Now, Duration::ZERO).await;
            let refused = problem_of(refused);
            assert_eq!(
                (refused.code.as_str(), refused.status, refused.job_id),
                ("WORKSPACE_UNKNOWN", 409, Some(id))
            );
            assert!(refused.retryable && refused.remedy.unwrap().contains("/settle"));

            // Nothing is ended by looking, and reads go on.
            let stopped = client.stop(&request_id().unwrap(), id, &stop("s", true)).await.unwrap();
            assert_eq!(stopped, Stopped::KeeperLost);
            let read = client.read(id, Read::default()).await.unwrap();
            assert_eq!(&read.body[..], b"some\n");
            let settle = async |how: &Settle| client.settle(&request_id().unwrap(), id, how).await.unwrap();
            let Settled::StillUnknown { seen, .. } = settle(&Settle::Prove).await else { panic!("proved") };
            assert!(!seen.is_empty(), "it lives, and a person is shown it");
            let asked = settle(&Settle::Asked).await;
            let Settled::StillUnknown { seen, .. } = asked else { panic!("{asked:?}") };
            assert_eq!(seen, [], "it was ended");
            let unnamed =
                client.settle(&request_id().unwrap(), id, &Settle::Attest { name: "  ".into() }).await;
            assert_eq!(problem_of(unnamed).code, "BAD_NAME");
            assert_eq!(settle(&Settle::Attest { name: "ada".into() }).await, Settled::Attested);
            let view = client.job(id, Until::Settled, Duration::from_secs(50)).await.unwrap();
            assert_eq!(view.attestation.unwrap().name, "ada");
            assert!(view.receipt.is_none(), "a word is no proof");
            ran(&client, &scene.sh("next", "true")).await;
        });
    }
}

#[test]
fn what_another_process_admitted_and_never_launched_is_settled() {
    scene("never", async |scene| {
        let job = scene.ground.admit(&scene.ground.ask_argv(&["true"]));
        // Unasked; the start mark is given 5 s.
        let receipt = until("a receipt", || job.receipt().unwrap()).await;
        assert_eq!(receipt.exit, Exit::NotStarted { why: NotStarted::NoKeeper });
        let client = scene.client_of("torture").await;
        let view = client.job(job.id(), Until::Settled, LONG).await.unwrap();
        assert_eq!(view.state, State::Settled);
        // Who comes late finds the mark taken.
        let run = crate::ground::try_launch(&job);
        drop(run);
        assert_eq!(job.receipt().unwrap(), Some(receipt));
    });
}

#[test]
fn what_another_process_launched_is_followed() {
    scene("elsewhere", async |scene| {
        let job = scene.ground.admit(&scene.ground.ask_argv(&["sh", "-c", "echo a; sleep 0.3; echo b"]));
        let client = scene.client_of("torture").await;
        let (output, launched) =
            both(read_all(&client, job.id(), Read::default()), async { launch_keeper(&job) }).await;
        drop(launched);
        assert_eq!(output.0, b"a\nb\n");
        let view = client.job(job.id(), Until::Settled, LONG).await.unwrap();
        assert_eq!(view.receipt.unwrap().exit, Exit::Exited { code: 0 });
    });
}

#[test]
fn an_answer_that_was_lost_is_asked_for_again() {
    scene("answer-lost", async |scene| {
        let hello = scene.hello();
        for number in 0..20u64 {
            let effect = scene.ground.file(&format!("effect-{number}"));
            let admission = scene.sh(&format!("k-{number}"), &format!("echo x >> {}", effect.display()));
            let headers = scene.bound(&hello);
            let body = serde_json::to_vec(&admission).unwrap();
            let request = request("POST", "/v1/jobs?until=settled&wait_ms=20000", &headers, &body);
            let mut stream = scene.connect();
            stream.write_all(&request).unwrap();
            // Lost at another moment each time, from at once on.
            tokio::time::sleep(Duration::from_micros(number * number * 60)).await;
            drop(stream);
            let id = &headers.iter().find(|(name, _)| name == "outlast-request-id").unwrap().1;
            let client = scene.client().await;
            let view = client.admit(id, &admission, Until::Settled, LONG).await.unwrap();
            let receipt = settled(&client, view.job_id).await;
            assert_eq!(receipt.exit, Exit::Exited { code: 0 }, "{view:?}");
            assert_eq!(std::fs::read_to_string(&effect).unwrap(), "x\n", "once");
            let third = client.admit(id, &admission, Until::Settled, LONG).await.unwrap();
            assert_eq!((third.job_id, third.arrival), (view.job_id, Some(Arrival::Existing)));
            assert_eq!(std::fs::read_to_string(&effect).unwrap(), "x\n", "once");
        }
        let client = scene.client().await;
        assert_eq!(client.list(None, 1000).await.unwrap().jobs.len(), 20);
    });
}

#[test]
fn many_at_once_admit_one_job() {
    scene("race", async |scene| {
        let effect = scene.ground.file("effect");
        let admission = scene.sh("k", &format!("echo x >> {}", effect.display()));
        let client = scene.client().await;
        let views = all((0..50).map(|_| async {
            client.admit(&request_id().unwrap(), &admission, Until::Settled, LONG).await.unwrap()
        }))
        .await;
        let new = views.iter().filter(|view| view.arrival == Some(Arrival::Admitted)).count();
        assert_eq!(new, 1);
        assert!(views.iter().all(|view| view.job_id == views[0].job_id && view.receipt.is_some()));
        assert_eq!(std::fs::read_to_string(&effect).unwrap(), "x\n");
    });
}

#[test]
fn a_key_is_one_command() {
    scene("key", async |scene| {
        let client = scene.client().await;
        let first = started(&client, &scene.sh("k", "true")).await;
        let mut other = scene.sh("k", "false");
        other.limits.deadline = Some(Millis(7_000));
        let refused =
            problem_of(client.admit(&request_id().unwrap(), &other, Until::Now, Duration::ZERO).await);
        assert_eq!(
            (refused.code.as_str(), refused.status, refused.job_id),
            ("KEY_CONFLICT", 409, Some(first.job_id))
        );
        let differs = refused.context.unwrap()["differs"].clone();
        let differs: Vec<String> = serde_json::from_value(differs).unwrap();
        assert!(differs.contains(&"command".to_owned()) && differs.len() == 2, "{differs:?}");
        // In another scope it is another key.
        let elsewhere = scene.client_of("elsewhere").await;
        let other = started(&elsewhere, &scene.sh("k", "false")).await;
        assert_ne!(other.job_id, first.job_id);
        settled(&client, first.job_id).await;
        settled(&elsewhere, other.job_id).await;
    });
}

#[test]
fn a_later_attempt_needs_proof() {
    scene("attempts", async |scene| {
        let client = scene.client().await;
        let attempt = |number: u32| {
            let mut admission = scene.sh("k", "exec sleep 1000");
            admission.attempt = Attempt(number.try_into().unwrap());
            admission
        };
        let admit = async |number: u32| {
            client.admit(&request_id().unwrap(), &attempt(number), Until::Started, LONG).await
        };
        for attempt in [2, 5] {
            let refused = problem_of(admit(attempt).await);
            assert_eq!((refused.status, refused.code.as_str()), (404, "NO_SUCH_JOB"), "it follows none");
            // In the words of who asked: no job that was never spoken of.
            assert!(refused.detail.contains(&format!("attempt {attempt} follows nothing")), "{refused:?}");
            assert!(refused.job_id.is_none(), "{refused:?}");
            assert!(refused.remedy.as_ref().unwrap().contains("admit attempt 1 first"), "{refused:?}");
        }
        let first = admit(1).await.unwrap();
        let refused = problem_of(admit(2).await);
        assert_eq!((refused.code.as_str(), refused.job_id), ("NOT_PROVED_DEAD", Some(first.job_id)));
        assert!(refused.retryable);
        stop_now(&client, first.job_id).await;
        let second = admit(2).await.unwrap();
        assert_eq!((second.job_id, second.arrival), (first.job_id.next_attempt(), Some(Arrival::Admitted)));
        assert_eq!(admit(2).await.unwrap().arrival, Some(Arrival::Existing));
        let earlier = admit(1).await.unwrap();
        assert_eq!((earlier.job_id, earlier.arrival), (first.job_id, Some(Arrival::Existing)));
        assert_eq!(problem_of(admit(4).await).status, 409);
        assert_eq!(problem_of(admit(3).await).code, "NOT_PROVED_DEAD");
        stop_now(&client, second.job_id).await;
    });
}

#[test]
fn a_stop_that_races_the_end() {
    scene("stop-race", async |scene| {
        let client = scene.client().await;
        all((0..40u64).map(|number| {
            let client = &client;
            async move {
                let script = format!("sleep 0.0{:02}", number * 2);
                let view = started(client, &scene.sh(&format!("k-{number}"), &script)).await;
                tokio::time::sleep(Duration::from_millis(number)).await;
                let stopped =
                    client.stop(&request_id().unwrap(), view.job_id, &stop("s", false)).await.unwrap();
                let receipt = settled(client, view.job_id).await;
                match stopped {
                    Stopped::Accepted => match &receipt.cause {
                        Cause::Stop { id } => assert_eq!(id, "s"),
                        cause => assert_eq!(*cause, Cause::OwnEnd),
                    },
                    Stopped::AlreadySettled => assert_eq!(receipt.cause, Cause::OwnEnd),
                    other => panic!("{other:?}"),
                }
                let again =
                    client.stop(&request_id().unwrap(), view.job_id, &stop("s", false)).await.unwrap();
                assert_eq!(again, Stopped::AlreadySettled);
            }
        }))
        .await;
    });
}

#[test]
fn a_stop_of_what_was_never_launched() {
    scene("stop-unlaunched", async |scene| {
        let client = scene.client_of("torture").await;
        let job = scene.ground.admit(&scene.ground.ask_argv(&["true"]));
        let stopped = client.stop(&request_id().unwrap(), job.id(), &stop("s", false)).await.unwrap();
        assert_eq!(stopped, Stopped::NeverStarted);
        let receipt = settled(&client, job.id()).await;
        assert_eq!(receipt.exit, Exit::NotStarted { why: NotStarted::Cancelled });
        let again = client.stop(&request_id().unwrap(), job.id(), &stop("s", false)).await.unwrap();
        assert_eq!(again, Stopped::AlreadySettled);
    });
}

async fn of_generation(scene: &Scene, number: u64) -> Client {
    scene.client().await.with_generation(Generation(number))
}

#[test]
fn a_stop_of_another_generation_signals_nothing() {
    scene("stop-stale", async |scene| {
        let client = of_generation(scene, 5).await;
        let signalled = scene.ground.file("signalled");
        let ready = scene.ground.file("ready");
        let script = format!(
            "trap 'echo x > {}; exit 3' TERM; : > {}; while :; do sleep 0.02; done",
            signalled.display(),
            ready.display()
        );
        let id = started(&client, &scene.sh("k", &script)).await.job_id;
        until_file(&ready).await;
        for number in [0, 4, 6] {
            let other = of_generation(scene, number).await;
            let request = request_id().unwrap();
            let stopped = other.stop(&request, id, &stop("s", false)).await.unwrap();
            assert!(matches!(stopped, Stopped::Stale { .. }), "{number}: {stopped:?}");
            let records = dropped::read(&scene.ground.home, 100);
            let record = records.last().expect("it is recorded");
            assert_eq!(record.request_id.as_ref(), Some(&request));
            assert_eq!(record.job_id, Some(id.to_string()));
            assert!(record.carried.contains(&format!("generation {number}")), "{record:?}");
        }
        // An answer from the command itself, so that a signal would have come by now.
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        assert!(!signalled.exists(), "it was signalled");
        let stopped = client.stop(&request_id().unwrap(), id, &stop("s", false)).await.unwrap();
        assert_eq!(stopped, Stopped::Accepted);
        let receipt = settled(&client, id).await;
        assert_eq!(receipt.exit, Exit::Exited { code: 3 });
        assert!(signalled.exists());
        assert_eq!(receipt.stops, ["s"]);
    });
}
