//! How a hand that dials becomes the server of who it dialled.
//!
//! The hand asks for an upgrade over HTTP/1.1: `POST /hands` with `upgrade: outlast-hand`, its sandbox and generation, and
//! a token. Where that is granted (`101`), the roles are the usual ones from then on: who was dialled is the client of the
//! hand protocol, the hand its server. Both have proved who they are before: the one by its certificate, which the hand
//! checked, the other by token or certificate.

use crate::call;
use crate::limits;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use outlast_core::id::SandboxGeneration;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Where a hand asks.
pub const PATH: &str = "/hands";
/// What it asks to become.
pub const UPGRADE: &str = "outlast-hand";

/// Why a hand was not attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The other side refused.
    #[error("refused with status {0}")]
    Refused(StatusCode),
    /// It is not what was dialled for.
    #[error("the other side does not take hands: it answered {0}")]
    NotABrain(StatusCode),
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] hyper::Error),
    /// Nothing came in time.
    #[error("no answer within {} s", limits::HANDSHAKE_WITHIN.as_secs())]
    Silent,
    /// A value that no header can carry.
    #[error("{0} cannot be carried in a header")]
    Unwritable(&'static str),
}

/// A hand that asks to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// Its sandbox.
    pub sandbox: String,
    /// Which incarnation.
    pub sandbox_generation: SandboxGeneration,
    /// The token it presented.
    pub token: Option<String>,
}

/// The hand's side: asks, and becomes the server of the stream that is returned.
///
/// # Errors
/// [`AttachError`].
pub async fn ask<S>(stream: S, asking: &Asking) -> Result<TokioIo<Upgraded>, AttachError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let whole = async {
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { drop(driver.with_upgrades().await) });
        let mut request = Request::post(PATH)
            .header(header::HOST, "brain")
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, UPGRADE)
            .header(call::SANDBOX, &asking.sandbox)
            .header(call::SANDBOX_GENERATION, asking.sandbox_generation.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(|_| AttachError::Unwritable("the sandbox"))?;
        if let Some(token) = &asking.token {
            let mut value = header::HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| AttachError::Unwritable("the token"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let response = sender.send_request(request).await?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => Ok(TokioIo::new(hyper::upgrade::on(response).await?)),
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::CONFLICT) => {
                Err(AttachError::Refused(status))
            }
            status => Err(AttachError::NotABrain(status)),
        }
    };
    tokio::time::timeout(limits::HANDSHAKE_WITHIN, whole).await.map_err(|_| AttachError::Silent)?
}

/// The other side: hears a hand ask, lets `judge` decide, and becomes the client of the stream that is returned.
///
/// # Errors
/// [`AttachError`].
pub async fn hear<S>(
    stream: S,
    judge: impl Fn(&Asking) -> bool + Send + Sync + 'static,
) -> Result<(Asking, TokioIo<Upgraded>), AttachError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let judge = Arc::new(judge);
    let granted: Arc<Mutex<Option<(Asking, hyper::upgrade::OnUpgrade)>>> = Arc::default();
    let noted = Arc::clone(&granted);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (judge, noted) = (Arc::clone(&judge), Arc::clone(&noted));
        async move {
            let mut response = Response::new(Full::<Bytes>::default());
            let asks = request.uri().path() == PATH
                && text(request.headers(), header::UPGRADE.as_str()) == Some(UPGRADE);
            *response.status_mut() = match asking(request.headers()) {
                _ if !asks => StatusCode::NOT_FOUND,
                None => StatusCode::BAD_REQUEST,
                Some(asking) if !judge(&asking) => StatusCode::UNAUTHORIZED,
                Some(asking) => {
                    let upgrade = hyper::upgrade::on(&mut request);
                    *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some((asking, upgrade));
                    response
                        .headers_mut()
                        .insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
                    response.headers_mut().insert(header::UPGRADE, header::HeaderValue::from_static(UPGRADE));
                    StatusCode::SWITCHING_PROTOCOLS
                }
            };
            Ok::<_, Infallible>(response)
        }
    });
    let whole = async {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.keep_alive(false).max_buf_size(limits::HEADERS as usize);
        let served = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        let taken = granted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((asking, upgrade)) = taken else {
            served?;
            return Err(AttachError::Refused(StatusCode::UNAUTHORIZED));
        };
        Ok((asking, TokioIo::new(upgrade.await?)))
    };
    tokio::time::timeout(limits::HANDSHAKE_WITHIN, whole).await.map_err(|_| AttachError::Silent)?
}

fn asking(headers: &HeaderMap) -> Option<Asking> {
    Some(Asking {
        sandbox: text(headers, call::SANDBOX)?.to_owned(),
        sandbox_generation: SandboxGeneration(text(headers, call::SANDBOX_GENERATION)?.parse().ok()?),
        token: text(headers, header::AUTHORIZATION.as_str())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::to_owned),
    })
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn asking() -> Asking {
        Asking { sandbox: "box".into(), sandbox_generation: SandboxGeneration(2), token: Some("t".into()) }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn the_roles_are_turned_round() {
        run(async {
            let (ours, theirs) = tokio::io::duplex(4096);
            let asked = tokio::spawn(async move { ask(theirs, &asking()).await });
            let (heard, mut stream) =
                hear(ours, |asking| asking.token.as_deref() == Some("t")).await.unwrap();
            assert_eq!(heard, asking());
            let mut hand = asked.await.unwrap().unwrap();
            stream.write_all(b"who is there").await.unwrap();
            let mut read = [0; 12];
            hand.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"who is there");
        });
    }

    #[test]
    fn a_wrong_token_is_refused_on_both_sides() {
        run(async {
            let (ours, theirs) = tokio::io::duplex(4096);
            let asked = tokio::spawn(async move { ask(theirs, &asking()).await });
            assert!(matches!(hear(ours, |_| false).await, Err(AttachError::Refused(_))));
            assert!(matches!(asked.await.unwrap(), Err(AttachError::Refused(StatusCode::UNAUTHORIZED))));
        });
    }
}
