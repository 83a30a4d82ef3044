//! Walking the frames of one segment file, forward only, through a bounded buffer.

use std::io;

use crate::disk::Disk;
use crate::format::{
    Body, FRAME_HEADER, FRAME_MAGIC, FrameHeader, MAX_PAYLOAD, SEGMENT_HEADER, SegmentHeader, SegmentName,
    stored_check,
};

/// Enough for two frames of the greatest size, and all that a scan ever holds.
const FULL_BUFFER: usize = 2 * (FRAME_HEADER + MAX_PAYLOAD);
/// What a follower that finds nothing new holds.
const SMALL_BUFFER: usize = 4096;

/// The place behind a frame: what the next one must continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    /// What the next frame's check continues from.
    pub(crate) check: u32,
    /// The check of the last frame, wherever it was; a new segment's header does not change it.
    pub(crate) last_frame: u32,
}

impl Place {
    /// Before the first frame of a log.
    pub(crate) const START: Place = Place { seq: 0, offset: 0, check: 0, last_frame: 0 };

    /// Behind a frame of this extent and check.
    pub(crate) fn after(self, extent: u64, check: u32) -> Place {
        Place { seq: self.seq + 1, offset: self.offset + extent, check, last_frame: check }
    }
}

/// Reads a segment's header; `None` if the file is too short for one or it is not sound.
pub(crate) fn read_header<D: Disk>(
    disk: &D,
    file: &D::File,
    name: SegmentName,
) -> io::Result<Option<(SegmentHeader, Place)>> {
    let mut bytes = [0; SEGMENT_HEADER];
    if read_full(disk, file, 0, &mut bytes)? < SEGMENT_HEADER {
        return Ok(None);
    }
    Ok(SegmentHeader::decode(&bytes, name).map(|(header, check)| (header, header.place(check))))
}

/// Reads until `buffer` is full or the file ends.
fn read_full<D: Disk>(disk: &D, file: &D::File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match disk.read_at(file, at + filled as u64, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A frame that passed every check.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) offset: u64,
    pub(crate) time_us: u64,
    pub(crate) body: Body<'a>,
}

#[derive(Debug)]
pub(crate) enum Step<'a> {
    Frame(Frame<'a>),
    /// The file ends before the next frame does; 0 bytes of it are there if the end is clean.
    Incomplete {
        have: u64,
    },
    /// The next bytes are not the frame that belongs here.
    Bad,
}

/// A position in one segment, with the state of its chain.
///
/// A step that yields no frame leaves the position where it was and forgets what it read, so that
/// the next call looks at the file again.
#[derive(Debug)]
pub(crate) struct Scanner {
    next: Place,
    buffer: Vec<u8>,
    /// The file offset of `buffer[0]`.
    buffer_at: u64,
    at: usize,
    filled: usize,
}

impl Scanner {
    /// Starts behind the header of a segment.
    pub(crate) fn new(first: Place) -> Scanner {
        Scanner { next: first, buffer: Vec::new(), buffer_at: SEGMENT_HEADER as u64, at: 0, filled: 0 }
    }

    /// What the next frame must continue.
    pub(crate) fn place(&self) -> Place {
        self.next
    }

    /// The file offset behind the last frame.
    pub(crate) fn file_offset(&self) -> u64 {
        self.buffer_at + self.at as u64
    }

    pub(crate) fn step<D: Disk>(&mut self, disk: &D, file: &D::File) -> io::Result<Step<'_>> {
        if self.ensure(disk, file, FRAME_HEADER)? < FRAME_HEADER {
            return Ok(self.incomplete());
        }
        let mut header_bytes = [0; FRAME_HEADER];
        header_bytes.copy_from_slice(&self.buffer[self.at..self.at + FRAME_HEADER]);
        let header = match FrameHeader::decode(&header_bytes) {
            Some(header) if header.seq == self.next.seq && header.offset == self.next.offset => header,
            _ => return Ok(self.bad()),
        };
        let whole = FRAME_HEADER + header.payload_len();
        if self.ensure(disk, file, whole)? < whole {
            return Ok(self.incomplete());
        }
        let at = self.at;
        let follow = header
            .verify(&header_bytes, &self.buffer[at + FRAME_HEADER..at + whole], self.next.check)
            .and_then(|(body, check)| {
                let offset = header.offset.checked_add(body.extent())?;
                Some(Place { seq: header.seq.checked_add(1)?, offset, check, last_frame: check })
            });
        let Some(follow) = follow else { return Ok(self.bad()) };
        self.next = follow;
        self.at += whole;
        // Decoded a second time, because the borrow of the buffer has to begin after the updates above.
        match header.body(&self.buffer[at + FRAME_HEADER..at + whole]) {
            Some(body) => Ok(Step::Frame(Frame { offset: header.offset, time_us: header.time_us, body })),
            None => Ok(Step::Bad),
        }
    }

    /// Makes at least `need` bytes from the position available, if the file has them.
    fn ensure<D: Disk>(&mut self, disk: &D, file: &D::File, need: usize) -> io::Result<usize> {
        while self.filled - self.at < need {
            if self.at + need > self.buffer.len() || self.filled == self.buffer.len() {
                self.buffer.copy_within(self.at..self.filled, 0);
                self.buffer_at += self.at as u64;
                self.filled -= self.at;
                self.at = 0;
                // Grown only once the file has shown that there is something to read.
                let size =
                    if self.filled == 0 && self.buffer.is_empty() { SMALL_BUFFER } else { FULL_BUFFER };
                if self.buffer.is_empty() {
                    self.buffer = vec![0; size];
                } else if self.buffer.len() < size {
                    self.buffer.resize(size, 0);
                }
            }
            let at = self.buffer_at + self.filled as u64;
            match disk.read_at(file, at, &mut self.buffer[self.filled..]) {
                Ok(0) => break,
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.forget();
                    return Err(error);
                }
            }
        }
        Ok(self.filled - self.at)
    }

    fn incomplete(&mut self) -> Step<'static> {
        let have = (self.filled - self.at) as u64;
        self.forget();
        Step::Incomplete { have }
    }

    fn bad(&mut self) -> Step<'static> {
        self.forget();
        Step::Bad
    }

    fn forget(&mut self) {
        self.buffer_at += self.at as u64;
        self.at = 0;
        self.filled = 0;
        self.buffer = Vec::new();
    }
}

