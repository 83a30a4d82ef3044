//! What is there before the command exists: lock, pipes, scribe, socket, start mark. And the start itself.

use super::{InitHandle, KEEPER_OOM_SCORE, Running, remove_outer_later};
use crate::control::{Say, send};
use crate::job::{self, name};
use crate::keeper::command::{Prepared, Streams};
use crate::keeper::init::{self, Init};
use crate::keeper::scribe::{self, Scribe};
use crate::keeper::{Ends, Keeper, WARDEN_NAME, stage_text};
use crate::{clock, files};
use outlast_core::bytes::Bytes;
use outlast_core::evidence::ExecRefusedAndReaped;
use outlast_core::exit::Exit;
use outlast_core::ledger::{KeeperMark, LeafMark, Record, StartMark};
use outlast_core::spec::{Spec, Stdin};
use outlast_core::time::Mono;
use outlast_scrub::remainder::Remainder;
use outlast_scrub::secrets::{Masker, Secrets};
use outlast_sys::signals::SignalFd;
use outlast_sys::spawn::Stage;
use outlast_sys::unix;
use outlast_sys::{Errno, Pid, Signal, fork, ns, pidfd, prctl, pty};
use rustix::event::EventfdFlags;
use rustix::fs::{Access, AtFlags, FlockOperation};
use rustix::pipe::PipeFlags;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What the warden has before the command exists.
pub(super) struct Starting<'k> {
    pub(super) keeper: &'k Keeper,
    pub(super) signals: SignalFd,
    pub(super) lock: OwnedFd,
    pub(super) listener: OwnedFd,
    pub(super) ends: Ends,
    pub(super) streams: Streams,
    pub(super) input: Option<OwnedFd>,
    pub(super) scribe: ScribeHandle,
    pub(super) prepared: Prepared,
    pub(super) oom_score: Option<i16>,
}

pub(super) struct ScribeHandle {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) link: OwnedFd,
}

impl<'k> Starting<'k> {
    pub(super) fn new(keeper: &'k Keeper) -> io::Result<Starting<'k>> {
        let _ = prctl::set_name(WARDEN_NAME);
        prctl::set_subreaper()?;
        let signals = SignalFd::new(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE])?;
        let oom_score = protect_from_oom();
        let pipes = Pipes::open(keeper)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ends = Ends { stdout: pipes.stdout, stderr: pipes.stderr, wake };
        // First of all: the scribe of a keeper that waits here must not hold what the other's scribe waits for.
        let lock = take_lock(keeper)?;
        let scribe = fork_scribe(keeper, &ends, false)?;
        let _ = rustix::fs::unlinkat(&keeper.job_dir, name::CONTROL, AtFlags::empty());
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let listener = unix::listen(keeper.job_dir.as_fd(), OsStr::new(name::CONTROL), mode)?;
        let prepared = Prepared::new(&keeper.job_path, &keeper.spec, &keeper.environment)?;
        Ok(Starting {
            keeper,
            signals,
            lock,
            listener,
            ends,
            streams: pipes.command,
            input: pipes.input,
            scribe,
            prepared,
            oom_score,
        })
    }

    pub(super) fn go(self) -> i32 {
        let keeper = self.keeper;
        let may = keeper.has_leave();
        let started = clock::mono_now();
        match if may { self.take_start_mark(started) } else { Ok(false) } {
            Ok(true) => {}
            Ok(false) => {
                // Somebody settled it, another keeper had it, or its launcher gave it up: nothing is ours to start.
                let _ = rustix::fs::unlinkat(&keeper.job_dir, name::CONTROL, AtFlags::empty());
                let id = keeper.spec.job_id.to_string();
                let _ = rustix::fs::unlinkat(&keeper.open, id.as_str(), AtFlags::empty());
                keeper.containment.take_down();
                remove_outer_later(keeper);
                return 0;
            }
            Err(error) => {
                let say = Say::Failed {
                    code: "STORAGE_FAILED".to_owned(),
                    message: format!("the start mark could not be written: {error}"),
                    remedy: "free space on the disk that holds OUTLAST_HOME".to_owned(),
                };
                let _ = send(keeper.watcher.as_fd(), &say, &[]);
                keeper.containment.take_down();
                remove_outer_later(keeper);
                return 1;
            }
        }
        let mut running = Running::new(self, started);
        running.main_loop();
        running.take_down();
        0
    }

