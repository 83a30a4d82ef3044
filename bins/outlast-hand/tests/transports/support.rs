//! A home, runners that serve it, and a client that reaches them by any address.

use crate::ground::{Ground, LONG, is_root, lives, wait_for, wait_within};
use outlast_core::bytes::Bytes as Text;
use outlast_core::id::{Cursor, JobId, Key, Scope};
use outlast_core::receipt::{OutputHash, Receipt};
use outlast_core::spec::Command as Words;
use outlast_core::time::Millis;
use outlast_runner::identity;
use outlast_wire::address::{Address, DialOptions, dial};
use outlast_wire::admission::Admission;
use outlast_wire::call;
use outlast_wire::client::{Client, ClientError, Read, Tail, Until, request_id};
use outlast_wire::problem::Problem;
use outlast_wire::tls::{Fingerprint, Identity, Trust};
use outlast_wire::verbs::{Stop, Stopped};
use outlast_wire::view::JobView;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_outlast-hand");

/// Where programs are looked for; `sshd` and `iptables` lie in `sbin`.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every tool of these tests comes from.
const INSTALL: &str = "sudo apt-get install -y --no-install-recommends openssh-server openssh-client podman crun \
                       iproute2 iptables busybox-static util-linux";

/// Fails, saying what is missing, unless this is root and all tools are there.
#[track_caller]
pub(crate) fn needs(tools: &[&str]) {
    assert!(is_root(), "this test needs root (network and mount namespaces, other users): run it as root");
    let missing: Vec<&str> = tools.iter().copied().filter(|tool| find(tool).is_none()).collect();
    assert!(missing.is_empty(), "this test needs {}: {INSTALL}", missing.join(", "));
}

/// The whole path of a program.
pub(crate) fn find(tool: &str) -> Option<PathBuf> {
    PATH.split(':').map(|folder| Path::new(folder).join(tool)).find(|path| path.exists())
}

/// A command with nothing of this process's surroundings.
pub(crate) fn tool(name: &str) -> Command {
    let path = find(name).unwrap_or_else(|| panic!("{name} is missing: {INSTALL}"));
    let mut command = Command::new(path);
    command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").stdin(Stdio::null());
    command
}

/// Runs a command that must succeed, and returns what it wrote.
#[track_caller]
pub(crate) fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A process of this test, ended with it: also where the test is killed, and also where it fails.
pub(crate) struct Held(pub(crate) Child);

impl Held {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Held {
        Held(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `command` below another one that lets it die with this test's thread. It keeps its process id.
pub(crate) fn mortal(command: &Command) -> Command {
    let mut whole = tool("setpriv");
    whole.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            whole.env(name, value);
        }
    }
    whole
}

/// Plays a scene on the runtime that a brain's connections have.
pub(crate) fn play<T>(scene: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(scene)
}

/// Runs scenes at once, each on a thread of its own.
pub(crate) fn all_at_once(scenes: &[(&str, &(dyn Fn() + Sync))]) {
    std::thread::scope(|scope| {
        for (name, scene) in scenes {
            let thread = std::thread::Builder::new().name((*name).to_owned());
            thread.spawn_scoped(scope, scene).unwrap();
        }
    });
}

// ---- runners ----

/// A runner that this test started.
pub(crate) struct Runner {
    child: Child,
    /// Its cgroup, which one that is killed cannot remove.
    group: Option<PathBuf>,
    pub(crate) announced: Vec<String>,
    errors: PathBuf,
}

/// `serve` on a home, with further options.
pub(crate) fn serve(home: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--home"]).arg(home).args(options);
    command
}

impl Runner {
    /// Starts a runner on a ground's home, and waits until it listens.
    #[track_caller]
    pub(crate) fn serve(ground: &Ground, options: &[&str]) -> Runner {
        Runner::start(serve(ground.home.path(), options), &ground.file("runner.err"))
    }

