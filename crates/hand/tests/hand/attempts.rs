//! Attempts under a key, by name; and that nothing is listed for them.

use crate::support::{Ground, in_hours};
use outlast_core::bytes::Bytes;
use outlast_core::spec::Command;
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Request, admit, admit_with};
use outlast_hand::gc;
use rustix::fs::inotify;
use std::cell::Cell;
use std::mem::MaybeUninit;

const DAY: Millis = gc::KEEP;

#[test]
fn each_attempt_is_asked_for_by_its_number() {
    let ground = Ground::new();
    let answer = |number| ground.answer(&ground.attempt("k", number));
    assert_eq!(answer(2), "no such job");
    let first = ground.new_job(&ground.attempt("k", 1));
    assert_eq!([answer(1), answer(2), answer(3)], ["existing 1", "not proved dead 1", "latest is 1"]);
    ground.settle(&first);
    assert_eq!([answer(1), answer(3)], ["existing 1", "latest is 1"]);
    let second = ground.new_job(&ground.attempt("k", 2));
    assert_eq!(
        [answer(1), answer(2), answer(3), answer(4)],
        ["existing 1", "existing 2", "not proved dead 2", "latest is 2"]
    );
    // A person's word frees the key as a receipt does.
    ground.attest(&second);
    ground.new_job(&ground.attempt("k", 3));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "existing 3");
    let other = Command::Argv(vec![Bytes::from("false")]);
    for number in [1, 2, 3, 4] {
        let mut ask = ground.attempt("k", number);
        ask.work.command = other.clone();
        assert!(ground.answer(&ask).starts_with("conflict"), "{number}");
    }
    let unkeyed = Request { key: None, ..ground.attempt("k", 1) };
    assert!(ground.answer(&unkeyed).contains("InvalidInput"));
}

#[test]
fn a_removed_call_answers_by_its_tombstone() {
    let ground = Ground::new();
    for number in [1, 2] {
        ground.settle(&ground.new_job(&ground.attempt("k", number)));
    }
    let collected = gc::collect(&ground.home, in_hours(25), DAY).unwrap();
    assert_eq!(collected.removed.len(), 2);
    assert!(ground.home.jobs().unwrap().is_empty());
    let answer = |number| ground.answer(&ground.attempt("k", number));
    assert_eq!([answer(1), answer(2), answer(4)], ["removed 2", "removed 2", "latest is 2"]);
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "removed 2");
    let mut other = ground.attempt("k", 3);
    other.work.merge = true;
    assert_eq!(ground.answer(&other), "conflict 2");
    // The next one may follow, and is found although the one before it is gone.
    let third = ground.new_job(&ground.attempt("k", 3));
    assert_eq!([answer(2), answer(3), answer(4)], ["removed 2", "existing 3", "not proved dead 3"]);
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "existing 3");
    let next = Request { find: Find::NextAttempt(third.id()), ..ground.ask(Some("k")) };
    assert_eq!(ground.answer(&next), "not proved dead 3");
    // The tombstone says which attempts there were, so it stays while a later one does.
    let collected = gc::collect(&ground.home, in_hours(24 * 40), DAY).unwrap();
    assert_eq!((collected.tombstones_removed, collected.unfinished), (0, 1));
    assert_eq!(answer(3), "existing 3");
}

#[test]
fn the_attempts_of_a_call_go_together() {
    let ground = Ground::new();
    ground.settle(&ground.new_job(&ground.attempt("k", 1)));
    let second = ground.new_job(&ground.attempt("k", 2));
    let collected = gc::collect(&ground.home, in_hours(25), DAY).unwrap();
    assert_eq!((collected.removed.len(), collected.kept, collected.unfinished), (0, 1, 1));
    // The first is kept longer than the second: it was attested, which is kept for a month.
    std::fs::remove_file(ground.home.path().join("jobs").join(first_of(&second)).join("receipt.json"))
        .unwrap();
    let first = ground.home.job(first_of(&second).parse().unwrap()).unwrap().unwrap();
    ground.attest(&first);
    ground.settle(&second);
    let collected = gc::collect(&ground.home, in_hours(25), DAY).unwrap();
    assert_eq!((collected.removed.len(), collected.kept, collected.unfinished), (0, 1, 1));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "existing 2");
    let collected = gc::collect(&ground.home, in_hours(24 * 31), DAY).unwrap();
    assert_eq!(collected.removed.len(), 2);
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "removed 2");
}

