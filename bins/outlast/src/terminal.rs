//! A person's terminal while `run --tty` is attached: keys go to the command, and so does the window's size.

use crate::failure::Failure;
use crate::result::Look;
use outlast_core::id::Cursor;
use outlast_core::time::{Millis, Mono};
use outlast_hand::job::Job;
use outlast_hand::{clock, control};
use outlast_sys::pty::{self, RawMode};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The key that detaches: Ctrl-]. Every other key, Ctrl-C too, is the command's.
const DETACH: u8 = 0x1d;

/// How long the keeper has to say how far its standard input was taken.
const ASK_WITHIN: Duration = Duration::from_secs(10);

/// Keys that wait are tried again after so long.
const RETRY: Millis = Millis(20);

/// No more is read from the terminal while so much waits.
const MOST_WAITING: usize = 64 << 10;

/// The keys of a terminal on their way to a command. The terminal is in raw mode while this lives.
#[derive(Debug)]
pub(crate) struct Keys {
    _raw: RawMode<'static>,
    terminal: BorrowedFd<'static>,
    waiting: Vec<u8>,
    offset: Cursor,
    retry_at: Option<Mono>,
    open: bool,
}

/// What reading brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Keys, or the end.
    Keys,
    /// The person wants to leave the command running.
    Detach,
}

impl Keys {
    /// Puts the terminal into raw mode; `None` where standard input is none.
    pub(crate) fn take(job: &Job) -> Result<Option<Keys>, Failure> {
        let terminal = rustix::stdio::stdin();
        let Ok(raw) = RawMode::enter(terminal) else { return Ok(None) };
        // Keys that an earlier call passed on are counted there: begun too low, the first of ours would pass for them.
        let offset = Look::at(job)?.stdin_taken(job, ASK_WITHIN);
        Ok(Some(Keys { _raw: raw, terminal, waiting: Vec::new(), offset, retry_at: None, open: true }))
    }

    /// Whether more keys are wanted.
    pub(crate) fn wants_more(&self) -> bool {
        self.open && self.waiting.len() < MOST_WAITING
    }

    /// When keys that wait are tried again.
    pub(crate) fn retry_at(&self) -> Option<Mono> {
        self.retry_at
    }

    /// Reads keys.
    pub(crate) fn read(&mut self) -> Read {
        let mut buffer = [0; 1024];
        match rustix::io::read(self.terminal, &mut buffer) {
            Ok(0) | Err(rustix::io::Errno::IO) => self.open = false,
            Ok(count) => {
                let keys = &buffer[..count];
                if let Some(at) = keys.iter().position(|key| *key == DETACH) {
                    self.waiting.extend_from_slice(&keys[..at]);
                    return Read::Detach;
                }
                self.waiting.extend_from_slice(keys);
                self.retry_at = Some(clock::mono_now());
            }
            Err(_) => {}
        }
        Read::Keys
    }

    /// Passes on what waits.
    pub(crate) fn pass_on(&mut self, job: &Job) {
        if self.waiting.is_empty() || self.retry_at.is_some_and(|at| at > clock::mono_now()) {
            return;
        }
        self.retry_at = None;
        match control::write_stdin(job, self.offset, &self.waiting, false, Duration::ZERO) {
            Ok(answer) => {
                let taken =
                    usize::try_from(answer.taken.0.saturating_sub(self.offset.0)).unwrap_or(usize::MAX);
                self.waiting.drain(..taken.min(self.waiting.len()));
                self.offset = Cursor(self.offset.0.max(answer.taken.0));
                if answer.closed {
                    self.waiting.clear();
                }
            }
            // Not listening yet, not any more, or busy: the job's end shows by itself, and keys are sent again.
            Err(error) if matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::TimedOut) => {}
            Err(_) => self.waiting.clear(),
        }
        if !self.waiting.is_empty() {
            self.retry_at = Some(clock::mono_now().plus(RETRY));
        }
    }

    /// Passes on the window's size.
    pub(crate) fn pass_size_on(&mut self, job: &Job) {
        if let Ok(size) = pty::size(self.terminal) {
            let _ = control::resize(job, size.rows, size.cols);
        }
    }
}

/// The size of this call's terminal, for a pseudo-terminal that begins like it.
pub(crate) fn size() -> Option<(u16, u16)> {
    [rustix::stdio::stdout(), rustix::stdio::stdin()]
        .into_iter()
        .find_map(|fd| pty::size(fd).ok())
        .filter(|size| size.rows > 0 && size.cols > 0)
        .map(|size| (size.rows, size.cols))
}
