//! The log on real files: round trips, following, limits, recovery, hostile bytes, old versions.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use outlast_bytelog::{
    DirDisk, Error, Gap, GapCause, GapLength, Item, LogId, Options, Reader, Resume, Stream, Tail, Writer,
    inspect, recover,
};
use proptest::prelude::*;

const ID: LogId = LogId(*b"a test's own log");

fn pattern(start: u64, len: usize) -> Vec<u8> {
    (start..start + len as u64).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// A log in a directory of its own, and what was written to it, by stream and cursor.
struct Scene {
    dir: tempfile::TempDir,
    disk: DirDisk,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let disk = DirDisk::open(dir.path()).unwrap();
        Scene { dir, disk }
    }

    fn writer(&self, options: Options) -> Writer<&DirDisk> {
        Writer::create(&self.disk, ID, options).unwrap()
    }

    fn segments(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn read(&self, from: u64, max: usize) -> (Vec<Item>, u64, Tail) {
        read_on(&mut Reader::open(&self.disk), from, max)
    }
}

fn read_on(reader: &mut Reader<&DirDisk>, from: u64, max: usize) -> (Vec<Item>, u64, Tail) {
    let (mut items, mut at) = (Vec::new(), from);
    loop {
        let read = reader.read_from(at, max).unwrap();
        let data: usize = read.items.iter().map(|item| bytes_of(item).len()).sum();
        assert!(data <= max);
        items.extend(read.items);
        at = read.next;
        if read.tail != Tail::More {
            return (items, at, read.tail);
        }
    }
}

fn bytes_of(item: &Item) -> &[u8] {
    match item {
        Item::Data { bytes, .. } => bytes,
        Item::Gap(_) => &[],
    }
}

/// The bytes of the items, which must be data without a hole from `from` on.
fn joined(items: &[Item], from: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut bytes, mut streams, mut at) = (Vec::new(), Vec::new(), from);
    for item in items {
        let Item::Data { stream, offset, bytes: piece, .. } = item else { panic!("{item:?}") };
        assert_eq!(*offset, at);
        at += piece.len() as u64;
        bytes.extend_from_slice(piece);
        streams.extend(std::iter::repeat_n(stream.code(), piece.len()));
    }
    (bytes, streams)
}

fn gaps_of(items: &[Item]) -> Vec<Gap> {
    items.iter().filter_map(|item| if let Item::Gap(gap) = item { Some(*gap) } else { None }).collect()
}

const RESUME: Resume = Resume { time_us: 9, announced: None, cause: Some(GapCause::WriterLost) };

#[test]
fn a_job_without_output_has_no_file() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::default());
    writer.append(Stream::Stdout, 0, b"").unwrap();
    assert_eq!((writer.sync().unwrap(), writer.finish(1).unwrap()), (0, 0));
    assert!(scene.segments().is_empty());
    assert_eq!(scene.read(0, 10), (vec![], 0, Tail::Open { torn: 0 }));
    assert_eq!(recover(&scene.disk, ID).unwrap().end(), 0);
}

#[test]
fn the_end_is_the_end() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::default());
    writer.append(Stream::Stdout, 0, b"out").unwrap();
    writer.append(Stream::Stderr, 5, b"err!").unwrap();
    assert_eq!((writer.cursor(), writer.committed()), (7, 0));
    assert_eq!(writer.finish(6).unwrap(), 7);
    assert_eq!(writer.finish(6).unwrap(), 7);
    assert!(matches!(writer.append(Stream::Stdout, 7, b"x"), Err(Error::Ended { cursor: 7 })));
    assert!(matches!(Writer::create(&scene.disk, ID, Options::default()), Err(Error::AlreadyExists { .. })));

    let (items, next, tail) = scene.read(2, 100);
    assert_eq!((next, tail), (7, Tail::Ended { cursor: 7 }));
    assert_eq!(
        items,
        [
            Item::Data { stream: Stream::Stdout, offset: 2, time_us: 0, bytes: b"t".to_vec() },
            Item::Data { stream: Stream::Stderr, offset: 3, time_us: 5, bytes: b"err!".to_vec() },
        ]
    );
    let found = recover(&scene.disk, ID).unwrap();
    assert_eq!((found.ended(), found.cuts().len()), (Some(7), 0));
    let resumed = Writer::resume(&scene.disk, &found, ID, Options::default(), RESUME);
    assert!(matches!(resumed, Err(Error::Ended { cursor: 7 })));
}

