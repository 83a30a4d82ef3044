//! Counts the bytes and lines of a file, in chunks, and can be interrupted anywhere: the smallest command that makes
//! full use of `outlast run --resume`.
//!
//! ```text
//! outlast run --resume -- count_bytes big.csv --delay-ms 100
//! ```
//!
//! What such a command does, and this one shows:
//!
//! - It saves what it has done in `$OUTLAST_CHECKPOINT`, after each chunk, by renaming a finished and synced file into
//!   place: a save is there whole or not at all, also after `kill -9`.
//! - A save says what it is a save of (the file's size and time of change), and one of something else is not used.
//! - It reports how far it is in `$OUTLAST_PROGRESS`, one JSON object a line, first of all where it continues.
//! - SIGTERM is honoured only after a save.
//!
//! Without these variables it counts all the same.

use outlast_sys::Signal;
use outlast_sys::signals::SignalFd;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// What is saved: the work, and how much of it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Save {
    file_bytes: u64,
    file_changed_ns: u64,
    done_bytes: u64,
    lines: u64,
}

struct Options {
    file: PathBuf,
    chunk_bytes: usize,
    delay: Duration,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| count(&options)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("count_bytes: {error}");
            ExitCode::from(2)
        }
    }
}

fn options(mut words: impl Iterator<Item = String>) -> io::Result<Options> {
    let bad = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{what}; usage: count_bytes FILE [--chunk-bytes N] [--delay-ms N]"),
        )
    };
    let mut options = Options { file: PathBuf::new(), chunk_bytes: 1 << 20, delay: Duration::ZERO };
    while let Some(word) = words.next() {
        let mut number = || {
            words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(|| bad("a number is missing"))
        };
        match word.as_str() {
            "--chunk-bytes" => options.chunk_bytes = usize::try_from(number()?.max(1)).unwrap_or(usize::MAX),
            "--delay-ms" => options.delay = Duration::from_millis(number()?),
            _ if options.file.as_os_str().is_empty() => options.file = word.into(),
            _ => return Err(bad("one file at a time")),
        }
    }
    if options.file.as_os_str().is_empty() { Err(bad("name a file")) } else { Ok(options) }
}

fn count(options: &Options) -> io::Result<ExitCode> {
    // From here on SIGTERM is a word that waits until it is read.
    let signals = SignalFd::new(&[Signal::TERM])?;
    let checkpoint = std::env::var_os("OUTLAST_CHECKPOINT").map(PathBuf::from);
    let mut progress = match std::env::var_os("OUTLAST_PROGRESS") {
        Some(path) => Some(File::options().append(true).create(true).open(path)?),
        None => None,
    };
    let mut file = File::open(&options.file)?;
    let mut save = begin(&file, checkpoint.as_deref())?;
    file.seek(SeekFrom::Start(save.done_bytes))?;
    report(progress.as_mut(), &save)?;
    let mut chunk = vec![0; options.chunk_bytes];
    loop {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        save.done_bytes += count as u64;
        save.lines += chunk[..count].iter().filter(|byte| **byte == b'\n').count() as u64;
        std::thread::sleep(options.delay);
        if let Some(checkpoint) = &checkpoint {
            keep(checkpoint, &save)?;
        }
        report(progress.as_mut(), &save)?;
        if signals.read()?.is_some() {
            return Ok(ExitCode::from(143));
        }
    }
    println!("{} lines, {} bytes", save.lines, save.done_bytes);
    Ok(ExitCode::SUCCESS)
}

/// The save to continue from, where there is one of this very file; else the beginning.
fn begin(file: &File, checkpoint: Option<&Path>) -> io::Result<Save> {
    let metadata = file.metadata()?;
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = Save {
        file_bytes: metadata.len(),
        file_changed_ns: u64::try_from(changed.as_nanos()).unwrap_or(u64::MAX),
        done_bytes: 0,
        lines: 0,
    };
    let saved = checkpoint.and_then(|folder| std::fs::read(folder.join("save.json")).ok());
    let saved: Option<Save> = saved.and_then(|text| serde_json::from_slice(&text).ok());
    let same =
        |saved: &Save| (saved.file_bytes, saved.file_changed_ns) == (start.file_bytes, start.file_changed_ns);
    Ok(saved.filter(same).unwrap_or(start))
}

/// Saves: a finished file is renamed into place, and the folder that names it is synced too.
fn keep(folder: &Path, save: &Save) -> io::Result<()> {
    let aside = folder.join("save.json.new");
    let mut file = File::create(&aside)?;
    file.write_all(&serde_json::to_vec(save)?)?;
    file.sync_all()?;
    std::fs::rename(&aside, folder.join("save.json"))?;
    File::open(folder)?.sync_all()
}

fn report(progress: Option<&mut File>, save: &Save) -> io::Result<()> {
    let Some(progress) = progress else { return Ok(()) };
    let line = serde_json::json!({ "done": save.done_bytes, "total": save.file_bytes, "unit": "bytes" });
    progress.write_all(format!("{line}\n").as_bytes())
}
