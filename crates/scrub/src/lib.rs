//! Streaming masks for secrets in command output, and a filter for showing that output on a terminal.
//!
//! Three independent filters, each fed chunk by chunk with the same result wherever the chunks are cut:
//!
//! - [`secrets`] hides the values of declared secrets and their usual encodings before output is logged. What
//!   it does not hide it never changes, and offsets stay what they were.
//! - [`view`] hides what looks like a well-known kind of token, for people and models who read the log. It
//!   guesses, so it is applied to views and never to what is stored. Offsets stay as well.
//! - [`terminal`] removes what output could do to the terminal of whoever looks at it, colours excepted.
//!
//! [`remainder`] stands beside the first, for a stream that is taken over from a reader that was lost.
//!
//! All three hold back only bytes whose fate the next ones decide, and need memory that does not depend on
//! how much they are fed.
#![forbid(unsafe_code)]

pub mod remainder;
pub mod secrets;
pub mod terminal;
pub mod view;

/// What a hidden byte is replaced by.
pub const MASK: u8 = b'*';
