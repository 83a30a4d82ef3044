//! Processes: reaped, listened to, proved dead.

use super::Running;
use super::start::raw;
use crate::clock;
use crate::control::Say;
use crate::keeper::init::FromInit;
use crate::keeper::wire_exit;
use outlast_core::evidence::{self, InitReaped, Reaping};
use outlast_core::exit::Exit;
use outlast_core::ledger::Record;
use outlast_core::warden::Event;
use outlast_sys::Errno;
use outlast_sys::unix::{self, Received};
use outlast_sys::wait::{WaitOutcome, wait_any};
use std::os::fd::AsFd;

impl Running<'_> {
    pub(super) fn reap(&mut self) {
        loop {
            match wait_any(true) {
                Ok(WaitOutcome::Reaped { pid, status, usage }) => {
                    self.usage.processes += 1;
                    self.usage.user_us += u64::try_from(usage.user.as_micros()).unwrap_or(u64::MAX);
                    self.usage.system_us += u64::try_from(usage.system.as_micros()).unwrap_or(u64::MAX);
                    self.usage.max_rss_kib = self.usage.max_rss_kib.max(usage.max_rss_kib);
                    if self.leader == Some(pid) {
                        self.leader_exited(wire_exit(status));
                    } else if self.init.as_ref().is_some_and(|init| init.pid == pid) {
                        self.init_reaped();
                    }
                }
                Ok(WaitOutcome::NoneReady) => {
                    self.reaping = Some(Reaping::ChildrenLeft);
                    return;
                }
                Ok(WaitOutcome::NoChildren) => {
                    self.reaping = Some(Reaping::NoChildLeft { reaped: self.usage.processes });
                    return;
                }
                Err(_) => return,
            }
        }
    }

    pub(super) fn leader_exited(&mut self, exit: Exit) {
        if self.machine.leader().is_some() {
            return;
        }
        let at = clock::unix_now();
        self.exited_at = Some(at);
        self.note(Record::Exited { at, exit: exit.clone() });
        self.tell_watchers(&Say::Exited { exit: exit.clone() });
        self.event(Event::LeaderExited(exit));
    }

    pub(super) fn init_reaped(&mut self) {
        // Whatever it said before it ended comes first.
        self.read_init();
        if let Some(init) = &mut self.init {
            init.reaped = true;
        }
        if self.machine.leader().is_none() {
            let why = "its PID namespace was ended before the command's own end was seen".to_owned();
            self.leader_exited(Exit::Unknown { why });
        }
    }

    pub(super) fn read_init(&mut self) {
        let mut buffer = [0; 1024];
        loop {
            let Some(init) = self.init.as_ref().filter(|init| !init.reaped) else { return };
            let Ok(Received::Message(length)) = unix::recv(init.link.as_fd(), &mut buffer) else { return };
            match serde_json::from_slice(&buffer[..length]) {
                Ok(FromInit::Started) => self.tell_watchers(&Say::Started),
                Ok(FromInit::ExecFailed { errno, stage }) => {
                    self.leader_exited(Exit::ExecFailed { errno, stage })
                }
                Ok(FromInit::Exited { exit }) => self.leader_exited(exit),
                Ok(FromInit::SetUpFailed { why }) => {
                    let say = Say::Failed {
                        code: "CONTAINMENT_UNAVAILABLE".to_owned(),
                        message: format!("containment pid_namespace is not available here: {why}"),
                        remedy: "`outlast doctor` shows what this machine offers; --containment auto takes the strongest of it".to_owned(),
                    };
                    self.tell_watchers(&say);
                    self.leader_exited(Exit::ExecFailed { errno: Errno::PERM.raw_os_error(), stage: why });
                }
                Err(_) => {}
            }
        }
    }

    /// Proves the death of the tree, if it can be proved now.
    pub(super) fn look_at_tree(&mut self) {
        if self.machine.tree_is_dead() || !matches!(self.reaping, Some(Reaping::NoChildLeft { .. })) {
            return;
        }
        // Asked again, because something may have been adopted since.
        self.reap();
        let Some(reaping) = self.reaping else { return };
        let at = clock::unix_now();
        let containment = &self.keeper.containment;
        let proof = match (&self.init, self.refused, containment.leaf()) {
            (Some(init), ..) if init.reaped => {
                let reaped = InitReaped { init_pid: raw(init.pid), namespace: init.namespace };
                Ok(evidence::pid_namespace_init_reaped(reaped, at))
            }
            (Some(_), ..) => return,
            (None, Some(refused), _) => evidence::never_executed(refused, reaping, at),
            (None, None, Some(_)) => {
                // Read before the leaf, which takes its counters with it.
                self.out_of_memory = containment.ran_out_of_memory();
                let Some((leaf, state, removal)) = containment.observe_leaf() else { return };
                evidence::cgroup_empty_and_reaped(leaf, &state, reaping, &removal, at)
            }
            (None, None, None) => evidence::all_reaped(reaping, at),
        };
        if let Ok(proof) = proof {
            self.out_of_memory |= containment.ran_out_of_memory();
            self.dead_at = Some(at);
            self.note(Record::Dead { evidence: proof.evidence().clone() });
            self.proof = Some(proof);
            self.event(Event::TreeProvedDead);
        }
    }
}
