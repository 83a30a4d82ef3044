//! Measures what Outlast promises for one machine, and prints each figure beside its limit.
//!
//! `cargo build --release --workspace && cargo run --release -p outlast-bench [spawn|output|idle|kill|runner|stream]…`
//!
//! Machines are shared and noisy: every ratio is taken within one run, its two sides in turn, and medians are quoted. A
//! figure that misses its limit is marked, and the program then ends with status 1.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on should say where")]

mod runner;

use outlast_core::evidence::Evidence;
use outlast_core::fence::{StopReason, StopRequest};
use outlast_core::id::JobId;
use outlast_core::ledger::{Record, StartMark};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_sys::proc_tree::children_of;
use outlast_sys::{Pid, mem};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What can be asked for; without a word, all of them.
const BENCHMARKS: [&str; 6] = ["spawn", "kill", "output", "idle", "runner", "stream"];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|word| !BENCHMARKS.contains(&word.as_str())) {
        eprintln!("`{unknown}` is no benchmark\nusage: outlast-bench [{}]...", BENCHMARKS.join("|"));
        std::process::exit(2);
    }
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    let mut bench = Bench::new();
    if runs("spawn") {
        bench.spawn();
    }
    if runs("kill") {
        bench.kill();
    }
    if runs("output") {
        bench.output();
    }
    if runs("idle") {
        bench.idle();
    }
    if runs("runner") {
        runner::bench(&mut bench);
    }
    if runs("stream") {
        runner::stream(&mut bench);
    }
    bench.clean_up();
    if bench.missed > 0 {
        println!("\n{} figures miss their limits", bench.missed);
        std::process::exit(1);
    }
    println!("\nall figures are within their limits");
}

struct Bench {
    outlast: PathBuf,
    disk: PathBuf,
    tmpfs: PathBuf,
    missed: u32,
}

impl Bench {
    fn new() -> Bench {
        let own = std::env::current_exe().expect("this program has a path");
        let outlast = own.with_file_name("outlast");
        assert!(outlast.exists(), "build it first: cargo build --release --workspace");
        let name = format!("outlast-bench-{}", std::process::id());
        let bench = Bench {
            outlast,
            disk: own.with_file_name(&name),
            tmpfs: Path::new("/dev/shm").join(&name),
            missed: 0,
        };
        for folder in [&bench.disk, &bench.tmpfs] {
            std::fs::create_dir_all(folder).expect("a folder for the benchmark");
        }
        bench
    }

