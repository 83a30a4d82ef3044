//! Ground to torture keepers on: a home of its own, jobs in it, and the check that nothing is left of them.
#![allow(dead_code)] // Two binaries use it, each another part.

use outlast_bytelog::{Item, Stream, Tail};
use outlast_core::bytes::Bytes;
use outlast_core::exit::Exit;
use outlast_core::fence::{StopReason, StopRequest};
use outlast_core::id::{Cursor, Generation, JobId, Scope};
use outlast_core::ledger::{Record, StartMark, Straggler};
use outlast_core::receipt::{Gap, OutputHash, Receipt};
use outlast_core::spec::{Boundary, Capture, Command, JobKind, Limits, Manner, Stdin, Work};
use outlast_core::status::{Projection, project};
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Request, admit};
use outlast_hand::control::{self, Notice, Say, StopAnswer, Watch};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::launch::{Launch, LaunchError, Launched, launch};
use outlast_hand::settle::{Outcome, Settle, settle};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for anything: a machine under load is slow, a lost wake-up is for ever.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Waits until a condition gives something.
///
/// # Panics
/// After [`LONG`].
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    wait_within(LONG, &mut condition).unwrap_or_else(|| panic!("waited in vain for: {what}"))
}

pub(crate) fn wait_within<T>(most: Duration, condition: &mut dyn FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + most;
    loop {
        if let Some(found) = condition() {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The modes that must work for this user. One that is missing makes tests fail: it is never passed over.
pub(crate) fn modes() -> Vec<Boundary> {
    match is_root() {
        true => vec![Boundary::Cgroup2Subreaper, Boundary::Subreaper, Boundary::PidNamespace],
        false => vec![Boundary::Subreaper, Boundary::PidNamespace],
    }
}

/// Runs one scene in all modes at once, each on ground of its own, and notes which modes ran.
pub(crate) fn in_all_modes(name: &str, scene: impl Fn(&Ground, Boundary) + Sync) {
    std::thread::scope(|scope| {
        for mode in modes() {
            let scene = &scene;
            std::thread::Builder::new()
                .name(format!("{name}, {}", mode.name()))
                .spawn_scoped(scope, move || {
                    let ground = Ground::new(&format!("{name}-{}", mode.name()));
                    scene(&ground, mode);
                    drop(ground);
                    note_mode(mode, name);
                })
                .unwrap();
        }
    });
}

/// Runs the rows of a table at once.
pub(crate) fn at_once<Row: Sync>(rows: &[Row], scene: impl Fn(&Row) + Sync) {
    std::thread::scope(|scope| {
        for row in rows {
            let scene = &scene;
            scope.spawn(move || scene(row));
        }
    });
}

/// The file in which CI finds which modes ran for which user.
pub(crate) fn modes_ran() -> PathBuf {
    tmp().join("modes-ran.txt")
}

fn note_mode(mode: Boundary, name: &str) {
    let uid = rustix::process::geteuid().as_raw();
    note(&format!("containment {} ran as uid {uid}: ok ({name})", mode.name()));
}

pub(crate) fn note(line: &str) {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(modes_ran()).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
    println!("{line}");
}

/// Where tests may write; another place when this binary runs itself as another user.
pub(crate) fn tmp() -> PathBuf {
    std::env::var_os("OUTLAST_TORTURE_TMP")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
}

/// The keeper's program.
pub(crate) fn keeper_program() -> PathBuf {
    program("outlast-hand", Path::new(env!("CARGO_BIN_EXE_outlast-hand")).to_owned())
}

/// The command that misbehaves.
pub(crate) fn misbehave() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_outlast-hand")).with_file_name("examples").join("misbehave");
    let path = program("misbehave", beside);
    assert!(path.exists(), "{} is missing: build the package's examples", path.display());
    path
}

fn program(name: &str, built: PathBuf) -> PathBuf {
    std::env::var_os("OUTLAST_TORTURE_PROGRAMS").map_or(built, |folder| Path::new(&folder).join(name))
}

/// A home of its own, and a folder to work in. When it goes, it ends what is left and, unless the test has failed
/// already, fails where anything was.
pub(crate) struct Ground {
    pub(crate) home: Home,
    pub(crate) dir: PathBuf,
    /// Violations are expected, or the files are damaged on purpose.
    pub(crate) unverified: AtomicBool,
}

static GROUNDS: AtomicU32 = AtomicU32::new(0);

impl Ground {
    pub(crate) fn new(name: &str) -> Ground {
        let number = GROUNDS.fetch_add(1, Ordering::Relaxed);
        let unique = format!(
            "{}-{}-{number}",
            name.replace([' ', '+', '/'], "-"),
            rustix::process::getpid().as_raw_nonzero()
        );
        let dir = tmp().join(unique);
        let _ = std::fs::remove_dir_all(&dir);
        Ground::in_dir(dir)
    }

    pub(crate) fn in_dir(dir: PathBuf) -> Ground {
        std::fs::create_dir_all(dir.join("work")).unwrap();
        let dir = dir.canonicalize().unwrap();
        let home = Home::open(&dir.join("home")).unwrap();
        Ground { home, dir, unverified: AtomicBool::new(false) }
    }

    /// A file name of this ground, for scene and command to meet at.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A request to run `misbehave` with these deeds. Its times are short; tests change what they are about.
    pub(crate) fn ask(&self, deeds: &[impl AsRef<str>]) -> Request {
        let mut argv = vec![misbehave().into_os_string()];
        argv.extend(deeds.iter().map(|deed| OsString::from(deed.as_ref())));
        self.ask_argv(&argv)
    }

    pub(crate) fn ask_argv(&self, argv: &[impl AsRef<std::ffi::OsStr>]) -> Request {
        let cwd = Bytes(self.dir.join("work").as_os_str().as_bytes().to_vec());
        Request {
            scope: Scope::new("torture").unwrap(),
            key: None,
            work: Work {
                command: Command::Argv(
                    argv.iter().map(|word| Bytes(word.as_ref().as_bytes().to_vec())).collect(),
                ),
                cwd: cwd.clone(),
                env: Default::default(),
                secrets: Default::default(),
                stdin: Stdin::Null,
                limits: Limits {
                    deadline: Some(Millis(60_000)),
                    idle: None,
                    log_bytes: Some(1 << 30),
                    pids: None,
                    memory_bytes: None,
                },
                kind: JobKind::Command,
                merge: false,
                tty: false,
                resume: false,
                containment: None,
                user: None,
            },
            manner: Manner {
                program: None,
                workspace: cwd,
                grace: Millis(500),
                linger: Millis(200),
                drain: Millis(500),
                capture: Capture::NotAPipeline,
                window: None,
                warnings: Vec::new(),
            },
            stdin: None,
            generation: Generation(0),
            find: Find::New,
            tool_version: "torture".to_owned(),
            run: None,
            brain: None,
        }
    }

    /// Admits a request that must be new.
    #[track_caller]
    pub(crate) fn admit(&self, request: &Request) -> Job {
        match admit(&self.home, request).unwrap() {
            Admitted::New(job) => job,
            other => panic!("not new: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn start(&self, request: &Request) -> Run {
        let job = self.admit(request);
        let launched = launch_keeper(&job);
        Run { job, watch: launched.watch, said: RefCell::default() }
    }

    /// Starts it and waits until its command runs.
    #[track_caller]
    pub(crate) fn started(&self, request: &Request) -> Run {
        let run = self.start(request);
        run.until_said("started", |say| *say == Say::Started);
        run
    }

    /// Starts `misbehave` with these deeds, waits until they are done, and has it stay.
    #[track_caller]
    pub(crate) fn staying(&self, deeds: &[&str]) -> Run {
        self.staying_with(deeds, |_| {})
    }

    #[track_caller]
    pub(crate) fn staying_with(&self, deeds: &[&str], change: impl FnOnce(&mut Request)) -> Run {
        let ready = self.file(&format!("ready-{}", GROUNDS.fetch_add(1, Ordering::Relaxed)));
        let touch = format!("touch={}", ready.display());
        let mut request = self.ask(&[deeds, &[touch.as_str(), "forever"]].concat());
        change(&mut request);
        let run = self.started(&request);
        run.until_file(&ready);
        run
    }

    #[track_caller]
    pub(crate) fn run(&self, request: &Request) -> (Run, Receipt) {
        let run = self.start(request);
        let receipt = run.settled();
        (run, receipt)
    }

    #[track_caller]
    pub(crate) fn verified(&self) {
        let report = outlast_hand::verify::verify(&self.home).unwrap();
        assert_eq!(report.violations, [], "{}", self.story());
    }

    /// What the files say, for whoever must find out why a test failed.
    pub(crate) fn story(&self) -> String {
        let mut story = format!("home {}\n", self.home.path().display());
        let path = |id: &JobId| self.home.path().join("jobs").join(id.to_string());
        let mut ids = self.home.jobs().unwrap_or_default();
        ids.sort_by_key(|id| std::cmp::Reverse(path(id).metadata().and_then(|found| found.modified()).ok()));
        for id in ids.iter().take(2) {
            let path = path(id);
            for name in ["start.json", "ledger.jsonl", "receipt.json"] {
                let text = std::fs::read(path.join(name)).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let shown: String = text.chars().take(6000).collect();
                story.push_str(&format!("--- {id} {name}\n{shown}\n"));
            }
        }
        story
    }

    /// Ends what still runs, in the order of force: a stop, a settler, KILL to what carries a job's marks.
    fn end_all(&self) {
        for job in self.jobs() {
            let over = job.receipt().ok().flatten().is_some() || job.attestation().ok().flatten().is_some();
            if !over {
                let request = stop_request(&job, "ground-end", true);
                let _ = control::stop(&job, &request, Duration::from_secs(2));
                let settled = || job.receipt().ok().flatten().map(drop);
                if wait_within(Duration::from_secs(3), &mut { settled }).is_none() {
                    self.processes().into_iter().for_each(kill);
                }
            }
            let _ = settle(&self.home, &job, &Settle::Asked);
        }
        let _ = wait_within(Duration::from_secs(5), &mut || {
            let left = self.processes();
            left.iter().for_each(|process| kill(*process));
            left.is_empty().then_some(())
        });
    }

    fn jobs(&self) -> Vec<Job> {
        let ids = self.home.jobs().unwrap_or_default();
        ids.into_iter().filter_map(|id| self.home.job(id).ok().flatten()).collect()
    }

    /// Every living process that belongs to this ground: by a job's mark in its environment, or the home's path in
    /// its arguments.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let ids = self.home.jobs().unwrap_or_default();
        let marks: Vec<Vec<u8>> = ids.iter().map(|id| format!("OUTLAST_JOB_ID={id}").into_bytes()).collect();
        let home = self.home.path().as_os_str().as_bytes();
        all_processes()
            .filter(|process| {
                *process != rustix::process::getpid() && !matches!(state_of(*process), None | Some('Z' | 'X'))
            })
            .filter(|process| {
                let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
                let (arguments, environment) = (read("cmdline"), read("environ"));
                let holds_home = arguments.windows(home.len()).any(|part| part == home)
                    && arguments.starts_with(keeper_program().as_os_str().as_bytes());
                holds_home
                    || environment
                        .split(|byte| *byte == 0)
                        .any(|entry| marks.iter().any(|mark| mark == entry))
            })
            .collect()
    }

    /// Cgroups of this home, in all hierarchies.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let name =
            format!("outlast-{}", &blake3::hash(self.home.path().as_os_str().as_bytes()).to_hex()[..12]);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found = Vec::new();
        for line in mounts.lines().filter(|line| line.contains(" - cgroup")) {
            if let Some(mount) = line.split(' ').nth(4) {
                find_folders(Path::new(mount), &name, 4, &mut found);
            }
        }
        found
    }

    fn left_over(&self) -> Vec<String> {
        let mut left: Vec<String> = self.processes().iter().map(|process| describe(*process)).collect();
        left.extend(self.cgroups().iter().map(|group| group.display().to_string()));
        let open = std::fs::read_dir(self.home.path().join("open")).into_iter().flatten().flatten();
        left.extend(open.map(|entry| entry.path().display().to_string()));
        left
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.story());
            self.end_all();
            self.remove_cgroups();
            return;
        }
        let unfinished: Vec<JobId> =
            self.jobs().iter().filter(|job| !matches!(job.receipt(), Ok(Some(_)))).map(Job::id).collect();
        // A keeper says that it is done before it has tidied.
        let mut left = Vec::new();
        let clean = wait_within(Duration::from_secs(15), &mut || {
            left = self.left_over();
            if !left.is_empty() {
                // Whoever looks again tidies what could not be at the time.
                let looked_at = self.jobs();
                looked_at.iter().for_each(|job| drop(settle(&self.home, job, &Settle::IfDue)));
            }
            left.is_empty().then_some(())
        });
        let violations = match self.unverified.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => outlast_hand::verify::verify(&self.home).unwrap().violations,
        };
        let story = if clean.is_none() || !violations.is_empty() { self.story() } else { String::new() };
        self.end_all();
        self.remove_cgroups();
        assert!(violations.is_empty(), "violations: {violations:#?}\n{story}");
        assert!(clean.is_some(), "left over ({unfinished:?} unfinished): {left:#?}\n{story}");
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Ground {
    fn remove_cgroups(&self) {
        let mut groups = self.cgroups();
        for group in groups.clone() {
            find_folders(&group, "", 2, &mut groups);
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.components().count()));
        for group in groups {
            let _ = std::fs::remove_dir(group);
        }
    }
}

