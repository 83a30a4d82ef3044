//! Where one probe of one subject is done: its mark, what it started, and how all of it is ended.

use crate::process::{self, Process};
use crate::subject::{
    Answer, Follow, Handle, POLL, Request, Said, Settled, Started, State, Subject, Trouble, Work,
};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The variable that every process of a probe has in its environment.
pub(crate) const MARK: &str = "OUTLAST_QUALIFY";

/// The variable that tells the processes of a probe apart.
pub(crate) const ROLE: &str = "OUTLAST_QUALIFY_ROLE";

/// How long the tidying after a probe may take.
pub(crate) const TIDYING: Duration = Duration::from_secs(30);

/// One probe's surroundings.
pub(crate) struct Lab {
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) quick: bool,
    pub(crate) bulk_bytes: u64,
    mark: String,
    handles: Mutex<Vec<Handle>>,
    closed: AtomicBool,
    sight: OnceLock<Answer<()>>,
}

impl Lab {
    pub(crate) fn new(subject: Arc<dyn Subject>, quick: bool, bulk_bytes: u64) -> Lab {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let mark = format!("q{:x}-{moment:x}-{number:x}", std::process::id());
        Lab {
            subject,
            quick,
            bulk_bytes,
            mark,
            handles: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
            sight: OnceLock::new(),
        }
    }

    /// A name that nobody else has.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// A bash script as a plain command, with the mark in its environment and that of all it starts.
    pub(crate) fn bash(&self, script: &str) -> Request {
        let mark = format!("{MARK}={}", self.mark);
        let role = format!("{ROLE}=leader");
        let words = ["env", &mark, &role, "bash", "-c", script].map(OsString::from);
        Request::of(Work::Argv(words.to_vec()))
    }

    /// A file beside the subject's commands.
    pub(crate) fn witness(&self, name: &str) -> String {
        format!("{}/{}-{name}", self.subject.scratch().trim_end_matches('/'), self.mark)
    }

