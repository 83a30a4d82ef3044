//! Stops: accepted once, by id, together with everything they hit.

use crate::error::StoreError;
use crate::ids::{PrincipalId, TaskId};
use crate::store::Op;
use crate::tables::{audit, conversations, events, tasks};
use crate::tx::Tx;
use crate::value::document;
use crate::values;
use outlast_core::delivery::{DiscardReason, event_id};
use outlast_core::id::Generation;
use outlast_core::stops::{Hit, StopAnswer, StopCall, StopTarget, accept, hits};
use outlast_core::task::{Learned, News, ToldBy};

const TABLE: &str = "stops";

/// Accepts a stop, or drops it as stale. When this returns, each task that it hits knows of it; that is not yet the end of
/// any.
#[derive(Debug, Clone)]
pub struct Accept {
    /// Who wants it.
    pub principal: PrincipalId,
    /// What is wanted.
    pub call: StopCall,
}

/// What became of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// It is accepted.
    Accepted {
        /// The conversation's generation from then on.
        generation: Generation,
        /// The tasks that it hit, and that were not over.
        tasks: Vec<TaskId>,
    },
    /// It was meant for a generation that has been closed. It is recorded, and stops nothing.
    Dropped(Generation),
    /// The one task that it was meant for is over, or is being stopped: nothing is changed.
    Nothing,
    /// There is no such conversation, run or task.
    NotFound,
}

impl Op for Accept {
    const NAME: &'static str = "stops.accept";
    type Out = Stopped;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Stopped, StoreError> {
        let StopCall { id, tenant, conversation, .. } = &self.call;
        let Some(current) = conversations::lock(tx, tenant, conversation).await? else {
            return Ok(Stopped::NotFound);
        };
        if let Some(before) = tx
            .find(
                TABLE,
                "SELECT accepted, generation_then, tasks FROM stops WHERE tenant = $1 AND id = $2",
                values![tenant, id],
            )
            .await?
        {
            let generation = Generation(before.count(1)?);
            return Ok(match before.flag(0)? {
                true => Stopped::Accepted { generation, tasks: before.json(2)? },
                false => Stopped::Dropped(generation),
            });
        }
        let answer = accept(&self.call, current);
        let StopAnswer::Accepted { generation } = answer else {
            self.record(tx, false, current, &[]).await?;
            return Ok(Stopped::Dropped(current));
        };
        let meant = self.meant(tx).await?;
        let found = match &self.call.target {
            StopTarget::All => true,
            StopTarget::Task { .. } => !meant.is_empty(),
            StopTarget::Run { run } => tx
                .find(
                    "runs",
                    "SELECT 1 FROM runs WHERE id = $1 AND tenant = $2 AND conversation = $3",
                    values![run, tenant, conversation],
                )
                .await?
                .is_some(),
        };
        if !found {
            return Ok(Stopped::NotFound);
        }
        let now = tx.now().await?;
        let mut hit = Vec::new();
        for id in &meant {
            let Some(mut task) = tasks::locked(tx, id).await? else { continue };
            if let Hit::Yes(stop) = hits(&self.call, &task.facts, now)
                && task.facts.learn(News::Stop(stop), now) == Ok(Learned::Changed)
            {
                tasks::changed(tx, &task.facts).await?;
                hit.push(id.clone());
            }
            // One that is over may still owe a word, for which nobody waits any more.
            if matches!(self.call.target, StopTarget::All)
                && events::discard(tx, &event_id(&task.facts), DiscardReason::GenerationClosed).await?
                && task.facts.learn(News::Told(ToldBy::Stop), now) == Ok(Learned::Changed)
            {
                tasks::changed(tx, &task.facts).await?;
            }
        }
        if matches!(self.call.target, StopTarget::Task { .. }) && hit.is_empty() {
            return Ok(Stopped::Nothing);
        }
        match &self.call.target {
            StopTarget::All => {
                tx.execute(
                    "UPDATE conversations SET generation = $2 WHERE id = $1",
                    values![conversation, generation],
                )
                .await?;
            }
            StopTarget::Run { run } => {
                tx.execute(
                    "UPDATE runs SET stopped_at = COALESCE(stopped_at, NOW_US) WHERE id = $1",
                    values![run],
                )
                .await?;
            }
            StopTarget::Task { .. } => {}
        }
        self.record(tx, true, generation, &hit).await?;
        audit::note(tx, tenant, Some(&self.principal), "stops.accept", id.as_str()).await?;
        Ok(Stopped::Accepted { generation, tasks: hit })
    }
}

impl Accept {
    /// The tasks it may hit.
    async fn meant(&self, tx: &mut Tx<'_>) -> Result<Vec<TaskId>, StoreError> {
        let StopCall { tenant, conversation, generation, target, .. } = &self.call;
        let (task, run) = match target {
            StopTarget::Task { task } => (task.as_str(), ""),
            StopTarget::Run { run } => ("", run.as_str()),
            StopTarget::All => ("", ""),
        };
        let rows = tx
            .query(
                "tasks",
                "SELECT id FROM tasks WHERE tenant = $1 AND conversation = $2 AND generation = $3 \
                 AND ($4 = '' OR id = $4) AND ($5 = '' OR run = $5) ORDER BY id",
                values![tenant, conversation, *generation, task, run],
            )
            .await?;
        rows.iter().map(|row| row.named(0)).collect()
    }

    async fn record(
        &self,
        tx: &mut Tx<'_>,
        accepted: bool,
        then: Generation,
        tasks: &[TaskId],
    ) -> Result<(), StoreError> {
        let StopCall { id, tenant, conversation, generation, target, .. } = &self.call;
        tx.execute(
            "INSERT INTO stops (id, tenant, conversation, principal, target, generation, accepted, generation_then, \
             tasks, at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, NOW_US)",
            values![
                id,
                tenant,
                conversation,
                &self.principal,
                document(target)?,
                *generation,
                accepted,
                then,
                document(tasks)?
            ],
        )
        .await?;
        Ok(())
    }
}