#[test]
fn contradictory_limits_are_refused() {
    let scene = Scene::new();
    let make = |options| Writer::create(&scene.disk, ID, options).map(drop);
    for limit in [64 << 10, 1 << 20, 1 << 30, u64::MAX] {
        make(Options::with_limit(limit)).unwrap();
    }
    let default = Options::default();
    for bad in [
        Options { segment_bytes: 100, ..default },
        Options { limit_bytes: Some(0), ..default },
        Options { limit_bytes: Some(63 << 20), ..default },
        Options { head_bytes: 17 << 20, ..default },
        Options::with_limit(1000),
    ] {
        assert!(matches!(make(bad), Err(Error::InvalidOptions(_))), "{bad:?}");
    }
}

#[test]
fn a_follower_sees_each_byte_once_and_never_half_a_frame() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options { segment_bytes: 4096, limit_bytes: None, ..Options::default() });
    let mut reader = Reader::open(&scene.disk);
    let (mut seen, mut at) = (Vec::new(), 0);
    for round in 0..200_usize {
        let len = round * 37 % 900 + 1;
        writer.append(Stream::Stdout, round as u64, &pattern(at, len)).unwrap();
        // The tail of the newest file is withheld, as if the write were under way.
        let newest = scene.segments().pop().unwrap();
        let whole = fs::read(&newest).unwrap();
        fs::write(&newest, &whole[..whole.len() - 1]).unwrap();
        let read = reader.read_from(at, 1 << 20).unwrap();
        assert!(matches!(read.tail, Tail::Open { torn: 1.. }), "{:?}", read.tail);
        let (mut bytes, _) = joined(&read.items, at);
        seen.append(&mut bytes);
        fs::write(&newest, &whole).unwrap();
        let read = reader.read_from(read.next, 1 << 20).unwrap();
        let (mut bytes, _) = joined(&read.items, seen.len() as u64);
        seen.append(&mut bytes);
        assert_eq!(read.tail, Tail::Open { torn: 0 });
        at = read.next;
        assert_eq!(at, writer.cursor());
    }
    assert_eq!(seen, pattern(0, seen.len()));
    assert!(scene.segments().len() > 10);
}

/// A reader may come with a cursor that is not there yet, one it was told before a crash, say. Whatever grows below it, it
/// is given nothing of that, and its cursor never falls.
#[test]
fn a_reader_beyond_the_end_is_given_nothing_below_its_cursor() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::default());
    writer.append(Stream::Stdout, 1, b"first").unwrap();
    let beyond = 64 << 20;
    let mut reader = Reader::open(&scene.disk);
    let mut at = 5;
    for _ in 0..80 {
        let read = reader.read_from(beyond, 1 << 20).unwrap();
        assert_eq!((read.items, read.next), (vec![], beyond), "with {at} bytes in {:?}", scene.segments());
        let piece = pattern(at, 256 << 10);
        writer.append(Stream::Stdout, 2, &piece).unwrap();
        at += piece.len() as u64;
    }
    assert!(scene.segments().len() > 2, "it grew into no other segment");
}

#[test]
fn past_the_limit_head_and_tail_stay_and_the_gap_is_stated() {
    let scene = Scene::new();
    let options = Options::with_limit(1 << 20);
    let mut writer = scene.writer(options);
    let mut follower = Reader::open(&scene.disk);
    let mut followed = 0;
    for round in 0..400 {
        let len = 9000 + round;
        writer.append(Stream::Stdout, 0, &pattern(writer.cursor(), len)).unwrap();
        let total: u64 = scene.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
        assert!(total <= 1 << 20, "{total}");
        if round % 7 == 0 {
            // A follower that keeps up misses nothing.
            let (items, next, _) = read_on(&mut follower, followed, 1 << 20);
            assert_eq!(joined(&items, followed).0, pattern(followed, (next - followed) as usize));
            followed = next;
        }
    }
    let end = writer.finish(0).unwrap();
    let (gaps, more) = writer.gaps();
    let [gap] = gaps[..] else { panic!("{gaps:?}") };
    assert_eq!((gap.from, gap.cause, more), (options.head_bytes, GapCause::Limit, 0));
    assert!(end - gap.to() > 700 << 10, "the newest tail is most of the limit: {gap:?} of {end}");

    let (items, next, tail) = scene.read(0, 1 << 16);
    assert_eq!((next, tail), (end, Tail::Ended { cursor: end }));
    assert_eq!(gaps_of(&items), [gap]);
    for item in &items {
        if let Item::Data { offset, bytes, .. } = item {
            assert_eq!(*bytes, pattern(*offset, bytes.len()));
        }
    }
    // From the middle of what is gone, the answer begins with the rest of the gap.
    let middle = gap.from + 1000;
    let (items, ..) = scene.read(middle, 1 << 16);
    assert_eq!(items[0], Item::Gap(Gap { from: middle, length: GapLength::Known(gap.to() - middle), ..gap }));
    assert_eq!(recover(&scene.disk, ID).unwrap().gaps(), [gap]);
}

