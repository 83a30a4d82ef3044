//! The machine that decides how a process tree ends.
//!
//! The keeper's warden feeds it what happened, with the time it happened at, and obeys the orders that come back.
//! It never looks at a clock: [`Warden::wake_at`] says when it wants to be told the time next, and where nothing is
//! due the keeper sleeps for ever. Output plays no part in it, so a silent command times out like a loud one.

use crate::exit::{Cause, Exit};
use crate::fence::{StopReason, StopRequest};
use crate::spec::JobKind;
use crate::time::{Millis, Mono};

/// What the machine is told once.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// A service lives on after its leader's exit.
    pub kind: JobKind,
    /// The deadline of the whole work, from the start.
    pub deadline: Option<Millis>,
    /// The longest time without progress.
    pub idle: Option<Millis>,
    /// Time between TERM and KILL.
    pub grace: Millis,
    /// Time descendants are given after the leader's exit.
    pub linger: Millis,
    /// Time output is drained after the tree is empty.
    pub drain: Millis,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The command's own process ended.
    LeaderExited(Exit),
    /// The death of the whole tree was proved.
    TreeProvedDead,
    /// A stop that is not stale arrived.
    Stop(StopRequest),
    /// A count that grows with progress, sampled because [`Order::SampleProgress`] asked.
    Progress(u64),
    /// The scribe drained everything, or gave up.
    Drained,
    /// Nothing but the time.
    Tick,
}

/// What the keeper has to do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Order {
    /// TERM, then CONT, to every process of the tree.
    Term,
    /// KILL to every process of the tree.
    Kill,
    /// Note which descendants are left: they outlived the leader's linger time.
    NoteStragglers,
    /// Tell the scribe to drain what is left, until this moment.
    Drain(Mono),
    /// Read the progress count and report it as [`Event::Progress`].
    SampleProgress,
    /// Everything is known: have the receipt written.
    Settle,
}

/// Where the tree stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The leader runs, or a service's descendants do.
    Running,
    /// The leader has exited by itself; descendants may finish until then.
    Lingering { until: Mono },
    /// TERM was sent; KILL follows then.
    Terminating { kill_at: Mono },
    /// KILL was sent, and is sent again then: a fork may have slipped by, a frozen process may have thawed.
    Killing { again_at: Mono, pause: Millis },
    /// The tree is dead; output is drained until then at most.
    Draining { until: Mono },
    /// The receipt has been ordered.
    Settled,
}

/// The shortest and the longest pause between two KILLs of a tree that does not die.
const KILL_AGAIN: (Millis, Millis) = (Millis(20), Millis(1_000));

/// The progress count is sampled this many times within one idle limit, so that a stall is noticed at most a
/// tenth late.
const SAMPLES_PER_IDLE: u64 = 10;

/// The machine. See the module's text.
#[derive(Debug, Clone)]
pub struct Warden {
    policy: Policy,
    started: Mono,
    phase: Phase,
    leader: Option<Exit>,
    /// Why the tree is being ended, set once: a second reason changes nothing.
    ending: Option<Cause>,
    /// The cause as it stood when the leader exited.
    cause: Option<Cause>,
    progress: u64,
    progress_at: Mono,
    sample_at: Option<Mono>,
}

impl Warden {
    /// A machine for a command that was started at `now`.
    #[must_use]
    pub fn new(policy: Policy, now: Mono) -> Self {
        let sample_at = policy.idle.map(|idle| now.plus(sample_every(idle)));
        Warden {
            policy,
            started: now,
            phase: Phase::Running,
            leader: None,
            ending: None,
            cause: None,
            progress: 0,
            progress_at: now,
            sample_at,
        }
    }

    /// How the leader ended, once it has.
    #[must_use]
    pub fn leader(&self) -> Option<&Exit> {
        self.leader.as_ref()
    }

    /// Why the tree is being ended, while it is.
    #[must_use]
    pub fn ending(&self) -> Option<&Cause> {
        self.ending.as_ref()
    }

