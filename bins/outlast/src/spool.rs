//! Standard input, copied whole before anything starts: the job must not depend on a pipe that ends with this call.

use crate::args::values::Input;
use crate::failure::{self, Failure};
use crate::outlet::timespec;
use outlast_core::spec::Stdin;
use outlast_core::time::{Millis, Mono};
use outlast_hand::clock;
use outlast_hand::home::{Home, fill_random};
use outlast_sys::signals::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes read at once.
const CHUNK: usize = 256 << 10;

/// Input that is there is copied for at least so long, whatever the budget: a call with none still takes a file.
const AT_LEAST: Millis = Millis(1_000);

/// Standard input of a job that is about to be admitted.
#[derive(Debug)]
pub(crate) struct Spooled {
    /// What the spec says of it.
    pub(crate) stdin: Stdin,
    /// Its file below the home's `tmp`, to be taken over by admission.
    pub(crate) file: Option<String>,
}

/// Why copying ended early.
#[derive(Debug)]
enum Short {
    OutOfTime,
    Signal(i32),
    System(io::Error),
}

impl From<Errno> for Short {
    fn from(errno: Errno) -> Short {
        Short::System(errno.into())
    }
}

/// Copies what the job is to read, until `until` at most.
pub(crate) fn spool(
    home: &Home,
    input: Option<&Input>,
    until: Option<Mono>,
    signals: &SignalFd,
) -> Result<Spooled, Failure> {
    match input {
        None => Ok(Spooled { stdin: Stdin::Null, file: None }),
        Some(Input::Open) => Ok(Spooled { stdin: Stdin::Open, file: None }),
        Some(Input::Ours) => copy(home, rustix::stdio::stdin(), "this call's standard input", until, signals),
        Some(Input::File(path)) => {
            // A pipe with a name must not hold the call up before the budget is looked at.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let shown = path.display();
            let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
                Failure::new(failure::INPUT_NOT_FOUND, format!("--stdin {shown} cannot be read"))
                    .because_of(&io::Error::from(errno))
                    .before_anything()
                    .suggest("nothing was started; name a file that can be read")
            })?;
            let kind = rustix::fs::fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
            if kind == Ok(FileType::Directory) {
                return Err(Failure::new(failure::BAD_ARGUMENT, format!("--stdin {shown} is a folder"))
                    .suggest("nothing was started; name a file, - or open"));
            }
            copy(home, file.as_fd(), &format!("--stdin {shown}"), until, signals)
        }
    }
}

fn copy(
    home: &Home,
    source: BorrowedFd<'_>,
    name: &str,
    until: Option<Mono>,
    signals: &SignalFd,
) -> Result<Spooled, Failure> {
    let of_home = |error: io::Error| failure::of_system("keeping standard input", &error);
    let tmp = outlast_hand::files::open_subdir(home.dir(), "tmp").map_err(of_home)?;
    let mut random = [0; 12];
    fill_random(&mut random).map_err(of_home)?;
    let file = format!("stdin.{}", outlast_core::bytes::hex(&random));
    let copied = copy_into(&tmp, &file, source, until, signals);
    if copied.is_err() {
        let _ = rustix::fs::unlinkat(&tmp, file.as_str(), AtFlags::empty());
    }
    match copied {
        Ok((blake3, bytes)) => Ok(Spooled { stdin: Stdin::Spooled { blake3, bytes }, file: Some(file) }),
        Err(Short::System(error)) => Err(of_home(error)),
        Err(Short::OutOfTime) => Err(Failure::new(
            failure::INPUT_INCOMPLETE,
            format!("{name} did not end within the call's budget"),
        )
        .suggest("nothing was started; end the input, give it as a file, or use --stdin open and `outlast job stdin`")
        .before_anything()),
        Err(Short::Signal(signal)) => {
            let interrupted = signal == Signal::INT.as_raw();
            let kind = if interrupted { failure::INTERRUPTED } else { failure::TERMINATED };
            let message = format!("ended by signal {signal} while {name} was read; nothing was started");
            Err(Failure::new(kind, message).before_anything())
        }
    }
}

fn copy_into(
    tmp: &OwnedFd,
    file: &str,
    source: BorrowedFd<'_>,
    until: Option<Mono>,
    signals: &SignalFd,
) -> Result<(String, u64), Short> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let target = rustix::fs::openat(tmp, file, flags, Mode::RUSR | Mode::WUSR)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    let ready_until = until.map(|until| until.max(clock::mono_now().plus(AT_LEAST)));
    loop {
        // An input that always has more would else never let the clock be looked at.
        if ready_until.is_some_and(|until| until <= clock::mono_now()) {
            return Err(Short::OutOfTime);
        }
        wait_for_input(source, until, signals)?;
        let count = match rustix::io::read(source, &mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        hasher.update(&buffer[..count]);
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            match rustix::io::write(&target, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        total += count as u64;
    }
    rustix::fs::fsync(&target)?;
    Ok((hasher.finalize().to_hex().to_string(), total))
}

fn wait_for_input(source: BorrowedFd<'_>, until: Option<Mono>, signals: &SignalFd) -> Result<(), Short> {
    loop {
        let timeout = until.map(|until| timespec(until.since(clock::mono_now())));
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&source, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Err(Short::OutOfTime),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if !fds[0].revents().is_empty()
            && let Ok(Some(received)) = signals.read()
            && received.signal != Signal::WINCH.as_raw()
        {
            return Err(Short::Signal(received.signal));
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Copies the standard input that an earlier attempt was given, for the next one.
pub(crate) fn again(home: &Home, earlier: &std::path::Path, signals: &SignalFd) -> Result<Spooled, Failure> {
    let kept = std::fs::File::open(earlier.join(outlast_hand::job::name::STDIN)).map_err(|error| {
        Failure::new(failure::INPUT_NOT_KEPT, "the standard input of the attempt before is not kept any more")
            .because_of(&error)
            .suggest("nothing was started; run the command anew with --stdin")
    })?;
    copy(home, kept.as_fd(), "the input of the attempt before", None, signals)
}

/// Removes a copy that no admission took over.
pub(crate) fn discard(home: &Home, file: &str) {
    if let Ok(tmp) = outlast_hand::files::open_subdir(home.dir(), "tmp") {
        let _ = rustix::fs::unlinkat(&tmp, file, AtFlags::empty());
    }
}
