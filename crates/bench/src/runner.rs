//! What the runner promises: one short command's round trip, many at once, a GiB read while it is produced, its memory.

use crate::{Bench, median, millis, raw_copy, six_syncs, time};
use outlast_core::bytes::Bytes;
use outlast_core::id::{Cursor, Key, Scope};
use outlast_core::spec::Command as Work;
use outlast_core::status::State;
use outlast_core::time::Millis;
use outlast_sys::{Pid, mem};
use outlast_wire::admission::Admission;
use outlast_wire::client::{Client, Http, Read, Tail, Until};
use outlast_wire::verbs::Stop;
use outlast_wire::view::JobView;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::LocalSet;

const WAIT: Duration = Duration::from_secs(50);

/// A runner of our own, ended with the benchmark.
struct Runner {
    child: Child,
    socket: PathBuf,
}

impl Runner {
    fn start(program: &Path, home: &Path) -> Runner {
        let mut child = Command::new(program)
            .args(["serve", "--home"])
            .arg(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the runner");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        std::io::BufReader::new(out).read_line(&mut line).expect("its first line");
        assert!(line.starts_with("listening on unix:"), "{line}");
        Runner { child, socket: home.join("runner.sock") }
    }

    async fn connect(&self, http: Http) -> Client {
        let stream = UnixStream::connect(&self.socket).await.expect("the runner's socket");
        Client::begin(stream, http, None, Scope::new("bench").expect("a scope")).await.expect("hello")
    }

    fn memory_kib(&self) -> u64 {
        let pid = Pid::from_child(&self.child);
        mem::smaps_rollup(Some(pid)).map_or(0, |rollup| rollup.rss)
    }

    fn end(mut self) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), rustix::process::Signal::TERM);
        self.child.wait().expect("the runner's end");
    }
}

fn admission(key: String, words: &[&str]) -> Admission {
    let words = words.iter().map(|word| Bytes::from(*word)).collect();
    Admission::new(Key::new(key).expect("a key"), Work::Argv(words), "/")
}

async fn run_true(client: &Client, key: String) -> JobView {
    let admission = admission(key.clone(), &["/bin/true"]);
    let view = client.admit(&key, &admission, Until::Settled, WAIT).await.expect("a receipt");
    assert_eq!(view.state, State::Settled, "{view:?}");
    view
}

/// Where the time of one round trip went, in milliseconds: to the admission, to the command's process, to its end, to the
/// proof, to the receipt's making, to the answer.
fn stages(view: &JobView, asked: u64, answered: u64) -> [f64; 6] {
    let times = &view.receipt.as_ref().expect("a receipt").times;
    let at = [
        asked,
        times.admitted.0,
        times.started.expect("started").0,
        times.exited.expect("exited").0,
        times.dead.0,
        times.settled.0,
        answered,
    ];
    std::array::from_fn(|stage| at[stage + 1].saturating_sub(at[stage]) as f64 / 1e3)
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// All of it.
pub(crate) fn bench(bench: &mut Bench) {
    let hand = bench.outlast.with_file_name("outlast-hand");
    assert!(hand.exists(), "build it first: cargo build --release --workspace");
    let size = std::fs::metadata(&hand).expect("the program").len();
    println!("\nThe runner");
    bench.figure("the static program", size as f64 / f64::from(1 << 20), "MiB", 5.0, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        round_trips(bench, &hand).await;
        admissions(bench, &hand).await;
        output(bench, &hand).await;
    });
}

