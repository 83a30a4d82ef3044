//! Pseudo-terminals for `--tty`, and raw mode for the terminal of a person who is attached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, Termios, Winsize};

/// The two ends of a pseudo-terminal, both closed on exec.
#[derive(Debug)]
pub struct Pair {
    /// The keeper's end. Once no other end is open, reading it gives `EIO`, which here means the end of
    /// output.
    pub master: OwnedFd,
    /// The command's end.
    pub slave: OwnedFd,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// Opens a pseudo-terminal of the given size. It becomes nobody's controlling terminal by that; see
/// [`crate::spawn::Spawn::controlling_terminal`].
///
/// The command's end is opened through the keeper's, not by its name in `/dev/pts`, which may be another one
/// in another mount namespace.
///
/// # Errors
/// `ENOSPC` if there are no more terminals, `ENOENT` without `/dev/ptmx`, `EMFILE` if no descriptor is free.
pub fn open(size: Size) -> Result<Pair, Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    set_size(master.as_fd(), size)?;
    Ok(Pair { master, slave })
}

/// Sets the size of a terminal, by either end; its foreground processes get `SIGWINCH` if that changes it.
///
/// # Errors
/// `ENOTTY` if it is no terminal.
pub fn set_size(terminal: BorrowedFd<'_>, size: Size) -> Result<(), Errno> {
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size)
}

/// Tells the size of a terminal.
///
/// # Errors
/// `ENOTTY` if it is no terminal.
pub fn size(terminal: BorrowedFd<'_>) -> Result<Size, Errno> {
    let size = rustix::termios::tcgetwinsize(terminal)?;
    Ok(Size { rows: size.ws_row, cols: size.ws_col })
}

/// A terminal in raw mode: every byte typed is passed on, nothing is echoed or turned into a signal. Dropping
/// it restores what was.
#[derive(Debug)]
pub struct RawMode<'fd> {
    terminal: BorrowedFd<'fd>,
    before: Termios,
}

impl<'fd> RawMode<'fd> {
    /// Puts a terminal into raw mode.
    ///
    /// # Errors
    /// `ENOTTY` if it is no terminal.
    pub fn enter(terminal: BorrowedFd<'fd>) -> Result<Self, Errno> {
        let before = rustix::termios::tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(terminal, OptionalActions::Flush, &raw)?;
        Ok(Self { terminal, before })
    }

    /// Restores the terminal and says whether that worked, which dropping cannot.
    ///
    /// # Errors
    /// `EIO` if the terminal has gone.
    pub fn leave(self) -> Result<(), Errno> {
        self.restore()
    }

    fn restore(&self) -> Result<(), Errno> {
        rustix::termios::tcsetattr(self.terminal, OptionalActions::Flush, &self.before)
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // After `leave` this is done twice, to no effect. A terminal that has gone needs no restoring.
        let _ = self.restore();
    }
}

#[cfg(test)]
mod tests {
    use rustix::termios::LocalModes;

    use super::*;

    #[test]
    fn both_ends_agree_on_size_and_bytes() {
        let pair = open(Size { rows: 24, cols: 80 }).unwrap();
        assert_eq!(size(pair.slave.as_fd()).unwrap(), Size { rows: 24, cols: 80 });
        set_size(pair.slave.as_fd(), Size { rows: 50, cols: 132 }).unwrap();
        assert_eq!(size(pair.master.as_fd()).unwrap(), Size { rows: 50, cols: 132 });
        assert_eq!(rustix::io::write(&pair.slave, b"hello").unwrap(), 5);
        let mut buffer = [0; 16];
        assert_eq!(rustix::io::read(&pair.master, &mut buffer).unwrap(), 5);
        drop(pair.slave);
        assert_eq!(rustix::io::read(&pair.master, &mut buffer), Err(Errno::IO));
    }

    #[test]
    fn raw_mode_ends_with_its_guard() {
        let pair = open(Size { rows: 24, cols: 80 }).unwrap();
        let echo = || rustix::termios::tcgetattr(&pair.slave).unwrap().local_modes.contains(LocalModes::ECHO);
        assert!(echo());
        let raw = RawMode::enter(pair.slave.as_fd()).unwrap();
        assert!(!echo());
        drop(raw);
        assert!(echo());
        RawMode::enter(pair.slave.as_fd()).unwrap().leave().unwrap();
        assert!(echo());
        let file = tempfile::tempfile().unwrap();
        assert_eq!(RawMode::enter(file.as_fd()).unwrap_err(), Errno::NOTTY);
    }
}
