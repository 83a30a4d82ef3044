//! Finds processes by descent or by a mark in their environment, and signals a whole tree.
//!
//! A scan of `/proc` is no snapshot: what forks during it can be missed, so "none found" is never a proof of
//! death. It finds whom to signal; the proof is that a subreaper has nothing left to wait for.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::{pidfd, raw};

/// A process as a scan saw it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proc {
    /// Its process id.
    pub pid: Pid,
    /// Its parent; `None` for the first process of our PID namespace.
    pub ppid: Option<Pid>,
    /// When it started, in clock ticks since boot: with the pid, its identity.
    pub start_time: u64,
    /// Its state as the kernel's letter: `R`, `S`, `D`, `T`, `Z` and so on.
    pub state: u8,
    comm: [u8; 16],
}

impl Proc {
    /// The name of its program, at most 15 bytes; set by the process itself, hence data of the command's.
    #[must_use]
    pub fn comm(&self) -> &[u8] {
        let len = self.comm.iter().position(|byte| *byte == 0).unwrap_or(self.comm.len());
        &self.comm[..len]
    }

    /// Whether it has ended and waits to be reaped.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

impl std::fmt::Debug for Proc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proc")
            .field("pid", &self.pid.as_raw_nonzero())
            .field("ppid", &self.ppid.map(Pid::as_raw_nonzero))
            .field("start_time", &self.start_time)
            .field("state", &char::from(self.state))
            .field("comm", &self.comm().escape_ascii().to_string())
            .finish()
    }
}

/// Reads one line of `/proc/PID/stat`. The name stands in parentheses and may itself hold parentheses, spaces
/// and newlines, so what follows the *last* closing one counts.
pub(crate) fn parse_stat(line: &[u8]) -> Option<Proc> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let pid = raw::pid(parse_number(line.get(..open)?.trim_ascii())?)?;
    let name = line.get(open + 1..close)?;
    let mut comm = [0; 16];
    let kept = name.len().min(15);
    comm[..kept].copy_from_slice(&name[..kept]);
    let mut fields = line.get(close + 1..)?.trim_ascii().split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let ppid = raw::pid(parse_number(fields.next()?)?);
    // The start time is field 22 of the line, the state field 3 and the parent field 4.
    let start_time = parse_number(fields.nth(17)?)?;
    Some(Proc { pid, ppid, start_time, state, comm })
}

fn parse_number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What became of an attempt to signal a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signalled {
    /// Processes that were sent the signal. Zombies are not counted: they cannot act on it.
    pub sent: usize,
    /// Processes that ended, or left the tree, between the scan and the signal.
    pub gone: usize,
    /// Processes we had no right to signal.
    pub denied: usize,
}

/// What a search for a mark found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// Processes whose environment holds the mark.
    pub found: Vec<Proc>,
    /// How many processes could not be looked into, for want of rights.
    pub unreadable: usize,
}

/// Scans `/proc`, keeping its descriptor and buffers from one scan to the next.
///
/// Memory is bounded by the number of processes of the system at 48 bytes each, whatever their names,
/// arguments or environments; it is released by dropping the scanner.
#[derive(Debug)]
pub struct Scanner {
    proc_dir: OwnedFd,
    all: Vec<Proc>,
}

