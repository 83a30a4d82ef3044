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
        let mut serve = Command::new(program);
        serve.args(["serve", "--home"]).arg(home);
        Runner::start_as(serve, home)
    }

    fn start_as(mut serve: Command, home: &Path) -> Runner {
        let mut child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the runner");
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

    /// [`Runner::end`] for one that something else has started: whoever listens at its socket is told.
    fn end_served(mut self) {
        let stream = std::os::unix::net::UnixStream::connect(&self.socket).expect("the runner's socket");
        let peer = outlast_sys::unix::peer(std::os::fd::AsFd::as_fd(&stream)).expect("its process");
        drop(stream);
        let pid = peer.pid.expect("its process");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        self.child.wait().expect("the runner's end");
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

/// What one program, round trips and admissions cost.
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
    });
}

/// Output read while it is produced.
pub(crate) fn stream(bench: &mut Bench) {
    let hand = bench.outlast.with_file_name("outlast-hand");
    assert!(hand.exists(), "build it first: cargo build --release --workspace");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
    LocalSet::new().block_on(&runtime, output(bench, &hand));
}

/// What the syncs of one round trip take, in milliseconds: those of a runner and of its keepers, traced. `None` where
/// nothing traces.
async fn own_syncs(bench: &Bench, hand: &Path) -> Option<f64> {
    const ROUNDS: usize = 100;
    let (home, trace) = (bench.disk.join("traced"), bench.disk.join("syncs.txt"));
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().ok().filter(|status| status.success())?;
    let mut strace = Command::new("strace");
    // The filter stops nothing but the syncs themselves.
    strace.args(["--seccomp-bpf", "-f", "-qq", "-y", "-T", "-e", "trace=fsync,fdatasync", "-o"]).arg(&trace);
    strace.arg(hand).args(["serve", "--home"]).arg(&home);
    let runner = Runner::start_as(strace, &home);
    let client = runner.connect(Http::Two).await;
    for round in 0..ROUNDS {
        run_true(&client, format!("traced-{round}")).await;
    }
    drop(client);
    runner.end_served();
    // Lines of `PID fsync(5</home/jobs>) = 0 <0.000234>`; one that is interrupted goes on in a line of its own.
    let text = std::fs::read_to_string(&trace).ok()?;
    let mut begun = std::collections::HashMap::new();
    let mut took: std::collections::HashMap<String, Vec<f64>> = std::collections::HashMap::new();
    for line in text.lines() {
        let pid = line.split_whitespace().next().unwrap_or_default();
        let file = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(file, _)| file);
        let kind = match line.contains("resumed>") {
            true => begun.remove(pid),
            false => file.map(|file| kind_of(&home, file)),
        };
        let Some(kind) = kind else { continue };
        if line.contains("<unfinished") {
            begun.insert(pid, kind);
        } else if let Some(seconds) = line.strip_suffix('>').and_then(|line| line.rsplit_once('<')) {
            took.entry(kind).or_default().push(seconds.1.parse::<f64>().ok()? * 1e3);
        }
    }
    // What happens once, at the start, is no part of a round trip.
    Some(took.into_values().filter(|times| times.len() >= ROUNDS).map(median).sum())
}

/// A file of a home without the names that differ from job to job.
fn kind_of(home: &Path, file: &str) -> String {
    let below = Path::new(file).strip_prefix(home).unwrap_or(Path::new(file));
    let words = below.components().map(|word| word.as_os_str().to_string_lossy().into_owned());
    let words =
        words.map(|word| if word.len() > 15 && !word.contains("json") { "JOB".to_owned() } else { word });
    let words: Vec<String> = words
        .map(|word| word.split_once(".json").map_or(word.clone(), |(name, _)| name.to_owned()))
        .collect();
    words.join("/")
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
    let (mut two_spawns, mut bare) = (Vec::new(), Vec::new());
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        two_spawns.push(time(&mut Command::new("/bin/true")) + time(&mut Command::new("/bin/true")));
        bare.push(six_syncs(&syncs, round));
        let (started, asked) = (Instant::now(), outlast_hand::clock::unix_now().0);
        let view = run_true(&client, format!("round-{round}")).await;
        whole.push(millis(started));
        parts.push(stages(&view, asked, outlast_hand::clock::unix_now().0));
    }
    let (p50, p99) = (quantile(&whole, 0.5), quantile(&whole, 0.99));
    let (two_spawns, bare) = (median(two_spawns), median(bare));
    let own = own_syncs(bench, hand).await;
    bench.note("two spawns, p50", two_spawns, "ms");
    if let Some(own) = own {
        bench.note("its own six syncs, traced, p50 each", own, "ms");
    }
    bench.note("six bare syncs of files of the same sizes, p50", bare, "ms");
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
    match own {
        Some(own) => {
            bench.figure("p50 / (two spawns and its own syncs)", p50 / (two_spawns + own), "x", 1.5, false)
        }
        None => println!("  not compared with its own syncs: there is no strace"),
    }
    bench.note("p50 / (two spawns and six bare syncs)", p50 / (two_spawns + bare), "x");
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
