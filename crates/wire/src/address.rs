//! Where a hand is, and how to reach it.
//!
//! | text | what |
//! |---|---|
//! | `unix:PATH`, or an absolute path | a Unix socket; the kernel tells each end who the other is |
//! | `tls:HOST:PORT`, `tls:[ADDRESS]:PORT` | TCP with TLS |
//! | `ssh:DESTINATION[:HOME]` | the standard streams of `ssh … DESTINATION outlast-hand connect` |
//! | `exec:PROGRAM ARG…` | those of any other command, such as `podman exec -i box outlast-hand connect` |
//! | `listen:ADDRESS:PORT` | whichever hand dials here first, over TCP with TLS |
//!
//! Every phase has a limit: connecting ([`limits::CONNECT_WITHIN`]), the handshake ([`limits::HANDSHAKE_WITHIN`]), and what
//! a peer that vanished without a word costs (the constants below, for TCP; `ServerAlive…` for `ssh`).

mod command;

use crate::attach::{self, Asking, AttachError};
use crate::client::Http;
use crate::limits::{self, CONNECT_WITHIN, HANDSHAKE_WITHIN};
use crate::tls::{self, Clients, Fingerprint, Identity, TlsError, Trust};
use rustls::pki_types::ServerName;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a TCP connection is silent before the kernel asks whether the other end is still there.
pub const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// How often it asks again.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// How often it asks in vain before the connection has failed.
pub const KEEPALIVE_PROBES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the connection has failed: as long as the three above together.
pub const UNACKNOWLEDGED_AT_MOST: Duration = Duration::from_secs(30);

/// Hands that are between connecting and being attached, at once, at one [`HandListener`]; more wait in the kernel's queue.
pub const ATTACHING_AT_ONCE: usize = 256;

/// The longest path that a Unix socket's address takes, in bytes.
const SUN_PATH: usize = 107;

/// How often a Unix socket whose queue is full is tried again.
const QUEUE_LOOK: Duration = Duration::from_millis(20);

/// Where a hand is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP with TLS.
    Tls {
        /// A name, or an address without brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// By `ssh`, which must be able to log in without asking anything.
    Ssh {
        /// As `ssh` takes it: `[USER@]HOST`. Ports and keys are named in `ssh`'s configuration.
        destination: String,
        /// The home there, where it is not the default: an absolute path, or one below `~/`.
        home: Option<String>,
    },
    /// A command whose standard streams are the connection: the program and its arguments.
    Exec(Vec<OsString>),
    /// Here: a hand dials.
    Listen(SocketAddr),
}

/// A text that is no address of a hand.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is no address of a hand: {problem}")]
pub struct BadAddress {
    /// The text.
    pub text: String,
    /// What is wrong with it, and what would be right.
    pub problem: &'static str,
}

const KINDS: &str =
    "say unix:PATH, tls:HOST:PORT, ssh:DESTINATION[:HOME], exec:PROGRAM ARG… or listen:ADDRESS:PORT";

impl Address {
    /// The address of a command, whose words may hold blanks.
    ///
    /// # Errors
    /// [`BadAddress`] where there is no word at all, or no program's name.
    pub fn exec<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Result<Address, BadAddress> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        if words.first().is_none_or(|program| program.is_empty()) {
            return Err(BadAddress { text: "exec:".into(), problem: "the program is missing" });
        }
        Ok(Address::Exec(words))
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        parse(text).map_err(|problem| BadAddress { text: text.chars().take(200).collect(), problem })
    }
}

