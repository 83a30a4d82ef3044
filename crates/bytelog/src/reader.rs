//! The reading side: from any cursor, along the live end, and away again.

use std::io;

use crate::chain::{Link, Segment, between, dropped, links, segment_names};
use crate::disk::Disk;
use crate::error::{Error, Op};
use crate::format::{Body, LogId, SegmentName, Stream};
use crate::gap::{Gap, GapLength};
use crate::scan::{Place, Scanner, Step, read_header};

/// Items of one answer, so that a million one-byte frames do not become one list.
const MAX_ITEMS: usize = 4096;
/// Listings of the directory in search of one segment.
const MAX_ATTEMPTS: usize = 16;

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Output, never empty, at most [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) bytes.
    Data {
        /// Where the command wrote it.
        stream: Stream,
        /// The cursor of the first byte.
        offset: u64,
        /// When it was drained, in µs since the Unix epoch.
        time_us: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Output that is missing here.
    Gap(Gap),
}

/// Takes what a [`Reader`] yields, in order of cursor, without a copy in between.
pub trait Sink {
    /// Output, never empty, at most [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) bytes: see [`Item::Data`].
    fn data(&mut self, stream: Stream, offset: u64, time_us: u64, bytes: &[u8]);
    /// Output that is missing here.
    fn gap(&mut self, gap: Gap);
}

impl Sink for Vec<Item> {
    fn data(&mut self, stream: Stream, offset: u64, time_us: u64, bytes: &[u8]) {
        self.push(Item::Data { stream, offset, time_us, bytes: bytes.to_vec() });
    }

    fn gap(&mut self, gap: Gap) {
        self.push(Item::Gap(gap));
    }
}

/// Where one call of [`Reader::read_into`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The cursor to ask at next.
    pub next: u64,
    /// The cursor behind the last frame that was seen. Below `next` if the caller's cursor is beyond
    /// what is there.
    pub end: u64,
    /// Why it ended there.
    pub tail: Tail,
}

/// Why an answer ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The answer is full; ask again at `next`.
    More,
    /// Nothing more is there yet. If the writer is gone, nothing more will come without
    /// [`recover`](crate::recover()), and `torn` bytes of a file behind the last whole frame are a torn
    /// or damaged tail; while it lives they are a write under way.
    Open {
        /// Bytes of the file behind the last whole frame.
        torn: u64,
    },
    /// The log has its end record.
    Ended {
        /// The final cursor.
        cursor: u64,
    },
}

/// What one call of [`Reader::read_from`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Data and gaps in order of cursor.
    pub items: Vec<Item>,
    /// The cursor to ask at next.
    pub next: u64,
    /// The cursor behind the last frame that was seen. Below `next` if the caller's cursor is beyond
    /// what is there.
    pub end: u64,
    /// Why the answer ends there.
    pub tail: Tail,
}

struct Open<F> {
    name: SegmentName,
    superseded_from: Option<u64>,
    file: F,
    scanner: Scanner,
    ended: bool,
}

/// One reader of a job's log. It changes nothing and may come and go while the writer works.
///
/// What it yields has passed every check from the beginning of its segment, but may be provisional:
/// only the writer knows what is committed, and a caller that needs that stops at the committed cursor
/// it was told.
///
/// A call with the cursor that the call before returned costs no more than what is new. With another
/// cursor the segment is walked from its beginning.
///
/// A gap of unknown length at the cursor asked for is yielded again each time a reader starts there.
/// After a storage failure a later epoch may begin below cursors that were read already: then the next
/// items lie below the cursor asked for, and replace what was read from there on.
pub struct Reader<D: Disk> {
    disk: D,
    id: Option<LogId>,
    /// Every segment file of the last listing; `None` while its header is not sound.
    known: Vec<(SegmentName, Option<Segment>)>,
    links: Vec<Link>,
    dropped: (u64, u64),
    open: Option<Open<D::File>>,
    /// Where the last segment was left, and whether uncleanly. `None` after a fresh start.
    left: Option<(SegmentName, Place, bool)>,
    /// The cursor behind the last item yielded. `None` before the first call.
    at: Option<u64>,
    end: u64,
    /// The rest of a frame of which the last answer could take only a part.
    pending: Option<Rest>,
}

impl<D: Disk> Reader<D> {
    /// Reads the log in the directory, of whichever job its first sound segment is. Touches no file.
    #[must_use]
    pub fn open(disk: D) -> Reader<D> {
        Reader {
            disk,
            id: None,
            known: Vec::new(),
            links: Vec::new(),
            dropped: (0, 0),
            open: None,
            left: None,
            at: None,
            end: 0,
            pending: None,
        }
    }

    /// Reads only segments of this job; others count as damaged.
    #[must_use]
    pub fn open_as(disk: D, id: LogId) -> Reader<D> {
        Reader { id: Some(id), ..Reader::open(disk) }
    }