fn find_folders(dir: &Path, beginning: &str, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name().to_string_lossy().starts_with(beginning) {
            found.push(entry.path());
        } else if depth > 0 {
            find_folders(&entry.path(), beginning, depth - 1, found);
        }
    }
}

pub(crate) fn all_processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The letter after the name in `/proc/PID/stat`, and the fields behind it.
pub(crate) fn stat_of(process: Pid) -> Option<(char, Vec<String>)> {
    let text = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let fields: Vec<String> = text[text.rfind(')')? + 1..].split_whitespace().map(str::to_owned).collect();
    Some((fields.first()?.chars().next()?, fields))
}

pub(crate) fn state_of(process: Pid) -> Option<char> {
    stat_of(process).map(|(state, _)| state)
}

pub(crate) fn lives(process: Pid) -> bool {
    !matches!(state_of(process), None | Some('Z' | 'X'))
}

pub(crate) fn parent_of(process: Pid) -> Option<i32> {
    stat_of(process)?.1.get(1)?.parse().ok()
}

fn describe(process: Pid) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let arguments = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
    format!("process {process} {} ({:?}): {arguments}", comm.trim(), state_of(process))
}

#[track_caller]
pub(crate) fn launch_keeper(job: &Job) -> Launched {
    try_launch(job).unwrap()
}

