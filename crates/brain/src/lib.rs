//! The control plane: tasks that outlast calls, their output and results, over any number of hands.
//!
//! It decides nothing about what a fact means: `outlast_core` does. It keeps nothing in memory that is not in the store, but
//! what makes it quick: connections, and bells that wake whoever waits. A worker may be killed at any moment; the next one
//! reads what is owed and goes on.
//!
//! In reading order:
//!
//! - [`work`]: a command as it is asked for, and as a hand is asked for it.
//! - [`calls`]: what a caller may do: start, look, read, stop, be told.
//! - [`worker`]: which hands this process works on. `session`: one of them. `follow`: one task on it.
//! - [`output`]: the command log, read back.
//! - [`bell`]: who is woken by what.
#![forbid(unsafe_code)]

pub mod bell;
pub mod calls;
mod follow;
pub mod output;
mod session;
pub mod settings;
pub mod work;
pub mod worker;

use bell::Bells;
use outlast_objects::Objects;
use outlast_provider::Provider;
use outlast_store::ids::{New, SandboxId, Seed, TenantId};
use outlast_store::tables::sandboxes;
use outlast_store::{Store, StoreError};
use settings::Settings;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What everything here works with. Clones are the same one.
#[derive(Clone)]
pub struct Brain {
    /// The records.
    pub store: Store,
    /// Segments of output that are too large for a record.
    pub objects: Objects,
    /// Who waits for what.
    pub bells: Arc<Bells>,
    /// As it was started.
    pub settings: Arc<Settings>,
    /// Where sandboxes come from, by the name that records have.
    pub providers: Arc<Vec<Arc<dyn Provider>>>,
}

impl Brain {
    /// A brain over a store and objects.
    #[must_use]
    pub fn new(store: Store, objects: Objects, settings: Settings) -> Brain {
        Brain {
            store,
            objects,
            bells: Arc::default(),
            settings: Arc::new(settings),
            providers: Arc::default(),
        }
    }

    /// With providers of sandboxes. Hands whose provider is none of these are reached by their channels alone.
    #[must_use]
    pub fn with_providers(self, providers: Vec<Arc<dyn Provider>>) -> Brain {
        Brain { providers: Arc::new(providers), ..self }
    }

    /// The provider of this name.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.providers.iter().find(|provider| provider.name() == name)
    }

    /// The provider of a sandbox.
    pub(crate) async fn provider_of(
        &self,
        tenant: &TenantId,
        sandbox: &SandboxId,
    ) -> Result<Option<Arc<dyn Provider>>, StoreError> {
        if self.providers.is_empty() {
            return Ok(None);
        }
        let find = sandboxes::Find { tenant: tenant.clone(), id: sandbox.clone() };
        let sandbox = self.store.read(find).await?;
        Ok(sandbox.and_then(|sandbox| self.provider(&sandbox.provider).cloned()))
    }
}

/// A new id.
///
/// # Errors
/// Where the kernel has no random numbers.
pub fn new_id<T: New>() -> std::io::Result<T> {
    let mut random = [0; 16];
    fill_random(&mut random)?;
    Ok(T::new_id(Seed { millis: now_us() / 1000, random: u128::from_le_bytes(random) }))
}

/// Fills `bytes` with the kernel's random numbers.
///
/// # Errors
/// Where it has none.
pub fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// This machine's clock, in microseconds since 1970. For people and expiries; leases go by the database's.
#[must_use]
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