fn first_of(job: &outlast_hand::job::Job) -> String {
    format!("{}.1", job.id().call_name())
}

#[test]
fn a_removal_that_was_cut_short_starts_nothing_again() {
    let ground = Ground::new();
    for number in [1, 2] {
        ground.settle(&ground.new_job(&ground.attempt("k", number)));
    }
    let jobs = ground.home.path().join("jobs");
    let first = ground.home.jobs().unwrap().into_iter().min().unwrap().to_string();
    let aside = ground.folder.path().join("aside");
    std::fs::create_dir(&aside).unwrap();
    std::fs::copy(jobs.join(&first).join("spec.json"), aside.join("spec.json")).unwrap();
    std::fs::copy(jobs.join(&first).join("receipt.json"), aside.join("receipt.json")).unwrap();
    gc::collect(&ground.home, in_hours(25), DAY).unwrap();
    // The second went and the first did not.
    std::fs::rename(&aside, jobs.join(&first)).unwrap();
    let answer = |number| ground.answer(&ground.attempt("k", number));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "removed 2");
    assert_eq!([answer(1), answer(2), answer(4)], ["existing 1", "removed 2", "latest is 2"]);
    assert_eq!(answer(3), "new 3");
    assert_eq!([answer(3), ground.answer(&ground.ask(Some("k")))], ["existing 3", "existing 3"]);
}

#[test]
fn a_keyed_call_lists_no_jobs() {
    let ground = Ground::new();
    let jobs = ground.home.path().join("jobs");
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, &jobs, inotify::WatchFlags::ACCESS).unwrap();
    // Whether the folder itself was read since the last call.
    let listed = || {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let mut listed = false;
        while let Ok(event) = reader.next() {
            listed |= event.file_name().is_none();
        }
        listed
    };
    ground.home.jobs().unwrap();
    assert!(listed(), "the watch sees a listing");
    let first = ground.new_job(&ground.ask(Some("k")));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "existing 1");
    assert_eq!(ground.answer(&ground.attempt("k", 2)), "not proved dead 1");
    ground.settle(&first);
    assert_eq!(ground.answer(&ground.attempt("k", 2)), "new 2");
    let next = Request { find: Find::NextAttempt(first.id()), ..ground.ask(Some("k")) };
    assert_eq!(ground.answer(&next), "latest is 2");
    assert!(!listed());
    assert_eq!(ground.answer(&ground.ask(None)), "new 1");
    assert!(listed(), "without a key it is found by a listing");
}

#[test]
fn a_folder_without_a_spec_is_told_and_not_waited_for() {
    let ground = Ground::new();
    let job = ground.new_job(&ground.ask(Some("k")));
    std::fs::remove_file(job.path().join("spec.json")).unwrap();
    assert!(ground.answer(&ground.ask(Some("k"))).contains("no spec"));
    assert!(ground.answer(&ground.attempt("k", 1)).contains("no spec"));
}

#[test]
fn a_keeper_that_is_watched_is_not_looked_at() {
    let ground = Ground::new();
    let other = ground.new_job(&ground.ask(Some("other")));
    std::fs::write(ground.home.path().join("open").join(other.id().to_string()), "").unwrap();
    let asked = Cell::new(0);
    let lives = |id| {
        asked.set(asked.get() + 1);
        id == other.id()
    };
    assert!(matches!(
        admit_with(&ground.home, &ground.ask(Some("k")), &lives, &mut |_| {}),
        Ok(Admitted::New(_))
    ));
    assert_eq!(asked.get(), 1);
    // Without the word of the caller its lock is tried, and it is free: nothing is started beside a lost job.
    assert!(
        admit(&ground.home, &ground.ask(Some("l"))).is_ok(),
        "it never started, which settling finds out"
    );
}
