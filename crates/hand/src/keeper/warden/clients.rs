//! Who connects: watchers, stops, standard input, terminal sizes.

use super::{CLIENT_LIMIT, Running, STOP_ID_LIMIT, STOPS_LISTED, readable};
use crate::clock;
use crate::control::{Ask, MESSAGE_LIMIT, Say, send};
use crate::keeper::link::ToScribe;
use outlast_core::fence::{StopRequest, check_stop};
use outlast_core::id::Cursor;
use outlast_core::ledger::Record;
use outlast_core::spec::Stdin;
use outlast_core::warden::Event;
use outlast_sys::unix::{self, Received};
use outlast_sys::{Errno, pty};
use std::os::fd::{AsFd, OwnedFd};

pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) watches: bool,
    pub(super) output: bool,
    pub(super) gone: bool,
}

impl Running<'_> {
    pub(super) fn ring(&mut self) {
        if !self.clients.iter().any(|client| client.output) {
            return;
        }
        let mut count = [0; 8];
        if rustix::io::read(&self.ends.wake, &mut count).is_ok() {
            let say = Say::Output;
            for client in self.clients.iter_mut().filter(|client| client.output) {
                // One that does not read has word of output waiting already.
                if let Err(Errno::PIPE | Errno::CONNRESET) = send(client.socket.as_fd(), &say, &[]) {
                    client.gone = true;
                }
            }
            self.drop_gone_clients();
        }
    }

    pub(super) fn tell_watchers(&mut self, say: &Say) {
        for client in self.clients.iter_mut().filter(|client| client.watches) {
            if let Err(Errno::PIPE | Errno::CONNRESET) = send(client.socket.as_fd(), say, &[]) {
                client.gone = true;
            }
        }
        // Dropped with the others at the end of this turn: whoever tells may be walking the list.
    }

    pub(super) fn drop_gone_clients(&mut self) {
        if self.clients.iter().any(|client| client.gone) {
            self.clients.retain(|client| !client.gone);
            self.count_followers();
        }
    }

    pub(super) fn count_followers(&mut self) {
        let followers = self.clients.iter().filter(|client| client.output).count();
        self.send_scribe(ToScribe::Followers(u32::try_from(followers).unwrap_or(u32::MAX)));
    }

    pub(super) fn accept(&mut self) {
        while let Ok(Some(socket)) = unix::accept(self.listener.as_fd()) {
            // The folder's mode keeps others out; this is the second lock.
            let own = rustix::process::geteuid().as_raw();
            if unix::peer(socket.as_fd()).is_ok_and(|peer| peer.uid == own || peer.uid == 0) {
                self.clients.push(Client { socket, watches: false, output: false, gone: false });
            }
        }
        // A newcomer may bring a stop, so it is the oldest that go; who is dropped looks at the files, and may come again.
        let excess = self.clients.len().saturating_sub(CLIENT_LIMIT);
        if excess > 0 {
            self.clients.drain(..excess);
            self.count_followers();
        }
    }

    pub(super) fn read_clients(&mut self) {
        let mut buffer = Vec::new();
        for index in 0..self.clients.len() {
            if !readable(self.clients[index].socket.as_fd()) {
                continue;
            }
            buffer.resize(MESSAGE_LIMIT, 0);
            self.read_client(index, &mut buffer);
        }
        self.drop_gone_clients();
    }

    pub(super) fn read_client(&mut self, index: usize, buffer: &mut [u8]) {
        loop {
            let message = match unix::recv(self.clients[index].socket.as_fd(), buffer) {
                Ok(Received::Message(length)) => &buffer[..length],
                Ok(Received::Nothing) => return,
                Ok(Received::TooLong(_)) => {
                    self.answer(
                        index,
                        &Say::Refused { why: format!("the message is larger than {MESSAGE_LIMIT} bytes") },
                    );
                    continue;
                }
                Ok(Received::Closed) | Err(_) => {
                    self.clients[index].gone = true;
                    return;
                }
            };
            let line = message.iter().position(|byte| *byte == b'\n').unwrap_or(message.len());
            let bytes = message.get(line + 1..).unwrap_or_default();
            match serde_json::from_slice::<Ask>(&message[..line]) {
                Ok(ask) => self.serve(index, ask, bytes),
                Err(error) => {
                    self.answer(index, &Say::Refused { why: format!("the message does not parse: {error}") })
                }
            }
        }
    }

    pub(super) fn answer(&mut self, index: usize, say: &Say) {
        if let Err(Errno::PIPE | Errno::CONNRESET) = send(self.clients[index].socket.as_fd(), say, &[]) {
            self.clients[index].gone = true;
        }
    }

    pub(super) fn serve(&mut self, index: usize, ask: Ask, bytes: &[u8]) {
        match ask {
            Ask::Watch { output } => {
                self.clients[index].watches = true;
                self.clients[index].output = output;
                self.count_followers();
            }
            // The receipt is made and lists the stops there were: one that is accepted now would be nowhere. This socket closes
            // in a moment, and whoever asked finds the receipt. Where it cannot be written, that moment may be long.
            Ask::Stop { .. } if self.receipt.is_some() && !self.receipt_failed => {}
            Ask::Stop { request } => {
                let say = self.stop(request);
                self.answer(index, &say);
            }
            Ask::Stdin { offset, close } => {
                let say = self.take_stdin(offset, bytes, close);
                self.answer(index, &say);
            }
            Ask::Resize { rows, cols } => {
                let say = match &self.input {
                    Some(master) if self.keeper.spec.work.tty => {
                        match pty::set_size(master.as_fd(), pty::Size { rows, cols }) {
                            Ok(()) => Say::Done,
                            Err(errno) => Say::Refused { why: errno.to_string() },
                        }
                    }
                    _ => Say::Refused { why: "the job has no terminal".to_owned() },
                };
                self.answer(index, &say);
            }
            Ask::Sync => match self.clients[index].socket.try_clone() {
                Ok(socket) => {
                    self.syncing.push(socket);
                    self.send_scribe(ToScribe::Sync);
                }
                Err(error) => self.answer(index, &Say::Refused { why: error.to_string() }),
            },
        }
    }

    /// The last moment before a signal: a stop meant for another attempt or generation is dropped and noted.
    pub(super) fn stop(&mut self, request: StopRequest) -> Say {
        let at = clock::unix_now();
        let spec = &self.keeper.spec;
        if request.id.len() > STOP_ID_LIMIT {
            return Say::Refused { why: format!("the stop's id is longer than {STOP_ID_LIMIT} bytes") };
        }
        if let Err(stale) = check_stop(&request, spec.job_id, spec.generation) {
            // Counted on in memory alone: a ledger that a client can grow without end could not be read any more.
            self.stops_dropped += 1;
            if self.stops_dropped <= STOPS_LISTED {
                self.note(Record::StopDropped { at, request, stale: stale.clone() });
            }
            return Say::StopStale { stale };
        }
        if !self.stops.contains(&request.id) && self.stops.len() < STOPS_LISTED {
            self.stops.push(request.id.clone());
            self.note(Record::StopAccepted { at, request: request.clone() });
        }
        self.event(Event::Stop(request));
        Say::StopAccepted
    }

    pub(super) fn take_stdin(&mut self, offset: Cursor, bytes: &[u8], close: bool) -> Say {
        let taken = self.stdin_taken;
        if !matches!(self.keeper.spec.work.stdin, Stdin::Open) && !self.keeper.spec.work.tty {
            return Say::Refused {
                why: "standard input is not open; start the job with --stdin open".to_owned(),
            };
        }
        let Some(input) = self.input.as_ref().filter(|_| self.machine.leader().is_none()) else {
            return Say::StdinTaken { offset: taken, closed: true };
        };
        if offset > taken {
            return Say::Refused {
                why: format!("the bytes begin at {offset}, but only {taken} were given so far"),
            };
        }
        let skip = usize::try_from(taken.0 - offset.0).unwrap_or(usize::MAX).min(bytes.len());
        let rest = &bytes[skip..];
        let mut closed = false;
        let mut written = 0;
        if !rest.is_empty() {
            match rustix::io::write(input, rest) {
                Ok(count) => written = count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Nobody reads it any more.
                Err(_) => closed = true,
            }
        }
        self.stdin_taken = Cursor(taken.0 + written as u64);
        if close && written == rest.len() {
            if self.keeper.spec.work.tty {
                // A terminal is closed by its end-of-file character; the line stays open for what follows.
                let _ = rustix::io::write(input, &[4]);
            }
            closed = true;
        }
        if closed && !self.keeper.spec.work.tty {
            self.input = None;
            self.note(Record::StdinTaken { offset: self.stdin_taken, closed: true });
        }
        Say::StdinTaken { offset: self.stdin_taken, closed }
    }
}