    /// Creates the start mark; `false` where somebody has it.
    pub(super) fn take_start_mark(&self, started: Mono) -> io::Result<bool> {
        let keeper = self.keeper;
        let own = rustix::process::getpid();
        let containment = &keeper.containment;
        let leaf = containment.groups.as_ref().map(|groups| LeafMark {
            place: Bytes(os_bytes(&groups.place)),
            name: groups.leaf.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            id: groups.leaf.id(),
        });
        let mark = StartMark::Keeper(KeeperMark {
            warden_pid: raw(own),
            warden_start_time: pidfd::start_time(own).unwrap_or(0),
            boot_id: job::boot_id()?,
            pid_namespace: job::pid_namespace(),
            at: clock::unix_now(),
            mono: started,
            boundary: containment.boundary,
            isolation: containment.isolation,
            leaf,
            limit_groups: containment
                .limit_groups
                .iter()
                .map(|limit| Bytes(os_bytes(limit.group.path())))
                .collect(),
        });
        crate::start::take_start_mark(keeper.job_dir.as_fd(), &mark)
    }
}

pub(super) fn os_bytes(path: &std::path::Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

pub(super) fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Lowers this process's chance of being chosen when memory runs out, where that is allowed, and returns what the
/// command is to have.
pub(super) fn protect_from_oom() -> Option<i16> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let path = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    std::fs::write(path, KEEPER_OOM_SCORE).ok()?;
    Some(before)
}

pub(super) fn take_lock(keeper: &Keeper) -> io::Result<OwnedFd> {
    let id = keeper.spec.job_id.to_string();
    loop {
        let lock = files::open_lock_file(keeper.open.as_fd(), &id)?;
        // A look at our liveness holds it shared for a moment, a settler for longer.
        let ours = files::try_lock(&lock, FlockOperation::NonBlockingLockExclusive)?
            && files::still_named(keeper.open.as_fd(), &id, &lock);
        if rustix::fs::accessat(&keeper.job_dir, name::START, Access::EXISTS, AtFlags::empty()).is_ok() {
            if ours {
                let _ = rustix::fs::unlinkat(&keeper.open, id.as_str(), AtFlags::empty());
            }
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if ours {
            return Ok(lock);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The pipes, or the terminal, between the command and its keeper.
pub(super) struct Pipes {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) command: Streams,
    pub(super) input: Option<OwnedFd>,
}

impl Pipes {
    pub(super) fn open(keeper: &Keeper) -> io::Result<Pipes> {
        let spec = &keeper.spec;
        if spec.work.tty {
            let (rows, cols) = spec.manner.window.unwrap_or((24, 80));
            let pair = pty::open(pty::Size { rows, cols })?;
            if let Some(user) = spec.work.user {
                give(&pair.slave, user.uid, user.gid)?;
            }
            rustix::io::ioctl_fionbio(&pair.master, true)?;
            let input = pair.master.try_clone()?;
            let command = Streams { stdin: pair.slave.try_clone()?, stdout: pair.slave, stderr: None };
            return Ok(Pipes { stdout: pair.master, stderr: None, command, input: Some(input) });
        }
        let (stdout, stdout_write) = output_pipe(spec)?;
        let (stderr, stderr_write) = match spec.work.merge {
            true => (None, None),
            false => {
                let (read, write) = output_pipe(spec)?;
                (Some(read), Some(write))
            }
        };
        let (stdin, input) = match &spec.work.stdin {
            Stdin::Null => (open_read(rustix::fs::CWD, "/dev/null")?, None),
            Stdin::Spooled { .. } => (open_read(keeper.job_dir.as_fd(), name::STDIN)?, None),
            Stdin::Open => {
                let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                if let Some(user) = spec.work.user {
                    give(&read, user.uid, user.gid)?;
                }
                (read, Some(write))
            }
        };
        let command = Streams { stdin, stdout: stdout_write, stderr: stderr_write };
        Ok(Pipes { stdout, stderr, command, input })
    }
}

/// A pipe whose reading end never blocks, and that belongs to the command's user, so that it can open `/dev/stdout`
/// again.
pub(super) fn output_pipe(spec: &Spec) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // The flag is the reading end's own; the command's end blocks as programs expect.
    rustix::io::ioctl_fionbio(&read, true)?;
    if let Some(user) = spec.work.user {
        give(&write, user.uid, user.gid)?;
    }
    Ok((read, write))
}

pub(super) fn give(fd: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
    Ok(rustix::fs::fchown(fd, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))?)
}

pub(super) fn open_read(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty())?)
}

