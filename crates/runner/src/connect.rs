//! `outlast-hand connect`: standard input and output to the runner's socket, so that `ssh HOST outlast-hand connect` or a
//! container's exec is a connection to it. Where no runner serves the home, one is started.

use crate::reserve::LOCK;
use crate::serve::SOCKET;
use outlast_hand::files;
use outlast_hand::home::Home;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a runner that was just started has to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How long one that holds the home already may take from its lock to its socket.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);
/// How often that is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the runner may be silent after the caller's input has ended: longer than any call waits.
const LINGER: Duration = Duration::from_secs(60);
/// Bytes passed on at once.
const CHUNK: usize = 256 << 10;

/// Connects to the runner of a home, and starts one by `start` where there is none.
///
/// # Errors
/// What the system says, or that no runner came to listen.
pub fn runner(home: &Path, start: impl FnOnce() -> io::Result<()>) -> io::Result<OwnedFd> {
    let mut start = Some(start);
    // One that holds the home and does not listen there yet listens soon, or never.
    let mut until = Instant::now() + BEGINS_WITHIN;
    loop {
        if let Some(socket) = dial(home)? {
            return Ok(socket);
        }
        let held = Home::open_existing(home).map_err(io::Error::other)?;
        if !held.is_some_and(|home| is_served(&home).unwrap_or(false))
            && let Some(start) = start.take()
        {
            start()?;
            until = Instant::now() + LISTENS_WITHIN;
        }
        if Instant::now() >= until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, why_none_listens(home)));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn why_none_listens(home: &Path) -> String {
    let socket = home.join(SOCKET);
    match Home::open(home).map_err(io::Error::other).and_then(|home| is_served(&home)) {
        Ok(true) => format!(
            "a runner serves {}, but it does not listen on {}: start it with `--listen unix` beside its other \
             addresses",
            home.display(),
            socket.display()
        ),
        _ => format!("no runner came to listen on {}", socket.display()),
    }
}

/// The runner's socket; `None` where nobody listens there.
fn dial(home: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = match files::open_dir(home) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // By the open folder: the path of a socket may have 107 bytes, a home's may have more.
    use std::os::fd::AsRawFd;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
    match connect_socket(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a runner holds this home.
///
/// # Errors
/// What the system says.
pub fn is_served(home: &Home) -> io::Result<bool> {
    let lock = files::open_lock_file(home.dir(), LOCK)?;
    Ok(!files::try_lock(&lock, FlockOperation::NonBlockingLockShared)?)
}

/// Passes bytes both ways until the runner has closed, or whoever reads the output is gone. What was said before is passed
/// on first.
///
/// An input that ends says only that nothing more will be asked: the runner would take a closed side for a caller that
/// has gone, and would give up what it is about to answer. So it is told once nothing has come for [`LINGER`].
///
/// # Errors
/// What the system says.
pub fn pass_on(socket: &OwnedFd) -> io::Result<()> {
    let mut up = Pipe::new(rustix::stdio::stdin(), socket.as_fd())?;
    let mut down = Pipe::new(socket.as_fd(), rustix::stdio::stdout())?;
    loop {
        let moved = [up.step()?, down.step()?];
        if down.is_over() {
            return Ok(());
        }
        if moved != [false, false] {
            continue;
        }
        match wait(&up, &down)? {
            Woken::Moves => {}
            Woken::ReaderGone => return Ok(()),
            Woken::Silent => {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                up.told = true;
            }
        }
    }
}

struct Pipe<'f> {
    from: BorrowedFd<'f>,
    to: BorrowedFd<'f>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    told: bool,
}

impl<'f> Pipe<'f> {
    fn new(from: BorrowedFd<'f>, to: BorrowedFd<'f>) -> io::Result<Pipe<'f>> {
        for fd in [from, to] {
            let flags = rustix::fs::fcntl_getfl(fd)?;
            rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(Pipe { from, to, buffer: vec![0; CHUNK], start: 0, end: 0, ended: false, told: false })
    }

    /// Nothing is left to pass on and nothing will come.
    fn is_over(&self) -> bool {
        self.ended && self.start == self.end
    }

    /// Moves what can be moved without waiting.
    fn step(&mut self) -> io::Result<bool> {
        if self.start == self.end && !self.ended {
            match rustix::io::read(self.from, &mut self.buffer[..]) {
                Ok(0) => self.ended = true,
                Ok(count) => (self.start, self.end) = (0, count),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(Errno::CONNRESET) => self.ended = true,
                Err(errno) => return Err(errno.into()),
            }
            return Ok(true);
        }
        if self.start == self.end {
            return Ok(false);
        }
        match rustix::io::write(self.to, &self.buffer[self.start..self.end]) {
            Ok(count) => self.start += count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            // Nobody reads there any more.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                (self.start, self.end, self.ended) = (0, 0, true);
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(true)
    }

    fn wants(&self) -> Option<(BorrowedFd<'f>, rustix::event::PollFlags)> {
        use rustix::event::PollFlags;
        match (self.start == self.end, self.ended) {
            (true, true) => None,
            (true, false) => Some((self.from, PollFlags::IN)),
            (false, _) => Some((self.to, PollFlags::OUT)),
        }
    }
}

enum Woken {
    Moves,
    ReaderGone,
    Silent,
}

fn wait(up: &Pipe<'_>, down: &Pipe<'_>) -> io::Result<Woken> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // An end that hangs up says so whatever was asked for.
    let mut fds = vec![PollFd::from_borrowed_fd(down.to, PollFlags::empty())];
    let wanted = [up.wants(), down.wants()];
    fds.extend(wanted.iter().flatten().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
    let linger = (up.is_over() && !up.told)
        .then_some(Timespec { tv_sec: LINGER.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 });
    match poll(&mut fds, linger.as_ref()) {
        Ok(0) => Ok(Woken::Silent),
        Ok(_) if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => Ok(Woken::ReaderGone),
        Ok(_) | Err(Errno::INTR) => Ok(Woken::Moves),
        Err(errno) => Err(errno.into()),
    }
}
