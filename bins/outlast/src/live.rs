//! Output written while it comes: standard output to standard output, standard error to standard error, exact bytes.

use crate::failure::{self, Failure};
use crate::outlet::{Outlet, Which};
use outlast_bytelog::{GapLength, Item, Stream, Tail};
use outlast_core::id::Cursor;
use outlast_hand::job::Job;
use outlast_hand::log::{LogReader, gap_cause};
use std::collections::VecDeque;

/// Bytes asked for at once.
const CHUNK: usize = 128 << 10;

/// Pieces written before the caller looks at its signals and its clock again.
const PIECES_IN_A_ROW: usize = 64;

/// The output of one job on its way out.
#[derive(Debug)]
pub(crate) struct Live {
    log: Option<LogReader>,
    cursor: u64,
    waiting: VecDeque<Piece>,
    /// The log may hold more than was read.
    more: bool,
    blocked: Option<Which>,
    /// The end of all output, once it is known.
    end: Option<u64>,
    drained: bool,
}

#[derive(Debug)]
struct Piece {
    to: Which,
    bytes: Vec<u8>,
    written: usize,
}

impl Live {
    /// From the beginning.
    pub(crate) fn new() -> Live {
        Live::from(0)
    }

    /// From a cursor.
    pub(crate) fn from(cursor: u64) -> Live {
        Live { log: None, cursor, waiting: VecDeque::new(), more: true, blocked: None, end: None, drained: false }
    }

    /// Something was logged.
    pub(crate) fn there_may_be_more(&mut self) {
        self.more = true;
    }

    /// Whether all there will ever be has been written.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// The stream whose reader is waited for.
    pub(crate) fn blocked_on(&self) -> Option<Which> {
        self.blocked
    }

    /// Writes what can be written now. True where nobody reads standard output any more.
    pub(crate) fn advance(&mut self, job: &Job, stdout: &Outlet, stderr: &Outlet, settled: bool) -> Result<bool, Failure> {
        if settled && self.end.is_none() {
            let receipt = job.receipt().map_err(|error| failure::of_system("reading the receipt", &error))?;
            self.end = receipt.map(|receipt| receipt.output.final_cursor.0);
            self.more = self.end != Some(self.cursor);
        }
        self.blocked = None;
        for _ in 0..PIECES_IN_A_ROW {
            if self.waiting.is_empty() && self.more {
                self.fill(job)?;
            }
            let Some(piece) = self.waiting.front_mut() else {
                self.drained = settled && !self.more;
                return Ok(false);
            };
            let outlet = if piece.to == Which::Stdout { stdout } else { stderr };
            match outlet.write_some(&piece.bytes[piece.written..]) {
                Ok(0) => {
                    self.blocked = Some(piece.to);
                    return Ok(false);
                }
                Ok(count) => piece.written += count,
                Err(_) if piece.to == Which::Stdout => return Ok(true),
                // Who closed standard error does not want it.
                Err(_) => piece.written = piece.bytes.len(),
            }
            if piece.written == piece.bytes.len() {
                self.waiting.pop_front();
            }
        }
        // Not blocked by anyone: say so by polling for the next piece's stream, which answers at once.
        self.blocked = Some(self.waiting.front().map_or(Which::Stdout, |piece| piece.to));
        Ok(false)
    }

    fn fill(&mut self, job: &Job) -> Result<(), Failure> {
        if self.log.is_none() {
            self.log = Some(job.log().map_err(|error| failure::of_system("opening the output", &error))?);
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        let outcome = log
            .read_from(Cursor(self.cursor), CHUNK)
            .map_err(|error| Failure::new(failure::UNAVAILABLE, "reading the output failed").because_of(&error))?;
        self.more = outcome.tail == Tail::More && outcome.next > self.cursor;
        self.cursor = self.cursor.max(outcome.next);
        for item in outcome.items {
            let (to, bytes) = match item {
                Item::Data { stream: Stream::Stdout, bytes, .. } => (Which::Stdout, bytes),
                Item::Data { stream: Stream::Stderr, bytes, .. } => (Which::Stderr, bytes),
                Item::Gap(gap) => (Which::Stderr, gap_line(&gap).into_bytes()),
            };
            match self.waiting.back_mut() {
                Some(last) if last.to == to => last.bytes.extend_from_slice(&bytes),
                _ => self.waiting.push_back(Piece { to, bytes, written: 0 }),
            }
        }
        Ok(())
    }
}

/// What is said in place of output that is missing.
pub(crate) fn gap_line(gap: &outlast_bytelog::Gap) -> String {
    let how_much = match gap.length {
        GapLength::Known(bytes) => format!("{bytes} bytes"),
        GapLength::Unknown => "an unknown number of bytes".to_owned(),
    };
    format!("[outlast: {how_much} of output are missing at cursor {} ({})]\n", gap.from, gap_cause(gap.cause))
}
