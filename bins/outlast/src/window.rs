//! What of a long output a bounded answer shows: its beginning and its end, cut between characters.

use std::collections::VecDeque;

/// The bytes of one stream that an answer keeps: the first `head` and the last `tail` of those it was given.
#[derive(Debug)]
pub(crate) struct Window {
    head_limit: usize,
    tail_limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// Bytes that are known to exist between what was given before and after.
    skipped: bool,
}

/// What a window shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The beginning.
    pub(crate) head: Vec<u8>,
    /// The end; empty where everything is in the head.
    pub(crate) tail: Vec<u8>,
    /// Whether anything lies between the two.
    pub(crate) truncated: bool,
}

impl Window {
    /// A window of at most `limit` bytes, half of them for the end.
    pub(crate) fn new(limit: usize) -> Self {
        Window {
            head_limit: limit - limit / 2,
            tail_limit: limit / 2,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
            skipped: false,
        }
    }

    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = if self.skipped { 0 } else { self.head_limit - self.head.len() };
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
    }

    /// Notes that bytes which may belong to this stream were not looked at: what follows is the end.
    pub(crate) fn skip(&mut self) {
        self.skipped = true;
    }

    /// Bytes given so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What is shown within `limit` bytes (this window's own at most), cut between characters where text was cut.
    /// `prepare` sees the kept bytes before they are cut and may change them, but not their number: what straddles a
    /// cut is whole there, as long as the window is larger than the limit.
    pub(crate) fn shown(self, limit: usize, prepare: impl Fn(&mut [u8])) -> Shown {
        let kept = (self.head.len() + self.tail.len()) as u64;
        let gap_inside = self.skipped || kept < self.total;
        let (mut head, mut tail) = (self.head, Vec::from(self.tail));
        if !gap_inside {
            head.append(&mut tail);
            prepare(&mut head);
            if head.len() <= limit {
                return Shown { head, tail, truncated: false };
            }
            tail = head[head.len() - limit / 2..].to_vec();
        } else {
            prepare(&mut head);
            prepare(&mut tail);
        }
        head.truncate(limit - limit / 2);
        head.truncate(end_of_last_whole_character(&head));
        tail.drain(..tail.len().saturating_sub(limit / 2));
        tail.drain(..start_of_first_whole_character(&tail));
        Shown { head, tail, truncated: true }
    }
}

/// How much of a limit each of two streams may use: what one leaves the other may have.
pub(crate) fn share(limit: usize, a: u64, b: u64) -> (usize, usize) {
    let half = (limit / 2) as u64;
    let whole = limit as u64;
    let for_a = if b <= half { whole - b } else { half.max(whole.saturating_sub(b)) };
    let for_b = if a <= half { whole - a } else { half.max(whole.saturating_sub(a)) };
    // Both fit in usize: neither is more than `limit`.
    (for_a.min(whole) as usize, for_b.min(whole) as usize)
}

