//! Hides the values of declared secrets, in the forms in which programs tend to print them.
//!
//! The forms of all values are the patterns of one automaton, which reads every byte once. Where a pattern
//! ends, the bytes it covers are masked; patterns may overlap, and all of them count. The state of the
//! automaton says how many of the newest bytes could still become part of a pattern: only those are held
//! back.

mod encode;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use crate::MASK;

/// The fewest bytes a value may have. Shorter ones occur by chance everywhere, and masking those would
/// destroy output and yet give the value away.
pub const MIN_VALUE_LEN: usize = 4;

/// The most bytes a value may have.
pub const MAX_VALUE_LEN: usize = 16 * 1024;

/// The most bytes all values of one job may have together. All forms of a value take some 1,300 times its
/// length in memory, which for a token is 100 KiB, for a key file 2 MiB, and at this limit some 45 MiB.
pub const MAX_TOTAL_LEN: usize = 32 * 1024;

/// Why a set of secrets cannot be masked. Names the secret, never its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretsError {
    /// The value is shorter than [`MIN_VALUE_LEN`].
    TooShort {
        /// Whose value.
        name: String,
    },
    /// The value is longer than [`MAX_VALUE_LEN`].
    TooLong {
        /// Whose value.
        name: String,
    },
    /// All values together are longer than [`MAX_TOTAL_LEN`].
    TooMuch,
}

impl fmt::Display for SecretsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { name } => {
                write!(
                    f,
                    "the value of secret {name} is shorter than {MIN_VALUE_LEN} bytes and cannot be masked"
                )
            }
            Self::TooLong { name } => {
                write!(f, "the value of secret {name} is longer than {MAX_VALUE_LEN} bytes")
            }
            Self::TooMuch => {
                write!(f, "the values of all secrets together are longer than {MAX_TOTAL_LEN} bytes")
            }
        }
    }
}

impl std::error::Error for SecretsError {}

/// The declared secrets of a job, ready to be looked for. Cheap to clone.
#[derive(Clone)]
pub struct Secrets {
    names: Arc<[String]>,
    search: Option<Arc<Search>>,
}

impl Secrets {
    /// Prepares to mask each value, and what these make of it:
    ///
    /// - base64 in the standard and the URL alphabet, with and without padding, also as part of something
    ///   longer, in each of the three ways in which it can then lie;
    /// - hexadecimal, upper and lower case;
    /// - percent-encoding, as the usual libraries do it;
    /// - the inside of a JSON string, once or twice over;
    /// - line ends as a terminal makes them.
    ///
    /// Line ends at the end of a value are not taken to belong to it, for a value read from a file has them
    /// and what is made of it has not. Of base64 that holds a secret among other things, the first and the
    /// last character may belong to both, and are left.
    ///
    /// # Errors
    /// If a value is too short or too long, or all are too long together; the error names the limit.
    pub fn new(values: Vec<(String, Vec<u8>)>) -> Result<Self, SecretsError> {
        let mut names = Vec::with_capacity(values.len());
        let mut patterns = BTreeSet::new();
        let mut total = 0;
        for (name, value) in values {
            let ends = value.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            let value = &value[..value.len() - ends];
            if value.len() < MIN_VALUE_LEN {
                return Err(SecretsError::TooShort { name });
            }
            if value.len() > MAX_VALUE_LEN {
                return Err(SecretsError::TooLong { name });
            }
            total += value.len();
            if total > MAX_TOTAL_LEN {
                return Err(SecretsError::TooMuch);
            }
            encode::forms_of(value, &mut patterns);
            names.push(name);
        }
        let search = if patterns.is_empty() { None } else { Some(Arc::new(Search::new(patterns)?)) };
        Ok(Self { names: names.into(), search })
    }

    /// No secrets: nothing is ever masked.
    #[must_use]
    pub fn none() -> Self {
        Self { names: Arc::new([]), search: None }
    }

