//! The model of delivery: no rule is broken, and every bug that is put in is found.

use outlast_models::Met;
use outlast_models::delivery::{self, Bug, Delivery};
use stateright::{Checker, HasDiscoveries, Model};

fn model(owners: [usize; 2], [crashes, deaths, messages, stops]: [u8; 4], bug: Option<Bug>) -> Delivery {
    Delivery { owners, crashes, deaths, messages, stops, bug, met: Met::default() }
}

fn check(model: Delivery) -> Vec<&'static str> {
    let Delivery { owners, crashes, deaths, messages, stops, .. } = model;
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "delivery, tasks of {owners:?}, {crashes} crashes, {deaths} dead runs, {messages} messages, {stops} stops: \
         {} states, {} transitions, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    let broken = checker.discoveries();
    let broken: Vec<_> = broken.into_iter().map(|(rule, path)| (rule, path.into_actions())).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    checker.model().met.all()
}

#[test]
fn no_rule_is_broken() {
    let mut met = Vec::new();
    // Everything once, of two people; two crashes; and each alone with a crash, of one person.
    for (owners, limits) in [
        ([0, 1], [1, 1, 1, 1]),
        ([0, 1], [2, 0, 0, 0]),
        ([0, 0], [1, 1, 0, 0]),
        ([0, 0], [1, 0, 1, 0]),
        ([0, 0], [1, 0, 0, 1]),
    ] {
        met.extend(check(model(owners, limits, None)));
    }
    for situation in [
        "a cancelled task was shown",
        "a claimed event had to stay queued",
        "a closed generation was discarded",
        "a lapsed claim was taken over",
        "a stale acknowledgement was dropped",
        "a worker died between handing over and acknowledging",
        "a worker woke up without its claim",
        "an event began a new run",
        "an event began a turn of the open run",
        "an event was acknowledged twice",
        "an event was handed over again",
        "an event was steered into the active run",
        "what was read was discarded",
    ] {
        assert!(met.contains(&situation), "never met: {situation}");
    }
}

#[test]
fn every_bug_is_found() {
    for (bug, rule) in [
        (Bug::EventInSecondTransaction, delivery::OWED),
        (Bug::AcknowledgesBeforeHandingOver, delivery::HELD),
        (Bug::GivesBackWithoutToken, delivery::FINAL),
        (Bug::AcknowledgesWithoutToken, delivery::FINAL),
        (Bug::NoMemoryOfIds, delivery::ONCE),
        (Bug::LooksThenStarts, delivery::ONE_TURN),
        (Bug::AnnouncesWhatWasRead, delivery::ALREADY_READ),
        (Bug::ForgetsGenerations, delivery::CLOSED_GENERATION),
        (Bug::SteersIntoAnyRun, delivery::OWN_PERSON),
        (Bug::WakesTheStopped, delivery::STOPPED_RUN),
    ] {
        let finish = HasDiscoveries::AllOf([rule].into());
        let model = model([0, 1], [1; 4], Some(bug));
        let checker = model.checker().threads(2).finish_when(finish).spawn_bfs().join();
        let found = checker.discovery(rule).map(|path| path.into_actions().len());
        let states = checker.unique_state_count();
        assert!(found.is_some(), "{bug:?} broke no rule in {states} states");
        println!("{bug:?}: \"{rule}\" in {} steps, {states} states", found.unwrap_or_default());
    }
}