impl Scanner {
    /// Opens `/proc`.
    ///
    /// # Errors
    /// If it is not mounted.
    pub fn new() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { proc_dir: rustix::fs::open("/proc", flags, Mode::empty())?, all: Vec::new() })
    }

    /// Lists all descendants of `root`, ascending by pid, `root` itself not among them. A process in
    /// `exclude` is left out, and so is what descends from it.
    ///
    /// # Errors
    /// If `/proc` cannot be read; a process that ends during the scan is no error.
    pub fn descendants(&mut self, root: Pid, exclude: &[Pid]) -> Result<Vec<Proc>, Errno> {
        self.scan()?;
        self.all.sort_unstable_by_key(|process| process.pid.as_raw_nonzero());
        Ok(descendants_among(&self.all, root, exclude))
    }

    /// Sends `signal` to all descendants of `root` but those in `exclude` and below.
    ///
    /// No signal goes to a bare pid: each process is first opened, then looked at again, and signalled
    /// through its descriptor only if it is still the one that was seen and still descends from `root`. One
    /// pass may miss what is being forked meanwhile; repeat it until nothing is left to wait for.
    ///
    /// # Errors
    /// If `/proc` cannot be read, or no descriptor is free.
    pub fn signal_descendants(
        &mut self,
        root: Pid,
        exclude: &[Pid],
        signal: Signal,
    ) -> Result<Signalled, Errno> {
        let mut result = Signalled::default();
        // Whoever is seen to belong to the tree by its parent is signalled at once: a process that forks and
        // ends a thousand times a second is gone by the end of a scan. In the order of pids that is nearly
        // everybody.
        let mut met: Vec<Pid> = Vec::new();
        let mut failure = None;
        let proc_dir = self.proc_dir.as_fd();
        let all = &mut self.all;
        all.clear();
        scan(proc_dir, |process| {
            all.push(process);
            let of_tree = |parent: Pid| parent == root || sorted_position(&met, parent).is_some();
            if !process.ppid.is_some_and(of_tree) || exclude.contains(&process.pid) || process.pid == root {
                return;
            }
            if met.last().is_none_or(|last| last.as_raw_nonzero() < process.pid.as_raw_nonzero()) {
                let in_tree = |pid| pid == root || sorted_position(&met, pid).is_some();
                match signal_one(proc_dir, &process, in_tree, signal, &mut result) {
                    Ok(true) => met.push(process.pid),
                    Ok(false) => {}
                    Err(errno) => failure = Some(errno),
                }
            }
        })?;
        if let Some(errno) = failure {
            return Err(errno);
        }
        all.sort_unstable_by_key(|process| process.pid.as_raw_nonzero());
        let tree = descendants_among(all, root, exclude);
        for process in tree.iter().filter(|process| sorted_position(&met, process.pid).is_none()) {
            let in_tree = |pid| pid == root || find(&tree, pid).is_some();
            if !signal_one(proc_dir, process, in_tree, signal, &mut result)? {
                result.gone += 1;
            }
        }
        Ok(result)
    }

    /// Lists the processes whose environment, as they were started with it, holds `mark` (`NAME=value`) as a
    /// whole entry.
    ///
    /// This is what a person is shown before attesting a death, and no proof: a process may overwrite its
    /// environment.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn marked(&mut self, mark: &[u8]) -> Result<Marked, Errno> {
        self.scan()?;
        let mut result = Marked::default();
        for process in &self.all {
            let fd = match open_in(self.proc_dir.as_fd(), process.pid, "environ") {
                Ok(fd) => fd,
                // It ended since it was listed, and hides nothing.
                Err(Errno::NOENT | Errno::SRCH) => continue,
                Err(_) => {
                    result.unreadable += 1;
                    continue;
                }
            };
            match environ_holds(std::fs::File::from(fd), mark) {
                Ok(true) => result.found.push(*process),
                Ok(false) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) => result.unreadable += 1,
            }
        }
        Ok(result)
    }

    fn scan(&mut self) -> Result<(), Errno> {
        let all = &mut self.all;
        all.clear();
        scan(self.proc_dir.as_fd(), |process| all.push(process))
    }
}

/// Shows `each` process once, and in the order of pids on the kernels we know.
fn scan(proc_dir: BorrowedFd<'_>, mut each: impl FnMut(Proc)) -> Result<(), Errno> {
    rustix::fs::seek(proc_dir, rustix::fs::SeekFrom::Start(0))?;
    let mut entries = [MaybeUninit::<u8>::uninit(); 8192];
    let mut dir = RawDir::new(proc_dir, &mut entries);
    while let Some(entry) = dir.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !name.first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        if let Some(process) = parse_number(name).and_then(raw::pid).and_then(|pid| read_stat(proc_dir, pid))
        {
            each(process);
        }
    }
    Ok(())
}

/// Opens a process that was seen in the tree, makes sure that it still is the one and still in it, and
/// signals it. Returns whether it was; only one who was may vouch for its children.
fn signal_one(
    proc_dir: BorrowedFd<'_>,
    seen: &Proc,
    in_tree: impl Fn(Pid) -> bool,
    signal: Signal,
    result: &mut Signalled,
) -> Result<bool, Errno> {
    if seen.is_zombie() {
        return Ok(true);
    }
    let fd = match pidfd::open(seen.pid) {
        Ok(fd) => fd,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
        Err(_) => return Ok(false),
    };
    if !still_descends(proc_dir, seen, in_tree) {
        return Ok(false);
    }
    match pidfd::send_signal(fd.as_fd(), signal) {
        Ok(()) => result.sent += 1,
        Err(Errno::PERM) => result.denied += 1,
        Err(_) => return Ok(false),
    }
    Ok(true)
}

