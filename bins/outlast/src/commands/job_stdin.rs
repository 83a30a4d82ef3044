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
use outlast_hand::{clock, control};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::time::Duration;

/// Bytes read and passed on at once.
const CHUNK: usize = 256 << 10;

/// Without a budget, how long one piece may take before it is tried again.
const PATIENCE: Duration = Duration::from_secs(3600);

/// How far it got.
enum Progress {
    /// Everything was taken.
    Whole(Cursor),
    /// The command took no more before the budget ended.
    Short(Cursor),
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
    let offset = match args.offset {
        Some(offset) => Cursor(offset),
        None => look.stdin_taken(&job),
    };
    let progress = pass_on(&job, offset, args.close, budget.ends_at(context.started))?;
    let look = Look::at(&job)?;
    Ok(match progress {
        Progress::Whole(offset) => answer(&job, &look, budget, offset, args.close, None, None),
        Progress::Closed(offset) => {
            let effect = if args.close { None } else { Some("noop") };
            answer(&job, &look, budget, offset, true, effect, None)
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

fn pass_on(job: &Job, mut offset: Cursor, close: bool, until: Option<Mono>) -> Result<Progress, Failure> {
    let left = || until.map_or(PATIENCE, |until| Duration::from_millis(until.since(clock::mono_now()).0));
    let mut buffer = vec![0; CHUNK];
    loop {
        let stdin = rustix::stdio::stdin();
        match control::wait_readable(stdin, until.map(|_| left())) {
            Ok(true) => {}
            Ok(false) if until.is_some_and(|until| until.since(clock::mono_now()) == Millis(0)) => {
                return Ok(Progress::Short(offset));
            }
            Ok(false) => continue,
            Err(error) => return Err(failure::of_system("reading standard input", &error)),
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
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(refused(job, offset, &error));
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

fn refused(job: &Job, offset: Cursor, error: &std::io::Error) -> Failure {
    let taken = Look::at(job).map_or(Cursor(0), |look| look.stdin_taken(job));
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
