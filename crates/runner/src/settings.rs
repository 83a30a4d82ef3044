//! What a runner is told.

use outlast_core::id::SandboxGeneration;
use outlast_wire::address::Address;
use outlast_wire::tls::Fingerprint;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Connections at once.
pub const CONNECTIONS: usize = 1024;

/// Jobs that have not ended, at once.
pub const OPEN_JOBS: usize = 8192;

/// What a runner is told.
#[derive(Debug)]
pub struct Settings {
    /// The home it serves.
    pub home: PathBuf,
    /// The sandbox it answers for, where the home's own id is not to be it.
    pub sandbox: Option<String>,
    /// Which incarnation of it; 1 where absent.
    pub sandbox_generation: Option<SandboxGeneration>,
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Where it dials, waiting for the other side to become its client.
    pub dial: Vec<Dial>,
    /// Users whose processes may use the Unix socket, beside the runner's own and root.
    pub allow_uids: Vec<u32>,
    /// The file of bearer tokens.
    pub token_file: Option<PathBuf>,
    /// Variables that every command inherits.
    pub environment: BTreeMap<OsString, OsString>,
    /// The program that keepers run from; the small one beside this one where absent.
    pub keeper: Option<PathBuf>,
    /// Ends by itself once nobody has been connected and no job has been open for so long.
    pub idle_exit: Option<Duration>,
}

impl Settings {
    /// Whether it makes sense by itself: what no machine and no file can put right is said before a home is opened or
    /// anything is made, under the name that the option has on the command line.
    pub(crate) fn check(&self) -> Result<(), String> {
        for place in &self.listen {
            let Listen::Tls { at, tls } = place else { continue };
            tls.check("--client-pin")?;
            if self.token_file.is_none() && !tls.say_who() {
                return Err(format!(
                    "--listen tls:{at}: nothing says who may call: give --token-file, --client-ca or --client-pin"
                ));
            }
        }
        for Dial { to, tls, .. } in &self.dial {
            if let Err(bad) = format!("tls:{to}").parse::<Address>() {
                // Of an address that names no kind the form is another, which the parser cannot know.
                let why = Some(bad.problem).filter(|why| !why.starts_with("say "));
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                return Err(format!("--dial {to}{why}: say HOST:PORT, or [ADDRESS]:PORT for IPv6"));
            }
            tls.check("--dial-pin")?;
            if !tls.say_who() {
                return Err(format!(
                    "--dial {to}: nothing says who may answer there: give --dial-ca or --dial-pin"
                ));
            }
        }
        Ok(())
    }
}

impl TlsFiles {
    fn say_who(&self) -> bool {
        self.authorities.is_some() || !self.pins.is_empty()
    }

    fn check(&self, option: &str) -> Result<(), String> {
        let bad =
            |pin: &String| pin.parse::<Fingerprint>().err().map(|error| format!("{option} {pin}: {error}"));
        self.pins.iter().find_map(bad).map_or(Ok(()), Err)
    }
}

/// A place to listen at.
#[derive(Debug, Clone)]
pub enum Listen {
    /// A Unix socket; `runner.sock` in the home where no path is given.
    Unix(Option<PathBuf>),
    /// TCP with TLS.
    Tls {
        /// The address.
        at: SocketAddr,
        /// How both ends prove who they are.
        tls: TlsFiles,
    },
}

/// A place to dial.
#[derive(Debug, Clone)]
pub struct Dial {
    /// `HOST:PORT`.
    pub to: String,
    /// How both ends prove who they are.
    pub tls: TlsFiles,
    /// The file that holds the token this hand presents.
    pub token: Option<PathBuf>,
}

/// Where certificates come from.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// This end's certificate chain and key, PEM. A listener without them makes its own, kept in the home.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Authorities that must have signed the other end's certificate, PEM.
    pub authorities: Option<PathBuf>,
    /// Fingerprints the other end's certificate may have.
    pub pins: Vec<String>,
}

/// The names of variables that commands inherit from the runner's own environment unless told otherwise.
pub const INHERITED: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
