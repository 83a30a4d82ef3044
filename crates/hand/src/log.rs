//! The output of a job, as readers see it and as its scribe names it.

use outlast_bytelog::{
    DirDisk, Error, Extent, Gap as LogGap, GapCause, GapLength, LogId, ReadOutcome, Reader, Sink,
};
use outlast_core::id::{Cursor, JobId};
use outlast_core::receipt::{Gap, OutputHash};
use std::io;
use std::path::Path;

/// A reader of one job's output. It may start anywhere, follow, and leave; it changes nothing.
pub struct LogReader {
    reader: Reader<DirDisk>,
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogReader")
    }
}

impl LogReader {
    /// Opens the log in a job's folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(job_path: &Path) -> io::Result<LogReader> {
        Ok(LogReader { reader: Reader::open(DirDisk::open(job_path)?) })
    }

    /// Yields what there is from a cursor on, `max_bytes` at most. What lies past the committed cursor is
    /// provisional.
    ///
    /// # Errors
    /// See [`Reader::read_from`].
    pub fn read_from(&mut self, cursor: Cursor, max_bytes: usize) -> Result<ReadOutcome, Error> {
        self.reader.read_from(cursor.0, max_bytes)
    }

    /// As [`LogReader::read_from`], into a sink: what is passed on at once need not be kept in between.
    ///
    /// # Errors
    /// See [`Reader::read_into`].
    pub fn read_into(
        &mut self,
        cursor: Cursor,
        max_bytes: usize,
        sink: &mut dyn Sink,
    ) -> Result<Extent, Error> {
        self.reader.read_into(cursor.0, max_bytes, sink)
    }
}

/// The identity in the log's headers: stale blocks of another job's log cannot pass for this one's.
#[must_use]
pub fn log_id(job: JobId) -> LogId {
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::hash(job.to_string().as_bytes()).as_bytes()[..16]);
    LogId(id)
}

/// A gap of the log, as receipts state it.
#[must_use]
pub fn gap_for_receipt(gap: &LogGap) -> Gap {
    let to = match gap.length {
        GapLength::Known(_) => Some(Cursor(gap.to())),
        GapLength::Unknown => None,
    };
    Gap { from: Cursor(gap.from), to, cause: gap_cause(gap.cause) }
}

/// The word for why output is missing.
#[must_use]
pub fn gap_cause(cause: GapCause) -> String {
    match cause {
        GapCause::Limit => "log_limit",
        GapCause::StorageFailed => "storage_failed",
        GapCause::WriterLost => "scribe_lost",
        GapCause::Lost => "lost",
        GapCause::Damaged => "damaged",
        _ => "unrecognised",
    }
    .to_owned()
}

/// What reading a whole log again comes to.
#[derive(Debug)]
pub struct Reread {
    /// The hash state behind the last byte; `None` where a gap makes it unknowable.
    pub hasher: Option<blake3::Hasher>,
    /// Bytes of standard output kept.
    pub stdout_bytes: u64,
    /// Bytes of standard error kept.
    pub stderr_bytes: u64,
    /// The end.
    pub end: Cursor,
}

/// Reads a whole log to learn its hash and counts, as whoever takes over from a lost scribe must.
///
/// # Errors
/// See [`Reader::read_from`].
pub fn reread(job_path: &Path) -> Result<Reread, Error> {
    let disk = DirDisk::open(job_path)
        .map_err(|source| Error::StorageFailed { op: outlast_bytelog::Op::List, source })?;
    let mut reader = Reader::open(disk);
    let mut hasher = blake3::Hasher::new();
    let mut state = Reread { hasher: None, stdout_bytes: 0, stderr_bytes: 0, end: Cursor(0) };
    let mut whole = true;
    loop {
        let outcome = reader.read_from(state.end.0, 1 << 20)?;
        for item in &outcome.items {
            match item {
                outlast_bytelog::Item::Data { stream, bytes, .. } => {
                    hasher.update(bytes);
                    match stream {
                        outlast_bytelog::Stream::Stdout => state.stdout_bytes += bytes.len() as u64,
                        outlast_bytelog::Stream::Stderr => state.stderr_bytes += bytes.len() as u64,
                    }
                }
                outlast_bytelog::Item::Gap(_) => whole = false,
            }
        }
        let moved = outcome.next != state.end.0;
        state.end = Cursor(outcome.next.min(outcome.end.max(state.end.0)));
        if !matches!(outcome.tail, outlast_bytelog::Tail::More) || (!moved && outcome.items.is_empty()) {
            break;
        }
    }
    state.hasher = whole.then_some(hasher);
    Ok(state)
}

/// The hash for the receipt.
#[must_use]
pub fn output_hash(hasher: Option<&blake3::Hasher>) -> OutputHash {
    match hasher {
        Some(hasher) => OutputHash::Blake3 { value: hasher.finalize().to_hex().to_string() },
        None => OutputHash::Unknown { why: "a part of the output was lost before it was hashed".to_owned() },
    }
}
