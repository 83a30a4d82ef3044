//! What a waiting call does when something happens: a pure machine, so that every race is a row of a table.
//!
//! The rule behind it: the work is never lost to the call. Whatever ends the call early leaves the command running and
//! says so, unless the caller asked for the opposite: by `--on-limit stop`, by `--no-detach`, or by Ctrl-C.

use outlast_core::time::Millis;

/// What the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// What the end of the budget does.
    pub(crate) at_limit: AtLimit,
    /// The most grace that a stop for the end of the budget gives; `None` for the job's own.
    pub(crate) grace_at_limit: Option<Millis>,
    /// What Ctrl-C does.
    pub(crate) interrupt: OnInterrupt,
}

/// What the end of the budget does to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtLimit {
    /// It goes on.
    GoesOn,
    /// It is ended.
    Stops,
    /// It saves, is ended, and can be continued.
    Pauses,
}

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    /// Stops the job: a person is running a command.
    StopsJob,
    /// Ends the waiting alone.
    EndsWaiting,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// The receipt is there.
    Settled,
    /// The keeper is gone and left no receipt.
    Lost,
    /// The budget is over.
    BudgetOver,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    HangUp,
    /// Nobody reads standard output any more.
    OutputClosed,
    /// Ctrl-C (SIGINT).
    Interrupt,
    /// The tree was told to end so long ago that waiting on is of no use to this call.
    PatienceOver,
}

/// Why a stop was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `--on-limit stop`.
    CallBudget,
    /// `--no-detach`.
    Pause,
    /// Ctrl-C, or a signal to a call that leaves nothing behind.
    Asked,
}

/// Why the call answers before there is a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Early {
    /// The budget is over.
    Budget,
    /// A signal, or nobody reads.
    Told(Happening),
    /// The tree does not end in time.
    Patience,
    /// The person at the terminal detached.
    Detached,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Act {
    /// Nothing.
    WaitOn,
    /// Send a stop and wait on.
    Stop(Stop),
    /// Send a stop and answer at once, without its proof.
    StopAndAnswer(Stop, Early),
    /// Answer with the receipt.
    AnswerResult,
    /// Answer that the job is lost.
    AnswerLost,
    /// Answer that the work goes on.
    AnswerEarly(Early),
    /// Leave at once, saying nothing more.
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The command is waited for.
    Waiting,
    /// A stop was sent.
    Stopping(Stop),
}

/// The machine.
#[derive(Debug, Clone)]
pub(crate) struct Conduct {
    policy: Policy,
    phase: Phase,
}

impl Conduct {
    /// A call that begins to wait.
    pub(crate) fn new(policy: Policy) -> Conduct {
        Conduct { policy, phase: Phase::Waiting }
    }

    /// The stop this call sent.
    pub(crate) fn stop(&self) -> Option<Stop> {
        match self.phase {
            Phase::Waiting => None,
            Phase::Stopping(stop) => Some(stop),
        }
    }

