//! The bytes of a segment file, format version 1.
//!
//! All integers are little-endian. A segment is one segment header, then frames back to back.
//!
//! **Segment header**, 80 bytes:
//!
//! | at | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 8 | magic | `89 4F 4C 4F 47 0D 0A 1A` |
//! | 8 | 2 | version | 1 |
//! | 10 | 2 | header length | 80 |
//! | 12 | 4 | epoch | which writer made it, from 1 |
//! | 16 | 16 | log id | the job's nonce |
//! | 32 | 8 | base | cursor of the first frame |
//! | 40 | 8 | first seq | sequence number of the first frame, from 0 over the whole log |
//! | 48 | 8 | dropped from | cursor of the first byte that the size limit dropped |
//! | 56 | 8 | dropped to | cursor behind the last one; equal to the former if it dropped none |
//! | 64 | 4 | previous check | check of the last frame before this segment, 0 if there is none |
//! | 68 | 8 | reserved | zero |
//! | 76 | 4 | check | CRC32C of bytes 0 to 76 |
//!
//! **Frame**, 40 bytes of header and up to 65,536 bytes of payload:
//!
//! | at | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | magic | `A7 66 72 6D` |
//! | 4 | 4 | length | of the payload; checked before anything is allocated for it |
//! | 8 | 1 | type | 1 data, 2 gap, 3 end |
//! | 9 | 1 | stream | data: 1 stdout, 2 stderr; else 0 |
//! | 10 | 2 | reserved | zero |
//! | 12 | 8 | seq | one more than that of the frame before |
//! | 20 | 8 | offset | cursor of the first byte |
//! | 28 | 8 | time | µs since the Unix epoch, as the scribe's clock had it |
//! | 36 | 4 | check | CRC32C of bytes 0 to 36 and the payload, continued from the check before |
//! | 40 | … | payload | data: 1 to 65,536 bytes of output |
//!
//! The check of a frame continues from the check of the frame before it, that of a segment's first
//! frame from the check of the segment header. A frame is therefore valid only behind exactly the
//! frames it was written behind, in that epoch of that job.
//!
//! A **gap** has 16 bytes of payload: length u64, form u8 (1 known, 2 unknown, with length 0), cause
//! u8, and six zero bytes. A known gap takes up `length` cursors, an unknown one none. The **end**
//! has 8: the final cursor, equal to its offset. Nothing follows it.
//!
//! # Which bytes count
//!
//! Segments are ordered by epoch, then base. A segment of a later epoch with first seq *s*
//! supersedes, in all earlier epochs, every frame from *s* on. Between what is left, a hole within the
//! dropped range of the last header was made by the size limit; any other hole is a loss.

use std::fmt;

use crate::flaws;
use crate::gap::{GapCause, GapLength};
use crate::scan::Place;

/// The length of a segment header in bytes.
pub const SEGMENT_HEADER: usize = 80;
/// The length of a frame header in bytes.
pub const FRAME_HEADER: usize = 40;
/// The most bytes one frame carries.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// The version written and the only one read.
pub const VERSION: u16 = 1;

const SEGMENT_MAGIC: [u8; 8] = [0x89, b'O', b'L', b'O', b'G', b'\r', b'\n', 0x1a];
pub(crate) const FRAME_MAGIC: [u8; 4] = [0xa7, b'f', b'r', b'm'];
const GAP_PAYLOAD: usize = 16;
const END_PAYLOAD: usize = 8;

/// The nonce that ties segment files to one job, so that no other job's bytes pass for its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub [u8; 16]);

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Where bytes were written by the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, also of a terminal and of merged output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The code in a frame, which is the descriptor's number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    fn from_code(code: u8) -> Option<Stream> {
        match code {
            1 => Some(Stream::Stdout),
            2 => Some(Stream::Stderr),
            _ => None,
        }
    }
}

/// The name of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// The writer's epoch.
    pub epoch: u32,
    /// The cursor of the first frame.
    pub base: u64,
}

impl SegmentName {
    /// Reads a file name; anything that is not exactly a segment's name is `None`.
    #[must_use]
    pub fn parse(name: &str) -> Option<SegmentName> {
        let rest = name.strip_prefix("log.")?;
        let (epoch, base) = rest.split_once('.')?;
        let digits = |text: &str, width| text.len() == width && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(epoch, 8) || !digits(base, 20) {
            return None;
        }
        Some(SegmentName { epoch: epoch.parse().ok()?, base: base.parse().ok()? })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log.{:08}.{:020}", self.epoch, self.base)
    }
}

/// The greatest epoch that a file name can hold.
pub(crate) const MAX_EPOCH: u32 = 99_999_999;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) epoch: u32,
    pub(crate) id: LogId,
    pub(crate) base: u64,
    pub(crate) first_seq: u64,
    /// From and to.
    pub(crate) dropped: (u64, u64),
    pub(crate) previous_check: u32,
}

impl SegmentHeader {
    /// The place of the first frame, given the header's own check.
    pub(crate) fn place(&self, check: u32) -> Place {
        Place { seq: self.first_seq, offset: self.base, check, last_frame: self.previous_check }
    }

