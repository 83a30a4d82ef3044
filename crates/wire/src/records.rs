//! The frames that output travels in when the streams it came from, and what is missing of it, matter
//! (`accept: application/vnd.outlast.records`).
//!
//! A record is 24 bytes of head, little-endian, and a payload:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind: 1 data, 2 gap of known length, 3 gap of unknown length |
//! | 1 | stream of data: 1 standard output, 2 standard error; 0 for a gap |
//! | 2–3 | 0 |
//! | 4–7 | length of the payload |
//! | 8–15 | cursor of the first byte |
//! | 16–23 | data: when it was drained, µs since the Unix epoch; gap: its end, 0 where unknown |
//!
//! The payload of data is the bytes, of a gap the word for its cause.

use outlast_core::id::Cursor;
use thiserror::Error;

/// The content type.
pub const CONTENT_TYPE: &str = "application/vnd.outlast.records";

/// Bytes of a head.
pub const HEAD: usize = 24;

/// The longest payload.
pub const PAYLOAD_AT_MOST: usize = crate::limits::OUTPUT_AT_MOST as usize;

/// Where a command wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Output.
    Data {
        /// Where it was written.
        stream: Stream,
        /// The cursor of its first byte.
        offset: Cursor,
        /// When it was drained, µs since the Unix epoch.
        time_us: u64,
        /// Bytes that follow.
        length: usize,
    },
    /// Output that the log does not keep.
    Gap {
        /// Where it begins.
        from: Cursor,
        /// Where it ends; `None` where nobody knows how much was lost.
        to: Option<Cursor>,
        /// Bytes of its cause that follow.
        length: usize,
    },
}

/// Bytes that are no record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadRecord {
    /// The head says nothing that exists.
    #[error("a record's head is damaged")]
    Head,
    /// Its payload would be larger than allowed.
    #[error("a record of {0} bytes, the limit is {PAYLOAD_AT_MOST}")]
    TooLong(usize),
    /// The bytes end within a record.
    #[error("the bytes end within a record")]
    Short,
}

impl Head {
    /// Bytes of the payload.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Head::Data { length, .. } | Head::Gap { length, .. } => *length,
        }
    }

    /// The head as bytes. A length beyond the limit is cut to it: build none.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD] {
        let (kind, stream, length, offset, last) = match *self {
            Head::Data { stream, offset, time_us, length } => {
                (1, if stream == Stream::Stdout { 1 } else { 2 }, length, offset.0, time_us)
            }
            Head::Gap { from, to: Some(to), length } => (2, 0, length, from.0, to.0),
            Head::Gap { from, to: None, length } => (3, 0, length, from.0, 0),
        };
        let length = u32::try_from(length.min(PAYLOAD_AT_MOST)).unwrap_or(u32::MAX);
        let mut head = [0; HEAD];
        head[0] = kind;
        head[1] = stream;
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[8..16].copy_from_slice(&offset.to_le_bytes());
        head[16..24].copy_from_slice(&last.to_le_bytes());
        head
    }

    /// Reads a head; nothing is allocated for what it announces.
    ///
    /// # Errors
    /// [`BadRecord`].
    pub fn decode(head: &[u8; HEAD]) -> Result<Head, BadRecord> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length > PAYLOAD_AT_MOST {
            return Err(BadRecord::TooLong(length));
        }
        if head[2] != 0 || head[3] != 0 {
            return Err(BadRecord::Head);
        }
        let offset = Cursor(word(8));
        match (head[0], head[1]) {
            (1, 1) => Ok(Head::Data { stream: Stream::Stdout, offset, time_us: word(16), length }),
            (1, 2) => Ok(Head::Data { stream: Stream::Stderr, offset, time_us: word(16), length }),
            (2, 0) => Ok(Head::Gap { from: offset, to: Some(Cursor(word(16))), length }),
            (3, 0) if word(16) == 0 => Ok(Head::Gap { from: offset, to: None, length }),
            _ => Err(BadRecord::Head),
        }
    }
}

/// The records in the body of an answer.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
}

/// The records of a whole body, one after the other.
#[must_use]
pub fn records(body: &[u8]) -> Records<'_> {
    Records { rest: body }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(Head, &'a [u8]), BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = take(self.rest);
        match taken {
            Ok((head, payload, rest)) => {
                self.rest = rest;
                Some(Ok((head, payload)))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

fn take(bytes: &[u8]) -> Result<(Head, &[u8], &[u8]), BadRecord> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(BadRecord::Short)?;
    let head = Head::decode(head)?;
    let (payload, rest) = rest.split_at_checked(head.length()).ok_or(BadRecord::Short)?;
    Ok((head, payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads() -> impl Strategy<Value = Head> {
        let length = 0..=PAYLOAD_AT_MOST;
        prop_oneof![
            (any::<bool>(), any::<u64>(), any::<u64>(), length.clone()).prop_map(
                |(out, offset, time_us, length)| {
                    let stream = if out { Stream::Stdout } else { Stream::Stderr };
                    Head::Data { stream, offset: Cursor(offset), time_us, length }
                }
            ),
            (any::<u64>(), any::<Option<u64>>(), length).prop_map(|(from, to, length)| Head::Gap {
                from: Cursor(from),
                to: to.map(Cursor),
                length
            }),
        ]
    }

    proptest! {
        #[test]
        fn heads_are_read_back(head in heads()) {
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }

        #[test]
        fn no_bytes_panic_and_all_end(bytes: Vec<u8>) {
            let mut seen = 0;
            for record in records(&bytes) {
                match record {
                    Ok((head, payload)) => seen += HEAD + payload.len() + usize::from(head.length() != payload.len()) * 1000,
                    Err(_) => seen += 1,
                }
            }
            prop_assert!(seen <= bytes.len() + 1);
        }

        #[test]
        fn what_decodes_encodes_to_the_same(bytes: [u8; HEAD]) {
            if let Ok(head) = Head::decode(&bytes) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }

    #[test]
    fn bodies_are_read_whole() {
        let data = Head::Data { stream: Stream::Stderr, offset: Cursor(7), time_us: 9, length: 3 };
        let gap = Head::Gap { from: Cursor(10), to: None, length: 4 };
        let body = [&data.encode()[..], b"abc", &gap.encode(), b"lost"].concat();
        let read: Vec<_> = records(&body).collect();
        assert_eq!(read, [Ok((data, &b"abc"[..])), Ok((gap, &b"lost"[..]))]);
        let cut: Vec<_> = records(&body[..body.len() - 1]).collect();
        assert_eq!(cut[1], Err(BadRecord::Short));
        let mut long = data.encode();
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Head::decode(&long), Err(BadRecord::TooLong(u32::MAX as usize)));
    }
}
