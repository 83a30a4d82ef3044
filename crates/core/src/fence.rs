//! Fences: what is stale is dropped and recorded, never done.

use crate::id::{Attempt, Generation, JobId, RunId, Scope};
use crate::time::{Millis, UnixMicros};
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// The version of a [`FenceRecord`]. A reader refuses a later one.
pub const FENCE_SCHEMA: u32 = 1;

/// What a hand keeps of one scope, durably: what is older or sealed is refused for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    /// [`FENCE_SCHEMA`] of the writer.
    #[serde(default = "first_schema")]
    pub schema: u32,
    /// The scope.
    pub scope: Scope,
    /// The highest generation seen.
    pub generation: Generation,
    /// Runs that admit nothing more, in the order of their seals.
    #[serde(default)]
    pub sealed: Vec<SealedRun>,
}

fn first_schema() -> u32 {
    1
}

/// A run that was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedRun {
    /// Which.
    pub run: RunId,
    /// When, by the wall clock.
    pub at: UnixMicros,
}

/// What a fence says of an admission whose generation is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It may pass.
    Open,
    /// It brings a higher generation, which must be kept durably before it passes.
    Raises,
    /// Its run is sealed: it may find what exists, and admits nothing.
    Sealed,
}

impl FenceRecord {
    /// A scope that nothing is known of.
    #[must_use]
    pub fn new(scope: Scope) -> FenceRecord {
        FenceRecord { schema: FENCE_SCHEMA, scope, generation: Generation(0), sealed: Vec::new() }
    }

    /// Checks an admission. A higher generation is told before a sealed run, because it is kept in any case.
    ///
    /// # Errors
    /// [`ClosedGeneration`] where the admission is older.
    pub fn check(&self, carried: Generation, run: Option<&RunId>) -> Result<Passage, ClosedGeneration> {
        Ok(match check_admission(carried, self.generation)? {
            higher if higher > self.generation => Passage::Raises,
            _ if run.is_some_and(|run| self.is_sealed(run)) => Passage::Sealed,
            _ => Passage::Open,
        })
    }

    /// Raises the highest generation; `false` where it is that already and nothing has to be written.
    ///
    /// # Errors
    /// [`ClosedGeneration`] where `carried` is older.
    pub fn raise(&mut self, carried: Generation) -> Result<bool, ClosedGeneration> {
        let before = self.generation;
        self.generation = check_admission(carried, before)?;
        Ok(self.generation != before)
    }

    /// Seals a run at `now`, under a generation that may be higher than any seen. `false` where it was sealed before: then
    /// its first time stays. A seal cannot be undone, so one that is stale is dropped like everything that is.
    ///
    /// # Errors
    /// [`ClosedGeneration`] where `carried` is older.
    pub fn seal(
        &mut self,
        run: &RunId,
        carried: Generation,
        now: UnixMicros,
    ) -> Result<bool, ClosedGeneration> {
        self.raise(carried)?;
        let new = !self.is_sealed(run);
        if new {
            self.sealed.push(SealedRun { run: run.clone(), at: now });
        }
        Ok(new)
    }

    /// When this run was sealed, by the wall clock; `None` where it was not.
    #[must_use]
    pub fn sealed_at(&self, run: &RunId) -> Option<UnixMicros> {
        self.sealed.iter().find(|sealed| sealed.run == *run).map(|sealed| sealed.at)
    }

    /// Whether this run was sealed.
    #[must_use]
    pub fn is_sealed(&self, run: &RunId) -> bool {
        self.sealed.iter().any(|sealed| sealed.run == *run)
    }
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

/// What is known of the attempts under one idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempts {
    /// The latest whose job is here.
    pub kept: Option<Attempt>,
    /// Whether that one is proved dead or attested.
    pub kept_is_over: bool,
    /// Whether the job of the attempt that is asked for is here.
    pub asked_is_kept: bool,
    /// The attempt whose tombstone is here: it was proved dead, and has been removed since.
    pub removed: Option<Attempt>,
}

/// What answers for an attempt that is asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptAnswer {
    /// Its job is here.
    Existing,
    /// It is the next one and may be admitted.
    Admit,
    /// The tombstone: of this attempt, or of a later one.
    Removed,
    /// It is the next one, and the latest is not proved dead.
    NotProvedDead(Attempt),
    /// It is neither here nor the next one after this, the latest.
    NotTheLatest(Attempt),
    /// It is a later one, and nothing of the key is here.
    FollowsNothing,
}

