//! Commands whose standard streams are a connection.
//!
//! Each has a thread of its own, which starts it, keeps the end of what it says on its standard error, and reaps it. That
//! is no work for the runtime's thread: starting copies page tables, and a process that does not end would keep it waiting.

use super::{Address, DialError, Stream};
use crate::client::Http;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

/// Bytes of standard error that are kept: the last ones.
const STDERR_KEPT: usize = 4096;
/// How long the end of the stream waits for the end of the command, which explains it.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(2);
/// How long a command whose streams were closed has to end by itself, and then its group after `SIGTERM`.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at where the kernel cannot tell of its end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The program of a command, for errors.
fn program(words: &[OsString]) -> &OsStr {
    words.first().map_or(OsStr::new(""), OsString::as_os_str)
}

/// How a command ended: its status, and what it said last.
type Ended = Option<String>;

/// This process's ends of the streams.
struct Streams {
    stdin: OwnedFd,
    stdout: OwnedFd,
    ended: [oneshot::Receiver<Ended>; 2],
    held: PipeWriter,
}

/// Starts a command and makes a connection of its standard streams.
pub(super) async fn start(words: &[OsString], address: &Address) -> Result<Stream, DialError> {
    let name = program(words).to_owned();
    if name.is_empty() {
        return Err(DialError::Undialable { address: address.clone(), problem: "the program is missing" });
    }
    let failed = |error| DialError::Start { program: name.clone(), error };
    let (started, starting) = oneshot::channel();
    let words = words.to_vec();
    std::thread::Builder::new()
        .name("outlast-command".into())
        .stack_size(256 << 10)
        .spawn(move || attend(&words, started))
        .map_err(failed)?;
    let streams =
        starting.await.unwrap_or_else(|_| Err(io::Error::other("its thread ended"))).map_err(failed)?;
    let [ended_for_reads, ended_for_writes] = streams.ended;
    let stream = CommandStream {
        stdin: Some(pipe::Sender::from_owned_fd(streams.stdin).map_err(failed)?),
        stdout: pipe::Receiver::from_owned_fd(streams.stdout).map_err(failed)?,
        ended_for_reads: Explanation::new(ended_for_reads),
        ended_for_writes: Explanation::new(ended_for_writes),
        name: name.display().to_string(),
        _held: streams.held,
    };
    Ok(Stream::new(stream, Http::Two))
}

/// The whole life of one command, on its own thread.
fn attend(words: &[OsString], started: oneshot::Sender<io::Result<Streams>>) {
    let spawned = spawn(words);
    let (mut child, stderr, held_by, streams, tell) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            drop(started.send(Err(error)));
            return;
        }
    };
    // Where nobody waits for it any more, the streams close here and the command ends as after any connection.
    drop(started.send(Ok(streams)));
    let (status, tail) = wait(&mut child, stderr, held_by);
    let ended = explain(status, &tail);
    for tell in tell {
        drop(tell.send(ended.clone()));
    }
}

type Spawned = (Child, ChildStderr, PipeReader, Streams, [oneshot::Sender<Ended>; 2]);

fn spawn(words: &[OsString]) -> io::Result<Spawned> {
    // Closed by whoever drops the stream: how this thread hears of it.
    let (held_by, held) = io::pipe()?;
    let mut child = Command::new(program(words))
        .args(words.get(1..).unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // An interrupt typed at the terminal is for this process, which may want to stop a job over this connection.
        .process_group(0)
        .spawn()?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        // All three were asked for, so this cannot be.
        return Err(io::Error::other("it has no standard streams"));
    };
    let (tell_reads, ended_for_reads) = oneshot::channel();
    let (tell_writes, ended_for_writes) = oneshot::channel();
    let streams = Streams {
        stdin: stdin.into(),
        stdout: stdout.into(),
        ended: [ended_for_reads, ended_for_writes],
        held,
    };
    Ok((child, stderr, held_by, streams, [tell_reads, tell_writes]))
}

