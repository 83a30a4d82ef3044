use crate::ground::LONG;
use crate::stage::settle_in;
use crate::support::scene;
use outlast_brain::calls::{CallError, Ended, state};
use outlast_brain::new_id;
use outlast_core::cutover::OnLimit;
use outlast_core::delivery::EventKind;
use outlast_core::id::Generation;
use outlast_core::stops::StopTarget;
use outlast_core::task::{DeliveredBy, HandOffWhy, ResultState, TaskState, result_state};
use outlast_store::tables::events::Acknowledged;
use outlast_store::tables::stops::Stopped;
use std::time::Duration;

#[test]
fn a_short_command_is_answered_in_its_reply() {
    scene("brain-short", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let task = stage.started(stage.sh("k", "echo out; echo err >&2; exit 3")).await;
        let ended = stage.brain.until_decided(&stage.caller, &task.id).await.unwrap();
        let Ended::Result(over) = ended else { panic!("{ended:?}") };
        let projection = state(&over);
        assert_eq!(projection.state, TaskState::Failed);
        assert_eq!(projection.outcome.unwrap().verdict.exit_code, 3);
        let mut output = stage.output(&task.id).await;
        output.sort_unstable();
        assert_eq!(output.len(), 8);
        // The caller has it: no event tells it again.
        let taken = stage.brain.take(&stage.caller, &task.id).await.unwrap();
        assert_eq!(
            result_state(&taken.facts),
            ResultState::Delivered { by: DeliveredBy::Reply, missing: None }
        );
        assert!(stage.owed().await.is_empty());
        // The same call is the same task.
        assert_eq!(stage.started(stage.sh("k", "echo out; echo err >&2; exit 3")).await.id, task.id);
        let other = stage.brain.start(&stage.caller, stage.sh("k", "echo other")).await;
        assert!(matches!(other, Err(CallError::Conflict(there)) if there == task.id));
    });
}

#[test]
fn a_long_command_is_handed_off_and_its_end_is_told_once() {
    scene("brain-long", async |scene| {
        let stage = settle_in(scene, |settings| settings.cutover = Duration::from_millis(150)).await;
        let _worker = stage.work();
        let go = scene.ground.file("go");
        let script = format!("echo begun; while [ ! -e '{}' ]; do sleep 0.02; done; echo done", go.display());
        let task = stage.started(stage.sh("k", &script)).await;
        let ended = stage.brain.until_decided(&stage.caller, &task.id).await.unwrap();
        let Ended::HandedOff(running) = ended else { panic!("{ended:?}") };
        assert!(matches!(
            running.facts.hand_off,
            outlast_core::task::HandOff::HandedOff { why: HandOffWhy::Cutover, .. }
        ));
        assert!(stage.owed().await.is_empty());
        std::fs::write(&go, "").unwrap();
        let events = stage.brain.events(&stage.caller, None, 10, LONG).await.unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].facts.kind, &events[0].facts.id.task), (EventKind::Finished, &task.id));
        // Who is told can read: the output was there first.
        assert_eq!(stage.output(&task.id).await, b"begun\ndone\n");
        let id = events[0].facts.id.clone();
        assert_eq!(stage.brain.acknowledge(&stage.caller, id.clone()).await.unwrap(), Acknowledged::Now);
        assert_eq!(stage.brain.acknowledge(&stage.caller, id).await.unwrap(), Acknowledged::Before);
        assert!(stage.owed().await.is_empty());
    });
}

#[test]
fn large_output_goes_into_objects_and_comes_back_exact() {
    scene("brain-large", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let mut ask = stage.sh("k", "i=0; while [ $i -lt 300000 ]; do echo line $i; i=$((i+1)); done");
        ask.background = true;
        let task = stage.started(ask).await;
        stage.over(&task.id).await;
        let expected: String = (0..300_000).map(|number| format!("line {number}\n")).collect();
        assert!(stage.output(&task.id).await == expected.as_bytes(), "it is not what was written");
        let list = stage.brain.objects.list(None, None, 10).await.unwrap();
        assert!(!list.entries.is_empty(), "4 MB lie in the store itself");
    });
}