fn parse(text: &str) -> Result<Address, &'static str> {
    if text.contains('\0') {
        return Err("it contains a zero byte");
    }
    if text.starts_with('/') {
        return Ok(Address::Unix(text.into()));
    }
    match text.split_once(':').ok_or(KINDS)? {
        ("unix", "") => Err("the path of the socket is missing"),
        ("unix", path) => Ok(Address::Unix(path.into())),
        ("tls", rest) => {
            let (host, port) = parse_host_port(rest)?;
            ServerName::try_from(host).map_err(|_| "the host is neither a name nor an address")?;
            Ok(Address::Tls { host: host.to_owned(), port })
        }
        ("ssh", rest) => parse_ssh(rest),
        ("exec", rest) => {
            let words: Vec<OsString> =
                rest.split([' ', '\t']).filter(|word| !word.is_empty()).map(OsString::from).collect();
            if words.is_empty() { Err("the program is missing") } else { Ok(Address::Exec(words)) }
        }
        ("listen", rest) => {
            rest.parse().map(Address::Listen).map_err(|_| "say listen:ADDRESS:PORT, the address in digits")
        }
        _ => Err(KINDS),
    }
}

fn parse_host_port(text: &str) -> Result<(&str, u16), &'static str> {
    const FORM: &str = "say tls:HOST:PORT, or tls:[ADDRESS]:PORT for IPv6";
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once("]:").ok_or(FORM)?;
            host.parse::<Ipv6Addr>().map_err(|_| "in the brackets is no IPv6 address")?;
            (host, port)
        }
        None => text.rsplit_once(':').filter(|(host, _)| !host.contains(':')).ok_or(FORM)?,
    };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && port > 0 => Ok((host, port)),
        _ => Err("the port is none from 1 to 65535"),
    }
}

fn parse_ssh(text: &str) -> Result<Address, &'static str> {
    // An IPv6 address goes in brackets, which ssh itself does not know: they only tell its colons from ours.
    let bracketed = text.find('[').filter(|at| *at == 0 || text.as_bytes().get(at - 1) == Some(&b'@'));
    let (destination, home) = match bracketed {
        Some(open) => {
            let (inside, rest) = text[open + 1..].split_once(']').ok_or("the bracket is not closed")?;
            let home = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or("after the bracket only :HOME may follow")?),
            };
            (format!("{}{inside}", &text[..open]), home)
        }
        None => match text.split_once(':') {
            None => (text.to_owned(), None),
            Some((destination, home)) => (destination.to_owned(), Some(home)),
        },
    };
    check_ssh(&destination, home)?;
    Ok(Address::Ssh { destination, home: home.map(str::to_owned) })
}

/// What `ssh` is given must be neither one of its options nor, on the other side, anything but one word.
fn check_ssh(destination: &str, home: Option<&str>) -> Result<(), &'static str> {
    let host = destination.rsplit_once('@').map_or(destination, |(_, host)| host);
    if host.is_empty() || host.starts_with('-') || destination.starts_with('-') {
        return Err("the destination must be [USER@]HOST and not begin with a hyphen");
    }
    if destination.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
        return Err("the destination must be [USER@]HOST; put a port into ssh's configuration");
    }
    match home {
        Some(home) if home.chars().any(char::is_control) => Err("the home contains a control character"),
        // Two slashes are what is left of a URL.
        Some(home) if home.starts_with("//") || !(home.starts_with('/') || home.starts_with("~/")) => {
            Err("the home must be an absolute path, or begin with ~/; a port goes into ssh's configuration")
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tls { host, port } if host.contains(':') => write!(f, "tls:[{host}]:{port}"),
            Address::Tls { host, port } => write!(f, "tls:{host}:{port}"),
            Address::Ssh { destination, home } => {
                match destination.rsplit_once('@') {
                    Some((user, host)) if host.contains(':') => write!(f, "ssh:{user}@[{host}]")?,
                    None if destination.contains(':') => write!(f, "ssh:[{destination}]")?,
                    _ => write!(f, "ssh:{destination}")?,
                }
                home.iter().try_for_each(|home| write!(f, ":{home}"))
            }
            Address::Exec(words) => {
                f.write_str("exec:")?;
                words.iter().enumerate().try_for_each(|(index, word)| {
                    write!(f, "{}{}", if index == 0 { "" } else { " " }, word.display())
                })
            }
            Address::Listen(at) => write!(f, "listen:{at}"),
        }
    }
}

