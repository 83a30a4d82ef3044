//! Who is woken by what. A bell says only "look again": what there is to see is in the store, and whoever waits looks there
//! from time to time anyway, because another process rings no bell here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::watch;

/// The bells of one process.
#[derive(Debug, Default)]
pub struct Bells(Mutex<HashMap<String, Weak<watch::Sender<u64>>>>);

/// Somebody who waits.
#[derive(Debug)]
pub struct Listener {
    _bell: Arc<watch::Sender<u64>>,
    heard: watch::Receiver<u64>,
}

impl Bells {
    /// Waits for a bell from now on: what is rung after this returns is heard.
    #[must_use]
    pub fn listen(&self, name: &str) -> Listener {
        let mut bells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bell = match bells.get(name).and_then(Weak::upgrade) {
            Some(bell) => bell,
            None => {
                // Those that nobody listens to any more go, before their number grows twofold.
                if bells.len() == bells.capacity() {
                    bells.retain(|_, bell| bell.strong_count() > 0);
                }
                let bell = Arc::new(watch::Sender::new(0));
                bells.insert(name.to_owned(), Arc::downgrade(&bell));
                bell
            }
        };
        Listener { heard: bell.subscribe(), _bell: bell }
    }

    /// Wakes whoever listens.
    pub fn ring(&self, name: &str) {
        let bell = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).and_then(Weak::upgrade);
        if let Some(bell) = bell {
            bell.send_modify(|count| *count += 1);
        }
    }
}

impl Listener {
    /// Waits until it was rung since the last time this returned.
    pub async fn heard(&mut self) {
        // Its sender is held here.
        let _ = self.heard.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_heard(listener: &mut Listener) -> bool {
        pin!(listener.heard()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn a_bell_is_heard_once_by_everybody_who_listened() {
        let bells = Bells::default();
        bells.ring("a");
        let (mut one, mut two, mut other) = (bells.listen("a"), bells.listen("a"), bells.listen("b"));
        assert!(!is_heard(&mut one));
        bells.ring("a");
        bells.ring("a");
        assert!(is_heard(&mut one) && !is_heard(&mut one));
        assert!(is_heard(&mut two) && !is_heard(&mut other));
    }

    #[test]
    fn bells_that_nobody_listens_to_go() {
        let bells = Bells::default();
        for number in 0..10_000 {
            drop(bells.listen(&number.to_string()));
        }
        assert!(bells.0.lock().unwrap().len() < 100);
    }
}