    /// Starts a runner by any command that becomes one.
    #[track_caller]
    pub(crate) fn start(mut command: Command, errors: &Path) -> Runner {
        let stderr = std::fs::OpenOptions::new().create(true).append(true).open(errors).unwrap();
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = mpsc::channel();
        let out = child.stdout.take().unwrap();
        // Ends with the runner.
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let mut announced = Vec::new();
        // All it has to say comes in one piece, and the certificate last.
        let mut next = lines.recv_timeout(LONG);
        while let Ok(line) = next {
            announced.push(line);
            next = lines.recv_timeout(Duration::from_millis(50));
        }
        if announced.is_empty() {
            let _ = child.kill();
            let said = std::fs::read_to_string(errors).unwrap_or_default();
            panic!("the runner did not begin: {:?}, {said}", child.wait());
        }
        let group = group_of(child.id());
        Runner { child, group, announced, errors: errors.to_owned() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Where it listens by TLS.
    pub(crate) fn tls(&self) -> std::net::SocketAddr {
        let tls = self.announced.iter().find_map(|line| line.strip_prefix("listening on tls:"));
        tls.unwrap_or_else(|| panic!("no TLS: {:?}", self.announced)).parse().unwrap()
    }

    /// What it prints for clients to pin.
    pub(crate) fn pin(&self) -> Fingerprint {
        let pin = self.announced.iter().find_map(|line| line.strip_prefix("certificate "));
        pin.unwrap_or_else(|| panic!("no certificate: {:?}", self.announced)).parse().unwrap()
    }

    /// What it said on its standard error.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// TERM, and waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) {
        let _ = kill_process(self.pid(), Signal::TERM);
        let status = self.wait().expect("the runner does not end");
        assert!(status.success(), "the runner ended with {status}: {}", self.errors());
    }

    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        wait_within(LONG, &mut || self.child.try_wait().unwrap())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(group) = &self.group {
            // Empty by now, and gone where the runner ended as it should.
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// A runner that `connect` started: it is nobody's child, so it is ended by its id.
pub(crate) struct Orphan(Pid, Option<PathBuf>);

impl Orphan {
    pub(crate) fn of(client: &Client) -> Orphan {
        let pid = client.hello().runner_pid;
        Orphan(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), group_of(pid))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.0
    }

    #[track_caller]
    pub(crate) fn end(self) {
        let _ = kill_process(self.0, Signal::TERM);
        wait_for("the end of the runner that connect started", || (!lives(self.0)).then_some(()));
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if lives(self.0) {
            let _ = kill_process(self.0, Signal::KILL);
        }
        if let Some(group) = &self.1 {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// The cgroup of its own that a runner is in.
fn group_of(pid: u32) -> Option<PathBuf> {
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

// ---- clients ----

/// Where a runner is and what its caller has.
pub(crate) struct Way {
    pub(crate) address: Address,
    pub(crate) options: DialOptions,
    pub(crate) scope: &'static str,
}

impl Way {
    pub(crate) fn to(address: Address) -> Way {
        Way { address, options: DialOptions::default(), scope: call::DEFAULT_SCOPE }
    }

    /// A runner's own socket.
    pub(crate) fn unix(ground: &Ground) -> Way {
        Way::to(Address::Unix(ground.home.path().join("runner.sock")))
    }

    /// A runner by TLS, with its pin and a token.
    pub(crate) fn tls(at: std::net::SocketAddr, pin: Fingerprint, token: Option<&str>) -> Way {
        let way = Way::to(Address::Tls { host: at.ip().to_string(), port: at.port() });
        let options = DialOptions {
            trust: Some(Trust::Pins(vec![pin])),
            token: token.map(str::to_owned),
            ..DialOptions::default()
        };
        Way { options, ..way }
    }

    pub(crate) fn scope(self, scope: &'static str) -> Way {
        Way { scope, ..self }
    }

    pub(crate) async fn try_client(&self) -> Result<Client, Failed> {
        let stream = dial(&self.address, &self.options).await.map_err(|error| Failed(error.to_string()))?;
        let http = stream.http();
        Client::begin(stream, http, self.options.token.as_deref(), Scope::new(self.scope).unwrap())
            .await
            .map_err(|error| Failed::from(&error))
    }

    pub(crate) async fn client(&self) -> Client {
        self.try_client().await.unwrap_or_else(|failed| panic!("{}: {}", self.address, failed.0))
    }

    /// A client as soon as there can be one.
    pub(crate) async fn client_again(&self, within: Duration) -> Client {
        let end = Instant::now() + within;
        loop {
            match self.try_client().await {
                Ok(client) => return client,
                Err(failed) => assert!(Instant::now() < end, "{}: {}", self.address, failed.0),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Why a connection came to nothing, with all its causes.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl From<&ClientError> for Failed {
    fn from(error: &ClientError) -> Failed {
        Failed(chain(error))
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// A token in a ground's file `tokens`.
#[track_caller]
pub(crate) fn new_token(ground: &Ground, options: &[&str]) -> String {
    let file = ground.file("tokens");
    done(tool("env").arg(PROGRAM).args(["token", "new", "--file"]).arg(file).args(options))
}

/// A certificate and its key, in a folder of its own.
pub(crate) fn certificate(ground: &Ground, name: &str) -> Identity {
    let dir = ground.file(name);
    std::fs::create_dir_all(&dir).unwrap();
    identity::load_or_make(&dir, &["localhost".to_owned()]).unwrap().0
}

// ---- jobs ----

/// An admission of a shell command with short times.
pub(crate) fn sh(cwd: &Path, key: &str, script: &str) -> Admission {
    let words = ["sh", "-c", script].into_iter().map(Text::from).collect();
    let cwd = Text(cwd.as_os_str().as_bytes().to_vec());
    let mut admission = Admission::new(Key::new(key).unwrap(), Words::Argv(words), cwd);
    admission.limits.deadline = Some(Millis(180_000));
    admission.grace = Some(Millis(500));
    admission.linger = Some(Millis(200));
    admission.allow_detach = true;
    admission
}

/// Writes `count` pieces of random bytes, with a pause after each.
pub(crate) fn pieces(count: u32, bytes: u32, pause: &str) -> String {
    format!("i=0; while [ $i -lt {count} ]; do head -c {bytes} /dev/urandom; sleep {pause}; i=$((i+1)); done")
}

/// Admits a job that must be new, and waits until its command runs.
pub(crate) async fn started(client: &Client, admission: &Admission) -> JobView {
    let view = client.admit(&request_id().unwrap(), admission, Until::Started, LONG).await.unwrap();
    assert_eq!(view.arrival, Some(outlast_wire::view::Arrival::Admitted), "{view:?}");
    view
}

/// Waits for a job's receipt.
pub(crate) async fn settled(client: &Client, id: JobId) -> Receipt {
    let end = Instant::now() + 2 * LONG;
    loop {
        let view = client.job(id, Until::Settled, LONG).await.unwrap();
        if let Some(receipt) = view.receipt {
            return *receipt;
        }
        assert!(Instant::now() < end, "no receipt: {view:?}");
    }
}

/// Ends a job and waits for its receipt.
pub(crate) async fn stop_now(client: &Client, id: JobId) -> Receipt {
    let stopped = client.stop(&request_id().unwrap(), id, &stop("the-end")).await.unwrap();
    assert!(matches!(stopped, Stopped::Accepted | Stopped::AlreadySettled), "{stopped:?}");
    settled(client, id).await
}

pub(crate) fn stop(id: &str) -> Stop {
    serde_json::from_value(serde_json::json!({ "id": id })).unwrap()
}

/// Output as a reader has it that continues by cursor.
#[derive(Default)]
pub(crate) struct Reader {
    pub(crate) bytes: Vec<u8>,
    pub(crate) next: Cursor,
    pub(crate) ended: bool,
}

impl Reader {
    /// Reads on with one client until the end, or until `enough` bytes are there.
    pub(crate) async fn read(
        &mut self,
        client: &Client,
        id: JobId,
        enough: usize,
    ) -> Result<(), ClientError> {
        let end = Instant::now() + 3 * LONG;
        while !self.ended && self.bytes.len() < enough {
            assert!(
                Instant::now() < end,
                "the output of {id} does not go on after {} bytes",
                self.bytes.len()
            );
            let read = Read { from: self.next, wait: Duration::from_secs(20), ..Read::default() };
            let output = client.read(id, read).await?;
            assert_eq!(output.gaps, "");
            self.bytes.extend_from_slice(&output.body);
            self.next = output.next;
            self.ended = output.tail == Tail::Ended;
        }
        Ok(())
    }

    /// Reads to the end, on new connections wherever one fails; returns why those failed.
    pub(crate) async fn read_through(&mut self, way: &Way, id: JobId) -> Vec<String> {
        let end = Instant::now() + 3 * LONG;
        let mut failures = Vec::new();
        while !self.ended {
            assert!(Instant::now() < end, "{id} after {} bytes: {failures:#?}", self.bytes.len());
            let read = match way.try_client().await {
                Ok(client) => self.read(&client, id, usize::MAX).await.map_err(|error| Failed::from(&error)),
                Err(failed) => Err(failed),
            };
            if let Err(failed) = read {
                failures.push(failed.0);
            }
        }
        failures
    }

    /// All bytes are there, and they are those that the receipt speaks of.
    #[track_caller]
    pub(crate) fn is_whole(&self, receipt: &Receipt) {
        assert!(self.ended);
        assert_eq!(self.bytes.len() as u64, receipt.output.final_cursor.0);
        let value = blake3::hash(&self.bytes).to_hex().to_string();
        assert_eq!(receipt.output.hash, OutputHash::Blake3 { value });
    }
}

#[track_caller]
pub(crate) fn problem_of<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Problem {
    match result {
        Err(ClientError::Refused(problem)) => *problem,
        other => panic!("not refused: {other:?}"),
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
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
