//! What records are called: a prefix that says what it is, and 26 characters of time and chance.
//!
//! The first ten characters are milliseconds, so that records lie in the order they were made in; sixteen are 80 random bits,
//! so that none can be guessed. That is no authorization: who may see a record is checked. An id that comes from outside is a
//! name like any other, and finds what it finds.

use crate::value::Value;
use outlast_core::id::BadName;
pub use outlast_core::id::{ConversationId, EventId, PrincipalId, RunId, StopId, TaskId, TenantId};
use serde::{Deserialize, Serialize};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const LENGTH: usize = 26;

/// What an id is made of. Time and chance come from outside, so that a test can say both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    /// Milliseconds since 1970, of which 50 bits count.
    pub millis: u64,
    /// Random bits, of which 80 count.
    pub random: u128,
}

fn text(prefix: &str, seed: Seed) -> String {
    let bits = u128::from(seed.millis & ((1 << 50) - 1)) << 80 | seed.random & ((1 << 80) - 1);
    let digits = (0..LENGTH).rev().map(|place| char::from(ALPHABET[(bits >> (5 * place) & 31) as usize]));
    prefix.chars().chain(['_']).chain(digits).collect()
}

/// Something that is made under a new id.
pub trait New: Sized {
    /// A new id. Two of one seed are the same.
    fn new_id(seed: Seed) -> Self;
}

macro_rules! own {
    ($($(#[$doc:meta])* $type:ident;)*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(String);

        impl $type {
            /// As text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                // The rules of all names.
                outlast_core::id::Key::new(text.clone())?;
                Ok($type(text))
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

own! {
    /// A token, by which a principal is known.
    TokenId;
    /// A place to run.
    SandboxId;
    /// A process that works for the brain.
    WorkerId;
}

macro_rules! ids {
    ($($type:ident = $prefix:literal;)*) => {
        $(impl From<&$type> for Value {
            fn from(id: &$type) -> Value {
                Value::Text(id.as_str().to_owned())
            }
        }

        impl New for $type {
            fn new_id(seed: Seed) -> Self {
                text($prefix, seed).try_into().unwrap_or_else(|_| unreachable!("it is short and printable"))
            }
        })*
    };
}

ids! {
    TenantId = "ten";
    PrincipalId = "prn";
    TokenId = "tok";
    ConversationId = "cnv";
    RunId = "run";
    SandboxId = "sbx";
    TaskId = "tsk";
    StopId = "stp";
    WorkerId = "wrk";
}

impl From<&EventId> for Value {
    fn from(id: &EventId) -> Value {
        Value::Text(id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_they_are_and_lie_in_the_order_of_their_time() {
        let id = |millis, random| TaskId::new_id(Seed { millis, random });
        let early = id(1_700_000_000_000, u128::MAX);
        assert!(early < id(1_700_000_000_001, 0));
        assert!(early.as_str().starts_with("tsk_") && early.as_str().len() == 30);
        assert_eq!(id(0, 0).as_str(), "tsk_00000000000000000000000000");
        assert!(SandboxId::try_from(String::new()).is_err());
    }
}
