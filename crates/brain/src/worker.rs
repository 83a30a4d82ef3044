//! Which hands this process works on: it claims what nobody has, and goes on where another worker has ended.

use crate::session;
use crate::{Brain, new_id};
use outlast_core::time::Millis;
use outlast_store::ids::WorkerId;
use outlast_store::tables::hands::{HandId, Release, Take};
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Hands that are claimed at once.
const TOGETHER: u32 = 64;
/// The bell of new hands.
pub(crate) const HANDS: &str = "hands";

/// A worker, until it is dropped.
#[derive(Debug)]
pub struct Worker(JoinHandle<()>);

impl Worker {
    /// Starts one.
    ///
    /// # Errors
    /// Where the kernel has no random numbers.
    pub fn start(brain: Brain) -> std::io::Result<Worker> {
        let id: WorkerId = new_id()?;
        Ok(Worker(tokio::spawn(work(brain, id))))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ends its task with it.
struct Session {
    token: u64,
    task: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn work(brain: Brain, id: WorkerId) {
    let mut sessions: HashMap<HandId, Session> = HashMap::new();
    let mut bell = brain.bells.listen(HANDS);
    let lease = Millis(u64::try_from(brain.settings.lease.as_millis()).unwrap_or(u64::MAX));
    loop {
        match brain.store.write(Take { worker: id.clone(), limit: TOGETHER, lease }).await {
            Ok(taken) => {
                for (hand, claim) in taken {
                    let there = sessions.get(&hand.id);
                    if there
                        .is_some_and(|session| session.token == claim.token && !session.task.is_finished())
                    {
                        continue;
                    }
                    if there.is_some_and(|session| session.token == claim.token) {
                        // It ended, and the lease is still ours: it goes back, and is claimed anew.
                        let _ = brain.store.write(Release(claim)).await;
                        sessions.remove(&hand.id);
                        continue;
                    }
                    let (key, token) = (hand.id.clone(), claim.token);
                    let task = tokio::spawn(session::work(brain.clone(), hand, claim));
                    sessions.insert(key, Session { token, task });
                }
            }
            Err(error) => eprintln!("outlast: no hand can be claimed: {error}"),
        }
        tokio::select! {
            () = bell.heard() => {}
            // Other workers ring no bell here, and theirs may have ended.
            () = tokio::time::sleep(brain.settings.sweep.min(Duration::from_secs(2))) => {}
        }
    }
}
