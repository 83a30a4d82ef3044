//! One task on its hand: asked for, followed, stopped, settled.
//!
//! It takes no hints: it reads what is known, does the one thing that is owed next, writes down what came of it, and begins
//! again. So it goes on wherever another worker, or an earlier life of this one, has stopped.

use crate::work::Work;
use crate::{Brain, now_us};
use outlast_core::id::{BrainId, Cursor, JobId, Key, Scope};
use outlast_core::status::State;
use outlast_core::stops::{StopStep, next_step};
use outlast_core::task::{
    Destroyed, End, News, NoStart, ResultState, Seen, Start, StopBy, StopFacts, TaskFacts, UnavailableWhy,
    result_state,
};
use outlast_core::time::UnixMicros;
use outlast_objects::Name;
use outlast_store::StoreError;
use outlast_store::ids::{TaskId, TenantId};
use outlast_store::tables::hands::Claim;
use outlast_store::tables::segments::{Append, Appended, Place, Segment};
use outlast_store::tables::tasks::{Answer, Find, Learn, Task};
use outlast_wire::client::{Client, ClientError, Read, Tail, Until};
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{Settle, Stop, Stopped};
use std::time::Duration;

/// How long a call to a hand waits for output.
const WAIT: Duration = Duration::from_secs(20);
/// Output that one call brings at most.
const PIECE: u64 = 1 << 20;
/// How long an admission may be on its way, and a little more: the client's calls are good for 120 s.
const EXPIRES_AFTER: Duration = Duration::from_secs(150);
/// A keeper ends its job at the deadline by itself, counted from its start.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);
/// How long is waited after a hand said that it cannot just now.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Why following has ended before the task's end.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection is lost, or the hand says what cannot be.
    Hand(ClientError),
    /// The hand is another's by now.
    Fenced,
    /// The store cannot be written.
    Store(StoreError),
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Broken {
        match error {
            StoreError::Fenced => Broken::Fenced,
            other => Broken::Store(other),
        }
    }
}

/// One task, by a worker that has its hand.
pub(crate) struct Follow {
    pub(crate) brain: Brain,
    pub(crate) client: Client,
    pub(crate) claim: Claim,
    pub(crate) tenant: TenantId,
    pub(crate) task: TaskId,
}

/// What is to be done next.
enum Next {
    Ask,
    Find { until: UnixMicros },
    NotStarted,
    Stop { job: JobId, stop: String },
    Read { job: JobId },
    Rest { job: JobId },
    Done,
}

fn next(facts: &TaskFacts, stop_sent: bool) -> Next {
    match next_step(facts) {
        StopStep::RecordNotStarted => return Next::NotStarted,
        StopStep::Find { until } => return Next::Find { until },
        StopStep::End { job_id, stop } if !stop_sent => {
            return Next::Stop { job: job_id, stop: stop.as_str().to_owned() };
        }
        StopStep::End { .. } | StopStep::Nothing => {}
    }
    match &facts.start {
        Start::NotAsked | Start::Asked { .. } => Next::Ask,
        Start::Admitted { job_id, end: End::Open { .. } | End::Attested { .. }, .. } => {
            Next::Read { job: *job_id }
        }
        Start::Admitted { job_id, end: End::Receipt { .. }, .. }
            if result_state(facts) == ResultState::Pending =>
        {
            Next::Rest { job: *job_id }
        }
        Start::Admitted { .. } | Start::NotStarted { .. } | Start::LostWithSandbox { .. } => Next::Done,
    }
}

/// Whether a task goes on past its deadline, and by more than its keeper may take to notice.
fn is_overdue(facts: &TaskFacts) -> bool {
    let late = Duration::from_micros(now_us()).saturating_sub(OVERDUE_AFTER).as_micros();
    facts.stop.is_none()
        && facts.occupies()
        && matches!(facts.start, Start::Admitted { .. })
        && facts.reserved.deadline.is_some_and(|deadline| u128::from(deadline.0) < late)
}

/// The scope of a conversation on a hand.
pub(crate) fn scope_of(facts: &TaskFacts) -> Option<Scope> {
    Scope::new(facts.owner.conversation.as_str()).ok()
}

