//! The run of the program: listeners, connections, HTTP.

use crate::admit::{self, Answered, Ground};
use crate::answer::{self, Answer};
use crate::dial::Dialer;
use crate::guard::{self, Admittance, Guard, Novelty, Peer};
use crate::hub::{Entry, Hub};
use crate::identity;
use crate::jobs;
use crate::output::{self, Readers, Want};
use crate::paced::{Moved, Paced};
use crate::pool::{Lane, Lanes, NotDone};
use crate::reserve::{self, Reserve};
use crate::route::{Query, Route, route};
use crate::settings::{Listen, OPEN_JOBS, Settings};
use crate::tokens::Tokens;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outlast_core::id::{Cursor, JobId};
use outlast_hand::home::{Home, HomeError, fill_random};
use outlast_hand::{brains, clock, fence, files, gc, marks, probe};
use outlast_sys::Signal;
use outlast_sys::signals::SignalFd;
use outlast_wire::admission::Admission;
use outlast_wire::hello::{Hello, HelloRequest, Limits, Offer};
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{self, Acknowledge, Resize, Seal, Sealed, Spooled, StdinTaken};
use outlast_wire::view::{Acknowledged, Arrival, FenceView, JobView};
use outlast_wire::{address, call, limits, records, tls, version};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// The name of the runner's socket in its home.
pub const SOCKET: &str = "runner.sock";

/// How long a header, or the next request on a silent HTTP/1.1 connection, may take.
const HEADER_WITHIN: Duration = Duration::from_secs(90);
/// How long a body may take from one piece to the next.
const BODY_PIECE_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer may wait for its reader to take any of it.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// HTTP/2 pings, below the 60 s of common proxies.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long the answer to a ping may take.
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// How long connections have to finish when the runner ends.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// Memory for all request bodies under way together, in pieces.
const BODY_MEMORY: usize = 32 << 20;
/// One piece of that.
const BODY_PIECE: usize = 64 << 10;
/// A body as small as the head of a call, which is not counted either, needs no memory promised: so no stop waits for what
/// slow bodies hold.
const SMALL_BODY: u64 = 4 << 10;
/// How long a body waits for memory.
const MEMORY_WITHIN: Duration = Duration::from_secs(10);
/// How often an answer that waits for memory has the oldest one that holds some cut off.
const CUT_EVERY: Duration = Duration::from_millis(200);
/// How long that one must have held it.
const HELD_AT_LEAST: Duration = Duration::from_secs(5);
/// How soon a follower looks again though nobody told it of output: word of it can be lost while it begins to follow.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// How often input is offered again to a command that does not read.
const OFFER_AGAIN: Duration = Duration::from_millis(10);
/// How often the home is tidied, at most (the hand itself keeps to once an hour).
const TIDY_EVERY: Duration = Duration::from_secs(600);

/// Why a runner could not run.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The home.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another runner has it.
    #[error("a runner serves {} already", .0.display())]
    Served(PathBuf),
    /// A place to listen at.
    #[error("cannot listen on {place}")]
    Listen {
        /// Where.
        place: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Who may call.
    #[error("{0}")]
    Access(String),
    /// The system.
    #[error("{doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// What a runner says of itself once it listens.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The addresses, as clients write them.
    pub addresses: Vec<String>,
    /// The fingerprint of its certificate, where it made one.
    pub fingerprint: Option<String>,
}

/// Answers that hold memory, the oldest first, and how to cut the connection that each goes to.
#[derive(Default)]
struct Holders {
    next: AtomicU64,
    by_age: Mutex<BTreeMap<u64, (Instant, Arc<Notify>)>>,
}

impl Holders {
    fn enter(self: &Arc<Holders>, cut: Arc<Notify>) -> Holder {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut by_age = self.by_age.lock().unwrap_or_else(PoisonError::into_inner);
        by_age.insert(number, (Instant::now(), cut));
        Holder { holders: Arc::clone(self), number }
    }

    /// Cuts whoever has been at an answer for longest, where that is long: it lost a connection, and goes on by cursor.
    fn cut_oldest(&self) {
        let by_age = self.by_age.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, cut)) = by_age.values().next()
            && since.elapsed() >= HELD_AT_LEAST
        {
            cut.notify_one();
        }
    }
}