/// The length of `bytes` without a character that was cut off at their end. Bytes that are no UTF-8 anyway are not
/// touched.
pub(crate) fn end_of_last_whole_character(bytes: &[u8]) -> usize {
    let looked_at = bytes.len().min(4);
    for back in 1..=looked_at {
        let byte = bytes[bytes.len() - back];
        let length = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if back < length { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

/// Where the first whole character of `bytes` starts, after the rest of one that was cut.
fn start_of_first_whole_character(bytes: &[u8]) -> usize {
    let continuation = bytes.iter().take(4).take_while(|byte| (0x80..=0xbf).contains(*byte)).count();
    if continuation <= 3 { continuation } else { 0 }
}

/// Bytes as text, and whether anything in them was none.
pub(crate) fn text_of(bytes: &[u8]) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(limit: usize, chunks: &[&[u8]]) -> Shown {
        let mut window = Window::new(limit);
        chunks.iter().for_each(|chunk| window.push(chunk));
        window.shown(limit, |_| ())
    }

    #[test]
    fn short_output_is_whole() {
        let all = Shown { head: b"abcdef".to_vec(), tail: Vec::new(), truncated: false };
        assert_eq!(shown(6, &[b"abc", b"def"]), all);
        assert_eq!(shown(100, &[b"abcdef"]), all);
        assert_eq!(shown(0, &[]), Shown { head: Vec::new(), tail: Vec::new(), truncated: false });
    }

    #[test]
    fn long_output_keeps_both_ends() {
        assert_eq!(
            shown(4, &[b"abc", b"def"]),
            Shown { head: b"ab".to_vec(), tail: b"ef".to_vec(), truncated: true }
        );
        assert_eq!(shown(0, &[b"abc"]), Shown { head: Vec::new(), tail: Vec::new(), truncated: true });
        assert_eq!(shown(1, &[b"abc"]), Shown { head: b"a".to_vec(), tail: Vec::new(), truncated: true });
    }

    #[test]
    fn cuts_fall_between_characters() {
        // é is two bytes: the head would end, and the tail begin, in the middle of one.
        let text = "aéaéaéaé".as_bytes();
        let shown = shown(4, &[text]);
        assert_eq!((shown.head.as_slice(), shown.tail.as_slice()), ("a".as_bytes(), "é".as_bytes()));
        let mut window = Window::new(6);
        window.push("ééé€".as_bytes());
        let shown = window.shown(6, |_| ());
        assert_eq!((shown.head.as_slice(), shown.tail.as_slice()), ("é".as_bytes(), "€".as_bytes()));
    }

    #[test]
    fn what_straddles_a_cut_is_prepared_whole() {
        let mut window = Window::new(20);
        window.push(b"ab[secret]cd");
        let hide = |bytes: &mut [u8]| {
            if let Some(at) = bytes.windows(8).position(|part| part == b"[secret]") {
                bytes[at..at + 8].fill(b'*');
            }
        };
        let shown = window.shown(8, hide);
        assert_eq!((shown.head.as_slice(), shown.tail.as_slice()), (&b"ab**"[..], &b"**cd"[..]));
    }

    #[test]
    fn what_was_not_looked_at_counts_as_left_out() {
        let mut window = Window::new(8);
        window.push(b"ab");
        window.skip();
        window.push(b"cd");
        assert_eq!(
            window.shown(8, |_| ()),
            Shown { head: b"ab".to_vec(), tail: b"cd".to_vec(), truncated: true }
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        assert_eq!(end_of_last_whole_character(b"ab\xff"), 3);
        assert_eq!(end_of_last_whole_character(b"\x80\x80\x80\x80\x80"), 5);
        assert_eq!(end_of_last_whole_character(b"a\xe2\x82"), 1);
        assert_eq!(start_of_first_whole_character(b"\x80\x80\x80\x80\x80"), 0);
    }

    #[test]
    fn what_one_stream_leaves_the_other_has() {
        assert_eq!(share(100, 10, 1000), (50, 90));
        assert_eq!(share(100, 1000, 10), (90, 50));
        assert_eq!(share(100, 1000, 1000), (50, 50));
        assert_eq!(share(100, 0, 0), (100, 100));
        assert_eq!(share(101, 60, 60), (50, 50));
    }

    proptest! {
        #[test]
        fn a_window_never_exceeds_its_limit(limit in 0usize..64, chunks: Vec<Vec<u8>>) {
            let mut window = Window::new(limit);
            chunks.iter().for_each(|chunk| window.push(chunk));
            let whole = chunks.concat();
            prop_assert_eq!(window.total(), whole.len() as u64);
            let shown = window.shown(limit, |_| ());
            prop_assert!(shown.head.len() + shown.tail.len() <= limit);
            prop_assert_eq!(shown.truncated, whole.len() > limit);
            prop_assert!(whole.starts_with(&shown.head) && whole.ends_with(&shown.tail));
        }

        #[test]
        fn text_stays_text(limit in 0usize..64, text: String) {
            let mut window = Window::new(limit);
            window.push(text.as_bytes());
            let shown = window.shown(limit, |_| ());
            prop_assert!(std::str::from_utf8(&shown.head).is_ok());
            prop_assert!(std::str::from_utf8(&shown.tail).is_ok());
        }

        #[test]
        fn shares_fit(limit in 0usize..1000, a in 0u64..2000, b in 0u64..2000) {
            let (for_a, for_b) = share(limit, a, b);
            let used = a.min(for_a as u64) + b.min(for_b as u64);
            prop_assert!(used <= limit as u64 + 1, "{used} of {limit}");
            if a + b <= limit as u64 {
                prop_assert!(for_a as u64 >= a && for_b as u64 >= b);
            }
        }
    }
}
