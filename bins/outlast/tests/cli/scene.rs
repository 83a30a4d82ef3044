//! A home, a folder to work in, and what is needed to ask the binary and to wait for what it does.

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Everything here is over long before; a machine under load is given time.
const PATIENCE: Duration = Duration::from_secs(30);

/// One test's surroundings. Dropping it ends every job and proves that nothing is left.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
}

/// What a call answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its exit code; 128 + n where signal n ended it.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Answer {
    fn of(output: Output, began: Instant) -> Answer {
        let status = output.status;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Answer { code, stdout: output.stdout, stderr, took: began.elapsed() }
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    /// The envelope, checked against its schema.
    pub(crate) fn json(&self) -> Value {
        let value: Value =
            serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let errors: Vec<String> =
            schema().iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path)).collect();
        assert!(errors.is_empty(), "{errors:#?}\n{value:#}");
        assert_eq!(value["meta"]["exit_code"], self.code, "{value:#}");
        value
    }

    /// The envelope of a call that must exit so.
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{self:?}");
        self.json()
    }
}

fn schema() -> &'static jsonschema::Validator {
    static SCHEMA: OnceLock<jsonschema::Validator> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let text = include_str!("../../../../schemas/envelope.schema.json");
        let schema: Value = serde_json::from_str(text).expect("a schema is JSON");
        jsonschema::draft202012::new(&schema).expect("a schema")
    })
}

/// Takes from a call what would change what it does: these tests may themselves run inside a job.
fn clear(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let plain = ["AGENT_CALL_BUDGET_MS", "NO_COLOR", "BASH_ENV", "CI"].iter().any(|own| name == *own);
        if plain || name.as_encoded_bytes().starts_with(b"OUTLAST_") {
            command.env_remove(name);
        }
    }
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let folder = tempfile::Builder::new()
            .prefix("scene.")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a folder");
        std::fs::create_dir(folder.path().join("work")).expect("a folder to work in");
        Scene { folder }
    }

    /// Where jobs are kept.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The folder that commands start in.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// Reads a file in it.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// A call, not yet made: a home of its own, nothing inherited that would change what it does.
    pub(crate) fn call<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
        clear(&mut command);
        command.env("OUTLAST_HOME", self.home()).current_dir(self.work()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Makes a call.
    pub(crate) fn ask<S: AsRef<OsStr>>(&self, words: &[S]) -> Answer {
        finish(self.call(words))
    }

    /// Makes a call that a shell would make of this line.
    pub(crate) fn line(&self, line: &Value) -> Answer {
        let line = line.as_str().expect("a command line");
        let began = Instant::now();
        let mut shell = Command::new("sh");
        clear(&mut shell);
        shell.arg("-c").arg(line).env("OUTLAST_HOME", self.home());
        shell.current_dir(self.work()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Answer::of(shell.output().expect("sh"), began)
    }

    /// Starts a call and leaves it running.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, words: &[S]) -> Started {
        Started { began: Instant::now(), child: self.call(words).spawn().expect("outlast") }
    }

    /// The id of the job that an answer is about.
    pub(crate) fn job_of(answer: &Value) -> String {
        answer["data"]["job_id"].as_str().unwrap_or_else(|| panic!("no job in {answer:#}")).to_owned()
    }

    /// The only job there is, once there is one.
    pub(crate) fn only_job(&self) -> String {
        self.until("a job", || {
            let list = self.ask(&["job", "list", "--all"]).json();
            let jobs = list["data"]["jobs"].as_array().expect("jobs").clone();
            (jobs.len() == 1).then(|| jobs[0]["job_id"].as_str().expect("an id").to_owned())
        })
    }

    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, condition: impl FnMut() -> Option<T>) -> T {
        until(what, condition)
    }

    /// Waits for a file in the folder to have this text.
    #[track_caller]
    pub(crate) fn until_written(&self, name: &str, text: &str) {
        until(&format!("{name} to hold {text:?}"), || (self.read(name) == text).then_some(()));
    }

    /// Processes that were started below this home, keepers included.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("OUTLAST_HOME={}", self.home().display());
        let own = std::process::id().cast_signed();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let marked = environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes());
            if marked && pid != own {
                let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                found.push((pid, name.trim().to_owned()));
            }
        }
        found
    }

    /// The pid of the one process of this name.
    #[track_caller]
    pub(crate) fn process(&self, name: &str) -> i32 {
        until(&format!("a process {name}"), || {
            let found: Vec<_> = self.processes().into_iter().filter(|(_, comm)| comm == name).collect();
            (found.len() == 1).then(|| found[0].0)
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Say what is known before it is gone.
            eprintln!("jobs: {}", String::from_utf8_lossy(&self.ask(&["job", "list", "--all"]).stdout));
        }
        if self.home().exists() {
            let list: Value =
                serde_json::from_slice(&self.ask(&["job", "list", "--all"]).stdout).unwrap_or_default();
            for job in list["data"]["jobs"].as_array().cloned().unwrap_or_default() {
                if job["state"] != "settled" && job["state"] != "paused" {
                    let id = job["job_id"].as_str().unwrap_or_default();
                    self.ask(&["job", "cancel", "--force", "--budget", "20s", id]);
                }
            }
        }
        let gone = poll(|| self.processes().is_empty().then_some(()));
        for (pid, name) in self.processes() {
            eprintln!("left behind and killed: {pid} {name}");
            kill(pid, rustix::process::Signal::KILL);
        }
        if gone.is_none() && !std::thread::panicking() {
            panic!("a scene left processes behind");
        }
    }
}

/// A call that runs.
pub(crate) struct Started {
    began: Instant,
    pub(crate) child: Child,
}

impl Started {
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        kill(self.child.id().cast_signed(), signal);
    }

    pub(crate) fn finish(self) -> Answer {
        Answer::of(self.child.wait_with_output().expect("an end"), self.began)
    }
}

/// Makes a prepared call.
pub(crate) fn finish(mut command: Command) -> Answer {
    let began = Instant::now();
    Answer::of(command.output().expect("outlast"), began)
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn poll<T>(mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
pub(crate) fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    poll(condition).unwrap_or_else(|| panic!("waited in vain for {what}"))
}

/// An example's program.
pub(crate) fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_outlast")).parent().expect("a folder").join("examples");
    folder.join(name).to_str().expect("a path").to_owned()
}
