//! Fences: generations and seals.

use crate::support::{Ground, run, say, scope};
use outlast_core::id::Generation;
use outlast_hand::admit::{Admitted, Request, admit};
use outlast_hand::fence::{FenceError, look, raise, seal};
use outlast_hand::home::Home;
use outlast_hand::verify;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn of_run(ground: &Ground, key: &str, name: &str) -> Request {
    Request { run: Some(run(name)), ..ground.ask(Some(key)) }
}

#[test]
fn generations_are_kept_for_each_scope() {
    let ground = Ground::new();
    assert_eq!(look(&ground.home, &scope("s")).unwrap().generation, Generation(0));
    assert_eq!(raise(&ground.home, &scope("s"), Generation(3)).unwrap(), Generation(3));
    assert_eq!(raise(&ground.home, &scope("s"), Generation(3)).unwrap(), Generation(3));
    let older = raise(&ground.home, &scope("s"), Generation(2));
    assert!(matches!(older, Err(FenceError::Closed(closed)) if closed.highest == Generation(3)));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "closed by 3");
    let mut ask = ground.ask(Some("k"));
    ask.scope = scope("t");
    assert_eq!(ground.answer(&ask), "new 1", "another scope is another fence");
    ask.generation = Generation(5);
    ask.scope = scope("s");
    assert_eq!(ground.answer(&ask), "new 1");
    assert_eq!(look(&ground.home, &scope("s")).unwrap().generation, Generation(5), "an admission raises it");
    ask.generation = Generation(4);
    assert_eq!(ground.answer(&ask), "closed by 5", "also where the job exists");
    // Nothing is written where nothing changes.
    let names = || std::fs::read_dir(ground.home.path().join("fences")).unwrap().count();
    let before = names();
    look(&ground.home, &scope("never seen")).unwrap();
    assert_eq!(names(), before);
}

