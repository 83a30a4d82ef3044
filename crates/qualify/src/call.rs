//! Programs that are asked something, and that may never answer.

use crate::subject::{Answer, Trouble};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most that is kept of what a program says.
const MOST: u64 = 64 << 20;

/// What a program answered.
#[derive(Debug)]
pub struct Answered {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Answered {
    /// Standard error, else standard output, for people: the last line that says something.
    #[must_use]
    pub fn complaint(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let said = Some(text(&self.stderr)).filter(|text| !text.is_empty()).unwrap_or(text(&self.stdout));
        let line = said.lines().last().unwrap_or("it said nothing");
        line.chars().take(300).collect()
    }
}

/// Runs a program and gives what it said, or kills it when the time is over.
///
/// # Errors
/// It cannot be started, or it did not end in time.
pub fn call(command: &mut Command, input: Option<&[u8]>, within: Duration) -> Answer<Answered> {
    let began = Instant::now();
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        let input = input.to_vec();
        // Whoever reads no further is not to hold up the call.
        thread::spawn(move || pipe.write_all(&input));
    }
    let stdout = gather(child.stdout.take());
    let stderr = gather(child.stderr.take());
    let left = || within.saturating_sub(began.elapsed());
    let said = stdout.recv_timeout(left()).and_then(|out| Ok((out, stderr.recv_timeout(left())?)));
    match (said, reap(&mut child, left())) {
        (Ok((stdout, stderr)), Some(status)) => Ok(Answered { status, stdout, stderr }),
        _ => {
            end(&mut child);
            Err(Trouble::no_answer(began.elapsed()))
        }
    }
}

/// Runs a program and hands on what it writes to standard output, until it ends, the sink breaks or the time is over.
/// Returns how it ended, or `None` where it was left (and killed) because the sink broke.
///
/// # Errors
/// It cannot be started, or it did not end in time.
pub fn stream(
    command: &mut Command,
    within: Duration,
    sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Answer<Option<Answered>> {
    let began = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    let chunks = pieces(child.stdout.take());
    let stderr = gather(child.stderr.take());
    loop {
        match chunks.recv_timeout(within.saturating_sub(began.elapsed())) {
            Ok(chunk) => {
                if sink(&chunk).is_break() {
                    end(&mut child);
                    return Ok(None);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                end(&mut child);
                return Err(Trouble::no_answer(began.elapsed()));
            }
        }
    }
    let left = within.saturating_sub(began.elapsed()).max(Duration::from_millis(100));
    let Some(status) = reap(&mut child, left) else {
        end(&mut child);
        return Err(Trouble::no_answer(began.elapsed()));
    };
    let stderr = stderr.recv_timeout(Duration::from_millis(100)).unwrap_or_default();
    Ok(Some(Answered { status, stdout: Vec::new(), stderr }))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> Trouble {
    Trouble::unavailable(format!("{}: {error}", command.get_program().to_string_lossy()))
}

fn gather(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MOST).read_to_end(&mut bytes);
        }
        let _ = send.send(bytes);
    });
    receive
}

fn pieces(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = sync_channel(16);
    thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; 256 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if send.send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receive
}

/// Its status, once it has ended. Both streams of a program are closed just before that, so this hardly ever waits.
fn reap(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + within;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_micros(200)),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Ends a program of ours that is not wanted any more. It is our own child and not reaped, so its pid is its own.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_is_said_comes_back() {
        let answered =
            call(&mut sh("cat; echo no >&2; exit 3"), Some(b"yes"), Duration::from_secs(20)).unwrap();
        assert_eq!((answered.stdout.as_slice(), answered.status.code()), (&b"yes"[..], Some(3)));
        assert_eq!(answered.complaint(), "no");
    }

    #[test]
    fn who_does_not_answer_is_left() {
        let began = Instant::now();
        let trouble = call(&mut sh("exec sleep 60"), None, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(trouble, Trouble::NoAnswer { after_ms } if after_ms >= 200), "{trouble:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_reader_may_leave() {
        let mut seen = 0;
        let left = stream(&mut sh("yes"), Duration::from_secs(20), &mut |chunk| {
            seen += chunk.len();
            if seen > 100_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(left, Ok(None)), "{left:?}");
    }

    #[test]
    fn what_cannot_be_started_is_unavailable() {
        let trouble = call(&mut Command::new("/no/such/program"), None, Duration::from_secs(1)).unwrap_err();
        assert!(matches!(trouble, Trouble::Unavailable { .. }), "{trouble:?}");
    }
}