/// Whether a process seen before is the same now, and its chain of parents still leads into the tree.
fn still_descends(proc_dir: BorrowedFd<'_>, seen: &Proc, in_tree: impl Fn(Pid) -> bool) -> bool {
    let Some(now) = read_stat(proc_dir, seen.pid).filter(|now| now.start_time == seen.start_time) else {
        return false;
    };
    // One that was seen in the tree is in it for good, for its orphans go to the root at the latest. So walk
    // up only past parents that are new, and not for ever.
    let mut parent = now.ppid;
    for _ in 0..64 {
        let Some(pid) = parent else { return false };
        if in_tree(pid) {
            return true;
        }
        parent = read_stat(proc_dir, pid).and_then(|process| process.ppid);
    }
    false
}

/// Lists all descendants of `root`; see [`Scanner::descendants`].
///
/// # Errors
/// If `/proc` cannot be read.
pub fn children_of(root: Pid, exclude: &[Pid]) -> Result<Vec<Proc>, Errno> {
    Scanner::new()?.descendants(root, exclude)
}

/// Signals all descendants of `root`; see [`Scanner::signal_descendants`].
///
/// # Errors
/// If `/proc` cannot be read, or no descriptor is free.
pub fn signal_descendants(root: Pid, exclude: &[Pid], signal: Signal) -> Result<Signalled, Errno> {
    Scanner::new()?.signal_descendants(root, exclude, signal)
}

/// Lists processes by a mark in their environment; see [`Scanner::marked`].
///
/// # Errors
/// If `/proc` cannot be read.
pub fn scan_environ_mark(mark: &[u8]) -> Result<Marked, Errno> {
    Scanner::new()?.marked(mark)
}

