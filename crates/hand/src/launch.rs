//! Starting a keeper for a job that was just admitted.

use crate::contain::Containment;
use crate::control::{self, Say, Watch};
use crate::job::Job;
use crate::keeper::variable;
use crate::start;
use outlast_core::exit::NotStarted;
use outlast_sys::spawn::{Spawn, Stage};
use outlast_sys::unix;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
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
    /// Its process could not be made where it was to be born.
    #[error("the keeper's process could not be made")]
    NotBorn(#[source] io::Error),
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
}

/// The descriptor on which a keeper finds the watcher it was started by.
pub(crate) const WATCHER_FD: i32 = 3;

/// Starts the keeper of an admitted job: makes what is to contain the command, and has the keeper born in a group of its
/// own, as nobody's child. Whether it could start the command is said by the watch.
///
/// Where what was asked for cannot be had, the job is settled as never started, and the watch says why.
///
/// # Errors
/// [`LaunchError`].
pub fn launch(job: &Job, launch: &Launch) -> Result<Launched, LaunchError> {
    let refused = |stage: &str, source: io::Error| LaunchError::Refused { stage: stage.to_owned(), source };
    let (ours, theirs) = unix::pair().map_err(|errno| refused("making its channel", errno.into()))?;
    let home = job.path().parent().and_then(Path::parent).unwrap_or(job.path());
    let containment = match Containment::prepare(home, job.spec()) {
        Ok(containment) => containment,
        Err(missing) => {
            let failed =
                Failed { code: missing.code(), message: missing.to_string(), remedy: missing.remedy() };
            return give_up(job, home, ours, theirs, failed);
        }
    };
    control::send(ours.as_fd(), &containment.plan(), &[])
        .map_err(|errno| refused("telling it its plan", errno.into()))?;
    let born = spawn(job, launch, &containment, &theirs);
    match born {
        Ok(()) => Ok(Launched { watch: Watch::from_socket(ours) }),
        Err(LaunchError::NotBorn(source)) if containment.groups.is_some() => {
            containment.undo();
            let failed = Failed {
                code: "CONTAINMENT_UNAVAILABLE",
                message: format!("the keeper could not be born in its own cgroup: {source}"),
                remedy: "use --containment subreaper or pid_namespace, or name a delegated group in OUTLAST_CGROUP",
            };
            give_up(job, home, ours, theirs, failed)
        }
        Err(error) => {
            containment.undo();
            Err(error)
        }
    }
}

struct Failed {
    code: &'static str,
    message: String,
    remedy: &'static str,
}

/// Settles the job as never started and lets the watch say why.
fn give_up(
    job: &Job,
    home: &Path,
    ours: OwnedFd,
    theirs: OwnedFd,
    failed: Failed,
) -> Result<Launched, LaunchError> {
    let settled = crate::files::open_dir(home).and_then(|home| {
        start::never_started(home.as_fd(), job.dir(), job.spec(), NotStarted::SetUpFailed, "its launcher")
    });
    settled.map_err(|source| LaunchError::Refused {
        stage: "settling what cannot be started".to_owned(),
        source,
    })?;
    let Failed { code, message, remedy } = failed;
    let say = Say::Failed { code: code.to_owned(), message, remedy: remedy.to_owned() };
    let _ = control::send(theirs.as_fd(), &say, &[]);
    Ok(Launched { watch: Watch::from_socket(ours) })
}

fn spawn(job: &Job, launch: &Launch, containment: &Containment, theirs: &OwnedFd) -> Result<(), LaunchError> {
    let refused = |stage: &str, source: io::Error| LaunchError::Refused { stage: stage.to_owned(), source };
    let (program, prefix) = match &launch.program {
        Some(program) => (program.clone(), None),
        None => keeper_program().map_err(LaunchError::NoProgram)?,
    };
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
    if let Some(groups) = &containment.groups {
        spawn.into_cgroup(groups.keeper.dir());
    }
    // A caller that runs in a job has that job's marks; neither this keeper nor its command belongs to it.
    let own = |name: &OsString| variable::OF_A_JOB.iter().all(|mark| name.as_os_str() != *mark);
    let environment = launch.environment.iter().filter(|(name, _)| own(name)).filter_map(|(name, value)| {
        let mut entry = name.as_bytes().to_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        CString::new(entry).ok()
    });
    spawn.env(environment.collect());
    spawn.spawn_orphan().map_err(|error| match error.stage {
        Stage::Clone => LaunchError::NotBorn(error.errno.into()),
        stage => refused(&format!("{stage:?}"), error.errno.into()),
    })?;
    Ok(())
}

/// The keeper runs from the small program that stands beside this one, else from this one: a keeper is kept for as
/// long as its job, and what it has of a large program's writable data is memory that every job pays.
fn keeper_program() -> io::Result<(PathBuf, Option<&'static str>)> {
    let own = std::env::current_exe()?;
    let small = own.with_file_name("outlast-hand");
    if own != small && rustix::fs::access(&small, rustix::fs::Access::EXEC_OK).is_ok() {
        return Ok((small, None));
    }
    if own == small {
        return Ok((PathBuf::from("/proc/self/exe"), None));
    }
    if own.file_name().is_some_and(|name| name == "outlast") {
        // `/proc/self/exe` still works when the file has been replaced since.
        return Ok((PathBuf::from("/proc/self/exe"), Some("__keeper")));
    }
    // Any other program would take the words for its own.
    Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no {}", small.display())))
}
