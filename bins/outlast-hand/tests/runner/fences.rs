//! Generations, seals, and brains that keep jobs.

use crate::ground::LONG;
use crate::support::*;
use outlast_core::id::{BrainId, Cursor, Generation, RunId};
use outlast_core::time::{Millis, UnixMicros};
use outlast_hand::{dropped, gc};
use outlast_wire::client::{ClientError, Until, request_id};
use outlast_wire::view::Arrival;
use std::time::Duration;

#[test]
fn a_seal_that_races_admissions() {
    scene("seal", async |scene| {
        let run = RunId::new("run-1").unwrap();
        let sealed_at = std::rc::Rc::new(tokio::sync::Notify::new());
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let client = std::rc::Rc::new(scene.client().await);
                let mut admitting = Vec::new();
                for number in 0..50u64 {
                    let mut admission = scene.sh(&format!("k-{number}"), "true");
                    admission.run = Some(run.clone());
                    let client = std::rc::Rc::clone(&client);
                    let sealed_at = std::rc::Rc::clone(&sealed_at);
                    admitting.push(tokio::task::spawn_local(async move {
                        let answer = client
                            .admit(&request_id().unwrap(), &admission, Until::Now, Duration::ZERO)
                            .await;
                        if number == 0 {
                            // With one there, and the others anywhere.
                            sealed_at.notify_one();
                        }
                        answer
                    }));
                }
                sealed_at.notified().await;
                let sealed = client.seal(&request_id().unwrap(), run.clone()).await.unwrap();
                assert!(!sealed.already);
                let mut admitted = Vec::new();
                for answer in admitting {
                    match answer.await.unwrap() {
                        Ok(view) => admitted.push(view.job_id),
                        Err(ClientError::Refused(problem)) => {
                            assert_eq!(problem.code, "RUN_SEALED", "{problem}")
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                admitted.sort_unstable();
                assert_eq!(sealed.jobs, admitted, "each is in the list or was refused");
                assert!(!admitted.is_empty());
                for id in admitted.clone() {
                    settled(&client, id).await;
                }
                let mut late = scene.sh("late", "true");
                late.run = Some(run.clone());
                let refused = client.admit(&request_id().unwrap(), &late, Until::Now, Duration::ZERO).await;
                assert_eq!(problem_of(refused).code, "RUN_SEALED");
                // What was admitted before is found under its key.
                let again = client.seal(&request_id().unwrap(), run.clone()).await.unwrap();
                assert!(again.already && again.jobs == admitted);
                assert_eq!(client.fence_view().await.unwrap().sealed, std::slice::from_ref(&run));
                let view = client.job(admitted[0], Until::Now, Duration::ZERO).await.unwrap();
                assert_eq!(view.run.as_ref(), Some(&run));
                // Another run, another scope: open.
                late.run = Some(RunId::new("run-2").unwrap());
                ran(&client, &late).await;
                late.run = Some(run.clone());
                ran(&scene.client_of("other").await, &late).await;
            })
            .await;
    });
}

#[test]
fn an_older_generation_admits_nothing() {
    scene("fence", async |scene| {
        let of = async |number: u64| scene.client().await.with_generation(Generation(number));
        let (old, new) = (of(3).await, of(4).await);
        let first = ran(&old, &scene.sh("first", "true")).await;
        assert_eq!(new.fence_view().await.unwrap().generation, Generation(3));
        assert_eq!(new.fence(&request_id().unwrap()).await.unwrap().generation, Generation(4));
        let request = request_id().unwrap();
        let refused =
            problem_of(old.admit(&request, &scene.sh("second", "true"), Until::Now, Duration::ZERO).await);
        assert_eq!((refused.status, refused.code.as_str()), (409, "STALE"));
        assert_eq!(dropped::read(&scene.ground.home, 1)[0].request_id, Some(request));
        for (what, refused) in [
            ("seal", problem_of(old.seal(&request_id().unwrap(), RunId::new("r").unwrap()).await)),
            ("fence", problem_of(old.fence(&request_id().unwrap()).await)),
        ] {
            assert_eq!(refused.code, "STALE", "{what}");
        }
        assert_eq!(dropped::read(&scene.ground.home, 100).len(), 3);
        assert!(new.fence_view().await.unwrap().sealed.is_empty());
        // It outlives the runner.
        scene.kill_runner();
        scene.start();
        let refused = of(3)
            .await
            .admit(&request_id().unwrap(), &scene.sh("x", "true"), Until::Now, Duration::ZERO)
            .await;
        assert_eq!(problem_of(refused).code, "STALE");
        let new = of(4).await;
        ran(&new, &scene.sh("x", "true")).await;
        // Another scope has a fence of its own.
        ran(&scene.client_of("other").await, &scene.sh("x", "true")).await;
        // Reads need no generation.
        assert!(new.job(first.job_id, Until::Now, Duration::ZERO).await.unwrap().receipt.is_some());
    });
}

#[test]
fn what_a_brain_keeps_stays_until_it_has_it() {
    scene("brains", async |scene| {
        let client = scene.client().await;
        let brain = BrainId::new("brain-1").unwrap();
        let other = BrainId::new("brain-2").unwrap();
        let mut admission = scene.sh("k", "echo some; read x < /dev/null; exit 4");
        admission.brain = Some(brain.clone());
        let receipt = ran(&client, &admission).await;
        let id = receipt.job_id;
        // Another brain finds it, and keeps it too.
        admission.brain = Some(other.clone());
        let found =
            client.admit(&request_id().unwrap(), &admission, Until::Now, Duration::ZERO).await.unwrap();
        assert_eq!((found.job_id, found.arrival), (id, Some(Arrival::Existing)));
        let far = UnixMicros(receipt.times.settled.0 + 400 * 24 * 3_600_000_000);
        let collect = || gc::collect(&scene.ground.home, far, Millis(0)).unwrap();
        let kept = collect();
        assert_eq!((kept.removed.len(), kept.claimed), (0, 1), "{kept:?}");
        let acknowledge = async |brain: &BrainId, cursor: Cursor| {
            client.acknowledge(&request_id().unwrap(), id, brain.clone(), cursor).await.unwrap()
        };
        let end = receipt.output.final_cursor;
        let short = acknowledge(&brain, Cursor(end.0 - 1)).await;
        assert!(!short.released && short.because.is_some(), "{short:?}");
        assert!(collect().removed.is_empty());
        for _ in 0..2 {
            let whole = acknowledge(&brain, end).await;
            assert!(whole.released && whole.because.is_none(), "{whole:?}");
        }
        assert!(collect().removed.is_empty(), "the other one has yet to have it");
        assert!(acknowledge(&other, end).await.released);
        assert_eq!(collect().removed, [id]);
        let gone = client.job(id, Until::Now, Duration::ZERO).await;
        assert_eq!(problem_of(gone).status, 404);
        let answered = client.admit(&request_id().unwrap(), &admission, Until::Settled, LONG).await.unwrap();
        assert_eq!((answered.job_id, answered.arrival, answered.removed), (id, Some(Arrival::Removed), true));
        assert_eq!(answered.receipt.map(|receipt| *receipt), Some(receipt));
    });
}

#[test]
fn what_has_not_ended_is_not_acknowledged() {
    scene("brains-early", async |scene| {
        let client = scene.client().await;
        let brain = BrainId::new("brain-1").unwrap();
        let mut admission = scene.sh("k", "exec sleep 1000");
        admission.brain = Some(brain.clone());
        let id = started(&client, &admission).await.job_id;
        let early = client.acknowledge(&request_id().unwrap(), id, brain, Cursor(0)).await.unwrap();
        assert!(!early.released && early.because.is_some(), "{early:?}");
        stop_now(&client, id).await;
    });
}
