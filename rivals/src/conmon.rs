//! conmon: the keeper of a container, as podman and CRI-O use it, with runc and the machine's own programs in it.
//!
//! A container of its own for each command, with PID, mount and IPC namespaces. The command is its first process, as
//! nobody puts an init in front of it. A stop is `runc kill` with TERM, and with KILL after the grace.

use crate::rival::{ENOUGH, Place, in_path, kill_process, until, version};
use outlast_qualify::call::call;
use outlast_qualify::process::Process;
use outlast_qualify::subject::{
    Answer, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started, State, Stdin, Subject,
    Trouble, Work,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) fn available(_: &Place) -> Result<(), String> {
    for name in ["conmon", "runc"] {
        in_path(name).ok_or_else(|| format!("{name} is not in PATH"))?;
    }
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("its containers need root here".to_owned()),
    }
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    let program =
        |name: &str| in_path(name).ok_or_else(|| Trouble::unavailable(format!("{name} is not in PATH")));
    Ok(Arc::new(Conmon {
        conmon: program("conmon")?,
        runc: program("runc")?,
        folder: place.scratch.clone(),
        number: AtomicU64::new(0),
        grace: Mutex::default(),
    }))
}

struct Conmon {
    conmon: PathBuf,
    runc: PathBuf,
    folder: PathBuf,
    number: AtomicU64,
    /// The containers there are, each with its grace.
    grace: Mutex<HashMap<Handle, Duration>>,
}

impl Conmon {
    fn bundle(&self, handle: &Handle) -> PathBuf {
        self.folder.join(&handle.0)
    }

    fn runc(&self, words: &[&str]) -> Answer<String> {
        let state = self.folder.join("runc");
        let mut command = Command::new(&self.runc);
        let answered = call(command.arg("--root").arg(state).args(words), None, ENOUGH)?;
        match answered.status.success() {
            true => Ok(String::from_utf8_lossy(&answered.stdout).into_owned()),
            false => Err(Trouble::refused(answered.status.to_string(), answered.complaint())),
        }
    }

    /// The machine's own programs, and the scratch folder, in a root of the container's own.
    fn make_bundle(&self, handle: &Handle, words: &[&str]) -> std::io::Result<()> {
        let bundle = self.bundle(handle);
        let root = bundle.join("rootfs");
        std::fs::create_dir_all(&root)?;
        std::fs::create_dir_all(bundle.join("exit"))?;
        let bind = |path: &str, mode: &str| json!({"destination": path, "source": path, "type": "bind", "options": ["rbind", mode]});
        let mut mounts =
            vec![json!({"destination": "/proc", "type": "proc", "source": "proc"}), bind("/dev", "rw")];
        for path in ["/usr", "/etc"] {
            mounts.push(bind(path, "ro"));
        }
        for path in ["/bin", "/sbin", "/lib", "/lib64"] {
            match std::fs::read_link(path) {
                Ok(target) => std::os::unix::fs::symlink(target, root.join(&path[1..]))?,
                Err(_) if Path::new(path).is_dir() => mounts.push(bind(path, "ro")),
                Err(_) => {}
            }
        }
        mounts.push(bind(&self.folder.to_string_lossy(), "rw"));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": words,
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": self.folder.to_string_lossy(),
                "noNewPrivileges": true,
            },
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]},
        });
        std::fs::write(bundle.join("config.json"), config.to_string())
    }

    fn own_process(&self, handle: &Handle) -> Option<Process> {
        let text = std::fs::read_to_string(self.bundle(handle).join("conmon.pid")).ok()?;
        Process::of(text.trim().parse().ok()?)
    }

    fn lives(&self, handle: &Handle) -> bool {
        self.own_process(handle).is_some_and(Process::lives)
    }

    fn code(&self, handle: &Handle) -> Option<i64> {
        std::fs::read_to_string(self.bundle(handle).join("exit").join(&handle.0)).ok()?.trim().parse().ok()
    }
}

impl Drop for Conmon {
    fn drop(&mut self) {
        let handles: Vec<Handle> =
            self.grace.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        for handle in handles {
            let _ = self.runc(&["delete", "--force", &handle.0]);
        }
    }
}

/// The payload of a line of its log: `TIME STREAM F|P PAYLOAD`, where P has no line end of its own.
fn payload(line: &[u8]) -> Option<Vec<u8>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (_, _, tag, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let mut bytes = rest.strip_suffix(b"\n")?.to_vec();
    if tag == b"F" {
        bytes.push(b'\n');
    }
    Some(bytes)
}

