//! A client of a runner: one connection, any number of calls at once (HTTP/2), each bounded.
//!
//! A call that changes something carries an id that its retries repeat, so trying again after a lost answer is safe: the
//! runner answers from what there is. What the connection loses is no more than the connection: jobs go on, and reads
//! continue by cursor.

use crate::admission::Admission;
use crate::call;
use crate::hello::{Hello, HelloRequest};
use crate::limits;
use crate::problem::{self, Problem};
use crate::records;
use crate::verbs::{
    Acknowledge, Fence, Resize, Seal, Sealed, Settle, Settled, Spooled, StdinTaken, Stop, Stopped,
};
use crate::version::{self, VersionError};
use crate::view::{Acknowledged, FenceView, JobList, JobView};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outlast_core::id::{BrainId, Cursor, Generation, JobId, RunId, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a call's answer may take beyond what the call itself waits for.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long a call that changes something stays good.
const GOOD_FOR: Duration = Duration::from_secs(120);

/// The largest answer that is taken.
const ANSWER_AT_MOST: usize = 64 << 20;
/// As much is set aside for an answer on its word.
const PROMISE_AT_MOST: u64 = 2 << 20;

/// How often an idle connection is pinged, and how long the answer may take: below the 60 s of common proxies.
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// The window of one stream and of the connection: a read of output is not to wait for acknowledgements.
const WINDOW: u32 = 8 << 20;

/// Why a call came to nothing.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The runner refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// No version in common, or somebody interfered.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The connection failed. Whether the call was done is not known: repeat it with the same id.
    #[error("the connection to the runner failed ({doing})")]
    Connection {
        /// What was being done.
        doing: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer came in time. Whether the call was done is not known.
    #[error("no answer from the runner within {} s", .0.as_secs())]
    Silent(Duration),
    /// The answer is none that the protocol knows.
    #[error("the runner's answer cannot be understood: {0}")]
    Answer(String),
}

impl ClientError {
    /// The problem, where the runner refused.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether a new connection may help.
    #[must_use]
    pub fn is_of_connection(&self) -> bool {
        matches!(self, ClientError::Connection { .. } | ClientError::Silent(_))
    }
}

fn connection(doing: &'static str) -> impl Fn(hyper::Error) -> ClientError {
    move |source| ClientError::Connection { doing, source: Box::new(source) }
}

/// Which HTTP is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1: one call at a time.
    One,
    /// HTTP/2: many calls at once.
    Two,
}

enum Sender {
    One(tokio::sync::Mutex<hyper::client::conn::http1::SendRequest<Full<Bytes>>>),
    Two(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

/// What of a job's output one call found.
#[derive(Debug, Clone)]
pub struct Output {
    /// The bytes; records where those were asked for.
    pub body: Bytes,
    /// The cursor to ask at next.
    pub next: Cursor,
    /// The cursor up to which output is known to be synced.
    pub committed: Cursor,
    /// Whether more is there.
    pub tail: Tail,
    /// Ranges in this answer that the log does not keep, as the header has them; empty where none.
    pub gaps: String,
}

/// Why an answer ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// More is there now.
    More,
    /// More may come.
    Open,
    /// This is the end of all output.
    Ended,
}

/// What of a job's output to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Read {
    /// The first byte.
    pub from: Cursor,
    /// The most bytes; the runner's default where absent.
    pub max: Option<u64>,
    /// How long to wait where nothing new is there.
    pub wait: Duration,
    /// As records, with streams, times and gaps.
    pub records: bool,
    /// One stream alone: `stdout` or `stderr`.
    pub stream: Option<&'static str>,
    /// Synced first, so that all of it is committed.
    pub committed: bool,
}

/// Until when an answer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Not at all.
    Now,
    /// The command's process exists, or it ended.
    Started,
    /// The command's own process ended.
    Exited,
    /// There is a receipt, or nothing more can be expected.
    Settled,
}

impl Until {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Until::Now => "now",
            Until::Started => "started",
            Until::Exited => "exited",
            Until::Settled => "settled",
        }
    }
}

/// How a connection ended, once it has: what drives it is the first to know why.
type Fate = tokio::sync::watch::Receiver<Option<Option<Arc<hyper::Error>>>>;

/// How long a call whose connection failed waits for the reason.
const REASON_WITHIN: Duration = Duration::from_millis(100);

/// A connection to a runner, with the scope and the generation that its calls carry.
pub struct Client {
    sender: Arc<Sender>,
    fate: Fate,
    authorization: Option<header::HeaderValue>,
    hello: Arc<Hello>,
    /// This machine's clock when the hand told its own.
    told_at: Instant,
    scope: Scope,
    generation: Generation,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("sandbox", &self.hello.sandbox).finish_non_exhaustive()
    }
}

