use crate::scene::{Scene, id, job, receipt};
use outlast_core::delivery::{EventKind, EventState};
use outlast_core::id::{Attempt, Cursor, JobId};
use outlast_core::task::{
    DeliveredBy, HandOffWhy, Learned, News, NoStart, Refused, ResultState, TaskState, ToldBy, project_task,
    result_state,
};
use outlast_core::time::UnixMicros;
use outlast_store::Store;
use outlast_store::ids::TaskId;
use outlast_store::tables::events::{Acknowledge, Acknowledged, Event, Owed};
use outlast_store::tables::segments::{Appended, Behind, Place};
use outlast_store::tables::tasks::{Answer, Find, List, OfHand, Reserved, Retried, Retry, Task};

impl Scene {
    pub(crate) async fn find(&self, task: &Task) -> Task {
        let find = Find { tenant: self.tenant.clone(), id: task.id.clone() };
        self.store.read(find).await.unwrap().expect("the task")
    }

    pub(crate) async fn owed(&self) -> Vec<Event> {
        let owed = Owed {
            tenant: self.tenant.clone(),
            principal: Some(self.principal.clone()),
            conversation: None,
            run: None,
            limit: 100,
        };
        self.store.read(owed).await.unwrap()
    }
}

pub(crate) async fn a_reservation_is_found_again(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let reservation = scene.reservation("k");
    let Reserved::New(task) = store.write(reservation.clone()).await.unwrap() else { panic!() };
    assert_eq!(project_task(&task.facts, UnixMicros(0)).state, TaskState::Starting);
    assert!(
        task.facts
            .reserved
            .deadline
            .is_some_and(|deadline| deadline.0 == task.facts.reserved.at.0 + 3_600_000_000)
    );
    // The answer was lost, and the same is asked again: nobody is told that somebody else was first.
    assert_eq!(store.write(reservation).await.unwrap(), Reserved::New(task.clone()));
    // The same call by another request finds it.
    assert_eq!(store.write(scene.reservation("k")).await.unwrap(), Reserved::Existing(task.clone()));
    let listed = store.read(OfHand { hand: scene.hand.clone(), after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed, [*task.clone()]);
    let list = List {
        tenant: scene.tenant.clone(),
        conversation: scene.conversation.clone(),
        after: None,
        limit: 10,
    };
    assert_eq!(store.read(list).await.unwrap(), [*task]);
}

pub(crate) async fn a_call_with_another_command_is_a_conflict(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.reserved("k").await;
    let mut other = scene.reservation("k");
    other.digest = "another digest".into();
    assert_eq!(store.write(other).await.unwrap(), Reserved::Conflict(Box::new(task)));
    let mut nowhere = scene.reservation("l");
    nowhere.run = id();
    assert_eq!(store.write(nowhere).await.unwrap(), Reserved::NotFound("run"));
}

pub(crate) async fn a_full_sandbox_names_its_tasks(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let mut first = Vec::new();
    for number in 0..8 {
        first.push(scene.reserved(&format!("k{number}")).await);
    }
    let ids: Vec<TaskId> = first.iter().map(|task| task.id.clone()).collect();
    assert_eq!(store.write(scene.reservation("more")).await.unwrap(), Reserved::Full(ids));
    // A call that has a task needs no place.
    assert!(matches!(store.write(scene.reservation("k3")).await.unwrap(), Reserved::Existing(_)));
    let given_up = News::NotStarted { why: NoStart::GivenUp { because: "of the test".into() } };
    scene.learns(&first[0].id, given_up).await;
    scene.reserved("more").await;
}

pub(crate) async fn reservations_at_once_take_no_place_too_many(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let asks: Vec<_> = (0..24)
        .map(|number| {
            // Two of each call at once.
            let (store, reservation) = (store.clone(), scene.reservation(&format!("k{}", number / 2)));
            tokio::spawn(async move { store.write(reservation).await.unwrap() })
        })
        .collect();
    let (mut new, mut existing, mut full) = (0, 0, 0);
    for ask in asks {
        match ask.await.unwrap() {
            Reserved::New(_) => new += 1,
            Reserved::Existing(_) => existing += 1,
            Reserved::Full(there) => {
                assert_eq!(there.len(), 8);
                full += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((new, new + existing + full), (8, 24));
}

pub(crate) async fn other_tenants_find_nothing(store: Store) {
    let (ours, theirs) = (Scene::new(store.clone()).await, Scene::new(store.clone()).await);
    let task = ours.admitted("k").await;
    let find = Find { tenant: theirs.tenant.clone(), id: task.id.clone() };
    assert_eq!(store.read(find).await.unwrap(), None);
    let mut borrowed = theirs.reservation("k");
    borrowed.conversation = ours.conversation.clone();
    assert_eq!(store.write(borrowed).await.unwrap(), Reserved::NotFound("conversation"));
    let mut borrowed = theirs.reservation("k");
    borrowed.hand = ours.hand.clone();
    assert_eq!(store.write(borrowed).await.unwrap(), Reserved::NotFound("sandbox"));
    // Nor does a worker say anything about the tasks of a hand that it does not have.
    assert_eq!(theirs.tell(&task.id, News::Committed(Cursor(1))).await, Answer::NotFound);
    let retry = Retry {
        tenant: theirs.tenant.clone(),
        task: task.id.clone(),
        over: Attempt::FIRST,
        deadline: None,
        most_unsettled: 8,
    };
    assert_eq!(store.write(retry).await.unwrap(), Retried::NotFound);
    let behind = Behind {
        tenant: theirs.tenant.clone(),
        task: task.id.clone(),
        attempt: Attempt::FIRST,
        from: Cursor(0),
        limit: 10,
    };
    assert!(store.read(behind).await.unwrap().is_empty());
}

pub(crate) async fn output_tiles_the_log(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    let write =
        async |begins, bytes: &[u8]| store.write(scene.append(&task.id, begins, bytes)).await.unwrap();
    assert_eq!(write(0, b"hello ").await, Appended::Now);
    assert_eq!(write(0, b"hello ").await, Appended::Before(Cursor(6)), "a chunk that is told twice");
    assert_eq!(write(7, b"x").await, Appended::Elsewhere(Cursor(6)), "a hole");
    assert_eq!(write(3, b"lo world").await, Appended::Elsewhere(Cursor(6)), "an overlap that goes on");
    assert_eq!(write(6, b"world").await, Appended::Now);
    let behind = async |from| {
        let query = Behind {
            tenant: scene.tenant.clone(),
            task: task.id.clone(),
            attempt: Attempt::FIRST,
            from: Cursor(from),
            limit: 10,
        };
        let segments = store.read(query).await.unwrap();
        let bytes = segments.into_iter().map(|segment| match segment.place {
            Place::Inline(bytes) => (segment.begins.0, String::from_utf8(bytes).unwrap()),
            Place::Object { .. } => panic!("an object"),
        });
        bytes.collect::<Vec<_>>()
    };
    assert_eq!(behind(0).await, [(0, "hello ".to_owned()), (6, "world".to_owned())]);
    assert_eq!(behind(6).await, [(6, "world".to_owned())]);
    assert_eq!(behind(8).await, [(6, "world".to_owned())]);
    assert!(behind(11).await.is_empty());
    assert_eq!(scene.find(&task).await.facts.committed, Cursor(11));
    // Nothing is appended past the end that the receipt gives.
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 0, 11))).await;
    assert_eq!(write(11, b"!").await, Appended::Elsewhere(Cursor(11)));
}

pub(crate) async fn an_end_and_its_event_are_one(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    scene.learns(&task.id, News::HandedOff(HandOffWhy::Background)).await;
    assert!(scene.owed().await.is_empty());
    let news = News::Receipt(receipt(&task, Attempt::FIRST, 3, 0));
    let Answer::Learnt { task: over, event, .. } = scene.tell(&task.id, news.clone()).await else { panic!() };
    assert_eq!(project_task(&over.facts, UnixMicros(0)).state, TaskState::Failed);
    let owed = scene.owed().await;
    assert_eq!(owed.len(), 1);
    assert_eq!((Some(&owed[0].facts.id), owed[0].facts.kind), (event.as_ref(), EventKind::Finished));
    assert_eq!(owed[0].facts.owner, task.facts.owner);
    // Told twice it is owed once.
    let Answer::Learnt { learned, event, .. } = scene.tell(&task.id, news).await else { panic!() };
    assert_eq!((learned, event), (Learned::Unchanged, None));
    assert_eq!(scene.owed().await, owed);
    let hand = OfHand { hand: scene.hand.clone(), after: None, limit: 10 };
    assert!(store.read(hand).await.unwrap().is_empty(), "nothing is left to watch");
}

pub(crate) async fn a_carried_result_owes_nothing(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    assert_eq!(scene.tell(&task.id, News::Carried).await, Answer::Refused(Refused::ResultPending));
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 0, 0))).await;
    scene.learns(&task.id, News::Carried).await;
    let late = scene.tell(&task.id, News::HandedOff(HandOffWhy::Cutover)).await;
    assert_eq!(late, Answer::Refused(Refused::DecidedOtherwise));
    assert!(scene.owed().await.is_empty());
}

