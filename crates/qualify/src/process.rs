//! Processes of this machine, known by a mark in their environment, and told apart by when they started.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;

/// One process. A pid alone may be somebody else's by now; together with its start it is this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// The process that has this pid now.
    #[must_use]
    pub fn of(pid: u32) -> Option<Process> {
        Some(Process { pid, started: stat(pid)?.started })
    }

    /// Whether it lives. One that has ended and is not reaped does not.
    #[must_use]
    pub fn lives(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Kills this process and no other: it is looked at again once the descriptor names it.
    ///
    /// # Errors
    /// What the system says; that it is gone already is none.
    pub fn kill(self) -> std::io::Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        match pidfd_send_signal(&fd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        (stat(self.pid)?.started == self.started).then_some(fd)
    }
}

struct Stat {
    name: String,
    state: char,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    read_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may hold anything, parentheses too.
fn read_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    Some(Stat { name, state, started })
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The value of a variable in the environment that a process was started with.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    environment.split(|byte| *byte == 0).find_map(|pair| {
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

/// The living processes whose environment has `name=value`, each with the value of `role` in it.
#[must_use]
pub fn marked(name: &str, value: &str, role: &str) -> Vec<(Process, String)> {
    let found = pids().into_iter().filter_map(|pid| {
        let process = Process::of(pid)?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        (variable(&environment, name)? == value && process.lives())
            .then(|| (process, variable(&environment, role).unwrap_or_default()))
    });
    found.collect()
}

/// How many processes of this name have ended and are not reaped.
#[must_use]
pub fn zombies(name: &str) -> usize {
    pids().into_iter().filter_map(stat).filter(|stat| stat.state == 'Z' && stat.name == name).count()
}

/// The children of a process, and theirs.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let listed = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children: Vec<u32> = listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            next.extend(&children);
            found.extend(children);
        }
    }
    found
}

/// Kibibytes of memory that exist because of a process: those it shares are divided by who shares them.
#[must_use]
pub fn proportional_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_may_hold_anything() {
        let text = b"7 (a) b (c) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let stat = read_stat(text).unwrap();
        assert_eq!((stat.name.as_str(), stat.state, stat.started), ("a) b (c", 'Z', 4242));
        assert!(read_stat(b"7 (a").is_none());
    }

    #[test]
    fn a_variable_is_matched_whole() {
        let environment = b"AB=1\0B=2\0C=\0";
        assert_eq!(variable(environment, "B").as_deref(), Some("2"));
        assert_eq!(variable(environment, "C").as_deref(), Some(""));
        assert_eq!(variable(environment, "A"), None);
    }

    #[test]
    fn a_marked_process_is_found_and_ended_once() {
        let value = format!("test-{}", std::process::id());
        let mut child = Command::new("sleep")
            .arg("600")
            .env("QUALIFY_TEST_MARK", &value)
            .env("QUALIFY_TEST_ROLE", "A")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Until its exec the child has our own environment.
        let found = loop {
            let found = marked("QUALIFY_TEST_MARK", &value, "QUALIFY_TEST_ROLE");
            if !found.is_empty() {
                break found;
            }
        };
        assert_eq!(found, [(Process::of(child.id()).unwrap(), "A".to_owned())]);
        let (process, _) = found[0];
        let other = Process { started: process.started + 1, ..process };
        other.kill().unwrap();
        assert!(process.lives(), "a process that started at another time is another process");
        process.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.lives());
        process.kill().unwrap();
    }
}
