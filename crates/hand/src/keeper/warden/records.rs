//! The scribe's side: what it is told, what it answers, and that there always is one.

use super::start::fork_scribe;
use super::{Running, SCRIBE_AGAIN, readable};
use crate::clock;
use crate::control::{Say, send};
use crate::keeper::link::{LINK_LIMIT, ToScribe, ToWarden};
use outlast_core::exit::{Cause, Exit};
use outlast_core::ledger::Record;
use outlast_core::pipeline::Stages;
use outlast_core::receipt::{Authority, Facts, Receipt};
use outlast_core::time::{Millis, Mono};
use outlast_core::warden::{Event, Order};
use outlast_sys::pidfd;
use outlast_sys::unix::{self, Received};
use outlast_sys::wait::{Children, wait_pidfd};
use std::os::fd::AsFd;

impl Running<'_> {
    pub(super) fn note(&mut self, record: Record) {
        if !matches!(record, Record::StopDropped { .. } | Record::StdinTaken { .. } | Record::Dead { .. }) {
            self.told.push(record.clone());
        }
        self.send_scribe(ToScribe::Note(record));
    }

    pub(super) fn send_scribe(&mut self, word: ToScribe) {
        self.outbox.push_back(word);
        self.flush_outbox();
    }

    pub(super) fn flush_outbox(&mut self) {
        while self.scribe_again.is_none()
            && let Some(word) = self.outbox.front()
        {
            let Ok(text) = serde_json::to_vec(word) else {
                self.outbox.pop_front();
                continue;
            };
            match unix::send(self.scribe.link.as_fd(), &text) {
                Ok(()) => drop(self.outbox.pop_front()),
                // It is slow, or gone: then its successor gets this.
                Err(_) => return,
            }
        }
    }

    pub(super) fn read_scribe(&mut self) {
        let mut buffer = Vec::new();
        loop {
            // Only for as long as there is something to take.
            if buffer.is_empty() && !readable(self.scribe.link.as_fd()) {
                return;
            }
            buffer.resize(LINK_LIMIT, 0);
            match unix::recv(self.scribe.link.as_fd(), &mut buffer) {
                Ok(Received::Message(length)) => {
                    if let Ok(word) = serde_json::from_slice(&buffer[..length]) {
                        self.hear(word);
                    }
                }
                Ok(Received::TooLong(_)) => {}
                Ok(Received::Nothing | Received::Closed) | Err(_) => return,
            }
        }
    }

    pub(super) fn hear(&mut self, word: ToWarden) {
        match word {
            ToWarden::Ready => {}
            ToWarden::Synced(cursor) => self.answer_syncs(&Say::Synced { cursor }),
            ToWarden::SyncFailed(why) => self.answer_syncs(&Say::Refused { why }),
            ToWarden::Counted(bytes) => self.event(Event::Progress(bytes)),
            ToWarden::Drained(ended) => {
                self.ended = Some(ended);
                self.event(Event::Drained);
            }
            ToWarden::Settled => {
                self.settled = true;
                self.tell_watchers(&Say::Settled);
            }
            ToWarden::ReceiptFailed(_) => self.receipt_failed = true,
        }
    }

    pub(super) fn answer_syncs(&mut self, say: &Say) {
        for socket in self.syncing.drain(..) {
            let _ = send(socket.as_fd(), say, &[]);
        }
    }

    /// Joins what both know into the receipt, which the scribe then writes.
    pub(super) fn assemble(&mut self) {
        let Some(ended) = self.ended.take() else { return };
        let (Some(proof), Some(dead)) = (self.proof.take(), self.dead_at) else { return };
        let spec = &self.keeper.spec;
        let exit = self.machine.leader().cloned();
        let exit = exit.unwrap_or_else(|| Exit::Unknown { why: "nobody saw it end".to_owned() });
        // A command that the kernel took no part of, or none that mattered, did not run out of memory.
        let staged = matches!(&ended.stages, Stages::Captured { effective, .. } if effective.status != 0);
        let failed = exit != (Exit::Exited { code: 0 }) || staged;
        let cause = match self.machine.cause() {
            Cause::OwnEnd if self.out_of_memory && failed => Cause::OutOfMemory,
            cause => cause,
        };
        let facts = Facts {
            authority: Authority::Keeper,
            exit,
            cause,
            stages: ended.stages,
            output: ended.output,
            terminal_mutation: ended.terminal_mutation,
            stragglers: std::mem::take(&mut self.stragglers),
            resources: Some(self.usage.clone()),
            started: self.started_at,
            exited: self.exited_at,
            dead,
            settled: clock::unix_now(),
            boundary: Some(self.keeper.containment.boundary),
            isolation: Some(self.keeper.containment.isolation),
            stops: std::mem::take(&mut self.stops),
        };
        let receipt = Receipt::assemble(spec, proof, facts);
        if let Ok(text) = serde_json::value::to_raw_value(&receipt) {
            self.receipt = Some(text.clone());
            self.send_scribe(ToScribe::Receipt(text));
        }
    }

    /// Starts another scribe where this one has died. The pipes are ours, too, so nothing that it had not read is lost.
    pub(super) fn mind_scribe(&mut self) {
        let now = clock::mono_now();
        if let Some(at) = self.scribe_again {
            if now >= at {
                self.restart_scribe(now);
            }
            return;
        }
        if pidfd::is_readable(self.scribe.pidfd.as_fd()).unwrap_or(false) {
            self.read_scribe();
            if self.settled {
                return;
            }
            let _ = wait_pidfd(self.scribe.pidfd.as_fd(), Children::All, true);
            self.scribe_again = Some(now.plus(SCRIBE_AGAIN));
        }
    }

    pub(super) fn restart_scribe(&mut self, now: Mono) {
        match fork_scribe(self.keeper, &self.ends, true) {
            Ok(scribe) => {
                self.scribe = scribe;
                self.scribe_again = None;
                // What the dead one was told and may not have done, before what it was not told.
                let again = self.told.iter().cloned().map(ToScribe::Note);
                self.outbox = again.chain(std::mem::take(&mut self.outbox)).collect();
                self.count_followers();
                self.answer_syncs(&Say::Refused { why: "the scribe was lost; ask again".to_owned() });
                if let Some(receipt) = self.receipt.clone() {
                    self.send_scribe(ToScribe::Receipt(receipt));
                } else if let Some(until) = self.drain_until {
                    self.obey(Order::Drain(until));
                }
            }
            Err(_) => self.scribe_again = Some(now.plus(Millis(1000))),
        }
    }
}
