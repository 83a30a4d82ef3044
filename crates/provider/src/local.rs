//! This machine, as the server's own user: a home in a folder, and the small program as its runner.
//!
//! The runner owns nothing. It is started when its socket does not answer, ends by itself once nobody is connected and no job
//! is open, and may be killed at any time. What runs under it belongs to keepers, which no server's end touches. So a local
//! hand can be reached again after anything but the loss of its folder, and cannot be attested to be gone: its jobs are
//! settled one by one.

use crate::{Attached, Attestation, Incarnation, Place, Presence, Provider, ProviderError};
use async_trait::async_trait;
use outlast_core::time::UnixMicros;
use outlast_wire::address::{Address, DialError, DialOptions, dial};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What records call it.
pub const NAME: &str = "local";
/// How long a runner that nobody needs stays, in seconds.
const IDLE: &str = "60";
/// How long a runner that was started may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
/// How often is looked whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// The longest path of a home, in bytes, so that the address of its socket fits: 107 with `/runner.sock`.
const HOME_AT_MOST: usize = 95;

/// Hands on this machine.
#[derive(Debug, Clone)]
pub struct Local {
    folder: PathBuf,
    program: PathBuf,
}

impl Local {
    /// Hands whose homes lie in `folder`, served by `program`, which is `outlast-hand`.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Local {
        Local { folder: folder.into(), program: program.into() }
    }

    /// The home of an incarnation.
    #[must_use]
    pub fn home(&self, place: &Place) -> PathBuf {
        self.folder.join(reference(place))
    }

    async fn start(&self, place: &Place) -> io::Result<()> {
        let home = self.home(place);
        // What it says when it cannot serve is all there is to know why; it is kept beside the homes.
        let log = std::fs::File::create(self.folder.join(format!("{}.log", reference(place))))?;
        let words: [OsString; 9] = [
            "serve".into(),
            "--home".into(),
            home.into(),
            "--sandbox".into(),
            reference(place).into(),
            "--sandbox-generation".into(),
            place.generation.0.to_string().into(),
            "--idle-exit".into(),
            IDLE.into(),
        ];
        tokio::process::Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // An interrupt at the server's terminal is not for it.
            .process_group(0)
            .spawn()?;
        Ok(())
    }

    fn said(&self, place: &Place) -> String {
        let log = self.folder.join(format!("{}.log", reference(place)));
        std::fs::read_to_string(log).unwrap_or_default().trim().to_owned()
    }
}

/// What its hand calls itself.
fn reference(place: &Place) -> String {
    format!("{}.{}", place.sandbox, place.generation)
}

fn socket(home: &Path) -> PathBuf {
    home.join("runner.sock")
}

fn unavailable(doing: String, source: io::Error) -> ProviderError {
    ProviderError::Unavailable { doing, source: source.into() }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn provision(
        &self,
        place: &Place,
        settings: &serde_json::Value,
    ) -> Result<Incarnation, ProviderError> {
        if settings.as_object().is_some_and(|settings| !settings.is_empty()) {
            return Err(ProviderError::Asked("a local sandbox takes no settings".to_owned()));
        }
        let home = self.home(place);
        let length = home.as_os_str().len();
        if length > HOME_AT_MOST {
            let why = format!(
                "the home {} is {length} bytes long; at most {HOME_AT_MOST} fit into a socket's address: use a \
                 shorter data folder",
                home.display()
            );
            return Err(ProviderError::Asked(why));
        }
        let making = || format!("making {}", self.folder.display());
        std::fs::create_dir_all(&self.folder).map_err(|error| unavailable(making(), error))?;
        let channels = vec![format!("unix:{}", socket(&home).display())];
        Ok(Incarnation { provider_ref: reference(place), channels, lives_until: None })
    }

    async fn inspect(&self, place: &Place, provider_ref: &str) -> Result<Presence, ProviderError> {
        let home = self.home(place);
        match home.try_exists() {
            Ok(true) => Ok(Presence::Running),
            // A folder that somebody removed proves nothing about what ran.
            Ok(false) => Err(ProviderError::Unknown(provider_ref.to_owned())),
            Err(error) => Err(unavailable(format!("looking at {}", home.display()), error)),
        }
    }

    async fn attach(&self, place: &Place, channel: &str) -> Result<Attached, DialError> {
        let address: Address = channel.parse().unwrap_or_else(|_| Address::Unix(channel.into()));
        let options = DialOptions::default();
        let first = match dial(&address, &options).await {
            Ok(stream) => return Ok(Attached { stream, token: None }),
            Err(error) => error,
        };
        let absent = matches!(&first, DialError::Connect { error, .. }
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused));
        if !absent {
            return Err(first);
        }
        if let Err(error) = self.start(place).await {
            return Err(DialError::Start { program: self.program.clone().into(), error });
        }
        let until = tokio::time::Instant::now() + LISTENS_WITHIN;
        loop {
            match dial(&address, &options).await {
                Ok(stream) => return Ok(Attached { stream, token: None }),
                Err(DialError::Connect { address, error }) if tokio::time::Instant::now() >= until => {
                    let said = self.said(place);
                    let error = if said.is_empty() { error } else { io::Error::new(error.kind(), said) };
                    return Err(DialError::Connect { address, error });
                }
                Err(DialError::Connect { .. }) => tokio::time::sleep(LOOK).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn destroy(&self, _place: &Place, provider_ref: &str) -> Result<Attestation, ProviderError> {
        Err(ProviderError::Unproved {
            provider_ref: provider_ref.to_owned(),
            why: "it is this machine itself; settle what is open on it, then give it up".to_owned(),
        })
    }

    async fn extend(
        &self,
        _place: &Place,
        _provider_ref: &str,
        _until: UnixMicros,
    ) -> Result<Option<UnixMicros>, ProviderError> {
        Ok(None)
    }
}
