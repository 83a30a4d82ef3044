//! What of a job's output may reach a program's answer or a person's terminal.
//!
//! Declared secrets never get this far: the keeper masks them before they are stored. These masks hide token shapes
//! that are well known, and on a terminal make harmless what would control it.

pub(crate) use outlast_hand::masks::{hide_tokens, hide_tokens_in};
use outlast_scrub::terminal::TerminalFilter;
use outlast_scrub::view::ViewMasker;

/// More than the longest token that is recognised: a cut closer to one than this could leave a part of it.
pub(crate) const MARGIN: usize = 4096;

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
    fn a_terminal_is_not_controlled() {
        let mut view = View::new(true);
        let shown = [view.push(b"a\x1b]52;c;eA==\x07b\x1b[31m"), view.push(b"c"), view.finish()].concat();
        assert_eq!(shown, b"ab\x1b[31mc\x1b[0m");
        let mut exact = View::new(false);
        assert_eq!([exact.push(b"a\x1b[2Jb"), exact.finish()].concat(), b"a\x1b[2Jb");
    }
}
