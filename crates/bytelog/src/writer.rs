//! The writing side: one writer, one epoch at a time.
//!
//! Invariants kept here:
//! 1. `committed` is moved only by a `sync` in which every sync of the epoch so far succeeded.
//! 2. After a failure nothing is written or synced in the epoch, save the one first sync that
//!    `reopen` makes of files whose sync has never failed.
//! 3. A segment is removed only after a later segment's header that says so is durable.
//! 4. The files' total length stays within the limit at every moment.

use std::io::{self, IoSlice};

use crate::chain::segment_names;
use crate::disk::Disk;
use crate::error::{Error, Op};
use crate::flaws;
use crate::format::{
    FRAME_HEADER, LogId, MAX_EPOCH, MAX_PAYLOAD, SEGMENT_HEADER, SegmentHeader, SegmentName, Stream,
    encode_data, encode_end, encode_gap,
};
use crate::gap::{Gap, GapCause, GapLength};
use crate::recover::{Recovered, SegmentFile};
use crate::scan::Place;

/// Frames per system call: 4 MiB of payload, and about 5 KiB of stack for headers and vectors.
const BATCH: usize = 64;
/// A frame smaller than this is not squeezed into the rest of a segment.
const LEAST_CHUNK: usize = 4096;
/// Closed segments that may wait for a sync, each with an open descriptor.
const MAX_UNSYNCED: usize = 64;
/// Gaps a writer lists one by one; those beyond are in the log only.
const MAX_LISTED_GAPS: usize = 256;

/// The sizes of a log. All are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The greatest length of a segment file, and what is dropped at a time.
    pub segment_bytes: u64,
    /// How much of the beginning of the output is kept for ever. The first segment holds it, so less
    /// is kept where frames are so small that their headers fill `segment_bytes` first.
    pub head_bytes: u64,
    /// The greatest total length of the segment files, headers included; `None` for no limit.
    pub limit_bytes: Option<u64>,
    /// After how many bytes of a segment their writeback is asked for, without waiting for it, so
    /// that the last sync of a long output is short. `None`: the kernel decides.
    pub writeback_bytes: Option<u64>,
}

impl Default for Options {
    /// Segments of 16 MiB, a head of 1 MiB, a limit of 1 GiB, writeback every 8 MiB.
    fn default() -> Options {
        Options {
            segment_bytes: 16 << 20,
            head_bytes: 1 << 20,
            limit_bytes: Some(1 << 30),
            writeback_bytes: Some(8 << 20),
        }
    }
}

