//! Message sockets in the file system, for the keeper's control: bounded messages that arrive whole or not at
//! all.
//!
//! A socket is named by an open directory and a name in it, for the kernel's addresses end at 108 bytes and a
//! job's directory may lie deeper. Nothing here blocks and nothing raises `SIGPIPE`.

use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::raw;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The address of `name` in an open directory. It goes through the directory's own entry in `/proc`, whose
/// length does not depend on where the directory lies.
fn address(dir: BorrowedFd<'_>, name: &OsStr) -> Result<SocketAddrUnix, Errno> {
    let name = name.as_bytes();
    if name.is_empty() || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    SocketAddrUnix::new([format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat())
}

/// Makes two connected message sockets.
///
/// # Errors
/// `EMFILE` or `ENFILE` if no descriptor is free.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Listens as `name` in `dir`, with the permissions `mode`, which decide who may connect. Nobody can before
/// they are set.
///
/// # Errors
/// `EADDRINUSE` if the name is taken, by whatever, even by a socket whose owner has gone; `EINVAL` for a name
/// that is empty or has a slash, `ENAMETOOLONG` beyond some 80 bytes.
pub fn listen(dir: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::bind(&socket, &address(dir, name)?)?;
    rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// Takes one connection that waits; `None` if there is none now.
///
/// # Errors
/// `EMFILE` or `ENFILE` if no descriptor is free: the connection keeps waiting, so do not spin on it.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    loop {
        match rustix::net::accept_with(listener, FLAGS) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            // A peer that has given up already is no error of ours.
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Connects to the listener `name` in `dir`.
///
/// # Errors
/// `ENOENT` without such a name, `ECONNREFUSED` if nobody listens any more, `EACCES` without the right,
/// `EAGAIN` if too many connections wait there.
pub fn connect(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::connect(&socket, &address(dir, name)?)?;
    Ok(socket)
}

/// Sends one message.
///
/// # Errors
/// `EAGAIN` if the peer does not read (nothing is sent), `EPIPE` or `ECONNRESET` if it has closed, `EMSGSIZE`
/// beyond the socket's buffer, `EINVAL` for an empty message, which the other side could not tell from the
/// end.
pub fn send(socket: BorrowedFd<'_>, message: &[u8]) -> Result<(), Errno> {
    if message.is_empty() {
        return Err(Errno::INVAL);
    }
    loop {
        match rustix::net::send(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What a [`recv`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message, in this many first bytes of the buffer.
    Message(usize),
    /// A message of this length, which does not fit the buffer; the rest is lost.
    TooLong(usize),
    /// No message now.
    Nothing,
    /// The peer has closed, and all it sent has been read.
    Closed,
}

/// Receives one message.
///
/// # Errors
/// `ECONNRESET` if the peer closed without reading what we had sent; interruptions are retried.
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    loop {
        match rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(Received::Closed),
            Ok((kept, len)) if len > kept => return Ok(Received::TooLong(len)),
            Ok((_, len)) => return Ok(Received::Message(len)),
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Most descriptors that one message passes on.
pub const DESCRIPTORS: usize = 4;

/// Sends one message, and with it descriptors: the receiver gets its own of what they name.
///
/// # Errors
/// As [`send`]; `EINVAL` beyond [`DESCRIPTORS`].
pub fn send_with(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    if message.is_empty() || descriptors.len() > DESCRIPTORS {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    if !passed.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut passed, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one message with what descriptors came with it, which are closed on exec. Those of a message that does not
/// fit are closed.
///
/// # Errors
/// As [`recv`].
pub fn recv_with(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(Received, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    loop {
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut passed, flags) {
            Ok(got) => {
                let descriptors = passed.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                    _ => None,
                });
                let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
                return Ok(match got.bytes {
                    0 => (Received::Closed, descriptors),
                    bytes if got.flags.contains(ReturnFlags::TRUNC) => (Received::TooLong(bytes), Vec::new()),
                    bytes => (Received::Message(bytes), descriptors),
                });
            }
            Err(Errno::AGAIN) => return Ok((Received::Nothing, Vec::new())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Who is at the other end: as of its `connect`, `listen` or pair, whoever holds the descriptor now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process; `None` if that is not visible in our PID namespace.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Asks the kernel who is at the other end.
///
/// (Not `rustix`'s call of this name: its process id cannot be 0, as it is for a peer in another PID
/// namespace.)
///
/// # Errors
/// `ENOTSOCK`, `EBADF`; `ENOTCONN` for a socket that has no other end.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Peer, Errno> {
    let mut cred = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a struct of its layout.
    unsafe {
        raw::syscall(
            libc::SYS_getsockopt,
            [
                socket.as_raw_fd() as usize,
                libc::SOL_SOCKET as usize,
                libc::SO_PEERCRED as usize,
                cred.as_mut_ptr() as usize,
                std::ptr::from_mut(&mut len) as usize,
            ],
        )?;
    }
    // SAFETY: all-zero is a valid ucred, and the kernel has filled it in.
    let cred = unsafe { cred.assume_init() };
    if cred.uid == u32::MAX && cred.pid == 0 {
        return Err(Errno::NOTCONN);
    }
    Ok(Peer { pid: raw::pid(cred.pid), uid: cred.uid, gid: cred.gid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn open(dir: &std::path::Path) -> OwnedFd {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(dir, flags, Mode::empty()).unwrap()
    }

    #[test]
    fn a_socket_may_lie_deeper_than_its_address_could_say() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("d".repeat(120)).join("e".repeat(200));
        std::fs::create_dir_all(&deep).unwrap();
        let dir = open(&deep);
        let name = OsStr::new("control");
        assert_eq!(connect(dir.as_fd(), name).unwrap_err(), Errno::NOENT);
        let listener = listen(dir.as_fd(), name, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(listen(dir.as_fd(), name, Mode::RUSR).unwrap_err(), Errno::ADDRINUSE);
        let stat = rustix::fs::statat(&dir, name, AtFlags::empty()).unwrap();
        assert_eq!(stat.st_mode & 0o777, 0o600);

        assert!(accept(listener.as_fd()).unwrap().is_none());
        let client = connect(dir.as_fd(), name).unwrap();
        let server = accept(listener.as_fd()).unwrap().unwrap();
        for end in [&client, &server] {
            let peer = peer(end.as_fd()).unwrap();
            assert_eq!(peer.pid, Some(rustix::process::getpid()));
            assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        }
        send(client.as_fd(), b"stop").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(recv(server.as_fd(), &mut buffer).unwrap(), Received::Message(4));
        assert_eq!(&buffer[..4], b"stop");

        drop((listener, server));
        assert_eq!(connect(dir.as_fd(), name).unwrap_err(), Errno::CONNREFUSED);
        assert_eq!(recv(client.as_fd(), &mut buffer).unwrap(), Received::Closed);
        assert_eq!(send(client.as_fd(), b"x").unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn messages_keep_their_borders_and_nothing_blocks() {
        let (a, b) = pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(recv(b.as_fd(), &mut buffer).unwrap(), Received::Nothing);
        send(a.as_fd(), b"one").unwrap();
        send(a.as_fd(), b"much too long").unwrap();
        send(a.as_fd(), b"12345678").unwrap();
        assert_eq!(send(a.as_fd(), b""), Err(Errno::INVAL));
        assert_eq!(recv(b.as_fd(), &mut buffer).unwrap(), Received::Message(3));
        assert_eq!(recv(b.as_fd(), &mut buffer).unwrap(), Received::TooLong(13));
        assert_eq!(recv(b.as_fd(), &mut buffer).unwrap(), Received::Message(8));
        let mut sent = 0;
        let full = loop {
            match send(a.as_fd(), &[1; 1000]) {
                Ok(()) => sent += 1,
                Err(errno) => break errno,
            }
        };
        assert!(sent > 0);
        assert_eq!(full, Errno::AGAIN);
        drop(a);
    }

    #[test]
    fn descriptors_go_with_their_message() {
        let (a, b) = pair().unwrap();
        let (inner, other) = pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(recv_with(b.as_fd(), &mut buffer).unwrap().0, Received::Nothing);
        send_with(a.as_fd(), b"two", &[inner.as_fd(), inner.as_fd()]).unwrap();
        send_with(a.as_fd(), b"none", &[]).unwrap();
        send_with(a.as_fd(), b"much too long", &[inner.as_fd()]).unwrap();
        assert_eq!(send_with(a.as_fd(), b"five", &[inner.as_fd(); 5]), Err(Errno::INVAL));
        drop(inner);
        let (received, mut descriptors) = recv_with(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((received, descriptors.len()), (Received::Message(3), 2));
        let passed = descriptors.pop().unwrap();
        assert!(rustix::io::fcntl_getfd(&passed).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        send(passed.as_fd(), b"hello").unwrap();
        assert_eq!(recv(other.as_fd(), &mut buffer).unwrap(), Received::Message(5));
        assert_eq!(recv_with(b.as_fd(), &mut buffer).unwrap().0, Received::Message(4));
        let (received, none) = recv_with(b.as_fd(), &mut buffer).unwrap();
        assert!(matches!(received, Received::TooLong(_)) && none.is_empty(), "{received:?}");
        drop((passed, descriptors, a));
        assert_eq!(recv(other.as_fd(), &mut buffer).unwrap(), Received::Closed);
        assert_eq!(recv_with(b.as_fd(), &mut buffer).unwrap().0, Received::Closed);
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open(temp.path());
        for name in ["", "a/b", "../x"] {
            assert_eq!(listen(dir.as_fd(), OsStr::new(name), Mode::RUSR).unwrap_err(), Errno::INVAL);
        }
        let long = "n".repeat(107);
        assert_eq!(listen(dir.as_fd(), OsStr::new(&long), Mode::RUSR).unwrap_err(), Errno::NAMETOOLONG);
    }

    #[test]
    fn a_socket_without_another_end_has_no_peer() {
        let lone = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
        assert_eq!(peer(lone.as_fd()), Err(Errno::NOTCONN));
    }
}
