//! One hand that this process works on: a connection, the tasks on it, the lease.

use crate::Brain;
use crate::follow::{Broken, Follow, destroyed};
use outlast_core::id::Scope;
use outlast_core::task::{News, Seen};
use outlast_provider::{Attached, Place};
use outlast_store::StoreError;
use outlast_store::ids::TaskId;
use outlast_store::tables::hands::{Claim, Hand, Reached, Renew};
use outlast_store::tables::tasks::{Learn, OfHand, Task};
use outlast_wire::address::{Address, DialOptions, dial};
use outlast_wire::client::Client;
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::JoinSet;

/// Tasks that are read at once.
const PAGE: u32 = 500;
/// How long after a failed connection the next is tried, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const AGAIN_AT_MOST: Duration = Duration::from_secs(5);

/// The bell of what happens on a hand, such as a reservation.
pub(crate) fn bell_of(hand: &outlast_store::tables::hands::HandId) -> String {
    format!("hand/{}/{}", hand.sandbox, hand.generation)
}

/// Works on a hand until its lease is lost.
pub(crate) async fn work(brain: Brain, hand: Hand, claim: Claim) {
    let renewed = renew(&brain, &claim);
    tokio::select! {
        // Everything below is dropped with it, in the middle of whatever it did: no write of it counts any more.
        () = renewed => {}
        () = attend(&brain, &hand, &claim) => {}
    }
}

/// Returns when the lease is lost, or could not be renewed for half of its time.
async fn renew(brain: &Brain, claim: &Claim) {
    let lease = brain.settings.lease;
    let millis = outlast_core::time::Millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    let mut renewed = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(lease / 3).await;
        match brain.store.write(Renew { claim: claim.clone(), lease: millis }).await {
            Ok(true) => renewed = tokio::time::Instant::now(),
            Ok(false) => return,
            Err(_) if renewed.elapsed() < lease / 2 => {}
            Err(_) => return,
        }
    }
}

