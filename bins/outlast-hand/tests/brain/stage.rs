//! A brain beside a scene's hand: its store, a tenant, a person, a conversation, a run.

use crate::ground::LONG;
use crate::support::Scene;
use outlast_brain::calls::{Ask, Caller, is_over, state};
use outlast_brain::settings::Settings;
use outlast_brain::work::Work;
use outlast_brain::worker::Worker;
use outlast_brain::{Brain, new_id};
use outlast_core::bytes::Bytes;
use outlast_core::cutover::OnLimit;
use outlast_core::id::{Cursor, SandboxGeneration};
use outlast_core::spec::Command;
use outlast_core::task::TaskState;
use outlast_objects::Objects;
use outlast_store::ids::{ConversationId, RunId, TaskId};
use outlast_store::tables::hands::{self, HandId};
use outlast_store::tables::tasks::Task;
use outlast_store::tables::{conversations, principals, runs, sandboxes, tenants};
use outlast_store::{Location, Store};
use std::time::Duration;

pub(crate) struct Stage<'s> {
    pub(crate) scene: &'s Scene,
    pub(crate) brain: Brain,
    pub(crate) caller: Caller,
    pub(crate) conversation: ConversationId,
    pub(crate) run: RunId,
    pub(crate) hand: HandId,
}

pub(crate) async fn settle_in(scene: &Scene, change: impl FnOnce(&mut Settings)) -> Stage<'_> {
    let place = Location::Sqlite(scene.ground.file("brain.db"));
    let folder = format!("file:{}", scene.ground.file("objects").display()).parse().unwrap();
    let (store, objects) = (Store::open(&place).await.unwrap(), Objects::open(&folder).await.unwrap());
    // Short ones, so that what must happen after them happens soon.
    let mut settings = Settings {
        lease: Duration::from_millis(600),
        sweep: Duration::from_millis(200),
        gather: Duration::from_millis(10),
        ..Settings::default()
    };
    change(&mut settings);
    let brain = Brain::new(store, objects, settings);
    let caller = Caller { tenant: new_id().unwrap(), principal: new_id().unwrap() };
    let store = &brain.store;
    store.write(tenants::Create { id: caller.tenant.clone(), name: "t".into() }).await.unwrap();
    let person = principals::Principal {
        id: caller.principal.clone(),
        tenant: caller.tenant.clone(),
        name: "Anna".into(),
    };
    store.write(principals::Create(person)).await.unwrap();
    let open = conversations::Open {
        id: new_id().unwrap(),
        tenant: caller.tenant.clone(),
        principal: caller.principal.clone(),
        client_session: None,
        title: "a build".into(),
        on_limit: OnLimit::Background,
    };
    let conversation = store.write(open).await.unwrap().id;
    let open = runs::Open {
        id: new_id().unwrap(),
        tenant: caller.tenant.clone(),
        conversation: conversation.clone(),
        principal: caller.principal.clone(),
    };
    let run = store.write(open).await.unwrap().unwrap().id;
    let sandbox = sandboxes::Sandbox {
        id: new_id().unwrap(),
        tenant: caller.tenant.clone(),
        name: "here".into(),
        provider: "local".into(),
    };
    let sandbox = store.write(sandboxes::Record(sandbox)).await.unwrap().id;
    let hand = HandId { sandbox, generation: SandboxGeneration(1) };
    let record = hands::Record {
        tenant: caller.tenant.clone(),
        id: hand.clone(),
        channels: vec![format!("unix:{}", scene.ground.home.path().join("runner.sock").display())],
        provider_ref: scene.ground.home.sandbox().to_owned(),
        lives_for: None,
    };
    store.write(record).await.unwrap();
    Stage { scene, brain, caller, conversation, run, hand }
}

impl Stage<'_> {
    pub(crate) fn work(&self) -> Worker {
        Worker::start(self.brain.clone()).unwrap()
    }

    pub(crate) fn sh(&self, key: &str, script: &str) -> Ask {
        let words = ["sh", "-c", script].map(Bytes::from).to_vec();
        let cwd = self.scene.ground.home.path().parent().unwrap().display().to_string();
        let mut work = Work::new(Command::Argv(words), cwd.as_str());
        work.workspace = Some(Bytes::from(cwd.as_str()));
        Ask {
            conversation: self.conversation.clone(),
            run: self.run.clone(),
            hand: self.hand.clone(),
            key: key.into(),
            work,
            background: false,
            on_limit: OnLimit::Background,
            budget: None,
            deadline: None,
        }
    }

    pub(crate) async fn started(&self, ask: Ask) -> Task {
        self.brain.start(&self.caller, ask).await.unwrap()
    }

    /// Waits until a task is over, its output in the command log.
    pub(crate) async fn over(&self, id: &TaskId) -> Task {
        let task = self.brain.wait(&self.caller, id, LONG).await.unwrap();
        assert!(is_over(&task.facts), "{:?}", task.facts);
        task
    }

    /// Waits until a task is in a state.
    pub(crate) async fn until(&self, id: &TaskId, wanted: TaskState) -> Task {
        let end = std::time::Instant::now() + LONG;
        loop {
            let task = self.brain.task(&self.caller, id).await.unwrap();
            let now = state(&task);
            if now.state == wanted {
                return task;
            }
            assert!(std::time::Instant::now() < end, "it is {now:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// All output there is.
    pub(crate) async fn output(&self, id: &TaskId) -> Vec<u8> {
        let (mut all, mut from) = (Vec::new(), Cursor(0));
        loop {
            let read = self.brain.output(&self.caller, id, from, 1 << 20, None, Duration::ZERO);
            let (piece, _) = read.await.unwrap();
            if piece.next == from {
                return all;
            }
            all.extend(piece.bytes);
            from = piece.next;
        }
    }

    pub(crate) async fn owed(&self) -> Vec<outlast_store::tables::events::Event> {
        self.brain.events(&self.caller, Some(self.conversation.clone()), 100, Duration::ZERO).await.unwrap()
    }
}
