//! Starting a keeper for a job that was just admitted.

use crate::contain::{Containment, GroupPlan};
use crate::control::{self, Say, Watch};
use crate::job::Job;
use crate::keeper::{Go, variable};
use crate::nest::Nest;
use crate::start;
use outlast_core::exit::NotStarted;
use outlast_sys::spawn::{Spawn, Stage};
use outlast_sys::unix;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    /// Where the keeper is to come from. Where there is none, or it is gone, `program` is started.
    pub nest: Option<Arc<Nest>>,
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

/// A keeper that prepares itself and waits for leave to start the command. Dropped, it goes and has started nothing.
#[derive(Debug)]
#[must_use = "without leave the keeper starts nothing"]
pub struct Held {
    socket: OwnedFd,
}

impl Held {
    /// Gives it leave.
    #[must_use]
    pub fn go(self) -> Launched {
        // One that is gone by now is noticed on the watch, as it would be a moment later.
        let _ = control::send(self.socket.as_fd(), &Go::Go, &[]);
        Launched { watch: Watch::from_socket(self.socket) }
    }
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
    Ok(hold(job, launch)?.go())
}

/// [`launch`] without leave to start the command: what makes the admission durable can go on meanwhile.
///
/// # Errors
/// [`LaunchError`].
pub fn hold(job: &Job, launch: &Launch) -> Result<Held, LaunchError> {
    let (ours, theirs) = unix::pair().map_err(|errno| refused("making its channel", errno.into()))?;
    let home = job.path().parent().and_then(Path::parent).unwrap_or(job.path());
    let containment = match Containment::prepare(home, job.spec()) {
        Ok(containment) => containment,
        Err(missing) => {
            let failed =
                Failed { code: missing.code(), message: missing.to_string(), remedy: missing.remedy() };
            settle_failed(job, home, &theirs, &failed)?;
            return Ok(Held { socket: ours });
        }
    };
    control::send(ours.as_fd(), &containment.plan(), &[])
        .map_err(|errno| refused("telling it its plan", errno.into()))?;
    match begin(job, launch, &containment, &theirs) {
        Ok(()) => Ok(Held { socket: ours }),
        Err(LaunchError::NotBorn(source)) if containment.groups.is_some() => {
            containment.undo();
            settle_failed(job, home, &theirs, &Failed::not_born(&source))?;
            Ok(Held { socket: ours })
        }
        Err(error) => {
            containment.undo();
            Err(error)
        }
    }
}

/// Why a job cannot be started, as its watch says it.
pub(crate) struct Failed {
    code: &'static str,
    message: String,
    remedy: &'static str,
}

impl Failed {
    pub(crate) fn not_born(source: &io::Error) -> Failed {
        Failed {
            code: "CONTAINMENT_UNAVAILABLE",
            message: format!("the keeper could not be born in its own cgroup: {source}"),
            remedy: "use --containment subreaper or pid_namespace, or name a delegated group in OUTLAST_CGROUP",
        }
    }
}

/// Settles the job as never started and lets the watch say why.
pub(crate) fn settle_failed(
    job: &Job,
    home: &Path,
    watcher: &OwnedFd,
    failed: &Failed,
) -> Result<(), LaunchError> {
    let settled = crate::files::open_dir(home).and_then(|home| {
        start::never_started(home.as_fd(), job.dir(), job.spec(), NotStarted::SetUpFailed, "its launcher")
    });
    let settled = settled.map_err(|source| refused("settling what cannot be started", source))?;
    if settled != Some(NotStarted::SetUpFailed) {
        // A stop was first, or a settler: the receipt says so.
        return Ok(());
    }
    let Failed { code, message, remedy } = failed;
    let (code, remedy) = ((*code).to_owned(), (*remedy).to_owned());
    let _ = control::send(watcher.as_fd(), &Say::Failed { code, message: message.clone(), remedy }, &[]);
    Ok(())
}

/// Has the keeper's process begin: out of the nest, else of its program.
fn begin(job: &Job, launch: &Launch, containment: &Containment, theirs: &OwnedFd) -> Result<(), LaunchError> {
    let environment = environment(launch);
    if let Some(nest) = &launch.nest {
        let group = containment.groups.as_ref().map(|groups| GroupPlan::of(&groups.keeper));
        if nest.ask(job, launch.watch_output, group, theirs.as_fd(), &environment).is_ok() {
            return Ok(());
        }
    }
    spawn(job, launch, containment, theirs, environment)
}

/// What the command inherits. A caller that runs in a job has that job's marks; neither this keeper nor its command
/// belongs to it.
fn environment(launch: &Launch) -> Vec<CString> {
    let own = |name: &OsString| variable::OF_A_JOB.iter().all(|mark| name.as_os_str() != *mark);
    let environment = launch.environment.iter().filter(|(name, _)| own(name)).filter_map(|(name, value)| {
        let mut entry = name.as_bytes().to_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        CString::new(entry).ok()
    });
    environment.collect()
}

fn spawn(
    job: &Job,
    launch: &Launch,
    containment: &Containment,
    theirs: &OwnedFd,
    environment: Vec<CString>,
) -> Result<(), LaunchError> {
    let (program, prefix) = program(launch.program.as_deref())?;
    let null = null()?;
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
    spawn.env(environment);
    spawn.spawn_orphan().map_err(|error| match error.stage {
        Stage::Clone => LaunchError::NotBorn(error.errno.into()),
        stage => refused(&format!("{stage:?}"), error.errno.into()),
    })?;
    Ok(())
}

fn refused(stage: &str, source: io::Error) -> LaunchError {
    LaunchError::Refused { stage: stage.to_owned(), source }
}

pub(crate) fn text(bytes: Vec<u8>) -> Result<CString, LaunchError> {
    CString::new(bytes).map_err(|error| refused("its arguments", io::Error::other(error)))
}

pub(crate) fn null() -> Result<OwnedFd, LaunchError> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
        .map_err(|errno| refused("opening /dev/null", errno.into()))
}

/// The keeper's program, and the word that makes it one where it is larger.
pub(crate) fn program(asked: Option<&Path>) -> Result<(PathBuf, Option<&'static str>), LaunchError> {
    match asked {
        Some(program) => Ok((program.to_owned(), None)),
        None => keeper_program().map_err(LaunchError::NoProgram),
    }
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
