//! What all calls of a runner share, and who holds memory of it.

use crate::admit::Ground;
use crate::guard::Guard;
use crate::hub::Hub;
use crate::output::Readers;
use crate::pool::Lanes;
use outlast_hand::home::Home;
use outlast_wire::hello::Hello;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};

/// Memory for all request bodies under way together, in pieces.
pub(crate) const BODY_MEMORY: usize = 32 << 20;
/// One piece of that.
pub(crate) const BODY_PIECE: usize = 64 << 10;
/// How long an answer must have held memory before its connection may be cut for others that wait for it.
const HELD_AT_LEAST: Duration = Duration::from_secs(5);

/// Locks what is whole at every moment: no step behind any of these locks can be left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers that hold memory, the oldest first, and how to cut the connection that each goes to.
#[derive(Default)]
pub(crate) struct Holders {
    next: AtomicU64,
    by_age: Mutex<BTreeMap<u64, (Instant, Arc<Notify>)>>,
}

impl Holders {
    pub(crate) fn enter(self: &Arc<Holders>, cut: Arc<Notify>) -> Holder {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut by_age = lock(&self.by_age);
        by_age.insert(number, (Instant::now(), cut));
        Holder { holders: Arc::clone(self), number }
    }

    /// Cuts whoever has been at an answer for longest, where that is long: it lost a connection, and goes on by cursor.
    pub(crate) fn cut_oldest(&self) {
        let by_age = lock(&self.by_age);
        if let Some((since, cut)) = by_age.values().next()
            && since.elapsed() >= HELD_AT_LEAST
        {
            cut.notify_one();
        }
    }
}

/// The place of one answer among [`Holders`].
pub(crate) struct Holder {
    holders: Arc<Holders>,
    number: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        lock(&self.holders.by_age).remove(&self.number);
    }
}

/// What all calls of a runner share.
pub(crate) struct Shared {
    pub(crate) home: Arc<Home>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lanes: Lanes,
    pub(crate) guard: Guard,
    pub(crate) ground: Arc<Ground>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) hello: Hello,
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) holders: Arc<Holders>,
    pub(crate) reading: AtomicUsize,
    pub(crate) closing: watch::Receiver<bool>,
}
