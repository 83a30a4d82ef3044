use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

use crate::Name;

/// What was being done when an error met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Opening the store.
    Open,
    /// Storing an object.
    Put,
    /// Reading an object or a part of it.
    Get,
    /// Asking whether there is an object, and how long it is.
    Head,
    /// Listing names.
    List,
    /// Deleting an object.
    Delete,
    /// Removing what interrupted writers left.
    Tidy,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Open => "open",
            Verb::Put => "put",
            Verb::Get => "get",
            Verb::Head => "head",
            Verb::List => "list",
            Verb::Delete => "delete",
            Verb::Tidy => "tidy",
        })
    }
}

/// Why a store of objects could not do what was asked.
///
/// The source says what the storage answered; no secret is in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no object of this name, or not in the version that was asked for.
    #[error("there is no object `{name}`")]
    NotFound {
        /// What was asked for.
        name: Name,
    },
    /// The name is taken by an object of other bytes. It was not touched, and asking again changes nothing.
    #[error("there is an object `{name}` already, of other bytes")]
    Different {
        /// The name that is taken.
        name: Name,
    },
    /// The object is larger than what is stored and read here.
    #[error("the object `{name}` has {len} bytes; at most {limit} are stored or read")]
    TooLarge {
        /// The object.
        name: Name,
        /// Its length in bytes.
        len: u64,
        /// [`OBJECT_AT_MOST`](crate::OBJECT_AT_MOST), or what a backend takes less.
        limit: u64,
    },
    /// A range that begins beyond the end.
    #[error("byte {start} is beyond the end of the object `{name}`, which has {len}")]
    OutOfRange {
        /// The object.
        name: Name,
        /// Where the range begins.
        start: u64,
        /// The length of the object in bytes.
        len: u64,
    },
    /// A version was asked for, and this store keeps none.
    #[error("this store keeps no versions of objects")]
    NoVersions,
    /// The storage refused for lack of a right or of valid credentials. Somebody must change that first.
    #[error("{verb} was refused")]
    Denied {
        /// What was being done.
        verb: Verb,
        /// What the storage answered.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The storage did not do it, or did not say whether it did.
    #[error("{verb} failed{}", if *.retryable { "; it may succeed later" } else { "" })]
    Unavailable {
        /// What was being done.
        verb: Verb,
        /// Whether the same may succeed later with nothing changed by anybody.
        retryable: bool,
        /// What the storage answered.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// What is stored under the name is not what was put there.
    #[error("the object `{name}` is damaged: {problem}")]
    Damaged {
        /// The object.
        name: Name,
        /// How it shows.
        problem: &'static str,
    },
}

impl ObjectError {
    /// Whether the same call may succeed later with nothing changed by anybody.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, ObjectError::Unavailable { retryable: true, .. })
    }

    pub(crate) fn unavailable(
        verb: Verb,
        retryable: bool,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> ObjectError {
        ObjectError::Unavailable { verb, retryable, source: source.into() }
    }
}
