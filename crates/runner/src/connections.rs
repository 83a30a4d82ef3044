//! Listeners, connections, and HTTP on them.

use crate::answer::Answer;
use crate::call::answer_one;
use crate::dial::{Dialer, Pauses};
use crate::guard::Peer;
use crate::identity;
use crate::paced::{Moved, Paced};
use crate::serve::{FINISH_WITHIN, Ready, SOCKET, ServeError};
use crate::settings::{Listen, Settings, TlsFiles};
use crate::shared::{Shared, lock};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outlast_hand::files;
use outlast_wire::{address, limits, tls};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;

/// How long a header, or the next request on a silent HTTP/1.1 connection, may take.
const HEADER_WITHIN: Duration = Duration::from_secs(90);
/// A connection that was dialled counts as a good one once it has lasted so long: the pauses begin anew after it.
const LASTING: Duration = Duration::from_secs(10);
/// How long an answer may wait for its reader to take any of it.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// HTTP/2 pings, below the 60 s of common proxies.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long the answer to a ping may take.
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// The connections there are, bounded. A newcomer may bring a stop, so at the bound it is the one that was silent for
/// longest that goes; it lost a connection, nothing else.
pub(crate) struct Connections {
    most: usize,
    began: Instant,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    ended: Notify,
}

pub(crate) struct Open {
    moved: Moved,
    cut: Arc<Notify>,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Connections {
        Connections {
            most,
            began: Instant::now(),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    pub(crate) fn enter(self: &Arc<Connections>) -> Entered {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let moved = Moved::new(self.began);
        let cut = Arc::new(Notify::new());
        let mut open = lock(&self.open);
        if open.len() >= self.most
            && let Some(oldest) =
                open.iter().min_by_key(|(_, open)| open.moved.at()).map(|(number, _)| *number)
            && let Some(oldest) = open.remove(&oldest)
        {
            oldest.cut.notify_one();
        }
        open.insert(number, Open { moved: moved.clone(), cut: Arc::clone(&cut) });
        Entered { connections: Arc::clone(self), number, moved, cut }
    }

    pub(crate) async fn finish(&self, within: Duration) {
        let none_left = async {
            loop {
                let ended = self.ended.notified();
                if self.count() == 0 {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(within, none_left).await;
    }
}

pub(crate) struct Entered {
    connections: Arc<Connections>,
    number: u64,
    moved: Moved,
    pub(crate) cut: Arc<Notify>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.number);
        self.connections.ended.notify_waiters();
    }
}

pub(crate) fn listen(
    place: &Listen,
    settings: &Settings,
    state: &Arc<Shared>,
    connections: &Arc<Connections>,
    listening: &mut Ready,
) -> Result<(), ServeError> {
    match place {
        Listen::Unix(path) => {
            let path = path.clone().unwrap_or_else(|| settings.home.join(SOCKET));
            let failed = |source| ServeError::Listen { place: format!("unix:{}", path.display()), source };
            let (listener, bound) = listen_unix(&path).map_err(failed)?;
            listening.addresses.push(format!("unix:{}", path.display()));
            let allowed = settings.allow_uids.clone();
            tokio::spawn(accept_unix(listener, bound, allowed, Arc::clone(state), Arc::clone(connections)));
        }
        Listen::Tls { at, tls: files } => {
            let failed = |source| ServeError::Listen { place: format!("tls:{at}"), source };
            let access = |error: &dyn std::fmt::Display| ServeError::Access(error.to_string());
            let (identity, fingerprint) = match &files.identity {
                Some((chain, key)) => {
                    (tls::Identity::from_files(chain, key).map_err(|error| access(&error))?, None)
                }
                None => {
                    let names = ["localhost".to_owned(), at.ip().to_string()];
                    let (identity, fingerprint) =
                        identity::load_or_make(&settings.home, &names).map_err(|error| access(&error))?;
                    (identity, Some(fingerprint.to_string()))
                }
            };
            let clients = match trust_of(files)? {
                Some(trust) => tls::Clients::Required(trust),
                None if settings.token_file.is_some() => tls::Clients::None,
                None => {
                    return Err(ServeError::Access(format!(
                        "tls:{at}: nothing says who may call: give --token-file, --client-ca or --client-pin"
                    )));
                }
            };
            let certified = matches!(clients, tls::Clients::Required(_));
            let acceptor = tls::acceptor(&identity, &clients).map_err(|error| access(&error))?;
            let listener = std::net::TcpListener::bind(at).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            listening.addresses.push(format!("tls:{bound}"));
            if let Some(fingerprint) = fingerprint {
                listening.fingerprint = Some(fingerprint);
            }
            let acceptor = tokio_rustls::TlsAcceptor::from(acceptor);
            tokio::spawn(accept_tls(
                listener,
                acceptor,
                certified,
                Arc::clone(state),
                Arc::clone(connections),
            ));
        }
    }
    Ok(())
}

pub(crate) fn trust_of(files: &TlsFiles) -> Result<Option<tls::Trust>, ServeError> {
    let access = |error: &dyn std::fmt::Display| ServeError::Access(error.to_string());
    if let Some(path) = &files.authorities {
        return Ok(Some(tls::Trust::authorities_from_file(path).map_err(|error| access(&error))?));
    }
    if files.pins.is_empty() {
        return Ok(None);
    }
    let pins: Result<Vec<tls::Fingerprint>, _> = files.pins.iter().map(|pin| pin.parse()).collect();
    Ok(Some(tls::Trust::Pins(pins.map_err(|error| access(&error))?)))
}

/// A socket that this runner made: it goes with the runner, and nothing that has come to stand in its place.
pub(crate) struct Bound {
    dir: OwnedFd,
    name: OsString,
    made: (u64, u64),
}

impl Drop for Bound {
    fn drop(&mut self) {
        let there = rustix::fs::statat(&self.dir, &self.name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == self.made) {
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, rustix::fs::AtFlags::empty());
        }
    }
}

/// Listens on a Unix socket that its owner alone may connect to. The runner's lock is held, so a socket that is there is
/// one that was left behind.
pub(crate) fn listen_unix(path: &Path) -> io::Result<(UnixListener, Bound)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = files::open_dir(parent)?;
    match rustix::fs::statat(&dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket => {
            rustix::fs::unlinkat(&dir, name, rustix::fs::AtFlags::empty())?;
        }
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    // By the open folder: the path of a socket may have 107 bytes, a home's may have more.
    let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    let listener = std::os::unix::net::UnixListener::bind(&short)?;
    let made = rustix::fs::statat(&dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
    let bound = Bound { dir, name: name.to_owned(), made: (made.st_dev, made.st_ino) };
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, bound))
}

pub(crate) async fn accept_unix(
    listener: UnixListener,
    _bound: Bound,
    allowed: Vec<u32>,
    state: Arc<Shared>,
    connections: Arc<Connections>,
) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, perhaps: the longest silent connection makes room.
                drop(connections.enter());
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        if peer.uid() != own && peer.uid() != 0 && !allowed.contains(&peer.uid()) {
            continue;
        }
        // Output is read in pieces of up to a MiB: one that fits costs one turn of the loop.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 1 << 20);
        let peer = Peer::Local { uid: peer.uid(), pid: peer.pid().unwrap_or(0) };
        tokio::spawn(attend(stream, peer, Arc::clone(&state), connections.enter()));
    }
}

