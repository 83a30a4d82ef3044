//! Starting a keeper for a job that was just admitted.

use crate::control::Watch;
use crate::job::Job;
use outlast_sys::spawn::{Spawn, Spawned};
use outlast_sys::unix;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use thiserror::Error;

/// How a keeper is started.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// Tell the watcher of output, too.
    pub watch_output: bool,
    /// The keeper's program. `None`: the small one beside this program, else this program itself.
    pub program: Option<PathBuf>,
    /// The environment the command inherits. It is passed on in memory and written nowhere.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why no keeper was started. The job is admitted and will be settled as never started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// No program to run as keeper.
    #[error("the keeper's program cannot be found")]
    NoProgram(#[source] io::Error),
    /// The system refused.
    #[error("the keeper could not be started ({stage})")]
    Refused {
        /// What was being done.
        stage: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A keeper that has been started.
#[derive(Debug)]
pub struct Launched {
    /// Tells what happens, from the beginning.
    pub watch: Watch,
    /// The keeper's first process, which ends as soon as the warden is on its own.
    pub first: Spawned,
}

/// The descriptor on which a keeper finds the watcher it was started by.
pub(crate) const WATCHER_FD: i32 = 3;

/// Starts the keeper of an admitted job. Whether it could start the command is said by the watch.
///
/// # Errors
/// [`LaunchError`].
pub fn launch(job: &Job, launch: &Launch) -> Result<Launched, LaunchError> {
    let refused = |stage: &str, source: io::Error| LaunchError::Refused { stage: stage.to_owned(), source };
    let (program, prefix) = match &launch.program {
        Some(program) => (program.clone(), None),
        None => keeper_program().map_err(LaunchError::NoProgram)?,
    };
    let (ours, theirs) = unix::pair().map_err(|errno| refused("making its channel", errno.into()))?;
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|errno| refused("opening /dev/null", errno.into()))?;
    let text = |bytes: Vec<u8>| {
        CString::new(bytes).map_err(|error| refused("its arguments", io::Error::other(error)))
    };

    let mut argv = vec![text(program.clone().into_os_string().into_vec())?];
    argv.extend(prefix.map(|word| text(word.as_bytes().to_vec())).transpose()?);
    argv.push(text(b"keep".to_vec())?);
    argv.push(text(if launch.watch_output { b"output".to_vec() } else { b"quiet".to_vec() })?);
    argv.push(text(job.path().as_os_str().as_bytes().to_vec())?);

    let mut spawn = Spawn::new(text(program.into_os_string().into_vec())?);
    spawn.argv(argv).new_session().fd(theirs.as_fd(), WATCHER_FD);
    for target in 0..3 {
        spawn.fd(null.as_fd(), target);
    }
    let environment = launch.environment.iter().filter_map(|(name, value)| {
        let mut entry = name.as_bytes().to_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        CString::new(entry).ok()
    });
    spawn.env(environment.collect());
    let first = spawn.spawn().map_err(|error| refused(&format!("{:?}", error.stage), error.errno.into()))?;
    Ok(Launched { watch: Watch::from_socket(ours), first })
}

/// The keeper runs from the small program that stands beside this one, else from this one: a keeper is kept for as
/// long as its job, and what it has of a large program's writable data is memory that every job pays.
fn keeper_program() -> io::Result<(PathBuf, Option<&'static str>)> {
    let own = std::env::current_exe()?;
    let small = own.with_file_name("outlast-hand");
    if own != small && rustix::fs::access(&small, rustix::fs::Access::EXEC_OK).is_ok() {
        return Ok((small, None));
    }
    // `/proc/self/exe` still works when the file has been replaced since.
    Ok((PathBuf::from("/proc/self/exe"), (own != small).then_some("__keeper")))
}
