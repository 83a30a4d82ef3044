//! One decision for each call: the reply carries the result, or the task is handed off and an event is owed.
//!
//! It is asked whenever something changed and when [`Decision::Wait`] says; what it answers is committed in the
//! transaction that read the facts it was asked with. An answer that decides is given again to whoever asks again.

use crate::spec::JobKind;
use crate::task::{HandOff, HandOffWhy, ResultState, TaskFacts, result_state};
use crate::time::{Millis, UnixMicros};
use serde::{Deserialize, Serialize};

/// What the call that started a task asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Mode {
    /// Hand off at once.
    Background,
    /// Wait for the result in the reply.
    Foreground {
        /// The call's limit.
        limit: UnixMicros,
        /// What happens at the limit.
        on_limit: OnLimit,
    },
}

/// What happens to a command that its call's limit meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// It becomes a background task.
    Background,
    /// It is stopped.
    Stop,
}

/// Where the reply to the call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It can still carry something.
    Open,
    /// It ended, and nothing is known to hold what it carried.
    Closed,
    /// The run's history, or an acknowledgement by the caller, holds what it carried: the result.
    Taken,
}

/// What to do about a call now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Decided: the reply carried the result, and no event is owed.
    CarryResult,
    /// Decided: the task is handed off, and one event is owed once it is over.
    HandOff {
        /// Why.
        why: HandOffWhy,
    },
    /// Put the result into the reply. Nothing is decided before it is taken, or the reply is closed.
    Offer,
    /// Accept a stop of the task, by the brain.
    Stop,
    /// Keep the reply open, and ask again then at the latest.
    Wait {
        /// When.
        until: UnixMicros,
    },
}

/// How long a call whose limit stops the command stays open for evidence: grace, drain, and what the hand needs.
pub const STOP_PATIENCE: Millis = Millis(15_000);

/// Decides about a call.
pub fn decide(facts: &TaskFacts, mode: Mode, reply: Reply, now: UnixMicros) -> Decision {
    let hand_off = |why| Decision::HandOff { why };
    match facts.hand_off {
        HandOff::Carried { .. } => return Decision::CarryResult,
        HandOff::HandedOff { why, .. } => return hand_off(why),
        HandOff::Undecided => {}
    }
    let (limit, on_limit) = match mode {
        // A service has no result that a reply could wait for.
        _ if facts.reserved.kind == JobKind::Service => return hand_off(HandOffWhy::Background),
        Mode::Background => return hand_off(HandOffWhy::Background),
        Mode::Foreground { limit, on_limit } => (limit, on_limit),
    };
    let result = result_state(facts);
    match (reply, &result) {
        (Reply::Taken, ResultState::Readable | ResultState::Unavailable { .. }) => {
            return Decision::CarryResult;
        }
        // Nothing but a result can have been taken, and there is none: told twice is better than never.
        (Reply::Taken | Reply::Closed, _) => return hand_off(HandOffWhy::LostReply),
        (Reply::Open, ResultState::Readable | ResultState::Unavailable { .. }) => return Decision::Offer,
        (Reply::Open, _) => {}
    }
    if now < limit {
        return Decision::Wait { until: limit };
    }
    if facts.ended().is_some() {
        return hand_off(HandOffWhy::ResultPending);
    }
    match (on_limit, &facts.stop) {
        (OnLimit::Background, _) => hand_off(HandOffWhy::Cutover),
        (OnLimit::Stop, None) => Decision::Stop,
        (OnLimit::Stop, Some(stop)) => {
            let until = stop.at.max(limit).plus(STOP_PATIENCE);
            if now < until { Decision::Wait { until } } else { hand_off(HandOffWhy::Cutover) }
        }
    }
}

