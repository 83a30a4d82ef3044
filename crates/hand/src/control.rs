//! Talking to a living keeper.
//!
//! The warden listens on a socket in the job's folder; messages are datagrams of one JSON object, followed by a
//! newline and raw bytes where a request carries any. What is said here only hurries things: facts are read from
//! files, and a reader that is told nothing still finds them there.

use crate::job::{Job, name};
use outlast_core::exit::{Cause, Exit};
use outlast_core::fence::{Stale, StopRequest};
use outlast_core::id::Cursor;
use outlast_sys::Errno;
use outlast_sys::unix::{self, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The largest message, its bytes included.
pub const MESSAGE_LIMIT: usize = 64 << 10;

/// How long to wait for a place among those who wait to be let in.
const CROWDED_AT_MOST: Duration = Duration::from_secs(5);

/// The least time that one message has to be answered, so that a call without time can still be told something.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);

/// The most bytes of standard input one message carries.
pub const STDIN_CHUNK: usize = 32 << 10;

/// What a client asks of the warden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Tell me what happens from now on.
    Watch {
        /// Also whenever output was logged.
        output: bool,
    },
    /// End the job.
    Stop {
        /// The stop.
        request: StopRequest,
    },
    /// Give these bytes (after the newline) to the command's standard input.
    Stdin {
        /// Where in the stream they begin.
        offset: Cursor,
        /// Close the stream after them.
        close: bool,
    },
    /// Set the size of its terminal.
    Resize {
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Sync the log and say up to where.
    Sync,
}

/// What the warden says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say {
    /// The command's process exists.
    Started,
    /// The keeper could not set up what was asked for; nothing was started.
    Failed {
        /// `^[A-Z][A-Z0-9_]+$`.
        code: String,
        /// What failed.
        message: String,
        /// What to do about it.
        remedy: String,
    },
    /// Output was logged.
    Output,
    /// The command's own process ended.
    Exited {
        /// How.
        exit: Exit,
    },
    /// The tree is being ended.
    Ending {
        /// Why.
        cause: Cause,
    },
    /// The receipt is durable.
    Settled,
    /// The stop was accepted, or was accepted before.
    StopAccepted,
    /// The stop was dropped.
    StopStale {
        /// Why.
        stale: Stale,
    },
    /// Standard input was taken up to here.
    StdinTaken {
        /// The end of what was taken: send the rest from there.
        offset: Cursor,
        /// Nothing more is taken.
        closed: bool,
    },
    /// The log is synced up to here.
    Synced {
        /// The committed cursor.
        cursor: Cursor,
    },
    /// It was done.
    Done,
    /// It cannot be done.
    Refused {
        /// Why.
        why: String,
    },
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The keeper said something.
    Said(Say),
    /// The time given is over.
    TimedOut,
    /// The keeper has closed: it has finished, or is lost. The job's folder says which.
    Closed,
}

/// A connection to a keeper that tells what happens.
#[derive(Debug)]
pub struct Watch {
    socket: OwnedFd,
}

impl Watch {
    /// Takes over a connection that watches already.
    #[must_use]
    pub fn from_socket(socket: OwnedFd) -> Watch {
        Watch { socket }
    }