impl Options {
    /// The default sizes, made smaller where `limit_bytes` asks for it: a head of at most a sixteenth
    /// and segments of at most an eighth of the limit. The least limit that is accepted is 4 KiB.
    #[must_use]
    pub fn with_limit(limit_bytes: u64) -> Options {
        let default = Options::default();
        Options {
            segment_bytes: default.segment_bytes.min(limit_bytes / 8),
            head_bytes: default.head_bytes.min(limit_bytes / 16),
            limit_bytes: Some(limit_bytes),
            ..default
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.segment_bytes < 512 {
            return Err(Error::InvalidOptions("a segment must have room for 512 bytes"));
        }
        match self.limit_bytes {
            Some(limit) if limit / 4 < self.segment_bytes => {
                Err(Error::InvalidOptions("the limit must have room for four segments"))
            }
            Some(_) if self.head_bytes > self.segment_bytes => {
                Err(Error::InvalidOptions("the head must fit into one segment"))
            }
            _ => Ok(()),
        }
    }

    fn has_head(&self) -> bool {
        self.limit_bytes.is_some() && self.head_bytes > 0
    }

    /// The most payload that one frame of a fresh segment can have.
    fn most_payload(&self) -> usize {
        let room = self.segment_bytes - (SEGMENT_HEADER + FRAME_HEADER) as u64;
        usize::try_from(room).unwrap_or(MAX_PAYLOAD).min(MAX_PAYLOAD)
    }
}

/// How a writer goes on after [`recover`](crate::recover()).
#[derive(Debug, Clone, Copy)]
pub struct Resume {
    /// µs since the Unix epoch, for the gap records.
    pub time_us: u64,
    /// The highest cursor that anyone is known to have been told, if anyone knows: the new epoch gives
    /// out none below it, and states what lies between as [`GapCause::Lost`].
    pub announced: Option<u64>,
    /// Why there may be bytes that were read from the job and never written. `None` if there are none.
    pub cause: Option<GapCause>,
}

struct Current<F> {
    file: F,
    name: SegmentName,
    len: u64,
    /// Up to where writeback was asked for.
    hinted: u64,
    dirty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Bytes could not be written. Earlier ones may still be sound: their first sync will tell.
    Write,
    /// A sync failed. Only what was committed before it counts.
    Sync,
}

/// The one writer of a job's log.
///
/// Bytes get their cursors when they are appended, and are readable at once, provisionally. They are
/// *committed* when [`Writer::sync`] has returned a cursor behind them. A writer holds
/// no buffer: payloads go from the caller's memory to the file by one `writev` per 4 MiB.
///
/// Any failed write or sync **poisons** it: nothing more is committed in this epoch, and every call
/// but [`Writer::reopen`] answers [`Error::Poisoned`]. The caller keeps draining the job, counts what it
/// drops, and calls `reopen` when it likes.
///
/// Nothing stops two writers on one directory but the lock that the caller holds.
pub struct Writer<D: Disk> {
    disk: D,
    id: LogId,
    options: Options,
    epoch: u32,
    current: Option<Current<D::File>>,
    /// Closed segments whose bytes no sync has covered, oldest first. The descriptor that wrote them is
    /// kept, because a failed writeback is reported to descriptors that were open when it failed.
    unsynced: Vec<(SegmentName, D::File)>,
    directory_dirty: bool,
    /// Behind the last whole frame.
    written: Place,
    committed: Place,
    /// The greatest cursor given to a byte. Above `written.offset` only after a failure.
    high: u64,
    /// Closed segments in the directory, of all epochs, in order.
    closed: Vec<SegmentFile>,
    dropped: Option<(u64, u64)>,
    gaps: Vec<Gap>,
    gaps_unlisted: u64,
    /// Which causes have an unknown gap at `written.offset`, one bit each: a second says nothing new.
    unknown_here: [u64; 4],
    failed: Option<Failure>,
    /// `reopen` was told of uncounted losses and has not written that down yet.
    lost_uncounted: bool,
    ended: bool,
}

impl<D: Disk> Writer<D> {
    /// Starts a new log in a directory that has none. Touches no file: the first byte makes the first.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if the directory has a segment, of whatever job;
    /// [`Error::InvalidOptions`]; [`Error::StorageFailed`] if the directory cannot be listed.
    pub fn create(disk: D, id: LogId, options: Options) -> Result<Writer<D>, Error> {
        options.check()?;
        if let Some(name) = segment_names(&disk)?.first() {
            return Err(Error::AlreadyExists { name: name.to_string() });
        }
        Ok(Writer::at(disk, id, options, 1, Place::START))
    }

    fn at(disk: D, id: LogId, options: Options, epoch: u32, place: Place) -> Writer<D> {
        Writer {
            disk,
            id,
            options,
            epoch,
            current: None,
            unsynced: Vec::new(),
            directory_dirty: false,
            written: place,
            committed: place,
            high: place.offset,
            closed: Vec::new(),
            dropped: None,
            gaps: Vec::new(),
            gaps_unlisted: 0,
            unknown_here: [0; 4],
            failed: None,
            lost_uncounted: false,
            ended: false,
        }
    }