pub(super) fn fork_scribe(keeper: &Keeper, ends: &Ends, successor: bool) -> io::Result<ScribeHandle> {
    let (ours, theirs) = unix::pair()?;
    let mut keep = vec![
        keeper.job_dir.as_raw_fd(),
        keeper.home.as_raw_fd(),
        theirs.as_raw_fd(),
        ends.wake.as_raw_fd(),
        ends.stdout.as_raw_fd(),
    ];
    keep.extend(ends.stderr.iter().map(AsRawFd::as_raw_fd));
    // Without an exit signal it is invisible to plain waits: ECHILD means that the command's tree is reaped.
    let (pid, pidfd) = fork::fork_child(fork::ForkOptions::default(), &keep, || {
        scribe::run(Scribe {
            job_path: &keeper.job_path,
            job_dir: keeper.job_dir.as_fd(),
            home: keeper.home.as_fd(),
            spec: &keeper.spec,
            ends,
            link: theirs,
            successor,
            maskers: maskers(keeper),
            remainders: remainders(keeper, successor),
        })
    })?;
    Ok(ScribeHandle { pid, pidfd, link: ours })
}

/// Masks for the declared secrets, one for each stream. Their values are in the environment that this process was
/// given, and nowhere at rest.
pub(super) fn maskers(keeper: &Keeper) -> [Masker; 2] {
    // Admission has refused values that cannot be masked.
    let secrets = Secrets::new(secret_values(keeper)).unwrap_or_else(|_| Secrets::none());
    [secrets.masker(), secrets.masker()]
}

/// For a scribe that takes over: the lost one may have read, and not written, the beginning of a secret.
fn remainders(keeper: &Keeper, successor: bool) -> [Remainder; 2] {
    if !successor {
        return [Remainder::default(), Remainder::default()];
    }
    let values: Vec<Vec<u8>> = secret_values(keeper).into_iter().map(|(_, value)| value).collect();
    let remainder = Remainder::new(&values);
    [remainder.clone(), remainder]
}

fn secret_values(keeper: &Keeper) -> Vec<(String, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    let names = &keeper.spec.work.secrets;
    let all = keeper.environment.iter();
    let all = all.filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value.as_bytes().to_vec())));
    all.filter(|(name, _)| names.contains_key(name)).collect()
}

