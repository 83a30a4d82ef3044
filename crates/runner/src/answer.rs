//! Answers: JSON, raw bytes, problems.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use outlast_wire::problem::{self, Problem};
use serde::Serialize;

/// What the server sends.
pub(crate) type Answer = Response<Full<Bytes>>;

/// `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(text) => with_type(StatusCode::OK, "application/json", text),
        Err(error) => problem(&internal(&error)),
    }
}

/// A problem.
pub(crate) fn problem(problem: &Problem) -> Answer {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::to_vec(problem).unwrap_or_default();
    let mut answer = with_type(status, problem::CONTENT_TYPE, text);
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

pub(crate) fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // Answers hold output and states of a moment.
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// A fault of the runner or its machine.
pub(crate) fn internal(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", error.to_string()).retryable()
}

/// What the system said while the home was used.
pub(crate) fn storage(doing: &str, error: &std::io::Error) -> Problem {
    use rustix::io::Errno;
    let detail = format!("{doing}: {error}");
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, "STORAGE_FULL", detail)
                .remedy("free space where the hand's home lies; stops and reads go on meanwhile")
                .retryable()
        }
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "OUT_OF_RESOURCES", detail).retryable()
        }
        _ if error.kind() == std::io::ErrorKind::Unsupported => {
            Problem::new(StatusCode::CONFLICT, "LATER_VERSION", detail)
        }
        _ if error.kind() == std::io::ErrorKind::InvalidData => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "DAMAGED", detail)
                .remedy("`outlast doctor --verify` says what is damaged; it is kept as it is")
        }
        _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "STORAGE_FAILED", detail).retryable(),
    }
}
