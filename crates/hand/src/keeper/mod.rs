//! The keeper: what owns one job, from its start mark to its receipt.
//!
//! The program that is started ([`main`]) makes the groups, forks the warden into its own and ends, so that the warden
//! belongs to nobody's tree. The [`warden`] owns processes, time and signals; its [`scribe`] owns output and storage.
//! Neither runs an async runtime, a thread or a timer that nothing needs.

mod command;
pub(crate) mod contain;
mod init;
mod link;
mod scribe;
mod stages;
mod warden;

use crate::control::Say;
use crate::files;
use crate::launch::WATCHER_FD;
use crate::settle;
use contain::Containment;
use outlast_core::exit::{Exit, NotStarted};
use outlast_core::spec::Spec;
use outlast_sys::fork::{ForkOptions, Forked, fork_process};
use outlast_sys::wait::Status;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

pub(crate) use command::variable;

/// The scribe's name in process lists.
pub(crate) const SCRIBE_NAME: &CStr = c"outlast-scribe";
/// That of the process 1 of a PID namespace.
pub(crate) const INIT_NAME: &CStr = c"outlast-init";
/// The warden's.
pub(crate) const WARDEN_NAME: &CStr = c"outlast-warden";

/// The reading ends of the command's output, which both processes hold, and the scribe's bell.
pub(crate) struct Ends {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) wake: OwnedFd,
}

/// Everything the keeper's first process hands to its warden.
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

/// The keeper's program: `keep output|quiet JOB-FOLDER`, with the watcher's socket as descriptor 3. Returns the exit
/// status of the first process, which ends as soon as the warden is on its own.
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
    match begin(watcher, watch == "output", PathBuf::from(path)) {
        Ok(()) => 0,
        Err(error) => {
            // The watcher sees the channel close; the job is settled as never started.
            eprintln!("outlast-hand: {error}");
            1
        }
    }
}

fn begin(watcher: OwnedFd, watch_output: bool, job_path: PathBuf) -> io::Result<()> {
    let home_path = job_path.parent().and_then(Path::parent).ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    let home = files::open_dir(&home_path)?;
    let job_dir = files::open_dir(&job_path)?;
    let open = files::open_subdir(home.as_fd(), "open")?;
    let spec: Spec =
        crate::job::read_json(job_dir.as_fd(), crate::job::name::SPEC)?.ok_or(io::ErrorKind::NotFound)?;
    let containment = match Containment::prepare(&home_path, &spec) {
        Ok(containment) => containment,
        Err(missing) => {
            let failure =
                Failure { code: missing.code(), message: missing.to_string(), remedy: missing.remedy() };
            return refuse(&home, &job_dir, &spec, &watcher, failure);
        }
    };
    let into_cgroup = containment.groups.as_ref().map(|groups| groups.keeper.dir());
    // No exit signal is needed: this process ends first, and who adopts the warden is told by the kernel's default.
    let options =
        ForkOptions { into_cgroup, exit_signal: Some(outlast_sys::Signal::CHILD), ..ForkOptions::default() };
    match fork_process(options) {
        Ok(Forked::Child) => {
            let environment = std::env::vars_os().collect();
            let keeper = Keeper {
                job_path,
                job_dir,
                home,
                open,
                spec,
                containment,
                watcher,
                watch_output,
                environment,
            };
            warden::run(keeper)
        }
        Ok(Forked::Parent { .. }) => Ok(()),
        Err(errno) => {
            containment.take_down();
            if let Some(groups) = &containment.groups {
                groups.remove_outer();
            }
            let failure = Failure {
                code: "CONTAINMENT_UNAVAILABLE",
                message: format!("the keeper could not be born in its own cgroup: {errno}"),
                remedy: "use --containment subreaper or pid_namespace, or name a delegated group in OUTLAST_CGROUP",
            };
            refuse(&home, &job_dir, &spec, &watcher, failure)
        }
    }
}

/// Why a keeper cannot do what was asked.
struct Failure {
    code: &'static str,
    message: String,
    remedy: &'static str,
}

/// Settles a job as never started, because what was asked for cannot be set up, and says so to the watcher.
fn refuse(
    home: &OwnedFd,
    job_dir: &OwnedFd,
    spec: &Spec,
    watcher: &OwnedFd,
    failure: Failure,
) -> io::Result<()> {
    let settled =
        settle::never_started(home.as_fd(), job_dir.as_fd(), spec, NotStarted::SetUpFailed, "its keeper");
    let Failure { code, message, remedy } = failure;
    let say = Say::Failed { code: code.to_owned(), message, remedy: remedy.to_owned() };
    let _ = crate::control::send(watcher.as_fd(), &say, &[]);
    settled.map(drop)
}

/// An end of a process as receipts say it.
pub(crate) fn wire_exit(status: Status) -> Exit {
    match status {
        Status::Exited(code) => Exit::Exited { code: u8::try_from(code & 0xff).unwrap_or(u8::MAX) },
        Status::Signaled { signal, core } => Exit::Signaled { signal, core_dumped: core },
    }
}

/// Ends a forked process without running what its parent had registered for its own exit.
fn leave(status: i32) -> ! {
    std::process::exit(status)
}
