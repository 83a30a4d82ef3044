//! A nest: a small process of which keepers are forked, so that a job does not wait for a program to be loaded.
//!
//! Whoever launches many keepers starts one, early: what it is started with (limits, signals, its place among groups) is
//! what the keepers have. It is nobody's child, as a keeper is, and goes when its owner does. A keeper that it forked is
//! like any other from then on: a session and a group of its own, nothing of the nest's but its memory, which is little.
//!
//! It is asked without an answer, so that the launcher can see to the job's durability meanwhile. What goes wrong is told
//! where a keeper would tell it: on the watch.

use crate::contain::GroupPlan;
use crate::control::wait_readable;
use crate::job::Job;
use crate::keeper;
use crate::launch::{self, Failed, LaunchError, WATCHER_FD};
use outlast_core::bytes::Bytes;
use outlast_core::id::JobId;
use outlast_sys::fork::{ForkOptions, fork_child};
use outlast_sys::spawn::Spawn;
use outlast_sys::title::CommandLine;
use outlast_sys::unix::{self, Received};
use outlast_sys::{Errno, Signal, prctl, signals};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Room in its command line for that of a keeper, beside the home's path.
const TITLE_BYTES: usize = 64;
/// The longest request: a path, and that of a group.
const REQUEST_BYTES: usize = 32 << 10;

/// Where keepers can be had quickly.
#[derive(Debug)]
pub struct Nest {
    socket: OwnedFd,
}

/// What a nest is asked for. With it come the watcher's socket and the environment.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    job: Bytes,
    watch_output: bool,
    /// Where the keeper is to be born.
    group: Option<GroupPlan>,
}

impl Nest {
    /// Starts one for the jobs of a home. `program` is the keeper's program, as for [`launch::Launch`].
    ///
    /// # Errors
    /// As for [`launch::launch`]; [`LaunchError::NoProgram`] where the keeper's program is a larger one.
    pub fn start(home: &Path, program: Option<&Path>) -> Result<Nest, LaunchError> {
        let refused =
            |stage: &str, source: io::Error| LaunchError::Refused { stage: stage.to_owned(), source };
        let (ours, theirs) = unix::pair().map_err(|errno| refused("making its channel", errno.into()))?;
        let (program, None) = launch::program(program)? else {
            let why = "only the small program can be a nest";
            return Err(LaunchError::NoProgram(io::Error::new(io::ErrorKind::NotFound, why)));
        };
        let program = launch::text(program.into_os_string().into_vec())?;
        let room = launch::text(vec![b' '; home.as_os_str().len() + TITLE_BYTES])?;
        let argv = vec![program.clone(), launch::text(b"nest".to_vec())?, room];
        let null = launch::null()?;
        let mut spawn = Spawn::new(program);
        spawn.argv(argv).new_session().fd(theirs.as_fd(), WATCHER_FD).env(Vec::<CString>::new());
        for target in 0..3 {
            spawn.fd(null.as_fd(), target);
        }
        spawn.spawn_orphan().map_err(|error| refused(&format!("{:?}", error.stage), error.errno.into()))?;
        Ok(Nest { socket: ours })
    }

