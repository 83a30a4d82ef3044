//! Reading output: from any cursor, along the live end, and away again.
//!
//! The bytes come from the job's folder, never from the keeper. A reader that goes on where it was finds its place again:
//! readers of logs are kept between calls.

use crate::answer;
use crate::shared::lock;
use http::StatusCode;
use outlast_bytelog::{Extent, Gap, GapCause, GapLength, Sink, Stream as LogStream, Tail};
use outlast_core::id::{Cursor, JobId};
use outlast_hand::job::Job;
use outlast_hand::log::{LogReader, gap_cause};
use outlast_wire::problem::Problem;
use outlast_wire::records::{HEAD, Head, Stream};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Mutex;

/// Readers at the live end that are kept between calls: what they hold is small.
const KEPT: usize = 512;

/// Readers that are kept before the end. Each holds more than a MiB that it has read ahead.
const KEPT_AHEAD: usize = 32;

/// Gaps that the header of one answer lists; of more it tells the number. Records have them all.
const GAPS: usize = 32;

/// The bytes of an answer, when many read at once.
pub(crate) const LEAST: u64 = 64 << 10;

/// The memory of all answers under way together.
pub(crate) const MEMORY: u64 = 16 << 20;

/// What one read is to give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) from: Cursor,
    pub(crate) max: u64,
    pub(crate) stream: Option<Stream>,
    pub(crate) records: bool,
}

/// What it gave.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) body: Vec<u8>,
    pub(crate) next: Cursor,
    pub(crate) tail: &'static str,
    pub(crate) gaps: String,
    pub(crate) committed: Cursor,
    /// Whether there is anything in it to answer with at once.
    pub(crate) moved: bool,
}

/// Readers of logs, each at the cursor that its last call ended at.
#[derive(Default)]
pub(crate) struct Readers {
    at_end: Mutex<VecDeque<(JobId, Cursor, LogReader)>>,
    ahead: Mutex<VecDeque<(JobId, Cursor, LogReader)>>,
}

impl Readers {
    fn take(&self, id: JobId, at: Cursor) -> Option<LogReader> {
        [&self.at_end, &self.ahead].into_iter().find_map(|kept| {
            let mut kept = lock(kept);
            let found = kept.iter().position(|(job, cursor, _)| *job == id && *cursor == at)?;
            kept.remove(found).map(|(_, _, reader)| reader)
        })
    }

    fn keep(&self, id: JobId, extent: Extent, reader: LogReader) {
        let (kept, most) = match extent.tail {
            Tail::Open { .. } => (&self.at_end, KEPT),
            Tail::More => (&self.ahead, KEPT_AHEAD),
            // Nobody goes on from there.
            Tail::Ended { .. } => return,
        };
        let mut kept = lock(kept);
        if kept.len() >= most {
            kept.pop_front();
        }
        kept.push_back((id, Cursor(extent.next), reader));
    }
}

/// Reads what there is.
pub(crate) fn read(readers: &Readers, job: &Job, want: Want) -> Result<Piece, Problem> {
    let failed = |error: std::io::Error| answer::storage("reading the output", &error).about(job.id());
    // Before the log: what is committed by then is there to be read.
    let receipt = job.receipt().map_err(failed)?;
    let committed = match &receipt {
        Some(receipt) => receipt.output.final_cursor,
        None => job.committed().map_err(failed)?,
    };
    if receipt.is_some() && want.from > committed {
        let detail =
            format!("the output ends at {committed}, before the cursor {} that was asked for", want.from);
        return Err(Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "CURSOR_BEYOND_END", detail)
            .about(job.id())
            .remedy("nothing of this job lies there: begin again at a cursor that it gave")
            .context(serde_json::json!({ "final_cursor": committed })));
    }
    let mut reader = match readers.take(job.id(), want.from) {
        Some(reader) => reader,
        None => job.log().map_err(failed)?,
    };
    let max = usize::try_from(want.max).unwrap_or(usize::MAX);
    let mut gathered = Gathered::new(want, max);
    let extent = reader.read_into(want.from, max, &mut gathered).map_err(|error| {
        answer::storage("reading the output", &std::io::Error::other(error.to_string())).about(job.id())
    })?;
    let mut told = extent;
    if let Some(receipt) = &receipt {
        let end = receipt.output.final_cursor.0;
        if !matches!(extent.tail, Tail::More) || extent.next >= end {
            if extent.next < end {
                // The log ends before the output did: what could not be stored is missing, and that is said.
                gathered.gap(Gap::known(
                    extent.next.max(want.from.0)..end,
                    missing(&receipt.output.gaps, extent.next),
                ));
            }
            // Nothing more will come, whether or not the log says so itself.
            told = Extent { next: extent.next.max(end), end, tail: Tail::Ended { cursor: end } };
        }
    }
    let mut piece = gathered.finish(told);
    piece.committed = committed;
    readers.keep(job.id(), extent, reader);
    Ok(piece)
}

