//! The append-only byte log of a job: framed records, segments, recovery.
//!
//! A job writes bytes to two streams. The scribe drains them and appends them here, under **one**
//! cursor: a byte offset into everything drained, in drain order. The log lies in the job
//! directory as segment files that anyone may read while it grows:
//!
//! ```text
//! log.<epoch, 8 digits>.<base cursor, 20 digits>
//! ```
//!
//! No file exists before the first byte does. The exact layout, with its table, is in [`mod@format`].
//!
//! # The promises
//!
//! - **Cursors are never reused within an epoch, and epochs only rise.** One writer is one epoch; a
//!   writer that goes on after a failure or a crash does so in a new epoch and a new file.
//! - **A committed cursor survives.** [`Writer::sync`] returns only after every byte below the
//!   cursor it returns, and the name of every file that holds one, is on the disk.
//! - **A failed sync is final.** After any failed write or sync the epoch commits nothing more. Bytes
//!   that were not committed before it are stated as a gap, even if they can still be read.
//! - **What cannot be proved is not data.** Frames are chained by checksum from a header that names
//!   the job, so neither stale blocks nor another job's bytes can pass for output.
//! - **Whatever is missing is a [`Gap`]**: bytes dropped by the size limit, lost by the storage, or
//!   damaged. Readers get the gap in its place, never silence.
//!
//! # Reading order
//!
//! [`mod@format`] (the bytes), [`disk`] (the seam to the file system), [`Writer`], [`recover()`],
//! [`Reader`].
//!
//! ```
//! use outlast_bytelog::{DirDisk, Item, LogId, Options, Reader, Stream, Writer};
//!
//! let dir = tempfile::tempdir()?;
//! let disk = DirDisk::open(dir.path())?;
//! let mut writer = Writer::create(&disk, LogId([7; 16]), Options::default())?;
//! writer.append(Stream::Stdout, 1_700_000_000_000_000, b"hello\n")?;
//! assert_eq!(writer.sync()?, 6);
//!
//! let mut reader = Reader::open(&disk);
//! let read = reader.read_from(0, 64 * 1024)?;
//! assert_eq!(read.next, 6);
//! assert!(matches!(&read.items[..], [Item::Data { bytes, .. }] if bytes == b"hello\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod chain;
pub mod disk;
mod error;
mod flaws;
pub mod format;
mod gap;
mod reader;
mod recover;
mod scan;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod writer;

#[cfg(test)]
mod crash_tests;

pub use disk::{DirDisk, Disk};
pub use error::{Error, Op};
pub use format::{LogId, MAX_PAYLOAD, Stream};
pub use gap::{Gap, GapCause, GapLength};
pub use reader::{Extent, Item, ReadOutcome, Reader, Sink, Tail};
pub use recover::{Cut, Recovered, inspect, recover};
pub use writer::{Options, Resume, Writer};
