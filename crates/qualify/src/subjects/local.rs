//! Outlast on this machine, through its command line alone.
//!
//! The one thing that is taken from elsewhere is the pid of a job's warden, out of the mark in the job's folder: it is
//! what is killed where a probe wants the owner lost, and no command of Outlast's helps with that.

use crate::call::{Answered, call, stream};
use crate::process::{Process, descendants};
use crate::subject::{
    Answer, Cause, Containment, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started,
    State, Stdin, Subject, Trouble, Work,
};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a call may take beyond what it is told to take.
const PATIENCE: Duration = Duration::from_secs(15);

/// The longest that a single call is told to take: calls are bounded, and are made again.
const CALL: Duration = Duration::from_secs(600);

/// Outlast, by its command line.
#[derive(Debug)]
pub struct LocalCli {
    program: PathBuf,
    folder: PathBuf,
    version: String,
    boundary: Option<String>,
    /// A workspace for each command: one whose end is unknown must not keep the others from being admitted.
    workspaces: AtomicU64,
}

impl LocalCli {
    /// The program at this path, with a home and a scratch folder of its own in a new folder below `place`.
    ///
    /// # Errors
    /// The folder cannot be made ([`Trouble::Unobserved`]), or the program does not say what it is.
    pub fn new(program: &Path, place: &Path) -> Answer<LocalCli> {
        let place = std::path::absolute(place).map_err(Trouble::unobserved)?;
        let folder = place.join(format!("outlast-qualify-{}", std::process::id()));
        // It is called from another folder; a bare name is looked up in PATH instead.
        let program = match program.components().count() {
            1 => program.to_owned(),
            _ => std::path::absolute(program).map_err(Trouble::unobserved)?,
        };
        let mut local = LocalCli {
            program,
            folder,
            version: String::new(),
            boundary: None,
            workspaces: AtomicU64::new(0),
        };
        // Nothing above it is made: a place that was mistyped is an error.
        for name in ["", "scratch", "work"] {
            fs::create_dir(local.folder.join(name)).map_err(Trouble::unobserved)?;
        }
        local.version = match local.say_version() {
            Ok(version) => version,
            Err(trouble) => {
                // Nothing has run yet.
                let _ = fs::remove_dir_all(&local.folder);
                return Err(trouble);
            }
        };
        local.boundary = local.say_boundary();
        Ok(local)
    }

    /// Where its home and its scratch folder are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes both. A job whose end nothing proves is attested as dead first: the probes ended all that had their mark,
    /// and a home is not left behind for it.
    ///
    /// # Errors
    /// A job is not over, so that its keeper still writes there; or what the system says.
    pub fn remove(&self) -> Answer<()> {
        let (_, answer) = self.ask(&["job", "list"], PATIENCE)?;
        let jobs = answer["data"]["jobs"].as_array().cloned().unwrap_or_default();
        for job in jobs {
            let Some(id) = job["job_id"].as_str() else { continue };
            match job["state"].as_str() {
                Some("settled" | "paused") => {}
                Some("unknown") => {
                    let words = ["job", "settle", id, "--attest", "outlast-qualify", "--yes"];
                    self.ask(&words, PATIENCE)?;
                    self.remove_groups_of(id);
                }
                state => {
                    let state = state.unwrap_or("in no state");
                    return Err(Trouble::unobserved(format!("job {id} is {state}")));
                }
            }
        }
        // A keeper that has told of its end may still write a last word beside what is being removed.
        let mut outcome = Ok(());
        crate::lab::until(PATIENCE, || {
            outcome = fs::remove_dir_all(&self.folder);
            outcome.as_ref().err().is_none_or(|error| error.kind() != io::ErrorKind::DirectoryNotEmpty)
        });
        outcome.map_err(Trouble::unobserved)
    }

    /// A keeper that was killed leaves its own group behind, empty, which nobody removes once the home is gone. Only
    /// empty ones can be removed, so whatever goes wrong here does no harm.
    fn remove_groups_of(&self, id: &str) {
        let mark = self.mark(id).unwrap_or_default();
        let Some(place) = mark["leaf"]["place"].as_str().map(Path::new) else { return };
        for group in [place.join(id), place.to_owned()] {
            let _ = fs::remove_dir(group);
        }
    }

    /// The start mark of a job.
    fn mark(&self, id: &str) -> Answer<Value> {
        let path = self.home().join("jobs").join(id).join("start.json");
        let text = fs::read_to_string(path).map_err(Trouble::unobserved)?;
        serde_json::from_str(&text).map_err(Trouble::unobserved)
    }

