//! pueue: a queue of shell commands behind a daemon, by its own command line.
//!
//! The daemon has a folder of its own and room for many tasks at once. Output is read where the daemon keeps it, as
//! `pueue log` does.

use crate::files;
use crate::rival::{ENOUGH, Place, Server, kill_process, quoted, until, version};
use outlast_qualify::call::{Answered, call};
use outlast_qualify::process::{Process, descendants};
use outlast_qualify::subject::{
    Answer, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started, State, Stdin, Subject,
    Trouble, Work,
};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) fn available(place: &Place) -> Result<(), String> {
    place.program("pueue/bin", "pueue")?;
    place.program("pueue/bin", "pueued").map(drop)
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    let pueue = Pueue {
        client: place.program("pueue/bin", "pueue").map_err(Trouble::unavailable)?,
        daemon: place.program("pueue/bin", "pueued").map_err(Trouble::unavailable)?,
        folder: place.scratch.clone(),
        running: Mutex::new(None),
    };
    for name in ["data", "run"] {
        std::fs::create_dir_all(pueue.folder.join(name)).map_err(Trouble::unobserved)?;
    }
    let folder = pueue.folder.display();
    let config = format!(
        "shared:\n  pueue_directory: {folder}/data\n  runtime_directory: {folder}/run\n  use_unix_socket: true\n  \
         unix_socket_path: {folder}/run/socket\nclient: {{}}\ndaemon: {{}}\nprofiles: {{}}\n"
    );
    std::fs::write(pueue.config(), config).map_err(Trouble::unobserved)?;
    pueue.start_daemon()?;
    pueue.ask(&["parallel", "500"])?;
    Ok(Arc::new(pueue))
}

struct Pueue {
    client: PathBuf,
    daemon: PathBuf,
    folder: PathBuf,
    running: Mutex<Option<Server>>,
}

impl Pueue {
    fn config(&self) -> PathBuf {
        self.folder.join("pueue.yml")
    }

    fn start_daemon(&self) -> Answer<()> {
        let mut command = Command::new(&self.daemon);
        command.arg("-c").arg(self.config()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server::start(&mut command)?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        until(ENOUGH, || self.ask(&["status", "--json"]).ok())
            .map(drop)
            .ok_or_else(|| Trouble::unavailable("pueued does not answer"))
    }

    fn call(&self, words: &[&str]) -> Answer<Answered> {
        call(Command::new(&self.client).arg("-c").arg(self.config()).args(words), None, ENOUGH)
    }

    fn ask(&self, words: &[&str]) -> Answer<String> {
        let answered = self.call(words)?;
        match answered.status.success() {
            true => Ok(String::from_utf8_lossy(&answered.stdout).into_owned()),
            false => Err(Trouble::refused(answered.status.to_string(), answered.complaint())),
        }
    }

    fn task(&self, handle: &Handle) -> Answer<Option<Value>> {
        let text = self.ask(&["status", "--json"])?;
        let mut all: Value = serde_json::from_str(&text).map_err(Trouble::unobserved)?;
        Ok(Some(all["tasks"][&handle.0].take()).filter(|task| !task.is_null()))
    }
}

/// What a task's status says.
fn said(task: Option<&Value>) -> Said {
    let Some(task) = task else { return Said::only(State::Forgotten) };
    let done = &task["status"]["Done"];
    if done.is_null() {
        return Said::only(State::Running);
    }
    let result = &done["result"];
    let end = match (result.as_str(), result["Failed"].as_i64()) {
        (Some("Success"), _) => Some(End::Exited { code: 0 }),
        (_, Some(code)) => Some(End::Exited { code }),
        (Some("Killed"), _) => Some(End::Signaled { signal: 0 }),
        _ => result["FailedToSpawn"].as_str().map(|why| End::NotExecuted { why: why.to_owned() }),
    };
    Said { end, because: result.to_string(), ..Said::only(State::Ended) }
}

impl Subject for Pueue {
    fn describe(&self) -> Description {
        Description {
            name: "pueue".to_owned(),
            version: version(&self.client, &["--version"]),
            reached: "its command line and a daemon".to_owned(),
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
            return Err(Trouble::unsupported("no limits"));
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
        let line = quoted(words);
        let line = line.to_str().ok_or_else(|| Trouble::unsupported("commands are text"))?;
        let id = self.ask(&["add", "--print-task-id", "--", line])?;
        Ok(Started { handle: Handle(id.trim().to_owned()), existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        Ok(said(self.task(handle)?.as_ref()))
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let path = self.folder.join("data/task_logs").join(format!("{}.log", handle.0));
        // The file is there once the daemon has started the task.
        let over = || self.inspect(handle).map_or(true, |said| said.state.is_final());
        if let Follow::Until(within) = follow {
            until(within, || (path.exists() || over()).then_some(()));
        }
        files::read(&path, from, follow, sink, &mut || over())
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let said = self.inspect(handle)?;
        if said.state.is_final() {
            return Ok(said);
        }
        self.ask(&["kill", &handle.0])?;
        self.wait(handle, within)
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("standard input can be written to, and not closed"))
    }

    fn next_attempt(&self, handle: &Handle) -> Answer<Handle> {
        let ids = |text: String| -> Answer<Vec<u64>> {
            let all: Value = serde_json::from_str(&text).map_err(Trouble::unobserved)?;
            let tasks = all["tasks"].as_object();
            Ok(tasks.into_iter().flat_map(|tasks| tasks.keys()).filter_map(|id| id.parse().ok()).collect())
        };
        let before = ids(self.ask(&["status", "--json"])?)?;
        self.ask(&["restart", &handle.0])?;
        let after = ids(self.ask(&["status", "--json"])?)?;
        let new = after.into_iter().filter(|id| !before.contains(id)).max();
        new.map(|id| Handle(id.to_string())).ok_or_else(|| Trouble::unobserved("no new task is listed"))
    }

    fn kill_owner(&self, _: &Handle) -> Answer<String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut server) = running.take() else { return Err(Trouble::unobserved("there is no daemon")) };
        if let Some(process) = Process::of(server.pid()) {
            kill_process(process)?;
        }
        let _ = server.child().wait();
        Ok("pueued".to_owned())
    }

    fn restart_owner(&self) -> Answer<String> {
        self.start_daemon()?;
        Ok("pueued was started again".to_owned())
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, _: &Handle) -> Answer<Vec<u32>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(server) = running.as_ref() else { return Err(Trouble::unobserved("there is no daemon")) };
        // Each task has a shell around it, which is a part of the price.
        let shell = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sh")
        };
        let pid = server.pid();
        Ok([pid].into_iter().chain(descendants(pid).into_iter().filter(shell)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_read_as_what_it_says() {
        let done = |result: Value| json!({"status": {"Done": {"result": result}}});
        for (result, end) in [
            (json!("Success"), Some(End::Exited { code: 0 })),
            (json!({"Failed": 3}), Some(End::Exited { code: 3 })),
            (json!("Killed"), Some(End::Signaled { signal: 0 })),
            (json!("Errored"), None),
        ] {
            let said = said(Some(&done(result)));
            assert_eq!((said.state, said.end), (State::Ended, end));
        }
        assert_eq!(said(Some(&json!({"status": {"Running": {}}}))).state, State::Running);
        assert_eq!(said(None).state, State::Forgotten);
    }
}
