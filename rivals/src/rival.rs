//! The tools there are adapters for, and what they share.

use crate::{codex, conmon, nohup, pueue, sandbox_agent, systemd_run};
use outlast_qualify::call::call;
use outlast_qualify::process::Process;
use outlast_qualify::subject::{Answer, Subject, Trouble};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One tool.
pub(crate) struct Rival {
    pub(crate) name: &'static str,
    /// The line that installs it.
    pub(crate) install: &'static str,
    /// Why it cannot be asked here.
    pub(crate) available: fn(&Place) -> Result<(), String>,
    pub(crate) open: fn(&Place) -> Answer<Arc<dyn Subject>>,
}

/// All of them, in the order of their columns.
pub(crate) const RIVALS: &[Rival] = &[
    Rival {
        name: "nohup",
        install: "apt-get install coreutils",
        available: nohup::available,
        open: nohup::open,
    },
    Rival { name: "pueue", install: "rivals/install pueue", available: pueue::available, open: pueue::open },
    Rival {
        name: "systemd-run",
        install: "a machine that systemd has started",
        available: systemd_run::available,
        open: systemd_run::open,
    },
    Rival {
        name: "conmon",
        install: "rivals/install conmon (as root)",
        available: conmon::available,
        open: conmon::open,
    },
    Rival {
        name: "sandbox-agent",
        install: "rivals/install sandbox-agent",
        available: sandbox_agent::available,
        open: sandbox_agent::open,
    },
    Rival { name: "codex", install: "rivals/install codex", available: codex::available, open: codex::open },
];

/// Where a rival is, and where it may work.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Where `rivals/install` put things.
    pub(crate) install: PathBuf,
    /// A folder of its own.
    pub(crate) scratch: PathBuf,
}

impl Place {
    /// The path of a program that was installed there, or that is in PATH.
    pub(crate) fn program(&self, below: &str, name: &str) -> Result<PathBuf, String> {
        let installed = self.install.join(below).join(name);
        if installed.is_file() {
            return Ok(installed);
        }
        in_path(name).ok_or_else(|| format!("{name} is neither at {} nor in PATH", installed.display()))
    }
}

/// The path of a program in PATH.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// How long a tool's own command may take.
pub(crate) const ENOUGH: Duration = Duration::from_secs(20);

/// The first line of what a program says about its version.
pub(crate) fn version(program: &Path, words: &[&str]) -> String {
    match call(Command::new(program).args(words), None, ENOUGH) {
        Ok(answered) => {
            let text = String::from_utf8_lossy(&answered.stdout).into_owned();
            text.lines().next().unwrap_or("").trim().to_owned()
        }
        Err(trouble) => trouble.to_string(),
    }
}

/// Words as a shell reads them back.
pub(crate) fn quoted(words: &[OsString]) -> OsString {
    let mut line: Vec<u8> = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        line.push(b'\'');
        for byte in word.as_bytes() {
            match byte {
                b'\'' => line.extend_from_slice(b"'\\''"),
                byte => line.push(*byte),
            }
        }
        line.push(b'\'');
    }
    OsStr::from_bytes(&line).to_os_string()
}

/// Seconds as `timeout` and the like take them.
pub(crate) fn seconds(length: Duration) -> String {
    format!("{:.3}", length.as_secs_f64())
}

/// Asks until there is something, or the time is over.
pub(crate) fn until<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a process of another's with signal 9 and waits until it is gone.
pub(crate) fn kill_process(process: Process) -> Answer<()> {
    process.kill().map_err(Trouble::unobserved)?;
    until(ENOUGH, || (!process.lives()).then_some(()))
        .ok_or_else(|| Trouble::unobserved(format!("process {} does not die", process.pid)))
}

/// A server that this program started: killed and reaped when it is not wanted any more.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(command: &mut Command) -> Answer<Server> {
        command.spawn().map(Server).map_err(|error| {
            Trouble::unavailable(format!("{}: {error}", command.get_program().to_string_lossy()))
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_so_that_a_shell_reads_them_back() {
        let words = ["printf", "%s|", "a b", "it's", "", "$x\n"].map(OsString::from);
        let mut command = Command::new("sh");
        command.arg("-c").arg(quoted(&words));
        let answered = call(&mut command, None, ENOUGH).unwrap();
        assert_eq!(answered.stdout, b"a b|it's||$x\n|");
    }
}