#[test]
fn readers_beside_a_busy_writer_see_only_truth_and_the_limits_gaps() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::with_limit(256 << 10));
    let end = 40 << 20;
    let follow = || {
        let mut reader = Reader::open(&scene.disk);
        let (mut at, mut missed) = (0, 0);
        loop {
            let read = reader.read_from(at, 100_000).unwrap();
            for item in read.items {
                match item {
                    Item::Data { offset, bytes, .. } => {
                        assert_eq!(offset, at);
                        assert_eq!(bytes, pattern(offset, bytes.len()));
                        at += bytes.len() as u64;
                    }
                    Item::Gap(gap) => {
                        assert_eq!((gap.from, gap.cause), (at, GapCause::Limit));
                        at = gap.to();
                        missed += 1;
                    }
                }
            }
            assert_eq!(read.next, at);
            if let Tail::Ended { cursor } = read.tail {
                assert_eq!((cursor, at), (end, end));
                return missed;
            }
        }
    };
    std::thread::scope(|scope| {
        let readers = [scope.spawn(follow), scope.spawn(follow)];
        while writer.cursor() < end {
            writer.append(Stream::Stdout, 0, &pattern(writer.cursor(), 8192)).unwrap();
        }
        writer.finish(0).unwrap();
        let missed = readers.map(|reader| reader.join().unwrap());
        println!("two readers were overtaken {missed:?} times");
    });
}

#[test]
fn a_restarted_scribe_goes_on_behind_a_stated_gap() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::default());
    writer.append(Stream::Stdout, 0, b"before ").unwrap();
    drop(writer);
    let path = scene.segments().pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let sound = bytes.len();
    bytes.extend_from_slice(&[0; 5000]);
    fs::write(&path, &bytes).unwrap();

    let planned = inspect(&scene.disk, ID).unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len(), "inspecting changes nothing");
    let found = recover(&scene.disk, ID).unwrap();
    assert_eq!(found.cuts(), planned.cuts());
    assert_eq!((found.end(), found.cuts()[0].bytes, found.cuts()[0].cursor), (7, 5000, 7));
    assert_eq!(fs::read(&path).unwrap().len(), sound);

    let resume = Resume { announced: Some(10), ..RESUME };
    let mut writer = Writer::resume(&scene.disk, &found, ID, Options::default(), resume).unwrap();
    assert_eq!((writer.epoch(), writer.cursor()), (2, 10));
    writer.append(Stream::Stdout, 1, b"after").unwrap();
    assert_eq!(writer.finish(2).unwrap(), 15);
    let lost = Gap { from: 7, length: GapLength::Known(3), cause: GapCause::Lost };
    let unknown = Gap { from: 10, length: GapLength::Unknown, cause: GapCause::WriterLost };
    assert_eq!(writer.gaps().0, [lost, unknown]);
    let (items, next, _) = scene.read(0, 100);
    assert_eq!((gaps_of(&items), next), (vec![lost, unknown], 15));
    assert_eq!(bytes_of(&items[3]), b"after");
}

/// Three segments, one of them with a flipped bit.
fn damaged(at_segment: usize, at_byte: usize) -> Scene {
    let scene = Scene::new();
    let mut writer = scene.writer(Options { segment_bytes: 1024, limit_bytes: None, ..Options::default() });
    for _ in 0..24 {
        writer.append(Stream::Stdout, 0, &pattern(writer.cursor(), 60)).unwrap();
    }
    writer.sync().unwrap();
    let path = &scene.segments()[at_segment];
    let mut bytes = fs::read(path).unwrap();
    bytes[at_byte] ^= 4;
    fs::write(path, bytes).unwrap();
    scene
}

