//! A simulated disk that loses power, fails and lies the way real ones do.
//!
//! Files have a cached and a durable content, names a volatile and a durable directory. A failed sync
//! marks the cached bytes clean without having written them, as Linux does: they can be read until they
//! are evicted, and no later sync writes them. [`SimDisk::images`] enumerates what could be found after
//! the power failed now.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::Disk;

/// What happens at the chosen operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The machine stops before it; this and every later operation fails.
    Crash,
    /// It fails and has done nothing. A sync has then lost what it was to write.
    Error,
    /// It fails half-way: an append is short and the next one fails, a sync has written half.
    Half,
}

/// What became of bytes of a file that were written and not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailEffect {
    /// Nothing of them arrived.
    Lost,
    /// All of them arrived.
    Kept,
    /// The first half arrived.
    Half,
    /// The length arrived, the bytes are zero.
    Zeros,
    /// The first half arrived, the second is zero.
    HalfZeros,
    /// The second half arrived, the first is zero: blocks were written out of order.
    Reordered,
    /// All but the last byte arrived.
    OneShort,
    /// Only the first byte arrived.
    OneByte,
    /// All arrived, one bit in the middle is wrong.
    BitFlip,
    /// The length arrived, the blocks hold what another file left in them.
    Stale,
}

/// All of them.
pub const TAIL_EFFECTS: [TailEffect; 10] = [
    TailEffect::Lost,
    TailEffect::Kept,
    TailEffect::Half,
    TailEffect::Zeros,
    TailEffect::HalfZeros,
    TailEffect::Reordered,
    TailEffect::OneShort,
    TailEffect::OneByte,
    TailEffect::BitFlip,
    TailEffect::Stale,
];

#[derive(Debug, Clone, Default)]
struct Inode {
    name: String,
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// From here on the cache waits to be written.
    dirty_from: Option<usize>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Made(String, usize),
    Removed(String),
}

#[derive(Debug, Clone, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    stale: Arc<BTreeMap<String, Vec<u8>>>,
    operations: usize,
    faults: Vec<(usize, Fault)>,
    crashed: bool,
    full: bool,
}

/// A handle on a simulated disk. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// An open file of a [`SimDisk`].
#[derive(Debug, Clone, Copy)]
pub struct SimFile(usize);

impl SimDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// Lets a fault happen at operation `at`, counted from 0 over the life of the disk.
    pub fn add_fault(&self, at: usize, fault: Fault) {
        self.state().faults.push((at, fault));
    }

    /// What blocks of a file of this name held before, for [`TailEffect::Stale`].
    pub fn set_stale(&self, contents: BTreeMap<String, Vec<u8>>) {
        self.state().stale = Arc::new(contents);
    }

    /// How many operations there were.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.state().operations
    }

    /// Whether [`Fault::Crash`] has happened.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// The files as a reader of the running system sees them.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        state.names.iter().map(|(name, inode)| (name.clone(), state.inodes[*inode].cache.clone())).collect()
    }

    /// The disk after every process was killed and the system went on: caches and all.
    #[must_use]
    pub fn after_kill(&self) -> SimDisk {
        let mut state = self.state().clone();
        (state.crashed, state.full) = (false, false);
        state.faults.clear();
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// The disk after a power cut that left one effect on every unsynced tail, with the directory as
    /// it was last synced, or (`names`) with every change of it.
    #[must_use]
    pub fn after_power_cut(&self, effect: TailEffect, names: bool) -> SimDisk {
        let state = self.state();
        let names = if names { &state.names } else { &state.durable_names };
        state.image(names, &|_| effect)
    }

    /// Every disk that could be found after a power cut now: each effect on each unsynced tail (on two
    /// files independently, on more than two with one odd one out), with each prefix of the unsynced
    /// changes of the directory, and all of them but one.
    #[must_use]
    pub fn images(&self) -> Vec<SimDisk> {
        let state = self.state();
        let mut images = Vec::new();
        for names in state.directories() {
            let dirty: Vec<usize> =
                names.values().copied().filter(|inode| state.inodes[*inode].differs()).collect();
            match dirty.len() {
                0 => images.push(state.image(&names, &|_| TailEffect::Kept)),
                1 | 2 => {
                    let second: &[TailEffect] =
                        if dirty.len() == 2 { &TAIL_EFFECTS } else { &TAIL_EFFECTS[..1] };
                    for a in TAIL_EFFECTS {
                        for b in second {
                            images.push(state.image(&names, &|inode| if inode == dirty[0] { a } else { *b }));
                        }
                    }
                }
                _ => {
                    for all in [TailEffect::Lost, TailEffect::Kept] {
                        for odd in &dirty {
                            for effect in TAIL_EFFECTS {
                                images.push(
                                    state.image(&names, &|inode| if inode == *odd { effect } else { all }),
                                );
                            }
                        }
                    }
                }
            }
        }
        images
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation and answers with the fault that is due at it.
    fn enter(&self) -> io::Result<(MutexGuard<'_, State>, Option<Fault>)> {
        let mut state = self.state();
        let at = state.operations;
        state.operations += 1;
        let due = state.faults.iter().find(|(when, _)| *when == at).map(|(_, fault)| *fault);
        if due == Some(Fault::Crash) {
            state.crashed = true;
        }
        if state.crashed {
            return Err(io::Error::other("the simulated machine has stopped"));
        }
        Ok((state, due))
    }

    /// The same for operations that either happen or do not.
    fn enter_whole(&self) -> io::Result<MutexGuard<'_, State>> {
        match self.enter()? {
            (state, None) => Ok(state),
            (_, Some(_)) => Err(io::Error::other("simulated input/output error")),
        }
    }
}