impl Subject for Conmon {
    fn describe(&self) -> Description {
        let runc = version(&self.runc, &["--version"]);
        Description {
            name: "conmon".to_owned(),
            version: format!("{}, {runc}", version(&self.conmon, &["--version"])),
            reached: "its command line, and runc's".to_owned(),
            boundary: Some("a container with a PID namespace".to_owned()),
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
        if request.key.is_some() {
            return Err(Trouble::unsupported("no keys"));
        }
        if request.stdin == Stdin::Open {
            return Err(Trouble::unsupported(
                "standard input only through a socket that a client attaches to",
            ));
        }
        let words = words.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>();
        let words = words.ok_or_else(|| Trouble::unsupported("commands are text"))?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let handle = Handle(format!("oq{}-{number}", std::process::id()));
        self.make_bundle(&handle, &words).map_err(Trouble::unobserved)?;
        let bundle = self.bundle(&handle);
        let pid_file = bundle.join("pid");
        let mut command = Command::new(&self.conmon);
        command.args(["--cid", &handle.0, "--cuuid", &handle.0, "--name", &handle.0]);
        command.arg("--runtime").arg(&self.runc).arg("--runtime-arg").arg("--root");
        command.arg("--runtime-arg").arg(self.folder.join("runc"));
        command.arg("--bundle").arg(&bundle).arg("--container-pidfile").arg(&pid_file);
        command.arg("--conmon-pidfile").arg(bundle.join("conmon.pid"));
        command.arg("--log-path").arg(format!("k8s-file:{}", bundle.join("log").display()));
        command.arg("--exit-dir").arg(bundle.join("exit")).arg("--socket-dir-path").arg(&bundle);
        if let Some(deadline) = request.deadline {
            command.arg("--timeout").arg(deadline.as_secs_f64().ceil().to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(Trouble::unavailable)?;
        let created = until(ENOUGH, || match std::fs::metadata(&pid_file) {
            Ok(file) if file.len() > 0 => Some(true),
            _ if !status.success() => Some(false),
            // It writes its own pid first, and leaves when the runtime fails.
            _ => (bundle.join("conmon.pid").exists() && !self.lives(&handle)).then_some(false),
        });
        if created != Some(true) {
            return Err(Trouble::refused("create", "runc did not create the container"));
        }
        let grace = request.grace.unwrap_or(Duration::from_secs(10));
        self.grace.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.clone(), grace);
        self.runc(&["start", &handle.0])?;
        Ok(Started { handle, existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        // Liveness first: conmon writes the exit before it leaves.
        let lives = self.lives(handle);
        if let Some(code) = self.code(handle) {
            return Ok(Said::ended(End::Exited { code }));
        }
        if lives {
            return Ok(Said::only(State::Running));
        }
        let state: Value = match self.runc(&["state", &handle.0]) {
            Ok(text) => serde_json::from_str(&text).map_err(Trouble::unobserved)?,
            Err(Trouble::Refused { why, .. }) => {
                return Ok(Said { because: why, ..Said::only(State::Forgotten) });
            }
            Err(trouble) => return Err(trouble),
        };
        Ok(Said::only(match state["status"].as_str() {
            Some("stopped") => State::Ended,
            _ => State::Running,
        }))
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let until = match follow {
            Follow::No => None,
            Follow::Until(within) => Some(Instant::now() + within),
        };
        let file = File::open(self.bundle(handle).join("log")).map_err(Trouble::unobserved)?;
        let mut lines = BufReader::with_capacity(1 << 20, file);
        let (mut cursor, mut place) = (from, 0u64);
        let mut line = Vec::new();
        loop {
            let last = until.is_none_or(|until| Instant::now() >= until)
                || self.inspect(handle).is_ok_and(|said| said.state.is_final());
            while lines.read_until(b'\n', &mut line).map_err(Trouble::unobserved)? > 0
                && line.ends_with(b"\n")
            {
                let bytes = payload(&line).ok_or_else(|| Trouble::unobserved("a line of its log is none"))?;
                line.clear();
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
        let grace = self.grace.lock().unwrap_or_else(PoisonError::into_inner).get(handle).copied();
        let grace = grace.unwrap_or(Duration::from_secs(10)).min(within);
        for (signal, length) in [("TERM", grace), ("KILL", within.saturating_sub(grace))] {
            let said = self.inspect(handle)?;
            if said.state.is_final() {
                return Ok(said);
            }
            match self.runc(&["kill", &handle.0, signal]) {
                // It may have ended meanwhile; what is said of it then counts.
                Ok(_) | Err(Trouble::Refused { .. }) => {}
                Err(trouble) => return Err(trouble),
            }
            let said = self.wait(handle, length)?;
            if said.state.is_final() {
                return Ok(said);
            }
        }
        self.inspect(handle)
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("standard input only through a socket that a client attaches to"))
    }

    fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
        Err(Trouble::unsupported("no attempts"))
    }

    fn kill_owner(&self, handle: &Handle) -> Answer<String> {
        let process =
            self.own_process(handle).ok_or_else(|| Trouble::unobserved("conmon is gone already"))?;
        kill_process(process)?;
        Ok("conmon".to_owned())
    }

    fn restart_owner(&self) -> Answer<String> {
        Ok("nothing comes back".to_owned())
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, handle: &Handle) -> Answer<Vec<u32>> {
        self.own_process(handle)
            .map(|process| vec![process.pid])
            .ok_or_else(|| Trouble::unobserved("conmon is gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_is_read_as_its_bytes() {
        for (line, bytes) in [
            (&b"T stdout F a b\n"[..], Some(&b"a b\n"[..])),
            (b"T stdout P \xff\0\n", Some(b"\xff\0")),
            (b"T stdout F \n", Some(b"\n")),
            (b"T stdout F cut", None),
            (b"nothing\n", None),
        ] {
            assert_eq!(payload(line).as_deref(), bytes, "{line:?}");
        }
    }
}