/// How both ends prove who they are.
#[derive(Clone, Default)]
pub struct DialOptions {
    /// Whose certificates are trusted; needed for `tls:`.
    pub trust: Option<Trust>,
    /// What this end proves itself by; needed for `listen:`, which is a TLS server.
    pub identity: Option<Identity>,
    /// The bearer token. Where this end dials, [`dial`] leaves it to the calls; at `listen:` it is the one that the hand
    /// must present.
    pub token: Option<String>,
    /// HTTP/2 is not offered: for a stream that HTTP/1.1 is to be spoken on whatever the other end would choose, as
    /// [`attach::ask`] does.
    pub http_1_only: bool,
}

impl fmt::Debug for DialOptions {
    // Never the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialOptions")
            .field("trust", &self.trust)
            .field("identity", &self.identity)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("http_1_only", &self.http_1_only)
            .finish()
    }
}

/// Why a hand was not reached.
#[derive(Debug, Error)]
pub enum DialError {
    /// Nothing says which certificate may be shown.
    #[error(
        "nothing says which certificate {0} may show: give its pin, which `outlast-hand serve` prints there as \
         `certificate sha256:…`, or the authority that signed it"
    )]
    NoTrust(Address),
    /// At `listen:` this end needs a certificate.
    #[error("{0} needs a certificate and key of this end, which the hand checks")]
    NoIdentity(Address),
    /// At `listen:` anybody could be the hand.
    #[error(
        "nothing says which hand may dial {0}: give the token it presents, or the pin of its certificate"
    )]
    AnyHand(Address),
    /// The address is none that can be dialled.
    #[error("{address} cannot be dialled: {problem}")]
    Undialable {
        /// Which.
        address: Address,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No connection came about.
    #[error("{address} cannot be reached: {error}")]
    Connect {
        /// Which.
        address: Address,
        /// What the system says.
        error: io::Error,
    },
    /// Nothing happened in time.
    #[error("{address}: {doing} took longer than {} s, the limit", within.as_secs())]
    Silent {
        /// Which.
        address: Address,
        /// What took so long.
        doing: &'static str,
        /// The limit.
        within: Duration,
    },
    /// The ends do not trust or understand each other.
    #[error("{address}: the TLS handshake failed: {reason}")]
    Handshake {
        /// Which.
        address: Address,
        /// Why.
        reason: String,
        /// The certificate that the other end showed, where it failed because that is not pinned.
        seen: Option<Fingerprint>,
    },
    /// The command of `ssh:` or `exec:` cannot be started.
    #[error("{} cannot be started: {error}", program.display())]
    Start {
        /// Its program.
        program: OsString,
        /// What the system says.
        error: io::Error,
    },
    /// A hand that dialled was not attached.
    #[error("a hand that dialled {address} was not attached: {error}")]
    Attach {
        /// Where.
        address: Address,
        /// Why.
        error: AttachError,
    },
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a hand, whatever it runs over. Dropping it ends it.
pub struct Stream {
    inner: Box<dyn Duplex>,
    http: Http,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("http", &self.http).finish_non_exhaustive()
    }
}

impl Stream {
    fn new(inner: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, http: Http) -> Stream {
        Stream { inner: Box::new(inner), http }
    }

