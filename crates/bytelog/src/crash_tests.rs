//! Every crash of a few workloads, on every disk it could leave, and proof that this would find bugs.
//!
//! A workload is run with a fault before or at each of its file-system operations. Every disk that
//! could be found afterwards is read as it is, recovered, read again, written to in a new epoch, and
//! cut off once more. Checked each time: announced bytes are there or were stated as lost before,
//! what is read is what was written, nothing is missing without a gap, epochs rise.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};

use crate::disk::Disk;
use crate::flaws::{self, Flaws};
use crate::gap::{Gap, GapCause, GapLength};
use crate::sim::{Fault, SimDisk, SimFile, TailEffect};
use crate::{Error, Item, LogId, Options, Reader, Recovered, Resume, Stream, Tail, Writer, recover};

const ID: LogId = LogId(*b"the job at hand.");
const OTHER: LogId = LogId(*b"some other job..");

/// Defects of the disk's caller that need no switch in the log, because a disk in between makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    NoDirectorySync,
    AnnounceBeforeSync,
    RetrySyncAndBelieve,
    BelieveTheCache,
}

#[derive(Clone)]
struct Buggy {
    disk: SimDisk,
    bug: Bug,
}

impl Disk for Buggy {
    type File = SimFile;

    fn create_new(&self, name: &str) -> io::Result<SimFile> {
        self.disk.create_new(name)
    }
    fn open(&self, name: &str, writable: bool) -> io::Result<SimFile> {
        self.disk.open(name, writable)
    }
    fn append(&self, file: &SimFile, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.disk.append(file, buffers)
    }
    fn read_at(&self, file: &SimFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.read_at(file, offset, buffer)
    }
    fn len(&self, file: &SimFile) -> io::Result<u64> {
        self.disk.len(file)
    }
    fn truncate(&self, file: &SimFile, len: u64) -> io::Result<()> {
        self.disk.truncate(file, len)
    }
    fn sync_data(&self, file: &SimFile) -> io::Result<()> {
        match self.bug {
            Bug::AnnounceBeforeSync => Ok(()),
            Bug::RetrySyncAndBelieve => self.disk.sync_data(file).or_else(|_| self.disk.sync_data(file)),
            _ => self.disk.sync_data(file),
        }
    }
    fn sync_dir(&self) -> io::Result<()> {
        if self.bug == Bug::NoDirectorySync { Ok(()) } else { self.disk.sync_dir() }
    }
    fn evict(&self, file: &SimFile) {
        if self.bug != Bug::BelieveTheCache {
            self.disk.evict(file);
        }
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Out(usize),
    Err(usize),
    Lose(u64),
    Sync,
    Finish,
}

struct Workload {
    name: &'static str,
    options: Options,
    acts: &'static [Act],
}

fn workloads() -> Vec<Workload> {
    use Act::{Err, Finish, Lose, Out, Sync};
    let small = Options { segment_bytes: 512, head_bytes: 200, limit_bytes: None, writeback_bytes: None };
    vec![
        Workload { name: "short", options: small, acts: &[Out(5), Sync, Err(7), Out(3), Sync, Finish] },
        Workload {
            name: "several segments",
            options: small,
            acts: &[Out(300), Err(40), Sync, Out(700), Lose(9), Out(1), Sync, Err(150), Finish],
        },
        Workload {
            name: "limit",
            options: Options { limit_bytes: Some(2048), ..small },
            acts: &[Out(250), Sync, Out(900), Err(600), Sync, Out(900), Finish],
        },
    ]
}

/// What was drained and what was promised.
#[derive(Clone, Default)]
struct Model {
    /// By cursor; `None` where a gap of known length was appended.
    truth: Vec<Option<(Stream, u8)>>,
    announced: u64,
    /// The epoch in which it was announced.
    announced_epoch: u32,
    epoch: u32,
    /// Ranges that were stated as lost to a storage failure.
    stated: Vec<(u64, u64)>,
    salt: u8,
}

impl Model {
    fn drain(&mut self, stream: Stream, len: usize) -> Vec<u8> {
        let start = self.truth.len();
        let bytes: Vec<u8> = (start..start + len).map(|at| ((at * 31 + at / 7) as u8) ^ self.salt).collect();
        self.truth.extend(bytes.iter().map(|byte| Some((stream, *byte))));
        bytes
    }
}

/// Does what a scribe does: appends, syncs, and goes on in a new epoch when the storage fails.
fn run(disk: &Buggy, id: LogId, workload: &Workload, salt: u8) -> Model {
    let mut model = Model { salt, ..Model::default() };
    let Ok(mut writer) = Writer::create(disk.clone(), id, workload.options) else { return model };
    for (time, act) in workload.acts.iter().enumerate() {
        let time = time as u64;
        let result = match *act {
            Act::Out(len) => {
                let bytes = model.drain(Stream::Stdout, len);
                writer.append(Stream::Stdout, time, &bytes)
            }
            Act::Err(len) => {
                let bytes = model.drain(Stream::Stderr, len);
                writer.append(Stream::Stderr, time, &bytes)
            }
            Act::Lose(n) => {
                model.truth.extend((0..n).map(|_| None));
                model.stated.push((model.truth.len() as u64 - n, model.truth.len() as u64));
                writer.append_gap(time, GapCause::Other(77), GapLength::Known(n))
            }
            Act::Sync => writer.sync().map(|cursor| model.announced = cursor),
            Act::Finish => writer.finish(time).map(|cursor| model.announced = cursor),
        };
        if result.is_ok() && model.announced > 0 && matches!(act, Act::Sync | Act::Finish) {
            model.announced_epoch = writer.epoch();
        }
        if result.is_err() {
            assert!(matches!(result, Err(Error::StorageFailed { .. })), "{result:?}");
            assert!(matches!(writer.append(Stream::Stdout, 0, b"x"), Err(Error::Poisoned)));
            let (mut from, to) = (writer.committed(), writer.cursor());
            for _ in 0..2 {
                if disk.disk.crashed() {
                    break;
                }
                if writer.reopen(time, GapLength::Known(0)).is_ok() {
                    // A first sync may have saved what a failed write left.
                    from = writer.committed().max(from);
                    break;
                }
            }
            model.stated.push((from, to));
            if writer.is_poisoned() {
                break;
            }
        }
        // Only while the system runs: after a power cut a removed file may be back until the next roll.
        let total: u64 = disk.disk.contents().values().map(|bytes| bytes.len() as u64).sum();
        assert!(workload.options.limit_bytes.is_none_or(|limit| total <= limit), "{total} bytes of files");
        assert!(writer.committed() <= writer.cursor());
        assert_eq!(writer.cursor(), model.truth.len() as u64);
        model.epoch = writer.epoch();
    }
    model
}

#[derive(Debug, Default)]
struct Tally {
    crashes: usize,
    images: usize,
    violations: Vec<String>,
    torn_tails: usize,
    kept_damage: usize,
    dropped: usize,
    failures_survived: usize,
}

impl Tally {
    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }
}