/// An answer's pieces.
struct Answered {
    headers: HeaderMap,
    body: Bytes,
}

impl Client {
    /// Begins a connection on a stream: HTTP is set up, versions are agreed on. The connection is driven by a task of the
    /// current tokio runtime.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn begin<S>(
        stream: S,
        http: Http,
        token: Option<&str>,
        scope: Scope,
    ) -> Result<Client, ClientError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let authorization = match token {
            None => None,
            Some(token) => {
                let mut value = header::HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                    ClientError::Answer("the token has characters that no header can carry".into())
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let (fated, fate) = tokio::sync::watch::channel(None);
        let sender = match http {
            Http::One => {
                let (sender, driver) = hyper::client::conn::http1::Builder::new()
                    .max_buf_size(1 << 20)
                    .handshake(TokioIo::new(stream))
                    .await
                    .map_err(connection("beginning"))?;
                tokio::spawn(async move { drop(fated.send(Some(driver.await.err().map(Arc::new)))) });
                Sender::One(tokio::sync::Mutex::new(sender))
            }
            Http::Two => {
                let (sender, driver) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOW)
                    .max_frame_size(1 << 20)
                    .keep_alive_interval(PING_EVERY)
                    .keep_alive_timeout(PONG_WITHIN)
                    .keep_alive_while_idle(true)
                    .handshake(TokioIo::new(stream))
                    .await
                    .map_err(connection("beginning"))?;
                tokio::spawn(async move { drop(fated.send(Some(driver.await.err().map(Arc::new)))) });
                Sender::Two(sender)
            }
        };
        let asked = HelloRequest {
            versions: version::SUPPORTED.to_vec(),
            client: concat!("outlast-wire ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let answered = exchange(
            &sender,
            &fate,
            json_request(Method::POST, "/hello", &asked)?,
            authorization.as_ref(),
            ANSWER_WITHIN,
        )
        .await?;
        let hello: Hello = from_json(&answered.body)?;
        version::check_choice(version::SUPPORTED, &hello.offered, &hello.supported, hello.protocol)?;
        Ok(Client {
            sender: Arc::new(sender),
            fate,
            authorization,
            hello: Arc::new(hello),
            told_at: Instant::now(),
            scope,
            generation: Generation(0),
        })
    }

    /// What the runner said of itself.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The generation that calls carry from now on; 0 before.
    #[must_use]
    pub fn with_generation(self, generation: Generation) -> Client {
        Client { generation, ..self }
    }

    /// The same connection for another scope and generation.
    #[must_use]
    pub fn within(&self, scope: Scope, generation: Generation) -> Client {
        Client {
            sender: Arc::clone(&self.sender),
            fate: self.fate.clone(),
            authorization: self.authorization.clone(),
            hello: Arc::clone(&self.hello),
            told_at: self.told_at,
            scope,
            generation,
        }
    }

    /// The scope that its calls carry.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Waits for the end of the connection.
    pub async fn ended(&self) {
        let mut fate = self.fate.clone();
        // Its driver is gone with it either way.
        let _ = fate.wait_for(Option::is_some).await;
    }

    /// Admits a command, or finds the job that it is, and waits until `until` for `wait` at most.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn admit(
        &self,
        request_id: &str,
        admission: &Admission,
        until: Until,
        wait: Duration,
    ) -> Result<JobView, ClientError> {
        let path = format!("/v1/jobs?until={}&wait_ms={}", until.name(), wait.as_millis());
        self.change(Method::POST, &path, request_id, admission, wait).await
    }

    /// Looks at a job, and waits until `until` for `wait` at most.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn job(&self, id: JobId, until: Until, wait: Duration) -> Result<JobView, ClientError> {
        self.look(&format!("/v1/jobs/{id}?until={}&wait_ms={}", until.name(), wait.as_millis()), wait).await
    }

    /// Lists the jobs of the scope, in order of id.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(&self, after: Option<JobId>, limit: u32) -> Result<JobList, ClientError> {
        let after = after.map(|id| format!("&after={id}")).unwrap_or_default();
        self.look(&format!("/v1/jobs?limit={limit}{after}"), Duration::ZERO).await
    }

    /// Reads output.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn read(&self, id: JobId, read: Read) -> Result<Output, ClientError> {
        let mut path = format!("/v1/jobs/{id}/output?from={}&wait_ms={}", read.from, read.wait.as_millis());
        if let Some(max) = read.max {
            path.push_str(&format!("&max={max}"));
        }
        if let Some(stream) = read.stream {
            path.push_str(&format!("&stream={stream}"));
        }
        if read.committed {
            path.push_str("&committed=true");
        }
        let accept = if read.records { records::CONTENT_TYPE } else { "application/octet-stream" };
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .header(call::SCOPE, self.scope.as_str())
            .body(Full::default())
            .map_err(unwritable)?;
        let answered = self.send(request, read.wait).await?;
        let cursor = |name: &str| {
            text_header(&answered.headers, name)
                .and_then(|text| text.parse().ok())
                .map(Cursor)
                .ok_or_else(|| ClientError::Answer(format!("{name} is missing")))
        };
        let (next, committed) = (cursor(call::output::NEXT)?, cursor(call::output::COMMITTED)?);
        let tail = match text_header(&answered.headers, call::output::TAIL) {
            Some("more") => Tail::More,
            Some("open") => Tail::Open,
            Some("ended") => Tail::Ended,
            other => return Err(ClientError::Answer(format!("{} is {other:?}", call::output::TAIL))),
        };
        let gaps = text_header(&answered.headers, call::output::GAPS).unwrap_or_default().to_owned();
        Ok(Output { next, committed, tail, gaps, body: answered.body })
    }

    /// Asks for a job's end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stop(&self, request_id: &str, id: JobId, stop: &Stop) -> Result<Stopped, ClientError> {
        self.change(Method::POST, &format!("/v1/jobs/{id}/stop"), request_id, stop, Duration::ZERO).await
    }

    /// Settles a job whose keeper is lost.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn settle(&self, request_id: &str, id: JobId, how: &Settle) -> Result<Settled, ClientError> {
        self.change(Method::POST, &format!("/v1/jobs/{id}/settle"), request_id, how, limits::WAIT_AT_MOST)
            .await
    }

    /// Gives bytes to a job's open standard input. They are taken in order, each once.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn write_stdin(
        &self,
        request_id: &str,
        id: JobId,
        offset: Cursor,
        bytes: Bytes,
        close: bool,
        wait: Duration,
    ) -> Result<StdinTaken, ClientError> {
        let path = format!("/v1/jobs/{id}/stdin?offset={offset}&close={close}&wait_ms={}", wait.as_millis());
        let request = Request::put(path)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .body(Full::new(bytes))
            .map_err(unwritable)?;
        from_json(&self.send(self.bound(request, request_id)?, wait).await?.body)
    }

    /// Sets the size of a job's terminal.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn resize(&self, request_id: &str, id: JobId, size: Resize) -> Result<(), ClientError> {
        let _: serde_json::Value = self
            .change(Method::POST, &format!("/v1/jobs/{id}/resize"), request_id, &size, Duration::ZERO)
            .await?;
        Ok(())
    }

    /// Says that a brain has a job's receipt and all output before the cursor.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn acknowledge(
        &self,
        request_id: &str,
        id: JobId,
        brain: BrainId,
        cursor: Cursor,
    ) -> Result<Acknowledged, ClientError> {
        let body = Acknowledge { brain, cursor };
        self.change(Method::POST, &format!("/v1/jobs/{id}/acknowledge"), request_id, &body, Duration::ZERO)
            .await
    }

    /// Spools standard input for an admission.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn spool(&self, request_id: &str, bytes: Bytes) -> Result<Spooled, ClientError> {
        let request = Request::post("/v1/spool")
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .body(Full::new(bytes))
            .map_err(unwritable)?;
        from_json(&self.send(self.bound(request, request_id)?, Duration::ZERO).await?.body)
    }

    /// Raises the highest generation of the scope to this client's.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fence(&self, request_id: &str) -> Result<FenceView, ClientError> {
        self.change(Method::POST, "/v1/fence", request_id, &Fence {}, Duration::ZERO).await
    }

    /// Seals a run.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn seal(&self, request_id: &str, run: RunId) -> Result<Sealed, ClientError> {
        self.change(Method::POST, "/v1/seal", request_id, &Seal { run }, Duration::ZERO).await
    }

    /// What the hand has seen of the scope.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fence_view(&self) -> Result<FenceView, ClientError> {
        self.look("/v1/fence", Duration::ZERO).await
    }

    async fn look<T: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<T, ClientError> {
        let request = Request::get(path)
            .header(call::SCOPE, self.scope.as_str())
            .body(Full::default())
            .map_err(unwritable)?;
        from_json(&self.send(request, wait).await?.body)
    }

    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        request_id: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, ClientError> {
        let request = self.bound(json_request(method, path, body)?, request_id)?;
        from_json(&self.send(request, wait).await?.body)
    }

    /// Binds a request to this hand, this scope and this generation.
    fn bound(
        &self,
        mut request: Request<Full<Bytes>>,
        request_id: &str,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let hand_now = self.hello.now_ms + u64::try_from(self.told_at.elapsed().as_millis()).unwrap_or(0);
        let good_for = u64::try_from(GOOD_FOR.as_millis()).unwrap_or(u64::MAX);
        let facts = [
            (call::SCOPE, self.scope.as_str().to_owned()),
            (call::REQUEST_ID, request_id.to_owned()),
            (call::EXPIRES_AT, (hand_now + good_for).to_string()),
            (call::SANDBOX, self.hello.sandbox.clone()),
            (call::SANDBOX_GENERATION, self.hello.sandbox_generation.to_string()),
            (call::GENERATION, self.generation.to_string()),
        ];
        for (name, value) in facts {
            let value = header::HeaderValue::from_str(&value)
                .map_err(|_| ClientError::Answer(format!("{name} cannot carry {value:?}")))?;
            request.headers_mut().insert(name, value);
        }
        Ok(request)
    }

    async fn send(&self, request: Request<Full<Bytes>>, wait: Duration) -> Result<Answered, ClientError> {
        exchange(&self.sender, &self.fate, request, self.authorization.as_ref(), wait + ANSWER_WITHIN).await
    }
}