    /// Goes on behind what [`recover`](crate::recover()) found, in a new epoch and a new file, which
    /// begins with the gaps there are to state. Nothing is committed by this but what was before.
    ///
    /// # Errors
    /// [`Error::Ended`] if the log has its end record; [`Error::InvalidOptions`];
    /// [`Error::StorageFailed`] if the new segment cannot be written: recover and try again.
    pub fn resume(
        disk: D,
        recovered: &Recovered,
        id: LogId,
        options: Options,
        resume: Resume,
    ) -> Result<Writer<D>, Error> {
        options.check()?;
        if let Some(cursor) = recovered.ended {
            return Err(Error::Ended { cursor });
        }
        let mut writer = Writer::at(disk, id, options, recovered.last_epoch, recovered.place);
        writer.closed.clone_from(&recovered.segments);
        writer.dropped = recovered.dropped;
        for gap in &recovered.gaps {
            writer.list_gap(*gap);
        }
        writer.next_epoch()?;
        writer.unknown_here = [0; 4];
        let end = recovered.place.offset;
        let damaged = recovered.damaged_to.unwrap_or(end).max(end);
        let announced = resume.announced.unwrap_or(damaged).max(damaged);
        if damaged > end {
            writer.append_gap(resume.time_us, GapCause::Damaged, GapLength::Known(damaged - end))?;
        }
        if announced > damaged {
            writer.append_gap(resume.time_us, GapCause::Lost, GapLength::Known(announced - damaged))?;
        }
        if let Some(cause) = resume.cause {
            writer.append_gap(resume.time_us, cause, GapLength::Unknown)?;
        }
        Ok(writer)
    }

    /// Appends output. All of it has a cursor when this returns, whether it succeeds or not.
    ///
    /// The payload may be of any size; it is cut into frames of at most [`MAX_PAYLOAD`] and not
    /// copied. An empty one does nothing.
    ///
    /// # Errors
    /// [`Error::StorageFailed`]: the writer is poisoned, and the payload's bytes will be part of the gap
    /// that [`Writer::reopen`] states. [`Error::Poisoned`]: nothing happened and no cursor was given;
    /// count the bytes and tell `reopen`. [`Error::Ended`] after [`Writer::finish`].
    pub fn append(&mut self, stream: Stream, time_us: u64, payload: &[u8]) -> Result<(), Error> {
        self.usable()?;
        let high = self.high.checked_add(payload.len() as u64).ok_or(Error::Exhausted("cursor"))?;
        self.high = high;
        let mut rest = payload;
        while !rest.is_empty() {
            if self.head_room() == Some(0) && self.cursor_passed() {
                self.roll()?;
            }
            self.make_room(FRAME_HEADER + rest.len().min(LEAST_CHUNK).min(self.options.most_payload()))?;
            rest = self.append_batch(stream, time_us, rest)?;
        }
        Ok(())
    }

    /// Appends a statement that bytes are missing here. A known length takes up that many cursors; an
    /// unknown one takes none, and saying it twice at one place says it once.
    ///
    /// # Errors
    /// As for [`Writer::append`].
    pub fn append_gap(&mut self, time_us: u64, cause: GapCause, length: GapLength) -> Result<(), Error> {
        self.usable()?;
        let extent = match length {
            GapLength::Known(n) => n,
            GapLength::Unknown => 0,
        };
        self.high = self.high.checked_add(extent).ok_or(Error::Exhausted("cursor"))?;
        self.put_gap(time_us, cause, length)
    }

    /// Makes everything appended so far durable, and returns the cursor behind it.
    ///
    /// # Errors
    /// [`Error::StorageFailed`]: the writer is poisoned and [`Writer::committed`] stays where it was.
    /// [`Error::Poisoned`].
    pub fn sync(&mut self) -> Result<u64, Error> {
        if self.failed.is_some() {
            return Err(Error::Poisoned);
        }
        self.sync_files()?;
        Ok(self.committed.offset)
    }

