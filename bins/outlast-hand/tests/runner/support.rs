//! A home with a runner, and ways to call it: by the client that brains use, and by raw bytes.

use crate::ground::{Ground, LONG};
use bytes::Bytes;
use outlast_core::bytes::Bytes as Text;
use outlast_core::id::{JobId, Key, Scope};
use outlast_core::receipt::Receipt;
use outlast_core::spec::Command as Words;
use outlast_core::time::Millis;
use outlast_wire::admission::Admission;
use outlast_wire::call;
use outlast_wire::client::{Client, ClientError, Http, Output, Read, Tail, Until, request_id, unix_ms};
use outlast_wire::hello::Hello;
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{Stop, Stopped};
use outlast_wire::view::JobView;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast-hand");

/// A home, the runner that serves it, and a folder to work in.
pub(crate) struct Scene {
    // Before the ground: what it left behind is looked for once it is gone.
    runner: RefCell<Option<Runner>>,
    pub(crate) ground: Ground,
    options: Vec<String>,
}

/// Plays a scene on a home with a runner.
#[track_caller]
pub(crate) fn scene(name: &str, play: impl AsyncFnOnce(&Scene)) {
    scene_with(name, |_| Vec::new(), play);
}

/// The same with further options for the runner, which may lie in the scene's folder.
#[track_caller]
pub(crate) fn scene_with(
    name: &str,
    options: impl FnOnce(&Ground) -> Vec<String>,
    play: impl AsyncFnOnce(&Scene),
) {
    let ground = Ground::new(&format!("runner-{name}"));
    let options = options(&ground);
    let scene = Scene { runner: RefCell::default(), ground, options };
    scene.start();
    // After the scene, so that where the play fails its connections close before the runner is ended.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(&scene));
    drop(runtime);
    scene.end();
}

impl Scene {
    /// Starts a runner, and waits until it listens.
    #[track_caller]
    pub(crate) fn start(&self) {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--home"]).arg(self.ground.home.path()).args(&self.options);
        self.start_as(command);
    }

    /// The same by another command, which becomes the runner.
    #[track_caller]
    pub(crate) fn start_as(&self, command: Command) {
        let runner = Runner::start(command, &self.ground.file("runner.err"));
        let before = self.runner.borrow_mut().replace(runner);
        assert!(before.is_none(), "a runner was there already");
    }

    /// KILL, as a machine out of memory does.
    #[track_caller]
    pub(crate) fn kill_runner(&self) {
        self.runner.borrow_mut().take().expect("no runner").kill();
    }

    /// TERM, and waits for its end.
    #[track_caller]
    pub(crate) fn end_runner(&self) {
        let runner = self.runner.borrow_mut().take().expect("no runner");
        let group = runner.group.clone();
        let status = runner.end();
        assert!(status.is_some_and(|status| status.success()), "the runner ended with {status:?}");
        assert!(!group.is_some_and(|group| group.exists()), "it left its group behind");
    }

    /// TERM without waiting.
    pub(crate) fn term_runner(&self) {
        let _ = kill_process(self.runner_pid(), Signal::TERM);
    }

    pub(crate) fn runner_pid(&self) -> Pid {
        self.runner.borrow().as_ref().expect("no runner").pid()
    }

    /// The runner's memory that is its own, in KiB.
    pub(crate) fn runner_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.runner_pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[track_caller]
    fn end(self) {
        if self.runner.borrow().is_some() {
            self.end_runner();
        }
        let left = self.ground.home.path().join("runner.sock");
        assert!(!left.exists(), "{} is left", left.display());
    }

    /// A connection as a blocking stream.
    pub(crate) fn connect(&self) -> UnixStream {
        connect(&self.ground)
    }

    async fn dial(&self) -> io::Result<tokio::net::UnixStream> {
        let path = format!("/proc/self/fd/{}/runner.sock", self.ground.home.dir().as_raw_fd());
        tokio::net::UnixStream::connect(path).await
    }

    /// A client of the default scope.
    pub(crate) async fn client(&self) -> Client {
        self.client_of(call::DEFAULT_SCOPE).await
    }

    pub(crate) async fn client_of(&self, scope: &str) -> Client {
        self.try_client(Http::Two, None, scope).await.unwrap()
    }