async fn attend(brain: &Brain, hand: &Hand, claim: &Claim) {
    let mut failures = hand.failures;
    let mut pause = AGAIN_AFTER;
    loop {
        if let Some(provider) = hand.destroyed.as_ref().map(|_| hand.provider_ref.as_str()) {
            return bury(brain, hand, claim, provider).await;
        }
        let channel = hand.channels.get(channel(failures, brain.settings.failures, hand.channels.len()));
        let connected = match channel {
            Some(channel) => connect(brain, hand, channel).await,
            None => Err("it has no address".to_owned()),
        };
        match connected {
            Ok(client) => {
                if failures > 0 {
                    failures = 0;
                    let _ = brain.store.write(Reached { claim: claim.clone(), failures }).await;
                }
                pause = AGAIN_AFTER;
                if serve(brain, hand, claim, client).await.is_fenced() {
                    return;
                }
            }
            Err(why) => {
                failures += 1;
                eprintln!("outlast: the hand {} cannot be reached: {why}", hand.id.sandbox);
                let noted = brain.store.write(Reached { claim: claim.clone(), failures }).await;
                if matches!(noted, Err(StoreError::Fenced)) || !unreachable(brain, hand, claim).await {
                    return;
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_AT_MOST);
    }
}

/// Which channel is used after so many failures in a row: the next after each `most`.
fn channel(failures: u64, most: u64, channels: usize) -> usize {
    let turn = usize::try_from(failures / most.max(1)).unwrap_or(usize::MAX);
    turn % channels.max(1)
}

async fn connect(brain: &Brain, hand: &Hand, channel: &str) -> Result<Client, String> {
    let place = Place { sandbox: hand.id.sandbox.to_string(), generation: hand.id.generation };
    let provider =
        brain.provider_of(&hand.tenant, &hand.id.sandbox).await.map_err(|error| error.to_string())?;
    let Attached { stream, token } = match provider {
        Some(provider) => provider.attach(&place, channel).await.map_err(|error| error.to_string())?,
        None => {
            let address: Address = channel.parse().map_err(|error| format!("{channel}: {error}"))?;
            let stream = dial(&address, &DialOptions::default()).await.map_err(|error| error.to_string())?;
            Attached { stream, token: None }
        }
    };
    let http = stream.http();
    let scope = Scope::new(brain.settings.name.clone()).map_err(|error| error.to_string())?;
    let client =
        Client::begin(stream, http, token.as_deref(), scope).await.map_err(|error| error.to_string())?;
    let hello = client.hello();
    // A new incarnation is never attached as this one, whatever its address.
    if hello.sandbox_generation != hand.id.generation || hello.sandbox != hand.provider_ref {
        return Err(format!(
            "{channel} is sandbox {} in generation {}, not {} in {}",
            hello.sandbox, hello.sandbox_generation, hand.provider_ref, hand.id.generation
        ));
    }
    Ok(client)
}

/// Why a connection is not worked on any more.
enum Over {
    Fenced,
    Lost,
}

impl Over {
    fn is_fenced(&self) -> bool {
        matches!(self, Over::Fenced)
    }
}

/// Follows every task of the hand over one connection.
async fn serve(brain: &Brain, hand: &Hand, claim: &Claim, client: Client) -> Over {
    let mut bell = brain.bells.listen(&bell_of(&hand.id));
    let mut following: JoinSet<(TaskId, Result<(), Broken>)> = JoinSet::new();
    let mut known: HashSet<TaskId> = HashSet::new();
    loop {
        match unsettled(brain, hand).await {
            Ok(tasks) => {
                for task in tasks {
                    if !known.insert(task.id.clone()) {
                        continue;
                    }
                    let follow = Follow {
                        brain: brain.clone(),
                        client: client.within(client_scope(&task, &client), task.facts.owner.generation),
                        claim: claim.clone(),
                        tenant: task.facts.owner.tenant.clone(),
                        task: task.id.clone(),
                    };
                    following.spawn(async move { (task.id, follow.run().await) });
                }
            }
            Err(error) => eprintln!("outlast: the tasks of {} cannot be read: {error}", hand.id.sandbox),
        }
        let sweep = tokio::time::sleep(brain.settings.sweep);
        let mut sweep = std::pin::pin!(sweep);
        loop {
            tokio::select! {
                () = bell.heard() => break,
                () = &mut sweep => break,
                () = client.ended() => return Over::Lost,
                Some(done) = following.join_next() => {
                    let Ok((task, done)) = done else { break };
                    known.remove(&task);
                    match done {
                        Ok(()) => {}
                        Err(Broken::Fenced) => return Over::Fenced,
                        Err(Broken::Hand(error)) => {
                            eprintln!("outlast: task {task}: {error}");
                            return Over::Lost;
                        }
                        Err(Broken::Store(error)) => {
                            // The next sweep takes it up again.
                            eprintln!("outlast: task {task}: {error}");
                        }
                    }
                }
            }
        }
    }
}

fn client_scope(task: &Task, client: &Client) -> Scope {
    crate::follow::scope_of(&task.facts).unwrap_or_else(|| client.scope().clone())
}

async fn unsettled(brain: &Brain, hand: &Hand) -> Result<Vec<Task>, StoreError> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = brain.store.read(OfHand { hand: hand.id.clone(), after, limit: PAGE }).await?;
        let more = page.len() == PAGE as usize;
        after = page.last().map(|task| task.id.clone());
        all.extend(page);
        if !more {
            return Ok(all);
        }
    }
}

/// Notes that the hand does not answer; `false` where it is another's.
async fn unreachable(brain: &Brain, hand: &Hand, claim: &Claim) -> bool {
    let Ok(tasks) = unsettled(brain, hand).await else { return true };
    for task in tasks {
        let news = News::Seen(Seen::Unreachable);
        if matches!(tell(brain, claim, &task, news).await, Err(StoreError::Fenced)) {
            return false;
        }
    }
    true
}

/// Every task of an incarnation that its provider attests to be gone is over, without a final cursor.
async fn bury(brain: &Brain, hand: &Hand, claim: &Claim, provider: &str) {
    let Ok(tasks) = unsettled(brain, hand).await else { return };
    for task in tasks {
        if tell(brain, claim, &task, destroyed(&task, provider)).await.is_err() {
            return;
        }
        brain.bells.ring(task.id.as_str());
        brain.bells.ring(task.facts.owner.conversation.as_str());
    }
}

async fn tell(brain: &Brain, claim: &Claim, task: &Task, news: News) -> Result<(), StoreError> {
    let attempt = task.facts.reserved.attempt;
    let learn = Learn { claim: Some(claim.clone()), task: task.id.clone(), attempt, news };
    brain.store.write(learn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_channel_is_used_after_three_failures_and_the_first_again_after_three_more() {
        let used: Vec<usize> = (0..9).map(|failures| channel(failures, 3, 2)).collect();
        assert_eq!(used, [0, 0, 0, 1, 1, 1, 0, 0, 0]);
        assert_eq!((channel(5, 3, 1), channel(5, 0, 0)), (0, 0));
    }
}
