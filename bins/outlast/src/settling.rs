//! Settling a job that lost its keeper, within a call's time.
//!
//! Ending what is left of a tree may take its whole grace, and a call has its budget; so it is done in a thread of its
//! own. What was begun and not finished is begun again by the next call.

use crate::failure::{self, Failure};
use outlast_core::id::JobId;
use outlast_core::status::{JobFacts, Settling, settling};
use outlast_core::time::{Millis, Mono};
use outlast_hand::clock;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::settle::{Outcome, Settle, settle};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// How long another settler is given before it is looked at again.
const OTHER_SETTLER: Duration = Duration::from_millis(20);

/// What a call that waits for nothing gives a settling that is due.
pub(crate) const IN_PASSING: Millis = Millis(1_000);

/// Settles what is due of a job, until `until` at most. A job with a living keeper is left alone.
pub(crate) fn if_due(home: &Home, job: &Job, until: Option<Mono>) -> Result<(), Failure> {
    let facts = job.look().map_err(|error| failure::of_system("reading the job", &error))?;
    if is_due(&facts) {
        within(home, job.id(), Settle::IfDue, until)?;
    }
    Ok(())
}

fn is_due(facts: &JobFacts) -> bool {
    facts.attestation.is_none() && settling(facts) != Settling::NotNeeded
}

/// Settles a job until `until` at most; `None` where that was not long enough.
pub(crate) fn within(
    home: &Home,
    id: JobId,
    how: Settle,
    until: Option<Mono>,
) -> Result<Option<Outcome>, Failure> {
    let path = home.path().to_owned();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody may be listening any more; the job's folder has what came of it.
        let _ = sender.send(persist(&path, id, &how));
    });
    let outcome = match until {
        None => receiver.recv().ok(),
        Some(until) => receiver.recv_timeout(Duration::from_millis(until.since(clock::mono_now()).0)).ok(),
    };
    outcome.transpose().map_err(|error| failure::of_system("settling the job", &error))
}

/// One settler works at a time; this one waits for its turn.
fn persist(home: &Path, id: JobId, how: &Settle) -> io::Result<Outcome> {
    let home = Home::open(home).map_err(io::Error::other)?;
    let job = home.job(id)?.ok_or(io::ErrorKind::NotFound)?;
    loop {
        match settle(&home, &job, how)? {
            Outcome::Busy => {}
            outcome => return Ok(outcome),
        }
        // Who has the lock may be a keeper that came late, and not another settler.
        let facts = job.look()?;
        let due = settling(&facts);
        match (facts.receipt, &facts.attestation) {
            (Some(receipt), _) => return Ok(Outcome::Settled(Box::new(receipt))),
            (None, Some(word)) if *how == Settle::IfDue => {
                return Ok(Outcome::StillUnknown { why: format!("{} attested its death", word.name) });
            }
            (None, _) => {}
        }
        if due == Settling::NotNeeded {
            return Ok(Outcome::KeeperLives);
        }
        std::thread::sleep(OTHER_SETTLER);
    }
}