impl Follow {
    /// Follows until nothing is owed by the hand any more.
    pub(crate) async fn run(self) -> Result<(), Broken> {
        let mut bell = self.brain.bells.listen(self.task.as_str());
        let mut stop_sent = false;
        loop {
            let Some(task) = self.look().await? else { return Ok(()) };
            let Some(scope) = scope_of(&task.facts) else { return Ok(()) };
            let client = self.client.within(scope, task.facts.owner.generation);
            if is_overdue(&task.facts) {
                // Its keeper would have ended it, had it begun when it was reserved.
                let id =
                    crate::new_id().map_err(|error| Broken::Store(StoreError::Unavailable(error.into())))?;
                let stop = StopFacts { id, by: StopBy::Deadline, at: UnixMicros(now_us()) };
                self.learn(&task, News::Stop(stop)).await?;
                continue;
            }
            match next(&task.facts, stop_sent) {
                Next::Ask => self.ask(&client, &task).await?,
                Next::NotStarted => {
                    self.learn(&task, News::NotStarted { why: NoStart::StoppedFirst }).await?
                }
                Next::Find { until } => self.find(&client, &task, until).await?,
                Next::Stop { job, stop } => {
                    stop_sent = true;
                    self.stop(&client, &task, job, stop).await?;
                }
                Next::Read { job } => {
                    tokio::select! {
                        read = self.read(&client, &task, job) => read?,
                        // A stop, perhaps.
                        () = bell.heard() => {}
                    }
                }
                Next::Rest { job } => self.rest(&client, &task, job).await?,
                Next::Done => {
                    self.acknowledge(&client, &task).await;
                    return Ok(());
                }
            }
        }
    }

    async fn look(&self) -> Result<Option<Task>, Broken> {
        let find = Find { tenant: self.tenant.clone(), id: self.task.clone() };
        Ok(self.brain.store.read(find).await?)
    }

    async fn learn(&self, task: &Task, news: News) -> Result<(), Broken> {
        let learn = Learn {
            claim: Some(self.claim.clone()),
            task: self.task.clone(),
            attempt: task.facts.reserved.attempt,
            news,
        };
        if let Answer::Learnt { task, event, .. } = self.brain.store.write(learn).await? {
            self.brain.bells.ring(self.task.as_str());
            if event.is_some() || task.facts.ended().is_some() {
                self.brain.bells.ring(task.facts.owner.conversation.as_str());
            }
        }
        // What is refused was decided otherwise meanwhile: the next look tells.
        Ok(())
    }

    fn key(&self) -> Option<Key> {
        Key::new(self.task.as_str()).ok()
    }

    fn brain_id(&self) -> Option<BrainId> {
        BrainId::new(self.brain.settings.name.clone()).ok()
    }

    async fn ask(&self, client: &Client, task: &Task) -> Result<(), Broken> {
        let reserved = &task.facts.reserved;
        let now = now_us();
        if reserved.deadline.is_some_and(|deadline| deadline.0 <= now)
            && matches!(task.facts.start, Start::NotAsked)
        {
            let because = "its deadline passed before a hand could be asked".to_owned();
            return self.learn(task, News::NotStarted { why: NoStart::GivenUp { because } }).await;
        }
        // The whole length, not what is left of it: the same request has to be the same command. What a late start adds is
        // taken off by a stop.
        let length = reserved.deadline.map(|deadline| deadline.since(reserved.at));
        let admission = (|| {
            let work: Work = serde_json::from_str(&task.work).map_err(|error| error.to_string())?;
            let (Some(key), Some(brain)) = (self.key(), self.brain_id()) else {
                return Err("its name".to_owned());
            };
            let run = task.facts.owner.run.clone();
            work.admission(key, reserved.attempt, run, brain, length, |name| {
                self.brain.settings.secrets.get(name).cloned()
            })
            .map_err(|name| format!("the secret {name} is not known here"))
        })();
        let admission = match admission {
            Ok(admission) => admission,
            Err(because) => {
                return self.learn(task, News::NotStarted { why: NoStart::GivenUp { because } }).await;
            }
        };
        let expires = UnixMicros(now + u64::try_from(EXPIRES_AFTER.as_micros()).unwrap_or(u64::MAX));
        // Written down before it is sent, so that whoever comes later knows that it may run.
        self.learn(task, News::Asked { expires }).await?;
        let request = format!("{}.{}", self.task, reserved.attempt);
        match client.admit(&request, &admission, Until::Now, Duration::ZERO).await {
            Ok(view) => self.learn(task, News::Admitted { job_id: view.job_id }).await,
            Err(ClientError::Refused(problem)) if !problem.retryable => {
                let code = problem.code.clone();
                self.learn(task, News::NotStarted { why: NoStart::Refused { code } }).await
            }
            Err(error) => {
                self.learn(task, News::AnswerLost).await?;
                self.later(error).await
            }
        }
    }

