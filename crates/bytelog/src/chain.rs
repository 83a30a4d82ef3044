//! How segment files make up one log: which supersede which, and what lies between them.

use crate::disk::Disk;
use crate::error::{Error, Op};
use crate::format::{SegmentHeader, SegmentName};
use crate::gap::{Gap, GapCause, GapLength};
use crate::scan::Place;

/// A segment whose header is sound.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    pub(crate) first: Place,
    pub(crate) dropped: (u64, u64),
}

impl Segment {
    pub(crate) fn new(name: SegmentName, header: &SegmentHeader, first: Place) -> Segment {
        Segment { name, first, dropped: header.dropped }
    }
}

/// A segment that counts, and the sequence number from which a later epoch supersedes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) segment: Segment,
    pub(crate) superseded_from: Option<u64>,
}

/// The segments that count, in order. `segments` is sorted by name.
pub(crate) fn links(segments: &[Segment]) -> Vec<Link> {
    let mut links = Vec::with_capacity(segments.len());
    let mut later_epochs: Option<u64> = None;
    let mut this_epoch: Option<(u32, u64)> = None;
    for segment in segments.iter().rev() {
        let first = segment.first.seq;
        match &mut this_epoch {
            Some((epoch, least)) if *epoch == segment.name.epoch => *least = first.min(*least),
            other => {
                if let Some((_, least)) = *other {
                    later_epochs = Some(later_epochs.map_or(least, |bound| bound.min(least)));
                }
                *other = Some((segment.name.epoch, first));
            }
        }
        if later_epochs.is_none_or(|bound| first < bound) {
            links.push(Link { segment: *segment, superseded_from: later_epochs });
        }
    }
    links.reverse();
    links
}

/// The range in which holes were made by the limit. The last header has the whole of it.
pub(crate) fn dropped(segments: &[Segment]) -> (u64, u64) {
    segments.last().map_or((0, 0), |segment| segment.dropped)
}

/// What is missing between the place reached and the segment that follows it. `damaged`: the bytes of
/// the place's own segment did not end cleanly there.
pub(crate) fn between(reached: Place, next: &Segment, dropped: (u64, u64), damaged: bool) -> Vec<Gap> {
    let (from, to) = (reached.offset, next.first.offset);
    if from < to {
        let dropped_from = dropped.0.clamp(from, to);
        let dropped_to = dropped.1.clamp(dropped_from, to);
        let cause = if damaged { GapCause::Damaged } else { GapCause::Lost };
        return [
            (from..dropped_from, cause),
            (dropped_from..dropped_to, GapCause::Limit),
            (dropped_to..to, cause),
        ]
        .into_iter()
        .filter(|(range, _)| !range.is_empty())
        .map(|(range, cause)| Gap::known(range, cause))
        .collect();
    }
    let continues =
        from == to && reached.seq == next.first.seq && reached.last_frame == next.first.last_frame;
    if continues {
        return Vec::new();
    }
    // The cursors fit and the records do not: a record without extent is gone, or the files are not
    // all of one history.
    vec![Gap { from: to, length: GapLength::Unknown, cause: GapCause::Damaged }]
}

/// The names of the segment files in the directory, in order.
pub(crate) fn segment_names<D: Disk>(disk: &D) -> Result<Vec<SegmentName>, Error> {
    let listed = disk.list().map_err(Error::storage(Op::List))?;
    let mut names: Vec<SegmentName> = listed.iter().filter_map(|name| SegmentName::parse(name)).collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(epoch: u32, base: u64, seq: u64) -> Segment {
        let first = Place { seq, offset: base, check: 0, last_frame: 0 };
        Segment { name: SegmentName { epoch, base }, first, dropped: (0, 0) }
    }

    #[test]
    fn a_later_epoch_supersedes_from_its_first_sequence_number() {
        let segments = [
            segment(1, 0, 0),
            segment(1, 100, 10),
            segment(1, 200, 20),
            segment(2, 150, 15),
            segment(3, 150, 15),
        ];
        let seen: Vec<_> = links(&segments)
            .iter()
            .map(|link| (link.segment.name.epoch, link.segment.name.base, link.superseded_from))
            .collect();
        // Epoch 2 got no frame of its own, epoch 1 lost its last segment.
        assert_eq!(seen, [(1, 0, Some(15)), (1, 100, Some(15)), (3, 150, None)]);
    }

    #[test]
    fn a_hole_is_split_where_the_dropped_range_begins_and_ends() {
        let reached = Place { seq: 4, offset: 10, check: 0, last_frame: 0 };
        let gaps = |dropped| between(reached, &segment(1, 30, 9), dropped, false);
        let (lost, limit) = (GapCause::Lost, GapCause::Limit);
        assert_eq!(gaps((5, 30)), [Gap::known(10..30, limit)]);
        assert_eq!(gaps((5, 25)), [Gap::known(10..25, limit), Gap::known(25..30, lost)]);
        let three = [Gap::known(10..12, lost), Gap::known(12..25, limit), Gap::known(25..30, lost)];
        assert_eq!(gaps((12, 25)), three);
        assert_eq!(gaps((0, 0)), [Gap::known(10..30, lost)]);
    }
}
