//! Writing to standard output and standard error without being held up by who reads them.
//!
//! A reader that has stopped reading must keep neither the budget nor a signal from being noticed, and the descriptor
//! may not be made non-blocking: that would change it for everyone it is shared with. So a pipe or a terminal is
//! opened again, for us alone, where that is allowed; else it is written in pieces that fit.

use outlast_core::time::Mono;
use outlast_hand::clock;
use outlast_sys::signals::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
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
    /// The time is over.
    OutOfTime,
    /// A signal came: leave.
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

    /// Writes everything, until `until` at most, and gives up when a signal comes on `signals`.
    pub(crate) fn write_all(
        &self,
        mut bytes: &[u8],
        until: Option<Mono>,
        signals: Option<&SignalFd>,
    ) -> Written {
        loop {
            if bytes.is_empty() {
                return Written::Whole;
            }
            match self.writable(until, signals) {
                Ok(None) => {}
                Ok(Some(written)) => return written,
                Err(_) => return Written::Closed,
            }
            match self.write_some(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(_) => return Written::Closed,
            }
        }
    }

    /// Waits until something can be written; else says why not.
    fn writable(&self, until: Option<Mono>, signals: Option<&SignalFd>) -> io::Result<Option<Written>> {
        loop {
            let left = until.map(|until| until.since(clock::mono_now()).0);
            let timeout = left.map(|millis| Timespec {
                tv_sec: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(millis % 1000 * 1_000_000).unwrap_or(0),
            });
            let stdout = self.fd();
            let mut fds = vec![PollFd::new(&stdout, PollFlags::OUT)];
            fds.extend(signals.map(|signals| PollFd::new(signals, PollFlags::IN)));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Some(Written::OutOfTime)),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
            if fds.get(1).is_some_and(|signals| !signals.revents().is_empty()) {
                let told = signals.and_then(|signals| signals.read().ok().flatten());
                if told.is_some_and(|told| told.signal != rustix::process::Signal::WINCH.as_raw()) {
                    return Ok(Some(Written::Told));
                }
                continue;
            }
            return Ok(None);
        }
    }
}

/// Whether nobody reads a descriptor any more, as its poll flags say.
pub(crate) fn is_closed(flags: PollFlags) -> bool {
    flags.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}
