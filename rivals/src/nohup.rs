//! What people type: `nohup … > log 2>&1 &`, with `timeout` for a limit and `kill` for a stop.
//!
//! A shell around the command writes its status to a file, since nobody else would know it. It is started as the leader
//! of a process group of its own, as an interactive shell does with a job; a stop is `kill` to that group, and `kill -9`
//! where anything is left of it after the grace. The shell survives the first, so that the status is not lost with it.

use crate::files;
use crate::rival::{ENOUGH, Place, in_path, kill_process, quoted, seconds, until, version};
use outlast_qualify::process::{Process, descendants};
use outlast_qualify::subject::{
    Answer, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started, State, Stdin, Subject,
    Trouble, Work,
};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) fn available(_: &Place) -> Result<(), String> {
    for name in ["nohup", "timeout", "sh"] {
        in_path(name).ok_or_else(|| format!("{name} is not in PATH"))?;
    }
    Ok(())
}

pub(crate) fn open(place: &Place) -> Answer<Arc<dyn Subject>> {
    Ok(Arc::new(Nohup { folder: place.scratch.clone(), number: AtomicU64::new(0), jobs: Mutex::default() }))
}

struct Nohup {
    folder: PathBuf,
    number: AtomicU64,
    jobs: Mutex<HashMap<Handle, Job>>,
}

#[derive(Debug, Clone)]
struct Job {
    /// The shell around the command, and the leader of its group.
    shell: Process,
    grace: Duration,
    log: PathBuf,
    status: PathBuf,
}

impl Nohup {
    fn job(&self, handle: &Handle) -> Answer<Job> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(handle).cloned().ok_or_else(|| Trouble::unobserved(format!("there is no job {handle}")))
    }
}

impl Job {
    fn said(&self) -> Said {
        // Liveness first: a shell that is gone has written its status before.
        let lives = self.shell.lives();
        match status(&self.status) {
            Some(code) => Said::ended(End::Exited { code }),
            None if lives => Said::only(State::Running),
            None => Said::only(State::Ended),
        }
    }

    fn is_group_empty(&self) -> bool {
        let group = i32::try_from(self.shell.pid).ok().and_then(Pid::from_raw);
        group.is_none_or(|group| test_kill_process_group(group) == Err(rustix::io::Errno::SRCH))
    }

    fn signal(&self, signal: Signal) -> Answer<()> {
        let group = i32::try_from(self.shell.pid).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| Trouble::unobserved("no such group"))?;
        match kill_process_group(group, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(Trouble::unobserved(errno)),
        }
    }
}

fn status(path: &Path) -> Option<i64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Subject for Nohup {
    fn describe(&self) -> Description {
        Description {
            name: "nohup".to_owned(),
            version: version(Path::new("nohup"), &["--version"]),
            reached: "`nohup` and `timeout` from a shell".to_owned(),
            boundary: Some("a process group".to_owned()),
        }
    }

    fn on_this_machine(&self) -> bool {
        true
    }

    fn scratch(&self) -> String {
        self.folder.to_string_lossy().into_owned()
    }

    fn start(&self, request: &Request) -> Answer<Started> {
        let Work::Argv(words) = &request.work else {
            return Err(Trouble::unsupported("it reports what the shell reports"));
        };
        if request.key.is_some() {
            return Err(Trouble::unsupported("no keys"));
        }
        if request.stdin == Stdin::Open {
            return Err(Trouble::unsupported("no standard input that stays open"));
        }
        if request.containment.is_some() {
            return Err(Trouble::unsupported("no containment"));
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let grace = request.grace.unwrap_or(Duration::from_secs(10));
        let log = self.folder.join(format!("{number}.log"));
        let status = self.folder.join(format!("{number}.status"));
        let file = File::create(&log).map_err(Trouble::unobserved)?;
        let errors = file.try_clone().map_err(Trouble::unobserved)?;
        let mut line = quoted(words);
        if let Some(deadline) = request.deadline {
            let limit = format!("timeout -k {} {} ", seconds(grace), seconds(deadline));
            line = [OsString::from(limit), line].into_iter().collect();
        }
        line = [OsString::from("trap : TERM; "), line].into_iter().collect();
        line.push("; echo $? > \"$0.tmp\"; mv \"$0.tmp\" \"$0\"");
        let mut child = Command::new("nohup")
            .args(["sh", "-c"])
            .arg(&line)
            .arg(&status)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(Trouble::unavailable)?;
        let shell = Process::of(child.id())
            .ok_or_else(|| Trouble::unobserved("the shell was gone before it was seen"))?;
        // Reaped by whoever started it, as an interactive shell does.
        std::thread::spawn(move || child.wait());
        let handle = Handle(number.to_string());
        let job = Job { shell, grace, log, status };
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.clone(), job);
        Ok(Started { handle, existed: false })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        Ok(self.job(handle)?.said())
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let job = self.job(handle)?;
        files::read(&job.log, from, follow, sink, &mut || job.said().state.is_final())
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let job = self.job(handle)?;
        if job.said().state.is_final() {
            return Ok(job.said());
        }
        job.signal(Signal::TERM)?;
        let over = || job.is_group_empty().then_some(());
        if until(job.grace.min(within), over).is_none() {
            job.signal(Signal::KILL)?;
            until(within.saturating_sub(job.grace), over);
        }
        Ok(job.said())
    }

    fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
        Err(Trouble::unsupported("no standard input that stays open"))
    }

    fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
        Err(Trouble::unsupported("no attempts; a pid that is used again is another's"))
    }

    fn kill_owner(&self, handle: &Handle) -> Answer<String> {
        kill_process(self.job(handle)?.shell)?;
        Ok("the shell around it".to_owned())
    }

    fn restart_owner(&self) -> Answer<String> {
        Ok("nothing comes back".to_owned())
    }

    fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
        Err(Trouble::unsupported("nothing to settle with"))
    }

    fn owners(&self, handle: &Handle) -> Answer<Vec<u32>> {
        let job = self.job(handle)?;
        // `timeout` stands between them where there is a limit.
        let is_timeout = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "timeout")
        };
        Ok([job.shell.pid]
            .into_iter()
            .chain(descendants(job.shell.pid).into_iter().filter(is_timeout))
            .collect())
    }

    fn patience(&self) -> Duration {
        ENOUGH
    }
}