    /// Connects to a job's keeper and watches, with or without word of output; `None` where no keeper listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(job: &Job, output: bool) -> io::Result<Option<Watch>> {
        let Some(socket) = connect(job)? else { return Ok(None) };
        match send(socket.as_fd(), &Ask::Watch { output }, &[]) {
            Ok(()) => Ok(Some(Watch { socket })),
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Has the keeper tell of output too, or not any more. Never waits.
    ///
    /// # Errors
    /// What the system says; where the keeper has closed, [`Watch::next`] tells it.
    pub fn set_output(&self, output: bool) -> io::Result<()> {
        Ok(send(self.socket.as_fd(), &Ask::Watch { output }, &[])?)
    }

    /// Waits for the next word, for `timeout` at most (`None`: for ever).
    ///
    /// # Errors
    /// What the system says.
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Notice> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let mut buffer = [0u8; 4096];
            match unix::recv(self.socket.as_fd(), &mut buffer) {
                Ok(Received::Message(length)) => {
                    if let Ok(say) = serde_json::from_slice(&buffer[..length]) {
                        return Ok(Notice::Said(say));
                    }
                    // A word of a later version.
                    continue;
                }
                Ok(Received::TooLong(_)) => continue,
                Ok(Received::Closed) => return Ok(Notice::Closed),
                // It closed with words of ours unread. That is told once, before what it had said itself.
                Err(Errno::CONNRESET) => continue,
                Ok(Received::Nothing) => {}
                Err(errno) => return Err(errno.into()),
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || !wait_readable(self.socket.as_fd(), left)? {
                return Ok(Notice::TimedOut);
            }
        }
    }

    /// The socket, for a caller that waits on several things.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until `fd` can be read (or its other end has closed); `false` when the time is over first.
///
/// # Errors
/// What the system says; an interruption counts as time over, so that a caller looks at its signals.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Asks one thing and waits for the answer, for `timeout` at most. `None`: no keeper listens, or none answered.
///
/// # Errors
/// What the system says.
pub fn ask(job: &Job, ask: &Ask, bytes: &[u8], timeout: Duration) -> io::Result<Option<Say>> {
    match ask_for(job, ask, bytes, timeout, CROWDED_AT_MOST)? {
        Some(Notice::Said(say)) => Ok(Some(say)),
        Some(Notice::TimedOut | Notice::Closed) | None => Ok(None),
    }
}

/// Asks one thing and tells what came back; `None` where no keeper listens.
fn ask_for(
    job: &Job,
    ask: &Ask,
    bytes: &[u8],
    timeout: Duration,
    crowded: Duration,
) -> io::Result<Option<Notice>> {
    let Some(socket) = connect_within(job, crowded)? else { return Ok(None) };
    match send(socket.as_fd(), ask, bytes) {
        Ok(()) => {}
        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    Ok(Some((Watch { socket }).next(Some(timeout))?))
}

/// What became of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopAnswer {
    /// The keeper ends the tree, or did already.
    Accepted,
    /// It was dropped.
    Stale(Stale),
    /// No keeper answers: the job has ended, or lost its keeper.
    NoKeeper,
}

/// Asks a job's keeper to end it.
///
/// # Errors
/// What the system says, or that the keeper refused.
pub fn stop(job: &Job, request: &StopRequest, timeout: Duration) -> io::Result<StopAnswer> {
    match ask(job, &Ask::Stop { request: request.clone() }, &[], timeout)? {
        Some(Say::StopAccepted) => Ok(StopAnswer::Accepted),
        Some(Say::StopStale { stale }) => Ok(StopAnswer::Stale(stale)),
        None => Ok(StopAnswer::NoKeeper),
        Some(other) => Err(unexpected(&other)),
    }
}

/// What became of bytes for standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StdinAnswer {
    /// Everything before this offset was taken.
    pub taken: Cursor,
    /// Nothing more is taken: it was closed, or the command has ended.
    pub closed: bool,
}

