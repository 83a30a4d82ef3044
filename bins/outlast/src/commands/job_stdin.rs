//! `outlast job stdin`.

use crate::args::job::StdinArgs;
use crate::budget::Budget;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::result::Look;
use outlast_core::id::Cursor;
use outlast_core::spec::Stdin;
use outlast_core::time::{Millis, Mono};
use outlast_hand::job::Job;
use outlast_hand::{clock, control, files};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes read and passed on at once.
const CHUNK: usize = 256 << 10;

/// Without a budget, how long one piece may take before it is tried again.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The file whose lock makes callers that write at the same time follow each other.
const LOCK: &str = "stdin.lock";

/// How often a lock that another caller holds is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// How long the keeper has to say how far it got, once it refused.
const ASK_WITHIN: Duration = Duration::from_secs(10);

/// How far it got.
enum Progress {
    /// Everything was taken.
    Whole(Cursor),
    /// The command took no more before the budget ended.
    Short(Cursor),
    /// The budget ended before it was this call's turn, or before the keeper said where the next write begins.
    NoTurn(Cursor),
    /// The command takes nothing any more.
    Closed(Cursor),
}

/// Passes this call's standard input on to a job's.
pub(crate) fn run(context: &Context, args: &StdinArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let (_home, job) = context.find(&args.job)?;
    let look = Look::at(&job)?;
    if job.spec().work.stdin != Stdin::Open {
        return Err(Failure::new(
            failure::NO_OPEN_STDIN,
            format!("job {} has no open standard input", job.id()),
        )
        .before_anything()
        .suggest("only `outlast run --stdin open` gives one"));
    }
    if look.is_final() {
        let taken = look.facts.ledger.stdin.map_or(Cursor(0), |(offset, _)| offset);
        return Ok(answer(&job, &look, budget, taken, true, Some("noop"), None));
    }
    let begin = args.offset.map(Cursor);
    let progress = pass_on(&job, begin, args.close, budget.ends_at(context.started))?;
    let look = Look::at(&job)?;
    Ok(match progress {
        Progress::Whole(offset) => answer(&job, &look, budget, offset, args.close, None, None),
        Progress::Closed(offset) => {
            let effect = if args.close { None } else { Some("noop") };
            answer(&job, &look, budget, offset, true, effect, None)
        }
        Progress::NoTurn(at) => {
            let error = Failure::new(
                failure::INCOMPLETE,
                "another call passes on input, or the keeper did not answer, until the budget was over",
            )
            .fix("pass on what was not taken with", context.follow_up.job("stdin", job.id(), &[]));
            answer(&job, &look, budget, at, false, None, Some(error))
        }
        Progress::Short(at) => {
            let at_text = at.to_string();
            let error = Failure::new(
                failure::INCOMPLETE,
                format!("the command has read no more than {at} bytes within the budget"),
            )
            .fix("pass on the rest with", context.follow_up.job("stdin", job.id(), &["--offset", &at_text]));
            answer(&job, &look, budget, at, false, None, Some(error))
        }
    })
}

/// What became of waiting for one's turn.
enum Turn {
    Taken,
    OutOfTime,
    JobEnded,
}

/// Waits until no other caller passes input on to this job.
fn take_turn(job: &Job, lock: &OwnedFd, until: Option<Mono>) -> Result<Turn, Failure> {
    let failed = |error: std::io::Error| failure::of_system("waiting for another call's input", &error);
    while !files::try_lock(lock, FlockOperation::NonBlockingLockExclusive).map_err(failed)? {
        if job.receipt().map_err(failed)?.is_some() {
            return Ok(Turn::JobEnded);
        }
        if until.is_some_and(|until| until <= clock::mono_now()) {
            return Ok(Turn::OutOfTime);
        }
        std::thread::sleep(TRY_AGAIN);
    }
    Ok(Turn::Taken)
}

