//! HTTP to a bucket, by the HTTP and TLS that the rest of the programs use.
//!
//! `object_store` would bring a second stack of both. What it needs is small: requests and answers that fit memory, over
//! connections that are kept for a while.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::{Method, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::OBJECT_AT_MOST;

/// How long a connection may take to be there, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a server may take to answer what it has received, and an answer may stand still.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The slowest upload and download that are borne, in bytes a second.
const BYTES_A_SECOND: u64 = 128 * 1024;
/// How long a connection is kept unused: servers close theirs after about twice that.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// The most connections that are kept unused.
const KEPT_AT_MOST: usize = 32;
/// The longest answer that is read: an object, or a list or an error, which are shorter.
const ANSWER_AT_MOST: u64 = OBJECT_AT_MOST + 1;

tokio::task_local! {
    /// The status of the last answer that the running call got.
    static STATUS: Cell<Option<u16>>;
}

/// A way to learn what a server answered. `object_store` repeats requests by itself, and its errors tell the status of
/// the last answer only as text.
pub(super) struct Answer;

impl Answer {
    /// Does a call, and says with its result what status the last answer to it had: none where none came.
    pub(super) async fn to<T>(call: impl Future<Output = T>) -> (T, Option<u16>) {
        STATUS
            .scope(Cell::new(None), async {
                let done = call.await;
                (done, STATUS.with(Cell::get))
            })
            .await
    }

    fn note(status: Option<u16>) {
        // Outside of a call nobody asks.
        let _ = STATUS.try_with(|cell| cell.set(status));
    }
}

/// Makes the client for one store.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<TlsConnector>,
}

impl Connector {
    /// Without TLS.
    pub(super) fn plain() -> Connector {
        Connector { tls: None }
    }

    /// With TLS, trusting the authorities that the machine trusts.
    pub(super) fn tls() -> io::Result<Connector> {
        let mut roots = RootCertStore::empty();
        // Single ones that cannot be read are passed over, as everywhere; without any, nothing could be reached.
        let found = rustls_native_certs::load_native_certs();
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            let problem = "this machine has no certificates of authorities to trust; install its ca-certificates, or name \
                           a file of them in SSL_CERT_FILE";
            return Err(io::Error::new(io::ErrorKind::NotFound, problem));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Connector { tls: Some(TlsConnector::from(Arc::new(config))) })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Transport { tls: self.tls.clone(), kept: Mutex::default() }))
    }
}

/// The connections to one store.
struct Transport {
    tls: Option<TlsConnector>,
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    sender: SendRequest<HttpRequestBody>,
    since: Instant,
}

impl Transport {
    /// A connection that was kept and is ready for a request.
    fn take(&self) -> Option<SendRequest<HttpRequestBody>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| !one.sender.is_closed() && one.since.elapsed() < KEPT_FOR);
        // The latest used is the likeliest to live. Others may still be busy with closing an answer.
        let ready = kept.iter().rposition(|one| one.sender.is_ready())?;
        Some(kept.swap_remove(ready).sender)
    }

    fn keep(&self, sender: SendRequest<HttpRequestBody>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_AT_MOST {
            kept.push(Kept { sender, since: Instant::now() });
        }
    }

    async fn connect(&self, uri: &Uri) -> io::Result<SendRequest<HttpRequestBody>> {
        let host = uri.host().ok_or(io::ErrorKind::InvalidInput)?.trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => handshake(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                handshake(tls.connect(name, stream).await?).await
            }
        }
    }
}

async fn handshake<S>(stream: S) -> io::Result<SendRequest<HttpRequestBody>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        // Its failure is met by the request that is on it.
        let _ = connection.await;
    });
    Ok(sender)
}

/// How long a transfer of so many bytes may take.
fn allowed_for(bytes: u64) -> Duration {
    ANSWER_WITHIN + Duration::from_secs(bytes / BYTES_A_SECOND)
}

fn late(what: &'static str) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, what))
}

/// Every request that is made here may be made twice, so whatever broke a connection, it is worth another.
fn broken(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Request, error)
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        Answer::note(None);
        let mut sender = match self.take() {
            Some(sender) => sender,
            None => timeout(CONNECT_WITHIN, self.connect(request.uri()))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?,
        };
        if !request.headers().contains_key(HOST)
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            request.headers_mut().insert(HOST, host);
        }
        // A server is asked for a path; only a proxy is asked for a URL.
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        let only_head = request.method() == Method::HEAD;
        let sent = request.body().content_length() as u64;
        let response = timeout(allowed_for(sent), sender.send_request(request))
            .await
            .map_err(|_| late("no answer came in time"))?
            .map_err(broken)?;
        let (parts, body) = response.into_parts();
        let announced = parts.headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let mut bytes = Bytes::new();
        // What is longer is refused by its length, unread, and its connection is given up.
        if only_head || announced.is_none_or(|len| len <= ANSWER_AT_MOST) {
            let whole = Limited::new(body, ANSWER_AT_MOST as usize).collect();
            bytes = timeout(allowed_for(announced.unwrap_or(ANSWER_AT_MOST)), whole)
                .await
                .map_err(|_| late("the answer took too long"))?
                .map_err(|error| HttpError::new(HttpErrorKind::Request, Cut(error)))?
                .to_bytes();
            self.keep(sender);
        }
        Answer::note(Some(parts.status.as_u16()));
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}

/// An answer that did not come whole.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut")]
struct Cut(#[source] Box<dyn std::error::Error + Send + Sync>);

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