fn read_all(disk: &Buggy, from: u64) -> Result<(Vec<Item>, u64, Tail), Error> {
    let mut reader = Reader::open_as(disk.clone(), ID);
    let (mut items, mut at) = (Vec::new(), from);
    loop {
        let read = reader.read_from(at, 700)?;
        items.extend(read.items);
        at = read.next;
        if read.tail != Tail::More {
            return Ok((items, at, read.tail));
        }
    }
}

/// Items must tile from 0, and data must be what was drained. Returns what is missing.
fn check_items(model: &Model, items: &[Item], tally: &mut Tally, what: &str) -> Vec<Gap> {
    let (mut at, mut gaps) = (0, Vec::new());
    for item in items {
        match item {
            Item::Data { stream, offset, bytes, .. } => {
                if *offset != at {
                    tally.violation(format!("{what}: data at {offset}, expected {at}"));
                }
                let truth = model.truth.get(*offset as usize..*offset as usize + bytes.len());
                let same = truth.is_some_and(|truth| {
                    truth.iter().zip(bytes).all(|(truth, byte)| *truth == Some((*stream, *byte)))
                });
                if !same {
                    tally.violation(format!("{what}: phantom bytes at {offset}"));
                }
                at = offset + bytes.len() as u64;
            }
            Item::Gap(gap) => {
                if gap.from != at {
                    tally.violation(format!("{what}: gap at {}, expected {at}", gap.from));
                }
                at = gap.to();
                gaps.push(*gap);
            }
        }
    }
    gaps
}