    fn say_version(&self) -> Answer<String> {
        let answered = call(self.command().arg("--version"), None, PATIENCE)?;
        let text = String::from_utf8_lossy(&answered.stdout).trim().to_owned();
        match (answered.status.success(), text.strip_prefix("outlast ")) {
            (true, Some(version)) => Ok(version.to_owned()),
            _ => Err(Trouble::unavailable(format!("{}: {}", self.program.display(), answered.complaint()))),
        }
    }

    /// The best containment that is to be had, which is what commands get.
    fn say_boundary(&self) -> Option<String> {
        let (_, answer) = self.ask(&["doctor"], PATIENCE).ok()?;
        let offers = answer["data"]["offers"]["containment"].as_array()?.clone();
        let offer = offers.into_iter().find(|offer| offer["available"] == true)?;
        Some(format!("{} by default", offer["name"].as_str()?))
    }

    /// A call: a home of its own, and nothing inherited that would change what it does.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let plain = ["AGENT_CALL_BUDGET_MS", "NO_COLOR", "BASH_ENV"].iter().any(|own| name == *own);
            if plain || name.as_encoded_bytes().starts_with(b"OUTLAST_") {
                command.env_remove(name);
            }
        }
        command.env("OUTLAST_HOME", self.home()).current_dir(self.folder.join("work"));
        command
    }

    fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    fn ask(&self, words: &[&str], within: Duration) -> Answer<(i32, Value)> {
        answer(&call(self.command().args(words).args(["--output", "json"]), None, within)?)
    }

    fn start_command(&self, request: &Request) -> Answer<Command> {
        let mut command = self.command();
        command.args(["run", "--output", "json", "--allow-detach", "--budget", "20s"]);
        let workspace = match &request.key {
            // The workspace is a part of what a key names.
            Some(key) => format!("work/key-{key}"),
            None => format!("work/{}", self.workspaces.fetch_add(1, Ordering::Relaxed)),
        };
        let workspace = self.folder.join(workspace);
        fs::create_dir_all(&workspace).map_err(Trouble::unobserved)?;
        command.arg("--cwd").arg(&workspace).arg("--workspace").arg(&workspace);
        match &request.key {
            Some(key) => command.args(["--idempotency-key", key]),
            // Probes are not to be handed the result of an identical call before.
            None => command.arg("--new"),
        };
        let ms = |length: Duration| format!("{}ms", length.as_millis());
        if let Some(deadline) = request.deadline {
            command.args(["--timeout", &ms(deadline)]);
        }
        if let Some(grace) = request.grace {
            command.args(["--grace", &ms(grace)]);
        }
        if request.stdin == Stdin::Open {
            command.args(["--stdin", "open"]);
        }
        match request.containment {
            None => {}
            Some(Containment::PidNamespace) => drop(command.args(["--containment", "pid_namespace"])),
        }
        if request.keep_all_output {
            command.args(["--log-limit", "0"]);
        }
        Ok(command)
    }

    fn with_work(command: &mut Command, work: &Work) {
        match work {
            Work::Argv(words) => command.arg("--").args(words),
            Work::Script(script) => command.args(["-c", script]),
        };
    }

    fn status(&self, handle: &Handle) -> Answer<Value> {
        let (code, answer) = self.ask(&["job", "status", &handle.0], PATIENCE)?;
        match answer["data"].is_object() {
            true => Ok(answer["data"].clone()),
            false if code == 5 => Ok(Value::Null),
            false => Err(refusal(&answer)),
        }
    }

    /// The warden of a job that runs.
    fn warden(&self, handle: &Handle) -> Answer<Process> {
        let mark = self.mark(&handle.0)?;
        let pid = mark["warden_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        match (pid, mark["warden_start_time"].as_u64()) {
            (Some(pid), Some(started)) => Ok(Process { pid, started }),
            _ => Err(Trouble::unobserved("its start mark names no warden")),
        }
    }
}

impl Subject for LocalCli {
    fn describe(&self) -> Description {
        Description {
            name: "outlast".to_owned(),
            version: self.version.clone(),
            reached: "command line, commands that leave their job allowed (--allow-detach)".to_owned(),
            boundary: self.boundary.clone(),
        }
    }

    fn on_this_machine(&self) -> bool {
        true
    }

    fn scratch(&self) -> String {
        self.folder.join("scratch").to_string_lossy().into_owned()
    }

