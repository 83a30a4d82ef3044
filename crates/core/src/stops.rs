//! Stops: which tasks one hits, and what it does to them. Accepted is not done: that takes evidence.

use crate::id::{ConversationId, Generation, JobId, RunId, StopId, TaskId, TenantId};
use crate::task::{End, HandOff, Start, StopBy, StopFacts, TaskFacts};
use crate::time::UnixMicros;
use serde::{Deserialize, Serialize};

/// A stop as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopCall {
    /// Its own id, so that a repeated call is the same stop.
    pub id: StopId,
    /// Whose.
    pub tenant: TenantId,
    /// In which conversation.
    pub conversation: ConversationId,
    /// The generation its caller saw.
    pub generation: Generation,
    /// What is to stop.
    pub target: StopTarget,
}

/// What a stop is meant for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StopTarget {
    /// One task.
    Task {
        /// Which.
        task: TaskId,
    },
    /// One run, and what it has not handed off.
    Run {
        /// Which.
        run: RunId,
    },
    /// Everything of the generation, which is closed by it.
    All,
}

/// What a call for a stop leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum StopAnswer {
    /// It is accepted.
    Accepted {
        /// The conversation's generation from now on.
        generation: Generation,
    },
    /// It is meant for a generation that has been closed: record it, answer it, stop nothing.
    Dropped {
        /// The conversation's generation.
        generation: Generation,
    },
}

/// Whether a stop hits a task.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Hit {
    /// It does: this is to be learnt by its facts.
    Yes(StopFacts),
    /// It does, and a stop was accepted before.
    Stopping(StopId),
    /// It would, but the task is over.
    Over,
    /// It does not.
    Spared(Spared),
}

/// Why a stop does not hit a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spared {
    /// It is another's.
    OtherScope,
    /// It is of another generation.
    OtherGeneration,
    /// It is not the one meant, or not of the run meant.
    NotMeant,
    /// It was handed off, and a stop of its run leaves it.
    HandedOff,
}

/// Checks a call for a stop against the conversation's generation, as the last thing before it is committed. Whoever keeps
/// stops by id answers a repeated call as the first time: by then a stop-all has made its own generation an older one.
pub fn accept(call: &StopCall, current: Generation) -> StopAnswer {
    match &call.target {
        _ if call.generation != current => StopAnswer::Dropped { generation: current },
        StopTarget::All => StopAnswer::Accepted { generation: Generation(current.0.saturating_add(1)) },
        StopTarget::Task { .. } | StopTarget::Run { .. } => StopAnswer::Accepted { generation: current },
    }
}

/// Says whether an accepted stop hits a task. Asked about every task in the transaction that accepts it, and never later:
/// what is reserved afterwards belongs to another generation, or was not there to be meant.
pub fn hits(call: &StopCall, facts: &TaskFacts, now: UnixMicros) -> Hit {
    let owner = &facts.owner;
    if owner.tenant != call.tenant || owner.conversation != call.conversation {
        return Hit::Spared(Spared::OtherScope);
    }
    if owner.generation != call.generation {
        return Hit::Spared(Spared::OtherGeneration);
    }
    let by = match &call.target {
        StopTarget::Task { task } if *task != facts.id => return Hit::Spared(Spared::NotMeant),
        StopTarget::Run { run } if *run != owner.run => return Hit::Spared(Spared::NotMeant),
        StopTarget::Run { .. } if matches!(facts.hand_off, HandOff::HandedOff { .. }) => {
            return Hit::Spared(Spared::HandedOff);
        }
        StopTarget::Task { .. } => StopBy::Person,
        StopTarget::Run { .. } => StopBy::Run,
        StopTarget::All => StopBy::StopAll,
    };
    if facts.ended().is_some() {
        return Hit::Over;
    }
    match facts.stopped_by_a_person() {
        Some(earlier) => Hit::Stopping(earlier.id.clone()),
        None => Hit::Yes(StopFacts { id: call.id.clone(), by, at: now }),
    }
}