fn open_in(proc_dir: BorrowedFd<'_>, pid: Pid, file: &str) -> Result<OwnedFd, Errno> {
    let mut path = Path::default();
    // A pid and a file's name always fit.
    let _ = std::fmt::write(&mut path, format_args!("{}/{file}", pid.as_raw_nonzero()));
    rustix::fs::openat(proc_dir, path.as_bytes(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Room for `PID/stat`, so that a scan of thousands allocates nothing for their names.
#[derive(Default)]
struct Path {
    bytes: [u8; 32],
    len: usize,
}

impl Path {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl std::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn read_stat(proc_dir: BorrowedFd<'_>, pid: Pid) -> Option<Proc> {
    let fd = open_in(proc_dir, pid, "stat").ok()?;
    // 52 numbers and a name of at most 64 bytes; what we want stands in the first half.
    let mut line = [0u8; 1024];
    let len = rustix::io::read(&fd, &mut line).ok()?;
    parse_stat(&line[..len])
}

fn sorted_position(sorted: &[Pid], pid: Pid) -> Option<usize> {
    sorted.binary_search_by_key(&pid.as_raw_nonzero(), |pid| pid.as_raw_nonzero()).ok()
}

fn find(sorted: &[Proc], pid: Pid) -> Option<usize> {
    sorted.binary_search_by_key(&pid.as_raw_nonzero(), |process| process.pid.as_raw_nonzero()).ok()
}

/// Chooses the descendants of `root` out of processes sorted by pid.
fn descendants_among(sorted: &[Proc], root: Pid, exclude: &[Pid]) -> Vec<Proc> {
    #[derive(Clone, Copy, PartialEq)]
    enum Verdict {
        Unknown,
        OnTheWay,
        In,
        Out,
    }
    let mut verdicts = vec![Verdict::Unknown; sorted.len()];
    let mut way = Vec::new();
    for start in 0..sorted.len() {
        let mut at = start;
        // Climb until somebody's verdict is known; it is that of all who were passed.
        let verdict = loop {
            match verdicts[at] {
                Verdict::Unknown => {}
                // A circle cannot be; pids used again in the midst of a scan can make one appear.
                Verdict::OnTheWay => break Verdict::Out,
                known => break known,
            }
            verdicts[at] = Verdict::OnTheWay;
            way.push(at);
            let process = &sorted[at];
            if process.pid == root || exclude.contains(&process.pid) {
                break Verdict::Out;
            }
            match process.ppid {
                Some(parent) if parent == root => break Verdict::In,
                Some(parent) => match find(sorted, parent) {
                    Some(index) => at = index,
                    None => break Verdict::Out,
                },
                None => break Verdict::Out,
            }
        };
        for passed in way.drain(..) {
            verdicts[passed] = verdict;
        }
    }
    let inside = sorted.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::In);
    inside.map(|(process, _)| *process).collect()
}

/// Whether NUL-separated entries contain `mark` as a whole one, in memory that does not depend on their
/// length.
fn environ_holds(mut entries: impl Read, mark: &[u8]) -> std::io::Result<bool> {
    let mut buffer = [0u8; 4096];
    // How much of the mark the current entry has matched; `None` once it differs.
    let mut matched = Some(0);
    loop {
        let len = match entries.read(&mut buffer) {
            Ok(0) => return Ok(!mark.is_empty() && matched == Some(mark.len())),
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for byte in &buffer[..len] {
            if *byte == 0 {
                if !mark.is_empty() && matched == Some(mark.len()) {
                    return Ok(true);
                }
                matched = Some(0);
            } else {
                matched = matched.filter(|at| mark.get(*at) == Some(byte)).map(|at| at + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(raw: i32) -> Pid {
        Pid::from_raw(raw).unwrap()
    }

    fn process(own: i32, parent: i32) -> Proc {
        let ppid = Pid::from_raw(parent);
        Proc { pid: pid(own), ppid, start_time: own as u64, state: b'S', comm: [0; 16] }
    }

    fn pids(tree: &[Proc]) -> Vec<i32> {
        tree.iter().map(|process| process.pid.as_raw_nonzero().get()).collect()
    }

    #[test]
    fn a_stat_line_is_read_past_any_name() {
        let rest = "S 7 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 4096 10";
        for name in ["cat", "a b", "x) R 1 1", "((", ")", "new\nline", "", "0123456789abcde"] {
            let seen = parse_stat(format!("42 ({name}) {rest}\n").as_bytes()).unwrap();
            assert_eq!(
                (seen.pid, seen.ppid, seen.start_time, seen.state),
                (pid(42), Some(pid(7)), 987_654, b'S')
            );
            assert_eq!(seen.comm(), name.as_bytes());
        }
        let orphan = parse_stat(format!("1 (init) {}", rest.replacen("S 7", "S 0", 1)).as_bytes()).unwrap();
        assert_eq!(orphan.ppid, None);
        for broken in ["", "42", "42 (x", "42 (x)", "42 (x) S", "42 (x) S 7 7", "-1 (x) S 1", "x (y) S 1"] {
            assert_eq!(parse_stat(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn our_own_stat_line_is_read() {
        let me = rustix::process::getpid();
        let seen = read_stat(Scanner::new().unwrap().proc_dir.as_fd(), me).unwrap();
        assert_eq!(seen.pid, me);
        assert_eq!(seen.ppid, rustix::process::getppid());
        assert_eq!(pidfd::start_time(me), Some(seen.start_time));
    }

    #[test]
    fn descent_is_followed_through_any_order_of_pids() {
        let all = [process(1, 0), process(2, 9), process(5, 1), process(7, 5), process(9, 7), process(10, 1)];
        assert_eq!(pids(&descendants_among(&all, pid(5), &[])), [2, 7, 9]);
        assert_eq!(pids(&descendants_among(&all, pid(1), &[])), [2, 5, 7, 9, 10]);
        assert_eq!(pids(&descendants_among(&all, pid(1), &[pid(7)])), [5, 10]);
        assert_eq!(pids(&descendants_among(&all, pid(2), &[])), [0; 0]);
        assert_eq!(pids(&descendants_among(&all, pid(77), &[])), [0; 0]);
    }

    #[test]
    fn a_circle_of_reused_pids_ends_the_climb() {
        let all = [process(1, 0), process(3, 4), process(4, 3), process(5, 4)];
        assert_eq!(pids(&descendants_among(&all, pid(1), &[])), [0; 0]);
    }

    #[test]
    fn a_mark_is_a_whole_entry_wherever_reads_are_cut() {
        struct OneByOne<'a>(&'a [u8]);
        impl Read for OneByOne<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(&mut into[..1])
            }
        }
        for (environ, expected) in [
            (&b"A=1\0JOB=7\0B=2\0"[..], true),
            (b"JOB=7\0", true),
            (b"JOB=7", true),
            (b"JOB=77\0", false),
            (b"XJOB=7\0", false),
            (b"A=JOB=7\0", false),
            (b"JOB=\x007\x00", false),
            (b"", false),
        ] {
            assert_eq!(environ_holds(environ, b"JOB=7").unwrap(), expected, "{environ:?}");
            assert_eq!(environ_holds(OneByOne(environ), b"JOB=7").unwrap(), expected, "{environ:?}");
        }
        assert!(!environ_holds(&b"\0\0"[..], b"").unwrap());
    }
}
