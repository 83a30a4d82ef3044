use crate::scene::{Scene, generation, id, open_run, receipt};
use outlast_core::delivery::EventKind;
use outlast_core::id::{Attempt, Generation};
use outlast_core::stops::{StopCall, StopTarget};
use outlast_core::task::{
    DeliveredBy, HandOffWhy, News, NoStart, Refused, ResultState, TaskState, project_task, result_state,
};
use outlast_core::time::UnixMicros;
use outlast_store::Store;
use outlast_store::ids::StopId;
use outlast_store::tables::stops::{Accept, Stopped};
use outlast_store::tables::tasks::{Answer, Reserved};

fn call(scene: &Scene, at: Generation, target: StopTarget) -> Accept {
    let call = StopCall {
        id: id::<StopId>(),
        tenant: scene.tenant.clone(),
        conversation: scene.conversation.clone(),
        generation: at,
        target,
    };
    Accept { principal: scene.principal.clone(), call }
}

async fn generation_now(scene: &Scene) -> Generation {
    let find = outlast_store::tables::conversations::Find {
        tenant: scene.tenant.clone(),
        id: scene.conversation.clone(),
    };
    scene.store.read(find).await.unwrap().unwrap().generation
}

pub(crate) async fn stop_all(scene: &Scene) -> Stopped {
    let now = generation_now(scene).await;
    scene.store.write(call(scene, now, StopTarget::All)).await.unwrap()
}

pub(crate) async fn a_stop_of_a_task_hits_it_once(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    scene.learns(&task.id, News::HandedOff(HandOffWhy::Background)).await;
    let stop = call(&scene, generation(&task), StopTarget::Task { task: task.id.clone() });
    let accepted = Stopped::Accepted { generation: Generation(0), tasks: vec![task.id.clone()] };
    assert_eq!(store.write(stop.clone()).await.unwrap(), accepted);
    assert_eq!(store.write(stop.clone()).await.unwrap(), accepted, "the same stop, asked again");
    let stopping = scene.find(&task).await;
    assert_eq!(
        project_task(&stopping.facts, UnixMicros(0)).state,
        TaskState::Stopping,
        "accepted is not done"
    );
    let mut second = stop.clone();
    second.call.id = id();
    assert_eq!(store.write(second).await.unwrap(), Stopped::Nothing);
    // Whatever its exit, a person stopped it.
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 0, 0))).await;
    let over = scene.find(&task).await;
    assert_eq!(project_task(&over.facts, UnixMicros(0)).state, TaskState::Cancelled);
    let owed = scene.owed().await;
    assert_eq!((owed.len(), owed[0].facts.kind), (1, EventKind::Cancelled));
    let mut late = stop;
    late.call.id = id();
    assert_eq!(store.write(late).await.unwrap(), Stopped::Nothing);
    let missing = call(&scene, Generation(0), StopTarget::Task { task: id() });
    assert_eq!(store.write(missing).await.unwrap(), Stopped::NotFound);
}

pub(crate) async fn a_stop_of_everything_closes_the_generation(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let (running, over) = (scene.admitted("running").await, scene.admitted("over").await);
    for task in [&running, &over] {
        scene.learns(&task.id, News::HandedOff(HandOffWhy::Background)).await;
    }
    scene.learns(&over.id, News::Receipt(receipt(&over, Attempt::FIRST, 0, 0))).await;
    assert_eq!(scene.owed().await.len(), 1);
    let stopped = stop_all(&scene).await;
    assert_eq!(stopped, Stopped::Accepted { generation: Generation(1), tasks: vec![running.id.clone()] });
    assert!(scene.owed().await.is_empty(), "nobody waits for it any more");
    let told = result_state(&scene.find(&over).await.facts);
    assert_eq!(told, ResultState::Delivered { by: DeliveredBy::Stop, missing: None });
    // The run began under the generation that is closed.
    assert_eq!(store.write(scene.reservation("more")).await.unwrap(), Reserved::Closed(Generation(1)));
    // A stop of that generation stops nothing of the next one.
    let stale = call(&scene, Generation(0), StopTarget::All);
    assert_eq!(store.write(stale.clone()).await.unwrap(), Stopped::Dropped(Generation(1)));
    assert_eq!(store.write(stale).await.unwrap(), Stopped::Dropped(Generation(1)));
    assert_eq!(generation_now(&scene).await, Generation(1));
}

pub(crate) async fn a_stop_of_a_run_spares_what_is_handed_off(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let (foreground, background) = (scene.admitted("fore").await, scene.admitted("back").await);
    scene.learns(&background.id, News::HandedOff(HandOffWhy::Cutover)).await;
    let stop = call(&scene, Generation(0), StopTarget::Run { run: scene.run.clone() });
    let accepted = Stopped::Accepted { generation: Generation(0), tasks: vec![foreground.id.clone()] };
    assert_eq!(store.write(stop).await.unwrap(), accepted);
    assert!(scene.find(&background).await.facts.stop.is_none());
    let other = call(&scene, Generation(0), StopTarget::Run { run: id() });
    assert_eq!(store.write(other).await.unwrap(), Stopped::NotFound);
    assert_eq!(open_run(&store, &scene.tenant, &scene.conversation, &scene.principal).await, scene.run);
}

/// Whatever the order, a task that was reserved before the stop knows of it, and one that was not is not reserved at all.
pub(crate) async fn a_stop_races_a_reservation(store: Store) {
    for round in 0..10 {
        let scene = Scene::new(store.clone()).await;
        let (reservation, now) = (scene.reservation("k"), generation_now(&scene).await);
        let stop = call(&scene, now, StopTarget::All);
        let (first, second) = (store.clone(), store.clone());
        let reserve = tokio::spawn(async move { first.write(reservation).await.unwrap() });
        let stop = tokio::spawn(async move { second.write(stop).await.unwrap() });
        let (reserved, stopped) = (reserve.await.unwrap(), stop.await.unwrap());
        let Stopped::Accepted { tasks, .. } = stopped else { panic!("{stopped:?}") };
        match reserved {
            Reserved::Closed(_) => assert!(tasks.is_empty(), "round {round}"),
            Reserved::New(task) => {
                assert_eq!(tasks, std::slice::from_ref(&task.id), "round {round}");
                // No hand is asked for it any more.
                let asked = scene.tell(&task.id, News::Asked { expires: UnixMicros(1) }).await;
                assert_eq!(asked, Answer::Refused(Refused::StoppedFirst));
                let never = scene.learns(&task.id, News::NotStarted { why: NoStart::StoppedFirst }).await;
                assert_eq!(project_task(&never.facts, UnixMicros(0)).state, TaskState::Cancelled);
            }
            other => panic!("{other:?}"),
        }
    }
}
