//! `codex exec-server`: JSON-RPC over standard input and output of a server that this program starts.
//!
//! Output is what the server pushes, which is its way to give it. A reader that left in the middle gets what the server
//! has kept for those who ask later.

use crate::base64;
use crate::rival::{ENOUGH, Place, Server, kill_process, version};
use outlast_qualify::process::Process;
use outlast_qualify::subject::{
    Answer, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started, State, Stdin, Subject,
    Trouble, Work,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BELOW: &str = "npm/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin";

pub(crate) fn available(place: &Place) -> Result<(), String> {
    place.program(BELOW, "codex").map(drop)
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    let codex = Codex {
        program: place.program(BELOW, "codex").map_err(Trouble::unavailable)?,
        folder: place.scratch.clone(),
        number: AtomicU64::new(0),
        connection: Mutex::new(None),
        shared: Arc::default(),
        left: Mutex::default(),
    };
    std::fs::create_dir_all(codex.folder.join("home")).map_err(Trouble::unobserved)?;
    codex.start_server()?;
    Ok(Arc::new(codex))
}

struct Codex {
    program: PathBuf,
    folder: PathBuf,
    number: AtomicU64,
    connection: Mutex<Option<Connection>>,
    shared: Arc<Shared>,
    /// Commands whose reader left.
    left: Mutex<HashSet<Handle>>,
}

struct Connection {
    server: Server,
    input: ChildStdin,
}

/// What the server has said.
#[derive(Default)]
struct Shared {
    state: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Default)]
struct Heard {
    waiting: HashMap<u64, Sender<Value>>,
    processes: HashMap<String, Pushed>,
}

/// What was pushed about a process.
#[derive(Default)]
struct Pushed {
    output: Vec<u8>,
    code: Option<i64>,
    exited: bool,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, message: &Value) {
        let mut heard = self.lock();
        if let Some(waiting) = message["id"].as_u64().and_then(|id| heard.waiting.remove(&id)) {
            let _ = waiting.send(message.clone());
            return;
        }
        let params = &message["params"];
        let Some(id) = params["processId"].as_str() else { return };
        let process = heard.processes.entry(id.to_owned()).or_default();
        match message["method"].as_str() {
            Some("process/output") => {
                let bytes = params["chunk"].as_str().and_then(base64::decode).unwrap_or_default();
                process.output.extend_from_slice(&bytes);
            }
            Some("process/exited") => {
                process.exited = true;
                process.code = params["exitCode"].as_i64();
            }
            Some("process/closed") => process.closed = true,
            _ => {}
        }
        self.changed.notify_all();
    }
}

impl Codex {
    fn start_server(&self) -> Answer<()> {
        let mut command = Command::new(&self.program);
        command
            .args(["exec-server", "--listen", "stdio", "--concurrent-requests", "16"])
            .env("HOME", self.folder.join("home"))
            .env("CODEX_HOME", self.folder.join("home"))
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut server = Server::start(&mut command)?;
        let pipes = (server.child().stdin.take(), server.child().stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err(Trouble::unobserved("no pipes")) };
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for line in BufReader::with_capacity(1 << 20, output).split(b'\n').map_while(Result::ok) {
                if let Ok(message) = serde_json::from_slice(&line) {
                    shared.hear(&message);
                }
            }
        });
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(Connection { server, input });
        self.ask("initialize", &json!({ "clientName": "outlast-rivals" }), ENOUGH)?;
        self.send(&json!({ "method": "initialized", "params": {} }))
    }

    fn send(&self, message: &Value) -> Answer<()> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = connection.as_mut() else {
            return Err(Trouble::unavailable("there is no server"));
        };
        let line = format!("{message}\n");
        connection.input.write_all(line.as_bytes()).map_err(Trouble::unavailable)
    }

    fn ask(&self, method: &str, params: &Value, within: Duration) -> Answer<Value> {
        let id = self.number.fetch_add(1, Ordering::Relaxed);
        let (send, receive) = channel();
        self.shared.lock().waiting.insert(id, send);
        self.send(&json!({ "id": id, "method": method, "params": params }))?;
        let mut answer = receive.recv_timeout(within).map_err(|_| Trouble::no_answer(within))?;
        if answer["error"].is_null() {
            return Ok(answer["result"].take());
        }
        let error = &answer["error"];
        let kind = error["data"]["kind"].as_str().map_or_else(|| error["code"].to_string(), str::to_owned);
        Err(Trouble::refused(kind, error["message"].as_str().unwrap_or("without a reason")))
    }

    /// What was pushed so far; `None` of a process that the present server does not know.
    fn pushed(&self, handle: &Handle) -> Option<Said> {
        let heard = self.shared.lock();
        let process = heard.processes.get(&handle.0)?;
        if !process.exited {
            return Some(Said::only(State::Running));
        }
        // Over is when the output is closed; the exit is told before that.
        let state = if process.closed { State::Ended } else { State::Running };
        Some(Said { end: process.code.map(|code| End::Exited { code }), ..Said::only(state) })
    }

    /// The output that the server has kept.
    fn kept(&self, handle: &Handle) -> Answer<Vec<u8>> {
        let params = json!({ "processId": handle.0, "afterSeq": null, "maxBytes": 64 << 20, "waitMs": 0 });
        let answer = self.ask("process/read", &params, ENOUGH)?;
        let chunks = answer["chunks"].as_array().into_iter().flatten();
        Ok(chunks.filter_map(|chunk| base64::decode(chunk["chunk"].as_str()?)).flatten().collect())
    }
}