/// Gives bytes to a command's open standard input, in order, each once: bytes before what was taken are skipped, so
/// a repeated call does no harm. Blocks while the command does not read or the keeper does not answer, for `timeout` at
/// most; one message has 50 ms in any case.
///
/// # Errors
/// What the system says; `NotConnected` where no keeper listens; `TimedOut` where one does, and did not say that it took
/// anything; `InvalidInput` where `offset` lies past what was taken, or the job's standard input is not open.
pub fn write_stdin(
    job: &Job,
    offset: Cursor,
    bytes: &[u8],
    close: bool,
    timeout: Duration,
) -> io::Result<StdinAnswer> {
    let until = Instant::now() + timeout;
    let Some(end) = offset.0.checked_add(bytes.len() as u64) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no stream is so long"));
    };
    let mut next = offset;
    loop {
        let skip = usize::try_from(next.0.saturating_sub(offset.0)).unwrap_or(usize::MAX).min(bytes.len());
        let chunk = &bytes[skip..(skip + STDIN_CHUNK).min(bytes.len())];
        let last = skip + chunk.len() == bytes.len();
        let asked = Ask::Stdin { offset: Cursor(offset.0 + skip as u64), close: close && last };
        let left = until.saturating_duration_since(Instant::now()).max(ANSWER_WITHIN);
        let answer = match ask_for(job, &asked, chunk, left, left.min(CROWDED_AT_MOST)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(Notice::TimedOut),
            answer => answer?,
        };
        let said = match answer {
            Some(Notice::Said(say)) => say,
            // What it took before stays taken.
            Some(Notice::TimedOut) if next > offset => return Ok(StdinAnswer { taken: next, closed: false }),
            Some(Notice::TimedOut) => return Err(io::ErrorKind::TimedOut.into()),
            Some(Notice::Closed) | None => return Err(io::ErrorKind::NotConnected.into()),
        };
        match said {
            Say::StdinTaken { offset: taken, closed } => {
                if closed || (taken.0 >= end && !close) || Instant::now() >= until {
                    return Ok(StdinAnswer { taken, closed });
                }
                if taken == next {
                    // The pipe is full. The command reads when it likes; nothing tells us when.
                    std::thread::sleep(Duration::from_millis(5));
                }
                next = taken;
            }
            Say::Refused { why } => return Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
            other => return Err(unexpected(&other)),
        }
    }
}

/// Sets the size of a job's terminal.
///
/// # Errors
/// `NotConnected` where no keeper answers; `InvalidInput` where it has no terminal.
pub fn resize(job: &Job, rows: u16, cols: u16) -> io::Result<()> {
    match ask(job, &Ask::Resize { rows, cols }, &[], Duration::from_secs(5))? {
        Some(Say::Done) => Ok(()),
        Some(Say::Refused { why }) => Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
        None => Err(io::ErrorKind::NotConnected.into()),
        Some(other) => Err(unexpected(&other)),
    }
}

/// Has the log synced and returns the committed cursor; `None` where no keeper answers.
///
/// # Errors
/// What the system says, or that the log could not be synced.
pub fn sync(job: &Job, timeout: Duration) -> io::Result<Option<Cursor>> {
    match ask(job, &Ask::Sync, &[], timeout)? {
        Some(Say::Synced { cursor }) => Ok(Some(cursor)),
        Some(Say::Refused { why }) => Err(io::Error::other(why)),
        None => Ok(None),
        Some(other) => Err(unexpected(&other)),
    }
}

fn unexpected(say: &Say) -> io::Error {
    io::Error::other(format!("the keeper answered {say:?}"))
}

fn connect(job: &Job) -> io::Result<Option<OwnedFd>> {
    connect_within(job, CROWDED_AT_MOST)
}

fn connect_within(job: &Job, crowded: Duration) -> io::Result<Option<OwnedFd>> {
    let until = Instant::now() + crowded;
    let mut pause = Duration::from_millis(2);
    loop {
        match unix::connect(job.dir(), OsStr::new(name::CONTROL)) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            // Too many wait there already.
            Err(Errno::AGAIN) if Instant::now() < until => {
                std::thread::sleep(pause);
                // Growing, or a hundred who wait would keep from work the one they wait for.
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends one message: the object, and the bytes after a newline where there are any.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &impl Serialize, bytes: &[u8]) -> Result<(), Errno> {
    let mut text = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    if !bytes.is_empty() {
        text.push(b'\n');
        text.extend_from_slice(bytes);
    }
    unix::send(socket, &text)
}