    /// Why the job ended: what was ending it when its leader exited, else its own end.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause.clone().or_else(|| self.ending.clone()).unwrap_or(Cause::OwnEnd)
    }

    /// Whether the tree is proved dead.
    #[must_use]
    pub fn tree_is_dead(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Settled)
    }

    /// When to send [`Event::Tick`] at the latest. `None`: nothing is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Mono> {
        match self.phase {
            Phase::Running => [self.deadline(), self.sample_at].into_iter().flatten().min(),
            Phase::Lingering { until } | Phase::Draining { until } => Some(until),
            Phase::Terminating { kill_at } => Some(kill_at),
            Phase::Killing { again_at, .. } => Some(again_at),
            Phase::Settled => None,
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.policy.deadline.map(|length| self.started.plus(length))
    }

    /// Takes one event into account and says what to do about it.
    #[must_use]
    pub fn handle(&mut self, now: Mono, event: Event) -> Vec<Order> {
        let mut orders = Vec::new();
        match event {
            Event::LeaderExited(exit) => self.leader_exited(now, exit),
            Event::TreeProvedDead if !self.tree_is_dead() => {
                if self.cause.is_none() {
                    self.cause = self.ending.clone();
                }
                let until = now.plus(self.policy.drain);
                self.phase = Phase::Draining { until };
                orders.push(Order::Drain(until));
            }
            Event::TreeProvedDead => {}
            Event::Stop(request) => self.stop(now, &request, &mut orders),
            Event::Progress(count) => self.progressed(now, count, &mut orders),
            Event::Drained => {
                if let Phase::Draining { .. } = self.phase {
                    self.phase = Phase::Settled;
                    orders.push(Order::Settle);
                }
            }
            Event::Tick => {}
        }
        self.time_passed(now, &mut orders);
        orders
    }

    fn leader_exited(&mut self, now: Mono, exit: Exit) {
        if self.leader.is_some() {
            return;
        }
        self.leader = Some(exit);
        self.cause = Some(self.ending.clone().unwrap_or(Cause::OwnEnd));
        if self.phase == Phase::Running && self.policy.kind == JobKind::Command {
            // What is left behind is given no more time than the work as a whole.
            let until = now.plus(self.policy.linger);
            let until = self.deadline().map_or(until, |deadline| until.min(deadline.max(now)));
            self.phase = Phase::Lingering { until };
        }
    }

    fn stop(&mut self, now: Mono, request: &StopRequest, orders: &mut Vec<Order>) {
        let cause = match request.reason {
            StopReason::Asked | StopReason::Pause => Cause::Stop { id: request.id.clone() },
            StopReason::CallBudget { after_ms } => Cause::CallBudget { after_ms },
        };
        match self.phase {
            Phase::Running | Phase::Lingering { .. } => {
                self.ending = Some(cause);
                let grace = request.grace.unwrap_or(self.policy.grace);
                if request.force { self.kill(now, orders) } else { self.terminate(now, grace, orders) }
            }
            Phase::Terminating { .. } if request.force => self.kill(now, orders),
            Phase::Terminating { .. } | Phase::Killing { .. } | Phase::Draining { .. } | Phase::Settled => {}
        }
    }

    fn progressed(&mut self, now: Mono, count: u64, orders: &mut Vec<Order>) {
        let Some(idle) = self.policy.idle else { return };
        if count > self.progress {
            self.progress = count;
            self.progress_at = now;
        }
        if self.phase == Phase::Running && now.since(self.progress_at) >= idle {
            self.ending = Some(Cause::Stall { idle_ms: idle.0 });
            self.terminate(now, self.policy.grace, orders);
        }
    }

    fn time_passed(&mut self, now: Mono, orders: &mut Vec<Order>) {
        match self.phase {
            Phase::Running => {
                if let Some(after) = self.policy.deadline
                    && now >= self.started.plus(after)
                {
                    self.ending = Some(Cause::Deadline { after_ms: after.0 });
                    self.terminate(now, self.policy.grace, orders);
                } else if let (Some(idle), Some(at)) = (self.policy.idle, self.sample_at)
                    && now >= at
                {
                    self.sample_at = Some(now.plus(sample_every(idle)));
                    orders.push(Order::SampleProgress);
                }
            }
            Phase::Lingering { until } if now >= until => {
                orders.push(Order::NoteStragglers);
                self.terminate(now, self.policy.grace, orders);
            }
            Phase::Terminating { kill_at } if now >= kill_at => self.kill(now, orders),
            Phase::Killing { again_at, pause } if now >= again_at => {
                let pause = Millis((pause.0 * 2).min(KILL_AGAIN.1.0));
                self.phase = Phase::Killing { again_at: now.plus(pause), pause };
                orders.push(Order::Kill);
            }
            Phase::Draining { until } if now >= until => {
                // The scribe was told when to give up and answers; this is for a scribe that cannot.
                self.phase = Phase::Draining { until: now.plus(self.policy.drain.max(Millis(100))) };
                orders.push(Order::Drain(now));
            }
            _ => {}
        }
    }

    fn terminate(&mut self, now: Mono, grace: Millis, orders: &mut Vec<Order>) {
        orders.push(Order::Term);
        let kill_at = now.plus(grace);
        self.phase = Phase::Terminating { kill_at };
        if grace == Millis(0) {
            self.kill(now, orders);
        }
    }

    fn kill(&mut self, now: Mono, orders: &mut Vec<Order>) {
        orders.push(Order::Kill);
        self.phase = Phase::Killing { again_at: now.plus(KILL_AGAIN.0), pause: KILL_AGAIN.0 };
    }
}