    /// Writes the end record, makes the log durable and returns the final cursor. Does no more the
    /// second time. A job without output gets no file and ends at 0.
    ///
    /// # Errors
    /// As for [`Writer::sync`]; after [`Writer::reopen`] it can be called again.
    pub fn finish(&mut self, time_us: u64) -> Result<u64, Error> {
        if self.failed.is_some() {
            return Err(Error::Poisoned);
        }
        let has_output = self.current.is_some() || !self.closed.is_empty();
        if !self.ended && has_output {
            self.make_room(FRAME_HEADER + 8)?;
            let (frame, check) =
                encode_end((self.written.seq, self.written.offset, time_us), self.written.check);
            self.write(&mut [IoSlice::new(&frame)], frame.len(), |_, _| {})?;
            self.written = self.written.after(0, check);
        }
        self.ended = true;
        self.sync()
    }

    /// Goes on after a failure, in a new epoch and a new file that begins with a gap: the bytes that
    /// the failed epoch may have lost, and those that the caller dropped since (`lost`).
    ///
    /// If only a write failed, what was written before it is synced for the first time, and counts if
    /// that succeeds. If a sync failed, nothing counts that was not committed before it. Readers that
    /// have seen such bytes are told by the gap.
    ///
    /// # Errors
    /// [`Error::StorageFailed`]: still poisoned, and `lost` is remembered, so pass only what was dropped
    /// since. [`Error::NotPoisoned`].
    pub fn reopen(&mut self, time_us: u64, lost: GapLength) -> Result<(), Error> {
        let Some(failure) = self.failed else { return Err(Error::NotPoisoned) };
        if self.epoch >= MAX_EPOCH {
            return Err(Error::Exhausted("epoch"));
        }
        match lost {
            GapLength::Known(n) => self.high = self.high.checked_add(n).ok_or(Error::Exhausted("cursor"))?,
            GapLength::Unknown => self.lost_uncounted = true,
        }
        if failure == Failure::Write {
            // On an error this leaves `Failure::Sync` behind, and `committed` where it was.
            let _ = self.sync_files();
        }
        let trusted = if flaws::reopen_trusts_uncommitted() { self.written } else { self.committed };
        self.written = trusted;
        self.committed = trusted;
        self.ended = false;
        self.close_current();
        self.unsynced.clear();
        self.unknown_here = [0; 4];
        // What is listed from the trusted place on went with its records; the new gap covers it.
        self.gaps.retain(|gap| gap.to() <= trusted.offset);
        self.dropped = self.dropped.map(|(from, to)| (from.min(trusted.offset), to.min(trusted.offset)));
        self.failed = None;
        self.next_epoch()?;
        self.put_gap(time_us, GapCause::StorageFailed, GapLength::Known(self.high - trusted.offset))?;
        if self.lost_uncounted {
            self.put_gap(time_us, GapCause::StorageFailed, GapLength::Unknown)?;
            self.lost_uncounted = false;
        }
        Ok(())
    }

    /// The provisional end: the cursor behind the last byte that has one. Nothing is said about disks.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.high
    }