pub(crate) fn try_launch(job: &Job) -> Result<Launched, LaunchError> {
    launch(job, &how())
}

/// How keepers are started here.
pub(crate) fn how() -> Launch {
    Launch { watch_output: false, program: Some(keeper_program()), environment: environment(), nest: None }
}

fn environment() -> Vec<(OsString, OsString)> {
    let mut environment = vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())];
    environment
        .extend(std::env::var_os("OUTLAST_TEST_BOOT_ID").map(|id| ("OUTLAST_TEST_BOOT_ID".into(), id)));
    environment
}

pub(crate) fn stop_request(job: &Job, id: &str, force: bool) -> StopRequest {
    StopRequest {
        id: id.to_owned(),
        job_id: job.id(),
        generation: job.spec().generation,
        force,
        grace: None,
        reason: StopReason::Asked,
    }
}

/// One job under a keeper.
pub(crate) struct Run {
    pub(crate) job: Job,
    pub(crate) watch: Watch,
    pub(crate) said: RefCell<Vec<Say>>,
}

/// What its log holds.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) all: Vec<u8>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) end: u64,
    pub(crate) ended: bool,
}

impl Seen {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Run {
    /// Everything its keeper said so far, in order.
    pub(crate) fn said(&self) -> Vec<Say> {
        while let Ok(Notice::Said(say)) = self.watch.next(Some(Duration::ZERO)) {
            self.said.borrow_mut().push(say);
        }
        self.said.borrow().clone()
    }