    /// Which HTTP to begin with: HTTP/2 unless TLS agreed on something else.
    #[must_use]
    pub fn http(&self) -> Http {
        self.http
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// Connects to a hand. For `listen:` it waits for one to dial, for as long as the caller lets it: then nobody listens there
/// any more ([`HandListener`] takes more than one).
///
/// It needs a tokio runtime with I/O and time.
///
/// # Errors
/// [`DialError`]. A command that was started and fails is explained by the first read of the stream instead, and so is, in
/// TLS 1.3, a certificate of this end that the other end refuses.
pub async fn dial(address: &Address, options: &DialOptions) -> Result<Stream, DialError> {
    match address {
        Address::Unix(path) => dial_unix(path, address).await,
        Address::Tls { host, port } => dial_tls(host, *port, address, options).await,
        Address::Ssh { destination, home } => {
            check_ssh(destination, home.as_deref())
                .map_err(|problem| DialError::Undialable { address: address.clone(), problem })?;
            command::start(&ssh_words(destination, home.as_deref()), address).await
        }
        Address::Exec(words) => command::start(words, address).await,
        Address::Listen(at) => {
            let mut listener = HandListener::for_one(*at, options)?;
            loop {
                // A stranger that is refused must not end the waiting for the hand.
                if let Ok((_, stream)) = listener.accept().await {
                    return Ok(stream);
                }
            }
        }
    }
}

fn silent(address: &Address, doing: &'static str, within: Duration) -> DialError {
    DialError::Silent { address: address.clone(), doing, within }
}

async fn dial_unix(path: &Path, address: &Address) -> Result<Stream, DialError> {
    let failed = |error| DialError::Connect { address: address.clone(), error };
    let long = path.as_os_str().len() > SUN_PATH;
    let (short, _parent) = if long { shortened(path).map_err(failed)? } else { (path.to_owned(), None) };
    let until = Instant::now() + CONNECT_WITHIN;
    loop {
        match UnixStream::connect(&short).await {
            Ok(stream) => return Ok(Stream::new(stream, Http::Two)),
            // The kernel's word for a listener whose queue is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                tokio::time::sleep(QUEUE_LOOK).await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(silent(address, "waiting in the full queue of the socket", CONNECT_WITHIN));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// A path that is short enough for a socket's address, by way of the open folder: good while that is kept.
fn shortened(path: &Path) -> io::Result<(PathBuf, Option<std::os::fd::OwnedFd>)> {
    use rustix::fs::{Mode, OFlags};
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((short, Some(folder)))
}

async fn dial_tls(
    host: &str,
    port: u16,
    address: &Address,
    options: &DialOptions,
) -> Result<Stream, DialError> {
    let trust = options.trust.as_ref().ok_or_else(|| DialError::NoTrust(address.clone()))?;
    let mut config = tls::connector(trust, options.identity.as_ref())?;
    if options.http_1_only {
        Arc::make_mut(&mut config).alpn_protocols = vec![tls::ALPN_HTTP_1.to_vec()];
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|_| DialError::Undialable {
        address: address.clone(),
        problem: "the host is neither a name nor an address",
    })?;
    let stream = tokio::time::timeout(CONNECT_WITHIN, connect_tcp(host, port))
        .await
        .map_err(|_| silent(address, "connecting", CONNECT_WITHIN))?
        .map_err(|error| DialError::Connect { address: address.clone(), error })?;
    let ours = options.identity.as_ref().map(Identity::fingerprint);
    let shaken =
        tokio::time::timeout(HANDSHAKE_WITHIN, TlsConnector::from(config).connect(name, stream)).await;
    let stream = shaken
        .map_err(|_| silent(address, "the TLS handshake", HANDSHAKE_WITHIN))?
        .map_err(|error| handshake_failed(address, &error, ours))?;
    let http = match stream.get_ref().1.alpn_protocol() {
        Some(tls::ALPN_HTTP_2) => Http::Two,
        _ => Http::One,
    };
    Ok(Stream::new(Explained { stream, ours }, http))
}

fn handshake_failed(address: &Address, error: &io::Error, ours: Option<Fingerprint>) -> DialError {
    DialError::Handshake {
        address: address.clone(),
        reason: tls::explain(error, ours),
        seen: tls::not_pinned(error).map(|not_pinned| not_pinned.seen),
    }
}

/// Connects to the first address of a host that answers. None may use up the time of those after it.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let until = Instant::now() + CONNECT_WITHIN;
    let all: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for (index, at) in all.iter().enumerate() {
        let left = u32::try_from(all.len() - index).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(share, TcpStream::connect(at)).await {
            Ok(Ok(stream)) => {
                tune_tcp(&stream)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {at}")),
        }
    }
    Err(last)
}

/// Sets what both ends of a TCP connection of ours have: no delay of small writes, and an end to waiting for a peer that
/// vanished ([`KEEPALIVE_AFTER`], [`KEEPALIVE_EVERY`], [`KEEPALIVE_PROBES`], [`UNACKNOWLEDGED_AT_MOST`]).
///
/// # Errors
/// What the system says.
pub fn tune_tcp(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    let unacknowledged = u32::try_from(UNACKNOWLEDGED_AT_MOST.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, unacknowledged)?)
}

/// A TLS stream whose errors say what they mean: in TLS 1.3 the client learns only after the handshake that its
/// certificate is refused.
struct Explained<S> {
    stream: S,
    ours: Option<Fingerprint>,
}

impl<S> Explained<S> {
    fn explain<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map_err(|error| match error.get_ref() {
            Some(_) => io::Error::new(error.kind(), tls::explain(&error, self.ours)),
            None => error,
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.explain(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.explain(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.explain(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.explain(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.explain(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Decides whether a hand that asks may be attached; it has proved itself by its certificate where that is required.
type Judge = dyn Fn(&Asking) -> bool + Send + Sync;

/// Takes hands that dial.
pub struct HandListener {
    listener: TcpListener,
    address: Address,
    acceptor: TlsAcceptor,
    judge: Arc<Judge>,
    attaching: JoinSet<Result<(Asking, Stream), DialError>>,
}

impl fmt::Debug for HandListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandListener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl HandListener {
    /// Listens. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn bind(
        at: SocketAddr,
        identity: &Identity,
        hands: &Clients,
        judge: impl Fn(&Asking) -> bool + Send + Sync + 'static,
    ) -> Result<HandListener, DialError> {
        let acceptor = TlsAcceptor::from(tls::acceptor(identity, hands)?);
        let bind = || {
            let listener = std::net::TcpListener::bind(at)?;
            listener.set_nonblocking(true)?;
            let address = Address::Listen(listener.local_addr()?);
            Ok((TcpListener::from_std(listener)?, address))
        };
        let (listener, address) =
            bind().map_err(|error| DialError::Connect { address: Address::Listen(at), error })?;
        Ok(HandListener { listener, address, acceptor, judge: Arc::new(judge), attaching: JoinSet::new() })
    }

    /// Listens as [`dial`] does.
    fn for_one(at: SocketAddr, options: &DialOptions) -> Result<HandListener, DialError> {
        let address = Address::Listen(at);
        let identity = options.identity.as_ref().ok_or_else(|| DialError::NoIdentity(address.clone()))?;
        let hands = match (&options.trust, &options.token) {
            (None, None) => return Err(DialError::AnyHand(address)),
            (None, Some(_)) => Clients::None,
            (Some(trust), _) => Clients::Required(trust.clone()),
        };
        let token = options.token.clone();
        HandListener::bind(at, identity, &hands, move |asking| match &token {
            None => true,
            Some(token) => {
                asking.token.as_ref().is_some_and(|given| same_bytes(given.as_bytes(), token.as_bytes()))
            }
        })
    }

    /// Where it listens, with the port the system chose where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for one hand. It may be dropped and called again; those that are on their way stay so.
    ///
    /// # Errors
    /// [`DialError`], which is about one that dialled and not about the listener: call it again.
    pub async fn accept(&mut self) -> Result<(Asking, Stream), DialError> {
        loop {
            let has_room = self.attaching.len() < ATTACHING_AT_ONCE;
            tokio::select! {
                Some(attached) = self.attaching.join_next() => {
                    // One that panicked or was cancelled has nothing to say.
                    let Ok(attached) = attached else { continue };
                    return attached;
                }
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => {
                        let attaching = attach_hand(
                            stream, self.acceptor.clone(), self.address.clone(), Arc::clone(&self.judge)
                        );
                        self.attaching.spawn(attaching);
                    }
                    // Out of descriptors, perhaps: whoever waits keeps waiting.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
    }
}

async fn attach_hand(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    address: Address,
    judge: Arc<Judge>,
) -> Result<(Asking, Stream), DialError> {
    tune_tcp(&stream).map_err(|error| DialError::Connect { address: address.clone(), error })?;
    let stream = tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream))
        .await
        .map_err(|_| silent(&address, "the TLS handshake of a hand", HANDSHAKE_WITHIN))?
        .map_err(|error| handshake_failed(&address, &error, None))?;
    match attach::hear(stream, move |asking| judge(asking)).await {
        // The hand's server takes either; nothing between it and here chose.
        Ok((asking, stream)) => Ok((asking, Stream::new(stream, Http::Two))),
        Err(error) => Err(DialError::Attach { address, error }),
    }
}

/// Whether two texts are the same, in a time that depends on their lengths alone.
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

/// The command that reaches a hand by `ssh`. It asks nothing, and notices that the other side has vanished.
fn ssh_words(destination: &str, home: Option<&str>) -> Vec<OsString> {
    let connect_timeout = format!("ConnectTimeout={}", limits::CONNECT_WITHIN.as_secs());
    let mut words: Vec<OsString> = ["ssh", "-T", "-o", "BatchMode=yes", "-o", connect_timeout.as_str()]
        .iter()
        .chain(&["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", destination])
        .map(OsString::from)
        .collect();
    let mut command = "outlast-hand connect".to_owned();
    if let Some(home) = home {
        // A shell reads it there, which is to expand the tilde and nothing else.
        let (tilde, rest) = home.strip_prefix("~/").map_or(("", home), |rest| ("~/", rest));
        command.push_str(&format!(" --home {tilde}'{}'", rest.replace('\'', r"'\''")));
    }
    words.push(command.into());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{acceptor, connector};
    use outlast_core::id::SandboxGeneration;
    use proptest::prelude::*;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
        });
        runtime.shutdown_background();
        done
    }

    fn identity() -> Identity {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Identity::new(vec![certificate.der().clone()], key).unwrap()
    }

    fn pin(identity: &Identity) -> Option<Trust> {
        Some(Trust::Pins(vec![identity.fingerprint()]))
    }

    #[test]
    fn addresses_are_read_and_written() {
        let ssh = |destination: &str, home: Option<&str>| Address::Ssh {
            destination: destination.into(),
            home: home.map(Into::into),
        };
        let cases = [
            ("unix:/run/a b:c.sock", Address::Unix("/run/a b:c.sock".into())),
            ("unix:here.sock", Address::Unix("here.sock".into())),
            ("tls:box.example:7443", Address::Tls { host: "box.example".into(), port: 7443 }),
            ("tls:10.0.0.1:1", Address::Tls { host: "10.0.0.1".into(), port: 1 }),
            ("tls:[fd00::1]:65535", Address::Tls { host: "fd00::1".into(), port: 65535 }),
            ("ssh:box", ssh("box", None)),
            ("ssh:me@box:~/a b:c", ssh("me@box", Some("~/a b:c"))),
            ("ssh:[fd00::1]:/srv/it", ssh("fd00::1", Some("/srv/it"))),
            ("ssh:me@[fd00::1]", ssh("me@fd00::1", None)),
            (
                "exec:podman exec -i box outlast-hand connect",
                Address::exec(["podman", "exec", "-i", "box", "outlast-hand", "connect"]).unwrap(),
            ),
            ("listen:127.0.0.1:0", Address::Listen(([127, 0, 0, 1], 0).into())),
            ("listen:[::]:7443", Address::Listen((Ipv6Addr::UNSPECIFIED, 7443).into())),
        ];
        for (text, address) in cases {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        assert_eq!("exec:  a \t b ".parse(), Address::exec(["a", "b"]));
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be() {
        for text in [
            "",
            "box",
            "unix:",
            "tcp:box:1",
            "tls:box",
            "tls:box:0",
            "tls:box:65536",
            "tls:box:+1",
            "tls::1",
            "tls:::1:2",
            "tls:[fd00::1]",
            "tls:[box]:1",
            "tls:[::1%eth0]:1",
            "tls:a b:1",
            "ssh:",
            "ssh:-oProxyCommand=touch x",
            "ssh:me@-x",
            "ssh:me@",
            "ssh:a b",
            "ssh:ssh://box",
            "ssh:box:",
            "ssh:box:relative",
            "ssh:box:/a\nb",
            "ssh:[::1",
            "ssh:[::1]x",
            "exec:",
            "exec:  ",
            "listen:localhost:1",
            "listen:1",
            "unix:/a\0b",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(!error.problem.is_empty(), "{text}");
        }
        assert!(Address::exec([""; 0]).is_err() && Address::exec([""]).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_so_that_it_is_read_again(
            text in "(unix|tls|ssh|exec|listen):[a-z0-9@:\\[\\]./~ -]{0,24}",
        ) {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }

    #[test]
    fn ssh_is_given_a_home_that_its_shell_reads_as_one_word() {
        let last = |home| ssh_words("box", home).pop().unwrap().into_string().unwrap();
        assert_eq!(last(None), "outlast-hand connect");
        assert_eq!(last(Some("~/it's $(x)")), r"outlast-hand connect --home ~/'it'\''s $(x)'");
        assert_eq!(last(Some("/srv")), "outlast-hand connect --home '/srv'");
        let words = ssh_words("me@box", None);
        assert_eq!(words[..4], ["ssh", "-T", "-o", "BatchMode=yes"]);
        assert_eq!(words[words.len() - 2], "me@box");
    }

    #[test]
    fn a_socket_is_reached_however_deep_it_lies() {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let deep = folder.path().join("d".repeat(150)).join("e".repeat(150));
            std::fs::create_dir_all(&deep).unwrap();
            let path = deep.join("runner.sock");
            let address = Address::Unix(path.clone());
            let missing = dial(&address, &DialOptions::default()).await.unwrap_err();
            assert!(
                matches!(missing, DialError::Connect { .. }) && missing.to_string().contains("runner.sock")
            );
            let (short, _folder) = shortened(&path).unwrap();
            let listener = tokio::net::UnixListener::bind(short).unwrap();
            let mut stream = dial(&address, &DialOptions::default()).await.unwrap();
            assert_eq!(stream.http(), Http::Two);
            stream.write_all(b"x").await.unwrap();
            let (mut taken, _) = listener.accept().await.unwrap();
            assert_eq!(taken.read_u8().await.unwrap(), b'x');
        });
    }

    #[test]
    fn tls_needs_trust_and_says_which_certificate_it_saw() {
        run(async {
            let (hand, other) = (identity(), identity());
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = TlsAcceptor::from(acceptor(&hand, &Clients::None).unwrap());
            tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tune_tcp(&stream).unwrap();
                    let Ok(mut stream) = server.accept(stream).await else { continue };
                    let _ = stream.write_all(b"hand").await;
                    let _ = stream.shutdown().await;
                }
            });
            let address = Address::Tls { host: "127.0.0.1".into(), port };
            let error = dial(&address, &DialOptions::default()).await.unwrap_err();
            assert!(error.to_string().contains("pin"), "{error}");

            let options = DialOptions { trust: pin(&other), ..DialOptions::default() };
            let error = dial(&address, &options).await.unwrap_err();
            assert!(error.to_string().contains(&hand.fingerprint().to_string()), "{error}");
            assert!(
                matches!(error, DialError::Handshake { seen: Some(seen), .. } if seen == hand.fingerprint())
            );

            for (http_1_only, http) in [(false, Http::Two), (true, Http::One)] {
                let options = DialOptions { trust: pin(&hand), http_1_only, ..DialOptions::default() };
                let mut stream = dial(&address, &options).await.unwrap();
                assert_eq!(stream.http(), http);
                let mut read = String::new();
                stream.read_to_string(&mut read).await.unwrap();
                assert_eq!(read, "hand");
            }
        });
    }

    #[test]
    fn a_refused_client_certificate_is_explained_by_the_stream() {
        run(async {
            let (hand, brain, other) = (identity(), identity(), identity());
            let server = acceptor(&hand, &Clients::Required(pin(&brain).unwrap())).unwrap();
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move { drop(TlsAcceptor::from(server).accept(theirs).await) });
            let client = TlsConnector::from(connector(&pin(&hand).unwrap(), Some(&other)).unwrap());
            let stream = client.connect(ServerName::try_from("hand").unwrap(), ours).await.unwrap();
            let mut stream = Explained { stream, ours: Some(other.fingerprint()) };
            let error = stream.read_u8().await.unwrap_err();
            assert!(error.to_string().contains(&other.fingerprint().to_string()), "{error}");
        });
    }

    #[test]
    fn plain_text_and_silence_where_tls_is_expected_are_errors() {
        run(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address =
                Address::Tls { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await.unwrap();
                let _silent = listener.accept().await.unwrap();
                std::future::pending::<()>().await;
            });
            let options = DialOptions { trust: pin(&identity()), ..DialOptions::default() };
            let error = dial(&address, &options).await.unwrap_err();
            assert!(error.to_string().contains("is not TLS"), "{error}");
            let error = dial(&address, &options).await.unwrap_err();
            assert!(matches!(error, DialError::Silent { within: HANDSHAKE_WITHIN, .. }), "{error}");
        });
    }

    #[test]
    fn a_hand_that_dials_is_attached_by_token_and_a_stranger_does_not_stop_the_waiting() {
        run(async {
            let brain = identity();
            let nothing = DialOptions::default();
            let at: SocketAddr = ([127, 0, 0, 1], 0).into();
            assert!(matches!(HandListener::for_one(at, &nothing), Err(DialError::NoIdentity(_))));
            let any = DialOptions { identity: Some(brain.clone()), ..DialOptions::default() };
            assert!(matches!(HandListener::for_one(at, &any), Err(DialError::AnyHand(_))));

            let options = DialOptions { token: Some("olt_good".into()), ..any };
            assert!(!format!("{options:?}").contains("olt_good"));
            let mut listener = HandListener::for_one(at, &options).unwrap();
            let Address::Listen(bound) = *listener.address() else { panic!() };
            let address = Address::Tls { host: bound.ip().to_string(), port: bound.port() };
            let hand = DialOptions { trust: pin(&brain), http_1_only: true, ..DialOptions::default() };
            // One that says nothing holds up nobody.
            let _silent = TcpStream::connect(bound).await.unwrap();
            let asks = |token: &'static str| {
                let (address, hand) = (address.clone(), hand.clone());
                tokio::spawn(async move {
                    let stream = dial(&address, &hand).await.unwrap();
                    let asking = Asking {
                        sandbox: "box".into(),
                        sandbox_generation: SandboxGeneration(2),
                        token: Some(token.into()),
                    };
                    attach::ask(stream, &asking).await
                })
            };
            let refused = asks("olt_bad!");
            assert!(matches!(listener.accept().await, Err(DialError::Attach { .. })));
            refused.await.unwrap().unwrap_err();
            let attached = asks("olt_good");
            let (asking, mut stream) = listener.accept().await.unwrap();
            assert_eq!(asking.sandbox, "box");
            let mut served = attached.await.unwrap().unwrap();
            served.write_all(b"x").await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'x');
        });
    }

    #[test]
    fn the_kernel_watches_over_tcp() {
        use rustix::net::sockopt;
        run(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            tune_tcp(&stream).unwrap();
            assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_AFTER);
            assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_EVERY);
            assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_PROBES);
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
        });
        assert_eq!(KEEPALIVE_AFTER + KEEPALIVE_EVERY * KEEPALIVE_PROBES, UNACKNOWLEDGED_AT_MOST);
    }

    #[test]
    fn bytes_are_compared_whole() {
        assert!(same_bytes(b"", b"") && same_bytes(b"ab", b"ab"));
        assert!(!same_bytes(b"ab", b"ac") && !same_bytes(b"ab", b"abc") && !same_bytes(b"", b"a"));
    }
}
