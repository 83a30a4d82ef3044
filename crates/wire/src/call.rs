//! The facts that each call carries in its headers, so that what is stale is dropped before a body is read.
//!
//! | header | on | what |
//! |---|---|---|
//! | `outlast-scope` | every call about jobs | the circle of callers; `default` where absent |
//! | `outlast-request-id` | calls that change something | 1 to 128 visible ASCII characters, unique to one request and repeated with its retries |
//! | `outlast-expires-at` | the same | milliseconds since the Unix epoch by the *hand's* clock (hello tells it); later it is dropped |
//! | `outlast-sandbox` | the same | the sandbox it is meant for |
//! | `outlast-sandbox-generation` | the same | which incarnation of it |
//! | `outlast-generation` | the same | the generation of the run that asks |
//! | `authorization` | where the transport does not authenticate | `Bearer TOKEN` |

use crate::limits;
use outlast_core::id::{Generation, SandboxGeneration, Scope};
use thiserror::Error;

/// The header of [`Scope`].
pub const SCOPE: &str = "outlast-scope";
/// The header of a request's id.
pub const REQUEST_ID: &str = "outlast-request-id";
/// The header of a request's expiry.
pub const EXPIRES_AT: &str = "outlast-expires-at";
/// The header of the sandbox that is meant.
pub const SANDBOX: &str = "outlast-sandbox";
/// The header of its generation.
pub const SANDBOX_GENERATION: &str = "outlast-sandbox-generation";
/// The header of the caller's generation.
pub const GENERATION: &str = "outlast-generation";

/// All of them; none may be given twice.
pub const HEADERS: &[&str] = &[SCOPE, REQUEST_ID, EXPIRES_AT, SANDBOX, SANDBOX_GENERATION, GENERATION];

/// Headers of answers to reads of output.
pub mod output {
    /// The cursor to ask at next.
    pub const NEXT: &str = "outlast-next-cursor";
    /// The cursor up to which output is known to be synced.
    pub const COMMITTED: &str = "outlast-committed-cursor";
    /// `more`, `open` or `ended`: whether more is there now, may come, or never will.
    pub const TAIL: &str = "outlast-tail";
    /// Ranges in the answer that the log does not keep: `FROM-TO;CAUSE`, comma-separated, `TO` empty where unknown.
    pub const GAPS: &str = "outlast-gaps";
}

/// The scope of a call that names none.
pub const DEFAULT_SCOPE: &str = "default";

/// What a call that changes something is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFacts {
    /// Its id.
    pub request_id: String,
    /// When it expires, by the hand's clock, in milliseconds since the Unix epoch.
    pub expires_at: u64,
    /// The sandbox it is meant for.
    pub sandbox: String,
    /// Which incarnation of it.
    pub sandbox_generation: SandboxGeneration,
    /// The generation of the run that asks.
    pub generation: Generation,
}

/// What a hand knows of itself when a call comes in.
#[derive(Debug, Clone, Copy)]
pub struct HandFacts<'a> {
    /// Its sandbox.
    pub sandbox: &'a str,
    /// Its incarnation.
    pub sandbox_generation: SandboxGeneration,
    /// Its clock, in milliseconds since the Unix epoch.
    pub now: u64,
}

/// Why a call is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// A header is missing or says nothing that can be understood.
    #[error("the header {header} {problem}")]
    Header {
        /// Which.
        header: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// It was meant for another sandbox.
    #[error("the call is meant for sandbox {meant}, this hand is {here}")]
    OtherSandbox {
        /// Which.
        meant: String,
        /// This one.
        here: String,
    },
    /// It was meant for another incarnation of this sandbox.
    #[error("the call is meant for generation {meant} of this sandbox, which is generation {here}")]
    OtherSandboxGeneration {
        /// Which.
        meant: SandboxGeneration,
        /// This one.
        here: SandboxGeneration,
    },
    /// It expired.
    #[error("the call expired {late_ms} ms ago by this hand's clock")]
    Expired {
        /// How long ago.
        late_ms: u64,
    },
    /// It would be good for longer than a call may be.
    #[error("the call expires in {in_ms} ms, the limit is {} ms", limits::EXPIRY_AT_MOST.as_millis())]
    ExpiresTooLate {
        /// In how long.
        in_ms: u64,
    },
}

impl CallError {
    /// Whether the call is well formed and stale: dropped and recorded, where the others are the caller's mistake.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !matches!(self, CallError::Header { .. } | CallError::ExpiresTooLate { .. })
    }
}