    /// Whether there is nothing to mask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.search.is_none()
    }

    /// A masker for one stream, at its start.
    #[must_use]
    pub fn masker(&self) -> Masker {
        let state = self.search.as_ref().map_or(StateID::default(), |search| search.start);
        Masker { search: self.search.clone(), state, held: Vec::new() }
    }

    /// Masks a text that is complete, in place.
    pub fn mask(&self, text: &mut [u8]) {
        if let Some(search) = &self.search {
            let mut state = search.start;
            search.run(&mut state, text, 0);
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Masks one stream, chunk by chunk.
///
/// Each stream needs one of its own: a secret may be cut by a chunk's border, but not by that of another
/// stream.
pub struct Masker {
    search: Option<Arc<Search>>,
    state: StateID,
    /// The newest bytes, which may turn out to begin a secret.
    held: Vec<u8>,
}

impl Masker {
    /// Whether this masker passes everything on as it is, so that a caller may spare itself the copy.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.search.is_none()
    }

    /// Takes the next bytes of the stream and appends to `out` all that are decided now: every byte once, in
    /// order, masked or as it was.
    ///
    /// What is not appended is the beginning of something to be masked, as far as can be seen; that is less
    /// than the longest form of a value.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let Some(search) = &self.search else {
            out.extend_from_slice(chunk);
            return;
        };
        let base = out.len();
        out.append(&mut self.held);
        let read = out.len() - base;
        out.extend_from_slice(chunk);
        let open = &mut out[base..];
        search.run(&mut self.state, open, read);
        // Bytes that are masked already are decided, whatever follows.
        let undecided = open.len() - search.hold(self.state).min(open.len());
        let masked = open[undecided..].iter().take_while(|byte| **byte == MASK).count();
        self.held.extend_from_slice(&open[undecided + masked..]);
        out.truncate(out.len() - self.held.len());
    }

    /// Says that the stream is over, or that nobody can wait for its next bytes, and appends what was held
    /// back. The masker starts anew.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        if let Some(search) = &self.search {
            self.state = search.start;
        }
    }

    /// How many bytes are held back now.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.held.len()
    }
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker").field("held_len", &self.held.len()).finish_non_exhaustive()
    }
}

/// The automaton, and for each of its states what is undecided in it.
struct Search {
    nfa: NFA,
    start: StateID,
    /// The bytes with which a pattern can begin: all others leave the start state where it is.
    begins: Box<[bool; 256]>,
    /// States and how many of the newest bytes are the beginning of a longer pattern in them, ascending by
    /// state.
    holds: Vec<(StateID, u32)>,
}

impl Search {
    fn new(patterns: BTreeSet<Vec<u8>>) -> Result<Self, SecretsError> {
        // Contiguous, not a full table: a keeper waits for hours with this in memory.
        let nfa = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(&patterns);
        let nfa = nfa.map_err(|_| SecretsError::TooMuch)?;
        let start = nfa.start_state(Anchored::No).map_err(|_| SecretsError::TooMuch)?;
        let mut search = Self { nfa, start, begins: Box::new([false; 256]), holds: Vec::new() };

        // The state after the first n bytes of a pattern, from the start, is the one that stands for those n
        // bytes: it is told how many there are by walking all patterns. Only prefixes that go on to a longer
        // pattern are worth holding back.
        let mut holds = std::collections::BTreeMap::new();
        for pattern in &patterns {
            search.begins[usize::from(pattern[0])] = true;
            let mut state = search.start;
            for (read, byte) in pattern.iter().enumerate() {
                holds.insert(state, read as u32);
                state = search.next(state, *byte);
            }
        }
        // The end of a pattern that none goes on from: what may follow it is the longest of its ends that
        // begins another. Shorter patterns first, so that those are known.
        let mut by_len: Vec<&Vec<u8>> = patterns.iter().collect();
        by_len.sort_by_key(|pattern| pattern.len());
        for pattern in by_len {
            let end = search.walk(pattern);
            if !holds.contains_key(&end) {
                let rest = search.walk(&pattern[1..]);
                let hold = holds.get(&rest).copied().unwrap_or(0);
                holds.insert(end, hold);
            }
        }
        search.holds = holds.into_iter().collect();
        Ok(search)
    }

    fn walk(&self, bytes: &[u8]) -> StateID {
        bytes.iter().fold(self.start, |state, byte| self.next(state, *byte))
    }

    fn next(&self, state: StateID, byte: u8) -> StateID {
        self.nfa.next_state(Anchored::No, state, byte)
    }

    /// Reads `text` from `from` on, masking every pattern that ends there. A pattern that began before `text`
    /// was found in time to be masked there.
    fn run(&self, state: &mut StateID, text: &mut [u8], from: usize) {
        let mut at = from;
        while let Some(byte) = text.get(at) {
            if *state == self.start && !self.begins[usize::from(*byte)] {
                at += 1;
                continue;
            }
            *state = self.next(*state, *byte);
            at += 1;
            if self.nfa.is_special(*state) && self.nfa.is_match(*state) {
                let patterns = 0..self.nfa.match_len(*state);
                let lens = patterns.map(|index| self.nfa.pattern_len(self.nfa.match_pattern(*state, index)));
                let len = lens.max().unwrap_or(0);
                text[at.saturating_sub(len)..at].fill(MASK);
            }
        }
    }