pub(crate) async fn accept_tls(
    listener: TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    certified: bool,
    state: Arc<Shared>,
    connections: Arc<Connections>,
) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                drop(connections.enter());
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = address::tune_tcp(&stream);
        let (acceptor, state, entered) = (acceptor.clone(), Arc::clone(&state), connections.enter());
        tokio::spawn(async move {
            let cut = Arc::clone(&entered.cut);
            let shaken = tokio::time::timeout(limits::HANDSHAKE_WITHIN, acceptor.accept(stream));
            let stream = tokio::select! {
                shaken = shaken => match shaken {
                    Ok(Ok(stream)) => stream,
                    _ => return,
                },
                () = cut.notified() => return,
            };
            let peer = match stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()) {
                Some(certificate) if certified => {
                    Peer::Certified(tls::Fingerprint::of(certificate).to_string())
                }
                _ => Peer::Unproved,
            };
            attend(stream, peer, state, entered).await;
        });
    }
}

/// Dials a brain, serves it on that connection, and dials again.
pub(crate) async fn dial_for_ever(dialer: Dialer, state: Arc<Shared>, connections: Arc<Connections>) {
    let mut pauses = Pauses::default();
    let mut closing = state.closing.clone();
    while !*closing.borrow() {
        let attached = tokio::select! {
            attached = dialer.dial() => attached,
            _ = closing.changed() => return,
        };
        match attached {
            Ok(stream) => {
                let attached = Instant::now();
                let peer = Peer::Certified(dialer.name().to_owned());
                attend(stream, peer, Arc::clone(&state), connections.enter()).await;
                if attached.elapsed() >= LASTING {
                    pauses = Pauses::default();
                }
            }
            Err(error) => eprintln!("outlast-hand: {}: {error}", dialer.name()),
        }
        tokio::select! {
            () = tokio::time::sleep(pauses.next()) => {}
            _ = closing.changed() => return,
        }
    }
}

/// Serves one connection to its end.
pub(crate) async fn attend<S>(stream: S, peer: Peer, state: Arc<Shared>, entered: Entered)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = TokioIo::new(Paced::new(stream, READ_WITHIN, entered.moved.clone()));
    let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    // Answers to calls that were sent one behind the other are not gathered before they go: that would copy them, past the
    // memory they were promised.
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WITHIN)
        .max_buf_size(limits::HEADERS as usize);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(limits::HEADERS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(1 << 20)
        .max_send_buf_size(1 << 20)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    let mut closing = state.closing.clone();
    let cut = Arc::clone(&entered.cut);
    let service = service_fn(move |request| {
        let (state, peer, cut) = (Arc::clone(&state), peer.clone(), Arc::clone(&cut));
        async move { Ok::<Answer, std::convert::Infallible>(answer_one(&state, &peer, &cut, request).await) }
    });
    let serving = http.serve_connection(stream, service);
    let mut serving = std::pin::pin!(serving);
    loop {
        tokio::select! {
            _ = serving.as_mut() => return,
            () = entered.cut.notified() => return,
            _ = closing.changed() => serving.as_mut().graceful_shutdown(),
        }
        if *closing.borrow() {
            // What is under way is answered at once; a peer that does not close is left.
            let _ = tokio::time::timeout(FINISH_WITHIN, serving.as_mut()).await;
            return;
        }
    }
}