#[test]
fn damage_before_the_last_segment_is_kept_and_stepped_over() {
    // In a frame, and in a header.
    for at_byte in [300, 20] {
        let scene = damaged(1, at_byte);
        let before: Vec<_> = scene.segments().iter().map(|path| fs::read(path).unwrap()).collect();
        let found = recover(&scene.disk, ID).unwrap();
        let [gap] = found.gaps() else { panic!("{:?}", found.gaps()) };
        assert_eq!((found.end(), found.cuts(), found.damage()), (24 * 60, &[][..], None));
        let after: Vec<_> = scene.segments().iter().map(|path| fs::read(path).unwrap()).collect();
        assert_eq!(before, after);
        let (items, next, _) = scene.read(0, 1000);
        assert_eq!((gaps_of(&items), next), (vec![*gap], 24 * 60));
        assert!(matches!(gap.cause, GapCause::Damaged | GapCause::Lost));
    }
}

#[test]
fn damage_before_written_frames_of_the_last_segment_is_not_a_torn_tail() {
    // Segments of 1,024 bytes hold nine frames of 60: the third has six, the last of which ends it.
    for at_byte in (80..80 + 5 * 100).step_by(7).chain([20, 78]) {
        let scene = damaged(2, at_byte);
        let path = scene.segments().pop().unwrap();
        let before = fs::read(&path).unwrap();
        let found = recover(&scene.disk, ID).unwrap();
        assert_eq!(found.cuts(), [], "byte {at_byte}");
        assert_eq!(fs::read(&path).unwrap(), before);
        let damage = found.damage().unwrap();
        assert_eq!((damage.from, damage.to()), (found.end(), 24 * 60), "byte {at_byte}");

        let mut writer = Writer::resume(&scene.disk, &found, ID, Options::default(), RESUME).unwrap();
        writer.append(Stream::Stderr, 1, b"and on").unwrap();
        writer.finish(2).unwrap();
        let (items, next, tail) = scene.read(0, 1000);
        assert_eq!((next, tail), (24 * 60 + 6, Tail::Ended { cursor: next }));
        assert_eq!(gaps_of(&items)[0], damage);
    }
    // In the last frame there is nothing behind it to tell.
    let scene = damaged(2, 80 + 5 * 100 + 50);
    let found = recover(&scene.disk, ID).unwrap();
    assert_eq!((found.end(), found.cuts().len(), found.damage()), (23 * 60, 1, None));
}

#[test]
fn another_jobs_segments_are_not_read() {
    let scene = Scene::new();
    let mut writer = scene.writer(Options::default());
    writer.append(Stream::Stdout, 0, b"mine").unwrap();
    writer.sync().unwrap();
    let other = LogId([3; 16]);
    let mut reader = Reader::open_as(&scene.disk, other);
    assert_eq!(reader.read_from(0, 10).unwrap().items, []);
    let found = recover(&scene.disk, other).unwrap();
    assert_eq!((found.end(), found.cuts()), (0, &[][..]), "not ours to cut");
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let scene = Scene::new();
    let name = "log.00000001.00000000000000000000";
    std::os::unix::fs::symlink("/etc/passwd", scene.dir.path().join(name)).unwrap();
    assert!(Reader::open(&scene.disk).read_from(0, 10).is_err());
    assert!(recover(&scene.disk, ID).is_err());
}

