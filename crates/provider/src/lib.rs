//! Where sandboxes come from. A provider makes one, finds it again, and is the only authority that can say it is gone.
//!
//! What a provider knows of a sandbox is not kept here: the brain records each incarnation before anything runs in it, and
//! asks by that record. So everything but [`Provider::provision`] is safe on recovery: it never makes anything.
//!
//! - [`local`]: this machine, as the server's own user.
#![forbid(unsafe_code)]

pub mod local;

use async_trait::async_trait;
use outlast_core::id::SandboxGeneration;
use outlast_core::time::UnixMicros;
use outlast_wire::address::{DialError, Stream};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One incarnation of a sandbox, as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The sandbox.
    pub sandbox: String,
    /// Which incarnation of it.
    pub generation: SandboxGeneration,
}

/// One incarnation, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// What its hand calls itself, and by what its provider finds it again.
    pub provider_ref: String,
    /// How it is reached: the first as long as that goes well, then the next. Without secrets.
    pub channels: Vec<String>,
    /// Until when it lives, where its provider ends it by itself.
    pub lives_until: Option<UnixMicros>,
}

/// What a provider sees of an incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is there, and its hand can be reached or started.
    Running,
    /// It is there, and nothing runs in it until it is started again.
    Stopped,
    /// It is gone, and nothing of it runs any more. The provider stands for this.
    Gone(Attestation),
}

/// A provider's word that one incarnation is gone: a death proof of everything that ran in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attestation {
    /// Which.
    pub provider_ref: String,
    /// Its incarnation.
    pub generation: SandboxGeneration,
    /// What was seen: the provider's own words or identifiers.
    pub observation: String,
    /// When, by the brain's clock.
    pub at: UnixMicros,
}

/// A connection to a hand.
#[derive(Debug)]
pub struct Attached {
    /// The bytes.
    pub stream: Stream,
    /// By what the calls on it are known, where the hand asks for that.
    pub token: Option<String>,
}

/// Why a provider did not do what it was asked to.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// What is asked for is not what this provider gives.
    #[error("{0}")]
    Asked(String),
    /// It cannot say whether the incarnation is gone, so nothing is attested.
    #[error("{provider_ref} cannot be proved gone: {why}")]
    Unproved {
        /// Which.
        provider_ref: String,
        /// Why.
        why: String,
    },
    /// It does not know the incarnation, and cannot say that it ever did: no attestation.
    #[error("no sandbox {0} is known here")]
    Unknown(String),
    /// It cannot be asked just now.
    #[error("{doing}")]
    Unavailable {
        /// What was being done.
        doing: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What keeps sandboxes.
#[async_trait]
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// What records call it.
    fn name(&self) -> &'static str;

    /// Makes an incarnation with a hand in it. Asked twice for one place, it answers with the same.
    ///
    /// # Errors
    /// [`ProviderError`]. What was made by then is found by asking again.
    async fn provision(
        &self,
        place: &Place,
        settings: &serde_json::Value,
    ) -> Result<Incarnation, ProviderError>;

    /// How a recorded incarnation is. Makes and changes nothing.
    ///
    /// # Errors
    /// [`ProviderError`].
    async fn inspect(&self, place: &Place, provider_ref: &str) -> Result<Presence, ProviderError>;

    /// Connects to the hand of a recorded incarnation by one of its channels. Never makes an incarnation; a hand's own runner,
    /// which owns nothing, may be started.
    ///
    /// # Errors
    /// [`DialError`].
    async fn attach(&self, place: &Place, channel: &str) -> Result<Attached, DialError>;

    /// Ends an incarnation with everything in it, and attests that. Asked again, it attests again.
    ///
    /// # Errors
    /// [`ProviderError`].
    async fn destroy(&self, place: &Place, provider_ref: &str) -> Result<Attestation, ProviderError>;

    /// Has an incarnation live until then at least; never shortens its life. Answers until when it lives now; `None` is for
    /// ever.
    ///
    /// # Errors
    /// [`ProviderError`].
    async fn extend(
        &self,
        place: &Place,
        provider_ref: &str,
        until: UnixMicros,
    ) -> Result<Option<UnixMicros>, ProviderError>;
}
