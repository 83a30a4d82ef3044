//! Instants and lengths of time, as arguments.

use serde::{Deserialize, Serialize};

/// A moment of the wall clock: microseconds since 1970-01-01T00:00:00Z. For people; never for deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMicros(pub u64);

/// A moment of the monotonic clock of one boot, in milliseconds. Only moments of one boot can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mono(pub u64);

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Mono {
    /// The moment `length` later. Saturates: a deadline past the end of time never comes.
    #[must_use]
    pub fn plus(self, length: Millis) -> Mono {
        Mono(self.0.saturating_add(length.0))
    }

    /// How long from `earlier` until this moment; zero when `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Mono) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl UnixMicros {
    /// The moment `length` later. Saturates: what is due past the end of time is never due.
    #[must_use]
    pub fn plus(self, length: Millis) -> UnixMicros {
        UnixMicros(self.0.saturating_add(length.0.saturating_mul(1000)))
    }

    /// Whole milliseconds from `earlier` until this moment; zero when the clock was set back in between.
    #[must_use]
    pub fn since(self, earlier: UnixMicros) -> Millis {
        Millis(self.0.saturating_sub(earlier.0) / 1000)
    }
}