    /// The bytes and the check that the first frame continues from.
    pub(crate) fn encode(&self) -> ([u8; SEGMENT_HEADER], u32) {
        let mut out = [0; SEGMENT_HEADER];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&(SEGMENT_HEADER as u16).to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..32].copy_from_slice(&self.id.0);
        out[32..40].copy_from_slice(&self.base.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_seq.to_le_bytes());
        out[48..56].copy_from_slice(&self.dropped.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.dropped.1.to_le_bytes());
        out[64..68].copy_from_slice(&self.previous_check.to_le_bytes());
        let check = crc32c::crc32c(&out[..76]);
        out[76..80].copy_from_slice(&check.to_le_bytes());
        (out, check)
    }

    /// The header and its check; `None` if it is torn, damaged, of another version, or not what the
    /// file's name says.
    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER], name: SegmentName) -> Option<(SegmentHeader, u32)> {
        let check = u32::from_le_bytes(array(bytes, 76));
        let sound = bytes[0..8] == SEGMENT_MAGIC
            && u16::from_le_bytes(array(bytes, 8)) == VERSION
            && usize::from(u16::from_le_bytes(array(bytes, 10))) == SEGMENT_HEADER
            && bytes[68..76] == [0; 8]
            && crc32c::crc32c(&bytes[..76]) == check;
        let header = SegmentHeader {
            epoch: u32::from_le_bytes(array(bytes, 12)),
            id: LogId(array(bytes, 16)),
            base: u64::from_le_bytes(array(bytes, 32)),
            first_seq: u64::from_le_bytes(array(bytes, 40)),
            dropped: (u64::from_le_bytes(array(bytes, 48)), u64::from_le_bytes(array(bytes, 56))),
            previous_check: u32::from_le_bytes(array(bytes, 64)),
        };
        let named = SegmentName { epoch: header.epoch, base: header.base } == name;
        (sound && named).then_some((header, check))
    }
}

/// The fields of a frame header that the payload does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    kind: u8,
    stream: u8,
    len: u32,
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) time_us: u64,
}

/// What a valid frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Data(Stream, &'a [u8]),
    Gap(GapLength, GapCause),
    End,
}

/// Encodes a data frame's header, and returns it with the frame's check.
pub(crate) fn encode_data(
    stream: Stream,
    (seq, offset, time_us): (u64, u64, u64),
    payload: &[u8],
    previous: u32,
) -> ([u8; FRAME_HEADER], u32) {
    encode(1, stream.code(), (seq, offset, time_us), payload, previous)
}

/// Encodes a whole gap frame, and returns it with its check.
pub(crate) fn encode_gap(
    length: GapLength,
    cause: GapCause,
    place: (u64, u64, u64),
    previous: u32,
) -> ([u8; FRAME_HEADER + GAP_PAYLOAD], u32) {
    let mut payload = [0; GAP_PAYLOAD];
    let (len, form) = match length {
        GapLength::Known(n) => (n, 1),
        GapLength::Unknown => (0, 2),
    };
    payload[0..8].copy_from_slice(&len.to_le_bytes());
    payload[8] = form;
    payload[9] = cause.code();
    let (header, check) = encode(2, 0, place, &payload, previous);
    let mut out = [0; FRAME_HEADER + GAP_PAYLOAD];
    out[..FRAME_HEADER].copy_from_slice(&header);
    out[FRAME_HEADER..].copy_from_slice(&payload);
    (out, check)
}

/// Encodes a whole end frame, and returns it with its check.
pub(crate) fn encode_end(place: (u64, u64, u64), previous: u32) -> ([u8; FRAME_HEADER + END_PAYLOAD], u32) {
    let payload = place.1.to_le_bytes();
    let (header, check) = encode(3, 0, place, &payload, previous);
    let mut out = [0; FRAME_HEADER + END_PAYLOAD];
    out[..FRAME_HEADER].copy_from_slice(&header);
    out[FRAME_HEADER..].copy_from_slice(&payload);
    (out, check)
}