#[test]
fn hostile_output_cannot_pass_for_records() {
    // A torn frame whose payload is full of frame headers that each claim the most.
    let scene = Scene::new();
    let mut fake = [0_u8; 40];
    fake[..4].copy_from_slice(&[0xa7, b'f', b'r', b'm']);
    fake[4..8].copy_from_slice(&65_536_u32.to_le_bytes());
    (fake[8], fake[9]) = (1, 1);
    fake[12..20].copy_from_slice(&5_u64.to_le_bytes());
    fake[20..28].copy_from_slice(&u64::MAX.to_le_bytes());
    let payload = fake.repeat((3 << 20) / 40);
    let mut writer = scene.writer(Options { limit_bytes: None, ..Options::default() });
    writer.append(Stream::Stdout, 0, b"good").unwrap();
    writer.append(Stream::Stdout, 0, &payload).unwrap();
    let path = &scene.segments()[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[80 + 40 + 4 + 10] = 1; // a reserved byte of the second frame's header
    fs::write(path, bytes).unwrap();
    let found = recover(&scene.disk, ID).unwrap();
    assert_eq!(found.end(), 4);
    assert_eq!(found.cuts(), [], "frames were written behind it, or so it seems: the file is kept");
    let (items, next, _) = scene.read(0, 1 << 20);
    assert_eq!((joined(&items, 0).0, next), (b"good".to_vec(), 4));
}

const V1_FILES: [&str; 11] = [
    "log.00000001.00000000000000000000",
    "log.00000001.00000000000000002736",
    "log.00000001.00000000000000003045",
    "log.00000001.00000000000000003355",
    "log.00000001.00000000000000003666",
    "log.00000001.00000000000000003978",
    "log.00000001.00000000000000004291",
    "log.00000001.00000000000000004605",
    "log.00000002.00000000000000004920",
    "log.00000002.00000000000000004991",
    "log.00000002.00000000000000005471",
];
const V1_BYTES: [(u8, usize); 2] = [(1, 2261), (2, 623)];

fn v1_gaps() -> Vec<Gap> {
    let known = |from: u64, to: u64, cause| Gap { from, length: GapLength::Known(to - from), cause };
    let unknown = Gap { from: 4925, length: GapLength::Unknown, cause: GapCause::WriterLost };
    vec![
        known(100, 2736, GapCause::Limit),
        known(4920, 4925, GapCause::Lost),
        unknown,
        known(4925, 4991, GapCause::Other(200)),
    ]
}

/// Version 1 for ever: files that were written by the first version of this crate.
#[test]
fn files_of_version_1_are_read_for_ever() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let scene = Scene::new();
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, scene.dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let names: Vec<_> =
        scene.segments().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, V1_FILES);
    let (items, next, tail) = scene.read(0, 1 << 20);
    assert_eq!((next, tail), (5591, Tail::Ended { cursor: 5591 }));
    assert_eq!(gaps_of(&items), v1_gaps());
    let mut by_stream: BTreeMap<u8, usize> = BTreeMap::new();
    for item in &items {
        if let Item::Data { stream, offset, time_us, bytes } = item {
            assert_eq!(*bytes, pattern(*offset, bytes.len()));
            assert!((1_700_000_000_000_000..1_700_000_000_000_100).contains(time_us));
            *by_stream.entry(stream.code()).or_default() += bytes.len();
        }
    }
    assert_eq!(by_stream, V1_BYTES.into());
    let found = recover(&scene.disk, ID).unwrap();
    assert_eq!((found.ended(), found.last_epoch(), found.gaps()), (Some(5591), 2, &v1_gaps()[..]));
}

/// Writes the log that the fixture holds. Its bytes are compared, so that the format cannot drift.
fn write_v1(scene: &Scene) {
    let options =
        Options { segment_bytes: 600, head_bytes: 100, limit_bytes: Some(4800), writeback_bytes: None };
    let mut writer = scene.writer(options);
    for round in 0..16 {
        let stream = if round % 3 == 1 { Stream::Stderr } else { Stream::Stdout };
        let bytes = pattern(writer.cursor(), 300 + round);
        writer.append(stream, 1_700_000_000_000_000 + round as u64, &bytes).unwrap();
    }
    writer.sync().unwrap();
    drop(writer);
    let found = recover(&scene.disk, ID).unwrap();
    let resume =
        Resume { time_us: 1_700_000_000_000_050, announced: Some(found.end() + 5), cause: RESUME.cause };
    let mut writer = Writer::resume(&scene.disk, &found, ID, options, resume).unwrap();
    writer.append_gap(1_700_000_000_000_051, GapCause::Other(200), GapLength::Known(66)).unwrap();
    writer.append(Stream::Stdout, 1_700_000_000_000_052, &pattern(writer.cursor(), 600)).unwrap();
    writer.finish(1_700_000_000_000_053).unwrap();
}