    /// Waits where a hand cannot just now; gives up a connection that is no more.
    async fn later(&self, error: ClientError) -> Result<(), Broken> {
        match &error {
            ClientError::Refused(problem) if problem.retryable => {
                tokio::time::sleep(AGAIN_AFTER).await;
                Ok(())
            }
            _ => Err(Broken::Hand(error)),
        }
    }

    /// Looks whether a hand has what was asked for before a stop came, without asking for it.
    async fn find(&self, client: &Client, task: &Task, until: UnixMicros) -> Result<(), Broken> {
        let mut after = None;
        // One whose request is still on its way would come to be there after this look.
        let looked_at = now_us();
        loop {
            let list = client.list(after, 1000).await.map_err(Broken::Hand)?;
            let found = list.jobs.iter().find(|job| {
                job.key.as_ref().is_some_and(|key| key.as_str() == self.task.as_str())
                    && job.job_id.attempt == task.facts.reserved.attempt
            });
            if let Some(job) = found {
                return self.learn(task, News::Admitted { job_id: job.job_id }).await;
            }
            match list.next_after {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        if looked_at > until.0 {
            return self.learn(task, News::NotStarted { why: NoStart::NotFound }).await;
        }
        let wait = Duration::from_micros(until.0 - looked_at).min(Duration::from_secs(2));
        tokio::time::sleep(wait).await;
        Ok(())
    }

    async fn stop(&self, client: &Client, task: &Task, job: JobId, id: String) -> Result<(), Broken> {
        let stop = Stop {
            id: id.clone(),
            force: false,
            grace: None,
            reason: outlast_core::fence::StopReason::Asked,
        };
        match client.stop(&format!("stop.{id}.{}", self.task), job, &stop).await {
            Ok(Stopped::KeeperLost) => {
                // Its tree is ended as far as that can be proved; the receipt says the rest.
                let settled = client.settle(&format!("settle.{id}.{}", self.task), job, &Settle::Asked).await;
                match settled {
                    Ok(_) => Ok(()),
                    Err(error) => self.later(error).await,
                }
            }
            Ok(Stopped::Accepted) => self.learn(task, News::Seen(Seen::Stopping)).await,
            // What it says of itself is read next.
            Ok(Stopped::AlreadySettled | Stopped::NeverStarted | Stopped::Stale { .. }) => Ok(()),
            Err(ClientError::Refused(problem)) if is_gone(&problem) => self.gone(task).await,
            Err(error) => self.later(error).await,
        }
    }

    /// Reads on, and takes in what there is to be known.
    async fn read(&self, client: &Client, task: &Task, job: JobId) -> Result<(), Broken> {
        let from = task.facts.committed;
        let wanted = Read { from, max: Some(PIECE), wait: WAIT, records: true, ..Read::default() };
        let mut output = match client.read(job, wanted).await {
            Ok(output) => output,
            Err(ClientError::Refused(problem)) if is_gone(&problem) => return self.gone(task).await,
            Err(error) => return self.later(error).await,
        };
        if output.next > from && output.committed < output.next && output.tail != Tail::Ended {
            // Only what the hand has synced is committed here. Small output is gathered before that.
            if output.tail == Tail::Open {
                tokio::time::sleep(self.brain.settings.gather).await;
            }
            let synced = Read { wait: Duration::ZERO, committed: true, ..wanted };
            match client.read(job, synced).await {
                Ok(read) => output = read,
                Err(error) => return self.later(error).await,
            }
        }
        if output.next > from {
            self.append(task, from, output.next, output.body.to_vec()).await?;
        }
        if output.tail == Tail::More {
            return Ok(());
        }
        self.state(client, task, job).await
    }

    /// What is left of the output of one that is over.
    async fn rest(&self, client: &Client, task: &Task, job: JobId) -> Result<(), Broken> {
        let from = task.facts.committed;
        let wanted = Read { from, max: Some(PIECE), records: true, ..Read::default() };
        match client.read(job, wanted).await {
            Ok(output) if output.next > from => {
                self.append(task, from, output.next, output.body.to_vec()).await
            }
            Ok(output) => {
                let cause = format!("it ends at {} on the hand", output.next);
                self.learn(task, News::Unavailable(UnavailableWhy::Lost { cause })).await
            }
            Err(ClientError::Refused(problem)) if is_gone(&problem) => {
                self.learn(task, News::Unavailable(UnavailableWhy::Removed)).await
            }
            Err(error) => self.later(error).await,
        }
    }

    async fn append(
        &self,
        task: &Task,
        begins: Cursor,
        ends: Cursor,
        records: Vec<u8>,
    ) -> Result<(), Broken> {
        let attempt = task.facts.reserved.attempt;
        let blake3 = blake3::hash(&records).to_hex().to_string();
        let place = if records.len() <= self.brain.settings.inline {
            Place::Inline(records)
        } else {
            // Named by what it is, so that the same piece put twice is one object.
            let name = format!("logs/{}/{attempt}/{:020}-{}", self.task, begins.0, &blake3[..16]);
            let stored = match Name::try_from(name.clone()) {
                Ok(name) => {
                    self.brain.objects.put(&name, records.into()).await.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match stored {
                Ok(put) => Place::Object { name, version: put.version },
                Err(why) => return Err(Broken::Store(StoreError::Unavailable(why.into()))),
            }
        };
        let segment = Segment { begins, ends, place, blake3 };
        let append = Append { claim: self.claim.clone(), task: self.task.clone(), attempt, segment };
        match self.brain.store.write(append).await? {
            Appended::Now | Appended::Before(_) => self.brain.bells.ring(self.task.as_str()),
            // Somebody else has written meanwhile: the next look tells from where to go on.
            Appended::Elsewhere(_) | Appended::NoSuchAttempt => {}
        }
        Ok(())
    }

    /// Takes in what the hand says of the job.
    async fn state(&self, client: &Client, task: &Task, job: JobId) -> Result<(), Broken> {
        let view = match client.job(job, Until::Now, Duration::ZERO).await {
            Ok(view) => view,
            Err(ClientError::Refused(problem)) if is_gone(&problem) => return self.gone(task).await,
            Err(error) => return self.later(error).await,
        };
        if let Some(receipt) = view.receipt {
            return self.learn(task, News::Receipt(receipt)).await;
        }
        let seen = match view.state {
            State::Starting => Seen::Starting,
            State::Running | State::Paused => Seen::Running,
            State::Stopping => Seen::Stopping,
            State::Unknown | State::Settled => Seen::Unknown,
        };
        if let Some(attestation) = view.attestation {
            return self.learn(task, News::Attested(Box::new(attestation))).await;
        }
        self.learn(task, News::Seen(seen)).await?;
        if seen == Seen::Unknown {
            // Nothing comes from it; it is looked at again from time to time.
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Ok(())
    }

    /// The hand does not have a job that it had.
    async fn gone(&self, task: &Task) -> Result<(), Broken> {
        self.learn(task, News::Unavailable(UnavailableWhy::Removed)).await?;
        self.learn(task, News::Seen(Seen::Unknown)).await?;
        tokio::time::sleep(AGAIN_AFTER).await;
        Ok(())
    }

    /// Tells the hand that all of it is here, so that it need not keep it for this brain.
    async fn acknowledge(&self, client: &Client, task: &Task) {
        let Start::Admitted { job_id, end: End::Receipt { receipt }, .. } = &task.facts.start else { return };
        let Some(brain) = self.brain_id() else { return };
        let cursor = receipt.output.final_cursor;
        // Asked again by the next sweep of the hand's own tidying otherwise: it keeps what was not acknowledged.
        let _ = client
            .acknowledge(
                &format!("ack.{}.{}", self.task, task.facts.reserved.attempt),
                *job_id,
                brain,
                cursor,
            )
            .await;
    }
}

fn is_gone(problem: &Problem) -> bool {
    problem.code == "NO_SUCH_JOB"
}

/// What is learnt of a task whose sandbox is gone by its provider's word.
pub(crate) fn destroyed(task: &Task, provider_ref: &str) -> News {
    News::Destroyed(Destroyed {
        provider_ref: provider_ref.to_owned(),
        generation: task.hand.generation,
        at: UnixMicros(now_us()),
    })
}