fn encode(
    kind: u8,
    stream: u8,
    (seq, offset, time_us): (u64, u64, u64),
    payload: &[u8],
    previous: u32,
) -> ([u8; FRAME_HEADER], u32) {
    let mut out = [0; FRAME_HEADER];
    out[0..4].copy_from_slice(&FRAME_MAGIC);
    // The writer cuts payloads to MAX_PAYLOAD, so the cast keeps the value.
    out[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    out[8] = kind;
    out[9] = stream;
    out[12..20].copy_from_slice(&seq.to_le_bytes());
    out[20..28].copy_from_slice(&offset.to_le_bytes());
    out[28..36].copy_from_slice(&time_us.to_le_bytes());
    let check = frame_check(previous, &out[..36], payload);
    out[36..40].copy_from_slice(&check.to_le_bytes());
    (out, check)
}

fn frame_check(previous: u32, header: &[u8], payload: &[u8]) -> u32 {
    let seed = if flaws::unchained() { 0 } else { previous };
    crc32c::crc32c_append(crc32c::crc32c_append(seed, header), payload)
}

impl FrameHeader {
    /// Reads a header whose lengths and codes are possible. Nothing is known of the check yet.
    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER]) -> Option<FrameHeader> {
        let header = FrameHeader {
            len: u32::from_le_bytes(array(bytes, 4)),
            kind: bytes[8],
            stream: bytes[9],
            seq: u64::from_le_bytes(array(bytes, 12)),
            offset: u64::from_le_bytes(array(bytes, 20)),
            time_us: u64::from_le_bytes(array(bytes, 28)),
        };
        let len = header.payload_len();
        let possible = match header.kind {
            1 => Stream::from_code(header.stream).is_some() && (1..=MAX_PAYLOAD).contains(&len),
            2 => header.stream == 0 && len == GAP_PAYLOAD,
            3 => header.stream == 0 && len == END_PAYLOAD,
            _ => false,
        };
        (possible && bytes[0..4] == FRAME_MAGIC && bytes[10..12] == [0; 2]).then_some(header)
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.len as usize
    }

    /// What the frame says, and its check, if the check holds behind `previous`.
    pub(crate) fn verify<'a>(
        &self,
        bytes: &[u8; FRAME_HEADER],
        payload: &'a [u8],
        previous: u32,
    ) -> Option<(Body<'a>, u32)> {
        let stored = stored_check(bytes);
        if !flaws::unchecked() && self.computed_check(bytes, payload, previous) != stored {
            return None;
        }
        Some((self.body(payload)?, stored))
    }

    /// The check that a frame of this header and payload has behind `previous`.
    pub(crate) fn computed_check(&self, bytes: &[u8; FRAME_HEADER], payload: &[u8], previous: u32) -> u32 {
        frame_check(previous, &bytes[..36], payload)
    }

    /// What the payload says, whatever the check says; `None` if this version cannot have written it.
    pub(crate) fn body<'a>(&self, payload: &'a [u8]) -> Option<Body<'a>> {
        match self.kind {
            1 => Some(Body::Data(Stream::from_code(self.stream)?, payload)),
            2 => {
                let payload: &[u8; GAP_PAYLOAD] = payload.try_into().ok()?;
                let n = u64::from_le_bytes(array(payload, 0));
                let length = match (payload[8], n) {
                    (1, 1..) => GapLength::Known(n),
                    (2, 0) => GapLength::Unknown,
                    _ => return None,
                };
                Some(Body::Gap(length, GapCause::from_code(payload[9])))
            }
            3 if payload == self.offset.to_le_bytes() => Some(Body::End),
            _ => None,
        }
    }
}

impl Body<'_> {
    /// How many cursors the frame takes up.
    pub(crate) fn extent(&self) -> u64 {
        match self {
            Body::Data(_, bytes) => bytes.len() as u64,
            Body::Gap(GapLength::Known(n), _) => *n,
            Body::Gap(GapLength::Unknown, _) | Body::End => 0,
        }
    }
}

/// The check that a frame header carries.
pub(crate) fn stored_check(bytes: &[u8; FRAME_HEADER]) -> u32 {
    u32::from_le_bytes(array(bytes, 36))
}

/// `N` bytes of a fixed-size header from `at`; every caller's range lies inside it.
fn array<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_nothing_else_passes() {
        let name = SegmentName { epoch: 3, base: u64::MAX };
        assert_eq!(name.to_string(), "log.00000003.18446744073709551615");
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
        for bad in [
            "log.00000003.18446744073709551616", // one more than a cursor holds
            "log.3.00000000000000000000",
            "log.00000003.+0000000000000000000",
            "log.00000003.00000000000000000000.tmp",
            "receipt.json",
            "log.",
        ] {
            assert_eq!(SegmentName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_in_a_frame_is_seen() {
        let payload = b"some output";
        let (header, check) = encode_data(Stream::Stderr, (4, 99, 12), payload, 0xdead_beef);
        let decoded = FrameHeader::decode(&header).unwrap();
        assert_eq!(
            decoded.verify(&header, payload, 0xdead_beef),
            Some((Body::Data(Stream::Stderr, payload), check))
        );
        assert_eq!(decoded.verify(&header, payload, 0xdead_bee0), None, "another predecessor");
        for bit in 0..(FRAME_HEADER + payload.len()) * 8 {
            let mut header = header;
            let mut payload = *payload;
            match bit / 8 {
                at if at < FRAME_HEADER => header[at] ^= 1 << (bit % 8),
                at => payload[at - FRAME_HEADER] ^= 1 << (bit % 8),
            }
            let seen = FrameHeader::decode(&header).and_then(|h| h.verify(&header, &payload, 0xdead_beef));
            assert_eq!(seen, None, "bit {bit}");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_in_a_segment_header_is_seen() {
        let name = SegmentName { epoch: 2, base: 4096 };
        let header = SegmentHeader {
            epoch: 2,
            id: LogId([9; 16]),
            base: 4096,
            first_seq: 7,
            dropped: (5, 11),
            previous_check: 0x1234_5678,
        };
        let (bytes, check) = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes, name), Some((header, check)));
        for bit in 0..SEGMENT_HEADER * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bytes, name), None, "bit {bit}");
        }
    }
}
