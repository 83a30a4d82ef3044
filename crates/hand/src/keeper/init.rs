//! Process 1 of a job's PID namespace: a stub of ours that starts the command and reaps, and nothing else.
//!
//! The command itself must not be process 1, where it would survive its own TERM and its own abort. The stub ends when
//! nothing is left to reap; when the warden kills it, the kernel ends everything in the namespace first.

use super::command::Prepared;
use super::command::Streams;
use super::{stage_text, wire_exit};
use outlast_core::exit::Exit;
use outlast_core::spec::Spec;
use outlast_sys::unix::{self, Received};
use outlast_sys::wait::{WaitOutcome, wait_any};
use outlast_sys::{Pid, Signal, ns, prctl, signals};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// From the stub to the warden.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromInit {
    /// The command runs.
    Started,
    /// It could not be executed.
    ExecFailed { errno: i32, stage: String },
    /// The namespace could not be set up.
    SetUpFailed { why: String },
    /// The command's own process ended.
    Exited { exit: Exit },
}

/// From the warden to the stub: one byte.
pub(super) const MAPS_STAND: &[u8] = b"m";
/// TERM, then CONT, to everything in the namespace.
pub(super) const TERM_ALL: &[u8] = b"t";

/// KILL to everything in the namespace but the stub, which then reaps it and tells how the command ended.
pub(super) const KILL_ALL: &[u8] = b"k";

/// What the stub needs.
pub(super) struct Init<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) spec: &'a Spec,
    pub(super) streams: Streams,
    pub(super) link: OwnedFd,
    pub(super) join: Vec<OwnedFd>,
    pub(super) wait_for_maps: bool,
    pub(super) oom_score: Option<i16>,
}

impl Init<'_> {
    /// The descriptors it is given.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let streams = &self.streams;
        let mut keep = vec![self.link.as_raw_fd(), streams.stdin.as_raw_fd(), streams.stdout.as_raw_fd()];
        keep.extend(streams.stderr.iter().map(AsRawFd::as_raw_fd));
        keep.extend(self.join.iter().map(AsRawFd::as_raw_fd));
        keep
    }
}

/// The stub's whole life. Returns its exit status.
pub(super) fn run(init: Init<'_>) -> i32 {
    let _ = prctl::set_name(crate::contain::INIT_NAME);
    i32::from(supervise(init).is_err())
}

fn tell(link: BorrowedFd<'_>, word: &FromInit) {
    if let Ok(text) = serde_json::to_vec(word) {
        let _ = unix::send(link, &text);
    }
}

fn supervise(init: Init<'_>) -> Result<(), outlast_sys::Errno> {
    let Init { prepared, spec, streams, link, join, wait_for_maps, oom_score } = init;
    let mut buffer = [0; 8];
    if wait_for_maps {
        let _ = poll(&mut [PollFd::new(&link, PollFlags::IN)], None)?;
        let _ = unix::recv(link.as_fd(), &mut buffer)?;
    }
    if let Err(errno) = ns::private_mounts().and_then(|()| ns::mount_proc()) {
        tell(
            link.as_fd(),
            &FromInit::SetUpFailed { why: format!("/proc cannot be mounted in the namespace: {errno}") },
        );
        return Err(errno);
    }
    let child_ended = signals::SignalFd::new(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP])?;
    let mut spawn = prepared.spawn(spec, &streams, oom_score);
    for group in &join {
        spawn.join(group.as_fd());
    }
    let leader = match spawn.spawn() {
        Ok(spawned) => spawned.pid,
        Err(error) => {
            let stage = stage_text(error.stage);
            tell(link.as_fd(), &FromInit::ExecFailed { errno: error.errno.raw_os_error(), stage });
            return Ok(());
        }
    };
    drop(spawn);
    // The pipes' write ends are the command's alone from here on.
    drop(streams);
    drop(join);
    tell(link.as_fd(), &FromInit::Started);
    let mut warden_lives = true;
    loop {
        loop {
            match wait_any(true)? {
                WaitOutcome::Reaped { pid, status, .. } if pid == leader => {
                    tell(link.as_fd(), &FromInit::Exited { exit: wire_exit(status) });
                }
                WaitOutcome::Reaped { .. } => {}
                WaitOutcome::NoneReady => break,
                WaitOutcome::NoChildren => return Ok(()),
            }
        }
        let mut ready = vec![PollFd::new(&child_ended, PollFlags::IN)];
        if warden_lives {
            ready.push(PollFd::new(&link, PollFlags::IN));
        }
        match poll(&mut ready, None) {
            Ok(_) | Err(outlast_sys::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        drop(ready);
        while child_ended.read()?.is_some() {}
        while warden_lives {
            match unix::recv(link.as_fd(), &mut buffer) {
                Ok(Received::Message(length)) if &buffer[..length] == TERM_ALL => term_all(),
                Ok(Received::Message(length)) if &buffer[..length] == KILL_ALL => {
                    let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
                }
                Ok(Received::Message(_) | Received::TooLong(_)) => {}
                Ok(Received::Nothing) => break,
                Ok(Received::Closed) | Err(_) => warden_lives = false,
            }
        }
    }
}

/// TERM, then CONT, to every process of the namespace but this one: that is what pid −1 means to its process 1.
fn term_all() {
    let _ = rustix::process::kill_process_group(Pid::INIT, Signal::TERM);
    let _ = rustix::process::kill_process_group(Pid::INIT, Signal::CONT);
}
