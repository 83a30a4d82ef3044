//! The clocks, read here and passed on as arguments.

use outlast_core::time::{Mono, UnixMicros};
use rustix::time::{ClockId, clock_gettime};

/// The wall clock.
#[must_use]
pub fn unix_now() -> UnixMicros {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    UnixMicros(seconds * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000)
}

/// The monotonic clock of this boot.
#[must_use]
pub fn mono_now() -> Mono {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Mono(seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000)
}
