//! The machine a record was made on.

use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What about a machine decides the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// The processors' architecture.
    pub architecture: &'static str,
    /// Processors that may be used.
    pub cpus: usize,
    /// Memory in kibibytes.
    pub memory_kib: Option<u64>,
    /// Whether the probes ran as root.
    pub root: bool,
    /// The kind of file system that holds the scratch folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
}

impl Machine {
    /// Looks at this one.
    #[must_use]
    pub fn look(scratch: &Path) -> Machine {
        let system = rustix::system::uname();
        Machine {
            kernel: system.release().to_string_lossy().into_owned(),
            architecture: std::env::consts::ARCH,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_kib(&text)),
            root: rustix::process::geteuid().is_root(),
            file_system: fs::read_to_string("/proc/self/mountinfo").ok().and_then(|text| {
                let scratch = scratch.canonicalize().ok()?;
                file_system(&text, &scratch)
            }),
        }
    }
}

fn memory_kib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The kind of the mount with the longest path that `path` lies below; of equals the later one, which covers the other.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let (mount, source) = line.split_once(" - ")?;
        let (Some(point), Some(kind)) = (mount.split(' ').nth(4), source.split(' ').next()) else { continue };
        let length = Path::new(point).components().count();
        if path.starts_with(point) && best.is_none_or(|(longest, _)| length >= longest) {
            best = Some((length, kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// The moment, as RFC 3339 to the second in UTC.
#[must_use]
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    rfc3339(seconds)
}

fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, so that the leap day ends a year; then eras of 400 years, which are all alike.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let year = year + era * 400;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_people_write_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn the_nearest_mount_decides() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw - tmpfs t rw\n3 1 0:6 / /tmpx rw - xfs x rw\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/a")).as_deref(), Some("tmpfs"));
        assert_eq!(file_system(mounts, Path::new("/home")).as_deref(), Some("ext4"));
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(memory_kib("MemTotal:       24 kB\nMemFree: 1 kB\n"), Some(24));
        assert_eq!(memory_kib(""), None);
    }
}