    fn start(&self, request: &Request) -> Answer<Started> {
        let mut command = self.start_command(request)?;
        command.arg("--background");
        LocalCli::with_work(&mut command, &request.work);
        let (_, answer) = answer(&call(&mut command, None, Duration::from_secs(20) + PATIENCE)?)?;
        let Some(id) = answer["data"]["job_id"].as_str() else { return Err(refusal(&answer)) };
        let existed = answer["data"]["attached"].is_object() || answer["meta"]["idempotency_hit"] == true;
        Ok(Started { handle: Handle(id.to_owned()), existed })
    }

    fn start_and_lose_the_answer(&self, request: &Request) -> Answer<()> {
        let mut command = self.start_command(request)?;
        command.arg("--background");
        LocalCli::with_work(&mut command, &request.work);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(Trouble::unavailable)?;
        // Nobody reads what it will say.
        drop(child.stdout.take());
        child.wait().map_err(Trouble::unavailable)?;
        Ok(())
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        Ok(said(&self.status(handle)?))
    }

    fn wait(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let budget = format!("{}ms", within.min(CALL).as_millis().max(1));
        let words = ["job", "wait", &handle.0, "--budget", &budget, "--max-output", "0"];
        let (code, answer) = self.ask(&words, within + PATIENCE)?;
        match answer["data"].is_object() {
            true => Ok(said(&answer["data"])),
            false if code == 5 => Ok(Said::only(State::Forgotten)),
            false => Err(refusal(&answer)),
        }
    }

    fn run(&self, request: &Request, within: Duration) -> Answer<Said> {
        let mut command = self.start_command(request)?;
        LocalCli::with_work(&mut command, &request.work);
        let (_, answer) = answer(&call(&mut command, None, within + PATIENCE)?)?;
        match answer["data"].is_object() {
            true => Ok(said(&answer["data"])),
            false => Err(refusal(&answer)),
        }
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let mut command = self.command();
        command.args(["job", "logs", &handle.0, "--raw", "--cursor", &from.to_string()]);
        let within = match follow {
            Follow::No => CALL.min(Duration::from_secs(120)),
            Follow::Until(within) => {
                command.args(["--follow", "--budget", &format!("{}ms", within.as_millis())]);
                within + PATIENCE
            }
        };
        let mut at = from;
        let answered = stream(&mut command, within, &mut |bytes| {
            at += bytes.len() as u64;
            sink(bytes)
        })?;
        match answered {
            // 14: the budget ended before the job did, which is no trouble of the reader's.
            Some(answered) if !matches!(answered.status.code(), Some(0 | 14)) => {
                Err(Trouble::refused("LOGS", answered.complaint()))
            }
            _ => Ok(at),
        }
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let budget = format!("{}ms", within.min(CALL).as_millis().max(1));
        let (_, answer) = self.ask(&["job", "cancel", &handle.0, "--budget", &budget], within + PATIENCE)?;
        match answer["data"].is_object() {
            true => Ok(said(&answer["data"])),
            false => Err(refusal(&answer)),
        }
    }

    fn write_stdin(&self, handle: &Handle, bytes: &[u8], close: bool) -> Answer<()> {
        let mut command = self.command();
        command.args(["job", "stdin", &handle.0, "--budget", "10s", "--output", "json"]);
        if close {
            command.arg("--close");
        }
        let (code, answer) = answer(&call(&mut command, Some(bytes), PATIENCE)?)?;
        if code == 0 { Ok(()) } else { Err(refusal(&answer)) }
    }

    fn next_attempt(&self, handle: &Handle) -> Answer<Handle> {
        let (_, answer) = self.ask(&["job", "retry", &handle.0, "--background", "--budget", "20s"], CALL)?;
        match answer["data"]["job_id"].as_str() {
            Some(id) => Ok(Handle(id.to_owned())),
            None => Err(refusal(&answer)),
        }
    }

    fn kill_owner(&self, handle: &Handle) -> Answer<String> {
        let warden = self.warden(handle)?;
        if !warden.lives() {
            return Err(Trouble::unobserved("its warden is gone already"));
        }
        warden.kill().map_err(Trouble::unobserved)?;
        match crate::lab::until(PATIENCE, || !warden.lives()) {
            true => Ok(format!("the job's warden, process {}", warden.pid)),
            false => Err(Trouble::unobserved("its warden lives after KILL")),
        }
    }

    fn restart_owner(&self) -> Answer<String> {
        Ok("nothing to restart: the next call about the job looks at its folder".to_owned())
    }

    fn settle(&self, handle: &Handle, within: Duration) -> Answer<Settled> {
        let budget = format!("{}ms", within.min(CALL).as_millis().max(1));
        let (_, answer) = self.ask(&["job", "settle", &handle.0, "--budget", &budget], within + PATIENCE)?;
        let refused = answer["error"]["message"].as_str().map(str::to_owned);
        Ok(Settled { said: self.inspect(handle)?, refused })
    }

