//! sandbox-agent: a server within a sandbox, by the process part of its HTTP interface.
//!
//! A stop is its `stop`, and after the grace its `kill`. Where all output must be kept, its limit for logs is raised.

use crate::base64;
use crate::http;
use crate::rival::{ENOUGH, Place, Server, kill_process, until, version};
use outlast_qualify::process::Process;
use outlast_qualify::subject::{
    Answer, Cause, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started, State, Stdin,
    Subject, Trouble, Work,
};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where npm puts the program itself, below the wrapper that starts it.
const BELOW: &str = "npm/node_modules/@sandbox-agent/cli-linux-x64/bin";

pub(crate) fn available(place: &Place) -> Result<(), String> {
    place.program(BELOW, "sandbox-agent").map(drop)
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    // A port that is free now; a server that does not get it does not answer.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let agent = SandboxAgent {
        program: place.program(BELOW, "sandbox-agent").map_err(Trouble::unavailable)?,
        folder: place.scratch.clone(),
        address: free.map_err(Trouble::unobserved)?,
        running: Mutex::new(None),
        grace: Mutex::default(),
    };
    agent.start_server()?;
    Ok(Arc::new(agent))
}

struct SandboxAgent {
    program: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
    running: Mutex<Option<Server>>,
    /// The grace of commands that were started with one of their own: the interface takes it with the stop.
    grace: Mutex<Vec<(Handle, Duration)>>,
}

impl SandboxAgent {
    fn start_server(&self) -> Answer<()> {
        let port = self.address.port().to_string();
        let mut command = Command::new(&self.program);
        command
            .args(["server", "--no-token", "--no-telemetry", "--port", &port])
            .env("HOME", &self.folder)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Server::start(&mut command)?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        until(ENOUGH, || self.ask("GET", "", None, ENOUGH).ok())
            .map(drop)
            .ok_or_else(|| Trouble::unavailable("the server does not answer"))
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>, within: Duration) -> Answer<Value> {
        let body = body.map(Value::to_string);
        let reply =
            http::ask(self.address, method, &format!("/v1/processes{path}"), body.as_deref(), within)?;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
        match reply.status {
            200..300 => Ok(answer),
            status => {
                let why = answer["detail"].as_str().unwrap_or("without a reason");
                Err(Trouble::refused(status.to_string(), why))
            }
        }
    }

    fn keep_all_output(&self) -> Answer<()> {
        let mut config = self.ask("GET", "/config", None, ENOUGH)?;
        config["maxLogBytesPerProcess"] = json!(4u64 << 30);
        self.ask("POST", "/config", Some(&config), ENOUGH).map(drop)
    }
}

fn words(work: &Work) -> Answer<Vec<String>> {
    let Work::Argv(words) = work else {
        return Err(Trouble::unsupported("it reports what the shell reports"));
    };
    let text = words.iter().map(|word| word.to_str().map(str::to_owned)).collect::<Option<Vec<String>>>();
    text.ok_or_else(|| Trouble::unsupported("commands are text"))
}

fn said(info: &Value) -> Said {
    match info["status"].as_str() {
        Some("exited") => Said {
            end: info["exitCode"].as_i64().map(|code| End::Exited { code }),
            ..Said::only(State::Ended)
        },
        _ => Said::only(State::Running),
    }
}