    /// Yields what there is from `cursor` on: about `max_bytes` of data at most, at least one byte of
    /// it if there is any, and at most 4,096 items.
    ///
    /// # Errors
    /// [`Error::StorageFailed`] if the directory or a file cannot be read. The reader stays usable.
    pub fn read_from(&mut self, cursor: u64, max_bytes: usize) -> Result<ReadOutcome, Error> {
        let mut items = Vec::new();
        let Extent { next, end, tail } = self.read_into(cursor, max_bytes, &mut items)?;
        Ok(ReadOutcome { items, next, end, tail })
    }

    /// As [`Reader::read_from`], into a sink. After an error the sink holds what was read before it; the next call
    /// yields that again.
    ///
    /// # Errors
    /// As [`Reader::read_from`].
    pub fn read_into(&mut self, cursor: u64, max_bytes: usize, sink: &mut dyn Sink) -> Result<Extent, Error> {
        let result = self.read(cursor, max_bytes.max(1), sink);
        if result.is_err() {
            // What was gathered so far is lost with the error, so the position must not be kept.
            self.at = None;
        }
        result
    }

    fn read(&mut self, cursor: u64, max_bytes: usize, sink: &mut dyn Sink) -> Result<Extent, Error> {
        if self.at != Some(cursor) {
            self.start(cursor)?;
        }
        let mut answer = Answer { sink, count: 0, at: cursor, room: max_bytes, rest: None };
        if let Some(Rest { stream, offset, time_us, bytes }) = self.pending.take() {
            answer.data(stream, offset, time_us, &bytes);
        }
        // Whether the listing is newer than the last sign of progress.
        let mut fresh = false;
        // Whether the directory was looked at again for the step to the next segment.
        let mut relisted = false;
        let mut attempts = 0;
        let tail = loop {
            if answer.is_full() {
                break Tail::More;
            }
            let Some(open) = self.open.as_mut() else {
                match self.enter_next(&mut answer, relisted)? {
                    Entered::Segment => (fresh, relisted, attempts) = (false, false, 0),
                    Entered::StaleListing if attempts < MAX_ATTEMPTS => {
                        self.list()?;
                        relisted = true;
                        attempts += 1;
                    }
                    // The writer drops segments as fast as we find them, or the directory contradicts itself.
                    Entered::StaleListing => break Tail::More,
                    Entered::Nothing => break Tail::Open { torn: 0 },
                }
                continue;
            };
            let superseded = open.superseded_from.is_some_and(|bound| open.scanner.place().seq >= bound);
            let mut torn = 0;
            if !superseded && !open.ended {
                match open.scanner.step(&self.disk, &open.file).map_err(Error::storage(Op::Read))? {
                    Step::Frame(frame) => {
                        fresh = false;
                        match frame.body {
                            Body::Data(stream, bytes) => {
                                answer.data(stream, frame.offset, frame.time_us, bytes);
                            }
                            Body::Gap(length, cause) => answer.gap(Gap { from: frame.offset, length, cause }),
                            Body::End => open.ended = true,
                        }
                        self.end = open.scanner.place().offset;
                        continue;
                    }
                    Step::Incomplete { have } => torn = have,
                    Step::Bad => {
                        let len = self.disk.len(&open.file).map_err(Error::storage(Op::Read))?;
                        torn = len.saturating_sub(open.scanner.file_offset());
                    }
                }
            }
            // The listing has to be newer than the look at the end of the file: only a segment that has a
            // successor gets no more frames, so after a listing that shows one, look once more.
            if !superseded && !fresh {
                self.list()?;
                fresh = true;
                continue;
            }
            let (name, place, ended) = (open.name, open.scanner.place(), open.ended);
            if self.links.iter().any(|link| link.segment.name > name) {
                self.left = Some((name, place, torn > 0));
                self.open = None;
            } else if ended {
                break Tail::Ended { cursor: place.offset };
            } else {
                break Tail::Open { torn };
            }
        };
        let (rest, at) = (answer.rest, answer.at);
        self.pending = rest;
        self.at = Some(at);
        Ok(Extent { next: at, end: self.end, tail })
    }

    /// Gets ready to read from a cursor that is not where the last call ended.
    fn start(&mut self, cursor: u64) -> Result<(), Error> {
        self.list()?;
        self.open = None;
        self.pending = None;
        self.left = None;
        self.at = Some(cursor);
        self.end = 0;
        Ok(())
    }

