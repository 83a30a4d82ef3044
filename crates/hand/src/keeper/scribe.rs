//! The scribe: drains the command's output, hashes it, logs it, syncs it, and writes the receipt.
//!
//! It is the authority for output and storage, and decides nothing about processes. When the warden dies it drains on
//! to the end; when it dies itself the warden starts another, which states what may be lost.
//!
//! Invariants kept here: a cursor is announced only behind a sync that covers it; a failed sync is never tried again
//! and believed; while nothing happens no buffer is held and no timer runs.

use super::link::{Ended, LINK_LIMIT, ToScribe, ToWarden};
use super::{Ends, stages};
use crate::clock;
use crate::contain;
use crate::job::name;
use crate::{files, log, marks};
use outlast_bytelog::{DirDisk, Gap, GapCause, GapLength, Options, Resume, Stream, Writer};
use outlast_core::id::Cursor;
use outlast_core::ledger::{Record, StartMark};
use outlast_core::receipt::{Drain, Output, OutputHash, Receipt, TerminalMutation};
use outlast_core::spec::Spec;
use outlast_core::time::{Millis, Mono};
use outlast_scrub::remainder::Remainder;
use outlast_scrub::secrets::Masker;
use outlast_sys::mem::PageBuf;
use outlast_sys::unix::{self, Received};
use outlast_sys::{Errno, Pid, Signal, pidfd, prctl, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// One read takes at most what a full pipe of the largest size holds.
const BUFFER_BYTES: usize = 1 << 20;
/// The pages of the buffer are handed back after this long without output.
const BUFFER_KEPT: Millis = Millis(100);
/// A dirty log is synced this often.
const SYNC_EVERY: Millis = Millis(500);
/// Reads smaller than this are followed by a pause, so that many small writes become one frame.
const SMALL_READ: usize = 4096;
/// That pause.
const COALESCE: Duration = Duration::from_millis(1);
/// A pipe is grown once a read found this much in it: it was full.
const PIPE_FULL: usize = 64 << 10;
/// To this size, the default limit of an unprivileged user.
const PIPE_GROWN: usize = 1 << 20;
/// Without a warden, whoever adopted the leader is given this long to wait for it, and looked at this often: only then
/// does the kernel tell how it ended.
const ADOPTER_PATIENCE: Millis = Millis(10_000);
const ADOPTER_LOOKED_AT: Duration = Duration::from_millis(20);
/// What is kept aside so that a full disk cannot prevent ledger and receipt.
const RESERVE_BYTES: u64 = 64 << 10;
/// A receipt that cannot be written is tried again this often.
const RECEIPT_AGAIN: Millis = Millis(500);

/// Whether a receipt names a mark. Most of its text is passed over.
fn is_marked(text: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Named {
        terminal_mutation: TerminalMutation,
    }
    serde_json::from_slice(text)
        .is_ok_and(|Named { terminal_mutation }| matches!(terminal_mutation, TerminalMutation::Marked { .. }))
}

/// A receipt whose mark could not be made durable, and so is none.
fn without_mark(text: &[u8], why: String) -> Option<Vec<u8>> {
    let mut receipt: Receipt = serde_json::from_slice(text).ok()?;
    receipt.terminal_mutation = TerminalMutation::Unknown { why };
    serde_json::to_vec(&receipt).ok()
}

/// What a scribe is born with.
pub(super) struct Scribe<'a> {
    pub(super) job_path: &'a Path,
    pub(super) job_dir: BorrowedFd<'a>,
    pub(super) home: BorrowedFd<'a>,
    pub(super) spec: &'a Spec,
    pub(super) ends: &'a Ends,
    pub(super) link: OwnedFd,
    /// Whether an earlier scribe of this job was lost.
    pub(super) successor: bool,
    pub(super) maskers: [Masker; 2],
    pub(super) remainders: [Remainder; 2],
}

/// One pipe (or terminal) that output comes from.
struct Source<'a> {
    stream: Stream,
    fd: BorrowedFd<'a>,
    open: bool,
    grown: bool,
    is_pipe: bool,
}

/// What the warden said when the tree was dead.
#[derive(Clone, Copy)]
struct DrainOrder {
    until: Mono,
    executed: bool,
    code: Option<u8>,
}