impl Running<'_> {
    pub(super) fn start(&mut self, prepared: &Prepared, streams: Streams, oom_score: Option<i16>) {
        let keeper = self.keeper;
        let limits = keeper.containment.limit_groups.iter();
        let procs: Vec<OwnedFd> = match limits.map(|limit| limit.group.open_procs()).collect() {
            Ok(procs) => procs,
            // A limit that was asked for is not left out.
            Err(errno) => return self.never_ran(Stage::Cgroup, errno),
        };
        let mut spawn = prepared.spawn(&keeper.spec, &streams, oom_score);
        if let Some(leaf) = keeper.containment.leaf() {
            spawn.into_cgroup(leaf.dir());
        }
        for group in &procs {
            spawn.join(group.as_fd());
        }
        let spawned = spawn.spawn();
        drop(spawn);
        // From here on the writing ends are the command's alone: their end-of-file tells that all of it has let go.
        drop(streams);
        let _ = prctl::set_dumpable(false);
        match spawned {
            Ok(spawned) => {
                self.leader = Some(spawned.pid);
                self.began(spawned.pid, None);
            }
            Err(error) => self.never_ran(error.stage, error.errno),
        }
    }

    pub(super) fn start_in_namespace(
        &mut self,
        prepared: &Prepared,
        streams: Streams,
        oom_score: Option<i16>,
    ) {
        let keeper = self.keeper;
        let privileged = rustix::process::geteuid().is_root();
        let limits = keeper.containment.limit_groups.iter();
        let join: Vec<OwnedFd> = match limits.map(|limit| limit.group.open_procs()).collect() {
            Ok(join) => join,
            Err(errno) => return self.never_ran(Stage::Cgroup, errno),
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let made = unix::pair().and_then(|(ours, theirs)| {
            let options = fork::ForkOptions {
                exit_signal: Some(Signal::CHILD),
                new_pid_ns: true,
                new_mount_ns: true,
                new_user_ns: !privileged,
                into_cgroup: None,
            };
            let init = Init {
                prepared,
                spec: &keeper.spec,
                streams,
                link: theirs,
                join,
                wait_for_maps: !privileged,
                oom_score,
            };
            let keep = init.descriptors();
            // Here, what the stub was given is dropped with the closure: the pipes' write ends are the command's alone.
            let (pid, pidfd) = fork::fork_child(options, &keep, move || init::run(init))?;
            Ok((ours, pid, pidfd))
        });
        match made {
            Ok((ours, pid, pidfd)) => {
                if !privileged {
                    let _ = ns::write_identity_maps(ns::Who::Child(pid), uid, gid);
                    let _ = unix::send(ours.as_fd(), init::MAPS_STAND);
                }
                let _ = prctl::set_dumpable(false);
                let namespace =
                    rustix::fs::stat(format!("/proc/{}/ns/pid", raw(pid))).map_or(0, |stat| stat.st_ino);
                self.init = Some(InitHandle { pid, pidfd, link: ours, namespace, reaped: false });
                self.began(pid, Some(namespace));
            }
            Err(errno) => self.never_ran(Stage::Clone, errno),
        }
    }

    pub(super) fn began(&mut self, pid: Pid, namespace: Option<u64>) {
        let at = clock::unix_now();
        self.started_at = Some(at);
        let start_time = pidfd::start_time(pid).unwrap_or(0);
        self.note(Record::Started { at, pid: raw(pid), start_time, namespace });
        if self.init.is_none() {
            self.tell_watchers(&Say::Started);
        }
    }

    /// The program was not executed. What was made for it has been reaped.
    pub(super) fn never_ran(&mut self, stage: Stage, errno: Errno) {
        let about_the_command = matches!(stage, Stage::Exec | Stage::Chdir | Stage::Request);
        let stage = stage_text(stage);
        if !about_the_command {
            let say = Say::Failed {
                code: "SET_UP_FAILED".to_owned(),
                message: format!("the command's process could not be set up ({stage}): {errno}"),
                remedy: "`outlast doctor` shows what this machine offers".to_owned(),
            };
            self.tell_watchers(&say);
        }
        self.exec_refused(Exit::ExecFailed { errno: errno.raw_os_error(), stage });
    }

    pub(super) fn exec_refused(&mut self, exit: Exit) {
        self.refused = Some(ExecRefusedAndReaped);
        self.leader_exited(exit);
    }
}
