//! What is left of a log after a crash, and what has to be cut before anyone goes on.

use crate::chain::{Link, Segment, between, dropped, links, segment_names};
use crate::disk::Disk;
use crate::error::{Error, Op};
use crate::flaws;
use crate::format::{Body, LogId, SegmentName};
use crate::gap::{Gap, GapCause};
use crate::scan::{Place, Scanner, Step, frames_without_header, later_frames, read_header};

/// A torn tail that was removed: bytes of a write that a crash interrupted, never committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The file that was cut.
    pub segment: SegmentName,
    /// The cursor at which the file ends now.
    pub cursor: u64,
    /// How many bytes of the file went, of frames or zeros.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub(crate) name: SegmentName,
    pub(crate) len: u64,
}

/// What [`recover`] found. All of it is on the disk.
#[derive(Debug, Clone)]
pub struct Recovered {
    pub(crate) place: Place,
    pub(crate) last_epoch: u32,
    pub(crate) segments: Vec<SegmentFile>,
    pub(crate) dropped: Option<(u64, u64)>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) ended: Option<u64>,
    pub(crate) damaged_to: Option<u64>,
    pub(crate) cuts: Vec<Cut>,
}

impl Recovered {
    /// The cursor behind the last byte that can be read. After [`recover`] it is committed.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.place.offset
    }

    /// The highest epoch that a file in the directory claims; 0 if there is none.
    #[must_use]
    pub fn last_epoch(&self) -> u32 {
        self.last_epoch
    }

    /// The final cursor, if the log has its end record.
    #[must_use]
    pub fn ended(&self) -> Option<u64> {
        self.ended
    }

    /// What is missing below [`Recovered::end`], in order.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// The torn tails that were cut; for [`inspect`], those that [`recover`] would cut.
    #[must_use]
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// Damage at the end: written frames lie behind bytes that fail their checks. Nothing was cut, the
    /// file is kept as it is, and the range from [`Recovered::end`] on is unavailable. The new epoch
    /// that [`Writer::resume`](crate::Writer::resume) begins states it.
    #[must_use]
    pub fn damage(&self) -> Option<Gap> {
        self.damaged_to.map(|to| Gap::known(self.end()..to.max(self.end()), GapCause::Damaged))
    }
}

/// Brings a log whose writer is gone into a state to go on from, and makes it durable.
///
/// Every segment is synced, then read as the disk has it and checked frame by frame. In the last one
/// a torn tail, zeros included, is cut off; a file that got no header is emptied. Damage before the
/// last segment, or in it but with written frames behind, is left as it is and reported. Calling it
/// again finds the same.
///
/// Call it only under the lock that a writer would hold.
///
/// # Errors
/// [`Error::StorageFailed`] if the storage refuses. Call it again when the storage is sound; what it
/// answers then is again what the disk has.
pub fn recover<D: Disk>(disk: &D, id: LogId) -> Result<Recovered, Error> {
    survey(disk, id, true)
}

/// What [`recover`] would find, as far as reading tells. Changes nothing and syncs nothing, so
/// [`Recovered::end`] says nothing about what is committed.
///
/// # Errors
/// [`Error::StorageFailed`] if a file cannot be read.
pub fn inspect<D: Disk>(disk: &D, id: LogId) -> Result<Recovered, Error> {
    survey(disk, id, false)
}