    /// Opens the segment that follows, stating what is missing before it.
    fn enter_next(&mut self, answer: &mut Answer<'_>, relisted: bool) -> Result<Entered, Error> {
        let next = match self.left {
            Some((name, ..)) => self.links.iter().find(|link| link.segment.name > name),
            None => {
                let holds = |link: &&Link| link.segment.first.offset <= answer.at;
                self.links.iter().rev().find(holds).or_else(|| self.links.first())
            }
        };
        let Some(link) = next.copied() else {
            return Ok(if relisted { Entered::Nothing } else { Entered::StaleListing });
        };
        let first = link.segment.first;
        let gaps = match self.left {
            // A later epoch takes back frames that were read already.
            Some((_, place, _)) if first.seq < place.seq => Vec::new(),
            Some((_, place, torn)) => between(place, &link.segment, self.dropped, torn),
            None if first.offset > answer.at => {
                let place = Place { offset: answer.at, ..Place::START };
                between(place, &link.segment, self.dropped, false)
            }
            None => Vec::new(),
        };
        let explained = gaps.iter().all(|gap| gap.cause == crate::GapCause::Limit);
        if !explained && !relisted {
            // A listing made while segments are dropped may miss the new one, whose header explains the
            // hole, and the dropped one as well. It was created before the removal that we have seen.
            return Ok(Entered::StaleListing);
        }
        let file = match self.disk.open(&link.segment.name.to_string(), false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.links.retain(|other| other.segment.name != link.segment.name);
                return Ok(Entered::StaleListing);
            }
            Err(source) => return Err(Error::StorageFailed { op: Op::Open, source }),
        };
        // Only frames that were taken back are read again: a cursor beyond what is there stays where it is.
        if self.left.is_some_and(|(_, place, _)| first.seq < place.seq) && first.offset < answer.at {
            answer.at = first.offset;
        }
        gaps.into_iter().for_each(|gap| answer.gap(gap));
        self.open = Some(Open {
            name: link.segment.name,
            superseded_from: link.superseded_from,
            file,
            scanner: Scanner::new(first),
            ended: false,
        });
        self.end = self.end.max(first.offset);
        Ok(Entered::Segment)
    }

    /// Looks which segments there are, and reads the headers of those that are new.
    fn list(&mut self) -> Result<(), Error> {
        let names = segment_names(&self.disk)?;
        let mut known = Vec::with_capacity(names.len());
        for name in names {
            let before = self.known.binary_search_by_key(&name, |(name, _)| *name).ok();
            let before = before.and_then(|at| self.known.get(at)).and_then(|(_, segment)| *segment);
            let segment = match before {
                Some(segment) => Some(segment),
                None => self.header(name)?,
            };
            known.push((name, segment));
        }
        self.known = known;
        let sound: Vec<Segment> = self.known.iter().filter_map(|(_, segment)| *segment).collect();
        self.links = links(&sound);
        self.dropped = dropped(&sound);
        if let Some(open) = &mut self.open {
            // A removed segment that is open can be read on; what supersedes it is a matter of the others.
            let later = sound.iter().filter(|segment| segment.name.epoch > open.name.epoch);
            open.superseded_from = later.map(|segment| segment.first.seq).min();
        }
        Ok(())
    }

    fn header(&mut self, name: SegmentName) -> Result<Option<Segment>, Error> {
        let file = match self.disk.open(&name.to_string(), false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::StorageFailed { op: Op::Open, source }),
        };
        let Some((header, first)) = read_header(&self.disk, &file, name).map_err(Error::storage(Op::Read))?
        else {
            return Ok(None);
        };
        let ours = *self.id.get_or_insert(header.id) == header.id;
        Ok(ours.then(|| Segment::new(name, &header, first)))
    }
}

enum Entered {
    Segment,
    /// Look at the directory again before deciding.
    StaleListing,
    Nothing,
}

/// The rest of a frame.
struct Rest {
    stream: Stream,
    offset: u64,
    time_us: u64,
    bytes: Vec<u8>,
}

/// What one call gathers. What lies below `at` is left out.
struct Answer<'s> {
    sink: &'s mut dyn Sink,
    count: usize,
    at: u64,
    room: usize,
    rest: Option<Rest>,
}

impl Answer<'_> {
    fn is_full(&self) -> bool {
        self.room == 0 || self.count >= MAX_ITEMS
    }

    fn data(&mut self, stream: Stream, offset: u64, time_us: u64, bytes: &[u8]) {
        let known = usize::try_from(self.at.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(bytes) = bytes.get(known..).filter(|bytes| !bytes.is_empty()) else { return };
        let offset = offset + known as u64;
        let (now, later) = bytes.split_at(bytes.len().min(self.room));
        self.at = offset + now.len() as u64;
        if !later.is_empty() {
            self.rest = Some(Rest { stream, offset: self.at, time_us, bytes: later.to_vec() });
        }
        self.room -= now.len();
        self.count += 1;
        self.sink.data(stream, offset, time_us, now);
    }

    fn gap(&mut self, gap: Gap) {
        let to = gap.to();
        match gap.length {
            GapLength::Known(_) if to > self.at => {
                let from = gap.from.max(self.at);
                self.sink.gap(Gap::known(from..to, gap.cause));
                self.count += 1;
                self.at = to;
            }
            GapLength::Unknown if gap.from >= self.at => {
                self.sink.gap(gap);
                self.count += 1;
            }
            _ => {}
        }
    }
}
