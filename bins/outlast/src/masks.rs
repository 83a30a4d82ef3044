//! What of a job's output may reach a program's answer or a person's terminal.
//!
//! Declared secrets never get this far: the keeper masks them before they are stored. These masks hide token shapes
//! that are well known, and on a terminal make harmless what would control it.

use outlast_scrub::terminal::TerminalFilter;
use outlast_scrub::view::{ViewMasker, for_view};

/// More than the longest token that is recognised: a cut closer to one than this could leave a part of it.
pub(crate) const MARGIN: usize = 4096;

/// Hides well-known tokens, byte for byte.
pub(crate) fn hide_tokens(bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let masked = for_view(bytes);
    // The masker keeps every byte's place; were it ever otherwise, showing nothing is the safe side.
    if masked.len() == bytes.len() {
        bytes.copy_from_slice(&masked);
    } else {
        bytes.fill(outlast_scrub::MASK);
    }
}

/// Hides well-known tokens in a text.
pub(crate) fn hide_tokens_in(text: String) -> String {
    let mut bytes = text.into_bytes();
    hide_tokens(&mut bytes);
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// One stream on its way to a person: tokens hidden, and on a terminal what would control it dropped.
#[derive(Debug)]
pub(crate) struct View {
    tokens: ViewMasker,
    terminal: Option<TerminalFilter>,
}

impl View {
    /// At the start of a stream, for a terminal or not.
    pub(crate) fn new(on_terminal: bool) -> View {
        View { tokens: ViewMasker::new(), terminal: on_terminal.then(TerminalFilter::new) }
    }

    /// What may be shown of the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut hidden = Vec::with_capacity(bytes.len());
        self.tokens.push(bytes, &mut hidden);
        self.filter(hidden, false)
    }

    /// What was held back, at the end of the stream.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut hidden = Vec::new();
        self.tokens.flush(&mut hidden);
        self.filter(hidden, true)
    }

    fn filter(&mut self, bytes: Vec<u8>, last: bool) -> Vec<u8> {
        let Some(terminal) = &mut self.terminal else { return bytes };
        let mut shown = Vec::with_capacity(bytes.len());
        terminal.push(&bytes, &mut shown);
        if last {
            terminal.flush(&mut shown);
            if terminal.is_styled() {
                shown.extend_from_slice(b"\x1b[0m");
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_and_ordinary_text_too() {
        let mut text = b"token=ghp_0123456789abcdefghijABCDEFGHIJ012345 done".to_vec();
        let length = text.len();
        hide_tokens(&mut text);
        assert_eq!(text.len(), length);
        assert!(!text.windows(10).any(|part| part == b"abcdefghij"), "{}", String::from_utf8_lossy(&text));
        assert!(text.ends_with(b" done"));
        assert_eq!(hide_tokens_in("make test".to_owned()), "make test");
    }

    #[test]
    fn a_terminal_is_not_controlled() {
        let mut view = View::new(true);
        let shown = [view.push(b"a\x1b]52;c;eA==\x07b\x1b[31m"), view.push(b"c"), view.finish()].concat();
        assert_eq!(shown, b"ab\x1b[31mc\x1b[0m");
        let mut exact = View::new(false);
        assert_eq!([exact.push(b"a\x1b[2Jb"), exact.finish()].concat(), b"a\x1b[2Jb");
    }
}
