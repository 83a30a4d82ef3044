//! Workers, runners and keepers that die: nothing is lost, nothing runs twice, every end is owed once.

use crate::ground::kill;
use crate::stage::settle_in;
use crate::support::{scene, until_file};
use outlast_brain::calls::state;
use outlast_core::id::Generation;
use outlast_core::stops::StopTarget;
use outlast_core::task::{News, TaskState};
use outlast_core::time::UnixMicros;
use outlast_store::tables::tasks::Learn;
use rustix::process::Pid;
use std::time::Duration;

#[test]
fn a_worker_that_ends_is_followed_by_another_and_no_command_runs_twice() {
    scene("brain-workers", async |scene| {
        let stage = settle_in(scene, |settings| settings.most_unsettled = 100).await;
        let (ran, go) = (scene.ground.file("ran"), scene.ground.file("go"));
        let mut tasks = Vec::new();
        let mut worker = Some(stage.work());
        for number in 0..24 {
            let script = format!(
                "echo {number} >> '{}'; while [ ! -e '{}' ]; do sleep 0.05; done; echo {number}",
                ran.display(),
                go.display()
            );
            let mut ask = stage.sh(&number.to_string(), &script);
            ask.background = true;
            tasks.push(stage.started(ask).await.id);
            if number % 5 == 4 {
                // In the middle of whatever it does; the next one finds what is owed.
                drop(worker.take());
                worker = Some(stage.work());
            }
        }
        for task in &tasks {
            stage.until(task, TaskState::Running).await;
        }
        drop(worker.take());
        std::fs::write(&go, "").unwrap();
        worker = Some(stage.work());
        for (number, task) in tasks.iter().enumerate() {
            let over = stage.over(task).await;
            assert_eq!(state(&over).state, TaskState::Succeeded, "{number}");
            assert_eq!(stage.output(task).await, format!("{number}\n").as_bytes());
        }
        let mut lines: Vec<u32> =
            std::fs::read_to_string(&ran).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..24).collect::<Vec<_>>(), "a command ran twice, or never");
        let owed = stage.owed().await;
        assert_eq!(owed.len(), 24);
        drop(worker);
    });
}

#[test]
fn a_runner_that_dies_is_reached_again() {
    scene("brain-runner", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let (ready, go) = (scene.ground.file("ready"), scene.ground.file("go"));
        let script = format!(
            "echo one; touch '{}'; while [ ! -e '{}' ]; do sleep 0.02; done; echo two",
            ready.display(),
            go.display()
        );
        let mut ask = stage.sh("k", &script);
        ask.background = true;
        let task = stage.started(ask).await;
        until_file(&ready).await;
        scene.kill_runner();
        stage.until(&task.id, TaskState::Unknown).await;
        std::fs::write(&go, "").unwrap();
        scene.start();
        let over = stage.over(&task.id).await;
        assert_eq!(state(&over).state, TaskState::Succeeded);
        assert_eq!(stage.output(&task.id).await, b"one\ntwo\n");
        assert_eq!(stage.owed().await.len(), 1);
    });
}

/// The answer to a start was lost: the same hand is asked for the same key, and the command runs once.
#[test]
fn a_lost_start_answer_is_no_second_start() {
    scene("brain-lost-answer", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let ran = scene.ground.file("ran");
        let mut ask = stage.sh("k", &format!("echo x >> '{}'; echo hi", ran.display()));
        ask.background = true;
        let task = stage.started(ask).await;
        // A worker that asked, and died before it heard: the hand has the job.
        let news = News::Asked { expires: UnixMicros(u64::MAX >> 2) };
        let attempt = task.facts.reserved.attempt;
        let learn = Learn { claim: None, task: task.id.clone(), attempt, news };
        stage.brain.store.write(learn).await.unwrap();
        let mut admission = scene.sh(task.id.as_str(), "");
        let work: outlast_brain::work::Work = serde_json::from_str(&task.work).unwrap();
        let brain = outlast_core::id::BrainId::new("brain").unwrap();
        admission = work
            .admission(
                admission.key,
                attempt,
                stage.run.clone(),
                brain,
                Some(outlast_core::time::Millis(3_600_000)),
                |_| None,
            )
            .unwrap();
        let client = scene.client_of(stage.conversation.as_str()).await;
        let there = client
            .admit("lost", &admission, outlast_wire::client::Until::Settled, Duration::from_secs(20))
            .await
            .unwrap();
        let _worker = stage.work();
        let over = stage.over(&task.id).await;
        let outlast_core::task::Start::Admitted { job_id, .. } = over.facts.start else {
            panic!("{:?}", over.facts.start)
        };
        assert_eq!(job_id, there.job_id);
        assert_eq!(std::fs::read_to_string(&ran).unwrap(), "x\n");
        assert_eq!(stage.owed().await.len(), 1);
    });
}

/// A keeper is killed: the task is unknown, until a stop of it has brought a proof.
#[test]
fn a_lost_keeper_makes_no_success() {
    scene("brain-keeper", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let ready = scene.ground.file("ready");
        let mut ask = stage.sh("k", &format!("echo some; touch '{}'; exec sleep 600", ready.display()));
        ask.work.containment = Some(outlast_core::spec::Boundary::PidNamespace);
        ask.background = true;
        let task = stage.started(ask).await;
        until_file(&ready).await;
        let running = stage.until(&task.id, TaskState::Running).await;
        let outlast_core::task::Start::Admitted { job_id, .. } = running.facts.start else { panic!() };
        let client = scene.client_of(stage.conversation.as_str()).await;
        let keeper =
            client.job(job_id, outlast_wire::client::Until::Now, Duration::ZERO).await.unwrap().keeper_pid;
        kill(Pid::from_raw(keeper.unwrap() as i32).unwrap());
        // Nothing is made of it by itself: it may run. A stop ends its tree through the boundary, and that gives a proof.
        stage.until(&task.id, TaskState::Unknown).await;
        let target = StopTarget::Task { task: task.id.clone() };
        let conversation = stage.conversation.clone();
        let id = outlast_brain::new_id().unwrap();
        stage.brain.stop(&stage.caller, conversation, id, Generation(0), target).await.unwrap();
        let over = stage.over(&task.id).await;
        assert_eq!(state(&over).state, TaskState::Cancelled);
        assert_eq!(stage.output(&task.id).await, b"some\n");
        assert_eq!(stage.owed().await.len(), 1);
    });
}
