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

/// So many calls at once are many: what they took is worth being given back.
const MANY: usize = 16;

/// Calls under way.
#[derive(Default)]
pub(crate) struct Calls {
    now: AtomicUsize,
    /// The most at once since their memory was given back.
    most: AtomicUsize,
}

impl Calls {
    /// One more, for as long as what this gives lives, however its call ends.
    pub(crate) fn enter(&self) -> UnderWay<'_> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        UnderWay { calls: self }
    }

    /// Whether there were many, and most of them have ended.
    pub(crate) fn have_ebbed(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        most >= MANY && self.now.load(Ordering::Relaxed) <= most / 4
    }

    /// Their memory is given back: from now on it is counted anew.
    pub(crate) fn begin_anew(&self) {
        self.most.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// See [`Calls::enter`].
pub(crate) struct UnderWay<'a> {
    calls: &'a Calls,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.calls.now.fetch_sub(1, Ordering::Relaxed);
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
    pub(crate) calls: Calls,
    pub(crate) closing: watch::Receiver<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_ebb_once_many_were_there_and_most_have_gone() {
        let calls = Calls::default();
        let few: Vec<_> = (1..MANY).map(|_| calls.enter()).collect();
        drop(few);
        assert!(!calls.have_ebbed(), "they were few");
        let mut many: Vec<_> = (0..2 * MANY).map(|_| calls.enter()).collect();
        assert!(!calls.have_ebbed());
        many.truncate(MANY / 2 + 1);
        assert!(!calls.have_ebbed(), "more than a quarter is there");
        many.pop();
        assert!(calls.have_ebbed());
        calls.begin_anew();
        assert!(!calls.have_ebbed());
    }
}
