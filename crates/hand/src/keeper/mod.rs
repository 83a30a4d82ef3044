//! The keeper: what owns one job, from its start mark to its receipt.
//!
//! The program that is started ([`main`]) is born in a group of its own and as nobody's child. It is the *warden*, which
//! owns processes, time and signals; it forks a *scribe*, which owns output and storage. Neither runs an async runtime,
//! a thread or a timer that nothing needs.

mod command;
mod init;
mod link;
mod scribe;
mod stages;
mod warden;

use crate::contain::{Containment, Plan};
use crate::control::MESSAGE_LIMIT;
use crate::files;
use crate::launch::WATCHER_FD;
use outlast_core::exit::Exit;
use outlast_core::spec::Spec;
use outlast_sys::spawn::Stage;
use outlast_sys::unix::{self, Received};
use outlast_sys::wait::Status;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(crate) use command::variable;

/// The warden's name in process lists.
pub(crate) const WARDEN_NAME: &CStr = c"outlast-warden";

/// The reading ends of the command's output, which both processes hold, and the scribe's bell.
pub(crate) struct Ends {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) wake: OwnedFd,
}

/// Everything a keeper begins with.
struct Keeper {
    job_path: PathBuf,
    job_dir: OwnedFd,
    home: OwnedFd,
    open: OwnedFd,
    spec: Spec,
    containment: Containment,
    watcher: OwnedFd,
    watch_output: bool,
    environment: Vec<(OsString, OsString)>,
}

/// The keeper's program: `keep output|quiet JOB-FOLDER`, with the launcher's socket as descriptor 3, on which the first
/// message is what it made to contain the command. Returns an exit status only where nothing could be begun: the
/// launcher sees the socket close, and the job is settled as never started.
#[must_use]
pub fn main(args: impl Iterator<Item = OsString>) -> i32 {
    let Ok(watcher) = outlast_sys::inherit::take(WATCHER_FD) else {
        eprintln!("outlast-hand: this program is started by `outlast run`, which owns its channel");
        return 2;
    };
    let args: Vec<OsString> = args.collect();
    let [verb, watch, path] = args.as_slice() else { return 2 };
    if verb != "keep" {
        return 2;
    }
    keep(watcher, watch == "output", PathBuf::from(path), std::env::vars_os().collect())
}

/// What a watcher that launched this keeper says once the job is durable.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Go {
    /// Start the command.
    Go,
}

/// The whole life of a keeper. Returns its exit status.
pub(crate) fn keep(
    watcher: OwnedFd,
    watch_output: bool,
    job_path: PathBuf,
    environment: Vec<(OsString, OsString)>,
) -> i32 {
    match Keeper::begin(watcher, watch_output, job_path, environment) {
        Ok(keeper) => warden::run(keeper),
        Err(error) => {
            eprintln!("outlast-hand: {error}");
            1
        }
    }
}

impl Keeper {
    fn begin(
        watcher: OwnedFd,
        watch_output: bool,
        job_path: PathBuf,
        environment: Vec<(OsString, OsString)>,
    ) -> io::Result<Keeper> {
        let mut buffer = vec![0; MESSAGE_LIMIT];
        let plan: Plan = match unix::recv(watcher.as_fd(), &mut buffer)? {
            Received::Message(length) => serde_json::from_slice(&buffer[..length])?,
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        drop(buffer);
        let home =
            files::open_dir(job_path.parent().and_then(Path::parent).ok_or(io::ErrorKind::InvalidInput)?)?;
        let job_dir = files::open_dir(&job_path)?;
        let open = files::open_subdir(home.as_fd(), "open")?;
        let spec =
            crate::job::read_json(job_dir.as_fd(), crate::job::name::SPEC)?.ok_or(io::ErrorKind::NotFound)?;
        let containment = Containment::open(&plan)?;
        Ok(Keeper { job_path, job_dir, home, open, spec, containment, watcher, watch_output, environment })
    }

    /// Waits for leave to start the command; `false` where the launcher has gone without giving it.
    fn has_leave(&self) -> bool {
        let mut buffer = [0; 64];
        loop {
            if crate::control::wait_readable(self.watcher.as_fd(), None).is_err() {
                return false;
            }
            match unix::recv(self.watcher.as_fd(), &mut buffer) {
                Ok(Received::Nothing) => {}
                Ok(Received::Message(length)) => {
                    return serde_json::from_slice::<Go>(&buffer[..length]).is_ok();
                }
                _ => return false,
            }
        }
    }
}

/// An end of a process as receipts say it.
pub(crate) fn wire_exit(status: Status) -> Exit {
    match status {
        Status::Exited(code) => Exit::Exited { code: u8::try_from(code & 0xff).unwrap_or(u8::MAX) },
        Status::Signaled { signal, core } => Exit::Signaled { signal, core_dumped: core },
    }
}

/// What of a start was refused, as receipts say it.
fn stage_text(stage: Stage) -> String {
    match stage {
        // A request is wrong where it names no program at all.
        Stage::Exec | Stage::Request => "execute".to_owned(),
        Stage::Chdir => "change to its working directory".to_owned(),
        other => format!("set up {other:?}").to_lowercase(),
    }
}