fn check_recovered(
    model: &Model,
    disk: &Buggy,
    options: &Options,
    tally: &mut Tally,
    what: &str,
) -> Option<Recovered> {
    let found = match recover(disk, ID) {
        Ok(found) => found,
        Err(error) => {
            tally.violation(format!("{what}: recovery failed: {error}"));
            return None;
        }
    };
    let Ok((items, end, _)) = read_all(disk, 0) else {
        tally.violation(format!("{what}: reading failed"));
        return None;
    };
    if end != found.end() {
        tally.violation(format!("{what}: the reader ends at {end}, recovery at {}", found.end()));
    }
    if end < model.announced {
        tally.violation(format!("{what}: announced {}, {end} left", model.announced));
    }
    for gap in check_items(model, &items, tally, what) {
        let (from, to) = (gap.from, gap.to());
        let stated = || (from..to).all(|at| model.stated.iter().any(|(from, to)| (*from..*to).contains(&at)));
        let permitted = match gap.cause {
            GapCause::Limit => options.limit_bytes.is_some() && from >= options.head_bytes,
            GapCause::StorageFailed | GapCause::Other(77) => stated(),
            _ => from >= model.announced || stated(),
        };
        if gap.length != GapLength::Unknown && !permitted {
            tally.violation(format!("{what}: {gap:?} with {} announced", model.announced));
        }
        tally.dropped += usize::from(gap.cause == GapCause::Limit);
        tally.kept_damage += usize::from(gap.cause == GapCause::Damaged);
    }
    Some(found)
}

const SECOND_EFFECTS: [TailEffect; 3] = [TailEffect::Lost, TailEffect::Half, TailEffect::Kept];

/// Goes on in a new epoch, promises more, and loses power in the middle of that or after.
fn check_second_life(
    model: &Model,
    disk: &SimDisk,
    (bug, workload, effects): (Bug, &Workload, &[TailEffect]),
    tally: &mut Tally,
    what: &str,
) {
    let live = |disk: &Buggy, model: &mut Model| -> Result<(), Error> {
        let found = recover(disk, ID)?;
        if found.ended().is_some() {
            (model.announced, model.epoch) = (found.end(), u32::MAX);
            return Ok(());
        }
        model.announced = model.announced.max(found.end());
        // What recovery has stated is stated from now on.
        model.stated.extend(found.gaps().iter().map(|gap| (gap.from, gap.to())));
        model.stated.extend(found.damage().map(|gap| (gap.from, gap.to())));
        model.truth.truncate(found.end() as usize);
        let resume = Resume { time_us: 0, announced: None, cause: Some(GapCause::WriterLost) };
        let mut writer = Writer::resume(disk.clone(), &found, ID, workload.options, resume)?;
        assert!(writer.epoch() > found.last_epoch());
        model.truth.resize(writer.cursor() as usize, None);
        model.epoch = writer.epoch();
        let bytes = model.drain(Stream::Stderr, 30);
        writer.append(Stream::Stderr, 1, &bytes)?;
        model.announced = writer.sync()?;
        Ok(())
    };
    // A first run counts the operations.
    let whole = Buggy { disk: disk.after_kill(), bug };
    let start = whole.disk.operations();
    let mut after = model.clone();
    if live(&whole, &mut after).is_err() {
        tally.violation(format!("{what}: could not go on"));
        return;
    }
    if after.announced > 0 && after.epoch <= model.announced_epoch {
        tally.violation(format!("{what}: epoch {} after {}", after.epoch, model.announced_epoch));
    }
    for at in start..=whole.disk.operations() {
        let disk = Buggy { disk: disk.after_kill(), bug };
        disk.disk.add_fault(at, Fault::Crash);
        let mut after = model.clone();
        let _ = live(&disk, &mut after);
        for names in [false, true] {
            for effect in effects.iter().copied() {
                tally.images += 1;
                let image = Buggy { disk: disk.disk.after_power_cut(effect, names), bug };
                check_recovered(
                    &after,
                    &image,
                    &workload.options,
                    tally,
                    &format!("{what}, again at {at}, {effect:?}"),
                );
            }
        }
    }
}