#[test]
fn version_1_is_still_what_is_written() {
    let scene = Scene::new();
    write_v1(&scene);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    if std::env::var_os("BYTELOG_WRITE_FIXTURES").is_some() {
        for path in scene.segments() {
            fs::copy(&path, fixtures.join(path.file_name().unwrap())).unwrap();
        }
    }
    for path in scene.segments() {
        let fixture = fs::read(fixtures.join(path.file_name().unwrap())).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fixture, "{path:?}");
    }
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..2000_usize,
        1 => Just(0),
        1 => Just(1),
        1 => Just(64 * 1024),
        1 => Just(64 * 1024 + 1),
        1 => Just(3 << 20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_appended_is_read_from_any_cursor(
        writes in prop::collection::vec((any::<bool>(), sizes()), 1..12),
        segment_bytes in prop_oneof![Just(16_u64 << 20), 512..100_000_u64],
        starts in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        max in 1_usize..300_000,
    ) {
        let scene = Scene::new();
        let mut writer = scene.writer(Options { segment_bytes, limit_bytes: None, ..Options::default() });
        let (mut bytes, mut streams) = (Vec::new(), Vec::new());
        for (is_err, len) in &writes {
            let stream = if *is_err { Stream::Stderr } else { Stream::Stdout };
            let piece = pattern(bytes.len() as u64, *len);
            writer.append(stream, 1, &piece).unwrap();
            bytes.extend_from_slice(&piece);
            streams.extend(std::iter::repeat_n(stream.code(), *len));
        }
        prop_assert_eq!(writer.sync().unwrap(), bytes.len() as u64);
        for path in scene.segments() {
            prop_assert!(path.metadata().unwrap().len() <= segment_bytes);
        }
        for start in starts {
            let from = start.index(bytes.len() + 1);
            // Small answers to long logs take a while without showing more.
            let (items, next, tail) = scene.read(from as u64, max.max(bytes.len() / 200).max(1));
            prop_assert_eq!((next, tail), (bytes.len() as u64, Tail::Open { torn: 0 }));
            let (read, read_streams) = joined(&items, from as u64);
            prop_assert!(read == bytes[from..] && read_streams == streams[from..]);
        }
        let found = recover(&scene.disk, ID).unwrap();
        prop_assert_eq!((found.end(), found.cuts().len(), found.gaps().len()), (bytes.len() as u64, 0, 0));
    }

    #[test]
    fn a_log_cut_anywhere_recovers_to_a_prefix_that_reads_the_same_again(
        writes in prop::collection::vec(1_usize..3000, 1..10),
        cut in any::<prop::sample::Index>(),
        junk in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let scene = Scene::new();
        let mut writer = scene.writer(Options { segment_bytes: 4096, limit_bytes: None, ..Options::default() });
        for len in &writes {
            writer.append(Stream::Stdout, 1, &pattern(writer.cursor(), *len)).unwrap();
        }
        let path = scene.segments().pop().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(cut.index(bytes.len() + 1));
        bytes.extend_from_slice(&junk);
        fs::write(&path, &bytes).unwrap();
        let (before, reached, _) = scene.read(0, 1 << 20);
        let found = recover(&scene.disk, ID).unwrap();
        let (after, end, tail) = scene.read(0, 1 << 20);
        prop_assert_eq!((found.end(), end), (reached, reached));
        prop_assert_eq!(tail, Tail::Open { torn: 0 });
        prop_assert_eq!(&before, &after);
        prop_assert_eq!(joined(&after, 0).0, pattern(0, end as usize));
        prop_assert!(recover(&scene.disk, ID).unwrap().cuts().is_empty());
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(
        files in prop::collection::vec((0_u32..4, 0_u64..3, prop::collection::vec(any::<u8>(), 0..400)), 1..4),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let scene = Scene::new();
        let mut writer = scene.writer(Options { segment_bytes: 700, limit_bytes: None, ..Options::default() });
        for _ in 0..9 {
            writer.append(Stream::Stdout, 1, &pattern(writer.cursor(), 150)).unwrap();
        }
        for (file, at, value) in flips {
            let paths = scene.segments();
            let path = file.get(&paths);
            let mut bytes = fs::read(path).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = value;
            fs::write(path, bytes).unwrap();
        }
        for (epoch, base, bytes) in files {
            fs::write(scene.dir.path().join(format!("log.{epoch:08}.{base:020}")), bytes).unwrap();
        }
        let (items, ..) = scene.read(0, 1 << 20);
        let found = recover(&scene.disk, ID).unwrap();
        for item in &items {
            if let Item::Data { offset, bytes, .. } = item {
                prop_assert_eq!(bytes, &pattern(*offset, bytes.len()));
            }
        }
        if found.ended().is_none() {
            let mut writer = Writer::resume(&scene.disk, &found, ID, Options::default(), RESUME).unwrap();
            let at = writer.cursor();
            writer.append(Stream::Stdout, 1, b"goes on").unwrap();
            writer.sync().unwrap();
            let (items, next, _) = scene.read(at, 1 << 20);
            prop_assert_eq!(next, at + 7);
            prop_assert_eq!(bytes_of(items.last().unwrap()), b"goes on");
        }
    }
}