/// Says what answers for attempt `asked`. Whoever is asked twice answers alike, so a repeated request does no harm.
#[must_use]
pub fn answer_attempt(asked: Attempt, known: Attempts) -> AttemptAnswer {
    if known.asked_is_kept {
        return AttemptAnswer::Existing;
    }
    // A tombstone is written before its job goes, and later attempts go first: where it is the later, it is the latest.
    let latest = known.kept.max(known.removed);
    let latest_is_over = known.kept_is_over || latest != known.kept;
    match (latest, known.removed) {
        (_, Some(removed)) if asked == removed => AttemptAnswer::Removed,
        (Some(latest), Some(removed)) if asked < removed && latest == removed => AttemptAnswer::Removed,
        _ if may_admit_attempt(asked, latest, latest_is_over) => AttemptAnswer::Admit,
        (Some(latest), _) if asked == latest.next() && asked != latest => {
            AttemptAnswer::NotProvedDead(latest)
        }
        (Some(latest), _) => AttemptAnswer::NotTheLatest(latest),
        (None, _) => AttemptAnswer::FollowsNothing,
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
    fn what_a_fence_lets_pass() {
        let run = |name: &str| RunId::new(name).unwrap();
        let mut fence = FenceRecord::new(Scope::new("s").unwrap());
        assert_eq!(fence.check(Generation(0), Some(&run("a"))), Ok(Passage::Open));
        assert_eq!(fence.raise(Generation(0)), Ok(false), "nothing to write");
        assert_eq!(fence.raise(Generation(3)), Ok(true));
        assert_eq!(fence.seal(&run("a"), Generation(3), UnixMicros(1)), Ok(true));
        assert_eq!(fence.seal(&run("a"), Generation(4), UnixMicros(2)), Ok(false));
        assert_eq!(fence.sealed_at(&run("a")), Some(UnixMicros(1)));
        assert_eq!(fence.sealed_at(&run("b")), None);
        let older = ClosedGeneration { carried: Generation(3), highest: Generation(4) };
        for (carried, of, expected) in [
            (3, None, Err(older)),
            (3, Some("a"), Err(older)),
            (3, Some("b"), Err(older)),
            (4, None, Ok(Passage::Open)),
            (4, Some("a"), Ok(Passage::Sealed)),
            (4, Some("b"), Ok(Passage::Open)),
            (5, None, Ok(Passage::Raises)),
            (5, Some("a"), Ok(Passage::Raises)),
            (5, Some("b"), Ok(Passage::Raises)),
        ] {
            let of = of.map(run);
            assert_eq!(fence.check(Generation(carried), of.as_ref()), expected, "{carried} {of:?}");
        }
        let before = fence.clone();
        assert_eq!(fence.raise(Generation(3)), Err(older));
        assert_eq!(fence.seal(&run("b"), Generation(3), UnixMicros(3)), Err(older));
        assert_eq!(fence, before, "what is refused changes nothing");
    }

    #[test]
    fn a_record_without_a_schema_is_of_the_first() {
        let text = r#"{"scope": "s", "generation": 3}"#;
        let record: FenceRecord = serde_json::from_str(text).unwrap();
        assert_eq!((record.schema, record.generation, record.sealed.len()), (1, Generation(3), 0));
    }

    #[test]
    fn what_answers_for_an_attempt() {
        use AttemptAnswer::*;
        let of = |number: u32| Attempt(std::num::NonZeroU32::new(number).unwrap());
        // Asked, the latest kept, whether it is over, whether the asked one is kept, the tombstone's: the answer.
        for (asked, kept, over, here, removed, answer) in [
            (1, 0, false, false, 0, Admit),
            (2, 0, false, false, 0, FollowsNothing),
            (1, 1, false, true, 0, Existing),
            (1, 1, true, true, 0, Existing),
            (1, 3, false, true, 0, Existing),
            (2, 1, true, false, 0, Admit),
            (2, 1, false, false, 0, NotProvedDead(of(1))),
            (3, 1, true, false, 0, NotTheLatest(of(1))),
            (3, 1, false, false, 0, NotTheLatest(of(1))),
            // Removed: it answers for itself and for what was before it, and the next may follow it.
            (1, 0, false, false, 1, Removed),
            (1, 0, false, false, 2, Removed),
            (2, 0, false, false, 2, Removed),
            (3, 0, false, false, 2, Admit),
            (4, 0, false, false, 2, NotTheLatest(of(2))),
            // In the middle of a removal: the later ones have gone, the earlier are there.
            (1, 1, true, true, 2, Existing),
            (2, 1, true, false, 2, Removed),
            (3, 1, true, false, 2, Admit),
            (4, 1, true, false, 2, NotTheLatest(of(2))),
            // A tombstone of an earlier one: a later one is kept.
            (1, 2, false, false, 1, Removed),
            (3, 2, false, false, 1, NotProvedDead(of(2))),
            (3, 2, true, false, 1, Admit),
            (1, 3, true, false, 2, NotTheLatest(of(3))),
        ] {
            let some = |number: u32| (number > 0).then(|| of(number));
            let known = Attempts {
                kept: some(kept),
                kept_is_over: over,
                asked_is_kept: here,
                removed: some(removed),
            };
            assert_eq!(answer_attempt(of(asked), known), answer, "{asked} of {known:?}");
        }
        let last = Attempt(std::num::NonZeroU32::MAX);
        let known = Attempts { kept: Some(last), kept_is_over: true, ..Attempts::default() };
        assert_eq!(answer_attempt(last, known), NotTheLatest(last), "the last has no next");
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