fn survey<D: Disk>(disk: &D, id: LogId, repair: bool) -> Result<Recovered, Error> {
    let names = segment_names(disk)?;
    let sync = repair && !flaws::recover_skips_sync();
    let mut sound: Vec<Segment> = Vec::new();
    let mut headless: Vec<SegmentName> = Vec::new();
    for name in &names {
        let file = disk.open(&name.to_string(), repair).map_err(Error::storage(Op::Open))?;
        if sync {
            // What we read may be in memory only. And where a writeback failed before, memory shows what
            // the disk does not have: hence forget it, and read what is there.
            disk.sync_data(&file).map_err(Error::storage(Op::SyncData))?;
            disk.evict(&file);
        }
        match read_header(disk, &file, *name).map_err(Error::storage(Op::Read))? {
            Some((header, first)) if header.id == id => sound.push(Segment::new(*name, &header, first)),
            _ => headless.push(*name),
        }
    }

    let links = links(&sound);
    let mut found = Recovered {
        place: Place::START,
        last_epoch: names.last().map_or(0, |name| name.epoch),
        segments: Vec::new(),
        dropped: None,
        gaps: Vec::new(),
        ended: None,
        damaged_to: None,
        cuts: Vec::new(),
    };

    // Files behind the last sound header: a creation that did not get far, or a damaged header.
    let last_sound = sound.last().map(|segment| segment.name);
    for name in headless.iter().filter(|name| Some(**name) > last_sound) {
        let file = disk.open(&name.to_string(), repair).map_err(Error::storage(Op::Open))?;
        match frames_without_header(disk, &file, name.base).map_err(Error::storage(Op::Read))? {
            Some(to) => found.damaged_to = found.damaged_to.max(Some(to)),
            None => found.cut(disk, &file, *name, name.base, 0, repair)?,
        }
    }

    let dropped = dropped(&sound);
    found.dropped = (dropped.0 < dropped.1).then_some(dropped);
    let mut damaged = false;
    for (at, link) in links.iter().enumerate() {
        found.gaps.extend(between(found.place, &link.segment, dropped, damaged));
        let last = at + 1 == links.len();
        damaged = found.scan_segment(disk, link, last, repair)?;
    }

    for name in &names {
        let file = disk.open(&name.to_string(), false).map_err(Error::storage(Op::Open))?;
        let len = disk.len(&file).map_err(Error::storage(Op::Read))?;
        found.segments.push(SegmentFile { name: *name, len });
    }
    if sync && !names.is_empty() {
        disk.sync_dir().map_err(Error::storage(Op::SyncDirectory))?;
    }
    Ok(found)
}

impl Recovered {
    /// Walks one segment from its header to its end, and returns whether it ends in damage.
    fn scan_segment<D: Disk>(
        &mut self,
        disk: &D,
        link: &Link,
        last: bool,
        repair: bool,
    ) -> Result<bool, Error> {
        let name = link.segment.name;
        let file = disk.open(&name.to_string(), repair).map_err(Error::storage(Op::Open))?;
        let mut scanner = Scanner::new(link.segment.first);
        self.ended = None;
        let clean = loop {
            if link.superseded_from.is_some_and(|bound| scanner.place().seq >= bound) {
                break true;
            }
            match scanner.step(disk, &file).map_err(Error::storage(Op::Read))? {
                Step::Frame(frame) => match frame.body {
                    Body::Data(..) => {}
                    Body::Gap(length, cause) => self.gaps.push(Gap { from: frame.offset, length, cause }),
                    Body::End => self.ended = Some(frame.offset),
                },
                Step::Incomplete { have: 0 } => break true,
                Step::Incomplete { .. } | Step::Bad => break false,
            }
        };
        self.place = scanner.place();
        if clean || !last {
            return Ok(!clean);
        }
        let bad_at = scanner.file_offset();
        let behind = later_frames(disk, &file, bad_at, self.place).map_err(Error::storage(Op::Read))?;
        match (behind, self.damaged_to) {
            (None, None) => self.cut(disk, &file, name, self.place.offset, bad_at, repair)?,
            // A damaged file follows: this one is not the last that was written, so its end was not torn
            // by the crash.
            (to, known) => self.damaged_to = known.max(to),
        }
        Ok(true)
    }

    fn cut<D: Disk>(
        &mut self,
        disk: &D,
        file: &D::File,
        segment: SegmentName,
        cursor: u64,
        to: u64,
        repair: bool,
    ) -> Result<(), Error> {
        let len = disk.len(file).map_err(Error::storage(Op::Read))?;
        if len == to {
            return Ok(());
        }
        if repair {
            disk.truncate(file, to).map_err(Error::storage(Op::Truncate))?;
            disk.sync_data(file).map_err(Error::storage(Op::SyncData))?;
        }
        self.cuts.push(Cut { segment, cursor, bytes: len.saturating_sub(to) });
        Ok(())
    }
}