pub(crate) async fn a_read_result_is_not_announced(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    scene.learns(&task.id, News::HandedOff(HandOffWhy::Background)).await;
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 0, 0))).await;
    assert_eq!(scene.owed().await.len(), 1);
    let read = scene.learns(&task.id, News::Told(ToldBy::Read)).await;
    assert!(scene.owed().await.is_empty());
    assert_eq!(result_state(&read.facts), ResultState::Delivered { by: DeliveredBy::Read, missing: None });
}

pub(crate) async fn a_second_attempt_follows_a_proof(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    let retry = || Retry {
        tenant: scene.tenant.clone(),
        task: task.id.clone(),
        over: Attempt::FIRST,
        deadline: None,
        most_unsettled: 8,
    };
    assert_eq!(store.write(retry()).await.unwrap(), Retried::NotProvedDead);
    scene.learns(&task.id, News::HandedOff(HandOffWhy::Background)).await;
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 1, 0))).await;
    let Retried::Reserved(second) = store.write(retry()).await.unwrap() else { panic!() };
    assert_eq!(second.facts.reserved.attempt, Attempt::FIRST.next());
    assert_eq!(store.write(retry()).await.unwrap(), Retried::Reserved(second.clone()), "asked again");
    let late = scene.tell(&task.id, News::Told(ToldBy::Read)).await;
    assert_eq!(late, Answer::OtherAttempt(Attempt::FIRST.next()));
    // What the first one owed is owed still, and acknowledging it says nothing of the second.
    let event = scene.owed().await.remove(0).facts.id;
    assert_eq!(event.attempt, Attempt::FIRST);
    let acknowledge =
        Acknowledge { tenant: scene.tenant.clone(), principal: scene.principal.clone(), id: event };
    assert_eq!(store.write(acknowledge).await.unwrap(), Acknowledged::Now);
    assert_eq!(scene.find(&task).await, *second);
    let _: JobId = job(&task, Attempt::FIRST);
}

