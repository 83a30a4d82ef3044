//! What the command's process gets: program, arguments, environment, descriptors, identity.

use crate::job::{name, work_dir};
use outlast_core::bytes::Bytes;
use outlast_core::spec::{Capture, Command, Spec};
use outlast_sys::spawn::{Credentials, Limit, Spawn, candidates};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Variables that tell a command about itself.
pub(crate) mod variable {
    /// The job's id; also the mark by which a person's scan of `/proc` finds what is left of a job.
    pub(crate) const JOB_ID: &str = "OUTLAST_JOB_ID";
    /// Where progress may be reported.
    pub(crate) const PROGRESS: &str = "OUTLAST_PROGRESS";
    /// The folder that outlives the attempts of one call.
    pub(crate) const CHECKPOINT: &str = "OUTLAST_CHECKPOINT";
    /// Where the shell notes the statuses of its last pipeline.
    pub(crate) const STAGES: &str = "OUTLAST_STAGES";
    /// Those that speak of one job, and of no other that its command starts.
    pub(crate) const OF_A_JOB: [&str; 4] = [JOB_ID, PROGRESS, CHECKPOINT, STAGES];
    /// The start file of a bash that is to note them.
    pub(crate) const BASH_ENV: &str = "BASH_ENV";
}

/// A command that is ready to be started, its files made.
pub(super) struct Prepared {
    argv: Vec<CString>,
    environment: Vec<CString>,
    programs: Vec<CString>,
    cwd: CString,
}

impl Prepared {
    /// Makes the files that the command needs beside it, and puts its arguments and environment together.
    pub(super) fn new(
        job_path: &Path,
        spec: &Spec,
        inherited: &[(OsString, OsString)],
    ) -> io::Result<Prepared> {
        let work = work_dir(job_path, spec);
        make_work_dir(&work, job_path, spec)?;
        let mut environment: BTreeMap<OsString, OsString> = inherited.iter().cloned().collect();
        for (name, value) in &spec.work.env {
            environment.insert(name.into(), OsString::from_vec(value.0.clone()));
        }
        environment.insert(variable::JOB_ID.into(), spec.job_id.to_string().into());
        environment.insert(variable::PROGRESS.into(), work.join(name::PROGRESS).into());
        if spec.work.resume {
            let checkpoint = make_checkpoint_dir(job_path, spec)?;
            environment.insert(variable::CHECKPOINT.into(), checkpoint.into());
        } else {
            environment.remove(OsStr::new(variable::CHECKPOINT));
        }
        let argv = arguments(&work, spec, &mut environment)?;
        let search = environment
            .get(OsStr::new("PATH"))
            .cloned()
            .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let first = argv.first().cloned().unwrap_or_default();
        let programs = candidates(OsStr::from_bytes(first.as_bytes()), &search);
        let environment = environment
            .into_iter()
            .map(|(name, value)| {
                let mut entry = name.into_vec();
                entry.push(b'=');
                entry.extend_from_slice(value.as_bytes());
                c_string(entry)
            })
            .collect::<io::Result<_>>()?;
        Ok(Prepared { argv, environment, programs, cwd: c_string(spec.work.cwd.0.clone())? })
    }

    /// Describes its start, with these descriptors as its standard streams.
    pub(super) fn spawn<'fd>(
        &self,
        spec: &Spec,
        streams: &'fd Streams,
        oom_score: Option<i16>,
    ) -> Spawn<'fd> {
        let name = self.argv.first().cloned().unwrap_or_default();
        let mut spawn = Spawn::search(self.programs.clone(), name);
        spawn.argv(self.argv.clone()).env(self.environment.clone()).cwd(self.cwd.clone());
        spawn.fd(streams.stdin.as_fd(), 0).fd(streams.stdout.as_fd(), 1).fd(streams.stderr(), 2);
        if spec.work.tty {
            spawn.controlling_terminal();
        } else {
            spawn.new_session();
        }
        if let Some(score) = oom_score {
            spawn.oom_score_adj(score);
        }
        if let Some(user) = spec.work.user {
            spawn.credentials(Credentials { uid: user.uid, gid: user.gid, groups: Vec::new() });
            spawn.drop_capabilities().no_new_privs().limit(Limit::Core, Some(0));
        }
        spawn
    }
}

