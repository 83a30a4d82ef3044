//! Who is who. Every identity, counter and offset is a type of its own, so that none can stand in for another.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use thiserror::Error;

/// Bytes of a [`CallHash`].
pub const CALL_HASH_BYTES: usize = 10;

/// The most bytes a scope or an idempotency key may have.
pub const NAME_LIMIT: usize = 512;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// What a job directory is named by: scope and key, hashed under the home's secret, so that an id tells nothing
/// about the key to one who does not hold the home. 80 bits, written as 16 characters of Crockford's base 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallHash(pub [u8; CALL_HASH_BYTES]);

impl fmt::Display for CallHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in self.0.chunks(5) {
            let bits = group.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            for place in (0..8).rev() {
                let digit = ALPHABET[(bits >> (place * 5) & 31) as usize];
                fmt::Write::write_char(f, char::from(digit))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CallHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which execution of one logical command this is, from 1. A later one is admitted only over the death proof of
/// the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub NonZeroU32);

impl Attempt {
    /// The first attempt.
    pub const FIRST: Attempt = Attempt(NonZeroU32::MIN);

    /// The attempt after this one; saturates at the largest.
    #[must_use]
    pub fn next(self) -> Attempt {
        Attempt(self.0.saturating_add(1))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a job: `<call>.<number>.<attempt>`. The *number* counts the calls that share one identity without
/// an idempotency key, from 1; with a key it is always 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// Scope and key, hashed.
    pub call: CallHash,
    /// Which call of this identity, from 1.
    pub number: NonZeroU32,
    /// Which attempt of that call.
    pub attempt: Attempt,
}

impl JobId {
    /// The same call's next attempt.
    #[must_use]
    pub fn next_attempt(self) -> JobId {
        JobId { attempt: self.attempt.next(), ..self }
    }

    /// The name of the directory that outlives the attempts of this call (`OUTLAST_CHECKPOINT`).
    #[must_use]
    pub fn call_name(&self) -> String {
        format!("{}.{}", self.call, self.number)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.call, self.number, self.attempt)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no job id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a job id; ids look like 7k2m9qxw4t1rz5cb.1.1 and `outlast job list` shows them")]
pub struct NotAJobId(pub String);

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> Result<Self, NotAJobId> {
        parse_job_id(text).ok_or_else(|| NotAJobId(text.chars().take(80).collect()))
    }
}

fn parse_job_id(text: &str) -> Option<JobId> {
    let mut parts = text.split('.');
    let (call, number, attempt) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || call.len() != 16 {
        return None;
    }
    let mut hash = [0; CALL_HASH_BYTES];
    for (group, bytes) in call.as_bytes().chunks(8).zip(hash.chunks_mut(5)) {
        let mut bits = 0u64;
        for character in group {
            bits = bits << 5 | ALPHABET.iter().position(|digit| digit == character)? as u64;
        }
        bytes.copy_from_slice(&bits.to_be_bytes()[3..]);
    }
    Some(JobId { call: CallHash(hash), number: counter(number)?, attempt: Attempt(counter(attempt)?) })
}

/// A number from 1, written in one way only.
fn counter(text: &str) -> Option<NonZeroU32> {
    let plain = !text.starts_with('0') && text.bytes().all(|c| c.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        // Read through `new`, so that no file and no request brings in a name that `new` refuses.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(String);

        impl TryFrom<String> for $type {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                $type::new(text)
            }
        }

        impl $type {
            /// Takes a name of 1 to [`NAME_LIMIT`] bytes without control characters.
            ///
            /// # Errors
            /// [`BadName`], which says what is wrong with it.
            pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
                let text = text.into();
                check_name(&text)?;
                Ok($type(text))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name! {
    /// The circle of callers that may find, read and stop one another's jobs (`OUTLAST_SCOPE`).
    Scope
}
name! {
    /// The identity of a logical command that its caller chose (`--idempotency-key`).
    Key
}
name! {
    /// The work for one person's request, as the brain names it. Once it is sealed, a hand admits nothing more under it.
    RunId
}
name! {
    /// A control plane that admits jobs here. A finished job is kept until each that admitted it has what it needs of it.
    BrainId
}
name! {
    /// The brain's durable promise about one logical command.
    TaskId
}
name! {
    /// Whose data this is: nobody finds what belongs to another tenant.
    TenantId
}
name! {
    /// A thread that several people may share.
    ConversationId
}
name! {
    /// A person, or a program that acts as one.
    PrincipalId
}
name! {
    /// A stop's own id, so that a repeated request is the same stop.
    StopId
}
name! {
    /// What a worker holds while an event is its to hand over. Nobody else knows it.
    ClaimToken
}
name! {
    /// The kernel's identity of one boot (`/proc/sys/kernel/random/boot_id`). Another boot means that no process
    /// of the earlier one lives.
    BootId
}

/// What a task went through that its run must be told of. Part of an event's id: what happens once has one id,
/// whoever notices it and however often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transition {
    /// The attempt is over, however it ended.
    Ended,
}

impl Transition {
    /// The word in an id.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transition::Ended => "ended",
        }
    }
}

/// The name of an event: `<task>/<attempt>/<transition>`. It follows from what happened alone, so two workers that
/// notice the same end owe one event, and its receiver can tell a repeat.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// The task.
    pub task: TaskId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// What happened to it.
    pub transition: Transition,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.task, self.attempt, self.transition.name())
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no event id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not an event id; ids look like TASK/1/ended")]
pub struct NotAnEventId(pub String);

impl FromStr for EventId {
    type Err = NotAnEventId;

