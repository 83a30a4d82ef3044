//! What most cases begin with: a tenant, a person, a conversation, a run, a hand with a worker on it.

use outlast_core::cutover::Mode;
use outlast_core::id::{Attempt, CallHash, Cursor, Generation, JobId, SandboxGeneration};
use outlast_core::receipt::Receipt;
use outlast_core::spec::JobKind;
use outlast_core::task::{Learned, News};
use outlast_core::time::{Millis, UnixMicros};
use outlast_store::Store;
use outlast_store::ids::{
    ConversationId, New, PrincipalId, RunId, SandboxId, Seed, TaskId, TenantId, WorkerId,
};
use outlast_store::tables::hands::{Claim, HandId};
use outlast_store::tables::tasks::{Answer, Learn, Reserve, Reserved, Task};
use outlast_store::tables::{conversations, hands, principals, runs, sandboxes, segments, tenants};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// A lease that outlasts any case.
pub(crate) const LONG: Millis = Millis(600_000);

/// Nobody else's in this process.
pub(crate) fn seed() -> Seed {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Seed { millis: next, random: u128::from(next) << 16 }
}

pub(crate) fn id<T: New>() -> T {
    T::new_id(seed())
}

pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) tenant: TenantId,
    pub(crate) principal: PrincipalId,
    pub(crate) conversation: ConversationId,
    pub(crate) run: RunId,
    pub(crate) hand: HandId,
    pub(crate) claim: Claim,
}

pub(crate) async fn tenant_of(store: &Store) -> (TenantId, PrincipalId) {
    let (tenant, principal): (TenantId, PrincipalId) = (id(), id());
    store.write(tenants::Create { id: tenant.clone(), name: "a tenant".into() }).await.unwrap();
    let person = principals::Principal { id: principal.clone(), tenant: tenant.clone(), name: "Anna".into() };
    store.write(principals::Create(person)).await.unwrap();
    (tenant, principal)
}

pub(crate) async fn hand_of(store: &Store, tenant: &TenantId) -> HandId {
    let sandbox = sandboxes::Sandbox {
        id: id(),
        tenant: tenant.clone(),
        name: format!("box-{}", seed().millis),
        provider: "local".into(),
    };
    let sandbox: SandboxId = store.write(sandboxes::Record(sandbox)).await.unwrap().id;
    let hand = HandId { sandbox, generation: SandboxGeneration(1) };
    let record = hands::Record {
        tenant: tenant.clone(),
        id: hand.clone(),
        channels: vec!["unix:/run/hand.sock".into()],
        provider_ref: "here".into(),
        lives_for: None,
    };
    store.write(record.clone()).await.unwrap();
    assert!(store.write(record).await.unwrap(), "recorded twice, and told so");
    hand
}

impl Scene {
    pub(crate) async fn new(store: Store) -> Scene {
        let (tenant, principal) = tenant_of(&store).await;
        let open = conversations::Open {
            id: id(),
            tenant: tenant.clone(),
            principal: principal.clone(),
            client_session: None,
            title: "a build".into(),
            on_limit: outlast_core::cutover::OnLimit::Background,
        };
        let conversation = store.write(open).await.unwrap().id;
        let hand = hand_of(&store, &tenant).await;
        let taken =
            store.write(hands::Take { worker: id::<WorkerId>(), limit: 10, lease: LONG }).await.unwrap();
        let claim = taken.into_iter().find(|(taken, _)| taken.id == hand).unwrap().1;
        let run = open_run(&store, &tenant, &conversation, &principal).await;
        Scene { store, tenant, principal, conversation, run, hand, claim }
    }

    pub(crate) fn reservation(&self, key: &str) -> Reserve {
        Reserve {
            id: id(),
            tenant: self.tenant.clone(),
            conversation: self.conversation.clone(),
            run: self.run.clone(),
            principal: self.principal.clone(),
            hand: self.hand.clone(),
            key: key.into(),
            digest: "a digest".into(),
            work: "{}".into(),
            kind: JobKind::Command,
            mode: Mode::Foreground {
                limit: UnixMicros(u64::MAX >> 2),
                on_limit: outlast_core::cutover::OnLimit::Background,
            },
            deadline: Some(Millis(3_600_000)),
            most_unsettled: 8,
        }
    }