/// The place of one answer among [`Holders`].
struct Holder {
    holders: Arc<Holders>,
    number: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.holders.by_age.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

struct Shared {
    home: Arc<Home>,
    hub: Arc<Hub>,
    lanes: Lanes,
    guard: Guard,
    ground: Arc<Ground>,
    readers: Arc<Readers>,
    hello: Hello,
    bodies: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    holders: Arc<Holders>,
    reading: AtomicUsize,
    closing: watch::Receiver<bool>,
    began: Instant,
    last_request: AtomicU64,
}

/// Runs a runner until it is told to end (SIGTERM, SIGINT) or has been idle for long enough. `ready` is called once it
/// listens everywhere.
///
/// # Errors
/// [`ServeError`]. Jobs and keepers are not touched by it.
pub fn serve(settings: Settings, ready: impl FnOnce(&Ready)) -> Result<(), ServeError> {
    let system = |doing| move |source| ServeError::System { doing, source };
    // Before any thread exists, so that they all have them blocked.
    let signals = SignalFd::new(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE])
        .map_err(|errno| system("watching for signals")(errno.into()))?;
    let home = Home::open_as(&settings.home, settings.sandbox.as_deref(), settings.sandbox_generation)?;
    let reserve = reserve::take(&home, crate::settings::CONNECTIONS).map_err(system("taking the home"))?;
    let Some(reserve) = reserve else { return Err(ServeError::Served(settings.home)) };
    // Before any thread exists: what a namespace needs can be tried by a process with one thread only.
    let hello = hello_of(&home, &reserve).map_err(system("looking around"))?;
    let lanes = Lanes::start().map_err(system("starting threads"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(system("starting the event loop"))?;
    let home = Arc::new(home);
    let served = runtime.block_on(run(settings, Arc::clone(&home), lanes, &reserve, hello, signals, ready));
    drop(runtime);
    reserve.release();
    served
}

async fn run(
    settings: Settings,
    home: Arc<Home>,
    lanes: Lanes,
    reserve: &Reserve,
    hello: Hello,
    signals: SignalFd,
    ready: impl FnOnce(&Ready),
) -> Result<(), ServeError> {
    let tokens = match &settings.token_file {
        None => None,
        Some(path) => Some(Tokens::open(path).map_err(|error| ServeError::Access(error.to_string()))?),
    };
    let (close, closing) = watch::channel(false);
    let hub = Arc::new(Hub::new(Arc::clone(&home), lanes.clone()));
    let state = Arc::new(Shared {
        hub: Arc::clone(&hub),
        guard: Guard::new(tokens),
        ground: Arc::new(Ground {
            environment: settings.environment.clone(),
            keeper: settings.keeper.clone(),
        }),
        readers: Arc::default(),
        hello,
        bodies: Arc::new(Semaphore::new(BODY_MEMORY / BODY_PIECE)),
        answers: Arc::new(Semaphore::new((output::MEMORY / output::LEAST) as usize)),
        holders: Arc::default(),
        reading: AtomicUsize::new(0),
        closing: closing.clone(),
        began: Instant::now(),
        last_request: AtomicU64::new(0),
        lanes,
        home,
    });
    let connections = Arc::new(Connections::new(reserve.connections));
    let mut listening = Ready { addresses: Vec::new(), fingerprint: None };
    for place in &settings.listen {
        listen(place, &settings, &state, &connections, &mut listening)?;
    }
    for to in &settings.dial {
        let dialer = Dialer::new(to, trust_of(&to.tls)?, &state.home)?;
        tokio::spawn(dial_for_ever(dialer, Arc::clone(&state), Arc::clone(&connections)));
    }
    tokio::spawn(Arc::clone(&hub).sweep_for_ever());
    tokio::spawn(tidy_for_ever(Arc::clone(&state)));
    ready(&listening);
    wait_for_end(&signals, &state, &connections, settings.idle_exit).await?;
    let _ = close.send(true);
    connections.finish(FINISH_WITHIN).await;
    Ok(())
}

async fn wait_for_end(
    signals: &SignalFd,
    state: &Shared,
    connections: &Connections,
    idle_exit: Option<Duration>,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::System { doing: "watching for signals", source };
    #[expect(deprecated, reason = "its successor is unsafe code; the descriptor is borrowed for as long")]
    let told = AsyncFd::new(signals.as_fd()).map_err(failed)?;
    let mut idle_since: Option<Instant> = None;
    let mut told_problem = None;
    loop {
        let look = tokio::time::timeout(Duration::from_secs(1), told.readable()).await;
        if let Ok(ready) = look {
            let mut ready = ready.map_err(failed)?;
            while let Ok(Some(received)) = signals.read() {
                let ends = [Signal::TERM.as_raw(), Signal::INT.as_raw()];
                if ends.contains(&received.signal) {
                    return Ok(());
                }
            }
            ready.clear_ready();
        }
        let problem = state.guard.problem();
        if problem != told_problem {
            eprintln!("outlast-hand: {}", problem.as_deref().unwrap_or("the token file is read again"));
            told_problem = problem;
        }
        let Some(most) = idle_exit else { continue };
        if connections.count() > 0 || state.hub.open_jobs() > 0 {
            idle_since = None;
        } else if idle_since.get_or_insert_with(Instant::now).elapsed() >= most {
            return Ok(());
        }
    }
}

async fn tidy_for_ever(state: Arc<Shared>) {
    loop {
        tokio::time::sleep(TIDY_EVERY).await;
        let home = Arc::clone(&state.home);
        let _ = state.lanes.settle.run(move || gc::collect_if_due(&home)).await;
    }
}

fn hello_of(home: &Home, reserve: &Reserve) -> io::Result<Hello> {
    let offers = probe::probe(home);
    let offer =
        |offer: probe::Offer| Offer { name: offer.name, available: offer.available, detail: offer.detail };
    Ok(Hello {
        protocol: 0,
        supported: version::SUPPORTED.to_vec(),
        offered: Vec::new(),
        runner_version: env!("CARGO_PKG_VERSION").to_owned(),
        runner_pid: std::process::id(),
        runner_epoch: reserve.epoch,
        sandbox: home.sandbox().to_owned(),
        sandbox_generation: home.sandbox_generation(),
        boot_id: reserve::boot()?,
        now_ms: 0,
        mutation_mark: 0,
        uid: rustix::process::geteuid().as_raw(),
        containment: offers.containment.into_iter().map(offer).collect(),
        job_limits: offers.limits.into_iter().map(offer).collect(),
        other_user: offers.other_user,
        file_system: offers.storage.kind,
        durable: offers.storage.durable,
        kernel: offers.kernel,
        limits: Limits {
            json_body: limits::JSON_BODY,
            stdin_body: limits::STDIN_BODY,
            spool_body: limits::SPOOL_BODY,
            output: limits::OUTPUT_AT_MOST,
            list: limits::LIST_AT_MOST,
            wait_ms: u64::try_from(limits::WAIT_AT_MOST.as_millis()).unwrap_or(u64::MAX),
            expiry_ms: u64::try_from(limits::EXPIRY_AT_MOST.as_millis()).unwrap_or(u64::MAX),
            connections: u32::try_from(reserve.connections).unwrap_or(u32::MAX),
        },
    })
}

// ---- connections ----

/// The connections there are, bounded. A newcomer may bring a stop, so at the bound it is the one that was silent for
/// longest that goes; it lost a connection, nothing else.
struct Connections {
    most: usize,
    began: Instant,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    ended: Notify,
}

struct Open {
    moved: Moved,
    cut: Arc<Notify>,
}

impl Connections {
    fn new(most: usize) -> Connections {
        Connections {
            most,
            began: Instant::now(),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn enter(self: &Arc<Connections>) -> Entered {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let moved = Moved::new(self.began);
        let cut = Arc::new(Notify::new());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
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

    async fn finish(&self, within: Duration) {
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

struct Entered {
    connections: Arc<Connections>,
    number: u64,
    moved: Moved,
    cut: Arc<Notify>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.connections.ended.notify_waiters();
    }
}

fn listen(
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

fn trust_of(files: &crate::settings::TlsFiles) -> Result<Option<tls::Trust>, ServeError> {
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
struct Bound {
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
fn listen_unix(path: &Path) -> io::Result<(UnixListener, Bound)> {
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

async fn accept_unix(
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

async fn accept_tls(
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
async fn dial_for_ever(dialer: Dialer, state: Arc<Shared>, connections: Arc<Connections>) {
    let mut pauses = crate::dial::Pauses::default();
    let mut closing = state.closing.clone();
    while !*closing.borrow() {
        let attached = tokio::select! {
            attached = dialer.dial() => attached,
            _ = closing.changed() => return,
        };
        match attached {
            Ok(stream) => {
                pauses = crate::dial::Pauses::default();
                let peer = Peer::Certified(dialer.name().to_owned());
                attend(stream, peer, Arc::clone(&state), connections.enter()).await;
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
async fn attend<S>(stream: S, peer: Peer, state: Arc<Shared>, entered: Entered)
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

// ---- one call ----

async fn answer_one(
    state: &Arc<Shared>,
    peer: &Peer,
    cut: &Arc<Notify>,
    request: Request<Incoming>,
) -> Answer {
    let now = u64::try_from(state.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    state.last_request.store(now, Ordering::Relaxed);
    match do_one(state, peer, cut, request).await {
        Ok(answer) => answer,
        Err(problem) => answer::problem(&problem),
    }
}

async fn do_one(
    state: &Arc<Shared>,
    peer: &Peer,
    cut: &Arc<Notify>,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let route = route(&head.method, head.uri.path(), head.uri.query())?;
    if route == Route::Hello {
        state.guard.caller(peer, &head.headers)?;
        return hello(state, read_json(state, &head.headers, body).await?.0);
    }
    let job = match &route {
        Route::Job(id, _) | Route::Output(id, _) | Route::Stdin(id, _) => Some(*id),
        Route::Stop(id) | Route::Settle(id) | Route::Resize(id) | Route::Acknowledge(id) => Some(*id),
        _ => None,
    };
    let admittance = state.guard.admit(&state.home, peer, &head.headers, route.changes(), job)?;
    let call = Call { state, admittance, cut, headers: &head.headers, path: head.uri.path(), job };
    match route {
        Route::Hello => Err(answer::internal(&"hello twice")),
        Route::Job(id, query) => call.look(id, query).await,
        Route::List(query) => call.list(query).await,
        Route::Output(id, query) => call.read(id, query).await,
        Route::FenceView => call.fence_view().await,
        Route::Admit(query) => call.admit(body, query).await,
        Route::Stop(id) => call.stop(body, id).await,
        Route::Settle(id) => call.settle(body, id).await,
        Route::Stdin(id, query) => call.stdin(body, id, query).await,
        Route::Resize(id) => call.resize(body, id).await,
        Route::Acknowledge(id) => call.acknowledge(body, id).await,
        Route::Spool => call.spool(body).await,
        Route::Fence => call.fence(body).await,
        Route::Seal => call.seal(body).await,
    }
}

fn hello(state: &Shared, asked: HelloRequest) -> Result<Answer, Problem> {
    if asked.versions.is_empty() || asked.versions.len() > version::OFFER_AT_MOST || asked.client.len() > 200
    {
        let detail =
            format!("offer 1 to {} versions, and a client of 200 bytes at most", version::OFFER_AT_MOST);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_HELLO", detail));
    }
    let protocol = version::choose(&asked.versions, version::SUPPORTED)
        .map_err(|error| Problem::new(StatusCode::CONFLICT, "NO_COMMON_VERSION", error.to_string()))?;
    let mutation_mark = marks::latest(state.home.dir())
        .map_err(|error| answer::storage("reading the mutation marks", &error))?
        .0;
    Ok(answer::json(&Hello {
        protocol,
        offered: asked.versions,
        now_ms: clock::unix_now().0 / 1000,
        mutation_mark,
        ..state.hello.clone()
    }))
}

fn too_large(limit: u64) -> Problem {
    let detail = format!("the body is larger than the limit of {limit} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", detail)
}

fn busy(not_done: NotDone) -> Problem {
    match not_done {
        NotDone::Full => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", "too many calls wait already").retryable()
        }
        NotDone::Failed => answer::internal(&"the call failed in the runner"),
    }
}

/// The length that a call announces for its body.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Reads a body up to `limit` bytes, which it announces or is counted at. Memory is taken before it is read.
async fn read_body(
    state: &Shared,
    headers: &HeaderMap,
    mut body: Incoming,
    limit: u64,
) -> Result<Bytes, Problem> {
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let most = usize::try_from(announced.unwrap_or(limit)).unwrap_or(usize::MAX);
    let pieces = u32::try_from(most.div_ceil(BODY_PIECE).max(1)).unwrap_or(u32::MAX);
    let _memory = match announced {
        Some(length) if length <= SMALL_BODY => None,
        _ => match tokio::time::timeout(MEMORY_WITHIN, state.bodies.acquire_many(pieces)).await {
            Ok(Ok(memory)) => Some(memory),
            _ => return Err(busy(NotDone::Full)),
        },
    };
    let mut read = BytesMut::new();
    while let Some(piece) = next_piece(&mut body).await? {
        if read.len() as u64 + piece.len() as u64 > limit {
            return Err(too_large(limit));
        }
        read.extend_from_slice(&piece);
    }
    Ok(read.freeze())
}

/// The next piece of a body.
async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
    loop {
        let frame = tokio::time::timeout(BODY_PIECE_WITHIN, body.frame()).await.map_err(|_| {
            let detail = format!("the body did not go on for {} s", BODY_PIECE_WITHIN.as_secs());
            Problem::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT", detail).retryable()
        })?;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, "BODY_BROKEN", format!("the body broke off: {error}"))
                .retryable()
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// A JSON body, and the bytes it was.
async fn read_json<T: DeserializeOwned>(
    state: &Shared,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(T, Bytes), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or(b"application/json");
    if !kind.starts_with(b"application/json") {
        let detail = "the body must be application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "NOT_JSON", detail));
    }
    let bytes = read_body(state, headers, body, limits::JSON_BODY).await?;
    let value = serde_json::from_slice(&bytes).map_err(|error| {
        // What serde says of a value may quote it, and it may be a secret: the place is told, not the text.
        let what = match error.classify() {
            serde_json::error::Category::Data => "says something that does not belong there",
            _ => "is no JSON",
        };
        let field = error.to_string();
        let field = field.strip_prefix("missing field ").or_else(|| field.strip_prefix("unknown field "));
        let field = field.map(|field| format!(" ({})", field.chars().take(80).collect::<String>()));
        let detail = format!(
            "the body {what} at line {} column {}{}",
            error.line(),
            error.column(),
            field.unwrap_or_default()
        );
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_BODY", detail)
    })?;
    Ok((value, bytes))
}

struct Call<'a> {
    state: &'a Arc<Shared>,
    admittance: Admittance,
    /// Cuts its connection.
    cut: &'a Arc<Notify>,
    headers: &'a HeaderMap,
    path: &'a str,
    job: Option<JobId>,
}

impl Call<'_> {
    async fn on<T, F>(&self, lane: &Lane, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Problem> + Send + 'static,
    {
        lane.run(work).await.map_err(busy)?
    }

    /// Remembers the request; `true` where it is a repetition. An id that another request had is refused. `what` is what
    /// its query asks for; how long it waits makes no other request of it.
    fn note(&self, what: &str, body: &[u8]) -> Result<bool, Problem> {
        let mut hasher = blake3::Hasher::new();
        for part in [self.path.as_bytes(), what.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        match self.state.guard.novelty(&self.admittance, *hasher.finalize().as_bytes()) {
            Novelty::New => Ok(false),
            Novelty::Again => Ok(true),
            Novelty::Reused => {
                if let Some(facts) = &self.admittance.facts {
                    let (home, caller) = (&self.state.home, &self.admittance.caller);
                    let why = "its request id belongs to another request";
                    guard::record(home, caller, &self.admittance.scope, facts, self.job, why);
                }
                let detail = "this request id belongs to another request: it was dropped and recorded";
                Err(Problem::new(StatusCode::CONFLICT, "REQUEST_ID_REUSED", detail))
            }
        }
    }

    /// A stale call is recorded before it is answered.
    fn dropped(&self, why: &str) {
        if let Some(facts) = &self.admittance.facts {
            let (home, caller) = (&self.state.home, &self.admittance.caller);
            guard::record(home, caller, &self.admittance.scope, facts, self.job, why);
        }
    }

    async fn json<T: DeserializeOwned>(&self, body: Incoming) -> Result<(T, bool), Problem> {
        let (value, bytes) = read_json(self.state, self.headers, body).await?;
        let again = self.note("", &bytes)?;
        Ok((value, again))
    }

    async fn view(&self, id: JobId, arrival: Option<Arrival>) -> Result<JobView, Problem> {
        let (home, hub) = (Arc::clone(&self.state.home), Arc::clone(&self.state.hub));
        let scope = self.admittance.scope.clone();
        self.on(&self.state.lanes.read, move || jobs::view(&hub, &jobs::find(&home, &scope, id)?, arrival))
            .await
    }

    /// Looks, and looks again whenever there is word of the job, until what is waited for is there.
    async fn wait_for(
        &self,
        id: JobId,
        entry: Option<Arc<Entry>>,
        query: &Query,
        arrival: Option<Arrival>,
    ) -> Result<JobView, Problem> {
        let until = tokio::time::Instant::now() + query.wait;
        let mut closing = self.state.closing.clone();
        // A job that was launched just now is not looked at before there is word of it.
        let mut fresh = arrival == Some(Arrival::Admitted) && entry.is_some() && !query.wait.is_zero();
        let mut entry = entry;
        loop {
            let mut seen = match &entry {
                Some(entry) => entry.seen(),
                None if query.wait.is_zero() => return self.view(id, arrival).await,
                None => {
                    let view = self.view(id, arrival).await?;
                    if jobs::is_reached(query.until, &view) {
                        return Ok(view);
                    }
                    entry = Some(self.state.hub.entry(id));
                    continue;
                }
            };
            let before = *seen.borrow_and_update();
            if !std::mem::take(&mut fresh) || jobs::is_word(query.until, Default::default(), before) {
                let mut view = self.view(id, arrival).await?;
                if let Some(entry) = &entry {
                    jobs::hasten(&mut view, before, entry.exit());
                }
                if jobs::is_reached(query.until, &view) || *closing.borrow() {
                    return Ok(view);
                }
                // Looked at in the moment between its keeper's end and the entry's.
                if before.settled {
                    return Ok(view);
                }
            }
            let word = async {
                loop {
                    if seen.changed().await.is_err() {
                        return;
                    }
                    let now = *seen.borrow_and_update();
                    if now != before && jobs::is_word(query.until, before, now) {
                        return;
                    }
                }
            };
            let over = tokio::select! {
                () = word => false,
                () = tokio::time::sleep_until(until) => true,
                _ = closing.changed() => true,
            };
            if over {
                return self.view(id, arrival).await;
            }
        }
    }

    async fn look(self, id: JobId, query: Query) -> Result<Answer, Problem> {
        let view = self.wait_for(id, None, &query, None).await?;
        Ok(answer::json(&view))
    }

    async fn list(self, query: Query) -> Result<Answer, Problem> {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let list = move || jobs::list(&home, &scope, query.after, query.limit);
        Ok(answer::json(&self.on(&self.state.lanes.read, list).await?))
    }

    async fn admit(self, body: Incoming, query: Query) -> Result<Answer, Problem> {
        let (admission, again): (Admission, bool) = self.json(body).await?;
        if self.state.hub.open_jobs() >= OPEN_JOBS && !again {
            let detail = format!("{OPEN_JOBS} jobs are open here, which is the limit");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_JOBS", detail)
                .remedy("stop some, or wait for their end")
                .retryable());
        }
        let (home, hub) = (Arc::clone(&self.state.home), Arc::clone(&self.state.hub));
        let (ground, admittance) = (Arc::clone(&self.state.ground), self.admittance.clone());
        let admit = move || admit::admit(&home, &ground, &admittance, admission, &|id| hub.watches(id));
        let admitted = self.on(&self.state.lanes.work, admit).await;
        if let Err(problem) = &admitted
            && problem.code == "STALE"
        {
            self.dropped(&problem.detail);
        }
        match admitted? {
            Answered::Removed(tombstone) => Ok(answer::json(&jobs::removed(*tombstone))),
            Answered::Here(job, arrival, watch) => {
                let entry = watch.map(|watch| self.state.hub.adopt(job.id(), watch));
                let id = job.id();
                drop(job);
                Ok(answer::json(&self.wait_for(id, entry, &query, Some(arrival)).await?))
            }
        }
    }

    async fn read(self, id: JobId, query: Query) -> Result<Answer, Problem> {
        let records = match self.headers.get(header::ACCEPT).map(HeaderValue::as_bytes) {
            Some(kind) if kind == records::CONTENT_TYPE.as_bytes() => true,
            None | Some(b"application/octet-stream" | b"*/*") => false,
            Some(_) => {
                let detail = format!("output is application/octet-stream or {}", records::CONTENT_TYPE);
                return Err(Problem::new(StatusCode::NOT_ACCEPTABLE, "NOT_ACCEPTABLE", detail));
            }
        };
        if query.committed {
            self.sync(id).await?;
        }
        let until = tokio::time::Instant::now() + query.wait;
        let mut closing = self.state.closing.clone();
        let mut following = None;
        let mut pauses = LOOK_AGAIN.iter();
        let mut pause = LOOK_AGAIN[0];
        loop {
            let (piece, memory) = self.read_once(id, &query, records).await?;
            if piece.moved || tokio::time::Instant::now() >= until || *closing.borrow() {
                let holder = self.state.holders.enter(Arc::clone(self.cut));
                return Ok(of_piece(piece, records, memory, holder));
            }
            drop(memory);
            let Some(following) = &mut following else {
                // Followed first and looked at once more, so that nothing falls in between.
                following = Some(self.state.hub.entry(id).follow());
                continue;
            };
            pause = pauses.next().copied().unwrap_or(pause);
            let mut seen = following.seen();
            let over_before = { *seen.borrow_and_update() };
            let over = async {
                loop {
                    if over_before.settled || over_before.unknown {
                        // Nobody will tell of anything more: what its scribe may still write is looked for.
                        return std::future::pending::<()>().await;
                    }
                    if seen.changed().await.is_err() || seen.borrow().settled || seen.borrow().unknown {
                        return;
                    }
                }
            };
            tokio::select! {
                () = following.output() => {}
                () = over => {}
                () = tokio::time::sleep(pause) => {}
                () = tokio::time::sleep_until(until) => {}
                _ = closing.changed() => {}
            }
        }
    }

    async fn read_once(
        &self,
        id: JobId,
        query: &Query,
        records: bool,
    ) -> Result<(output::Piece, OwnedSemaphorePermit), Problem> {
        // As large a piece as was asked for while few read; a fair share of the memory while many do.
        let reading = Reading::enter(&self.state.reading);
        let share = (output::MEMORY / 2 / reading.all).max(output::LEAST);
        let max = query.max.min(share);
        let permits = u32::try_from(max.div_ceil(output::LEAST)).unwrap_or(1);
        let memory = Arc::clone(&self.state.answers).acquire_many_owned(permits);
        let mut memory = self.with_patience(memory).await?;
        let (home, readers) = (Arc::clone(&self.state.home), Arc::clone(&self.state.readers));
        let scope = self.admittance.scope.clone();
        let want = Want { from: query.from, max, stream: query.stream, records };
        let read = move || output::read(&readers, &jobs::find(&home, &scope, id)?, want);
        let piece = self.on(&self.state.lanes.read, read).await?;
        // What it does not fill is free for others at once.
        let filled = (piece.body.len() as u64).div_ceil(output::LEAST).max(1);
        let spare = memory.num_permits().saturating_sub(usize::try_from(filled).unwrap_or(usize::MAX));
        drop(memory.split(spare));
        Ok((piece, memory))
    }

    /// Waits for memory. Where all of it is held by answers that nobody takes, those that have been at it for longest go.
    async fn with_patience(
        &self,
        memory: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        let mut memory = std::pin::pin!(memory);
        let until = tokio::time::Instant::now() + MEMORY_WITHIN;
        while tokio::time::Instant::now() < until {
            match tokio::time::timeout(CUT_EVERY, memory.as_mut()).await {
                Ok(memory) => return memory.map_err(|_| busy(NotDone::Full)),
                Err(_) => self.state.holders.cut_oldest(),
            }
        }
        Err(busy(NotDone::Full))
    }

    /// Has the keeper sync the log. Where none answers, what is committed is what is.
    async fn sync(&self, id: JobId) -> Result<(), Problem> {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let sync = move || {
            let job = jobs::find(&home, &scope, id)?;
            if job.receipt().map_err(|error| answer::storage("reading the receipt", &error))?.is_none() {
                outlast_hand::control::sync(&job, Duration::from_secs(30))
                    .map_err(|error| answer::storage("syncing the output", &error).about(id))?;
            }
            Ok(())
        };
        self.on(&self.state.lanes.work, sync).await
    }

    async fn stop(self, body: Incoming, id: JobId) -> Result<Answer, Problem> {
        let (stop, _): (verbs::Stop, _) = self.json(body).await?;
        let Some(facts) = &self.admittance.facts else {
            return Err(answer::internal(&"a stop without its headers"));
        };
        let (home, scope, generation) =
            (Arc::clone(&self.state.home), self.admittance.scope.clone(), facts.generation);
        let stop = move || jobs::stop(&home, &jobs::find(&home, &scope, id)?, stop, generation);
        let stopped = self.on(&self.state.lanes.urgent, stop).await?;
        if let verbs::Stopped::Stale { stale } = &stopped {
            self.dropped(&stale.to_string());
        }
        Ok(answer::json(&stopped))
    }

    async fn settle(self, body: Incoming, id: JobId) -> Result<Answer, Problem> {
        let (how, _): (verbs::Settle, _) = self.json(body).await?;
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let settle = move || jobs::settle_lost(&home, &jobs::find(&home, &scope, id)?, how);
        let settled = self.on(&self.state.lanes.settle, settle).await?;
        if matches!(settled, verbs::Settled::Settled | verbs::Settled::Attested) {
            // Its entry looks for itself, later; whoever waits need not.
            drop(self.state.hub.entry(id));
        }
        Ok(answer::json(&settled))
    }

    async fn stdin(self, body: Incoming, id: JobId, query: Query) -> Result<Answer, Problem> {
        let bytes = read_body(self.state, self.headers, body, limits::STDIN_BODY).await?;
        self.note(&format!("{} {}", query.offset, query.close), &bytes)?;
        let until = tokio::time::Instant::now() + query.wait;
        let Some(end) = query.offset.0.checked_add(bytes.len() as u64).map(Cursor) else {
            let detail = format!("no input begins at {}", query.offset);
            return Err(Problem::new(StatusCode::CONFLICT, "BAD_OFFSET", detail).about(id));
        };
        let mut taken = query.offset;
        loop {
            let (home, scope, bytes) =
                (Arc::clone(&self.state.home), self.admittance.scope.clone(), bytes.clone());
            let from = usize::try_from(taken.0.saturating_sub(query.offset.0))
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let (offset, close) = (Cursor(query.offset.0 + from as u64), query.close);
            let give =
                move || jobs::give_input(&jobs::find(&home, &scope, id)?, offset, &bytes[from..], close);
            let answered = self.on(&self.state.lanes.urgent, give).await?;
            let over = tokio::time::Instant::now() >= until || *self.state.closing.borrow();
            match answered {
                Some(answered) if answered.closed || (answered.taken >= end && !query.close) || over => {
                    return Ok(answer::json(&answered));
                }
                Some(answered) => taken = answered.taken.max(taken),
                None if over => return Ok(answer::json(&StdinTaken { taken, closed: false })),
                None => {}
            }
            tokio::time::sleep(OFFER_AGAIN).await;
        }
    }

    async fn resize(self, body: Incoming, id: JobId) -> Result<Answer, Problem> {
        let (size, _): (Resize, _) = self.json(body).await?;
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let resize = move || {
            let job = jobs::find(&home, &scope, id)?;
            outlast_hand::control::resize(&job, size.rows, size.cols).map_err(|error| match error.kind() {
                io::ErrorKind::NotConnected | io::ErrorKind::InvalidInput => {
                    let detail = format!("job {id} has no terminal now");
                    Problem::new(StatusCode::CONFLICT, "NO_TERMINAL", detail).about(id)
                }
                _ => answer::storage("setting the size of its terminal", &error).about(id),
            })
        };
        self.on(&self.state.lanes.urgent, resize).await?;
        Ok(answer::json(&serde_json::json!({})))
    }

    async fn acknowledge(self, body: Incoming, id: JobId) -> Result<Answer, Problem> {
        let (Acknowledge { brain, cursor }, _) = self.json(body).await?;
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let acknowledge = move || {
            let job = jobs::find(&home, &scope, id)?;
            let outcome = brains::acknowledge(&home, &job, &brain, cursor)
                .map_err(|error| answer::storage("taking the acknowledgement", &error).about(id))?;
            let because = outcome.refusal();
            Ok(Acknowledged { job_id: id, brain, released: because.is_none(), because })
        };
        Ok(answer::json(&self.on(&self.state.lanes.work, acknowledge).await?))
    }

    /// Standard input for an admission, written as it comes: it never lies in memory.
    async fn spool(self, mut body: Incoming) -> Result<Answer, Problem> {
        let failed = |error: io::Error| answer::storage("spooling", &error);
        if announced(self.headers).is_some_and(|length| length > limits::SPOOL_BODY) {
            return Err(too_large(limits::SPOOL_BODY));
        }
        let mut random = [0; 12];
        fill_random(&mut random).map_err(failed)?;
        let random = outlast_core::bytes::hex(&random);
        let aside = format!("spooling.{random}");
        let (home, name) = (Arc::clone(&self.state.home), aside.clone());
        let open = move || {
            let tmp = files::open_subdir(home.dir(), "tmp").map_err(failed)?;
            files::create_new(tmp.as_fd(), &name, b"").map_err(failed)
        };
        let mut file = self.on(&self.state.lanes.work, open).await?;
        let mut hasher = blake3::Hasher::new();
        let mut total: u64 = 0;
        let spooled = loop {
            let piece = match next_piece(&mut body).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break Ok(()),
                Err(problem) => break Err(problem),
            };
            total += piece.len() as u64;
            if total > limits::SPOOL_BODY {
                break Err(too_large(limits::SPOOL_BODY));
            }
            hasher.update(&piece);
            let write = move || {
                io::Write::write_all(&mut file, &piece).map_err(failed)?;
                Ok(file)
            };
            match self.on(&self.state.lanes.work, write).await {
                Ok(back) => file = back,
                Err(problem) => break Err(problem),
            }
        };
        let blake3 = hasher.finalize().to_hex().to_string();
        let spool = admit::spool_name(&random, &blake3, total);
        let (home, name) = (Arc::clone(&self.state.home), spool.clone());
        let close = move || {
            let tmp = files::open_subdir(home.dir(), "tmp").map_err(failed)?;
            let finished = spooled.and_then(|()| {
                let file = files::open_for_sync(tmp.as_fd(), &aside).map_err(failed)?;
                file.sync_all().map_err(failed)?;
                files::rename_new(tmp.as_fd(), &aside, tmp.as_fd(), &name).map_err(failed)
            });
            if finished.is_err() {
                let _ = rustix::fs::unlinkat(&tmp, aside.as_str(), rustix::fs::AtFlags::empty());
            }
            finished
        };
        self.on(&self.state.lanes.work, close).await?;
        Ok(answer::json(&Spooled { spool, blake3, bytes: total }))
    }

    async fn fence_view(self) -> Result<Answer, Problem> {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let look = move || fence_now(&home, &scope);
        Ok(answer::json(&self.on(&self.state.lanes.read, look).await?))
    }

    async fn fence(self, body: Incoming) -> Result<Answer, Problem> {
        let (verbs::Fence {}, _) = self.json(body).await?;
        let Some(facts) = &self.admittance.facts else {
            return Err(answer::internal(&"a fence without its headers"));
        };
        let (home, scope, generation) =
            (Arc::clone(&self.state.home), self.admittance.scope.clone(), facts.generation);
        let raise = move || {
            fence::raise(&home, &scope, generation).map_err(|error| of_fence(&error))?;
            fence_now(&home, &scope)
        };
        let raised = self.on(&self.state.lanes.work, raise).await;
        self.record_stale(&raised);
        Ok(answer::json(&raised?))
    }

    async fn seal(self, body: Incoming) -> Result<Answer, Problem> {
        let (Seal { run }, _) = self.json(body).await?;
        let Some(facts) = &self.admittance.facts else {
            return Err(answer::internal(&"a seal without its headers"));
        };
        let (home, scope, generation) =
            (Arc::clone(&self.state.home), self.admittance.scope.clone(), facts.generation);
        let seal = move || {
            let sealed = fence::seal(&home, &scope, &run, generation).map_err(|error| of_fence(&error))?;
            Ok(Sealed { run, jobs: sealed.jobs, unreadable: sealed.unreadable, already: sealed.already })
        };
        let sealed = self.on(&self.state.lanes.work, seal).await;
        self.record_stale(&sealed);
        Ok(answer::json(&sealed?))
    }

    fn record_stale<T>(&self, result: &Result<T, Problem>) {
        if let Err(problem) = result
            && problem.code == "STALE"
        {
            self.dropped(&problem.detail);
        }
    }
}

fn fence_now(home: &Home, scope: &outlast_core::id::Scope) -> Result<FenceView, Problem> {
    let failed = |error: io::Error| answer::storage("reading the fence", &error);
    let record = fence::look(home, scope).map_err(failed)?;
    let mutation_mark = marks::latest(home.dir()).map_err(failed)?;
    Ok(FenceView {
        generation: record.generation,
        sealed: record.sealed.into_iter().map(|sealed| sealed.run).collect(),
        mutation_mark,
    })
}

fn of_fence(error: &fence::FenceError) -> Problem {
    match error {
        fence::FenceError::Closed(closed) => guard::stale(&closed.to_string()),
        fence::FenceError::Storage(error) => answer::storage("raising the fence", error),
    }
}

fn of_piece(piece: output::Piece, records: bool, memory: OwnedSemaphorePermit, holder: Holder) -> Answer {
    let kind = if records { records::CONTENT_TYPE } else { "application/octet-stream" };
    let body = Bytes::from_owner(Held { bytes: piece.body, _memory: memory, _holder: holder });
    let mut answer = answer::with_type(StatusCode::OK, kind, body);
    let headers = answer.headers_mut();
    headers.insert(call::output::NEXT, HeaderValue::from(piece.next.0));
    headers.insert(call::output::COMMITTED, HeaderValue::from(piece.committed.0));
    headers.insert(call::output::TAIL, HeaderValue::from_static(piece.tail));
    if let Ok(gaps) = HeaderValue::from_str(&piece.gaps)
        && !piece.gaps.is_empty()
    {
        headers.insert(call::output::GAPS, gaps);
    }
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    answer
}

/// Bytes of an answer, with the memory they were promised until they have been sent.
struct Held {
    bytes: Vec<u8>,
    _memory: OwnedSemaphorePermit,
    _holder: Holder,
}

/// One of those who read at this moment, however its call ends.
struct Reading<'a> {
    count: &'a AtomicUsize,
    /// How many there are, this one included.
    all: u64,
}

impl Reading<'_> {
    fn enter(count: &AtomicUsize) -> Reading<'_> {
        let all = count.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        Reading { count, all }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
