//! What a command is given where its caller says nothing. One place, so that every face gives the same.

use outlast_core::time::Millis;

/// The deadline of the whole work; a service has none.
pub const DEADLINE: Millis = Millis(3_600_000);

/// The time between TERM and KILL.
pub const GRACE: Millis = Millis(10_000);

/// The time that descendants have after the command's own process has ended.
pub const LINGER: Millis = Millis(5_000);

/// The time that output is drained after the tree is empty.
pub const DRAIN: Millis = Millis(2_000);

/// The output that is kept, in bytes: past it the first MiB and the newest.
pub const LOG_LIMIT: u64 = 1 << 30;

/// The least limit of output that is kept, in bytes.
pub const LEAST_LOG: u64 = 64 << 10;