    /// The cursor behind the last byte that is durable. It never decreases while the writer lives.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed.offset
    }

    /// Whether a sync has anything to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.written != self.committed || self.directory_dirty
    }

    /// Whether a failure ended the epoch and [`Writer::reopen`] is due.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.failed.is_some()
    }

    /// The epoch, from 1.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What is missing from the log, in order of cursor: what the limit dropped and every gap appended
    /// or recovered, except those that lie inside what was dropped. The number is of further gaps,
    /// beyond 256, that only the log itself lists.
    #[must_use]
    pub fn gaps(&self) -> (Vec<Gap>, u64) {
        let (from, to) = self.dropped.unwrap_or((0, 0));
        let outside = |gap: &&Gap| !(gap.from >= from && gap.to() <= to && from < to);
        let mut gaps: Vec<Gap> = self.gaps.iter().filter(outside).copied().collect();
        if from < to {
            gaps.push(Gap::known(from..to, GapCause::Limit));
        }
        gaps.sort_by_key(|gap| (gap.from, gap.to()));
        (gaps, self.gaps_unlisted)
    }

    fn usable(&self) -> Result<(), Error> {
        match (self.failed, self.ended) {
            (Some(_), _) => Err(Error::Poisoned),
            (None, true) => Err(Error::Ended { cursor: self.written.offset }),
            (None, false) => Ok(()),
        }
    }

    fn list_gap(&mut self, gap: Gap) {
        if gap.cause == GapCause::Limit {
            return; // `dropped` has it
        }
        if self.gaps.len() < MAX_LISTED_GAPS {
            self.gaps.push(gap);
        } else {
            self.gaps_unlisted += 1;
        }
    }

    /// Poisons the writer. Returns the error for the caller to pass on.
    fn fail(&mut self, failure: Failure, op: Op, source: io::Error) -> Error {
        if self.failed != Some(Failure::Sync) {
            self.failed = Some(failure);
        }
        Error::StorageFailed { op, source }
    }

    /// Whether the current segment is the head, kept for ever, and how much more output it takes.
    fn head_room(&self) -> Option<u64> {
        let current = self.current.as_ref()?;
        (current.name.base == 0 && self.options.has_head())
            .then(|| self.options.head_bytes.saturating_sub(self.written.offset))
    }

    fn segment_room(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| self.options.segment_bytes.saturating_sub(current.len))
    }

    /// Sees to a current segment with `need` bytes of room.
    fn make_room(&mut self, need: usize) -> Result<(), Error> {
        let full = self.segment_room() < need as u64;
        if self.current.is_none() || (full && self.cursor_passed()) {
            self.roll()?;
        }
        Ok(())
    }

    /// Whether a segment may follow the current one. Until a cursor has passed in it, the next would get
    /// its name; what can gather in it meanwhile is bounded: an unknown gap per cause, and the end.
    fn cursor_passed(&self) -> bool {
        self.current.as_ref().is_none_or(|current| current.name.base < self.written.offset)
    }

    /// Writes as many frames of `payload` as one call and the segment take, and returns the rest.
    fn append_batch<'a>(
        &mut self,
        stream: Stream,
        time_us: u64,
        payload: &'a [u8],
    ) -> Result<&'a [u8], Error> {
        let mut headers = [[0_u8; FRAME_HEADER]; BATCH];
        let mut ends = [Place::START; BATCH];
        let mut lens = [0_usize; BATCH];
        let mut frames = 0;
        let mut room = usize::try_from(self.segment_room()).unwrap_or(usize::MAX);
        let mut head_room = self.head_room().map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let mut rest = payload;
        let mut place = self.written;
        while frames < BATCH && !rest.is_empty() && (head_room > 0 || frames == 0) {
            let fits = room.saturating_sub(FRAME_HEADER).min(MAX_PAYLOAD);
            let len = rest.len().min(fits).min(head_room);
            // The first frame is always taken: `make_room` has seen to it, or the segment holds nothing
            // but records without extent and must take one for the cursor to pass.
            let sliver =
                len < rest.len().min(LEAST_CHUNK).min(self.options.most_payload()) && len < head_room;
            if frames > 0 && (len == 0 || sliver) {
                break;
            }
            let len = len.max(1);
            let Some((chunk, after)) = rest.split_at_checked(len) else { break };
            let (header, check) = encode_data(stream, (place.seq, place.offset, time_us), chunk, place.check);
            place = place.after(len as u64, check);
            headers[frames] = header;
            ends[frames] = place;
            lens[frames] = len;
            frames += 1;
            room = room.saturating_sub(FRAME_HEADER + len);
            head_room -= len.min(head_room);
            rest = after;
        }

        let mut slices = [IoSlice::new(&[]); 2 * BATCH];
        let mut unsent = payload;
        for frame in 0..frames {
            let (chunk, after) = unsent.split_at(lens[frame]);
            slices[2 * frame] = IoSlice::new(&headers[frame]);
            slices[2 * frame + 1] = IoSlice::new(chunk);
            unsent = after;
        }
        let total = payload.len() - rest.len() + frames * FRAME_HEADER;
        self.write(&mut slices[..2 * frames], total, |writer, mut done| {
            // Frames that went out whole count if a first sync of them succeeds.
            for frame in 0..frames {
                let len = FRAME_HEADER + lens[frame];
                if done < len {
                    break;
                }
                done -= len;
                writer.written = ends[frame];
            }
        })?;
        self.written = place;
        self.unknown_here = [0; 4];
        Ok(rest)
    }

    fn put_gap(&mut self, time_us: u64, cause: GapCause, length: GapLength) -> Result<(), Error> {
        let extent = match length {
            GapLength::Known(0) => return Ok(()),
            GapLength::Known(n) => n,
            GapLength::Unknown => {
                let (word, bit) = (usize::from(cause.code() >> 6), 1 << (cause.code() & 63));
                if self.unknown_here[word] & bit != 0 {
                    return Ok(());
                }
                0
            }
        };
        self.make_room(FRAME_HEADER + 16)?;
        let from = self.written.offset;
        let (frame, check) = encode_gap(length, cause, (self.written.seq, from, time_us), self.written.check);
        self.write(&mut [IoSlice::new(&frame)], frame.len(), |_, _| {})?;
        self.written = self.written.after(extent, check);
        if extent > 0 {
            self.unknown_here = [0; 4];
        } else {
            self.unknown_here[usize::from(cause.code() >> 6)] |= 1 << (cause.code() & 63);
        }
        self.list_gap(Gap { from, length, cause });
        Ok(())
    }

    /// Appends the buffers to the current segment. On an error `partly` is told how many bytes went out.
    fn write(
        &mut self,
        mut buffers: &mut [IoSlice<'_>],
        total: usize,
        partly: impl FnOnce(&mut Writer<D>, usize),
    ) -> Result<(), Error> {
        let Some(current) = self.current.as_mut() else {
            return Err(Error::Poisoned);
        };
        current.dirty = true;
        let mut done = 0;
        while done < total {
            match self.disk.append(&current.file, buffers) {
                Ok(n) if n > 0 && n <= total - done => {
                    done += n;
                    IoSlice::advance_slices(&mut buffers, n);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => {
                    let error = result.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                    current.len += done as u64;
                    partly(self, done);
                    return Err(self.fail(Failure::Write, Op::Write, error));
                }
            }
        }
        current.len += total as u64;
        if let Some(every) = self.options.writeback_bytes
            && current.len - current.hinted >= every
        {
            self.disk.start_writeback(&current.file, current.hinted, current.len - current.hinted);
            current.hinted = current.len;
        }
        Ok(())
    }

    fn close_current(&mut self) {
        if let Some(current) = self.current.take() {
            self.closed.push(SegmentFile { name: current.name, len: current.len });
            if current.dirty {
                self.unsynced.push((current.name, current.file));
            }
        }
    }

    fn next_epoch(&mut self) -> Result<(), Error> {
        if self.epoch >= MAX_EPOCH {
            return Err(Error::Exhausted("epoch"));
        }
        self.epoch += 1;
        self.roll()
    }

    /// Closes the current segment and begins the next, dropping from the middle what the limit wants.
    fn roll(&mut self) -> Result<(), Error> {
        self.close_current();
        if self.unsynced.len() >= MAX_UNSYNCED {
            self.sync_unsynced()?;
        }
        let (victims, dropped) = self.plan_drop();
        if flaws::drop_before_record() {
            self.remove_closed(&victims);
        }

        let name = SegmentName { epoch: self.epoch, base: self.written.offset };
        let header = SegmentHeader {
            epoch: self.epoch,
            id: self.id,
            base: self.written.offset,
            first_seq: self.written.seq,
            dropped: dropped.unwrap_or((0, 0)),
            previous_check: self.written.last_frame,
        };
        let file = match self.disk.create_new(&name.to_string()) {
            Ok(file) => file,
            Err(error) => return Err(self.fail(Failure::Write, Op::Create, error)),
        };
        self.directory_dirty = true;
        self.current = Some(Current { file, name, len: 0, hinted: 0, dirty: true });
        let (bytes, check) = header.encode();
        self.write(&mut [IoSlice::new(&bytes)], bytes.len(), |_, _| {})?;
        self.written.check = check;

        if !victims.is_empty() {
            // The record has to be on the disk before what it speaks of leaves it.
            self.sync_current()?;
            self.sync_directory()?;
            self.dropped = dropped;
            self.remove_closed(&victims);
        }
        Ok(())
    }

    /// Which closed segments have to go for one more to fit, and the range of cursors that is dropped
    /// then. Those that an earlier call chose and could not remove are among them.
    fn plan_drop(&self) -> (Vec<SegmentName>, Option<(u64, u64)>) {
        let Some(limit) = self.options.limit_bytes else { return (Vec::new(), self.dropped) };
        let head = self.closed.iter().rposition(|segment| segment.name.base == 0 && self.options.has_head());
        let droppable: Vec<&SegmentFile> = self
            .closed
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != head)
            .map(|(_, segment)| segment)
            .collect();
        let mut total: u64 = self.closed.iter().map(|segment| segment.len).sum();
        let before = self.dropped.map_or(0, |(_, to)| to);
        let room = self.options.segment_bytes + SEGMENT_HEADER as u64;
        let mut victims = Vec::new();
        let mut keep = droppable.iter().peekable();
        while let Some(segment) = keep.peek() {
            if total.saturating_add(room) <= limit && segment.name.base >= before {
                break;
            }
            total -= segment.len;
            victims.push(segment.name);
            keep.next();
        }
        if victims.is_empty() {
            return (victims, self.dropped);
        }
        // A later epoch may begin below the end of an earlier one, so the least base decides.
        let to = keep.map(|segment| segment.name.base).min().unwrap_or(u64::MAX).min(self.written.offset);
        let from = match (self.dropped, head) {
            (Some((from, _)), _) => from,
            (None, Some(head)) => self.closed.get(head + 1).map_or(to, |next| next.name.base),
            (None, None) => 0,
        };
        let dropped = (from < to).then_some((from.min(to), to)).or(self.dropped);
        (victims, dropped)
    }

    /// Removes segments. One that cannot be removed stays on the list and is tried again at the next
    /// roll: the log is sound with it, only longer than it should be.
    fn remove_closed(&mut self, victims: &[SegmentName]) {
        for victim in victims {
            match self.disk.remove(&victim.to_string()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => {
                    self.closed.retain(|segment| segment.name != *victim);
                    self.unsynced.retain(|(name, _)| name != victim);
                    self.directory_dirty = true;
                }
            }
        }
    }

    fn sync_files(&mut self) -> Result<(), Error> {
        self.sync_unsynced()?;
        self.sync_current()?;
        self.sync_directory()?;
        self.committed = self.written;
        Ok(())
    }

    fn sync_unsynced(&mut self) -> Result<(), Error> {
        for (_, file) in &self.unsynced {
            if let Err(error) = self.disk.sync_data(file) {
                return Err(self.fail(Failure::Sync, Op::SyncData, error));
            }
        }
        self.unsynced.clear();
        Ok(())
    }

    fn sync_current(&mut self) -> Result<(), Error> {
        if let Some(current) = self.current.as_mut()
            && current.dirty
        {
            match self.disk.sync_data(&current.file) {
                Ok(()) => current.dirty = false,
                Err(error) => return Err(self.fail(Failure::Sync, Op::SyncData, error)),
            }
        }
        Ok(())
    }

    fn sync_directory(&mut self) -> Result<(), Error> {
        if self.directory_dirty {
            match self.disk.sync_dir() {
                Ok(()) => self.directory_dirty = false,
                Err(error) => return Err(self.fail(Failure::Sync, Op::SyncDirectory, error)),
            }
        }
        Ok(())
    }
}
