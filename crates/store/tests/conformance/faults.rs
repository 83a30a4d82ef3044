//! Answers that are lost, connections that are lost, a database that is killed: what is in the store afterwards is what would
//! be there without.

use crate::cluster::Cluster;
use crate::play;
use crate::scene::{Scene, receipt};
use outlast_core::id::{Attempt, Cursor, Generation};
use outlast_core::stops::{StopCall, StopTarget};
use outlast_core::task::{HandOffWhy, News};
use outlast_core::time::UnixMicros;
use outlast_store::fault::{Fault, Faults, Point};
use outlast_store::tables::events::Acknowledge;
use outlast_store::tables::stops::Accept;
use outlast_store::tables::tasks::{Reserved, Retry};
use outlast_store::tx::Tx;
use outlast_store::value::Value;
use outlast_store::{Location, Query, Store, StoreError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Every answer to a first run is lost.
#[derive(Default)]
struct FirstAnswersLost(Mutex<HashMap<&'static str, u64>>);

impl Faults for FirstAnswersLost {
    fn at(&self, name: &'static str, point: Point) -> Option<Fault> {
        let mut runs = self.0.lock().unwrap();
        let run = runs.entry(name).or_default();
        if point == Point::Begin {
            *run += 1;
        }
        (point == Point::AfterCommit && *run % 2 == 1).then_some(Fault::Lost)
    }
}

/// Every row of every table.
struct Everything;

macro_rules! tables {
    ($($name:literal: $columns:literal),* $(,)?) => {
        const TABLES: &[(&str, &str)] =
            &[$(($name, concat!("SELECT ", $columns, " FROM ", $name, " ORDER BY 1, 2, 3"))),*];
    };
}

// Without revisions and tokens of claims, which count runs.
tables! {
    "tenants": "id, name, created_at",
    "conversations": "id, tenant, generation, title, on_limit",
    "runs": "id, conversation, principal, generation, stopped_at, closed_at",
    "hands": "sandbox, generation, tenant, channels, retired_at, failures, lease_owner",
    "tasks": "id, run, call_key, attempt, occupies, mode",
    "attempts": "task, number, cursor, facts, final_cursor",
    "segments": "task, attempt, begins, ends, bytes",
    "events": "id, task, principal, kind, state",
    "stops": "id, conversation, accepted, generation_then, tasks",
    "audit": "tenant, number, what, about",
}

impl Query for Everything {
    type Out = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        for (table, sql) in TABLES {
            for row in tx.query(table, sql, &[]).await? {
                let columns = (0..).map_while(|column| {
                    Some(match (row.int(column), row.text(column), row.bytes(column)) {
                        (Ok(number), ..) => Value::Int(number),
                        (_, Ok(text), _) => Value::Text(text),
                        (.., Ok(bytes)) => Value::Bytes(bytes),
                        _ if column < 8 => Value::Null,
                        _ => return None,
                    })
                });
                all.push(format!("{table} {:?}", columns.collect::<Vec<_>>()));
            }
        }
        Ok(all)
    }
}

/// Ids by the order they come in, and times left out: what two runs of one scene have in common.
fn plain(lines: &[String]) -> Vec<String> {
    let mut ids: HashMap<String, usize> = HashMap::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = |word: &str, ids: &mut HashMap<String, usize>| {
        let next = ids.len();
        match word {
            _ if word.len() == 30 && word.as_bytes()[3] == b'_' => {
                format!("{}_{}", &word[..3], ids.entry(word.to_owned()).or_insert(next))
            }
            _ if word.len() >= 15 && word.bytes().all(|byte| byte.is_ascii_digit()) => "TIME".to_owned(),
            _ => word.to_owned(),
        }
    };
    let line = |line: &String| {
        let mut out = String::new();
        let mut rest = line.as_str();
        while !rest.is_empty() {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            out.push_str(&word(&rest[..end], &mut ids));
            let next = rest[end..].find(is_word).map_or(rest.len(), |at| end + at);
            out.push_str(&rest[end..next]);
            rest = &rest[next..];
        }
        // A job's name is made of its task's.
        let job = |text: &str| {
            text.split("\"job_id\":\"").nth(1).and_then(|text| text.split('"').next().map(str::to_owned))
        };
        match job(&out.replace("\\\"", "\"")) {
            Some(name) => out.replace(&name, "JOB"),
            None => out,
        }
    };
    lines.iter().map(line).collect()
}

/// Everything that may be done, each once, whatever is answered.
async fn everything_once(store: Store) -> Vec<String> {
    let scene = Scene::new(store.clone()).await;
    let tell = async |task: &_, news| drop(scene.tell(task, news).await);
    let reserve = async |key: &str| match store.write(scene.reservation(key)).await.unwrap() {
        Reserved::New(task) => *task,
        other => panic!("{other:?}"),
    };
    let task = reserve("a").await;
    let id = &task.id;
    tell(id, News::Asked { expires: UnixMicros(1 << 60) }).await;
    tell(id, News::AnswerLost).await;
    tell(id, News::Admitted { job_id: crate::scene::job(&task, Attempt::FIRST) }).await;
    tell(id, News::HandedOff(HandOffWhy::Cutover)).await;
    for (begins, bytes) in [(0, &b"one"[..]), (3, b"two"), (6, b"three")] {
        store.write(scene.append(id, begins, bytes)).await.unwrap();
    }
    tell(id, News::Receipt(receipt(&task, Attempt::FIRST, 2, 11))).await;
    tell(id, News::Committed(Cursor(11))).await;
    let owed = scene.owed().await;
    assert_eq!(owed.len(), 1, "{owed:?}");
    let acknowledge = Acknowledge {
        tenant: scene.tenant.clone(),
        principal: scene.principal.clone(),
        id: owed[0].facts.id.clone(),
    };
    store.write(acknowledge).await.unwrap();
    let retry = Retry {
        tenant: scene.tenant.clone(),
        task: id.clone(),
        over: Attempt::FIRST,
        deadline: None,
        most_unsettled: 8,
    };
    store.write(retry).await.unwrap();
    let other = reserve("b").await;
    for target in [StopTarget::Task { task: other.id.clone() }, StopTarget::All] {
        let call = StopCall {
            id: crate::scene::id(),
            tenant: scene.tenant.clone(),
            conversation: scene.conversation.clone(),
            generation: Generation(0),
            target,
        };
        store.write(Accept { principal: scene.principal.clone(), call }).await.unwrap();
    }
    plain(&store.read(Everything).await.unwrap())
}

fn same(with: &[String], without: &[String]) {
    assert!(without.len() > 15, "{without:#?}");
    for (with, without) in with.iter().zip(without) {
        assert_eq!(with, without);
    }
    assert_eq!(with.len(), without.len());
}

#[test]
fn lost_answers_change_nothing_in_sqlite() {
    play(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = |name: &str| Location::Sqlite(folder.path().join(name));
        let without = everything_once(Store::open(&place("a")).await.unwrap()).await;
        let faults: Arc<dyn Faults> = Arc::<FirstAnswersLost>::default();
        let lossy = Store::open_with(&place("b"), Some(faults)).await.unwrap();
        same(&everything_once(lossy).await, &without);
    });
}

