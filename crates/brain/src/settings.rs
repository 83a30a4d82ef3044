//! How a brain works. The defaults are those of the contract.

use outlast_core::time::Millis;
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that can be set.
#[derive(Clone)]
pub struct Settings {
    /// How hands name it: they keep what it admitted until it has it.
    pub name: String,
    /// How long a reply may wait for its command.
    pub cutover: Duration,
    /// The deadline of a command that names none.
    pub deadline: Millis,
    /// Unsettled tasks of one sandbox.
    pub most_unsettled: u32,
    /// How long a worker has a hand without renewing.
    pub lease: Duration,
    /// How often a worker looks for what it has missed.
    pub sweep: Duration,
    /// Infrastructure failures before a second channel is used.
    pub failures: u64,
    /// Output up to so many bytes is kept in the store itself.
    pub inline: usize,
    /// How long small output is gathered before it is committed.
    pub gather: Duration,
    /// Secrets by name. Held in memory alone.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: "brain".to_owned(),
            cutover: Duration::from_secs(60),
            deadline: Millis(3_600_000),
            most_unsettled: 8,
            lease: Duration::from_secs(45),
            sweep: Duration::from_secs(15),
            failures: 3,
            inline: 32 << 10,
            gather: Duration::from_millis(100),
            secrets: BTreeMap::new(),
        }
    }
}

/// Without secrets.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("name", &self.name).finish_non_exhaustive()
    }
}
