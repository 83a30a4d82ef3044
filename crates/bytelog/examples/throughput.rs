//! Measures appending to the log beside plain writes of the same bytes, in the same run.
//!
//! ```text
//! cargo run --release -p outlast-bytelog --example throughput [directory] [MiB]
//! ```
//!
//! The directory defaults to `/dev/shm`, where no disk blurs the cost of framing. Each round does both,
//! in turn, so that neither profits from the machine's mood; the best of five counts.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use outlast_bytelog::{DirDisk, LogId, Options, Reader, Stream, Tail, Writer, recover};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| "/dev/shm".to_owned());
    let mib: usize = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let chunk: Vec<u8> = (0..1_usize << 20).map(|at| (at * 7 + at / 251) as u8).collect();

    let (mut plain, mut framed, mut read, mut recovered) = [Duration::MAX; 4].into();
    for _ in 0..5 {
        plain = plain.min(plain_writes(Path::new(&directory), &chunk, mib)?);
        let dir = tempfile::tempdir_in(&directory)?;
        let disk = DirDisk::open(dir.path())?;
        framed = framed.min(appends(&disk, &chunk, mib)?);
        read = read.min(reads(&disk)?);
        let start = Instant::now();
        recover(&disk, LogId([1; 16]))?;
        recovered = recovered.min(start.elapsed());
    }

    let rate = |time: Duration| mib as f64 * 1.048_576 / time.as_secs_f64();
    println!("{mib} MiB in calls of 1 MiB, {directory}, best of 5");
    println!("plain write     {:7.0} MB/s", rate(plain));
    println!("append          {:7.0} MB/s, {:.2} of plain", rate(framed), rate(framed) / rate(plain));
    println!("read from 0     {:7.0} MB/s", rate(read));
    println!("recover         {:7.0} MB/s", rate(recovered));
    Ok(())
}

fn plain_writes(directory: &Path, chunk: &[u8], mib: usize) -> Outcome<Duration> {
    let mut file = tempfile::tempfile_in(directory)?;
    let start = Instant::now();
    for _ in 0..mib {
        file.write_all(chunk)?;
    }
    Ok(start.elapsed())
}

fn appends(disk: &DirDisk, chunk: &[u8], mib: usize) -> Outcome<Duration> {
    let options = Options { limit_bytes: None, ..Options::default() };
    let start = Instant::now();
    let mut writer = Writer::create(disk, LogId([1; 16]), options)?;
    for time in 0..mib {
        writer.append(Stream::Stdout, time as u64, chunk)?;
    }
    Ok(start.elapsed())
}

fn reads(disk: &DirDisk) -> Outcome<Duration> {
    let mut reader = Reader::open(disk);
    let mut at = 0;
    let start = Instant::now();
    loop {
        let read = reader.read_from(at, 1 << 20)?;
        at = read.next;
        if read.tail != Tail::More {
            return Ok(start.elapsed());
        }
    }
}