/// The command's ends of its standard streams.
pub(super) struct Streams {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    /// Absent where both streams are one.
    pub(super) stderr: Option<OwnedFd>,
}

impl Streams {
    fn stderr(&self) -> BorrowedFd<'_> {
        self.stderr.as_ref().unwrap_or(&self.stdout).as_fd()
    }
}

fn c_string(bytes: Vec<u8>) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument or variable holds a NUL byte"))
}

fn arguments(
    work: &Path,
    spec: &Spec,
    environment: &mut BTreeMap<OsString, OsString>,
) -> io::Result<Vec<CString>> {
    let write = |name: &str, text: &Bytes| -> io::Result<PathBuf> {
        let path = work.join(name);
        std::fs::write(&path, &text.0)?;
        give_away(&path, spec)?;
        Ok(path)
    };
    let stages = work.join(name::STAGES);
    let (mut words, mut script): (Vec<Vec<u8>>, Option<&Bytes>) = match &spec.work.command {
        Command::Argv(words) => (words.iter().map(|word| word.0.clone()).collect(), None),
        Command::Script { shell, text } => (vec![shell.clone().into_bytes()], Some(text)),
    };
    match &spec.manner.capture {
        Capture::NotAPipeline | Capture::NotCaptured { .. } => {}
        Capture::BashEnv { text, .. } => {
            // bash expands the value before it reads the file: a path that would not stand for itself is left out, and
            // the stages are then not captured.
            let plain = |byte: &u8| !b"$`\\\"'".contains(byte);
            if work.as_os_str().as_bytes().iter().all(plain) {
                let start_file = write(name::BASH_ENV, text)?;
                environment.insert(variable::BASH_ENV.into(), start_file.into());
                environment.insert(variable::STAGES.into(), stages.into());
            }
        }
        Capture::Rewritten { text, argument, .. } => {
            match argument {
                Some(place) => *words.get_mut(*place).ok_or(io::ErrorKind::InvalidData)? = text.0.clone(),
                None => script = Some(text),
            }
            environment.insert(variable::STAGES.into(), stages.into());
        }
    }
    if let Some(text) = script {
        words.push(write(name::SCRIPT, text)?.into_os_string().into_vec());
    }
    words.into_iter().map(c_string).collect()
}

/// Makes the folder for the files that a command of another user writes. The way there is opened to it, the rest of
/// the home is not.
fn make_work_dir(work: &Path, job_path: &Path, spec: &Spec) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    if spec.work.user.is_none() {
        return Ok(());
    }
    let all = work.parent().unwrap_or(work);
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(all)?;
    if let Some(home) = job_path.parent().and_then(Path::parent) {
        std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o711))?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(work) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    give_away(work, spec)
}

fn make_checkpoint_dir(job_path: &Path, spec: &Spec) -> io::Result<PathBuf> {
    let home = job_path.parent().and_then(Path::parent).unwrap_or(job_path);
    let checkpoints = home.join("checkpoints");
    let path = checkpoints.join(spec.job_id.call_name());
    if spec.work.user.is_some() {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&checkpoints, std::fs::Permissions::from_mode(0o711))?;
    }
    match std::fs::create_dir(&path) {
        Ok(()) => {
            give_away(&path, spec)?;
            rustix::fs::fsync(crate::files::open_dir(&checkpoints)?)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    Ok(path)
}

fn give_away(path: &Path, spec: &Spec) -> io::Result<()> {
    match spec.work.user {
        Some(user) => std::os::unix::fs::lchown(path, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}