struct State<'a> {
    scribe: Scribe<'a>,
    sources: Vec<Source<'a>>,
    writer: Option<Writer<DirDisk>>,
    /// The end of a log that an earlier scribe had ended, and its gaps.
    ended: Option<(u64, Vec<Gap>)>,
    hasher: Option<blake3::Hasher>,
    bytes: [u64; 2],
    /// Bytes read while the log could take none.
    dropped: u64,
    storage_failed: Option<String>,
    reopen_at: Option<Mono>,
    ledger: std::fs::File,
    buffer: Option<PageBuf>,
    buffer_used: bool,
    last_read: Mono,
    dirty_since: Option<Mono>,
    last_small: Option<std::time::Instant>,
    followers: u32,
    warden_lives: bool,
    leader: Option<(Pid, OwnedFd)>,
    leader_ended: Option<Mono>,
    end_noted: bool,
    drain: Option<DrainOrder>,
    receipt: Option<(Mono, Vec<u8>)>,
    /// Whether the warden ever had something to note: one that was too late for the start mark has not.
    has_work: bool,
    /// The warden's pid, as long as it lived.
    warden: Option<u32>,
    outbox: VecDeque<ToWarden>,
    finished: bool,
}

/// The scribe's whole life. Returns its exit status.
pub(super) fn run(scribe: Scribe<'_>) -> i32 {
    let _ = prctl::set_name(contain::SCRIBE_NAME);
    signals::block(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::CHILD]);
    match lock(&scribe).and_then(|lock| State::new(scribe).map(|state| (lock, state))) {
        Ok((_lock, mut state)) => {
            state.run();
            give_back_reserve(&state.ledger);
            0
        }
        Err(_) => 1,
    }
}