/// `true`, admitted, run and its receipt read, over a Unix socket, in turn with its own syncs and two spawns.
async fn round_trips(bench: &mut Bench, hand: &Path) {
    const ROUNDS: usize = 200;
    println!("\n`true` admitted, run and its receipt read over a Unix socket, {ROUNDS} rounds");
    let home = bench.disk.join("round-trips");
    let runner = Runner::start(hand, &home);
    let syncs = bench.disk.join("runner-syncs");
    std::fs::create_dir_all(&syncs).expect("a folder");
    let client = runner.connect(Http::Two).await;
    let (mut floor, mut whole, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let spawns = time(&mut Command::new("/bin/true")) + time(&mut Command::new("/bin/true"));
        floor.push(spawns + six_syncs(&syncs, round));
        let (started, asked) = (Instant::now(), outlast_hand::clock::unix_now().0);
        let view = run_true(&client, format!("round-{round}")).await;
        whole.push(millis(started));
        parts.push(stages(&view, asked, outlast_hand::clock::unix_now().0));
    }
    let (p50, p99) = (quantile(&whole, 0.5), quantile(&whole, 0.99));
    bench.note("two spawns and six syncs, p50", median(floor.clone()), "ms");
    bench.note("through the runner, p50", p50, "ms");
    bench.note("through the runner, p99", p99, "ms");
    for (stage, name) in [
        "to admission",
        "to the command's process",
        "to its end",
        "to the proof",
        "to the receipt's text",
        "to the answer",
    ]
    .into_iter()
    .enumerate()
    {
        bench.note(&format!("  {name}"), median(parts.iter().map(|part| part[stage]).collect()), "ms");
    }
    bench.figure("p50 / (two spawns and six syncs)", p50 / median(floor), "x", 1.5, false);
    bench.figure("p99 / p50", p99 / p50, "x", 4.0, false);

    const AT_ONCE: usize = 50;
    const EACH: usize = 8;
    let client = Rc::new(client);
    let started = Instant::now();
    let all: Vec<_> = (0..AT_ONCE)
        .map(|one| {
            let client = Rc::clone(&client);
            tokio::task::spawn_local(async move {
                for round in 0..EACH {
                    run_true(&client, format!("at-once-{one}-{round}")).await;
                }
            })
        })
        .collect();
    let before = cpu_ms();
    for one in all {
        one.await.expect("a receipt");
    }
    let took = millis(started) / 1e3;
    bench.note("50 at once: commands a second", (AT_ONCE * EACH) as f64 / took, "1/s");
    bench.note("50 at once: processors busy meanwhile", (cpu_ms() - before) / 1e3 / took, "of 2");
    runner.end();
}

/// Milliseconds of processor time that the whole machine has spent working.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let words: Vec<f64> = stat
        .lines()
        .next()
        .expect("a line")
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait), irq, softirq: in hundredths of a second.
    [0, 1, 2, 5, 6].iter().map(|at| words[*at] * 10.0).sum()
}