#[test]
fn lost_answers_change_nothing_in_postgres() {
    let cluster = Cluster::start("lost-answers", &[]);
    play(async {
        let without = everything_once(Store::open(&cluster.database("without").await).await.unwrap()).await;
        let faults: Arc<dyn Faults> = Arc::<FirstAnswersLost>::default();
        let lossy = Store::open_with(&cluster.database("lossy").await, Some(faults)).await.unwrap();
        same(&everything_once(lossy).await, &without);
    });
}

/// Writers at work while the database is killed and started again: what was acknowledged is there, and once.
#[test]
fn a_killed_postgres_loses_nothing_that_was_acknowledged() {
    let cluster = Cluster::start("killed", &[]);
    play(async {
        let store = Store::open(&cluster.database("killed").await).await.unwrap();
        let scene = Arc::new(Scene::new(store.clone()).await);
        let (done, mut written) = tokio::sync::mpsc::unbounded_channel();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (store, scene, done) = (store.clone(), Arc::clone(&scene), done.clone());
                tokio::spawn(async move {
                    let mut failures = 0;
                    for number in 0..120 {
                        let mut reservation = scene.reservation(&format!("{writer}-{number}"));
                        reservation.most_unsettled = 10_000;
                        // As whoever owes the answer to a call does: the same again, until it is told.
                        loop {
                            match store.write(reservation.clone()).await {
                                Ok(Reserved::New(task)) => break done.send(task.id).unwrap(),
                                Ok(other) => panic!("{other:?}"),
                                Err(error) if error.is_retryable() => failures += 1,
                                Err(error) => panic!("{error:?}"),
                            }
                            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                        }
                    }
                    failures
                })
            })
            .collect();
        drop(done);
        let mut acknowledged = Vec::new();
        while let Some(id) = written.recv().await {
            acknowledged.push(id);
            if acknowledged.len() == 100 || acknowledged.len() == 250 {
                cluster.crash();
            }
        }
        let mut failures = 0;
        for writer in writers {
            failures += writer.await.unwrap();
        }
        assert!(failures > 0, "nobody noticed that the database was killed");
        let hand =
            outlast_store::tables::tasks::OfHand { hand: scene.hand.clone(), after: None, limit: 10_000 };
        let mut there: Vec<_> = store.read(hand).await.unwrap().into_iter().map(|task| task.id).collect();
        acknowledged.sort();
        there.sort();
        assert_eq!(there, acknowledged);
        assert_eq!(there.len(), 480);
    });
}