/// Passes standard input on, from `begin` or from where it was taken to. What is there at once follows in one piece;
/// while there is nothing, others have their turn.
fn pass_on(job: &Job, begin: Option<Cursor>, close: bool, until: Option<Mono>) -> Result<Progress, Failure> {
    let left = || until.map_or(PATIENCE, |until| Duration::from_millis(until.since(clock::mono_now()).0));
    let lock = files::open_lock_file(job.dir(), LOCK)
        .map_err(|error| failure::of_system("opening the lock of its standard input", &error))?;
    let mut our_turn = false;
    let mut offset = begin.unwrap_or(Cursor(0));
    let mut buffer = vec![0; CHUNK];
    loop {
        let stdin = rustix::stdio::stdin();
        if our_turn && !matches!(control::wait_readable(stdin, Some(Duration::ZERO)), Ok(true)) {
            our_turn = false;
            rustix::fs::flock(&lock, FlockOperation::Unlock)
                .map_err(|errno| failure::of_system("giving others their turn", &errno.into()))?;
        }
        match control::wait_readable(stdin, until.map(|_| left())) {
            Ok(true) => {}
            Ok(false) if until.is_some_and(|until| until.since(clock::mono_now()) == Millis(0)) => {
                return Ok(Progress::Short(offset));
            }
            Ok(false) => continue,
            Err(error) => return Err(failure::of_system("reading standard input", &error)),
        }
        if !our_turn {
            match take_turn(job, &lock, until)? {
                Turn::Taken => our_turn = true,
                Turn::OutOfTime => return Ok(Progress::NoTurn(offset)),
                Turn::JobEnded => return Ok(Progress::Closed(offset)),
            }
            if begin.is_none() {
                // Others may have written since; nobody does while this call has the lock.
                match control::write_stdin(job, Cursor(0), &[], false, left()) {
                    Ok(answer) => offset = answer.taken,
                    Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(Progress::NoTurn(offset)),
                    Err(error) if error.kind() == ErrorKind::NotConnected => {
                        return Ok(Progress::Closed(offset));
                    }
                    Err(error) => return Err(failure::of_system("asking the keeper", &error)),
                }
            }
        }
        let count = match rustix::io::read(stdin, &mut buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(failure::of_system("reading standard input", &errno.into())),
        };
        if count == 0 && !close {
            return Ok(Progress::Whole(offset));
        }
        let answer = match control::write_stdin(job, offset, &buffer[..count], count == 0, left()) {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(Progress::Closed(offset)),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(Progress::Short(offset)),
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(refused(job, offset, &error, left()));
            }
            Err(error) => return Err(failure::of_system("writing to the command", &error)),
        };
        let end = Cursor(offset.0 + count as u64);
        offset = Cursor(answer.taken.0.max(offset.0));
        match (answer.closed, count == 0) {
            (true, true) => return Ok(Progress::Whole(offset)),
            (true, false) => return Ok(Progress::Closed(offset)),
            (false, true) => return Ok(Progress::Short(offset)),
            (false, false) if answer.taken < end => return Ok(Progress::Short(offset)),
            (false, false) => {}
        }
    }
}

fn refused(job: &Job, offset: Cursor, error: &std::io::Error, left: Duration) -> Failure {
    let taken = Look::at(job).map_or(Cursor(0), |look| look.stdin_taken(job, left.min(ASK_WITHIN)));
    Failure::new(failure::OFFSET_CONFLICT, format!("nothing was written at offset {offset}"))
        .because_of(error)
        .suggest(format!("the job has taken {taken} bytes; begin there, or leave --offset out"))
        .context(serde_json::json!({ "offset": offset, "taken": taken }))
}

fn answer(
    job: &Job,
    look: &Look,
    budget: Budget,
    offset: Cursor,
    closed: bool,
    effect: Option<&str>,
    error: Option<Failure>,
) -> Done {
    let mut data = serde_json::json!({
        "job_id": job.id(), "state": look.state(), "offset": offset, "closed": closed,
    });
    if let (Some(effect), Some(object)) = (effect, data.as_object_mut()) {
        object.insert("effect".to_owned(), effect.into());
    }
    let facts =
        CallFacts { budget_ms: budget.millis(), timeout_ms: look.timeout_ms(), ..CallFacts::default() };
    let note =
        (error.is_none() && effect == Some("noop")).then(|| format!("job {} takes no more input", job.id()));
    Answer { data: Some(Data::Other(data)), error, note, facts, ..Answer::default() }.into()
}