fn json_request(
    method: Method,
    path: &str,
    body: &impl Serialize,
) -> Result<Request<Full<Bytes>>, ClientError> {
    let body = serde_json::to_vec(body).map_err(|error| ClientError::Answer(error.to_string()))?;
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(unwritable)
}

fn unwritable(error: http::Error) -> ClientError {
    ClientError::Answer(format!("the call cannot be written: {error}"))
}

async fn exchange(
    sender: &Sender,
    fate: &Fate,
    mut request: Request<Full<Bytes>>,
    authorization: Option<&header::HeaderValue>,
    within: Duration,
) -> Result<Answered, ClientError> {
    if let Some(value) = authorization {
        request.headers_mut().insert(header::AUTHORIZATION, value.clone());
    }
    let whole = async {
        match sender {
            Sender::One(sender) => {
                request.headers_mut().insert(header::HOST, header::HeaderValue::from_static("hand"));
                // Held until the body is read: one call at a time.
                let mut sender = sender.lock().await;
                sender.ready().await.map_err(connection("waiting for the call before"))?;
                let response = sender.send_request(request).await.map_err(connection("calling"))?;
                read_answer(response).await
            }
            Sender::Two(sender) => {
                let uri = format!("http://hand{}", request.uri());
                *request.uri_mut() = uri.parse().map_err(|error| unwritable(http::Error::from(error)))?;
                let mut sender = sender.clone();
                sender.ready().await.map_err(connection("waiting for the connection"))?;
                let response = sender.send_request(request).await.map_err(connection("calling"))?;
                read_answer(response).await
            }
        }
    };
    match tokio::time::timeout(within, whole).await.map_err(|_| ClientError::Silent(within))? {
        Err(ClientError::Connection { doing, source }) => {
            // What a call sees of it is often only that it is gone.
            let mut fate = fate.clone();
            let ended = tokio::time::timeout(REASON_WITHIN, fate.wait_for(Option::is_some)).await;
            let reason = ended.ok().and_then(|ended| ended.ok()?.clone()?);
            let source = reason.map_or(source, |reason| Box::new(reason));
            Err(ClientError::Connection { doing, source })
        }
        answered => answered,
    }
}

