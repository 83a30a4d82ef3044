//! systemd-run: a transient service of the system's own manager.

use crate::files;
use crate::rival::{ENOUGH, Place, in_path, seconds, version};
use outlast_qualify::call::call;
use outlast_qualify::subject::{
    Answer, Cause, Containment, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started,
    State, Stdin, Subject, Trouble, Work,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn available(_: &Place) -> Result<(), String> {
    for name in ["systemd-run", "systemctl"] {
        in_path(name).ok_or_else(|| format!("{name} is not in PATH"))?;
    }
    // What sd_booted(3) looks at.
    match (Path::new("/run/systemd/system").is_dir(), rustix::process::geteuid().is_root()) {
        (false, _) => Err("systemd does not run here".to_owned()),
        (true, false) => Err("a system service needs root".to_owned()),
        (true, true) => Ok(()),
    }
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    Ok(Arc::new(SystemdRun { folder: place.scratch.clone(), number: AtomicU64::new(0) }))
}

struct SystemdRun {
    folder: PathBuf,
    number: AtomicU64,
}

impl SystemdRun {
    fn log(&self, handle: &Handle) -> PathBuf {
        self.folder.join(format!("{handle}.log"))
    }

    fn ask(program: &str, words: &[&str], within: Duration) -> Answer<String> {
        let answered = call(Command::new(program).args(words), None, within)?;
        match answered.status.success() {
            true => Ok(String::from_utf8_lossy(&answered.stdout).into_owned()),
            false => Err(Trouble::refused(answered.status.to_string(), answered.complaint())),
        }
    }
}

/// What `systemctl show` says of a unit that stays after its end.
fn said(text: &str) -> Said {
    let shown: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let value = |name: &str| shown.get(name).copied().unwrap_or_default();
    if value("LoadState") == "not-found" {
        return Said::only(State::Forgotten);
    }
    let number = value("ExecMainStatus").parse::<i64>().ok();
    // 1 is CLD_EXITED, 2 and 3 are deaths by a signal.
    let end = match (value("ExecMainCode"), number) {
        ("1", Some(code)) => Some(End::Exited { code }),
        ("2" | "3", Some(signal)) => Some(End::Signaled { signal: i32::try_from(signal).unwrap_or(0) }),
        _ => None,
    };
    let state = match (value("ActiveState"), value("SubState")) {
        ("failed" | "inactive", _) | ("active", "exited") => State::Ended,
        ("deactivating", _) => State::Stopping,
        _ => State::Running,
    };
    let cause = (value("Result") == "timeout").then_some(Cause::Deadline);
    Said { end, cause, because: format!("result {}", value("Result")), ..Said::only(state) }
}

impl Subject for SystemdRun {
    fn describe(&self) -> Description {
        Description {
            name: "systemd-run".to_owned(),
            version: version(Path::new("systemd-run"), &["--version"]),
            reached: "its command line, and systemctl's".to_owned(),
            boundary: Some("a cgroup".to_owned()),
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
        if request.stdin == Stdin::Open {
            return Err(Trouble::unsupported("no standard input that stays open"));
        }
        if request.containment == Some(Containment::PidNamespace) {
            return Err(Trouble::unsupported("no PID namespace in this version"));
        }
        // A unit's name is a key: it is refused while there is one, and free again once that is collected.
        let name = match &request.key {
            Some(key) => format!("outlast-rivals-{key}"),
            None => {
                let number = self.number.fetch_add(1, Ordering::Relaxed);
                format!("outlast-rivals-{}-{number}", std::process::id())
            }
        };
        let handle = Handle(name);
        let words = words.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>();
        let words = words.ok_or_else(|| Trouble::unsupported("commands are text"))?;
        let unit = format!("--unit={handle}");
        let output = format!("--property=StandardOutput=append:{}", self.log(&handle).display());
        let errors = format!("--property=StandardError=append:{}", self.log(&handle).display());
        let mut asked = vec!["--quiet", "--remain-after-exit", &unit, &output, &errors];
        let limit =
            request.deadline.map(|deadline| format!("--property=RuntimeMaxSec={}", seconds(deadline)));
        let grace = request.grace.map(|grace| format!("--property=TimeoutStopSec={}", seconds(grace)));
        asked.extend(limit.iter().chain(&grace).map(String::as_str));
        asked.push("--");
        asked.extend(words);
        SystemdRun::ask("systemd-run", &asked, ENOUGH)?;
        Ok(Started { handle, existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        let shown = "--property=LoadState,ActiveState,SubState,Result,ExecMainCode,ExecMainStatus";
        Ok(said(&SystemdRun::ask("systemctl", &["show", shown, &handle.0], ENOUGH)?))
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let mut over = || self.inspect(handle).map_or(true, |said| said.state.is_final());
        files::read(&self.log(handle), from, follow, sink, &mut over)
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        SystemdRun::ask("systemctl", &["stop", &handle.0], within)?;
        self.inspect(handle)
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("no standard input that stays open"))
    }

    fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
        Err(Trouble::unsupported("a unit that is started again has the same name"))
    }

    fn kill_owner(&self, _: &Handle) -> Answer<String> {
        Err(Trouble::unsupported("the owner is the machine's first process"))
    }

    fn restart_owner(&self) -> Answer<String> {
        Err(Trouble::unsupported("the owner is the machine's first process"))
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, _: &Handle) -> Answer<Vec<u32>> {
        Ok(vec![1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_unit_shows_is_read() {
        let show = |rest: &str| said(&format!("LoadState=loaded\n{rest}"));
        let exited =
            show("ActiveState=active\nSubState=exited\nResult=success\nExecMainCode=1\nExecMainStatus=0\n");
        assert_eq!(
            (exited.state, exited.end, exited.cause),
            (State::Ended, Some(End::Exited { code: 0 }), None)
        );
        let limit =
            show("ActiveState=failed\nSubState=failed\nResult=timeout\nExecMainCode=2\nExecMainStatus=15\n");
        assert_eq!(limit.end, Some(End::Signaled { signal: 15 }));
        assert_eq!(limit.cause, Some(Cause::Deadline));
        assert_eq!(show("ActiveState=active\nSubState=running\nExecMainCode=0\n").state, State::Running);
        assert_eq!(said("LoadState=not-found\n").state, State::Forgotten);
    }
}
