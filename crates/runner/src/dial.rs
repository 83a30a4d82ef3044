//! Where the runner dials. Who is dialled proves itself by its certificate; the hand by its token, or a certificate of its
//! own; then the hand is the server on that connection. A sandbox that dials needs no open port.

use crate::serve::ServeError;
use crate::settings::Dial;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use outlast_hand::home::{Home, fill_random};
use outlast_wire::address::{Address, DialOptions, dial};
use outlast_wire::attach::{self, Asking};
use outlast_wire::tls;
use std::path::PathBuf;
use std::time::Duration;

/// The first pause before dialling again; doubled each time.
const FIRST: Duration = Duration::from_millis(500);
/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses between dials, growing, and each a little different, so that many hands do not dial at once.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses { next: FIRST }
    }
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let mut random = [0; 1];
        // Without random numbers the pause is the longest of its kind.
        let part = if fill_random(&mut random).is_ok() { u32::from(random[0]) } else { 255 };
        let pause = self.next / 2 + self.next / 2 * part / 255;
        self.next = (self.next * 2).min(LONGEST);
        pause
    }
}

/// One place to dial.
#[derive(Debug)]
pub(crate) struct Dialer {
    name: String,
    address: Address,
    options: DialOptions,
    token: Option<PathBuf>,
    sandbox: String,
    sandbox_generation: outlast_core::id::SandboxGeneration,
}

impl Dialer {
    pub(crate) fn new(to: &Dial, trust: Option<tls::Trust>, home: &Home) -> Result<Dialer, ServeError> {
        let name = format!("tls:{}", to.to);
        let address = name.parse().map_err(|error| ServeError::Access(format!("{name}: {error}")))?;
        let Some(trust) = trust else {
            return Err(ServeError::Access(format!(
                "{name}: nothing says who may answer there: give --dial-ca or --dial-pin"
            )));
        };
        let identity = match &to.tls.identity {
            Some((chain, key)) => Some(
                tls::Identity::from_files(chain, key)
                    .map_err(|error| ServeError::Access(error.to_string()))?,
            ),
            None => None,
        };
        // The upgrade that turns the roles round is HTTP/1.1's.
        let options =
            DialOptions { trust: Some(trust), identity, http_1_only: true, ..DialOptions::default() };
        Ok(Dialer {
            name,
            address,
            options,
            token: to.token.clone(),
            sandbox: home.sandbox().to_owned(),
            sandbox_generation: home.sandbox_generation(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Dials once. Where that fails, the error says why with all its causes.
    pub(crate) async fn dial(&self) -> Result<TokioIo<Upgraded>, String> {
        // Read each time, so that a new token needs no restart. A small file, a few times a minute at most.
        let token = match &self.token {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                let text = read.map_err(|error| format!("the token in {}: {error}", path.display()))?;
                Some(text.trim().to_owned())
            }
            None => None,
        };
        let stream = dial(&self.address, &self.options).await.map_err(|error| self.why(&error))?;
        let asking =
            Asking { sandbox: self.sandbox.clone(), sandbox_generation: self.sandbox_generation, token };
        attach::ask(stream, &asking).await.map_err(|error| self.why(&error))
    }

    /// An error and its causes, without the name of who was dialled, which whoever prints it says.
    fn why(&self, error: &dyn std::error::Error) -> String {
        let whole = error.to_string();
        let mut text = whole.strip_prefix(&format!("{}: ", self.name)).unwrap_or(&whole).to_owned();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut pauses = Pauses::default();
        let all: Vec<Duration> = (0..20).map(|_| pauses.next()).collect();
        assert!(all[0] >= FIRST / 2 && all[0] <= FIRST);
        assert!(all[19] >= LONGEST / 2 && all[19] <= LONGEST);
    }
}