async fn read_answer(response: Response<Incoming>) -> Result<Answered, ClientError> {
    let (head, body) = response.into_parts();
    let body = read_body(body).await?;
    if head.status.is_success() {
        return Ok(Answered { headers: head.headers, body });
    }
    let is_problem = text_header(&head.headers, header::CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.starts_with(problem::CONTENT_TYPE));
    let problem = if is_problem { from_json(&body)? } else { of_stranger(head.status, &body) };
    Err(ClientError::Refused(Box::new(problem)))
}

/// A body in one piece. One that comes in parts, as over HTTP/1.1, is copied out of the connection's buffer part by part, and
/// each is let go at once, so that the buffer can be used again: kept until the last has come, every part would be memory
/// that is new.
async fn read_body(body: Incoming) -> Result<Bytes, ClientError> {
    let promised = usize::try_from(body.size_hint().lower().min(PROMISE_AT_MOST)).unwrap_or(0);
    let mut body = Limited::new(body, ANSWER_AT_MOST);
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|source| ClientError::Connection { doing: "reading the answer", source })?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.is_empty() {
            if body.is_end_stream() {
                return Ok(data);
            }
            whole.reserve(promised.max(data.len()));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

/// An error that no runner wrote: a proxy's, perhaps.
fn of_stranger(status: StatusCode, body: &[u8]) -> Problem {
    let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
    Problem::new(status, "NOT_A_RUNNER", format!("the answer is no runner's: {text}"))
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Answer(error.to_string()))
}

fn text_header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Milliseconds since the Unix epoch by this machine's clock.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A request id that no other call has.
///
/// # Errors
/// What the system says where it has no random numbers.
pub fn request_id() -> std::io::Result<String> {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(outlast_core::bytes::hex(&bytes))
}