    fn clean_up(&self) {
        for folder in [&self.disk, &self.tmpfs] {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    fn figure(&mut self, what: &str, value: f64, unit: &str, limit: f64, at_least: bool) {
        let holds = if at_least { value >= limit } else { value <= limit };
        self.missed += u32::from(!holds);
        let (sign, mark) =
            (if at_least { "at least" } else { "at most" }, if holds { "" } else { "   <-- MISSED" });
        println!("  {what:<58} {value:>9.3} {unit:<6} ({sign} {limit} {unit}){mark}");
    }

    fn note(&self, what: &str, value: f64, unit: &str) {
        println!("  {what:<58} {value:>9.3} {unit}");
    }

    fn run(&self, home: &Path, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(&self.outlast);
        run.arg("--home").arg(home).args(["--output", "json", "run"]).args(options).arg("--").args(command);
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        run.env_remove("AGENT_CALL_BUDGET_MS").env_remove("OUTLAST_JOB_ID").env_remove("OUTLAST_SCOPE");
        run
    }

    // ---- one short command

    fn spawn(&mut self) {
        const ROUNDS: usize = 100;
        println!("\n`outlast run -- true` as a whole process, {ROUNDS} rounds, medians");
        for (place, folder) in [("disk", self.disk.clone()), ("tmpfs", self.tmpfs.clone())] {
            let home = folder.join("home");
            let syncs = folder.join("syncs");
            std::fs::create_dir_all(&syncs).expect("a folder");
            time(&mut self.run(&home, &[], &["/bin/true"]));
            let (mut spawns, mut synced, mut whole) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                spawns.push(time(&mut Command::new("/bin/true")) + time(&mut Command::new("/bin/true")));
                synced.push(six_syncs(&syncs, round));
                whole.push(time(&mut self.run(&home, &["--new"], &["/bin/true"])));
            }
            let (spawns, synced, whole) = (median(spawns), median(synced), median(whole));
            self.note(&format!("{place}: two posix_spawns of true"), spawns, "ms");
            self.note(&format!("{place}: the same six syncs"), synced, "ms");
            self.note(&format!("{place}: outlast run -- true"), whole, "ms");
            match place {
                "disk" => self.figure(
                    "disk: above its syncs and two spawns",
                    whole - synced - spawns,
                    "ms",
                    5.0,
                    false,
                ),
                _ => self.figure("tmpfs: times two spawns", whole / spawns, "x", 3.0, false),
            }
        }
        match count_syncs(
            &mut self.run(&self.disk.join("home"), &["--new"], &["/bin/true"]),
            &self.disk.join("trace"),
        ) {
            Some(count) => self.figure("syncs, by strace", f64::from(count), "", 6.0, false),
            None => println!("  syncs: NOT COUNTED, strace cannot be run here"),
        }
    }

    // ---- much output

    fn output(&mut self) {
        const BYTES: u64 = 1 << 30;
        println!("\n1 GiB of output on tmpfs, five pairs in turn, medians");
        let (mut raw, mut kept, mut peak) = (Vec::new(), Vec::new(), 0);
        for round in 0..5 {
            let file = self.tmpfs.join("raw");
            raw.push(raw_copy(BYTES, &file));
            std::fs::remove_file(&file).expect("the raw copy");
            let home = self.tmpfs.join(format!("output-{round}"));
            let bytes = BYTES.to_string();
            let started = Instant::now();
            let mut child = self
                .run(
                    &home,
                    &["--log-limit", "2GiB", "--budget", "0"],
                    &["/usr/bin/head", "-c", &bytes, "/dev/zero"],
                )
                .spawn()
                .expect("outlast");
            while child.try_wait().expect("outlast").is_none() {
                peak = peak.max(keepers_memory(&home).0);
                std::thread::sleep(Duration::from_millis(5));
            }
            kept.push(millis(started));
            let home = Home::open(&home).expect("home");
            let report = outlast_hand::verify::verify(&home).expect("verify");
            assert!(report.violations.is_empty() && report.hashed_bytes == BYTES, "{report:?}");
            std::fs::remove_dir_all(home.path()).expect("the home");
        }
        let pairs = raw.iter().zip(&kept).map(|(raw, kept)| raw / kept).collect();
        self.note("raw copy, pipe to file", BYTES as f64 / 1e3 / median(raw), "MB/s");
        self.note("outlast run, hash and checksums included", BYTES as f64 / 1e3 / median(kept), "MB/s");
        self.figure("outlast / raw, pair by pair", median(pairs), "x", 0.6, true);
        self.figure("keeper's anonymous memory, peak", peak as f64 / 1024.0, "MiB", 8.0, false);
    }

    // ---- many quiet jobs

    fn idle(&mut self) {
        const JOBS: usize = 1000;
        println!("\n{JOBS} quiet jobs at once, started by {JOBS} calls");
        let home = self.tmpfs.join("idle");
        let started = Instant::now();
        // Two callers, one a core.
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (bench, home) = (&*self, &home);
                scope.spawn(move || {
                    for number in (half..JOBS).step_by(2) {
                        let word = format!("{}", 100_000 + number);
                        let status = bench
                            .run(home, &["--background", "--timeout", "0"], &["/bin/sleep", &word])
                            .status();
                        assert!(status.expect("outlast").success(), "job {number} was not started");
                    }
                });
            }
        });
        self.figure("started in", millis(started) / 1e3, "s", 10.0, false);
        let (_, per_job) = keepers_memory(&home);
        let jobs = per_job.len();
        assert_eq!(jobs, JOBS, "keepers of all jobs were found");
        let all: u64 = per_job.iter().sum();
        self.figure(
            "anonymous memory a job, warden and scribe",
            all as f64 / jobs as f64 / 1024.0,
            "MiB",
            0.5,
            false,
        );
        let before = keepers_cpu(&home);
        std::thread::sleep(Duration::from_secs(10));
        self.figure(
            "CPU of all keepers in 10 s of idleness",
            (keepers_cpu(&home) - before) as f64,
            "ms",
            0.0,
            false,
        );
        let open = Home::open(&home).expect("home");
        let ids = open.jobs().expect("jobs");
        let started = Instant::now();
        let stopping: Vec<Job> = ids.iter().map(|id| stop(&open, *id)).collect();
        for job in &stopping {
            wait_for(|| job.receipt().expect("a receipt").is_some());
        }
        self.note("all stopped together and settled in", millis(started) / 1e3, "s");
        let report = outlast_hand::verify::verify(&open).expect("verify");
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        println!("  {} jobs verified, no violations", report.jobs);
        wait_for(|| std::fs::read_dir(home.join("open")).is_ok_and(|entries| entries.count() == 0));
    }

    // ---- kill to proof

    fn kill(&mut self) {
        println!("\nKill to proof, receipt excluded, medians");
        let one =
            (0..15).map(|round| self.kill_once(&format!("one-{round}"), "exec sleep 1000", 1)).collect();
        self.figure("one process", median(one), "ms", 1.0, false);
        let script = "i=0; while [ $i -lt 999 ]; do sleep 1000 & i=$((i+1)); done; wait";
        let many = (0..5).map(|round| self.kill_once(&format!("many-{round}"), script, 1000)).collect();
        self.figure("a tree of 1,000", median(many), "ms", 100.0, false);
    }

    fn kill_once(&self, name: &str, script: &str, processes: usize) -> f64 {
        let home = self.tmpfs.join(name);
        let status =
            self.run(&home, &["--background", "--allow-detach"], &["/bin/sh", "-c", script]).status();
        assert!(status.expect("outlast").success());
        let open = Home::open(&home).expect("home");
        let id = open.jobs().expect("jobs")[0];
        let job = open.job(id).expect("job").expect("job");
        wait_for(|| job.activity().is_some_and(|activity| activity.processes as usize >= processes));
        let job = stop(&open, id);
        wait_for(|| job.receipt().expect("a receipt").is_some());
        let ledger = std::fs::read(job.path().join("ledger.jsonl")).expect("the ledger");
        let (mut killed, mut dead) = (None, None);
        for line in ledger.split(|byte| *byte == b'\n') {
            match serde_json::from_slice::<Record>(line) {
                Ok(Record::Signaled { at, signal: 9, .. }) => killed = killed.or(Some(at.0)),
                Ok(Record::Dead {
                    evidence: Evidence::CgroupEmptyAndReaped { at, .. } | Evidence::AllReaped { at, .. },
                }) => {
                    dead = Some(at.0);
                }
                _ => {}
            }
        }
        dead.expect("a proof").saturating_sub(killed.expect("a kill")) as f64 / 1e3
    }
}