/// Why the end of the output is missing, as the receipt has it.
fn missing(gaps: &[outlast_core::receipt::Gap], from: u64) -> GapCause {
    let there = gaps.iter().find(|gap| gap.to.is_none_or(|to| to.0 > from));
    match there.map(|gap| gap.cause.as_str()) {
        Some("scribe_lost") => GapCause::WriterLost,
        Some("log_limit") => GapCause::Limit,
        Some("damaged") => GapCause::Damaged,
        _ => GapCause::StorageFailed,
    }
}

/// An answer's body while it is gathered.
struct Gathered {
    want: Want,
    body: Vec<u8>,
    gaps: String,
    stated: usize,
    unstated: usize,
    run: Option<Run>,
}

/// Data of one stream without a break: one record, whose head is written when its length is known.
#[derive(Clone, Copy)]
struct Run {
    at: usize,
    stream: Stream,
    offset: u64,
    time_us: u64,
    end: u64,
}

impl Gathered {
    fn new(want: Want, max: usize) -> Gathered {
        // Grows as bytes come: most answers are far smaller than they may be.
        let body = Vec::with_capacity(max.min(4096));
        Gathered { want, body, gaps: String::new(), stated: 0, unstated: 0, run: None }
    }

    /// Writes the length of a finished run into its head.
    fn close_run(&mut self) {
        let Some(Run { at, stream, offset, time_us, .. }) = self.run.take() else { return };
        let length = self.body.len() - at - HEAD;
        let head = Head::Data { stream, offset: Cursor(offset), time_us, length };
        self.body[at..at + HEAD].copy_from_slice(&head.encode());
    }

    fn finish(mut self, extent: Extent) -> Piece {
        self.close_run();
        if self.unstated > 0 {
            let _ = write!(self.gaps, ", and {} more", self.unstated);
        }
        let next = Cursor(extent.next);
        let tail = match extent.tail {
            Tail::More => "more",
            Tail::Open { .. } => "open",
            Tail::Ended { .. } => "ended",
        };
        let moved = next != self.want.from || self.stated > 0 || tail != "open";
        Piece { body: self.body, next, tail, gaps: self.gaps, committed: Cursor(0), moved }
    }
}

impl Sink for Gathered {
    fn data(&mut self, stream: LogStream, offset: u64, time_us: u64, bytes: &[u8]) {
        let stream = match stream {
            LogStream::Stdout => Stream::Stdout,
            LogStream::Stderr => Stream::Stderr,
        };
        if self.want.stream.is_some_and(|wanted| wanted != stream) {
            self.close_run();
            return;
        }
        if self.body.capacity() - self.body.len() < bytes.len() + HEAD {
            // In steps that double, up to what the answer was promised.
            let most = usize::try_from(self.want.max).unwrap_or(usize::MAX).saturating_add(HEAD * 8);
            let wanted = (self.body.len() + bytes.len() + HEAD).max(self.body.capacity() * 2).min(most);
            self.body.reserve_exact(wanted.saturating_sub(self.body.len()));
        }
        if self.want.records {
            match &mut self.run {
                Some(run) if run.stream == stream && run.end == offset => {
                    run.end = offset + bytes.len() as u64
                }
                _ => {
                    self.close_run();
                    let end = offset + bytes.len() as u64;
                    self.run = Some(Run { at: self.body.len(), stream, offset, time_us, end });
                    self.body.extend_from_slice(&[0; HEAD]);
                }
            }
        }
        self.body.extend_from_slice(bytes);
    }