/// When a call is at its limit: after the cutover, or its face's own budget where that is smaller.
#[must_use]
pub fn limit(began: UnixMicros, cutover: Millis, budget: Option<Millis>) -> UnixMicros {
    began.plus(budget.map_or(cutover, |budget| budget.min(cutover)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::samples::*;
    use crate::task::{Learned, News, Seen, StopBy, UnavailableWhy};
    use proptest::prelude::*;

    const LIMIT: UnixMicros = UnixMicros(100);
    const BEFORE: UnixMicros = UnixMicros(99);

    fn foreground(on_limit: OnLimit) -> Mode {
        Mode::Foreground { limit: LIMIT, on_limit }
    }

    fn handed_off(why: HandOffWhy) -> Decision {
        Decision::HandOff { why }
    }

    #[test]
    fn each_race_has_one_answer() {
        let running = || running(JobKind::Command);
        let with = |news: &[News]| after(running(), news.to_vec());
        let wait = Decision::Wait { until: LIMIT };
        let lost = handed_off(HandOffWhy::LostReply);
        let cutover = handed_off(HandOffWhy::Cutover);
        use Reply::{Closed, Open, Taken};
        for (facts, reply, now, expected) in [
            // Nothing is known yet.
            (reserved(JobKind::Command), Open, BEFORE, wait),
            (running(), Open, BEFORE, wait),
            (running(), Open, LIMIT, cutover),
            (running(), Closed, BEFORE, lost),
            (running(), Closed, LIMIT, lost),
            (after(reserved(JobKind::Command), [ASKED, News::AnswerLost]), Open, LIMIT, cutover),
            (with(&[News::Seen(Seen::Unreachable)]), Open, LIMIT, cutover),
            // It is over just before, at, or after the limit: the reply can still carry it.
            (with(&[exited(0, 0)]), Open, BEFORE, Decision::Offer),
            (with(&[exited(0, 0)]), Open, LIMIT, Decision::Offer),
            (with(&[exited(1, 0)]), Taken, LIMIT, Decision::CarryResult),
            (with(&[exited(0, 0)]), Closed, BEFORE, lost),
            (with(&[destroyed()]), Open, BEFORE, Decision::Offer),
            (
                with(&[exited(0, 5), News::Unavailable(UnavailableWhy::Removed)]),
                Open,
                BEFORE,
                Decision::Offer,
            ),
            // It is over, and its output is not committed.
            (with(&[exited(0, 5)]), Open, BEFORE, wait),
            (with(&[exited(0, 5)]), Open, LIMIT, handed_off(HandOffWhy::ResultPending)),
            (with(&[exited(0, 5)]), Closed, BEFORE, lost),
            (with(&[exited(0, 5)]), Taken, BEFORE, lost),
            (running(), Taken, BEFORE, lost),
            // It is being stopped.
            (with(&[stop("s", StopBy::Run)]), Open, BEFORE, wait),
            (with(&[stop("s", StopBy::Run)]), Open, LIMIT, cutover),
            (with(&[stop("s", StopBy::Run)]), Closed, BEFORE, lost),
            (with(&[stop("s", StopBy::Run), exited(0, 0)]), Open, BEFORE, Decision::Offer),
        ] {
            let decided = decide(&facts, foreground(OnLimit::Background), reply, now);
            assert_eq!(decided, expected, "{reply:?} at {now:?}: {facts:?}");
        }
    }

    #[test]
    fn a_call_that_stops_at_its_limit() {
        let at = |facts: &_, now| decide(facts, foreground(OnLimit::Stop), Reply::Open, now);
        let running = running(JobKind::Command);
        assert_eq!(at(&running, BEFORE), Decision::Wait { until: LIMIT });
        assert_eq!(at(&running, LIMIT), Decision::Stop);
        let stopping = after(running, [stop("limit", StopBy::System)]);
        let until = LIMIT.plus(STOP_PATIENCE);
        assert_eq!(at(&stopping, LIMIT), Decision::Wait { until });
        assert_eq!(at(&stopping, until), handed_off(HandOffWhy::Cutover), "its end is still owed");
        assert_eq!(at(&after(stopping, [exited(0, 0)]), until), Decision::Offer);
    }

    #[test]
    fn what_is_handed_off_at_once() {
        let background = handed_off(HandOffWhy::Background);
        let command = running(JobKind::Command);
        for reply in [Reply::Open, Reply::Closed, Reply::Taken] {
            assert_eq!(decide(&command, Mode::Background, reply, BEFORE), background);
            let ended = after(command.clone(), [exited(0, 0)]);
            assert_eq!(decide(&ended, Mode::Background, reply, BEFORE), background);
            for mode in [foreground(OnLimit::Stop), foreground(OnLimit::Background), Mode::Background] {
                assert_eq!(decide(&running(JobKind::Service), mode, reply, LIMIT), background);
            }
        }
    }

    #[test]
    fn the_smaller_limit_counts() {
        let minute = Millis(60_000);
        let began = UnixMicros(1_000_000);
        assert_eq!(limit(began, minute, None), UnixMicros(61_000_000));
        assert_eq!(limit(began, minute, Some(Millis(45_000))), UnixMicros(46_000_000));
        assert_eq!(limit(began, minute, Some(Millis(90_000))), UnixMicros(61_000_000));
        assert_eq!(limit(UnixMicros(u64::MAX), minute, None), UnixMicros(u64::MAX));
    }

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            Just(Mode::Background),
            Just(foreground(OnLimit::Background)),
            Just(foreground(OnLimit::Stop)),
        ]
    }

    proptest! {
        /// Whatever happens around a call: the result was carried or an event is owed, never both; what was decided is
        /// decided again; and once the reply is closed, or time has passed, something is decided.
        #[test]
        fn one_decision(
            mode in any_mode(),
            steps in prop::collection::vec((any_news(), 0u64..60, 0usize..9), 0..40),
        ) {
            let (mut facts, mut now, mut closed, mut carried) = (running(JobKind::Command), 0, false, false);
            for (news, pause, reply) in steps {
                now += pause;
                if !matches!(news, News::Carried | News::HandedOff(_)) {
                    let _ = facts.learn(news, UnixMicros(now));
                }
                closed |= reply == 0;
                let reply = match reply {
                    _ if closed => Reply::Closed,
                    1 => Reply::Taken,
                    _ => Reply::Open,
                };
                let decided = decide(&facts, mode, reply, UnixMicros(now));
                let news = match decided {
                    Decision::CarryResult => News::Carried,
                    Decision::HandOff { why } => News::HandedOff(why),
                    Decision::Stop => stop("limit", StopBy::System),
                    Decision::Offer => continue,
                    Decision::Wait { until } => {
                        prop_assert!(until > UnixMicros(now) && reply == Reply::Open);
                        continue;
                    }
                };
                let learned = facts.learn(news, UnixMicros(now));
                prop_assert!(matches!(learned, Ok(Learned::Changed | Learned::Unchanged)), "{:?}", learned);
                carried |= decided == Decision::CarryResult;
                let owed = crate::delivery::owed(&facts).is_some();
                prop_assert!(!(carried && owed));
                if facts.hand_off != HandOff::Undecided {
                    prop_assert_eq!(decide(&facts, mode, Reply::Open, UnixMicros(now)), decided);
                    prop_assert_eq!(carried, !matches!(facts.hand_off, HandOff::HandedOff { .. }));
                }
            }
            let much_later = UnixMicros(now).plus(Millis(1_000_000));
            let last = decide(&facts, mode, Reply::Closed, much_later);
            let is_decided = matches!(last, Decision::CarryResult | Decision::HandOff { .. });
            prop_assert!(is_decided, "{:?}", last);
        }
    }
}
