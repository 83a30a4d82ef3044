//! Fences: what is stale is dropped and recorded, never done.

use crate::id::{Attempt, Generation, JobId};
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A request to end one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// The stop's own id, so that a repeated request is the same stop.
    pub id: String,
    /// The job it is meant for; the attempt is part of the id.
    pub job_id: JobId,
    /// The generation of the run that asks.
    pub generation: Generation,
    /// KILL at once, without TERM and grace.
    #[serde(default)]
    pub force: bool,
    /// The time between TERM and KILL, where it is to be another than the job's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grace: Option<Millis>,
    /// Why: what the receipt names as cause.
    pub reason: StopReason,
}

/// Why a stop was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StopReason {
    /// Somebody asked.
    Asked,
    /// The call's budget ended and the caller chose `--on-limit stop`.
    CallBudget {
        /// The budget.
        after_ms: u64,
    },
    /// The call's budget ended and the caller allows no hand-off: the command may save once and is paused.
    Pause,
}

/// Why a stop was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stale {
    /// It was meant for another attempt or another job.
    #[error("the stop was meant for {meant}, this is {target}")]
    OtherJob {
        /// The job the stop names.
        meant: JobId,
        /// The job that was asked.
        target: JobId,
    },
    /// It carries another generation than the job.
    #[error("the stop carries generation {carried}, the job has {target}")]
    OtherGeneration {
        /// The stop's.
        carried: Generation,
        /// The job's.
        target: Generation,
    },
}

/// Checks a stop against the job it reached. To be called at the last moment before a signal.
///
/// # Errors
/// [`Stale`]: record it, answer it, signal nothing.
pub fn check_stop(request: &StopRequest, job_id: JobId, generation: Generation) -> Result<(), Stale> {
    if request.job_id != job_id {
        return Err(Stale::OtherJob { meant: request.job_id, target: job_id });
    }
    if request.generation != generation {
        return Err(Stale::OtherGeneration { carried: request.generation, target: generation });
    }
    Ok(())
}

/// An admission from a generation that has been closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("generation {carried} was closed: this hand has seen generation {highest}")]
pub struct ClosedGeneration {
    /// The admission's.
    pub carried: Generation,
    /// The highest seen.
    pub highest: Generation,
}

/// Checks an admission against the highest generation this hand has seen, and returns the highest from now on.
///
/// # Errors
/// [`ClosedGeneration`] where the admission is older.
pub fn check_admission(carried: Generation, highest: Generation) -> Result<Generation, ClosedGeneration> {
    if carried < highest { Err(ClosedGeneration { carried, highest }) } else { Ok(carried) }
}

/// Whether attempt `asked` may be admitted when the latest is `latest`, and that one is proved dead (or attested, which
/// frees its key) or not.
#[must_use]
pub fn may_admit_attempt(asked: Attempt, latest: Option<Attempt>, latest_is_proved_dead: bool) -> bool {
    match latest {
        None => asked == Attempt::FIRST,
        Some(latest) => asked == latest.next() && asked != latest && latest_is_proved_dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_stops_are_named() {
        let job: JobId = "0000000000000000.1.1".parse().unwrap();
        let request = |job_id, generation| StopRequest {
            id: "s".into(),
            job_id,
            generation: Generation(generation),
            force: false,
            grace: None,
            reason: StopReason::Asked,
        };
        assert_eq!(check_stop(&request(job, 3), job, Generation(3)), Ok(()));
        assert!(matches!(
            check_stop(&request(job, 2), job, Generation(3)),
            Err(Stale::OtherGeneration { .. })
        ));
        assert!(matches!(
            check_stop(&request(job, 4), job, Generation(3)),
            Err(Stale::OtherGeneration { .. })
        ));
        assert!(matches!(
            check_stop(&request(job.next_attempt(), 3), job, Generation(3)),
            Err(Stale::OtherJob { .. })
        ));
    }

    #[test]
    fn generations_never_go_back() {
        assert_eq!(check_admission(Generation(3), Generation(3)), Ok(Generation(3)));
        assert_eq!(check_admission(Generation(4), Generation(3)), Ok(Generation(4)));
        assert!(check_admission(Generation(2), Generation(3)).is_err());
    }

    #[test]
    fn an_attempt_follows_only_a_proved_death() {
        let second = Attempt::FIRST.next();
        assert!(may_admit_attempt(Attempt::FIRST, None, false));
        assert!(!may_admit_attempt(second, None, true));
        assert!(!may_admit_attempt(Attempt::FIRST, Some(Attempt::FIRST), true));
        assert!(!may_admit_attempt(second, Some(Attempt::FIRST), false));
        assert!(may_admit_attempt(second, Some(Attempt::FIRST), true));
    }
}
