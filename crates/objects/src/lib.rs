//! Immutable objects behind a small door.
//!
//! An object is bytes under a [`Name`]. It is created once, whole, and never changed; it can be deleted. The door is
//! [`Objects`], a handle that is cheap to clone; behind it is a [`Backend`]: a [`Directory`], a bucket of S3 (feature
//! `s3`), and for tests a [`Memory`] and a [`Hostile`] that fails and lies by a plan.
//!
//! # What holds, whatever is behind the door
//!
//! - **Nobody sees a part of an object.** It is not there, or it is there whole.
//! - **A success is durable.** What [`Objects::put`] or [`Objects::delete`] returned for survives a loss of power, as far
//!   as the storage keeps its own promises.
//! - **One name has one content.** Of many writers of one name, one decides the bytes; to the others it is told that the
//!   same bytes were there, or that others are.
//! - **An error decides nothing.** After one, the object may have been stored or deleted all the same. Asking the same
//!   again is always right: it finds what happened.
//! - **No secret is in any error, name or debug output.**
//!
//! # Reading order
//!
//! [`Objects`] (the verbs and the rules that all backends share), [`Backend`] (what one must do), then the backends.
//!
//! ```
//! use bytes::Bytes;
//! use outlast_objects::{Name, ObjectError, Objects};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let objects = Objects::open(&dir.path().to_string_lossy().parse()?).await?;
//! let name: Name = "output/job-1/000001".parse()?;
//!
//! assert!(!objects.put(&name, Bytes::from_static(b"hello\n")).await?.existed);
//! assert!(objects.put(&name, Bytes::from_static(b"hello\n")).await?.existed);
//! let other = objects.put(&name, Bytes::from_static(b"other\n")).await;
//! assert!(matches!(other, Err(ObjectError::Different { .. })));
//! assert_eq!(objects.get_range(&name, 1, 3).await?, "ell");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod backend;
mod digest;
mod directory;
mod error;
mod hostile;
mod location;
mod memory;
mod name;
mod objects;
#[cfg(feature = "s3")]
mod s3;

pub use backend::{Backend, Created, Doing, Found, Span};
pub use digest::{BadDigest, Digest};
pub use directory::Directory;
pub use error::{ObjectError, Verb};
pub use hostile::{Act, Hostile, Plan};
pub use location::{BadLocation, Bucket, Location};
pub use memory::Memory;
pub use name::{BadName, NAME_AT_MOST, Name, SEGMENT_AT_MOST, SEGMENTS_AT_MOST};
pub use objects::{Entry, LIST_AT_MOST, Meta, OBJECT_AT_MOST, Objects, Page, Put};
#[cfg(feature = "s3")]
pub use s3::{Credentials, S3};