    fn gap(&mut self, gap: Gap) {
        self.close_run();
        let cause = gap_cause(gap.cause);
        let to = match gap.length {
            GapLength::Known(_) => Some(Cursor(gap.to())),
            GapLength::Unknown => None,
        };
        if self.want.records {
            let head = Head::Gap { from: Cursor(gap.from), to, length: cause.len() };
            self.body.extend_from_slice(&head.encode());
            self.body.extend_from_slice(cause.as_bytes());
        }
        if self.stated == GAPS {
            self.unstated += 1;
            return;
        }
        self.stated += 1;
        if !self.gaps.is_empty() {
            self.gaps.push_str(", ");
        }
        let end = to.map(|to| to.to_string()).unwrap_or_default();
        let _ = write!(self.gaps, "{}-{end};{cause}", gap.from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_wire::records::records;

    fn extent(next: u64, tail: Tail) -> Extent {
        Extent { next, end: next, tail }
    }

    fn some(want: Want) -> Piece {
        let mut gathered = Gathered::new(want, 100);
        gathered.data(LogStream::Stdout, 0, 5, b"ab");
        gathered.data(LogStream::Stdout, 2, 6, b"cd");
        gathered.data(LogStream::Stderr, 4, 5, b"E");
        gathered.gap(Gap::known(5..9, GapCause::Limit));
        gathered.data(LogStream::Stdout, 9, 5, b"z");
        gathered.finish(extent(10, Tail::Open { torn: 0 }))
    }

    const ALL: Want = Want { from: Cursor(0), max: 100, stream: None, records: false };

    #[test]
    fn raw_bytes_state_their_gaps() {
        let piece = some(ALL);
        assert_eq!(piece.body, b"abcdEz");
        assert_eq!((piece.gaps.as_str(), piece.next, piece.tail), ("5-9;log_limit", Cursor(10), "open"));
        assert!(piece.moved);
        let one = some(Want { stream: Some(Stream::Stderr), ..ALL });
        assert_eq!((one.body.as_slice(), one.next), (&b"E"[..], Cursor(10)));
    }

    #[test]
    fn records_join_what_belongs_together() {
        let piece = some(Want { records: true, ..ALL });
        let read: Vec<_> = records(&piece.body).map(Result::unwrap).collect();
        let stream = Stream::Stdout;
        assert_eq!(
            read,
            [
                (Head::Data { stream, offset: Cursor(0), time_us: 5, length: 4 }, &b"abcd"[..]),
                (Head::Data { stream: Stream::Stderr, offset: Cursor(4), time_us: 5, length: 1 }, b"E"),
                (Head::Gap { from: Cursor(5), to: Some(Cursor(9)), length: 9 }, b"log_limit"),
                (Head::Data { stream, offset: Cursor(9), time_us: 5, length: 1 }, b"z"),
            ]
        );
    }

    #[test]
    fn nothing_new_is_no_answer_yet() {
        let nothing = |tail| Gathered::new(Want { from: Cursor(7), ..ALL }, 100).finish(extent(7, tail));
        assert!(!nothing(Tail::Open { torn: 0 }).moved);
        let ended = nothing(Tail::Ended { cursor: 7 });
        assert!(ended.moved && ended.tail == "ended");
    }

    #[test]
    fn gaps_beyond_the_header_are_counted() {
        let mut gathered = Gathered::new(ALL, 100);
        for number in 0..GAPS as u64 + 3 {
            gathered.gap(Gap::known(number * 10..number * 10 + 1, GapCause::Limit));
        }
        let piece = gathered.finish(extent(400, Tail::More));
        assert!(piece.gaps.ends_with(", and 3 more"), "{}", piece.gaps);
    }
}