impl State {
    fn add_durable(&mut self, name: &str, bytes: Vec<u8>) {
        let inode = self.inodes.len();
        self.inodes.push(Inode {
            name: name.to_owned(),
            cache: bytes.clone(),
            durable: bytes,
            dirty_from: None,
        });
        self.names.insert(name.to_owned(), inode);
        self.durable_names.insert(name.to_owned(), inode);
    }

    fn image(&self, names: &BTreeMap<String, usize>, effect: &dyn Fn(usize) -> TailEffect) -> SimDisk {
        let mut image = State { stale: Arc::clone(&self.stale), ..State::default() };
        for (name, inode) in names {
            let file = &self.inodes[*inode];
            let stale = self.stale.get(&file.name).map_or(&[][..], Vec::as_slice);
            image.add_durable(name, file.after(effect(*inode), stale));
        }
        SimDisk { state: Arc::new(Mutex::new(image)) }
    }

    fn directories(&self) -> Vec<BTreeMap<String, usize>> {
        let changes = &self.unsynced_names;
        let apply = |keep: &dyn Fn(usize) -> bool| {
            let mut names = self.durable_names.clone();
            for (_, change) in changes.iter().enumerate().filter(|(at, _)| keep(*at)) {
                match change {
                    NameChange::Made(name, inode) => names.insert(name.clone(), *inode),
                    NameChange::Removed(name) => names.remove(name),
                };
            }
            names
        };
        let mut all: Vec<_> = (0..=changes.len()).map(|n| apply(&|at| at < n)).collect();
        all.extend((0..changes.len()).map(|gone| apply(&|at| at != gone)));
        let mut distinct = Vec::new();
        for names in all {
            if !distinct.contains(&names) {
                distinct.push(names);
            }
        }
        distinct
    }
}

impl Inode {
    /// What is on the disk if everything that waits to be written arrives.
    fn full(&self) -> Vec<u8> {
        let mut full = self.durable.clone();
        if let Some(from) = self.dirty_from {
            // What an earlier failed sync lost stays a hole.
            full.resize(from.min(self.cache.len()), 0);
            full.extend_from_slice(&self.cache[full.len()..]);
        }
        full
    }

    fn differs(&self) -> bool {
        self.full() != self.durable
    }

