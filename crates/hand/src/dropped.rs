//! Requests that were dropped because they were stale: never done, always recorded.
//!
//! One line of JSON each in `dropped.jsonl` of the home, which becomes `dropped.1.jsonl` at [`ROTATED_AT`]; the one before
//! is then gone. The record is for people who ask why nothing happened, and nothing is decided by it: it is not synced,
//! and where it cannot be written its caller goes on.

use crate::files;
use crate::home::Home;
use outlast_core::time::UnixMicros;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

/// The file of the newest records.
const FILE: &str = "dropped.jsonl";
/// The file of those before.
const EARLIER: &str = "dropped.1.jsonl";

/// The bytes at which the file is put aside: 1 MiB.
pub const ROTATED_AT: u64 = 1 << 20;

/// The most bytes of one field that are kept.
pub const FIELD_LIMIT: usize = 512;

/// A request that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// When, by the wall clock.
    pub at: UnixMicros,
    /// What was dropped and why, in one sentence.
    pub what: String,
    /// The request's own id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request_id: Option<String>,
    /// Whose jobs it was about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope: Option<String>,
    /// The job it named.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub job_id: Option<String>,
    /// What it carried.
    pub carried: String,
    /// What it would have had to carry.
    pub current: String,
    /// Who sent it, as far as the connection proved that.
    pub by: String,
}

impl Dropped {
    /// With every field cut to [`FIELD_LIMIT`]: they come from outside.
    fn cut(&self) -> Dropped {
        let cut = |text: &String| text[..text.floor_char_boundary(FIELD_LIMIT)].to_owned();
        Dropped {
            at: self.at,
            what: cut(&self.what),
            request_id: self.request_id.as_ref().map(cut),
            scope: self.scope.as_ref().map(cut),
            job_id: self.job_id.as_ref().map(cut),
            carried: cut(&self.carried),
            current: cut(&self.current),
            by: cut(&self.by),
        }
    }
}

/// Records a dropped request. Where that fails (a full disk), nobody is told: the drop itself is answered in any case.
pub fn note(home: &Home, dropped: &Dropped) {
    let _ = append(home, dropped);
}

fn append(home: &Home, dropped: &Dropped) -> io::Result<()> {
    let mut file = open(home)?;
    // Who holds the lock for long is no keeper of order: then the line is added without it, up to a bound.
    let locked = files::try_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut length = file.metadata()?.len();
    if length >= ROTATED_AT && locked && files::still_named(home.dir(), FILE, &file) {
        rustix::fs::renameat(home.dir(), FILE, home.dir(), EARLIER)?;
        file = open(home)?;
        length = 0;
    }
    if length >= 2 * ROTATED_AT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut line = Vec::new();
    let mut last = [b'\n'];
    // A line that a full disk cut short must not swallow this one.
    if length > 0 && file.read_exact_at(&mut last, length - 1).is_ok() && last != [b'\n'] {
        line.push(b'\n');
    }
    serde_json::to_writer(&mut line, &dropped.cut())?;
    line.push(b'\n');
    file.write_all(&line)
}

fn open(home: &Home) -> io::Result<std::fs::File> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(home.dir(), FILE, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(std::fs::File::from(fd))
}

/// The newest `most` records, newest last. A line that cannot be read is left out.
#[must_use]
pub fn read(home: &Home, most: usize) -> Vec<Dropped> {
    let mut all = Vec::new();
    for name in [EARLIER, FILE] {
        let text = text_of(home, name).unwrap_or_default();
        all.extend(
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Dropped>(line).ok()),
        );
    }
    all.split_off(all.len().saturating_sub(most))
}

fn text_of(home: &Home, name: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::statat(home.dir(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => {}
        _ => return Ok(Vec::new()),
    }
    let file = std::fs::File::from(rustix::fs::openat(home.dir(), name, flags, Mode::empty())?);
    let mut text = Vec::new();
    file.take(3 * ROTATED_AT).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(number: u64, what: &str) -> Dropped {
        Dropped {
            at: UnixMicros(number),
            what: what.to_owned(),
            request_id: Some("r".to_owned()),
            scope: None,
            job_id: None,
            carried: "generation 1".to_owned(),
            current: "generation 2".to_owned(),
            by: "a test".to_owned(),
        }
    }

    #[test]
    fn the_newest_are_read_last_and_fields_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        assert_eq!(read(&home, 10), []);
        for number in 0..5 {
            note(&home, &dropped(number, "x\ny"));
        }
        note(&home, &dropped(5, &"ü".repeat(400)));
        let newest = read(&home, 3);
        assert_eq!(newest.iter().map(|one| one.at.0).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(newest[0], dropped(3, "x\ny"));
        assert_eq!(newest[2].what, "ü".repeat(256));
    }

    #[test]
    fn a_line_that_was_cut_short_swallows_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        note(&home, &dropped(1, "x"));
        let path = folder.path().join(FILE);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&text[..], &text[..20]].concat()).unwrap();
        note(&home, &dropped(2, "x"));
        assert_eq!(read(&home, 10).iter().map(|one| one.at.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn it_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        let count = 3 * ROTATED_AT / 512;
        for number in 0..count {
            note(&home, &dropped(number, &"x".repeat(5000)));
        }
        let size = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(size(FILE) + size(EARLIER) < 2 * ROTATED_AT + 10_000);
        assert_eq!(read(&home, 1)[0].at.0, count - 1);
    }

    #[test]
    fn what_stands_in_its_place_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(folder.path()).unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        note(&home, &dropped(1, "x"));
        assert_eq!(read(&home, 1), []);
    }
}