fn stop(home: &Home, id: JobId) -> Job {
    let job = home.job(id).expect("job").expect("job");
    let request = StopRequest {
        id: "bench".to_owned(),
        job_id: id,
        generation: job.spec().generation,
        force: true,
        grace: None,
        reason: StopReason::Asked,
    };
    outlast_hand::control::stop(&job, &request, Duration::from_secs(30)).expect("stopped");
    job
}

fn time(command: &mut Command) -> f64 {
    let started = Instant::now();
    command.stdout(Stdio::null()).status().expect("the command");
    millis(started)
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn wait_for(done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < until, "waited for two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The syncs of a run without output, on files of the same sizes: spec, its folder, the folder of jobs; mark, receipt,
/// the job's folder.
fn six_syncs(folder: &Path, round: usize) -> f64 {
    let started = Instant::now();
    let job = folder.join(format!("job-{round}"));
    std::fs::create_dir(&job).expect("a folder");
    let sync_dir = |path: &Path| File::open(path).and_then(|dir| dir.sync_all()).expect("a sync");
    let write = |path: PathBuf, bytes: usize| {
        let mut file = File::create(path).expect("a file");
        file.write_all(&vec![b'x'; bytes]).expect("a write");
        file.sync_all().expect("a sync");
    };
    write(job.join("spec"), 650);
    sync_dir(&job);
    sync_dir(folder);
    let mut marks = File::options().append(true).create(true).open(folder.join("marks")).expect("a file");
    marks.write_all(&[0; 16]).expect("a write");
    marks.sync_data().expect("a sync");
    write(job.join("receipt"), 1030);
    sync_dir(&job);
    millis(started)
}

fn count_syncs(run: &mut Command, trace: &Path) -> Option<u32> {
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", "trace=fsync,fdatasync,sync,syncfs,msync,sync_file_range", "-o"])
        .arg(trace);
    strace.arg(run.get_program()).args(run.get_args());
    let status = strace.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    let text = std::fs::read_to_string(trace).ok().filter(|_| status.success())?;
    u32::try_from(text.lines().filter(|line| line.contains("sync") && !line.contains("resumed>")).count())
        .ok()
}

/// The fastest plain way: a pipe of 1 MiB, read and written in as large pieces, no hash, no frames.
fn raw_copy(bytes: u64, to: &Path) -> f64 {
    let started = Instant::now();
    let mut head = Command::new("/usr/bin/head")
        .args(["-c", &bytes.to_string(), "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("head");
    let mut pipe = head.stdout.take().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 20).expect("a larger pipe");
    let mut file = File::create(to).expect("a file");
    let mut buffer = mem::PageBuf::new(1 << 20).expect("a buffer");
    loop {
        match pipe.read(&mut buffer[..]).expect("a read") {
            0 => break,
            length => file.write_all(&buffer[..length]).expect("a write"),
        }
    }
    head.wait().expect("head");
    millis(started)
}

/// Wardens and scribes of all open jobs of a home.
fn keepers(home: &Path) -> Vec<(Pid, Option<Pid>)> {
    let Ok(Some(home)) = Home::open_existing(home) else { return Vec::new() };
    let mut keepers = Vec::new();
    for id in home.jobs().unwrap_or_default() {
        let Ok(Some(job)) = home.job(id) else { continue };
        let Ok(Some(StartMark::Keeper(mark))) = job.start_mark() else { continue };
        let Some(warden) = i32::try_from(mark.warden_pid).ok().and_then(Pid::from_raw) else { continue };
        if outlast_sys::pidfd::start_time(warden) == Some(mark.warden_start_time) {
            keepers.push((warden, None));
        }
    }
    // One scan for all: the scribe is the warden's child of that name.
    let scribes = children_of(rustix::process::Pid::INIT, &[]).unwrap_or_default();
    for (warden, scribe) in &mut keepers {
        let own = scribes
            .iter()
            .find(|process| process.ppid == Some(*warden) && process.comm() == b"outlast-scribe");
        *scribe = own.map(|process| process.pid);
    }
    keepers
}

/// Anonymous KiB of all keepers, and of each.
fn keepers_memory(home: &Path) -> (u64, Vec<u64>) {
    let of = |pid: Pid| mem::smaps_rollup(Some(pid)).map_or(0, |rollup| rollup.anonymous);
    let each: Vec<u64> =
        keepers(home).iter().map(|(warden, scribe)| of(*warden) + scribe.map_or(0, of)).collect();
    (each.iter().sum(), each)
}

/// CPU milliseconds that all keepers have used.
fn keepers_cpu(home: &Path) -> u64 {
    let of = |pid: Pid| {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/schedstat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.split_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0)
    };
    keepers(home).iter().map(|(warden, scribe)| of(*warden) + scribe.map_or(0, of)).sum::<u64>() / 1_000_000
}