/// What is to be done about an accepted stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum StopStep {
    /// Nothing: no stop was accepted, or the task is over.
    Nothing,
    /// No hand was asked: record that none will be.
    RecordNotStarted,
    /// A hand may have it: look for its key there without asking for a start. What is not there after `until` never was.
    Find {
        /// After this no request for its start is obeyed any more.
        until: UnixMicros,
    },
    /// Ask the hand to end this job, and look at it again, whatever was answered.
    End {
        /// The job.
        job_id: JobId,
        /// Under which id.
        stop: StopId,
    },
}

/// Says what is to be done about an accepted stop. However often it is asked, it says the same until there is evidence.
pub fn next_step(facts: &TaskFacts) -> StopStep {
    let Some(stop) = &facts.stop else { return StopStep::Nothing };
    match &facts.start {
        Start::NotAsked => StopStep::RecordNotStarted,
        Start::Asked { expires, .. } => StopStep::Find { until: *expires },
        Start::Admitted { job_id, end: End::Open { .. } | End::Attested { .. }, .. } => {
            StopStep::End { job_id: *job_id, stop: stop.id.clone() }
        }
        Start::Admitted { .. } | Start::NotStarted { .. } | Start::LostWithSandbox { .. } => {
            StopStep::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::JobKind;
    use crate::task::samples::*;
    use crate::task::{HandOffWhy, Learned, News, NoStart, TaskState, project_task};
    use proptest::prelude::*;

    const NOW: UnixMicros = UnixMicros(50);

    fn call(target: StopTarget) -> StopCall {
        let owner = owner();
        StopCall {
            id: StopId::new("s2").unwrap(),
            tenant: owner.tenant,
            conversation: owner.conversation,
            generation: owner.generation,
            target,
        }
    }

    fn task() -> StopTarget {
        StopTarget::Task { task: TaskId::new("t").unwrap() }
    }

    fn run() -> StopTarget {
        StopTarget::Run { run: owner().run }
    }

    fn yes(by: StopBy) -> Hit {
        Hit::Yes(StopFacts { id: StopId::new("s2").unwrap(), by, at: NOW })
    }

    #[test]
    fn stale_calls_are_dropped() {
        for target in [task(), run(), StopTarget::All] {
            for (current, seen) in [(3, 3), (4, 3), (2, 3)] {
                let answer = accept(
                    &StopCall { generation: Generation(seen), ..call(target.clone()) },
                    Generation(current),
                );
                let expected = match (&target, current == seen) {
                    (_, false) => StopAnswer::Dropped { generation: Generation(current) },
                    (StopTarget::All, true) => StopAnswer::Accepted { generation: Generation(4) },
                    (_, true) => StopAnswer::Accepted { generation: Generation(3) },
                };
                assert_eq!(answer, expected, "{target:?}");
            }
        }
    }

    #[test]
    fn which_tasks_a_stop_hits() {
        let running = || running(JobKind::Command);
        let handed_off = || after(running(), [News::HandedOff(HandOffWhy::Cutover)]);
        let other_task = || StopTarget::Task { task: TaskId::new("u").unwrap() };
        let other_run = || StopTarget::Run { run: RunId::new("bob's").unwrap() };
        let all = || StopTarget::All;
        for (target, facts, expected) in [
            (task(), running(), yes(StopBy::Person)),
            (task(), handed_off(), yes(StopBy::Person)),
            (task(), reserved(JobKind::Command), yes(StopBy::Person)),
            (other_task(), running(), Hit::Spared(Spared::NotMeant)),
            (run(), running(), yes(StopBy::Run)),
            (run(), handed_off(), Hit::Spared(Spared::HandedOff)),
            (other_run(), running(), Hit::Spared(Spared::NotMeant)),
            (all(), running(), yes(StopBy::StopAll)),
            (all(), handed_off(), yes(StopBy::StopAll)),
            (
                all(),
                after(handed_off(), [stop("s1", StopBy::Person)]),
                Hit::Stopping(StopId::new("s1").unwrap()),
            ),
            (all(), after(handed_off(), [stop("s1", StopBy::Deadline)]), yes(StopBy::StopAll)),
            (all(), after(running(), [exited(0, 0)]), Hit::Over),
            (all(), after(running(), [destroyed()]), Hit::Over),
            (all(), after(running(), [attested()]), yes(StopBy::StopAll)),
        ] {
            assert_eq!(hits(&call(target.clone()), &facts, NOW), expected, "{target:?} {facts:?}");
        }
        let mut other = call(all());
        other.generation = Generation(4);
        assert_eq!(hits(&other, &running(), NOW), Hit::Spared(Spared::OtherGeneration));
        other = StopCall { tenant: TenantId::new("other").unwrap(), ..call(all()) };
        assert_eq!(hits(&other, &running(), NOW), Hit::Spared(Spared::OtherScope));
        other = StopCall { conversation: ConversationId::new("d").unwrap(), ..call(task()) };
        assert_eq!(hits(&other, &running(), NOW), Hit::Spared(Spared::OtherScope));
    }

    #[test]
    fn a_stop_that_races_the_start() {
        let asked = after(reserved(JobKind::Command), [ASKED, News::AnswerLost, stop("s1", StopBy::Person)]);
        assert_eq!(next_step(&asked), StopStep::Find { until: UnixMicros(20) });
        let late = after(asked.clone(), [News::Admitted { job_id: job() }]);
        assert_eq!(late.stop, asked.stop, "a late answer adds the job and leaves the stop");
        let end = StopStep::End { job_id: job(), stop: StopId::new("s1").unwrap() };
        assert_eq!(next_step(&late), end);
        let mut never = asked;
        let not_found = News::NotStarted { why: NoStart::NotFound };
        assert_eq!(never.learn(not_found, UnixMicros(21)), Ok(Learned::Changed));
        assert_eq!(next_step(&never), StopStep::Nothing);
        assert_eq!(project_task(&never, NOW).state, TaskState::Cancelled);
        let unasked = after(reserved(JobKind::Command), [stop("s1", StopBy::Person)]);
        assert_eq!(next_step(&unasked), StopStep::RecordNotStarted);
    }

    #[test]
    fn a_stop_that_races_the_end() {
        let first = after(running(JobKind::Command), [exited(0, 0)]);
        assert_eq!(hits(&call(task()), &first, NOW), Hit::Over);
        assert_eq!(project_task(&first, NOW).state, TaskState::Succeeded);
        let Hit::Yes(accepted) = hits(&call(task()), &running(JobKind::Command), NOW) else { panic!() };
        let second = after(running(JobKind::Command), [News::Stop(accepted), exited(0, 0)]);
        assert_eq!(project_task(&second, NOW).state, TaskState::Cancelled);
        assert_eq!(next_step(&second), StopStep::Nothing);
    }

    proptest! {
        /// Whatever becomes known after a stop was accepted: it is pursued until there is evidence, and never forgotten.
        #[test]
        fn an_accepted_stop_is_pursued(
            before in prop::collection::vec(any_news(), 0..20),
            later in prop::collection::vec((any_news(), 0u64..9), 0..20),
        ) {
            let mut facts = reserved(JobKind::Command);
            for news in before {
                let _ = facts.learn(news, UnixMicros(1));
            }
            let handed_off = matches!(facts.hand_off, HandOff::HandedOff { .. });
            for target in [task(), run(), StopTarget::All] {
                let spares = handed_off && target == run();
                let hit = hits(&call(target), &facts, NOW);
                prop_assert_eq!(spares, hit == Hit::Spared(Spared::HandedOff));
            }
            if let Hit::Yes(stop) = hits(&call(StopTarget::All), &facts, NOW) {
                prop_assert_eq!(facts.learn(News::Stop(stop), NOW), Ok(Learned::Changed));
            }
            let accepted = facts.stopped_by_a_person().cloned();
            let mut now = 50;
            for (news, pause) in later {
                now += pause;
                let asks = matches!(news, News::Asked { .. });
                let learned = facts.learn(news, UnixMicros(now));
                let Some(accepted) = &accepted else { continue };
                prop_assert_eq!(facts.stop.as_ref(), Some(accepted));
                prop_assert!(!(asks && learned.is_ok()), "nothing is started after a stop");
                prop_assert_eq!(next_step(&facts) == StopStep::Nothing, facts.ended().is_some());
                let state = project_task(&facts, UnixMicros(now)).state;
                prop_assert!(matches!(state, TaskState::Stopping | TaskState::Cancelled));
            }
        }
    }
}