    /// Connects, again and again while nobody listens or too many wait there.
    pub(crate) async fn try_client(
        &self,
        http: Http,
        token: Option<&str>,
        scope: &str,
    ) -> Result<Client, ClientError> {
        let until = Instant::now() + LONG;
        let stream = loop {
            match self.dial().await {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= until => panic!("nobody listens: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        Client::begin(stream, http, token, Scope::new(scope).unwrap()).await
    }

    /// An admission of a shell command with short times.
    pub(crate) fn sh(&self, key: &str, script: &str) -> Admission {
        self.argv(key, &["sh", "-c", script])
    }

    pub(crate) fn argv(&self, key: &str, words: &[&str]) -> Admission {
        let words = words.iter().map(|word| Text::from(*word)).collect();
        let work = self.ground.file("work");
        let cwd = Text(work.as_os_str().as_bytes().to_vec());
        let mut admission = Admission::new(Key::new(key).unwrap(), Words::Argv(words), cwd);
        admission.limits.deadline = Some(Millis(120_000));
        admission.grace = Some(Millis(500));
        admission.linger = Some(Millis(200));
        admission.allow_detach = true;
        admission
    }

    /// What hello says, by a raw call.
    #[track_caller]
    pub(crate) fn hello(&self) -> Hello {
        let answer = self.call("POST", "/hello", &[], br#"{"versions":[1]}"#);
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The headers of a call that changes something, good for a minute.
    pub(crate) fn bound(&self, hello: &Hello) -> Vec<(String, String)> {
        vec![
            (call::SCOPE.into(), call::DEFAULT_SCOPE.into()),
            (call::REQUEST_ID.into(), request_id().unwrap()),
            (call::EXPIRES_AT.into(), (unix_ms() + 60_000).to_string()),
            (call::SANDBOX.into(), hello.sandbox.clone()),
            (call::SANDBOX_GENERATION.into(), hello.sandbox_generation.to_string()),
            (call::GENERATION.into(), "0".into()),
        ]
    }

    /// One call on a connection of its own.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, headers: &[(String, String)], body: &[u8]) -> Answer {
        let request = request(method, path, headers, body);
        let bytes = self.raw(&request);
        Answer::read(&bytes).unwrap_or_else(|| panic!("no answer to {method} {path}: {bytes:?}"))
    }

    /// Sends bytes on a connection of their own, and takes all that comes until it closes (or [`LONG`] is over).
    pub(crate) fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // A peer that refuses may close before it has read everything.
        let _ = stream.write_all(bytes);
        drain(&mut stream)
    }

    /// Admits a job that must be new.
    #[track_caller]
    pub(crate) fn shell_job<'a>(
        &'a self,
        client: &'a Client,
        key: &'a str,
        script: &'a str,
    ) -> impl Future<Output = JobView> + 'a {
        let admission = self.sh(key, script);
        async move { started(client, &admission).await }
    }
}

/// A connection to the runner of a home, by the open folder: a home's path may be longer than a socket's.
pub(crate) fn connect(ground: &Ground) -> UnixStream {
    let path = format!("/proc/self/fd/{}/runner.sock", ground.home.dir().as_raw_fd());
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

pub(crate) fn drain(stream: &mut UnixStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A request of HTTP/1.1 that closes its connection.
pub(crate) fn request(method: &str, path: &str, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: hand\r\nconnection: close\r\n").into_bytes();
    for (name, value) in headers {
        text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    text.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(body);
    text
}

/// An answer of HTTP/1.1.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads an answer whose connection has closed; `None` where there is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Answer> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Answer { status, head, body: bytes[end + 4..].to_vec() })
    }

    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.head, String::from_utf8_lossy(&self.body))
    }