    /// Asks for the keeper of a job. Whether there is one is told by the watch.
    ///
    /// # Errors
    /// `EPIPE` and the like where the nest is gone, `EAGAIN` where it is behind: nothing was asked then.
    pub(crate) fn ask(
        &self,
        job: &Job,
        watch_output: bool,
        group: Option<GroupPlan>,
        watcher: BorrowedFd<'_>,
        environment: &[CString],
    ) -> io::Result<()> {
        let memory = rustix::fs::memfd_create("environment", MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(memory);
        let mut bytes = Vec::new();
        environment.iter().for_each(|entry| bytes.extend_from_slice(entry.as_bytes_with_nul()));
        file.write_all(&bytes)?;
        file.rewind()?;
        let request = Request { job: Bytes(job.path().as_os_str().as_bytes().to_vec()), watch_output, group };
        let text = serde_json::to_vec(&request)?;
        Ok(unix::send_with(self.socket.as_fd(), &text, &[watcher, file.as_fd()])?)
    }
}

/// The nest's program: `nest PADDING`, with its owner's socket as descriptor 3. Ends when that closes.
#[must_use]
pub fn main(argv0: &OsStr) -> i32 {
    let Ok(owner) = outlast_sys::inherit::take(WATCHER_FD) else {
        eprintln!("outlast-hand: a nest is started by a runner, which owns its channel");
        return 2;
    };
    let Ok(line) = CommandLine::find() else { return 1 };
    line.show(&[argv0.as_bytes(), b"nest"]);
    let _ = prctl::set_name(c"outlast-nest");
    // Its children are nobody's to wait for. A keeper takes this back before it has any.
    if signals::ignore(Signal::CHILD).is_err() {
        return 1;
    }
    // Looked at here, known to all that are forked.
    let _ = (signals::look_at_dispositions(), crate::job::boot_id());
    let mut buffer = vec![0; REQUEST_BYTES];
    loop {
        if wait_readable(owner.as_fd(), None).is_err() {
            return 1;
        }
        let (length, descriptors) = match unix::recv_with(owner.as_fd(), &mut buffer) {
            Ok((Received::Message(length), descriptors)) => (length, descriptors),
            Ok((Received::Nothing | Received::TooLong(_), _)) => continue,
            Ok((Received::Closed, _)) => return 0,
            Err(_) => return 1,
        };
        let Ok([watcher, environment]) = <[OwnedFd; 2]>::try_from(descriptors) else { continue };
        let Ok(request) = serde_json::from_slice::<Request>(&buffer[..length]) else { continue };
        let job = PathBuf::from(OsStr::from_bytes(&request.job.0));
        let watch: &[u8] = if request.watch_output { b"output" } else { b"quiet" };
        let keep = [watcher.as_raw_fd(), environment.as_raw_fd()];
        let kept = watcher.try_clone();
        let born = born_in(request.group.as_ref()).and_then(|group| {
            let options = ForkOptions {
                exit_signal: Some(Signal::CHILD),
                into_cgroup: group.as_ref().map(AsFd::as_fd),
                ..ForkOptions::default()
            };
            fork_child(options, &keep, || {
                signals::reset();
                let _ = rustix::process::setsid();
                line.show(&[argv0.as_bytes(), b"keep", watch, job.as_os_str().as_bytes()]);
                match read_environment(environment) {
                    Ok(environment) => keeper::keep(watcher, request.watch_output, job.clone(), environment),
                    Err(_) => 1,
                }
            })
        });
        if let (Err(errno), Ok(watcher)) = (born, kept) {
            give_up(&job, &watcher, errno);
        }
    }
}

fn born_in(group: Option<&GroupPlan>) -> Result<Option<OwnedFd>, Errno> {
    group.map(|group| rustix::io::fcntl_dupfd_cloexec(group.open()?.dir(), 0)).transpose()
}

fn read_environment(memory: OwnedFd) -> io::Result<Vec<(OsString, OsString)>> {
    let mut bytes = Vec::new();
    std::fs::File::from(memory).read_to_end(&mut bytes)?;
    let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| {
        // As the standard library reads them: a name may begin with the sign, and is not empty.
        let sign = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
        Some((OsString::from_vec(entry[..sign].to_vec()), OsString::from_vec(entry[sign + 1..].to_vec())))
    });
    Ok(entries.collect())
}

/// No keeper was born: the job is settled as never started, and whoever watches is told why.
fn give_up(path: &Path, watcher: &OwnedFd, errno: Errno) {
    let id = path.file_name().and_then(OsStr::to_str).and_then(|name| name.parse::<JobId>().ok());
    let home = path.parent().and_then(Path::parent);
    let (Some(id), Some(home)) = (id, home) else { return };
    let Ok(Some(opened)) = crate::home::Home::open_existing(home) else { return };
    let Ok(Some(job)) = opened.job(id) else { return };
    let _ = launch::settle_failed(&job, home, watcher, &Failed::not_born(&errno.into()));
    crate::contain::remove_left(home, job.spec());
}