/// A thousand admissions of jobs that stay, two hundred readers that wait, and the memory of it.
async fn admissions(bench: &mut Bench, hand: &Path) {
    const JOBS: usize = 1000;
    const READERS: usize = 200;
    println!("\n{JOBS} admissions on one connection, 16 under way at a time");
    let home = bench.disk.join("admissions");
    let runner = Runner::start(hand, &home);
    let client = Rc::new(runner.connect(Http::Two).await);
    let started = Instant::now();
    let all: Vec<_> = (0..16)
        .map(|lane| {
            let client = Rc::clone(&client);
            tokio::task::spawn_local(async move {
                let mut ids = Vec::new();
                for number in (lane..JOBS).step_by(16) {
                    let key = format!("admission-{number}");
                    let mut admission = admission(key.clone(), &["/bin/sleep", "1000"]);
                    admission.grace = Some(Millis(0));
                    let view = client.admit(&key, &admission, Until::Now, Duration::ZERO).await;
                    ids.push(view.expect("an admission").job_id);
                }
                ids
            })
        })
        .collect();
    let mut ids = Vec::new();
    for one in all {
        ids.extend(one.await.expect("admissions"));
    }
    bench.figure("admitted in", millis(started) / 1e3, "s", 5.0, false);
    for id in &ids {
        let view = client.job(*id, Until::Started, WAIT).await.expect("a look");
        assert_eq!(view.state, State::Running, "{view:?}");
    }
    bench.note("all running after", millis(started) / 1e3, "s");
    let mut readers = Vec::new();
    for (number, id) in ids.iter().take(READERS).enumerate() {
        // Each on a connection of its own: that is what costs the runner most.
        let client = runner.connect(if number % 2 == 0 { Http::Two } else { Http::One }).await;
        let id = *id;
        readers.push(tokio::task::spawn_local(async move {
            let read = Read { wait: Duration::from_secs(20), ..Read::default() };
            client.read(id, read).await.expect("an answer")
        }));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.figure(
        &format!("runner's memory with {JOBS} jobs and {READERS} readers"),
        runner.memory_kib() as f64 / 1024.0,
        "MiB",
        64.0,
        false,
    );
    let started = Instant::now();
    for id in &ids {
        let stop = Stop {
            id: "bench".to_owned(),
            force: true,
            grace: None,
            reason: outlast_core::fence::StopReason::Asked,
        };
        client.stop(&format!("stop-{id}"), *id, &stop).await.expect("a stop");
    }
    for id in &ids {
        let view = client.job(*id, Until::Settled, WAIT).await.expect("a look");
        assert_eq!(view.state, State::Settled, "{view:?}");
    }
    bench.note("all stopped, one after the other, and settled in", millis(started) / 1e3, "s");
    for reader in readers {
        reader.await.expect("a reader");
    }
    runner.end();
}

/// A GiB read by a client while it is produced, in turn with the raw copy.
async fn output(bench: &mut Bench, hand: &Path) {
    const BYTES: u64 = 1 << 30;
    println!("\n1 GiB read through the runner while it is produced, on tmpfs, five pairs in turn, medians");
    let home = bench.tmpfs.join("runner-output");
    let runner = Runner::start(hand, &home);
    for (name, http) in [("HTTP/2", Http::Two), ("HTTP/1.1", Http::One)] {
        let client = runner.connect(http).await;
        let (mut raw, mut through, mut peak) = (Vec::new(), Vec::new(), 0);
        for round in 0..5 {
            let file = bench.tmpfs.join("raw");
            raw.push(raw_copy(BYTES, &file));
            std::fs::remove_file(&file).expect("the raw copy");
            let key = format!("output-{name}-{round}");
            let mut admission =
                admission(key.clone(), &["/usr/bin/head", "-c", &BYTES.to_string(), "/dev/zero"]);
            admission.limits.log_bytes = Some(2 << 30);
            let started = Instant::now();
            let id =
                client.admit(&key, &admission, Until::Now, Duration::ZERO).await.expect("admitted").job_id;
            let mut at = Cursor(0);
            let mut bytes = 0;
            loop {
                let read =
                    Read { from: at, max: Some(1 << 20), wait: Duration::from_secs(20), ..Read::default() };
                let answer = client.read(id, read).await.expect("output");
                bytes += answer.body.len() as u64;
                at = answer.next;
                peak = peak.max(if bytes % (64 << 20) < 1 << 20 { runner.memory_kib() } else { 0 });
                if answer.tail == Tail::Ended {
                    break;
                }
            }
            through.push(millis(started));
            assert_eq!(bytes, BYTES, "all bytes were read");
            let view = client.job(id, Until::Settled, WAIT).await.expect("a receipt");
            let folder = home.join("jobs").join(id.to_string());
            assert_eq!(view.state, State::Settled);
            std::fs::remove_dir_all(folder).expect("the job");
        }
        let pairs = raw.iter().zip(&through).map(|(raw, through)| raw / through).collect();
        bench.note(&format!("{name}: raw copy, pipe to file"), BYTES as f64 / 1e3 / median(raw), "MB/s");
        bench.note(&format!("{name}: read through the runner"), BYTES as f64 / 1e3 / median(through), "MB/s");
        bench.figure(&format!("{name}: through the runner / raw"), median(pairs), "x", 0.5, true);
        bench.note(&format!("{name}: runner's memory, peak"), peak as f64 / 1024.0, "MiB");
    }
    runner.end();
}