/// Waits until the command has ended and is reaped; returns its status and what it said last. Its descendants may hold
/// its standard error for longer (the master of a shared `ssh` connection does), so that is not waited for.
fn wait(child: &mut Child, stderr: ChildStderr, held_by: PipeReader) -> (Option<ExitStatus>, Vec<u8>) {
    let mut tail = VecDeque::new();
    let process = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .map(|pid| (pid, rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()));
    let mut stderr = rustix::io::ioctl_fionbio(&stderr, true).is_ok().then_some(stderr);
    let mut held_by = Some(held_by);
    // Once the stream was dropped: when to act next, and how often that was done.
    let mut urge: Option<(Instant, u32)> = None;
    loop {
        if let Some(pipe) = &mut stderr
            && drain(pipe, &mut tail)
        {
            stderr = None;
        }
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                if let Some(pipe) = &mut stderr {
                    drain(pipe, &mut tail);
                }
                return (Some(status), tail.into());
            }
            // Somebody else reaped it; there is nothing more to wait for.
            Err(_) => return (None, tail.into()),
        }
        if let Some((at, times)) = urge
            && Instant::now() >= at
        {
            // It is not reaped yet, so its id is still its own, and its group's: no other group can have taken it.
            let signal = if times == 0 { Signal::TERM } else { Signal::KILL };
            match &process {
                // A program may have left the group it was started in.
                Some((pid, _)) if rustix::process::kill_process_group(*pid, signal).is_err() => {
                    let _ = rustix::process::kill_process(*pid, signal);
                }
                Some(_) => {}
                None => drop(child.kill()),
            }
            urge = Some((Instant::now() + ENDS_WITHIN, times + 1));
        }
        let pidfd = process.as_ref().and_then(|(_, pidfd)| pidfd.as_ref());
        let mut limit = pidfd.is_none().then_some(LOOK_EVERY);
        if let Some((at, _)) = urge {
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            limit = Some(limit.map_or(left, |limit| limit.min(left)));
        }
        let limit = limit.and_then(|limit| limit.try_into().ok());
        let held = held_by.as_ref().map(AsFd::as_fd);
        let fds = [pidfd.map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd), held];
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let failed = poll(&mut polled, limit.as_ref()).is_err_and(|errno| errno != rustix::io::Errno::INTR);
        let dropped = held.is_some() && polled.last().is_some_and(|held| !held.revents().is_empty());
        if failed {
            // Never a busy loop, whatever the reason.
            std::thread::sleep(LOOK_EVERY);
        }
        if dropped {
            held_by = None;
            urge = Some((Instant::now() + ENDS_WITHIN, 0));
        }
    }
}

/// Reads what is there and keeps its end; whether no more will come.
fn drain(stderr: &mut ChildStderr, tail: &mut VecDeque<u8>) -> bool {
    let mut buffer = [0; 4096];
    // Four pipes full at most: one that never stops talking must not keep this thread from all else.
    for _ in 0..64 {
        match stderr.read(&mut buffer) {
            Ok(0) => return true,
            Ok(read) => {
                tail.extend(&buffer[..read]);
                tail.drain(..tail.len().saturating_sub(STDERR_KEPT));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

/// One line on why a command ended; none where it ended well.
fn explain(status: Option<ExitStatus>, tail: &[u8]) -> Ended {
    let how = match status {
        Some(status) if status.success() => return None,
        Some(status) => status.to_string(),
        None => "an unknown status".into(),
    };
    // What a command says is not ours: no control characters reach a terminal from here.
    let text = String::from_utf8_lossy(tail);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said: String = lines
        .collect::<Vec<_>>()
        .join("; ")
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    Some(if said.is_empty() { format!("{how}, without a word") } else { format!("{how}: {said}") })
}

/// Waits a little for the reason that a stream ended. Reads and writes have one each, since they may be polled by
/// different tasks.
struct Explanation {
    ended: Option<oneshot::Receiver<Ended>>,
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Explanation {
    fn new(ended: oneshot::Receiver<Ended>) -> Explanation {
        Explanation { ended: Some(ended), patience: None }
    }

    /// The reason, once; none where it is not known in time, or the command ended well.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some(ended) = &mut self.ended else { return Poll::Ready(None) };
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(EXPLAINED_WITHIN)));
        let found = match Pin::new(ended).poll(cx) {
            Poll::Ready(found) => found.ok().flatten(),
            Poll::Pending => {
                ready!(patience.as_mut().poll(cx));
                None
            }
        };
        self.ended = None;
        Poll::Ready(found)
    }
}

/// The connection.
struct CommandStream {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    ended_for_reads: Explanation,
    ended_for_writes: Explanation,
    name: String,
    _held: PipeWriter,
}

impl CommandStream {
    fn failure(&self, kind: io::ErrorKind, why: &str) -> io::Error {
        io::Error::new(kind, format!("{} ended with {why}", self.name))
    }
}

impl AsyncRead for CommandStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stdout).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        match ready!(self.ended_for_reads.poll(cx)) {
            None => Poll::Ready(Ok(())),
            Some(why) => Poll::Ready(Err(self.failure(io::ErrorKind::ConnectionAborted, &why))),
        }
    }
}