/// Looks behind the bad frame at `bad_at` for frames that were written later, and returns the cursor
/// behind the last of them.
///
/// A frame counts if it is whole and valid behind the check stored in the frame before it, or behind
/// the one that the bad frame has or ought to have. What is found is evidence that more was written,
/// never data: an old file's frames also continue each other.
pub(crate) fn later_frames<D: Disk>(
    disk: &D,
    file: &D::File,
    bad_at: u64,
    expected: Place,
) -> io::Result<Option<u64>> {
    let mut search = Search { min_offset: expected.offset, seq: Some(expected.seq), ..Search::default() };
    let mut bytes = [0; FRAME_HEADER];
    if read_full(disk, file, bad_at, &mut bytes)? == FRAME_HEADER {
        search.anywhere = Some(stored_check(&bytes));
        if let Some(header) = FrameHeader::decode(&bytes) {
            let mut payload = vec![0; header.payload_len()];
            let end = bad_at + (FRAME_HEADER + payload.len()) as u64;
            if read_full(disk, file, bad_at + FRAME_HEADER as u64, &mut payload)? == payload.len() {
                search.seeds.push((end, header.computed_check(&bytes, &payload, expected.check)));
            }
        }
    }
    search.run(disk, file, bad_at)
}

/// The same for a file whose header is not sound.
pub(crate) fn frames_without_header<D: Disk>(disk: &D, file: &D::File, base: u64) -> io::Result<Option<u64>> {
    let mut search = Search { min_offset: base, ..Search::default() };
    let mut bytes = [0; SEGMENT_HEADER];
    if read_full(disk, file, 0, &mut bytes)? == SEGMENT_HEADER {
        let header_check = [bytes[76], bytes[77], bytes[78], bytes[79]];
        search.seeds.push((SEGMENT_HEADER as u64, u32::from_le_bytes(header_check)));
        search.seeds.push((SEGMENT_HEADER as u64, crc32c::crc32c(&bytes[..76])));
    }
    search.run(disk, file, 0)
}

#[derive(Default)]
struct Search {
    min_offset: u64,
    /// The sequence number of the frame that ought to be first, where it is known.
    seq: Option<u64>,
    /// A check that a frame may continue from wherever it begins.
    anywhere: Option<u32>,
    /// Places, and the checks that a frame that begins there may continue from.
    seeds: Vec<(u64, u32)>,
}

impl Search {
    fn run<D: Disk>(mut self, disk: &D, file: &D::File, from: u64) -> io::Result<Option<u64>> {
        let len = disk.len(file)?;
        let rest = len.saturating_sub(from);
        // The command chooses the payload, so it can fill a torn frame with headers that each claim
        // 64 KiB. Past this much work the answer is "yes", which keeps the file.
        let mut budget = rest.saturating_mul(4).saturating_add(1 << 20);
        let most_frames = rest / (FRAME_HEADER as u64 + 1) + 1;
        let mut found = None;
        let mut payload = Vec::new();
        let mut window = vec![0; FULL_BUFFER];
        let mut window_at = from;
        while window_at < len {
            let filled = read_full(disk, file, window_at, &mut window)?;
            if filled < FRAME_HEADER {
                break;
            }
            for at in 0..=filled - FRAME_HEADER {
                if window[at..at + 4] != FRAME_MAGIC {
                    continue;
                }
                let mut bytes = [0; FRAME_HEADER];
                bytes.copy_from_slice(&window[at..at + FRAME_HEADER]);
                let here = window_at + at as u64;
                let plausible = FrameHeader::decode(&bytes).filter(|header| {
                    header.offset >= self.min_offset
                        && self.seq.is_none_or(|seq| header.seq >= seq && header.seq - seq <= most_frames)
                });
                let Some(header) = plausible else { continue };
                let end = here + (FRAME_HEADER + header.payload_len()) as u64;
                self.seeds.retain(|(place, _)| *place >= here);
                if end <= len && here > from {
                    let seeds =
                        self.seeds.iter().filter(|(place, _)| *place == here).map(|(_, check)| *check);
                    for seed in seeds.chain(self.anywhere) {
                        let Some(left) = budget.checked_sub(end - here) else {
                            return Ok(Some(found.unwrap_or(self.min_offset)));
                        };
                        budget = left;
                        payload.resize(header.payload_len(), 0);
                        let read = read_full(disk, file, here + FRAME_HEADER as u64, &mut payload)?;
                        if read == payload.len()
                            && let Some((body, _)) = header.verify(&bytes, &payload, seed)
                        {
                            found = found.max(header.offset.checked_add(body.extent()));
                            break;
                        }
                    }
                }
                self.seeds.push((end, stored_check(&bytes)));
                // Fakes again: real frames leave one place at a time.
                if self.seeds.len() > 256 {
                    return Ok(Some(found.unwrap_or(self.min_offset)));
                }
            }
            window_at += (filled - FRAME_HEADER + 1) as u64;
        }
        Ok(found)
    }
}
