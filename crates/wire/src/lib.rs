//! The hand protocol: what a brain (or any client) and the runner on a hand say to each other.
//!
//! It is HTTP, 1.1 or 2, over any byte stream: a Unix socket, TCP with TLS, the standard streams of `ssh` or of a
//! container's exec; either side may have dialled. Requests and answers are JSON, output and input are raw bytes, and no
//! call lasts longer than [`limits::WAIT_AT_MOST`]: whoever wants to wait on asks again, by cursor.
//!
//! | module | what |
//! |---|---|
//! | [`version`] | which version is spoken, and that nobody talks it down |
//! | [`call`] | the facts each call carries in its headers: scope, request, expiry, sandbox, generation |
//! | [`hello`], [`admission`], [`view`], [`verbs`] | the JSON bodies |
//! | [`records`] | the frames that output travels in when streams and gaps matter |
//! | [`problem`] | errors (RFC 9457) |
//! | [`limits`] | every limit, each with the number |
//! | [`address`] | where a hand is: `unix:`, `tls:`, `ssh:`, `exec:`, `listen:` |
//! | [`attach`] | how a hand that dials becomes the server of who it dialled |
//! | [`tls`] | certificates, pins and tokens, for both ends |
//! | [`client`] | a client |
#![forbid(unsafe_code)]

pub mod address;
pub mod admission;
pub mod attach;
pub mod call;
pub mod client;
pub mod hello;
pub mod limits;
pub mod problem;
pub mod records;
#[cfg(feature = "schema")]
mod schema;
pub mod tls;
pub mod verbs;
pub mod version;
pub mod view;