impl Subject for SandboxAgent {
    fn describe(&self) -> Description {
        Description {
            name: "sandbox-agent".to_owned(),
            version: version(&self.program, &["--version"]),
            reached: "its HTTP interface on this machine".to_owned(),
            boundary: None,
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
        let words = words(&request.work)?;
        if request.deadline.is_some() {
            return Err(Trouble::unsupported("no limit for a process; only `run` has one, and blocks"));
        }
        if request.key.is_some() {
            return Err(Trouble::unsupported("no keys"));
        }
        if request.containment.is_some() {
            return Err(Trouble::unsupported("no containment"));
        }
        if request.stdin == Stdin::Open {
            return Err(Trouble::unsupported("standard input can be written to, and not closed"));
        }
        if request.keep_all_output {
            self.keep_all_output()?;
        }
        let body = json!({
            "command": words[0],
            "args": words[1..],
            "cwd": self.folder.to_string_lossy(),
        });
        let info = self.ask("POST", "", Some(&body), ENOUGH)?;
        let id = info["id"].as_str().ok_or_else(|| Trouble::unobserved("the answer has no id"))?;
        let handle = Handle(id.to_owned());
        if let Some(grace) = request.grace {
            self.grace.lock().unwrap_or_else(PoisonError::into_inner).push((handle.clone(), grace));
        }
        Ok(Started { handle, existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        match self.ask("GET", &format!("/{handle}"), None, ENOUGH) {
            Ok(info) => Ok(said(&info)),
            Err(Trouble::Refused { code, why }) if code == "404" => {
                Ok(Said { because: why, ..Said::only(State::Forgotten) })
            }
            Err(trouble) => Err(trouble),
        }
    }

    fn run(&self, request: &Request, within: Duration) -> Answer<Said> {
        let words = words(&request.work)?;
        let limit = request.deadline.unwrap_or(within);
        let body = json!({
            "command": words[0],
            "args": words[1..],
            "cwd": self.folder.to_string_lossy(),
            "timeoutMs": u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        });
        let answer = self.ask("POST", "/run", Some(&body), within + ENOUGH)?;
        let end = answer["exitCode"].as_i64().map(|code| End::Exited { code });
        let cause = (answer["timedOut"] == true).then_some(Cause::Deadline);
        Ok(Said { end, cause, ..Said::only(State::Ended) })
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let until = match follow {
            Follow::No => None,
            Follow::Until(within) => Some(Instant::now() + within),
        };
        let (mut cursor, mut place, mut since) = (from, 0u64, None);
        loop {
            let last = match until {
                None => true,
                Some(until) => Instant::now() >= until || self.inspect(handle)?.state.is_final(),
            };
            let after = since.map_or_else(String::new, |since: u64| format!("&since={since}"));
            let path = format!("/{handle}/logs?stream=combined{after}");
            let logs = self.ask("GET", &path, None, Duration::from_secs(120))?;
            for entry in logs["entries"].as_array().into_iter().flatten() {
                let data = entry["data"].as_str().unwrap_or_default();
                let bytes = match entry["encoding"].as_str() {
                    Some("base64") => base64::decode(data).ok_or_else(|| Trouble::unobserved("no base64"))?,
                    _ => data.as_bytes().to_vec(),
                };
                since = entry["sequence"].as_u64().or(since);
                // Entries are counted from the first one that is kept: a cursor is a place only while all are.
                let skip =
                    usize::try_from(cursor.saturating_sub(place)).unwrap_or(usize::MAX).min(bytes.len());
                place += bytes.len() as u64;
                if skip < bytes.len() {
                    cursor += (bytes.len() - skip) as u64;
                    if let ControlFlow::Break(()) = sink(&bytes[skip..]) {
                        return Ok(cursor);
                    }
                }
            }
            if last {
                return Ok(cursor);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let own = self.grace.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let grace =
            own.iter().find(|(of, _)| of == handle).map_or(Duration::from_secs(10), |(_, grace)| *grace);
        let path = format!("/{handle}/stop?waitMs={}", grace.min(within).as_millis());
        let stopped = said(&self.ask("POST", &path, None, within + ENOUGH)?);
        if stopped.state.is_final() {
            return Ok(stopped);
        }
        let left = within.saturating_sub(grace);
        self.ask("POST", &format!("/{handle}/kill?waitMs={}", left.as_millis()), None, left + ENOUGH)?;
        self.wait(handle, left)
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("standard input can be written to, and not closed"))
    }

    fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
        Err(Trouble::unsupported("no attempts"))
    }

    fn kill_owner(&self, _: &Handle) -> Answer<String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut server) = running.take() else { return Err(Trouble::unobserved("there is no server")) };
        if let Some(process) = Process::of(server.pid()) {
            kill_process(process)?;
        }
        let _ = server.child().wait();
        Ok("the server".to_owned())
    }

    fn restart_owner(&self) -> Answer<String> {
        self.start_server()?;
        Ok("the server was started again".to_owned())
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, _: &Handle) -> Answer<Vec<u32>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running
            .as_ref()
            .map(|server| vec![server.pid()])
            .ok_or_else(|| Trouble::unobserved("there is no server"))
    }
}
