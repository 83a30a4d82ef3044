//! Output on its way to this call's own standard streams.

use crate::failure::{self, Failure};
use crate::masks::View;
use crate::outlet::{Outlet, Which};
use outlast_bytelog::{GapLength, Item, Stream, Tail};
use outlast_core::id::Cursor;
use outlast_hand::job::Job;
use outlast_hand::log::{LogReader, gap_cause};
use std::collections::VecDeque;
use std::io;

/// Bytes asked for at once.
const CHUNK: usize = 128 << 10;

/// Pieces written before the caller looks at its signals and its clock again.
const PIECES_IN_A_ROW: usize = 64;

/// What of the output is written, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection {
    /// Where it begins.
    pub(crate) from: u64,
    /// One stream alone, or both.
    pub(crate) stream: Option<Stream>,
    /// How.
    pub(crate) form: Form,
}

/// In which form output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Exact bytes, each stream to its own.
    Exact,
    /// Exact bytes, both streams to standard output, and no word of ours.
    Raw,
    /// Tokens hidden; for a stream that is a terminal, what would control it dropped.
    View {
        /// Standard output is a terminal.
        stdout_terminal: bool,
        /// Standard error is.
        stderr_terminal: bool,
    },
}

impl Selection {
    /// Everything, as it was written.
    pub(crate) const ALL: Selection = Selection { from: 0, stream: None, form: Form::Exact };
}

/// The output of one job on its way out.
#[derive(Debug)]
pub(crate) struct Live {
    selection: Selection,
    views: Option<[View; 2]>,
    log: Option<LogReader>,
    cursor: u64,
    /// Where that began of which the last is waiting to be written.
    filled_from: u64,
    /// Each byte that waits is one of the log, and no byte of the log lies between them.
    exact: bool,
    /// Why standard output cannot be written, where it is not that nobody reads.
    failed: Option<io::Error>,
    waiting: VecDeque<Piece>,
    /// The log may hold more than was read.
    more: bool,
    blocked: Option<Which>,
    /// The end of all output, once it is known.
    end: Option<u64>,
    finished: bool,
}

#[derive(Debug)]
struct Piece {
    to: Which,
    bytes: Vec<u8>,
    written: usize,
}

impl Live {
    /// What is selected.
    pub(crate) fn new(selection: Selection) -> Live {
        let views = match selection.form {
            Form::Exact | Form::Raw => None,
            Form::View { stdout_terminal, stderr_terminal } => {
                Some([View::new(stdout_terminal), View::new(stderr_terminal)])
            }
        };
        Live {
            selection,
            views,
            log: None,
            cursor: selection.from,
            filled_from: selection.from,
            exact: false,
            failed: None,
            waiting: VecDeque::new(),
            more: true,
            blocked: None,
            end: None,
            finished: false,
        }
    }

    /// Something was logged.
    pub(crate) fn there_may_be_more(&mut self) {
        self.more = true;
    }

    /// Whether all there will ever be has been written.
    pub(crate) fn is_drained(&self) -> bool {
        self.finished && self.waiting.is_empty()
    }

    /// The stream whose reader is waited for.
    pub(crate) fn blocked_on(&self) -> Option<Which> {
        self.blocked
    }

    /// How far it was read and written: whoever goes on from there misses nothing.
    pub(crate) fn cursor(&self) -> u64 {
        let waiting: usize = self.waiting.iter().map(|piece| piece.bytes.len() - piece.written).sum();
        match waiting {
            0 => self.cursor,
            waiting if self.exact => self.cursor.saturating_sub(waiting as u64).max(self.filled_from),
            _ => self.filled_from,
        }
    }

    /// Why standard output could not be written, where it is not that nobody reads.
    pub(crate) fn into_failure(self) -> Option<io::Error> {
        self.failed
    }