fn sample_every(idle: Millis) -> Millis {
    Millis((idle.0 / SAMPLES_PER_IDLE).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Generation, JobId};
    use proptest::prelude::*;

    const POLICY: Policy = Policy {
        kind: JobKind::Command,
        deadline: Some(Millis(60_000)),
        idle: None,
        grace: Millis(10_000),
        linger: Millis(5_000),
        drain: Millis(2_000),
    };
    const EXIT: Exit = Exit::Exited { code: 0 };

    fn stop(force: bool) -> Event {
        let job_id: JobId = "0000000000000000.1.1".parse().unwrap();
        Event::Stop(StopRequest {
            id: "s1".into(),
            job_id,
            generation: Generation(0),
            force,
            grace: None,
            reason: StopReason::Asked,
        })
    }

    /// Runs a scene: at these times these events, and checks the orders and the cause at the end.
    fn scene(policy: Policy, steps: &[(u64, Event, &[Order])]) -> Warden {
        let mut warden = Warden::new(policy, Mono(0));
        for (at, event, expected) in steps {
            let orders = warden.handle(Mono(*at), event.clone());
            assert_eq!(orders, *expected, "at {at}: {event:?}");
        }
        warden
    }

    #[test]
    fn a_command_that_ends_by_itself() {
        let warden = scene(
            POLICY,
            &[
                (10, Event::LeaderExited(EXIT), &[]),
                (10, Event::TreeProvedDead, &[Order::Drain(Mono(2_010))]),
                (11, Event::Drained, &[Order::Settle]),
            ],
        );
        assert_eq!(warden.cause(), Cause::OwnEnd);
        assert_eq!(warden.wake_at(), None);
    }

    #[test]
    fn descendants_linger_and_are_then_ended() {
        let warden = scene(
            POLICY,
            &[
                (10, Event::LeaderExited(EXIT), &[]),
                (5_009, Event::Tick, &[]),
                (5_010, Event::Tick, &[Order::NoteStragglers, Order::Term]),
                (15_009, Event::Tick, &[]),
                (15_010, Event::Tick, &[Order::Kill]),
                (15_030, Event::Tick, &[Order::Kill]),
                (15_031, Event::TreeProvedDead, &[Order::Drain(Mono(17_031))]),
                (15_032, Event::Drained, &[Order::Settle]),
            ],
        );
        assert_eq!((warden.cause(), warden.leader()), (Cause::OwnEnd, Some(&EXIT)));
    }

    #[test]
    fn the_deadline_needs_no_output() {
        let warden = scene(
            POLICY,
            &[
                (59_999, Event::Tick, &[]),
                (60_000, Event::Tick, &[Order::Term]),
                (60_001, Event::LeaderExited(Exit::Signaled { signal: 15, core_dumped: false }), &[]),
                (60_001, Event::TreeProvedDead, &[Order::Drain(Mono(62_001))]),
            ],
        );
        assert_eq!(warden.cause(), Cause::Deadline { after_ms: 60_000 });
    }

    #[test]
    fn a_stop_after_the_leaders_own_end_is_not_its_cause() {
        let warden = scene(
            POLICY,
            &[
                (10, Event::LeaderExited(EXIT), &[]),
                (20, stop(false), &[Order::Term]),
                (21, Event::TreeProvedDead, &[Order::Drain(Mono(2_021))]),
            ],
        );
        assert_eq!(warden.cause(), Cause::OwnEnd);
    }

    #[test]
    fn a_second_stop_changes_nothing_and_force_kills_at_once() {
        scene(
            POLICY,
            &[(1, stop(false), &[Order::Term]), (2, stop(false), &[]), (3, stop(true), &[Order::Kill])],
        );
        scene(POLICY, &[(1, stop(true), &[Order::Kill])]);
        scene(Policy { grace: Millis(0), ..POLICY }, &[(1, stop(false), &[Order::Term, Order::Kill])]);
    }

    #[test]
    fn a_service_outlives_its_leader_until_stopped() {
        let service = Policy { kind: JobKind::Service, deadline: None, ..POLICY };
        let warden = scene(
            service,
            &[
                (10, Event::LeaderExited(EXIT), &[]),
                (1_000_000, Event::Tick, &[]),
                (1_000_001, stop(false), &[Order::Term]),
            ],
        );
        assert_eq!(warden.wake_at(), Some(Mono(1_010_001)));
    }

    #[test]
    fn silence_is_a_stall_only_where_a_limit_was_set() {
        let idle = Policy { idle: Some(Millis(1_000)), deadline: None, ..POLICY };
        let warden = scene(
            idle,
            &[
                (100, Event::Tick, &[Order::SampleProgress]),
                (100, Event::Progress(5), &[]),
                (600, Event::Tick, &[Order::SampleProgress]),
                (600, Event::Progress(5), &[]),
                (1_100, Event::Tick, &[Order::SampleProgress]),
                (1_100, Event::Progress(5), &[Order::Term]),
            ],
        );
        assert_eq!(warden.cause(), Cause::Stall { idle_ms: 1_000 });
        assert_eq!(
            Warden::new(Policy { deadline: None, ..POLICY }, Mono(0)).wake_at(),
            None,
            "no timer while idle"
        );
    }

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::LeaderExited(EXIT)),
            Just(Event::TreeProvedDead),
            any::<bool>().prop_map(stop),
            (0u64..9).prop_map(Event::Progress),
            Just(Event::Drained),
            Just(Event::Tick),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order: no KILL without an earlier TERM or a forced stop, one Settle at most
        /// and only over a dead tree, and always a timer while a tree is being ended.
        #[test]
        fn orders_make_sense(steps in prop::collection::vec((0u64..8_000, any_event()), 0..60)) {
            let policy = Policy { idle: Some(Millis(3_000)), ..POLICY };
            let mut warden = Warden::new(policy, Mono(0));
            let (mut now, mut termed, mut settled) = (0, false, 0);
            for (pause, event) in steps {
                now += pause;
                termed |= matches!(&event, Event::Stop(request) if request.force);
                for order in warden.handle(Mono(now), event.clone()) {
                    match order {
                        Order::Term => termed = true,
                        Order::Kill => prop_assert!(termed),
                        Order::Settle => {
                            settled += 1;
                            prop_assert!(warden.tree_is_dead());
                        }
                        Order::NoteStragglers => prop_assert!(warden.leader().is_some()),
                        Order::Drain(_) | Order::SampleProgress => {}
                    }
                }
                prop_assert!(settled <= 1);
                if warden.ending().is_some() && settled == 0 {
                    prop_assert!(warden.wake_at().is_some());
                }
            }
        }

        /// A keeper that does nothing but obey the timer settles every command that has a deadline and dies of KILL.
        #[test]
        fn time_alone_ends_every_tree(dies_of_term: bool) {
            let mut warden = Warden::new(POLICY, Mono(0));
            for _ in 0..40 {
                let Some(at) = warden.wake_at() else { break };
                let mut queue = warden.handle(at, Event::Tick);
                while let Some(order) = queue.pop() {
                    let more = match order {
                        Order::Kill => warden.handle(at, Event::TreeProvedDead),
                        Order::Term if dies_of_term => warden.handle(at, Event::TreeProvedDead),
                        Order::Drain(_) => warden.handle(at, Event::Drained),
                        _ => Vec::new(),
                    };
                    queue.extend(more);
                }
            }
            prop_assert_eq!(warden.wake_at(), None);
            prop_assert!(warden.tree_is_dead());
        }
    }
}