/// Runs everything, or until `enough` violations were found.
fn explore(bug: Bug, flaws: Flaws, enough: usize) -> Tally {
    flaws::set(flaws);
    let mut tally = Tally::default();
    for workload in workloads() {
        let donor = Buggy { disk: SimDisk::new(), bug: Bug::None };
        run(&donor, OTHER, &workload, 0x55);
        let stale: BTreeMap<_, _> = donor.disk.contents();
        let clean = Buggy { disk: SimDisk::new(), bug };
        let model = run(&clean, ID, &workload, 0);
        assert_eq!(model.announced, model.truth.len() as u64);
        let operations = clean.disk.operations();

        // No error, or an error of either kind at each operation, and then a crash before each.
        let mut faults = vec![None];
        faults.extend((0..operations).flat_map(|at| [Some((at, Fault::Error)), Some((at, Fault::Half))]));
        for first in faults {
            // The error makes the run longer or shorter; a crash that never comes is one after the end.
            let from = first.map_or(0, |(at, _)| at + 1);
            for crash in from..operations + 12 {
                let disk = Buggy { disk: SimDisk::new(), bug };
                disk.disk.set_stale(stale.clone());
                let model = run_with(&disk, &workload, first, crash);
                tally.crashes += 1;
                tally.failures_survived += usize::from(first.is_some() && model.epoch > 1);
                let what = format!("{}, {first:?}, crash at {crash}", workload.name);
                // Every image where nothing failed before; where something did, a few.
                let mut images = match first {
                    None => disk.disk.images(),
                    Some(_) => {
                        ([TailEffect::Lost, TailEffect::Kept, TailEffect::Reordered, TailEffect::Stale]
                            .iter())
                        .flat_map(|effect| {
                            [false, true].map(|names| disk.disk.after_power_cut(*effect, names))
                        })
                        .collect()
                    }
                };
                images.push(disk.disk.after_kill());
                for (number, image) in images.iter().enumerate() {
                    tally.images += 1;
                    let what = format!("{what}, image {number} of {}", images.len());
                    let image = Buggy { disk: image.clone(), bug };
                    match read_all(&image, 0) {
                        Ok((items, ..)) => drop(check_items(&model, &items, &mut tally, &what)),
                        Err(error) => tally.violation(format!("{what}: reading failed: {error}")),
                    }
                    // The second life multiplies all this by its own crashes, so it gets a sample: what
                    // follows a kill, and every 61st image.
                    if (number + 1 == images.len() && (first.is_none() || crash % 7 == 0))
                        || (first.is_none() && (number + crash) % 61 == 0)
                    {
                        let effects =
                            if first.is_none() { &SECOND_EFFECTS[..] } else { &SECOND_EFFECTS[..1] };
                        check_second_life(&model, &image.disk, (bug, &workload, effects), &mut tally, &what);
                    }
                    if let Some(found) = check_recovered(&model, &image, &workload.options, &mut tally, &what)
                    {
                        tally.torn_tails += usize::from(!found.cuts().is_empty());
                        match recover(&image, ID) {
                            Ok(again) if again.end() == found.end() && again.cuts().is_empty() => {}
                            other => tally.violation(format!("{what}: recovered again: {other:?}")),
                        }
                    }
                }
                if tally.violations.len() >= enough {
                    flaws::set(Flaws::default());
                    return tally;
                }
                if !disk.disk.crashed() {
                    break;
                }
            }
        }
    }
    flaws::set(Flaws::default());
    tally
}

fn run_with(disk: &Buggy, workload: &Workload, first: Option<(usize, Fault)>, crash: usize) -> Model {
    disk.disk.add_fault(crash, Fault::Crash);
    if let Some((at, fault)) = first {
        disk.disk.add_fault(at, fault);
    }
    run(disk, ID, workload, 0)
}

#[test]
fn no_crash_breaks_a_promise() {
    let tally = explore(Bug::None, Flaws::default(), usize::MAX);
    println!(
        "bytelog crash images: {} runs, {} images, {} torn tails cut, {} damaged files kept, {} gaps by the limit, \
         {} runs in a later epoch, {} violations",
        tally.crashes,
        tally.images,
        tally.torn_tails,
        tally.kept_damage,
        tally.dropped,
        tally.failures_survived,
        tally.violations.len()
    );
    let shown = &tally.violations[..tally.violations.len().min(20)];
    assert!(shown.is_empty(), "{} violations:\n{}", tally.violations.len(), shown.join("\n"));
    // States that must have been reached, or the enumeration has gone blind.
    assert!(
        tally.torn_tails > 100
            && tally.kept_damage > 0
            && tally.dropped > 100
            && tally.failures_survived > 20
    );
}

#[test]
fn seeded_bugs_are_caught() {
    let none = Flaws::default();
    let bugs = [
        ("no directory sync", Bug::NoDirectorySync, none),
        ("announce before sync", Bug::AnnounceBeforeSync, none),
        ("retry a failed sync and believe it", Bug::RetrySyncAndBelieve, none),
        ("recovery believes the page cache", Bug::BelieveTheCache, none),
        ("no check of checksums", Bug::None, Flaws { unchecked: true, ..none }),
        ("no chaining", Bug::None, Flaws { unchained: true, ..none }),
        ("drop before the record", Bug::None, Flaws { drop_before_record: true, ..none }),
        (
            "trust uncommitted bytes after a failed sync",
            Bug::None,
            Flaws { reopen_trusts_uncommitted: true, ..none },
        ),
        ("recovery does not sync", Bug::None, Flaws { recover_skips_sync: true, ..none }),
    ];
    for (name, bug, flaws) in bugs {
        let tally = explore(bug, flaws, 1);
        println!("seeded bug: {name}: {} violations in {} images", tally.violations.len(), tally.images);
        assert!(!tally.violations.is_empty(), "{name} was not caught");
    }
}