fn lock(scribe: &Scribe<'_>) -> io::Result<OwnedFd> {
    let lock = files::open_lock_file(scribe.job_dir, name::SCRIBE_LOCK)?;
    // A look at our liveness holds it shared for a moment.
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

impl<'a> State<'a> {
    fn new(scribe: Scribe<'a>) -> io::Result<State<'a>> {
        let flags = rustix::fs::OFlags::WRONLY
            | rustix::fs::OFlags::APPEND
            | rustix::fs::OFlags::CREATE
            | rustix::fs::OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let ledger = rustix::fs::openat(scribe.job_dir, name::LEDGER, flags, mode)?;
        let now = clock::mono_now();
        let scribe_is_successor = scribe.successor;
        let ends = scribe.ends;
        let mut sources = vec![(Stream::Stdout, ends.stdout.as_fd())];
        sources.extend(ends.stderr.iter().map(|fd| (Stream::Stderr, fd.as_fd())));
        let source =
            |(stream, fd)| Source { stream, fd, open: true, grown: false, is_pipe: !scribe.spec.work.tty };
        let sources = sources.into_iter().map(source).collect();
        let mut state = State {
            scribe,
            sources,
            writer: None,
            ended: None,
            hasher: Some(blake3::Hasher::new()),
            bytes: [0; 2],
            dropped: 0,
            storage_failed: None,
            reopen_at: None,
            ledger: ledger.into(),
            buffer: None,
            buffer_used: false,
            last_read: now,
            dirty_since: None,
            last_small: None,
            followers: 0,
            warden_lives: true,
            leader: None,
            leader_ended: None,
            end_noted: false,
            drain: None,
            receipt: None,
            has_work: scribe_is_successor,
            warden: rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()),
            outbox: VecDeque::new(),
            finished: false,
        };
        if state.scribe.successor {
            state.take_over();
            state.note(&Record::ScribeRestarted { at: clock::unix_now() });
        }
        state.tell(ToWarden::Ready);
        // While the command begins.
        reserve(&state.ledger);
        Ok(state)
    }

    /// Goes on behind what an earlier scribe wrote, in a new epoch that states what may be lost.
    fn take_over(&mut self) {
        let taken = self.disk().map_err(|error| error.to_string()).and_then(|disk| {
            let id = log::log_id(self.scribe.spec.job_id);
            let recovered = outlast_bytelog::recover(&disk, id).map_err(|error| error.to_string())?;
            let reread = log::reread(self.scribe.job_path).map_err(|error| error.to_string())?;
            if let Some(end) = recovered.ended() {
                return Ok((Err((end, recovered.gaps().to_vec())), reread));
            }
            let resume = Resume {
                time_us: clock::unix_now().0,
                announced: self.announced(),
                cause: Some(GapCause::WriterLost),
            };
            let writer = Writer::resume(disk, &recovered, id, self.options(), resume)
                .map_err(|error| error.to_string())?;
            Ok((Ok(writer), reread))
        });
        // What the lost scribe had read and not written was never hashed by anyone who lives.
        self.hasher = None;
        match taken {
            Ok((Ok(writer), reread)) => {
                self.bytes[0] += reread.stdout_bytes;
                self.bytes[1] += reread.stderr_bytes;
                self.writer = Some(writer);
            }
            // It was lost behind the end of output: nothing is missing, and nothing is to be added.
            Ok((Err(ended), reread)) => {
                self.bytes = [reread.stdout_bytes, reread.stderr_bytes];
                self.hasher = reread.hasher;
                self.ended = Some(ended);
            }
            Err(why) => self.storage_broke(why),
        }
    }

    fn announced(&self) -> Option<u64> {
        let text = files::read_small(self.scribe.job_dir, name::COMMITTED).ok()??;
        Some(u64::from_le_bytes(text.as_slice().try_into().ok()?))
    }

    fn disk(&self) -> io::Result<DirDisk> {
        Ok(DirDisk::from_fd(self.scribe.job_dir.try_clone_to_owned()?))
    }

    fn options(&self) -> Options {
        match self.scribe.spec.work.limits.log_bytes {
            Some(limit) => Options::with_limit(limit),
            None => Options { limit_bytes: None, ..Options::default() },
        }
    }

    fn run(&mut self) {
        while !self.finished {
            self.flush_outbox();
            if self.wait().is_err() {
                // Only a lack of memory can make it fail; the work goes on by turns of a tenth of a second.
                std::thread::sleep(Duration::from_millis(100));
            }
            let now = clock::mono_now();
            self.read_link();
            self.read_sources(now);
            self.time_passed(clock::mono_now());
        }
        self.flush_outbox();
    }

    /// Sleeps until there is something to read or something is due.
    fn wait(&self) -> Result<(), Errno> {
        let link = self.scribe.link.as_fd();
        let mut ready = Vec::with_capacity(4);
        if self.warden_lives {
            let more = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            ready.push(PollFd::from_borrowed_fd(link, PollFlags::IN | more));
        }
        ready.extend(
            self.sources.iter().filter(|s| s.open).map(|s| PollFd::from_borrowed_fd(s.fd, PollFlags::IN)),
        );
        if let Some((_, leader)) = &self.leader
            && !self.warden_lives
        {
            ready.push(PollFd::from_borrowed_fd(leader.as_fd(), PollFlags::IN));
        }
        let now = clock::mono_now();
        let due = [
            self.dirty_since.map(|since| since.plus(SYNC_EVERY)),
            (self.buffer_used).then(|| self.last_read.plus(BUFFER_KEPT)),
            self.drain.map(|drain| drain.until),
            self.receipt.as_ref().map(|(at, _)| *at),
            self.reopen_at,
        ];
        let timeout = due.into_iter().flatten().min().map(|at| Duration::from_millis(at.since(now).0));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn read_link(&mut self) {
        let mut buffer = Vec::new();
        while self.warden_lives {
            // Only for as long as there is something to take: an idle scribe holds no buffer.
            if buffer.is_empty() && !readable(self.scribe.link.as_fd()) {
                return;
            }
            buffer.resize(LINK_LIMIT, 0);
            match unix::recv(self.scribe.link.as_fd(), &mut buffer) {
                Ok(Received::Message(length)) => {
                    if let Ok(word) = serde_json::from_slice::<ToScribe>(&buffer[..length]) {
                        self.obey(word);
                    }
                }
                Ok(Received::TooLong(_)) => {}
                Ok(Received::Nothing) => return,
                // It died with words of ours unread. That is told once, before what it had said itself.
                Err(Errno::CONNRESET) => {}
                Ok(Received::Closed) | Err(_) => self.warden_lives = false,
            }
        }
    }

    fn obey(&mut self, word: ToScribe) {
        match word {
            ToScribe::Note(record) => {
                self.has_work = true;
                // The init of a namespace is not the command, and how it ends says nothing of it.
                if let Record::Started { pid, start_time, namespace: None, .. } = &record {
                    self.leader = hold_leader(*pid, *start_time);
                }
                self.note(&record);
            }
            ToScribe::Followers(count) => {
                self.followers = count;
                // What was logged between a new follower's first look and this word was told to nobody.
                self.ring_followers();
            }
            ToScribe::Sync => match self.sync() {
                Ok(cursor) => self.tell(ToWarden::Synced(cursor)),
                Err(why) => self.tell(ToWarden::SyncFailed(why)),
            },
            ToScribe::Count => self.tell(ToWarden::Counted(self.bytes.iter().sum())),
            ToScribe::Drain { until, executed, code } => {
                self.drain = Some(DrainOrder { until, executed, code })
            }
            ToScribe::Receipt(text) => {
                self.receipt = Some((Mono(0), text.get().as_bytes().to_vec()));
            }
        }
    }

    fn read_sources(&mut self, now: Mono) {
        // Taken in turn, so that a flood on one stream cannot starve the other.
        for index in 0..self.sources.len() {
            if self.sources[index].open {
                self.read_source(index, now);
            }
        }
    }

    fn read_source(&mut self, index: usize, now: Mono) {
        if self.buffer.is_none() {
            self.buffer = PageBuf::new(BUFFER_BYTES).ok();
        }
        let Some(mut buffer) = self.buffer.take() else { return };
        let source = &self.sources[index];
        if let Some(last) = self.last_small
            && self.drain.is_none()
            && readable(source.fd)
            && let Some(pause) = COALESCE.checked_sub(last.elapsed())
        {
            std::thread::sleep(pause);
        }
        match rustix::io::read(source.fd, &mut buffer[..]) {
            Ok(0) => self.source_ended(index),
            Ok(length) => {
                self.buffer_used = true;
                self.last_read = now;
                self.last_small = (length < SMALL_READ).then(std::time::Instant::now);
                if length >= PIPE_FULL {
                    self.grow(index);
                }
                self.take(index, &buffer[..length]);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A terminal whose last user has gone says EIO, which is its end-of-file.
            Err(_) => self.source_ended(index),
        }
        self.buffer = Some(buffer);
    }

    fn source_ended(&mut self, index: usize) {
        self.sources[index].open = false;
        let mut held = Vec::new();
        self.scribe.maskers[index.min(1)].flush(&mut held);
        self.log(self.sources[index].stream, &held);
    }

    fn grow(&mut self, index: usize) {
        let source = &mut self.sources[index];
        // An unprivileged user has a budget of 64 such pipes, after which all new ones shrink.
        if source.is_pipe && !source.grown && rustix::process::geteuid().is_root() {
            source.grown = true;
            let _ = rustix::pipe::fcntl_setpipe_size(source.fd, PIPE_GROWN);
        }
    }

    fn take(&mut self, index: usize, bytes: &[u8]) {
        let stream = self.sources[index].stream;
        let masker = &mut self.scribe.maskers[index.min(1)];
        if masker.is_noop() {
            self.log(stream, bytes);
        } else {
            let mut bytes = bytes.to_vec();
            self.scribe.remainders[index.min(1)].mask(&mut bytes);
            let mut masked = Vec::with_capacity(bytes.len());
            masker.push(&bytes, &mut masked);
            self.log(stream, &masked);
        }
    }

    fn log(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() || self.ended.is_some() {
            return;
        }
        self.bytes[usize::from(stream == Stream::Stderr)] += bytes.len() as u64;
        if self.dropped > 0 || self.storage_failed.is_some() {
            self.dropped += bytes.len() as u64;
            return;
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        let appended = self.open_writer().and_then(|writer| {
            writer.append(stream, clock::unix_now().0, bytes).map_err(|error| error_chain(&error))
        });
        match appended {
            Ok(()) => {
                if self.dirty_since.is_none() {
                    self.dirty_since = Some(clock::mono_now());
                }
                self.ring_followers();
            }
            Err(why) => self.storage_broke(why),
        }
    }

    /// Tells those who follow the output that there may be more of it.
    fn ring_followers(&self) {
        if self.followers > 0 {
            let _ = rustix::io::write(&self.scribe.ends.wake, &1u64.to_ne_bytes());
        }
    }

    fn open_writer(&mut self) -> Result<&mut Writer<DirDisk>, String> {
        if self.writer.is_none() {
            let disk = self.disk().map_err(|error| error.to_string())?;
            let id = log::log_id(self.scribe.spec.job_id);
            self.writer =
                Some(Writer::create(disk, id, self.options()).map_err(|error| error_chain(&error))?);
        }
        self.writer.as_mut().ok_or_else(|| "no log".to_owned())
    }

    /// The log is poisoned: nothing of this epoch is announced any more. The command is drained on, so that it never
    /// blocks; what is dropped is counted and stated by the next epoch.
    fn storage_broke(&mut self, why: String) {
        self.note(&Record::StorageFailed { at: clock::unix_now(), why: why.clone() });
        self.storage_failed = Some(why);
        self.dirty_since = None;
        self.reopen_at = Some(clock::mono_now().plus(RECEIPT_AGAIN));
    }

    fn reopen(&mut self, now: Mono) {
        if self.scribe.successor && self.writer.is_none() {
            // What a lost scribe left could not be taken over then; it is tried again.
            self.take_over();
            if self.writer.is_none() && self.ended.is_none() {
                return;
            }
        }
        let dropped = std::mem::take(&mut self.dropped);
        let lost = GapLength::Known(dropped);
        let reopened = match &mut self.writer {
            None if self.ended.is_some() => Ok(()),
            Some(writer) if writer.is_poisoned() => {
                writer.reopen(clock::unix_now().0, lost).map_err(|error| error_chain(&error))
            }
            Some(writer) => writer
                .append_gap(clock::unix_now().0, GapCause::StorageFailed, lost)
                .map_err(|error| error_chain(&error)),
            None => self.open_writer().and_then(|writer| {
                writer
                    .append_gap(clock::unix_now().0, GapCause::StorageFailed, lost)
                    .map_err(|error| error_chain(&error))
            }),
        };
        match reopened {
            Ok(()) => {
                self.storage_failed = None;
                self.reopen_at = None;
                self.hasher = None;
                self.dirty_since = Some(now);
            }
            Err(_) => {
                // A writer remembers what it was told; without one it is still to be told.
                if self.writer.is_none() {
                    self.dropped = dropped;
                }
                self.reopen_at = Some(now.plus(RECEIPT_AGAIN));
            }
        }
    }

    fn sync(&mut self) -> Result<Cursor, String> {
        self.dirty_since = None;
        if let Some(why) = &self.storage_failed {
            return Err(why.clone());
        }
        let Some(writer) = &mut self.writer else { return Ok(Cursor(0)) };
        if !writer.is_dirty() {
            return Ok(Cursor(writer.committed()));
        }
        match writer.sync() {
            Ok(cursor) => {
                self.announce(cursor);
                Ok(Cursor(cursor))
            }
            Err(error) => {
                let why = error_chain(&error);
                self.storage_broke(why.clone());
                Err(why)
            }
        }
    }

    /// Writes the committed cursor where readers find it. After the sync it speaks of, so whatever of the two a power
    /// cut keeps, the cursor is never ahead.
    fn announce(&self, cursor: u64) {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        if let Ok(file) = rustix::fs::openat(self.scribe.job_dir, name::COMMITTED, flags, mode) {
            let _ = rustix::io::pwrite(&file, &cursor.to_le_bytes(), 0);
        }
    }

    fn time_passed(&mut self, now: Mono) {
        if self.dirty_since.is_some_and(|since| now >= since.plus(SYNC_EVERY)) && self.drain.is_none() {
            let _ = self.sync();
        }
        if self.buffer_used && now >= self.last_read.plus(BUFFER_KEPT) {
            self.buffer_used = false;
            self.buffer = None;
        }
        if self.reopen_at.is_some_and(|at| now >= at) {
            self.reopen(now);
        }
        let all_ended = self.sources.iter().all(|source| !source.open);
        if let Some(drain) = self.drain
            && (all_ended || now >= drain.until)
        {
            self.drain = None;
            self.drained(drain);
        }
        if let Some((at, _)) = &self.receipt
            && now >= *at
        {
            self.write_receipt(now);
        }
        if !self.warden_lives && self.drain.is_none() && self.receipt.is_none() {
            self.orphaned(self.sources.iter().all(|source| !source.open));
        }
    }

    fn drained(&mut self, order: DrainOrder) {
        let drain = self.drain_outcome();
        for index in 0..self.sources.len() {
            if self.sources[index].open {
                self.source_ended(index);
            }
        }
        let output = self.output(drain);
        let terminal_mutation = if order.executed {
            match marks::take(self.scribe.home, self.scribe.spec.job_id) {
                Ok(mark) => TerminalMutation::Marked { mark },
                Err(error) => TerminalMutation::Unknown { why: error.to_string() },
            }
        } else {
            TerminalMutation::None
        };
        let stages = stages::read(self.scribe.job_path, self.scribe.spec, order.code);
        self.note(&Record::Drained { at: clock::unix_now(), output: output.clone() });
        self.tell(ToWarden::Drained(Box::new(Ended { output, terminal_mutation, stages })));
    }

    fn drain_outcome(&self) -> Drain {
        let held: Vec<BorrowedFd<'_>> = self.sources.iter().filter(|s| s.open).map(|s| s.fd).collect();
        if held.is_empty() {
            return Drain::Complete;
        }
        let inodes: Vec<u64> =
            held.iter().filter_map(|fd| Some(rustix::fs::fstat(fd).ok()?.st_ino)).collect();
        let own = rustix::process::getpid();
        let warden = rustix::process::getppid();
        let exclude: Vec<Pid> = std::iter::once(own).chain(warden).collect();
        Drain::Incomplete { held_by: contain::holders(&inodes, &exclude) }
    }

    /// Ends the log, makes it durable, and says what it holds.
    fn output(&mut self, drain: Drain) -> Output {
        if self.storage_failed.is_some() {
            self.reopen(clock::mono_now());
        }
        let mut drain = drain;
        self.dirty_since = None;
        if let Some(writer) = &mut self.writer
            && self.storage_failed.is_none()
        {
            match writer.finish(clock::unix_now().0) {
                Ok(cursor) => {
                    if cursor > 0 {
                        self.announce(cursor);
                    }
                }
                Err(error) => self.storage_broke(error_chain(&error)),
            }
        }
        if let Some(why) = &self.storage_failed {
            drain = Drain::StorageFailed { why: why.clone() };
        }
        let (gaps, more) = self.writer.as_ref().map(Writer::gaps).unwrap_or_default();
        let committed = self.writer.as_ref().map_or(0, Writer::committed);
        let (committed, mut gaps) = self.ended.clone().unwrap_or((committed, gaps));
        let mut end = committed;
        if self.storage_failed.is_some() {
            // What was read and could not be kept is stated, in the receipt where the log cannot say it.
            end = committed.max(self.bytes.iter().sum());
            if end > committed {
                gaps.push(Gap {
                    from: committed,
                    length: GapLength::Known(end - committed),
                    cause: GapCause::StorageFailed,
                });
            }
        }
        if committed > 0 && self.ended.is_some() {
            self.announce(committed);
        }
        let hash = match (&self.storage_failed, more) {
            (Some(why), _) => OutputHash::Unknown { why: why.clone() },
            (None, _) => log::output_hash(self.hasher.as_ref()),
        };
        Output {
            final_cursor: Cursor(end),
            hash,
            drain,
            gaps: gaps.iter().map(log::gap_for_receipt).collect(),
            stdout_bytes: Some(self.bytes[0]),
            stderr_bytes: Some(self.bytes[1]),
        }
    }

    fn write_receipt(&mut self, now: Mono) {
        let Some((_, mut text)) = self.receipt.take() else { return };
        let (home, dir) = (self.scribe.home, self.scribe.job_dir);
        let marked = is_marked(&text);
        let mut unmarked = None;
        let mut write = |text: &[u8]| {
            files::write_once(dir, name::RECEIPT, text, || match marked {
                true => marks::sync(home).inspect_err(|error| unmarked = Some(error.to_string())),
                false => Ok(()),
            })
        };
        let mut written = write(&text);
        if written.is_err() {
            // What was kept aside for this moment.
            give_back_reserve(&self.ledger);
            written = write(&text);
        }
        if written.is_err()
            && let Some(why) = unmarked
            && let Some(without) = without_mark(&text, why)
        {
            text = without;
            written = files::write_once(dir, name::RECEIPT, &text, || Ok(()));
        }
        match written {
            Ok(_) => {
                self.tell(ToWarden::Settled);
                self.finished = true;
            }
            Err(error) => {
                self.tell(ToWarden::ReceiptFailed(error.to_string()));
                self.receipt = Some((now.plus(RECEIPT_AGAIN), text));
            }
        }
    }

    /// Without a warden: drain to the end, learn the leader's exit if the kernel tells, note both, and go. The job is
    /// unknown, and whoever settles it finds this.
    fn orphaned(&mut self, all_ended: bool) {
        if !self.has_work && !self.mark_is_our_wardens() {
            self.finished = true;
            return;
        }
        if all_ended && !self.end_noted {
            self.end_noted = true;
            let output = self.output(Drain::Complete);
            self.note(&Record::Drained { at: clock::unix_now(), output });
        }
        if let Some((_, leader)) = &self.leader {
            if !pidfd::is_readable(leader.as_fd()).unwrap_or(true) {
                return;
            }
            let now = clock::mono_now();
            let ended = *self.leader_ended.get_or_insert(now);
            match pidfd::exit_info(leader.as_fd()) {
                Some(status) => {
                    self.note(&Record::Exited { at: clock::unix_now(), exit: super::wire_exit(status) });
                    self.leader = None;
                }
                // It is a zombie until whoever adopted it has waited for it, and nothing wakes us then.
                None if now < ended.plus(ADOPTER_PATIENCE) => std::thread::sleep(ADOPTER_LOOKED_AT),
                None => self.leader = None,
            }
        }
        self.finished = all_ended && self.leader.is_none();
    }

    /// Whether the warden that is gone had taken the start mark: then there may be a command, though it died before it
    /// could say so.
    fn mark_is_our_wardens(&mut self) -> bool {
        let mark = crate::job::read_json(self.scribe.job_dir, name::START);
        let ours = matches!(mark, Ok(Some(StartMark::Keeper(mark))) if Some(mark.warden_pid) == self.warden);
        self.has_work |= ours;
        ours
    }

    fn note(&mut self, record: &Record) {
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            let _ = self.ledger.write_all(&line);
        }
    }

    fn tell(&mut self, word: ToWarden) {
        self.outbox.push_back(word);
        self.flush_outbox();
    }

    fn flush_outbox(&mut self) {
        while let Some(word) = self.outbox.front() {
            let Ok(text) = serde_json::to_vec(word) else {
                self.outbox.pop_front();
                continue;
            };
            match unix::send(self.scribe.link.as_fd(), &text) {
                Err(Errno::AGAIN) => return,
                Ok(()) | Err(_) => drop(self.outbox.pop_front()),
            }
        }
    }
}

/// Holds the leader, so that its exit can be learnt when the warden, who would have waited for it, is gone.
fn hold_leader(pid: u32, start_time: u64) -> Option<(Pid, OwnedFd)> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let fd = pidfd::open(pid).ok()?;
    (pidfd::start_time(pid) == Some(start_time)).then_some((pid, fd))
}

/// Keeps room for the ledger, and for the receipt of a job that ends on a full disk, as blocks behind the ledger's end.
fn reserve(ledger: &std::fs::File) {
    let _ = rustix::fs::fallocate(ledger, rustix::fs::FallocateFlags::KEEP_SIZE, 0, RESERVE_BYTES);
}

/// Frees the blocks behind the end: a file that is cut to the length it has loses them.
fn give_back_reserve(ledger: &std::fs::File) {
    if let Ok(there) = ledger.metadata() {
        let _ = ledger.set_len(there.len());
    }
}

/// Whether there is something to read from `fd`, its end included.
fn readable(fd: BorrowedFd<'_>) -> bool {
    crate::control::wait_readable(fd, Some(Duration::ZERO)).unwrap_or(false)
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
