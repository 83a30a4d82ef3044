//! The model of stops and retries: no rule is broken, and every bug that is put in is found.

use outlast_models::Met;
use outlast_models::retry::{self, Bug, Retry};
use stateright::{Checker, HasDiscoveries, Model};

fn model(stops: u8, faults: u8, losses: u8, destroys: bool, bug: Option<Bug>) -> Retry {
    Retry { stops, faults, losses, destroys, bug, met: Met::default() }
}

fn check(model: Retry) -> Vec<&'static str> {
    let Retry { stops, faults, losses, destroys, .. } = model;
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "stops and retries, {stops} stops, {faults} faults, {losses} lost keepers, sandbox destroyed: {destroys}: \
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
#[ignore = "takes a minute"]
fn no_rule_is_broken_by_all_at_once() {
    check(model(2, 1, 1, true, None));
}

#[test]
fn no_rule_is_broken() {
    let mut met = check(model(2, 1, 1, false, None));
    met.extend(check(model(1, 1, 1, true, None)));
    met.extend(check(model(1, 2, 0, false, None)));
    for situation in [
        "a job ended before its stop",
        "a lost start had never arrived",
        "a lost start was found",
        "a second attempt followed a proved end",
        "a second request found the job of the first",
        "a stale stop was dropped",
        "a start was answered after the stop",
        "a stop ended a job",
        "a task was stopped before a hand was asked",
    ] {
        assert!(met.contains(&situation), "never met: {situation}");
    }
}

#[test]
fn every_bug_is_found() {
    for (bug, rule) in [
        (Bug::LateAnswerClearsStop, retry::STOPS_STAY),
        (Bug::EndClearsStop, retry::STOPS_STAY),
        (Bug::UnknownIsDead, retry::ONE_AT_A_TIME),
        (Bug::LostAnswerIsNoStart, retry::OVER_IS_DEAD),
        (Bug::RetriesWhatMayRun, retry::ONE_AT_A_TIME),
        (Bug::AsksAfterStop, retry::NO_START_AFTER_STOP),
        (Bug::StopWithoutGeneration, retry::OWN_GENERATION),
        (Bug::StopWithoutAttempt, retry::OWN_ATTEMPT),
        (Bug::StopRewritesEnd, retry::FINAL),
        (Bug::AnySandboxWillDo, retry::OVER_IS_DEAD),
    ] {
        let finish = HasDiscoveries::AllOf([rule].into());
        let checker =
            model(2, 1, 1, true, Some(bug)).checker().threads(2).finish_when(finish).spawn_bfs().join();
        let found = checker.discovery(rule).map(|path| path.into_actions().len());
        let states = checker.unique_state_count();
        assert!(found.is_some(), "{bug:?} broke no rule in {states} states");
        println!("{bug:?}: \"{rule}\" in {} steps, {states} states", found.unwrap_or_default());
    }
}