#[test]
fn a_stop_is_done_when_there_is_evidence() {
    scene("brain-stop", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let ready = scene.ground.file("ready");
        let script = format!("trap 'exit 5' TERM; touch '{}'; while :; do sleep 0.02; done", ready.display());
        let mut ask = stage.sh("k", &script);
        ask.background = true;
        let task = stage.started(ask).await;
        crate::support::until_file(&ready).await;
        let id = new_id().unwrap();
        let target = StopTarget::Task { task: task.id.clone() };
        let stop = |id| {
            let conversation = stage.conversation.clone();
            stage.brain.stop(&stage.caller, conversation, id, Generation(0), target.clone())
        };
        let stopped = stop(id).await.unwrap();
        assert_eq!(stopped, Stopped::Accepted { generation: Generation(0), tasks: vec![task.id.clone()] });
        let over = stage.over(&task.id).await;
        let projection = state(&over);
        assert_eq!(
            (projection.state, projection.outcome.unwrap().exit.to_string()),
            (TaskState::Cancelled, "exit 5".to_owned())
        );
        let owed = stage.owed().await;
        assert_eq!((owed.len(), owed[0].facts.kind), (1, EventKind::Cancelled));
        assert_eq!(stop(new_id().unwrap()).await.unwrap(), Stopped::Nothing);
    });
}

#[test]
fn a_limit_that_stops_ends_the_tree_and_says_so_in_the_reply() {
    scene("brain-limit", async |scene| {
        let stage = settle_in(scene, |settings| settings.cutover = Duration::from_millis(150)).await;
        let _worker = stage.work();
        let mut ask = stage.sh("k", "exec sleep 600");
        ask.on_limit = OnLimit::Stop;
        let task = stage.started(ask).await;
        let ended = stage.brain.until_decided(&stage.caller, &task.id).await.unwrap();
        let Ended::Result(over) = ended else { panic!("{ended:?}") };
        assert_ne!(state(&over).state, TaskState::Succeeded);
        stage.brain.take(&stage.caller, &task.id).await.unwrap();
        assert!(stage.owed().await.is_empty());
    });
}

#[test]
fn what_a_hand_refuses_has_failed_and_started_nothing() {
    scene("brain-refused", async |scene| {
        let stage = settle_in(scene, |_| {}).await;
        let _worker = stage.work();
        let mut ask = stage.sh("nowhere", "true");
        ask.work.cwd = "/no/such/folder".into();
        ask.work.workspace = None;
        let task = stage.started(ask).await;
        let over = stage.over(&task.id).await;
        let projection = state(&over);
        assert_eq!(projection.state, TaskState::Failed);
        assert!(format!("{:?}", over.facts.start).contains("CWD_NOT_FOUND"), "{:?}", over.facts.start);
        let mut secret = stage.sh("secret", "true");
        secret.work.secrets = vec!["TOKEN".into()];
        let task = stage.started(secret).await;
        let over = stage.over(&task.id).await;
        assert!(
            format!("{:?}", over.facts.start).contains("the secret TOKEN is not known"),
            "{:?}",
            over.facts.start
        );
    });
}

#[test]
fn a_secret_reaches_the_command_and_nothing_else() {
    const VALUE: &str = "hunter2-hunter2";
    scene("brain-secret", async |scene| {
        let stage = settle_in(scene, |settings| {
            settings.secrets.insert("TOKEN".into(), VALUE.into());
        })
        .await;
        let _worker = stage.work();
        let mut ask = stage.sh("k", "echo ${#TOKEN}; echo \"$TOKEN\"");
        ask.work.secrets = vec!["TOKEN".into()];
        let task = stage.started(ask).await;
        stage.over(&task.id).await;
        let output = stage.output(&task.id).await;
        assert!(output.starts_with(b"15\n") && output.len() == 19, "{}", String::from_utf8_lossy(&output));
        let root = scene.ground.home.path().parent().unwrap().to_owned();
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else if let Ok(bytes) = std::fs::read(entry.path()) {
                    let found = bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes());
                    assert!(!found, "{} holds it", entry.path().display());
                }
            }
        }
    });
}