impl AsyncWrite for CommandStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(stdin) = &mut self.stdin else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        match ready!(Pin::new(stdin).poll_write(cx, bytes)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                match ready!(self.ended_for_writes.poll(cx)) {
                    None => Poll::Ready(Err(error)),
                    Some(why) => Poll::Ready(Err(self.failure(error.kind(), &why))),
                }
            }
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stdin = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::super::{DialOptions, dial};
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn the_last_words_are_bounded_and_harmless() {
        let failed = std::os::unix::process::ExitStatusExt::from_raw(255 << 8);
        let ended = explain(Some(failed), b"\x1b]0;title\x07\n\n  no route to host \n").unwrap();
        assert_eq!(ended, "exit status: 255: \u{fffd}]0;title\u{fffd}; no route to host");
        assert_eq!(explain(Some(ExitStatus::default()), b"a warning"), None);
        assert!(explain(None, b"").unwrap().contains("without a word"));
    }

    fn processes_of_ours() -> Vec<u32> {
        let own = std::process::id().to_string();
        let stat = |entry: std::fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
            (parent == own).then_some(pid)
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(stat).collect()
    }

    fn sh(script: &str) -> Address {
        Address::exec(["sh", "-c", script]).unwrap()
    }

    async fn ended(pid: u32) {
        while processes_of_ours().contains(&pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[test]
    fn a_command_is_a_connection_and_is_reaped() {
        run(async {
            let mut stream = dial(&sh("echo $$; exec cat"), &DialOptions::default()).await.unwrap();
            let mut pid = Vec::new();
            while pid.last() != Some(&b'\n') {
                pid.push(stream.read_u8().await.unwrap());
            }
            let pid: u32 = String::from_utf8(pid).unwrap().trim().parse().unwrap();
            assert!(processes_of_ours().contains(&pid));
            // More than a pipe holds, both ways at once.
            let sent: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
            let (mut reads, mut writes) = tokio::io::split(stream);
            let writing = tokio::spawn({
                let sent = sent.clone();
                async move {
                    writes.write_all(&sent).await.unwrap();
                    writes.shutdown().await.unwrap();
                    writes
                }
            });
            let mut read = Vec::new();
            reads.read_to_end(&mut read).await.unwrap();
            assert!(read == sent);
            drop((reads, writing.await.unwrap()));
            ended(pid).await;
        });
    }

    #[test]
    fn a_command_that_fails_is_explained_by_the_first_read_and_write() {
        run(async {
            let script = "i=0; while [ $i -lt 2000 ]; do echo noise >&2; i=$((i+1)); done
                echo 'ssh: connect to host box port 22: No route to host' >&2; exit 255";
            let mut stream = dial(&sh(script), &DialOptions::default()).await.unwrap();
            let error = stream.read_u8().await.unwrap_err();
            let told = error.to_string();
            assert!(
                told.contains("sh ended with exit status: 255") && told.ends_with("No route to host"),
                "{told}"
            );
            assert!(told.len() < 8192);
            // Once said it is an end like any other.
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            let error = stream.write_all(b"x").await.unwrap_err();
            assert!(error.to_string().contains("No route to host"), "{error}");

            let missing = dial(&Address::exec(["/no/such/program"]).unwrap(), &DialOptions::default()).await;
            let error = missing.unwrap_err();
            assert!(
                matches!(error, DialError::Start { .. }) && error.to_string().contains("/no/such/program")
            );
        });
    }

    #[test]
    fn a_command_that_closes_its_output_and_goes_on_is_no_hang() {
        run(async {
            let script = "exec >/dev/null; (sleep 60 >&2 & echo $! >&2); sleep 60";
            let mut stream = dial(&sh(script), &DialOptions::default()).await.unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        });
    }

    #[test]
    fn a_command_that_ignores_the_end_of_its_streams_is_terminated() {
        run(async {
            let mut stream = dial(&sh("echo $$; exec sleep 600"), &DialOptions::default()).await.unwrap();
            let mut pid = Vec::new();
            while pid.last() != Some(&b'\n') {
                pid.push(stream.read_u8().await.unwrap());
            }
            let pid: u32 = String::from_utf8(pid).unwrap().trim().parse().unwrap();
            drop(stream);
            ended(pid).await;
        });
    }
}
