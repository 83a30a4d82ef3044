//! The limits of the protocol. A refusal names the one it is about.

use std::time::Duration;

/// The longest that one call waits for something to happen, whatever it asks for. Below the 60 s after which common
/// proxies cut a silent connection.
pub const WAIT_AT_MOST: Duration = Duration::from_secs(50);

/// How far in the future a call's expiry may lie.
pub const EXPIRY_AT_MOST: Duration = Duration::from_secs(3600);

/// The largest JSON body.
pub const JSON_BODY: u64 = 8 << 20;

/// The largest piece of standard input in one call.
pub const STDIN_BODY: u64 = 1 << 20;

/// The largest standard input that is spooled for an admission.
pub const SPOOL_BODY: u64 = 1 << 30;

/// The most bytes of output in one answer.
pub const OUTPUT_AT_MOST: u64 = 4 << 20;

/// The bytes of output in an answer to a call that names no number.
pub const OUTPUT_DEFAULT: u64 = 1 << 20;

/// The most jobs in one answer to a listing.
pub const LIST_AT_MOST: u32 = 1000;

/// All headers of one request together.
pub const HEADERS: u32 = 32 << 10;

/// Requests at work at once on one HTTP/2 connection.
pub const STREAMS: u32 = 256;

/// The longest request id, in bytes.
pub const REQUEST_ID: usize = 128;

/// The longest id of a stop, in bytes: it must fit the receipt that lists it.
pub const STOP_ID: usize = 256;

/// Words of a command, variables and secrets, each.
pub const LIST_ITEMS: usize = 16_384;

/// How long TLS, or the attaching of a hand that dialled, may take.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// How long the connecting of a socket, the look-up of its host included, may take.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(10);