    /// What commands left there; nothing where they left no file.
    pub(crate) fn testimony(&self, path: &str) -> Answer<Vec<u8>> {
        if self.subject.on_this_machine() {
            return match std::fs::read(path) {
                Ok(bytes) => Ok(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(Trouble::unobserved(error)),
            };
        }
        let script = format!("test ! -e '{path}' || cat '{path}'");
        self.look_by_job(&script)
    }

    /// How many lines commands left there.
    pub(crate) fn lines(&self, path: &str) -> Answer<usize> {
        Ok(self.testimony(path)?.iter().filter(|byte| **byte == b'\n').count())
    }

    pub(crate) fn start(&self, request: &Request) -> Answer<Started> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Trouble::unobserved("the probe is over"));
        }
        let started = self.subject.start(request)?;
        self.remember(&started.handle);
        Ok(started)
    }

    /// From here on a probe that is late, because its subject was, starts nothing more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// What must be ended when the probe is over.
    pub(crate) fn remember(&self, handle: &Handle) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if !handles.contains(handle) {
            handles.push(handle.clone());
        }
    }

    /// All output, once it is complete, hashed as it comes.
    pub(crate) fn read_all(&self, handle: &Handle) -> Answer<Read> {
        self.read_from(handle, 0, Follow::Until(Duration::from_secs(10)), u64::MAX)
    }

    /// Output from a cursor on, until it is complete or so many bytes were seen; then the reader leaves.
    pub(crate) fn read_from(&self, handle: &Handle, from: u64, follow: Follow, most: u64) -> Answer<Read> {
        let mut read = Read::new();
        self.subject.read(handle, from, follow, &mut |bytes| {
            let room = usize::try_from(most - read.count).unwrap_or(usize::MAX).min(bytes.len());
            read.push(&bytes[..room]);
            if read.count >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(read)
    }

    /// Goes on reading where `read` ended, until the output is complete.
    pub(crate) fn read_on(&self, handle: &Handle, read: &mut Read) -> Answer<()> {
        self.subject.read(handle, read.count, Follow::Until(Duration::from_secs(20)), &mut |bytes| {
            read.push(bytes);
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    /// Asks until the end of the command's own process is told, or nothing more will be, or the time is over; with how
    /// long that took.
    pub(crate) fn until_end_is_told(&self, handle: &Handle, within: Duration) -> Answer<(Said, Duration)> {
        let began = Instant::now();
        loop {
            let said = self.subject.inspect(handle)?;
            if said.end.is_some() || said.state.is_final() || began.elapsed() >= within {
                return Ok((said, began.elapsed()));
            }
            thread::sleep(POLL * 5);
        }
    }

    /// Waits until the output so far holds these bytes.
    pub(crate) fn until_output_has(&self, handle: &Handle, text: &str, within: Duration) -> Answer<bool> {
        let mut failed = None;
        let found = until(within, || match self.read_from(handle, 0, Follow::No, 1 << 20) {
            Ok(read) => read.first.windows(text.len()).any(|window| window == text.as_bytes()),
            Err(trouble) => {
                failed = Some(trouble);
                true
            }
        });
        failed.map_or(Ok(found), Err)
    }

    /// The roles of this probe's processes that live.
    pub(crate) fn living(&self) -> Answer<Vec<String>> {
        let mut roles: Vec<String> = if self.subject.on_this_machine() {
            process::marked(MARK, &self.mark, ROLE).into_iter().map(|(_, role)| role).collect()
        } else {
            self.sees()?;
            let found = self.look_by_job(&lister(&self.mark))?;
            let text = String::from_utf8_lossy(&found).into_owned();
            text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
        };
        roles.sort();
        Ok(roles)
    }

    /// Waits until processes with all these roles live.
    pub(crate) fn until_living(&self, roles: &[&str], within: Duration) -> Answer<bool> {
        let wanted: BTreeSet<&str> = roles.iter().copied().collect();
        let mut failed = None;
        let found = until(within, || match self.living() {
            Ok(living) => wanted.iter().all(|role| living.iter().any(|living| living == role)),
            Err(trouble) => {
                failed = Some(trouble);
                true
            }
        });
        failed.map_or(Ok(found), Err)
    }

    /// Those that live still after this time.
    pub(crate) fn living_after(&self, within: Duration) -> Answer<Vec<String>> {
        let began = Instant::now();
        loop {
            let living = self.living()?;
            if living.is_empty() || began.elapsed() >= within {
                return Ok(living);
            }
            thread::sleep(POLL * 10);
        }
    }

    /// Processes of this name that have ended and that nobody reaped.
    pub(crate) fn zombies(&self, name: &str) -> Answer<usize> {
        if self.subject.on_this_machine() {
            return Ok(process::zombies(name));
        }
        let script = format!("grep -l '({name}) Z' /proc/[0-9]*/stat 2>/dev/null | wc -l");
        let text = self.look_by_job(&script)?;
        String::from_utf8_lossy(&text).trim().parse().map_err(Trouble::unobserved)
    }

    /// Looks at the subject's machine by one of its own jobs, which does not carry the mark in its environment.
    fn look_by_job(&self, script: &str) -> Answer<Vec<u8>> {
        let words = ["bash", "-c", script].map(OsString::from);
        let started = self.subject.start(&Request::of(Work::Argv(words.to_vec())))?;
        let said = self.subject.wait(&started.handle, Duration::from_secs(20))?;
        if said.state != State::Ended {
            return Err(Trouble::unobserved(format!("the looking job is {}", said.in_words())));
        }
        Ok(self.read_from(&started.handle, 0, Follow::Until(Duration::from_secs(10)), 1 << 20)?.first)
    }

    /// Makes sure, before anything happens that must be looked at in time, that looking is possible.
    pub(crate) fn get_ready_to_look(&self) -> Answer<()> {
        if self.subject.on_this_machine() { Ok(()) } else { self.sees() }
    }

    /// What cannot be seen is not gone: whoever looks by a job must have seen a process of another job once.
    fn sees(&self) -> Answer<()> {
        let seen = self.sight.get_or_init(|| {
            let beacon = format!("{}-beacon", self.mark);
            let words = ["env", &format!("{MARK}={beacon}"), "sleep", "30"].map(OsString::from);
            let handle = self.start(&Request::of(Work::Argv(words.to_vec())))?.handle;
            let mut found = false;
            until(Duration::from_secs(10), || {
                found = self.look_by_job(&lister(&beacon)).is_ok_and(|text| !text.is_empty());
                found
            });
            self.subject.stop(&handle, Duration::from_secs(15))?;
            match found {
                true => Ok(()),
                false => Err(Trouble::unobserved("a command does not see the processes of another one")),
            }
        });
        seen.clone()
    }

    /// Ends all that the probe started, through the subject first and then, whatever the subject is, by the mark.
    pub(crate) fn tidy(&self) {
        let until = Instant::now() + TIDYING;
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(10));
            match self.subject.inspect(&handle) {
                Ok(Said { state: State::Running | State::Stopping, .. }) => {
                    let _ = self.subject.stop(&handle, left);
                }
                Ok(Said { state: State::Unknown, .. }) => {
                    let _: Answer<Settled> = self.subject.settle(&handle, left);
                }
                Ok(_) | Err(_) => {}
            }
        }
        if self.subject.on_this_machine() {
            end_marked(&self.mark, until);
            remove_witnesses(&self.subject.scratch(), &self.mark);
        } else {
            let kill = format!(
                "for i in 1 2 3; do {} | while read p r; do kill -9 $p; done; done; rm -f {}/{}-*",
                lister(&self.mark),
                self.subject.scratch(),
                self.mark
            );
            let _ = self.look_by_job(&kill);
        }
    }
}

/// A bash script that prints pid and role of each living process that has the mark; those that ended have no environment.
fn lister(mark: &str) -> String {
    format!(
        "for d in /proc/[0-9]*; do \
         e=$(tr '\\0' '\\n' 2>/dev/null < $d/environ) || continue; \
         case $'\\n'\"$e\"$'\\n' in *$'\\n'{MARK}={mark}$'\\n'*) \
         r=$(printf '%s\\n' \"$e\" | sed -n 's/^{ROLE}=//p'); echo \"${{d#/proc/}} $r\";; esac; done 2>/dev/null"
    )
}

/// Kills what has the mark until nothing has: what forks meanwhile is found by the next look.
fn end_marked(mark: &str, until: Instant) {
    while Instant::now() < until {
        let found: Vec<Process> =
            process::marked(MARK, mark, ROLE).into_iter().map(|(process, _)| process).collect();
        if found.is_empty() {
            return;
        }
        for process in found {
            let _ = process.kill();
        }
        thread::sleep(POLL);
    }
}

fn remove_witnesses(scratch: &str, mark: &str) {
    let Ok(entries) = std::fs::read_dir(Path::new(scratch)) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(mark) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Asks for a condition until it holds; `false` where it did not in time.
pub(crate) fn until(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + within;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// Output that was read.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    /// How many bytes.
    pub(crate) count: u64,
    /// The first MiB of them.
    pub(crate) first: Vec<u8>,
    hasher: blake3::Hasher,
}

impl Read {
    pub(crate) fn new() -> Read {
        Read { count: 0, first: Vec::new(), hasher: blake3::Hasher::new() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.count += bytes.len() as u64;
        self.hasher.update(bytes);
        let room = (1usize << 20).saturating_sub(self.first.len()).min(bytes.len());
        self.first.extend_from_slice(&bytes[..room]);
    }

    pub(crate) fn hash(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }

    pub(crate) fn is(&self, expected: &Expected) -> bool {
        self.count == expected.count && self.hash() == expected.hash
    }
}

/// Output as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) count: u64,
    pub(crate) hash: String,
}

impl Expected {
    pub(crate) fn bytes(bytes: &[u8]) -> Expected {
        Expected { count: bytes.len() as u64, hash: blake3::hash(bytes).to_hex().to_string() }
    }

    /// A pattern again and again, up to so many bytes.
    pub(crate) fn repeated(pattern: &[u8], count: u64) -> Expected {
        let block = pattern.repeat((1 << 20) / pattern.len().max(1) + 1);
        let whole = block.len() - block.len() % pattern.len().max(1);
        let mut hasher = blake3::Hasher::new();
        let mut left = count;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(whole);
            hasher.update(&block[..piece]);
            left -= piece as u64;
        }
        Expected { count, hash: hasher.finalize().to_hex().to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_pattern_is_what_repeating_it_gives() {
        for count in [0, 1, 7, 3_000_000] {
            let bytes: Vec<u8> = b"abcdefg".iter().copied().cycle().take(count).collect();
            assert_eq!(Expected::repeated(b"abcdefg", count as u64), Expected::bytes(&bytes));
        }
    }

    #[test]
    fn a_job_that_looks_finds_the_marked_and_no_others() {
        let mark = format!("test-{}", std::process::id());
        let sleeper = |mark: &str| {
            std::process::Command::new("sleep")
                .arg("600")
                .env(MARK, mark)
                .env(ROLE, "B")
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut children = [sleeper(&mark), sleeper(&format!("{mark}0"))];
        let look = || {
            let script = lister(&mark);
            let answered = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            String::from_utf8(answered.stdout).unwrap()
        };
        let expected = format!("{} B\n", children[0].id());
        let found = until(Duration::from_secs(20), || look() == expected);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(found);
        assert_eq!(look(), "");
    }

    #[test]
    fn a_condition_is_waited_for_and_no_longer_than_allowed() {
        let mut asked = 0;
        assert!(until(Duration::from_secs(10), || {
            asked += 1;
            asked == 3
        }));
        assert!(!until(Duration::from_millis(5), || false));
    }
}
