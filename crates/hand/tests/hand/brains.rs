//! What brains keep.

use crate::support::{Ground, brain, in_hours};
use outlast_core::id::Cursor;
use outlast_hand::admit::Request;
use outlast_hand::brains::{Acknowledged, acknowledge, claims};
use outlast_hand::gc;

#[test]
fn a_finished_job_is_kept_until_each_brain_has_it() {
    let ground = Ground::new();
    let by = |name: &str| Request { brain: Some(brain(name)), ..ground.ask(Some("k")) };
    let job = ground.new_job(&by("a"));
    assert_eq!(ground.answer(&by("a")), "existing 1");
    assert_eq!(ground.answer(&by("b")), "existing 1");
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "existing 1");
    let mut there = claims(&job).unwrap();
    there.sort();
    assert_eq!(there, [brain("a"), brain("b")]);
    let say = |name: &str, cursor| acknowledge(&ground.home, &job, &brain(name), Cursor(cursor)).unwrap();
    assert_eq!(say("a", 0), Acknowledged::NotSettled);
    ground.settle(&job);
    let collect = |hours| gc::collect(&ground.home, in_hours(hours), gc::KEEP).unwrap();
    let held = collect(24 * 100);
    assert_eq!((held.claimed, held.kept, held.removed.len()), (1, 0, 0));
    assert_eq!(say("a", 7), Acknowledged::OtherCursor { is: Cursor(0) });
    assert_eq!(claims(&job).unwrap().len(), 2, "a wrong cursor releases nothing");
    assert_eq!([say("a", 0), say("a", 0), say("c", 0)], [Acknowledged::Released; 3]);
    assert_eq!(claims(&job).unwrap(), [brain("b")]);
    // Who has acknowledged does not come to keep it by a request that is late.
    assert_eq!(ground.answer(&by("a")), "existing 1");
    assert_eq!(claims(&job).unwrap(), [brain("b")]);
    assert_eq!(collect(25).claimed, 1);
    assert_eq!(say("b", 0), Acknowledged::Released);
    let now = collect(1);
    assert_eq!((now.claimed, now.kept), (0, 1), "its time is another matter");
    assert_eq!(collect(25).removed, [job.id()]);
    assert_eq!(ground.answer(&by("b")), "removed 1");
}

#[test]
fn a_claim_of_a_later_attempt_keeps_the_earlier_too() {
    let ground = Ground::new();
    ground.settle(&ground.new_job(&ground.attempt("k", 1)));
    let second = Request { brain: Some(brain("a")), ..ground.attempt("k", 2) };
    let second = ground.new_job(&second);
    ground.settle(&second);
    let collected = gc::collect(&ground.home, in_hours(25), gc::KEEP).unwrap();
    assert_eq!((collected.claimed, collected.kept, collected.removed.len()), (1, 1, 0));
    acknowledge(&ground.home, &second, &brain("a"), Cursor(0)).unwrap();
    assert_eq!(gc::collect(&ground.home, in_hours(25), gc::KEEP).unwrap().removed.len(), 2);
}

#[test]
fn an_attested_job_is_acknowledged_by_what_was_kept() {
    let ground = Ground::new();
    let job = ground.new_job(&Request { brain: Some(brain("a")), ..ground.ask(Some("k")) });
    ground.attest(&job);
    assert_eq!(
        acknowledge(&ground.home, &job, &brain("a"), Cursor(1)).unwrap(),
        Acknowledged::OtherCursor { is: Cursor(0) }
    );
    assert_eq!(acknowledge(&ground.home, &job, &brain("a"), Cursor(0)).unwrap(), Acknowledged::Released);
    assert!(claims(&job).unwrap().is_empty());
}

#[test]
fn a_damaged_claim_keeps_the_job() {
    let ground = Ground::new();
    let job = ground.new_job(&ground.ask(Some("k")));
    ground.settle(&job);
    assert_eq!(ground.answer(&Request { brain: Some(brain("a")), ..ground.ask(Some("k")) }), "existing 1");
    let folder = job.path().join("brains");
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "{").unwrap();
    let collected = gc::collect(&ground.home, in_hours(25), gc::KEEP).unwrap();
    assert_eq!((collected.removed.len(), collected.kept), (0, 1));
}