    fn after(&self, effect: TailEffect, stale: &[u8]) -> Vec<u8> {
        let mut full = self.full();
        let from = self.durable.len();
        if full.len() <= from {
            // A cut that was not synced happened or did not.
            return if effect == TailEffect::Lost { self.durable.clone() } else { full };
        }
        let (len, half) = (full.len(), from + (full.len() - from) / 2);
        match effect {
            TailEffect::Lost => full.truncate(from),
            TailEffect::Kept => {}
            TailEffect::Half => full.truncate(half),
            TailEffect::Zeros => full[from..].fill(0),
            TailEffect::HalfZeros => full[half..].fill(0),
            TailEffect::Reordered => full[from..half].fill(0),
            TailEffect::OneShort => full.truncate(len - 1),
            TailEffect::OneByte => full.truncate(from + 1),
            TailEffect::BitFlip => full[half] ^= 0x10,
            TailEffect::Stale => {
                for (at, byte) in full.iter_mut().enumerate().skip(from) {
                    *byte = stale.get(at).copied().unwrap_or(0);
                }
            }
        }
        full
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create_new(&self, name: &str) -> io::Result<SimFile> {
        let mut state = self.enter_whole()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode { name: name.to_owned(), ..Inode::default() });
        state.names.insert(name.to_owned(), inode);
        state.unsynced_names.push(NameChange::Made(name.to_owned(), inode));
        Ok(SimFile(inode))
    }

    fn open(&self, name: &str, _writable: bool) -> io::Result<SimFile> {
        let state = self.enter_whole()?;
        state.names.get(name).map(|inode| SimFile(*inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn append(&self, file: &SimFile, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let (mut state, fault) = self.enter()?;
        if fault == Some(Fault::Error) || std::mem::take(&mut state.full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let taken = if fault == Some(Fault::Half) { bytes.len() / 2 } else { bytes.len() };
        state.full = fault == Some(Fault::Half);
        let inode = &mut state.inodes[file.0];
        let end = inode.cache.len();
        inode.dirty_from.get_or_insert(end);
        inode.cache.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn read_at(&self, file: &SimFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.enter_whole()?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = state.inodes[file.0].cache.get(from..).unwrap_or(&[]);
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn len(&self, file: &SimFile) -> io::Result<u64> {
        Ok(self.enter_whole()?.inodes[file.0].cache.len() as u64)
    }

    fn truncate(&self, file: &SimFile, len: u64) -> io::Result<()> {
        let mut state = self.enter_whole()?;
        let inode = &mut state.inodes[file.0];
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        inode.cache.truncate(len);
        inode.dirty_from = Some(inode.dirty_from.unwrap_or(len).min(len));
        Ok(())
    }

    fn sync_data(&self, file: &SimFile) -> io::Result<()> {
        let (mut state, fault) = self.enter()?;
        let inode = &mut state.inodes[file.0];
        match fault {
            None => {
                let full = inode.full();
                inode.durable = full;
                inode.dirty_from = None;
                Ok(())
            }
            Some(fault) => {
                if fault == Fault::Half {
                    inode.durable = inode.after(TailEffect::Half, &[]);
                }
                inode.dirty_from = None;
                Err(io::Error::other("simulated input/output error"))
            }
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        let (mut state, fault) = self.enter()?;
        // Unlike data, changes of names whose sync failed are still waiting: they are in a journal, and a
        // journal that cannot be written stops the file system rather than forget.
        let done = match fault {
            None => state.unsynced_names.len(),
            Some(Fault::Half) => state.unsynced_names.len() / 2,
            Some(_) => 0,
        };
        let changes: Vec<NameChange> = state.unsynced_names.drain(..done).collect();
        for change in changes {
            match change {
                NameChange::Made(name, inode) => state.durable_names.insert(name, inode),
                NameChange::Removed(name) => state.durable_names.remove(&name),
            };
        }
        if fault.is_some() { Err(io::Error::other("simulated input/output error")) } else { Ok(()) }
    }

    fn evict(&self, file: &SimFile) {
        let mut state = self.state();
        let inode = &mut state.inodes[file.0];
        let len = inode.cache.len();
        let mut seen = inode.full();
        // The length is kept in memory; blocks that were never written read as zeros.
        seen.resize(len, 0);
        inode.cache = seen;
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.enter_whole()?.names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.enter_whole()?;
        if state.names.remove(name).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.unsynced_names.push(NameChange::Removed(name.to_owned()));
        Ok(())
    }
}
