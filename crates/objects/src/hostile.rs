use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::{Backend, Created, Doing, Found, Meta, Name, ObjectError, Page, Span, Verb};

/// What a hostile store does to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Passes it on.
    Pass,
    /// Fails, with nothing done.
    FailBefore,
    /// Does it, and fails all the same: the answer was lost.
    FailAfter,
    /// Passes it on after a while.
    Delay(Duration),
    /// Says that a name is taken that may be free, to a creation. Passes on what else is asked.
    ClaimTaken,
    /// Says that there is no such object, to a look, and does not list it. Passes on what else is asked.
    ClaimAbsent,
}

/// Which acts come, in which order.
#[derive(Debug)]
pub struct Plan(Mutex<Acts>);

#[derive(Debug)]
enum Acts {
    Listed(VecDeque<Act>),
    Drawn { state: u64, percent: u8 },
}

impl Plan {
    /// These acts, one a call, and then no more.
    pub fn listed(acts: impl IntoIterator<Item = Act>) -> Plan {
        Plan(Mutex::new(Acts::Listed(acts.into_iter().collect())))
    }

    /// Acts drawn by a generator: `percent` of the calls meet one, and one seed gives one sequence.
    #[must_use]
    pub fn drawn(seed: u64, percent: u8) -> Plan {
        Plan(Mutex::new(Acts::Drawn { state: seed, percent }))
    }

    fn next(&self) -> Act {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Acts::Listed(acts) => acts.pop_front().unwrap_or(Act::Pass),
            Acts::Drawn { state, percent } => {
                let number = step(state);
                if number % 100 >= u64::from(*percent) {
                    return Act::Pass;
                }
                match step(state) % 5 {
                    0 => Act::FailBefore,
                    1 => Act::FailAfter,
                    2 => Act::Delay(Duration::from_micros(step(state) % 2000)),
                    3 => Act::ClaimTaken,
                    _ => Act::ClaimAbsent,
                }
            }
        }
    }
}

/// The next number of a sequence that its first state decides (a Weyl sequence, mixed).
fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A store that fails and lies by a plan, before one that does not; for tests.
#[derive(Debug)]
pub struct Hostile {
    inner: Box<dyn Backend>,
    plan: Plan,
    calls: AtomicU64,
}

impl Hostile {
    /// Puts a plan before a backend, which others may share (an `Arc` of a backend is one) and use without a plan.
    pub fn new(inner: impl Backend + 'static, plan: Plan) -> Hostile {
        Hostile { inner: Box::new(inner), plan, calls: AtomicU64::new(0) }
    }

    /// How many calls there were.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Does what is the same for all verbs; the lies are the verb's own.
    async fn suffer<T>(
        &self,
        verb: Verb,
        call: Doing<'_, T>,
        lie: impl FnOnce(Act) -> Option<Result<T, ObjectError>> + Send,
    ) -> Result<T, ObjectError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let act = self.plan.next();
        let failure = || Err(ObjectError::unavailable(verb, true, "the plan says so"));
        if let Some(lie) = lie(act) {
            return lie;
        }
        match act {
            Act::FailBefore => failure(),
            Act::FailAfter => {
                call.await?;
                failure()
            }
            Act::Delay(time) => {
                tokio::time::sleep(time).await;
                call.await
            }
            Act::Pass | Act::ClaimTaken | Act::ClaimAbsent => call.await,
        }
    }
}

impl Backend for Hostile {
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created> {
        let call = self.inner.create(name, bytes);
        Box::pin(self.suffer(Verb::Put, call, |act| (act == Act::ClaimTaken).then_some(Ok(Created::Exists))))
    }

    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found> {
        let call = self.inner.read(name, version, span);
        Box::pin(self.suffer(Verb::Get, call, |act| {
            (act == Act::ClaimAbsent).then(|| Err(ObjectError::NotFound { name: name.clone() }))
        }))
    }

    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>> {
        let call = self.inner.head(name);
        Box::pin(self.suffer(Verb::Head, call, |act| (act == Act::ClaimAbsent).then_some(Ok(None))))
    }

    fn list<'a>(
        &'a self,
        folder: Option<&'a Name>,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Doing<'a, Page> {
        let call = self.inner.list(folder, after, limit);
        Box::pin(self.suffer(Verb::List, call, |act| (act == Act::ClaimAbsent).then(|| Ok(Page::default()))))
    }

    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()> {
        let call = self.inner.delete(name);
        Box::pin(self.suffer(Verb::Delete, call, |_| None))
    }

    fn tidy(&self, older_than: Duration) -> Doing<'_, u64> {
        let call = self.inner.tidy(older_than);
        Box::pin(self.suffer(Verb::Tidy, call, |_| None))
    }
}