#[test]
fn what_an_earlier_version_kept_is_the_least() {
    let ground = Ground::new();
    std::fs::write(ground.home.path().join("fence.json"), r#"{"s":4}"#).unwrap();
    assert_eq!(look(&ground.home, &scope("s")).unwrap().generation, Generation(4));
    assert_eq!(ground.answer(&ground.ask(Some("k"))), "closed by 4");
    assert!(matches!(raise(&ground.home, &scope("s"), Generation(3)), Err(FenceError::Closed(_))));
    assert!(matches!(seal(&ground.home, &scope("s"), &run("r"), Generation(3)), Err(FenceError::Closed(_))));
    assert_eq!(raise(&ground.home, &scope("s"), Generation(6)).unwrap(), Generation(6));
    std::fs::remove_file(ground.home.path().join("fence.json")).unwrap();
    assert_eq!(look(&ground.home, &scope("s")).unwrap().generation, Generation(6));
}

#[test]
fn a_sealed_run_admits_nothing_and_forgets_nothing() {
    let ground = Ground::new();
    let job = ground.new_job(&of_run(&ground, "a", "r"));
    ground.new_job(&of_run(&ground, "b", "other"));
    ground.new_job(&ground.ask(Some("c")));
    let mut elsewhere = of_run(&ground, "d", "r");
    elsewhere.scope = scope("t");
    ground.new_job(&elsewhere);
    let sealed = seal(&ground.home, &scope("s"), &run("r"), Generation(0)).unwrap();
    assert_eq!((sealed.jobs.as_slice(), sealed.already), ([job.id()].as_slice(), false));
    assert_eq!(ground.answer(&of_run(&ground, "e", "r")), "sealed r");
    assert_eq!(ground.answer(&of_run(&ground, "a", "r")), "existing 1", "identity outlives transport");
    let mut differs = of_run(&ground, "a", "r");
    differs.work.merge = true;
    assert_eq!(ground.answer(&differs), "conflict 1");
    // No later attempt either, whatever became of the one before.
    let mut second = of_run(&ground, "a", "r");
    second.find = ground.attempt("a", 2).find;
    assert_eq!(ground.answer(&second), "sealed r");
    ground.settle(&job);
    assert_eq!(ground.answer(&second), "sealed r");
    assert_eq!(ground.answer(&of_run(&ground, "f", "other")), "new 1");
    elsewhere.key = ground.ask(Some("g")).key;
    assert_eq!(ground.answer(&elsewhere), "new 1", "a run is sealed in its scope");
    let again = seal(&ground.home, &scope("s"), &run("r"), Generation(0)).unwrap();
    assert_eq!((again.jobs, again.already), (sealed.jobs, true));
    // It survives, and a stale seal is dropped.
    let home = Home::open(ground.home.path()).unwrap();
    assert!(look(&home, &scope("s")).unwrap().is_sealed(&run("r")));
    raise(&home, &scope("s"), Generation(1)).unwrap();
    assert!(matches!(seal(&home, &scope("s"), &run("q"), Generation(0)), Err(FenceError::Closed(_))));
    assert!(verify::verify(&home).unwrap().violations.is_empty());
}

#[test]
fn a_sealed_run_continues_nothing() {
    for key in [Some("k"), None] {
        let ground = Ground::new();
        let mut ask = Request { run: Some(run("r")), ..ground.ask(key) };
        ask.work.resume = true;
        let job = ground.new_job(&ask);
        ground.attest(&job);
        seal(&ground.home, &scope("s"), &run("r"), Generation(0)).unwrap();
        assert_eq!(ground.answer(&ask), "existing 1", "{key:?}");
        ask.run = None;
        assert_eq!(ground.answer(&ask), "new 2", "{key:?}: without the run it would have gone on");
    }
}

#[test]
fn every_admission_is_in_the_seal_or_refused() {
    for round in 0..8 {
        let ground = Ground::new();
        let (threads, each) = (4, 12);
        let barrier = Barrier::new(threads + 1);
        let go_on = AtomicBool::new(true);
        let (admitted, sealed) = std::thread::scope(|threads_scope| {
            let admitters: Vec<_> = (0..threads)
                .map(|thread| {
                    let (ground, barrier, go_on) = (&ground, &barrier, &go_on);
                    threads_scope.spawn(move || {
                        let home = Home::open(ground.home.path()).unwrap();
                        barrier.wait();
                        let mut admitted = Vec::new();
                        for number in 0..each {
                            let ask = of_run(ground, &format!("{thread}.{number}"), "r");
                            match admit(&home, &ask) {
                                Ok(Admitted::New(job)) => admitted.push(job.id()),
                                answer => assert_eq!(say(&answer), "sealed r"),
                            }
                            if !go_on.load(Ordering::SeqCst) && number > each / 2 {
                                break;
                            }
                        }
                        admitted
                    })
                })
                .collect();
            let home = Home::open(ground.home.path()).unwrap();
            barrier.wait();
            std::thread::sleep(Duration::from_micros(1500 * round));
            let sealed = seal(&home, &scope("s"), &run("r"), Generation(0)).unwrap();
            go_on.store(false, Ordering::SeqCst);
            let admitted: Vec<_> = admitters.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            (admitted, sealed)
        });
        let mut admitted = admitted;
        admitted.sort_unstable();
        assert_eq!(admitted, sealed.jobs, "round {round}");
        assert!(verify::verify(&ground.home).unwrap().violations.is_empty());
    }
}

#[test]
fn a_stream_of_admissions_keeps_no_seal_waiting() {
    let ground = Ground::new();
    ground.new_job(&of_run(&ground, "k", "r"));
    let stop = AtomicBool::new(false);
    let waited = std::thread::scope(|threads| {
        for _ in 0..6 {
            let (ground, stop) = (&ground, &stop);
            threads.spawn(move || {
                let home = Home::open(ground.home.path()).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    assert!(admit(&home, &of_run(ground, "k", "r")).is_ok());
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        let began = std::time::Instant::now();
        for number in 0..20 {
            seal(&ground.home, &scope("s"), &run(&format!("r{number}")), Generation(0)).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        began.elapsed()
    });
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    let gates = std::fs::read_dir(ground.home.path().join("fences")).unwrap();
    let gates =
        gates.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".gate"));
    assert_eq!(gates.count(), 0, "they are taken away");
}

#[test]
fn the_checker_finds_what_a_fence_should_have_stopped() {
    let ground = Ground::new();
    ground.new_job(&of_run(&ground, "a", "r"));
    seal(&ground.home, &scope("s"), &run("r"), Generation(0)).unwrap();
    let fences = ground.home.path().join("fences");
    let record = std::fs::read_dir(&fences).unwrap().map(|entry| entry.unwrap().path());
    let record = record.filter(|path| path.extension().is_some_and(|end| end == "json")).collect::<Vec<_>>();
    let [record] = record.as_slice() else { panic!("{record:?}") };
    let kept = std::fs::read(record).unwrap();
    // Without its record, as a restored folder would be, the run admits again.
    std::fs::remove_file(record).unwrap();
    let late = ground.new_job(&of_run(&ground, "b", "r"));
    std::fs::write(record, kept).unwrap();
    let found = verify::verify(&ground.home).unwrap().violations;
    assert_eq!(
        found.iter().map(|one| (one.invariant, one.job_id)).collect::<Vec<_>>(),
        [("I2", Some(late.id()))]
    );
    std::fs::write(record, "{").unwrap();
    let found = verify::verify(&ground.home).unwrap().violations;
    assert_eq!(found.iter().map(|one| one.invariant).collect::<Vec<_>>(), ["I4"]);
    assert!(ground.answer(&ground.ask(Some("z"))).contains("damaged"), "and nothing is admitted over it");
    let mut ask = ground.ask(Some("y"));
    ask.generation = Generation(9);
    std::fs::remove_file(record).unwrap();
    let high = ground.new_job(&ask);
    std::fs::remove_file(record).unwrap();
    let found = verify::verify(&ground.home).unwrap().violations;
    assert_eq!(
        found.iter().map(|one| (one.invariant, one.job_id)).collect::<Vec<_>>(),
        [("I4", Some(high.id()))]
    );
}