    #[track_caller]
    pub(crate) fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Admits, and waits until the command's process exists.
pub(crate) async fn started(client: &Client, admission: &Admission) -> JobView {
    let id = request_id().unwrap();
    let asked = Instant::now();
    let view = client.admit(&id, admission, Until::Started, LONG).await.unwrap();
    assert!(asked.elapsed() < LONG, "it began, and the wait for that went on to its end: {view:?}");
    assert_eq!(view.arrival, Some(outlast_wire::view::Arrival::Admitted), "{view:?}");
    view
}

/// Admits, and waits for the receipt.
pub(crate) async fn ran(client: &Client, admission: &Admission) -> Receipt {
    let view = started(client, admission).await;
    settled(client, view.job_id).await
}

/// Waits for a job's receipt.
pub(crate) async fn settled(client: &Client, id: JobId) -> Receipt {
    let until = Instant::now() + LONG;
    loop {
        let asked = Instant::now();
        let view = client.job(id, Until::Settled, LONG).await.unwrap();
        if let Some(receipt) = view.receipt {
            // Who waits is told; that it is found when the wait is over would hide a lost word.
            let over = asked.elapsed() >= LONG && receipt.times.settled.0 / 1000 + 5_000 < unix_ms();
            assert!(!over, "{id} was settled, and the wait for it went on to its end");
            return *receipt;
        }
        assert!(Instant::now() < until, "no receipt: {view:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition gives something, while connections go on.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let end = Instant::now() + LONG;
        loop {
            if let Some(found) = condition() {
                return found;
            }
            assert!(Instant::now() < end, "waited in vain for: {what} ({place})");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub(crate) async fn until_file(path: &Path) {
    until(&path.display().to_string(), || path.exists().then_some(())).await;
}

/// Ends a job and waits for its receipt.
pub(crate) async fn stop_now(client: &Client, id: JobId) -> Receipt {
    let stopped = client.stop(&request_id().unwrap(), id, &stop("the-end", true)).await.unwrap();
    assert!(matches!(stopped, Stopped::Accepted | Stopped::AlreadySettled), "{stopped:?}");
    settled(client, id).await
}

pub(crate) fn stop(id: &str, force: bool) -> Stop {
    serde_json::from_value(serde_json::json!({ "id": id, "force": force })).unwrap()
}

/// Reads on until the end of all output.
pub(crate) async fn read_all(client: &Client, id: JobId, mut read: Read) -> (Vec<u8>, Output) {
    let mut all = Vec::new();
    read.wait = Duration::from_secs(10);
    let end = Instant::now() + 2 * LONG;
    loop {
        let output = client.read(id, read).await.unwrap();
        all.extend_from_slice(&output.body);
        read.from = output.next;
        if output.tail == Tail::Ended {
            return (all, output);
        }
        assert!(Instant::now() < end, "the output of {id} does not end: {output:?}");
    }
}

pub(crate) fn blake3_of(receipt: &Receipt) -> String {
    match &receipt.output.hash {
        outlast_core::receipt::OutputHash::Blake3 { value } => value.clone(),
        other => panic!("no hash: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn problem_of<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Problem {
    match result {
        Err(ClientError::Refused(problem)) => *problem,
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) fn empty() -> Bytes {
    Bytes::new()
}

/// A runner that this test started.
struct Runner {
    child: Child,
    /// Its cgroup, which one that is killed cannot remove.
    group: Option<PathBuf>,
}

impl Runner {
    #[track_caller]
    fn start(mut command: Command, errors: &Path) -> Runner {
        let errors = std::fs::OpenOptions::new().create(true).append(true).open(errors).unwrap();
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let out = child.stdout.take().unwrap();
        // Ends with the runner.
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        if let Err(error) = lines.recv_timeout(LONG) {
            let _ = child.kill();
            panic!("the runner said nothing ({error}); it ended with {:?}", child.wait());
        }
        let group = group_of(child.id());
        Runner { child, group }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[track_caller]
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) -> Option<ExitStatus> {
        let _ = kill_process(self.pid(), Signal::TERM);
        let status = self.wait();
        // One that ends as it should takes its group along, and what it leaves is to be seen.
        self.group.take_if(|_| status.is_some_and(|status| status.success()));
        status
    }

    fn wait(&mut self) -> Option<ExitStatus> {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(group) = &self.group {
            // Gone where the runner ended as it should; empty, or about to be, where it was killed.
            let gone = || match std::fs::remove_dir(group) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => None,
                _ => Some(()),
            };
            let _ = crate::ground::wait_within(Duration::from_secs(5), &mut { gone });
        }
    }
}

/// The cgroup of its own that a runner is in.
pub(crate) fn group_of(pid: u32) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let mut fields = line.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    let below = path.strip_prefix(root.trim_end_matches('/'))?;
    let own = Path::new(mount).join(below.trim_start_matches('/'));
    own.file_name()?.to_str()?.starts_with("outlast-runner-").then_some(own)
}

/// The cgroup that stands for a home, in each hierarchy that has one.
pub(crate) fn groups_of(home: &Path) -> Vec<PathBuf> {
    let name = format!("outlast-{}", &blake3::hash(home.as_os_str().as_bytes()).to_hex()[..12]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let groups = mounts.filter_map(|line| Some(Path::new(line.split(' ').nth(4)?).join(&name)));
    groups.filter(|group| group.exists()).collect()
}
