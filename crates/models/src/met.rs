//! Which situations a check has met.

use std::collections::BTreeSet;
use std::sync::Mutex;

/// The situations that were met while states were visited. They are beside the states, because a state that remembered its
/// past would be many.
#[derive(Debug, Default)]
pub struct Met(Mutex<BTreeSet<&'static str>>);

impl Met {
    /// Notes one.
    pub fn note(&self, situation: &'static str) {
        let mut met = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        met.insert(situation);
    }

    /// All of them, in the order of their names.
    #[must_use]
    pub fn all(&self) -> Vec<&'static str> {
        let met = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        met.iter().copied().collect()
    }
}