    /// Takes what happened, says what to do.
    pub(crate) fn on(&mut self, happening: Happening) -> Act {
        use Happening::{
            BudgetOver, HangUp, Interrupt, Lost, OutputClosed, PatienceOver, Settled, Terminate,
        };
        let act = match (self.phase, happening) {
            (_, Settled) => Act::AnswerResult,
            (_, Lost) => Act::AnswerLost,
            (Phase::Waiting, BudgetOver) => match self.policy.at_limit {
                AtLimit::GoesOn => Act::AnswerEarly(Early::Budget),
                AtLimit::Stops => Act::Stop(Stop::CallBudget),
                AtLimit::Pauses => Act::Stop(Stop::Pause),
            },
            (Phase::Waiting, Terminate | HangUp | OutputClosed) => match self.policy.at_limit {
                AtLimit::GoesOn => Act::AnswerEarly(Early::Told(happening)),
                // This caller allows nothing to be left behind, and has no time to see it proved.
                AtLimit::Stops => Act::StopAndAnswer(Stop::Asked, Early::Told(happening)),
                AtLimit::Pauses => Act::Stop(Stop::Pause),
            },
            (Phase::Waiting, Interrupt) => match self.policy.interrupt {
                OnInterrupt::StopsJob => Act::Stop(Stop::Asked),
                OnInterrupt::EndsWaiting => Act::AnswerEarly(Early::Told(Interrupt)),
            },
            // The stop goes on by itself in the keeper, so whoever is told twice may leave.
            (Phase::Stopping(_), BudgetOver) => Act::WaitOn,
            (Phase::Stopping(Stop::Pause), Terminate) => Act::Leave,
            (Phase::Stopping(_), Terminate | HangUp | OutputClosed | Interrupt) => {
                Act::AnswerEarly(Early::Told(happening))
            }
            (Phase::Stopping(_), PatienceOver) => Act::AnswerEarly(Early::Patience),
            (Phase::Waiting, PatienceOver) => Act::WaitOn,
        };
        if let Act::Stop(stop) | Act::StopAndAnswer(stop, _) = act {
            self.phase = Phase::Stopping(stop);
        }
        act
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Happening::{BudgetOver, HangUp, Interrupt, Lost, OutputClosed, PatienceOver, Settled, Terminate};

    const FOREGROUND: Policy =
        Policy { at_limit: AtLimit::GoesOn, grace_at_limit: None, interrupt: OnInterrupt::StopsJob };
    const BOUND: Policy = Policy { at_limit: AtLimit::Stops, ..FOREGROUND };
    const PAUSING: Policy = Policy { at_limit: AtLimit::Pauses, ..FOREGROUND };
    const WAITING: Policy = Policy { interrupt: OnInterrupt::EndsWaiting, ..FOREGROUND };

    /// The last of these happenings leads to this act.
    fn check(policy: Policy, happenings: &[Happening], expected: Act) {
        let mut conduct = Conduct::new(policy);
        let acts: Vec<Act> = happenings.iter().map(|happening| conduct.on(*happening)).collect();
        assert_eq!(acts.last(), Some(&expected), "{policy:?} {happenings:?} {acts:?}");
    }

    #[test]
    fn what_happens_to_a_waiting_call() {
        for policy in [FOREGROUND, BOUND, PAUSING, WAITING] {
            check(policy, &[Settled], Act::AnswerResult);
            check(policy, &[Lost], Act::AnswerLost);
            check(policy, &[PatienceOver], Act::WaitOn);
        }
        check(FOREGROUND, &[BudgetOver], Act::AnswerEarly(Early::Budget));
        check(BOUND, &[BudgetOver], Act::Stop(Stop::CallBudget));
        check(PAUSING, &[BudgetOver], Act::Stop(Stop::Pause));
        check(WAITING, &[BudgetOver], Act::AnswerEarly(Early::Budget));
        for told in [Terminate, HangUp, OutputClosed] {
            check(FOREGROUND, &[told], Act::AnswerEarly(Early::Told(told)));
            check(WAITING, &[told], Act::AnswerEarly(Early::Told(told)));
            check(BOUND, &[told], Act::StopAndAnswer(Stop::Asked, Early::Told(told)));
            check(PAUSING, &[told], Act::Stop(Stop::Pause));
        }
        check(FOREGROUND, &[Interrupt], Act::Stop(Stop::Asked));
        check(WAITING, &[Interrupt], Act::AnswerEarly(Early::Told(Interrupt)));
    }

    #[test]
    fn a_stop_is_waited_for_within_reason() {
        check(BOUND, &[BudgetOver, Settled], Act::AnswerResult);
        check(BOUND, &[BudgetOver, BudgetOver], Act::WaitOn);
        check(BOUND, &[BudgetOver, PatienceOver], Act::AnswerEarly(Early::Patience));
        check(BOUND, &[BudgetOver, Terminate], Act::AnswerEarly(Early::Told(Terminate)));
        check(FOREGROUND, &[Interrupt, BudgetOver], Act::WaitOn);
        check(FOREGROUND, &[Interrupt, Settled], Act::AnswerResult);
        check(FOREGROUND, &[Interrupt, Interrupt], Act::AnswerEarly(Early::Told(Interrupt)));
        check(FOREGROUND, &[Interrupt, Lost], Act::AnswerLost);
    }

    #[test]
    fn a_pause_lets_one_save_finish() {
        check(PAUSING, &[BudgetOver, Settled], Act::AnswerResult);
        check(PAUSING, &[Terminate, Settled], Act::AnswerResult);
        check(PAUSING, &[Terminate, Terminate], Act::Leave);
        check(PAUSING, &[BudgetOver, HangUp], Act::AnswerEarly(Early::Told(HangUp)));
    }

    #[test]
    fn one_stop_is_sent() {
        for policy in [FOREGROUND, BOUND, PAUSING] {
            for first in [BudgetOver, Terminate, Interrupt] {
                for second in [BudgetOver, Terminate, HangUp, OutputClosed, Interrupt, PatienceOver] {
                    let mut conduct = Conduct::new(policy);
                    if matches!(conduct.on(first), Act::Stop(_)) {
                        let act = conduct.on(second);
                        assert!(
                            !matches!(act, Act::Stop(_) | Act::StopAndAnswer(..)),
                            "{policy:?} {first:?} {second:?}"
                        );
                    }
                }
            }
        }
    }
}