    fn hold(&self, state: StateID) -> usize {
        let found = self.holds.binary_search_by_key(&state, |(state, _)| *state);
        found.map_or(0, |index| self.holds[index].1 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let named = |value: &&str| ("NAME".to_owned(), value.as_bytes().to_vec());
        Secrets::new(values.iter().map(named).collect()).unwrap()
    }

    fn push(masker: &mut Masker, chunk: &str) -> String {
        let mut out = Vec::new();
        masker.push(chunk.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_secret_is_masked_across_chunks_and_nothing_else_waits() {
        let mut masker = secrets(&["hunter2"]).masker();
        assert_eq!(push(&mut masker, "password is hun"), "password is ");
        assert_eq!(masker.held_len(), 3);
        assert_eq!(push(&mut masker, "ter"), "");
        assert_eq!(push(&mut masker, "2\n"), "*******\n");
        assert_eq!(push(&mut masker, "hunt"), "");
        assert_eq!(push(&mut masker, "ing\n"), "hunting\n");
        assert_eq!(push(&mut masker, "done hunter2"), "done *******");
        let mut out = b"kept ".to_vec();
        push(&mut masker, "hunte");
        masker.flush(&mut out);
        assert_eq!(out, b"kept hunte");
        assert_eq!(push(&mut masker, "r2 "), "r2 ");
    }

    #[test]
    fn what_is_masked_already_is_not_held_back() {
        // After the first secret its end could begin the second.
        let mut masker = secrets(&["abcd", "cdefgh"]).masker();
        assert_eq!(push(&mut masker, "abcd"), "****");
        assert_eq!(push(&mut masker, "efgh."), "****.");
        // A secret inside the beginning of a longer one.
        let mut masker = secrets(&["bcde", "abcdefgh"]).masker();
        assert_eq!(push(&mut masker, "abcde"), "");
        assert_eq!(push(&mut masker, "f!"), "a****f!");
        assert_eq!(push(&mut masker, "abcdefgh"), "********");
    }

    #[test]
    fn line_ends_of_a_value_read_from_a_file_do_not_belong_to_it() {
        let mut text = b"x-s3cret-y\n".to_vec();
        secrets(&["s3cret\r\n\n"]).mask(&mut text);
        assert_eq!(text, b"x-******-y\n");
    }

    #[test]
    fn wrapped_base64_and_terminal_line_ends_are_known() {
        let value = "0123456789abcdef\n".repeat(8);
        let secrets = secrets(&[&value]);
        let mut text = value.trim_end().replace('\n', "\r\n").into_bytes();
        secrets.mask(&mut text);
        assert!(text.iter().all(|byte| *byte == MASK));
    }

    #[test]
    fn limits_are_refused_by_name_and_never_show_the_value() {
        let new = |len: usize| Secrets::new(vec![("DB_PASSWORD".into(), vec![b'x'; len])]);
        let error = new(3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value of secret DB_PASSWORD is shorter than 4 bytes and cannot be masked"
        );
        assert_eq!(
            Secrets::new(vec![("N".into(), b"abc\n".to_vec())]).unwrap_err(),
            SecretsError::TooShort { name: "N".into() }
        );
        assert!(new(4).is_ok());
        assert!(new(MAX_VALUE_LEN + 1).unwrap_err().to_string().contains("16384"));
        let many = (0..20).map(|at| (at.to_string(), vec![b'x'; 2000])).collect();
        assert_eq!(Secrets::new(many).unwrap_err(), SecretsError::TooMuch);
    }

    #[test]
    fn no_secret_shows_in_debug_output() {
        let secrets = secrets(&["canary"]);
        let mut masker = secrets.masker();
        push(&mut masker, "cana");
        assert_eq!(format!("{secrets:?}"), "Secrets { names: [\"NAME\"], .. }");
        assert_eq!(format!("{masker:?}"), "Masker { held_len: 4, .. }");
    }

    #[test]
    fn without_secrets_everything_passes() {
        for secrets in [Secrets::none(), Secrets::new(Vec::new()).unwrap()] {
            assert!(secrets.is_empty());
            let mut masker = secrets.masker();
            assert!(masker.is_noop());
            assert_eq!(push(&mut masker, "anything"), "anything");
            assert_eq!(masker.held_len(), 0);
        }
    }
}