pub(crate) async fn acknowledged_once(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let other = Scene::new(store.clone()).await;
    let task = scene.admitted("k").await;
    scene.learns(&task.id, News::HandedOff(HandOffWhy::Cutover)).await;
    scene.learns(&task.id, News::Receipt(receipt(&task, Attempt::FIRST, 0, 0))).await;
    let id = scene.owed().await.remove(0).facts.id;
    let by = |scene: &Scene, principal: &outlast_store::ids::PrincipalId| Acknowledge {
        tenant: scene.tenant.clone(),
        principal: principal.clone(),
        id: id.clone(),
    };
    assert_eq!(store.write(by(&other, &other.principal)).await.unwrap(), Acknowledged::NotFound);
    assert_eq!(store.write(by(&scene, &other.principal)).await.unwrap(), Acknowledged::NotFound);
    let at_once: Vec<_> = (0..6)
        .map(|_| {
            let (store, acknowledge) = (store.clone(), by(&scene, &scene.principal));
            tokio::spawn(async move { store.write(acknowledge).await.unwrap() })
        })
        .collect();
    let mut now = 0;
    for one in at_once {
        match one.await.unwrap() {
            Acknowledged::Now => now += 1,
            Acknowledged::Before => {}
            Acknowledged::NotFound => panic!("it is there"),
        }
    }
    assert_eq!(now, 1);
    assert!(scene.owed().await.is_empty());
    let told = result_state(&scene.find(&task).await.facts);
    assert_eq!(told, ResultState::Delivered { by: DeliveredBy::Event, missing: None });
    assert_ne!(EventState::Pending, EventState::Acknowledged);
}