    #[track_caller]
    pub(crate) fn until_said(&self, what: &str, wanted: impl Fn(&Say) -> bool) -> Say {
        let until = Instant::now() + LONG;
        loop {
            if let Some(say) = self.said.borrow().iter().find(|say| wanted(say)) {
                return say.clone();
            }
            match self.watch.next(Some(until.saturating_duration_since(Instant::now()))).unwrap() {
                Notice::Said(say) => self.said.borrow_mut().push(say),
                other => panic!("{other:?} before it said {what}; it said {:?}", self.said.borrow()),
            }
        }
    }

    /// Waits until the keeper has closed.
    #[track_caller]
    pub(crate) fn closed(&self) {
        let until = Instant::now() + LONG;
        loop {
            match self.watch.next(Some(until.saturating_duration_since(Instant::now()))).unwrap() {
                Notice::Said(say) => self.said.borrow_mut().push(say),
                Notice::Closed => return,
                Notice::TimedOut => {
                    panic!("the keeper of {} never closed; it said {:?}", self.job.id(), self.said.borrow())
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn settled(&self) -> Receipt {
        wait_for("a receipt", || self.job.receipt().unwrap())
    }

    pub(crate) fn state(&self) -> Projection {
        project(&self.job.look().unwrap())
    }

    pub(crate) fn stop(&self, id: &str, force: bool) -> StopAnswer {
        control::stop(&self.job, &stop_request(&self.job, id, force), Duration::from_secs(30)).unwrap()
    }

    pub(crate) fn ledger(&self) -> Vec<Record> {
        let text = std::fs::read(self.job.path().join("ledger.jsonl")).unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// The whole output, from the first cursor to the last.
    #[track_caller]
    pub(crate) fn output(&self) -> Seen {
        let mut log = self.job.log().unwrap();
        let mut seen = Seen::default();
        let mut cursor = Cursor(0);
        loop {
            let outcome = log.read_from(cursor, 4 << 20).unwrap();
            for item in outcome.items {
                match item {
                    Item::Data { stream, bytes, .. } => {
                        seen.all.extend_from_slice(&bytes);
                        match stream {
                            Stream::Stdout => seen.stdout.extend(bytes),
                            Stream::Stderr => seen.stderr.extend(bytes),
                        }
                    }
                    Item::Gap(gap) => seen.gaps.push(outlast_hand::log::gap_for_receipt(&gap)),
                }
            }
            seen.end = outcome.end;
            cursor = Cursor(outcome.next);
            match outcome.tail {
                Tail::More => {}
                Tail::Open { .. } => return seen,
                Tail::Ended { .. } => {
                    seen.ended = true;
                    return seen;
                }
            }
        }
    }

    /// Checks that the receipt and the log say the same of output without gaps, and returns it.
    #[track_caller]
    pub(crate) fn whole_output(&self, receipt: &Receipt) -> Seen {
        let seen = self.output();
        assert_eq!(receipt.output.gaps, [], "gaps");
        assert_eq!(seen.all.len() as u64, receipt.output.final_cursor.0, "bytes read and final cursor");
        assert_eq!(receipt.output.stdout_bytes, Some(seen.stdout.len() as u64));
        assert_eq!(receipt.output.stderr_bytes, Some(seen.stderr.len() as u64));
        let value = blake3::hash(&seen.all).to_hex().to_string();
        assert_eq!(receipt.output.hash, OutputHash::Blake3 { value });
        seen
    }

    pub(crate) fn warden(&self) -> Pid {
        wait_for("a start mark", || match self.job.start_mark().unwrap() {
            Some(StartMark::Keeper(mark)) => Pid::from_raw(i32::try_from(mark.warden_pid).ok()?),
            _ => None,
        })
    }

    /// Its scribe now: another one after each death. `None` while there is none.
    pub(crate) fn scribe_now(&self) -> Option<Pid> {
        let warden = self.warden();
        all_processes().find(|process| {
            let comm = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            comm.trim() == "outlast-scribe"
                && parent_of(*process) == Some(warden.as_raw_nonzero().get())
                && lives(*process)
        })
    }

    /// Any scribe of this job, whoever its parent is by now.
    pub(crate) fn scribe_of_nobody(&self) -> Option<Pid> {
        self.keepers().into_iter().find(|process| {
            std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim()
                == "outlast-scribe"
        })
    }

    /// All processes of its keeper.
    pub(crate) fn keepers(&self) -> Vec<Pid> {
        let path = self.job.path().as_os_str().as_bytes();
        let of_ours = |process: &Pid| {
            let arguments = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            lives(*process)
                && arguments.starts_with(keeper_program().as_os_str().as_bytes())
                && arguments.windows(path.len()).any(|part| part == path)
        };
        all_processes().filter(of_ours).collect()
    }

    pub(crate) fn scribe(&self) -> Pid {
        wait_for("a scribe", || self.scribe_now())
    }

    /// The command's own process, or the init of its PID namespace.
    pub(crate) fn leader(&self) -> Pid {
        wait_for("a leader", || {
            let started = self.job.look().unwrap().ledger.started?;
            Pid::from_raw(i32::try_from(started.1).ok()?)
        })
    }

    /// The command's processes that live, by the mark in their environment.
    pub(crate) fn command_processes(&self) -> Vec<Pid> {
        let mark = format!("OUTLAST_JOB_ID={}", self.job.id()).into_bytes();
        let marked = |process: &Pid| {
            let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            lives(*process) && environment.split(|byte| *byte == 0).any(|entry| entry == mark)
        };
        all_processes().filter(marked).collect()
    }

    #[track_caller]
    pub(crate) fn until_file(&self, path: &Path) {
        wait_for(&path.display().to_string(), || path.exists().then_some(()));
    }
}

#[track_caller]
pub(crate) fn settle_now(ground: &Ground, run: &Run, how: &Settle) -> Outcome {
    wait_for("a settler's turn", || match settle(&ground.home, &run.job, how).unwrap() {
        Outcome::Busy => None,
        outcome => Some(outcome),
    })
}

/// Makes this process what orphans are given to, and reaps them at once, as an init does. (The init of the machine that
/// runs these tests may take seconds.) No test that waits for children of its own may use it.
pub(crate) fn be_init() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        std::thread::spawn(|| {
            loop {
                let _ = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    });
}

pub(crate) fn kill(process: Pid) {
    let _ = kill_process(process, Signal::KILL);
}

pub(crate) fn exited(code: u8) -> Exit {
    Exit::Exited { code }
}

pub(crate) fn names(stragglers: &[Straggler]) -> Vec<&str> {
    stragglers.iter().map(|straggler| straggler.name.as_str()).collect()
}

/// What `misbehave spew=BYTES` writes.
pub(crate) fn spewed(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut all = Vec::with_capacity(bytes + 64);
    while all.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(bytes);
    all
}

/// Random numbers from a seed that is printed, so that a failure can be had again.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(test: &str) -> Random {
        let given = std::env::var("OUTLAST_TORTURE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            now.as_nanos() as u64 | 1
        });
        eprintln!("{test}: OUTLAST_TORTURE_SEED={seed}");
        Random(seed)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
