//! Writing to standard output and standard error without being held up by who reads them.
//!
//! A reader that has stopped reading must keep neither the budget nor a signal from being noticed, and the descriptor
//! may not be made non-blocking: that would change it for everyone it is shared with. So a pipe or a terminal is
//! opened again, for us alone, where that is allowed; else it is written in pieces that fit.

use outlast_core::time::{Millis, Mono};
use outlast_hand::clock;
use outlast_sys::signals::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What always fits into a pipe that polls as writable.
const PIPE_PIECE: usize = 4096;

/// What a terminal takes in one piece without being held for long.
const TERMINAL_PIECE: usize = 512;

/// One of the two standard streams.
#[derive(Debug)]
pub(crate) struct Outlet {
    fd: BorrowedFd<'static>,
    own: Option<OwnedFd>,
    /// The largest piece; `None` where a write is never held up.
    piece: Option<usize>,
}

/// Which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// All of it.
    Whole,
    /// Nobody reads any more.
    Closed,
    /// It cannot be written: no space, a device that fails.
    Failed(Errno),
    /// The time is over.
    OutOfTime,
    /// A second signal came: leave.
    Told,
}

impl Outlet {
    /// The stream, looked at once.
    pub(crate) fn new(which: Which) -> Outlet {
        let (fd, path) = match which {
            Which::Stdout => (rustix::stdio::stdout(), "/proc/self/fd/1"),
            Which::Stderr => (rustix::stdio::stderr(), "/proc/self/fd/2"),
        };
        let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let terminal = rustix::termios::isatty(fd);
        let piece = match kind {
            Ok(FileType::Fifo | FileType::Socket) => Some(PIPE_PIECE),
            Ok(FileType::CharacterDevice) if terminal => Some(TERMINAL_PIECE),
            _ => None,
        };
        let own = match kind {
            Ok(FileType::Fifo | FileType::CharacterDevice) if piece.is_some() => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty()).ok()
            }
            _ => None,
        };
        Outlet { fd, own, piece }
    }

    /// The descriptor to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.own.as_ref().map_or(self.fd, |own| own.as_fd())
    }

    /// Writes what can be written now; 0 where nothing can. To be called when the descriptor polls as writable.
    pub(crate) fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let piece = match (&self.own, self.piece) {
            (None, Some(piece)) => &bytes[..piece.min(bytes.len())],
            _ => bytes,
        };
        match rustix::io::write(self.fd(), piece) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes everything, until `until` at most.
    ///
    /// A first signal, where none came before, only hurries it: who is told to leave still says what there is to say.
    /// The next one ends it.
    pub(crate) fn write_all(
        &self,
        mut bytes: &[u8],
        mut until: Option<Mono>,
        ears: Option<&Ears>,
    ) -> Written {
        while !bytes.is_empty() {
            match self.wait(until, ears) {
                Ok(Heard::Writable) => {}
                Ok(Heard::Nothing) => return Written::OutOfTime,
                Ok(Heard::Signal(ears)) if ears.told.replace(true) => return Written::Told,
                Ok(Heard::Signal(_)) => {
                    let soon = clock::mono_now().plus(LAST_WORDS);
                    until = Some(until.map_or(soon, |until| until.min(soon)));
                    continue;
                }
                Err(_) => return Written::Closed,
            }
            match self.write_some(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => {
                    let errno = Errno::from_io_error(&error).filter(|errno| *errno != Errno::PIPE);
                    return errno.map_or(Written::Closed, Written::Failed);
                }
            }
        }
        Written::Whole
    }

    fn wait<'e>(&self, until: Option<Mono>, ears: Option<&'e Ears>) -> io::Result<Heard<'e>> {
        loop {
            let timeout = until.map(|until| timespec(until.since(clock::mono_now())));
            let own = self.fd();
            let mut fds = vec![PollFd::new(&own, PollFlags::OUT)];
            fds.extend(ears.map(|ears| PollFd::new(&ears.signals, PollFlags::IN)));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Heard::Nothing),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let signalled = fds.get(1).is_some_and(|signals| !signals.revents().is_empty());
            match ears {
                Some(ears) if signalled => {
                    let received = ears.signals.read()?;
                    if received.is_some_and(|received| received.signal != Signal::WINCH.as_raw()) {
                        return Ok(Heard::Signal(ears));
                    }
                }
                _ => return Ok(Heard::Writable),
            }
        }
    }
}

/// The signals that may come while an answer is written.
#[derive(Debug)]
pub(crate) struct Ears {
    signals: SignalFd,
    /// Whether one has come already.
    told: Cell<bool>,
}

impl Ears {
    /// `told`: the call is over because of a signal, so the next one is the second.
    pub(crate) fn new(signals: SignalFd, told: bool) -> Ears {
        Ears { signals, told: Cell::new(told) }
    }
}

enum Heard<'e> {
    Writable,
    Nothing,
    Signal(&'e Ears),
}

/// How long a call that was told to leave tries to get its answer out to a reader that does not read.
pub(crate) const LAST_WORDS: Millis = Millis(500);

/// A length of time as the kernel takes it.
pub(crate) fn timespec(length: Millis) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(length.0 / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(length.0 % 1000 * 1_000_000).unwrap_or(0),
    }
}

/// Whether nobody reads a descriptor any more, as its poll flags say.
pub(crate) fn is_closed(flags: PollFlags) -> bool {
    flags.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}