    fn from_str(text: &str) -> Result<Self, NotAnEventId> {
        parse_event_id(text).ok_or_else(|| NotAnEventId(text.chars().take(80).collect()))
    }
}

fn parse_event_id(text: &str) -> Option<EventId> {
    // From the end: a task's name may hold a slash, what follows it holds none.
    let mut parts = text.rsplitn(3, '/');
    let (transition, attempt, task) = (parts.next()?, parts.next()?, parts.next()?);
    let transition = (transition == Transition::Ended.name()).then_some(Transition::Ended)?;
    Some(EventId { task: TaskId::new(task).ok()?, attempt: Attempt(counter(attempt)?), transition })
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A name that is too long, empty or unprintable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadName {
    /// Nothing in it.
    #[error("it is empty")]
    Empty,
    /// More than [`NAME_LIMIT`] bytes.
    #[error("it has {0} bytes, at most {NAME_LIMIT} are allowed")]
    TooLong(usize),
    /// A control character.
    #[error("it contains a control character")]
    Control,
}

fn check_name(text: &str) -> Result<(), BadName> {
    match text {
        "" => Err(BadName::Empty),
        _ if text.len() > NAME_LIMIT => Err(BadName::TooLong(text.len())),
        _ if text.chars().any(char::is_control) => Err(BadName::Control),
        _ => Ok(()),
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub u64);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// A byte offset into a job's output, both streams together; `c` means "I have all bytes before c".
    Cursor
}
counter! {
    /// A counter of the conversation, raised by stop-all alone.
    Generation
}
counter! {
    /// Which incarnation of a place to run this is.
    SandboxGeneration
}
counter! {
    /// The end offset of the hand's file of mutation marks after this job's own mark, in bytes.
    MutationMark
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn job_ids_are_read_back(call: [u8; CALL_HASH_BYTES], number in 1u32.., attempt in 1u32..) {
            let id = JobId {
                call: CallHash(call),
                number: NonZeroU32::new(number).unwrap(),
                attempt: Attempt(NonZeroU32::new(attempt).unwrap()),
            };
            prop_assert_eq!(id.to_string().parse::<JobId>(), Ok(id));
        }

        #[test]
        fn event_ids_are_read_back(task in "[a-z/]{1,9}", attempt in 1u32..) {
            let attempt = Attempt(NonZeroU32::new(attempt).unwrap());
            let id = EventId { task: TaskId::new(task).unwrap(), attempt, transition: Transition::Ended };
            prop_assert_eq!(id.to_string().parse::<EventId>(), Ok(id));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<JobId>();
            let _ = text.parse::<EventId>();
        }
    }

    #[test]
    fn names_are_checked_when_they_are_read() {
        for (text, valid) in [
            (r#""a""#, true),
            (r#""ü b""#, true),
            (r#""""#, false),
            (r#""a\nb""#, false),
            (r#""\u0000""#, false),
            ("7", false),
            (&format!("\"{}\"", "x".repeat(NAME_LIMIT)), true),
            (&format!("\"{}\"", "x".repeat(NAME_LIMIT + 1)), false),
        ] {
            assert_eq!(serde_json::from_str::<Scope>(text).is_ok(), valid, "{text}");
            assert_eq!(serde_json::from_str::<RunId>(text).is_ok(), valid, "{text}");
        }
        assert_eq!(serde_json::to_string(&BrainId::new("b").unwrap()).unwrap(), r#""b""#);
    }

    #[test]
    fn what_is_no_event_id() {
        for text in
            ["", "t", "t/1", "/1/ended", "t/0/ended", "t/01/ended", "t/1/begun", "t/1/ended/", "t/+1/ended"]
        {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_job_id() {
        for text in [
            "",
            ".",
            "..",
            "0000000000000000",
            "0000000000000000.0.1",
            "0000000000000000.01.1",
            "0000000000000000.1.1.1",
            "000000000000000u.1.1",
            "../../../etc/pas.1.1",
            "0000000000000000.+1.1",
        ] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