/// Reads a call's headers, through a function that finds one by name.
///
/// # Errors
/// [`CallError::Header`].
pub fn read_call<'h>(header: impl Fn(&'static str) -> Option<&'h [u8]>) -> Result<CallFacts, CallError> {
    let text = |name: &'static str| {
        let bytes = header(name).ok_or(CallError::Header {
            header: name,
            problem: "is missing on a call that changes something".into(),
        })?;
        std::str::from_utf8(bytes)
            .map_err(|_| CallError::Header { header: name, problem: "is not text".into() })
    };
    let number = |name: &'static str| {
        text(name)?
            .parse::<u64>()
            .map_err(|_| CallError::Header { header: name, problem: "is not a whole number".into() })
    };
    let request_id = text(REQUEST_ID)?;
    let visible = request_id.bytes().all(|byte| byte.is_ascii_graphic());
    if request_id.is_empty() || request_id.len() > limits::REQUEST_ID || !visible {
        let problem = format!("must have 1 to {} visible ASCII characters", limits::REQUEST_ID);
        return Err(CallError::Header { header: REQUEST_ID, problem });
    }
    Ok(CallFacts {
        request_id: request_id.to_owned(),
        expires_at: number(EXPIRES_AT)?,
        sandbox: text(SANDBOX)?.to_owned(),
        sandbox_generation: SandboxGeneration(number(SANDBOX_GENERATION)?),
        generation: Generation(number(GENERATION)?),
    })
}

/// Reads the scope of a call.
///
/// # Errors
/// [`CallError::Header`].
pub fn read_scope(header: Option<&[u8]>) -> Result<Scope, CallError> {
    let wrong = |problem: String| CallError::Header { header: SCOPE, problem };
    let text = match header {
        None => DEFAULT_SCOPE,
        Some(bytes) => std::str::from_utf8(bytes).map_err(|_| wrong("is not text".into()))?,
    };
    Scope::new(text).map_err(|error| wrong(format!("is no scope: {error}")))
}

/// Checks a call against the hand it reached.
///
/// # Errors
/// [`CallError`]: drop it, and record it where [`CallError::is_stale`].
pub fn check_call(call: &CallFacts, here: HandFacts<'_>) -> Result<(), CallError> {
    if call.sandbox != here.sandbox {
        return Err(CallError::OtherSandbox { meant: call.sandbox.clone(), here: here.sandbox.to_owned() });
    }
    if call.sandbox_generation != here.sandbox_generation {
        return Err(CallError::OtherSandboxGeneration {
            meant: call.sandbox_generation,
            here: here.sandbox_generation,
        });
    }
    if call.expires_at <= here.now {
        return Err(CallError::Expired { late_ms: here.now - call.expires_at });
    }
    let in_ms = call.expires_at - here.now;
    if u128::from(in_ms) > limits::EXPIRY_AT_MOST.as_millis() {
        return Err(CallError::ExpiresTooLate { in_ms });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: HandFacts<'static> =
        HandFacts { sandbox: "box", sandbox_generation: SandboxGeneration(3), now: 1_000_000 };

    fn call() -> CallFacts {
        CallFacts {
            request_id: "r".into(),
            expires_at: HERE.now + 1000,
            sandbox: "box".into(),
            sandbox_generation: SandboxGeneration(3),
            generation: Generation(0),
        }
    }

    #[test]
    fn what_is_stale_is_named() {
        assert_eq!(check_call(&call(), HERE), Ok(()));
        let other = CallFacts { sandbox: "other".into(), ..call() };
        assert!(matches!(check_call(&other, HERE), Err(CallError::OtherSandbox { .. })));
        for generation in [2, 4] {
            let other = CallFacts { sandbox_generation: SandboxGeneration(generation), ..call() };
            let error = check_call(&other, HERE).unwrap_err();
            assert!(matches!(error, CallError::OtherSandboxGeneration { .. }) && error.is_stale());
        }
        let expired = CallFacts { expires_at: HERE.now, ..call() };
        assert_eq!(check_call(&expired, HERE), Err(CallError::Expired { late_ms: 0 }));
        let far = CallFacts { expires_at: HERE.now + 3_600_001, ..call() };
        assert!(!check_call(&far, HERE).unwrap_err().is_stale());
        let overflowing = CallFacts { expires_at: u64::MAX, ..call() };
        assert!(check_call(&overflowing, HERE).is_err());
    }

    #[test]
    fn headers_are_read_strictly() {
        let good = [
            (REQUEST_ID, "r-1"),
            (EXPIRES_AT, "12"),
            (SANDBOX, "box"),
            (SANDBOX_GENERATION, "3"),
            (GENERATION, "7"),
        ];
        let read = |changed: &str, value: Option<&'static str>| {
            read_call(|name| {
                if name == changed {
                    return value.map(str::as_bytes);
                }
                good.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes())
            })
        };
        assert_eq!(read("", None).unwrap().generation, Generation(7));
        for (name, _) in good {
            assert!(matches!(read(name, None), Err(CallError::Header { header, .. }) if header == name));
        }
        for (name, value) in [
            (REQUEST_ID, ""),
            (REQUEST_ID, "a b"),
            (EXPIRES_AT, "-1"),
            (EXPIRES_AT, "99999999999999999999"),
            (SANDBOX_GENERATION, "1.0"),
            (GENERATION, "x"),
        ] {
            assert!(read(name, Some(value)).is_err(), "{name}: {value}");
        }
        assert_eq!(read_scope(None).unwrap().as_str(), "default");
        assert!(read_scope(Some(b"")).is_err());
        assert!(read_scope(Some(b"\xff")).is_err());
    }
}