    fn owners(&self, handle: &Handle) -> Answer<Vec<u32>> {
        let warden = self.warden(handle)?;
        let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
        let own = program(warden.pid).ok_or_else(|| Trouble::unobserved(io::Error::last_os_error()))?;
        // The scribe is a fork of the warden; the command is its child as well, but another program.
        let scribe = descendants(warden.pid).into_iter().filter(|pid| program(*pid).as_ref() == Some(&own));
        Ok([warden.pid].into_iter().chain(scribe).collect())
    }
}

/// The envelope, with the call's exit code.
fn answer(answered: &Answered) -> Answer<(i32, Value)> {
    let code = answered.status.code().unwrap_or(-1);
    let value: Value = serde_json::from_slice(&answered.stdout)
        .map_err(|_| Trouble::unavailable(format!("no answer but: {}", answered.complaint())))?;
    Ok((code, value))
}

fn refusal(answer: &Value) -> Trouble {
    let error = &answer["error"];
    let word = |value: &Value| value.as_str().unwrap_or("no reason given").to_owned();
    let (code, why) = (word(&error["code"]), word(&error["message"]));
    match code.as_str() {
        "CONTAINMENT_UNAVAILABLE" => Trouble::unsupported(why),
        "UNAVAILABLE" | "KEEPER_NOT_STARTED" | "HOME_UNUSABLE" => {
            Trouble::unavailable(format!("{code}: {why}"))
        }
        _ => Trouble::refused(code, why),
    }
}

/// What an answer about a job says of it.
fn said(data: &Value) -> Said {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let state = match data["state"].as_str() {
        Some("starting" | "running") => State::Running,
        Some("stopping") => State::Stopping,
        Some("settled" | "paused") => State::Ended,
        Some(_) => State::Unknown,
        None => State::Forgotten,
    };
    let exit = &data["exit"];
    let end = match exit["kind"].as_str() {
        Some("exited") => exit["code"].as_i64().map(|code| End::Exited { code }),
        Some("signaled") => exit["signal"]
            .as_i64()
            .and_then(|signal| i32::try_from(signal).ok())
            .map(|signal| End::Signaled { signal }),
        Some("exec_failed") => Some(End::NotExecuted {
            why: format!("{}, error {}", exit["stage"].as_str().unwrap_or("start"), exit["errno"]),
        }),
        Some("not_started") => Some(End::NotExecuted { why: exit["why"].to_string() }),
        Some("unknown") => Some(End::Unknown { why: text(&exit["why"]).unwrap_or_default() }),
        _ => None,
    };
    let cause = match data["cause"]["kind"].as_str() {
        Some("own_end") => Some(Cause::Itself),
        Some("deadline") => Some(Cause::Deadline),
        Some("stop") => Some(Cause::Stop),
        Some("keeper_lost") => Some(Cause::OwnerLost),
        _ => None,
    };
    let drain = &data["receipt"]["drain"];
    Said {
        state,
        end,
        effective: data["effective_status"].as_i64(),
        cause,
        proof: text(&data["receipt"]["death"]),
        gap: (drain["kind"] == "incomplete").then(|| drain.to_string()),
        because: text(&data["because"]).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_answer_says() {
        let settled = said(&json!({
            "state": "settled", "because": "b", "exit": {"kind": "signaled", "signal": 15, "core_dumped": false},
            "cause": {"kind": "deadline"}, "effective_status": 143,
            "receipt": {"death": "all_reaped", "drain": {"kind": "complete"}},
        }));
        assert_eq!((settled.state, settled.end), (State::Ended, Some(End::Signaled { signal: 15 })));
        assert_eq!((settled.cause, settled.effective), (Some(Cause::Deadline), Some(143)));
        assert_eq!((settled.proof.as_deref(), settled.gap), (Some("all_reaped"), None));
        let unknown = said(&json!({"state": "unknown", "exit": null, "cause": null}));
        assert_eq!((unknown.state, unknown.end), (State::Unknown, None));
        assert_eq!(said(&Value::Null).state, State::Forgotten);
    }

    #[test]
    fn what_is_refused_keeps_its_code() {
        let answer = |code: &str| json!({"error": {"code": code, "message": "m"}});
        assert_eq!(refusal(&answer("KEY_CONFLICT")), Trouble::refused("KEY_CONFLICT", "m"));
        assert_eq!(refusal(&answer("CONTAINMENT_UNAVAILABLE")), Trouble::unsupported("m"));
        assert!(matches!(refusal(&answer("UNAVAILABLE")), Trouble::Unavailable { .. }));
    }
}