    /// Writes what can be written now; `last` says that nothing more will come. True where nobody reads standard
    /// output any more.
    pub(crate) fn advance(
        &mut self,
        job: &Job,
        stdout: &Outlet,
        stderr: &Outlet,
        last: bool,
    ) -> Result<bool, Failure> {
        if last && self.end.is_none() {
            let receipt = job.receipt().map_err(|error| failure::of_system("reading the receipt", &error))?;
            self.end = receipt.map(|receipt| receipt.output.final_cursor.0);
            // What was announced before the end may still have to be read.
            self.more |= self.end != Some(self.cursor);
        }
        self.blocked = None;
        for _ in 0..PIECES_IN_A_ROW {
            if self.waiting.is_empty() && self.more {
                self.fill(job)?;
            }
            if self.waiting.is_empty() && !self.more && last && !self.finished {
                self.finish();
            }
            let Some(piece) = self.waiting.front_mut() else { return Ok(false) };
            let outlet = if piece.to == Which::Stdout { stdout } else { stderr };
            match outlet.write_some(&piece.bytes[piece.written..]) {
                Ok(0) => {
                    self.blocked = Some(piece.to);
                    return Ok(false);
                }
                Ok(count) => piece.written += count,
                Err(error) if piece.to == Which::Stdout => {
                    self.failed = Some(error).filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
                    return Ok(true);
                }
                // Who closed standard error does not want it.
                Err(_) => piece.written = piece.bytes.len(),
            }
            if piece.written == piece.bytes.len() {
                self.waiting.pop_front();
            }
        }
        // Not held up by anyone: polling for the next piece's stream answers at once.
        self.blocked = Some(self.waiting.front().map_or(Which::Stdout, |piece| piece.to));
        Ok(false)
    }

    fn fill(&mut self, job: &Job) -> Result<(), Failure> {
        if self.log.is_none() {
            self.log = Some(job.log().map_err(|error| failure::of_system("opening the output", &error))?);
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        let outcome = log.read_from(Cursor(self.cursor), CHUNK).map_err(|error| {
            Failure::new(failure::UNAVAILABLE, "reading the output failed").because_of(&error)
        })?;
        self.more = outcome.tail == Tail::More && outcome.next > self.cursor;
        self.filled_from = self.cursor;
        self.exact = self.views.is_none()
            && self.selection.stream.is_none()
            && outcome.items.iter().all(|item| matches!(item, Item::Data { .. }));
        // A cursor past the end is not moved back: what is there now lies before what was asked for.
        self.cursor = self.cursor.max(outcome.next);
        for item in outcome.items {
            self.take(item);
        }
        Ok(())
    }

    fn take(&mut self, item: Item) {
        let raw = self.selection.form == Form::Raw;
        match item {
            Item::Gap(_) if raw => {}
            Item::Gap(gap) => self.add(Which::Stderr, gap_line(&gap).into_bytes()),
            Item::Data { stream, bytes, .. } => {
                if self.selection.stream.is_some_and(|wanted| wanted != stream) {
                    return;
                }
                let own = if stream == Stream::Stdout { Which::Stdout } else { Which::Stderr };
                let bytes = match &mut self.views {
                    Some(views) => views[usize::from(own == Which::Stderr)].push(&bytes),
                    None => bytes,
                };
                self.add(if raw { Which::Stdout } else { own }, bytes);
            }
        }
    }

    fn add(&mut self, to: Which, bytes: Vec<u8>) {
        match self.waiting.back_mut() {
            _ if bytes.is_empty() => {}
            Some(last) if last.to == to => last.bytes.extend_from_slice(&bytes),
            _ => self.waiting.push_back(Piece { to, bytes, written: 0 }),
        }
    }

    /// Nothing more will come: what a view held back may go.
    fn finish(&mut self) {
        self.finished = true;
        if let Some([stdout, stderr]) = &mut self.views {
            let (stdout, stderr) = (stdout.finish(), stderr.finish());
            self.add(Which::Stdout, stdout);
            self.add(Which::Stderr, stderr);
        }
    }
}

/// What is said in place of output that is missing.
fn gap_line(gap: &outlast_bytelog::Gap) -> String {
    let how_much = match gap.length {
        GapLength::Known(bytes) => format!("{bytes} bytes"),
        GapLength::Unknown => "an unknown number of bytes".to_owned(),
    };
    format!("[outlast: {how_much} of output are missing at cursor {} ({})]\n", gap.from, gap_cause(gap.cause))
}