impl Subject for Codex {
    fn describe(&self) -> Description {
        Description {
            name: "codex".to_owned(),
            version: version(&self.program, &["--version"]),
            reached: "`codex exec-server`, JSON-RPC over standard input and output".to_owned(),
            boundary: Some("a process group".to_owned()),
        }
    }

    fn on_this_machine(&self) -> bool {
        true
    }

    fn scratch(&self) -> String {
        self.folder.to_string_lossy().into_owned()
    }

    fn patience(&self) -> Duration {
        ENOUGH
    }

    fn start(&self, request: &Request) -> Answer<Started> {
        let Work::Argv(words) = &request.work else {
            return Err(Trouble::unsupported("it reports what the shell reports"));
        };
        if request.deadline.is_some() {
            return Err(Trouble::unsupported("no limits: the client has them"));
        }
        if request.containment.is_some() {
            return Err(Trouble::unsupported("no containment for this"));
        }
        if request.stdin == Stdin::Open {
            return Err(Trouble::unsupported("standard input can be written to, and not closed"));
        }
        let words = words.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>();
        let words = words.ok_or_else(|| Trouble::unsupported("commands are text"))?;
        // The caller chooses the name, so a key is one.
        let id = match &request.key {
            Some(key) => format!("key-{key}"),
            None => format!("p-{}", self.number.fetch_add(1, Ordering::Relaxed)),
        };
        let params = json!({
            "processId": id,
            "argv": words,
            "cwd": format!("file://{}", self.folder.display()),
            "env": { "PATH": std::env::var("PATH").unwrap_or_default() },
            "tty": false,
            "pipeStdin": false,
            "arg0": null,
        });
        self.ask("process/start", &params, ENOUGH)?;
        self.shared.lock().processes.entry(id.clone()).or_default();
        Ok(Started { handle: Handle(id), existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        Ok(self.pushed(handle).unwrap_or(Said::only(State::Forgotten)))
    }

    fn wait(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let until = Instant::now() + within;
        let mut heard = self.shared.lock();
        loop {
            let over = heard.processes.get(&handle.0).is_none_or(|process| process.closed);
            let left = until.saturating_duration_since(Instant::now());
            if over || left.is_zero() {
                drop(heard);
                return self.inspect(handle);
            }
            heard = self.shared.changed.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).contains(handle);
        let until = match follow {
            Follow::No => Instant::now(),
            Follow::Until(within) => Instant::now() + within,
        };
        let mut cursor = from;
        if left && from > 0 {
            self.wait(handle, until.saturating_duration_since(Instant::now()))?;
            let total =
                self.shared.lock().processes.get(&handle.0).map_or(0, |process| process.output.len() as u64);
            let kept = self.kept(handle)?;
            let first = total.saturating_sub(kept.len() as u64);
            let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX).min(kept.len());
            let _ = sink(&kept[skip..]);
            return Ok(total);
        }
        loop {
            let mut heard = self.shared.lock();
            let Some(process) = heard.processes.get(&handle.0) else {
                return Err(Trouble::refused("gone", "the server knows no such process"));
            };
            let at = usize::try_from(cursor).unwrap_or(usize::MAX).min(process.output.len());
            let (new, last) = (process.output[at..].to_vec(), process.closed || Instant::now() >= until);
            if new.is_empty() && !last {
                let wait = until.saturating_duration_since(Instant::now());
                heard =
                    self.shared.changed.wait_timeout(heard, wait).unwrap_or_else(PoisonError::into_inner).0;
                drop(heard);
                continue;
            }
            drop(heard);
            cursor += new.len() as u64;
            if let (false, ControlFlow::Break(())) = (new.is_empty(), sink(&new)) {
                self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.clone());
                return Ok(cursor);
            }
            if last {
                return Ok(cursor);
            }
        }
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        self.ask("process/terminate", &json!({ "processId": handle.0 }), ENOUGH)?;
        self.wait(handle, within)
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("standard input can be written to, and not closed"))
    }

    fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
        Err(Trouble::unsupported("no attempts"))
    }

    fn kill_owner(&self, _: &Handle) -> Answer<String> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut connection) = connection.take() else {
            return Err(Trouble::unobserved("there is no server"));
        };
        if let Some(process) = Process::of(connection.server.pid()) {
            kill_process(process)?;
        }
        let _ = connection.server.child().wait();
        Ok("the server".to_owned())
    }

    fn restart_owner(&self) -> Answer<String> {
        // A new server knows nothing of an old one's processes, and pushes nothing about them.
        self.shared.lock().processes.clear();
        self.start_server()?;
        Ok("the server was started again".to_owned())
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, _: &Handle) -> Answer<Vec<u32>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let server = connection.as_ref().ok_or_else(|| Trouble::unobserved("there is no server"))?;
        Ok(vec![server.server.pid()])
    }
}