    pub(crate) async fn reserved(&self, key: &str) -> Task {
        match self.store.write(self.reservation(key)).await.unwrap() {
            Reserved::New(task) => *task,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn tell(&self, task: &TaskId, news: News) -> Answer {
        let attempt = Attempt::FIRST;
        let learn = Learn { claim: Some(self.claim.clone()), task: task.clone(), attempt, news };
        self.store.write(learn).await.unwrap()
    }

    /// News that change what is known.
    #[track_caller]
    pub(crate) fn learns(&self, task: &TaskId, news: News) -> impl Future<Output = Task> {
        let place = std::panic::Location::caller();
        async move {
            match self.tell(task, news.clone()).await {
                Answer::Learnt { learned: Learned::Changed, task, .. } => *task,
                other => panic!("{news:?}: {other:?} ({place})"),
            }
        }
    }

    /// A task that was reserved, asked for and admitted.
    pub(crate) async fn admitted(&self, key: &str) -> Task {
        let task = self.reserved(key).await;
        self.learns(&task.id, News::Asked { expires: UnixMicros(u64::MAX >> 1) }).await;
        self.learns(&task.id, News::Admitted { job_id: job(&task, Attempt::FIRST) }).await
    }

    pub(crate) fn append(&self, task: &TaskId, begins: u64, bytes: &[u8]) -> segments::Append {
        segments::Append {
            claim: self.claim.clone(),
            task: task.clone(),
            attempt: Attempt::FIRST,
            segment: segments::Segment {
                begins: Cursor(begins),
                ends: Cursor(begins + bytes.len() as u64),
                place: segments::Place::Inline(bytes.to_vec()),
                blake3: String::new(),
            },
        }
    }
}

pub(crate) async fn open_run(
    store: &Store,
    tenant: &TenantId,
    conversation: &ConversationId,
    principal: &PrincipalId,
) -> RunId {
    let open = runs::Open {
        id: id(),
        tenant: tenant.clone(),
        conversation: conversation.clone(),
        principal: principal.clone(),
    };
    store.write(open).await.unwrap().expect("a conversation").id
}

pub(crate) fn job(task: &Task, attempt: Attempt) -> JobId {
    let mut call = [0; outlast_core::id::CALL_HASH_BYTES];
    for (byte, from) in call.iter_mut().zip(task.id.as_str().bytes().rev()) {
        *byte = from;
    }
    JobId { call: CallHash(call), number: NonZeroU32::MIN, attempt }
}

/// A receipt of a job that exited with `code` after `bytes` bytes of output.
pub(crate) fn receipt(task: &Task, attempt: Attempt, code: u8, bytes: u64) -> Box<Receipt> {
    let text = serde_json::json!({
        "schema": 1, "job_id": job(task, attempt), "scope": "s", "digest": "0".repeat(64), "attempt": attempt,
        "generation": task.facts.owner.generation, "sandbox_generation": task.facts.owner.sandbox_generation,
        "boot_id": "0dfb8ac4-9d8d-49f9-acac-e82e6379ce7a", "authority": { "kind": "keeper" },
        "exit": { "kind": "exited", "code": code }, "cause": { "kind": "own_end" },
        "stages": { "kind": "not_a_pipeline" },
        "death": { "kind": "pid_namespace_init_reaped", "init_pid": 7, "namespace": 9, "at": 5 },
        "output": {
            "final_cursor": bytes, "hash": { "kind": "blake3", "value": "0".repeat(64) },
            "drain": { "kind": "complete" }, "stdout_bytes": bytes, "stderr_bytes": 0
        },
        "terminal_mutation": { "kind": "marked", "mark": 16 },
        "times": { "admitted": 1, "started": 2, "exited": 3, "dead": 4, "settled": 5 }
    });
    Box::new(serde_json::from_value(text).unwrap())
}

pub(crate) fn generation(of: &Task) -> Generation {
    of.facts.owner.generation
}
