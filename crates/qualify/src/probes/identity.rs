//! One command is one command, however often it is asked for; and a stop means the attempt it names.

use crate::lab::{Lab, until};
use crate::probe::{Finding, Judgement, Probe, fail, inconclusive, partial, pass};
use crate::subject::{Answer, Handle, Request, Said, State, Trouble};
use serde::Serialize;
use std::thread;
use std::time::Duration;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "same-key",
        title: "The same key twice is one command",
        does: "A command under a key appends a line to a file. It is asked for four times at once, and again after its end. \
               Lines and names are counted.",
        proves: "A repeated or racing request does not repeat the effect, and leads to the same command.",
        proves_not: "That an effect outside the file would be undone by a failure in the middle.",
        cases: &[61, 91],
        bound_s: 60,
        run: same_key,
    },
    Probe {
        id: "lost-answer",
        title: "A request that is repeated because its answer was lost has one effect",
        does: "The request of `same-key` is made by a caller that goes away before the answer, and repeated by another.",
        proves: "Asking again is safe when nobody knows whether the first request arrived.",
        proves_not: "The same for a request without a key.",
        cases: &[92],
        bound_s: 45,
        run: lost_answer,
    },
    Probe {
        id: "key-conflict",
        title: "The same key with another command is a conflict",
        does: "Two different commands are asked for under one key.",
        proves: "A key names one command for good, and the second is not run instead, nor the first passed off for it.",
        proves_not: "That the subject sees every difference there can be.",
        cases: &[],
        bound_s: 45,
        run: key_conflict,
    },
    Probe {
        id: "stale-stop",
        title: "A stop of an attempt that is over does not reach the next one",
        does: "A command fails at once, and its next attempt sleeps. A stop names the first attempt.",
        proves: "A stop that comes late signals nothing, though the same command runs again.",
        proves_not: "The same for generations of a conversation; those belong to who governs the subject.",
        cases: &[],
        bound_s: 60,
        run: stale_stop,
    },
];

fn keyed(lab: &Lab, script: &str) -> Request {
    Request { key: Some(lab.mark().to_owned()), ..lab.bash(script) }
}

#[derive(Debug, Clone, Serialize)]
struct Twice {
    asked: usize,
    names: Vec<Handle>,
    /// Answers that were refusals.
    refused: Vec<String>,
    /// Answers that say that it was there already.
    existed: usize,
    effects: usize,
}

fn same_key(lab: &Lab) -> Answer<Finding> {
    let witness = lab.witness("effects");
    let request = keyed(lab, &format!("echo x >> '{witness}'; sleep 0.5"));
    let racing: Vec<_> = thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| lab.start(&request))).collect();
        let gone = || Err(Trouble::unobserved("a caller of the probe failed"));
        callers.into_iter().map(|caller| caller.join().unwrap_or_else(|_| gone())).collect()
    });
    let mut answers = racing;
    if let Some(started) = answers.iter().find_map(|answer| answer.as_ref().ok()) {
        lab.subject.wait(&started.handle, Duration::from_secs(15))?;
    }
    answers.push(lab.start(&request));
    let seen = count(lab, answers, &witness)?;
    Ok(Finding::of(&seen, judge_twice(&seen)))
}

fn count(lab: &Lab, answers: Vec<Answer<crate::subject::Started>>, witness: &str) -> Answer<Twice> {
    let mut seen =
        Twice { asked: answers.len(), names: Vec::new(), refused: Vec::new(), existed: 0, effects: 0 };
    for answer in answers {
        match answer {
            Ok(started) => {
                seen.existed += usize::from(started.existed);
                seen.names.push(started.handle);
            }
            Err(Trouble::Refused { why, .. }) => seen.refused.push(why),
            Err(trouble) => return Err(trouble),
        }
    }
    seen.names.sort();
    seen.names.dedup();
    for name in &seen.names {
        lab.subject.wait(name, Duration::from_secs(15))?;
    }
    // What was refused may still have been started.
    until(Duration::from_secs(2), || lab.living().is_ok_and(|living| living.is_empty()));
    seen.effects = lab.lines(witness)?;
    Ok(seen)
}

fn judge_twice(seen: &Twice) -> Judgement {
    let asked = seen.asked;
    match (seen.effects, seen.names.len(), seen.refused.as_slice()) {
        (0, _, _) => fail(format!("asked {asked} times, and it was never run")),
        (1, 1, []) => pass(format!("asked {asked} times, one command, one effect")),
        (1, 0 | 1, [why, ..]) => {
            partial(format!("one effect; a repetition is refused, not answered with the command: {why}"))
        }
        (1, names, _) => fail(format!("one effect, but {names} names for it")),
        (effects, ..) => fail(format!("asked {asked} times, {effects} effects")),
    }
}

fn lost_answer(lab: &Lab) -> Answer<Finding> {
    let witness = lab.witness("effects");
    let request = keyed(lab, &format!("echo x >> '{witness}'; sleep 0.2"));
    lab.subject.start_and_lose_the_answer(&request)?;
    let again = lab.start(&request);
    let seen = count(lab, vec![again], &witness)?;
    Ok(Finding::of(&seen, judge_twice(&Twice { asked: 2, ..seen.clone() })))
}

#[derive(Debug, Serialize)]
struct Conflict {
    /// What the second request was answered with.
    refused: Option<String>,
    first: usize,
    second: usize,
}

fn key_conflict(lab: &Lab) -> Answer<Finding> {
    let (first, second) = (lab.witness("first"), lab.witness("second"));
    let handle = lab.start(&keyed(lab, &format!("echo x >> '{first}'")))?.handle;
    lab.subject.wait(&handle, Duration::from_secs(15))?;
    let refused = match lab.start(&keyed(lab, &format!("echo x >> '{second}'"))) {
        Ok(started) => {
            lab.subject.wait(&started.handle, Duration::from_secs(15))?;
            None
        }
        Err(trouble @ Trouble::Refused { .. }) => Some(trouble.to_string()),
        Err(trouble) => return Err(trouble),
    };
    let seen = Conflict { refused, first: lab.lines(&first)?, second: lab.lines(&second)? };
    Ok(Finding::of(&seen, judge_conflict(&seen)))
}

fn judge_conflict(seen: &Conflict) -> Judgement {
    match (&seen.refused, seen.first, seen.second) {
        (_, 0, _) => inconclusive("the first command did not run"),
        (Some(why), 1, 0) => pass(why.clone()),
        (Some(_), first, second) => fail(format!("refused, but the effects are {first} and {second}")),
        (None, _, 0) => fail("the first command was passed off for the second"),
        (None, ..) => fail("both were run under one key"),
    }
}

#[derive(Debug, Serialize)]
struct Stale {
    /// What the stop of the first attempt was answered with.
    answer: String,
    /// Whether the second attempt lives after it.
    lives: bool,
    second: Said,
}

fn stale_stop(lab: &Lab) -> Answer<Finding> {
    let witness = lab.witness("first-attempt");
    let script = format!(
        "if test -e '{witness}'; then OUTLAST_QUALIFY_ROLE=second sleep 60; exit 0; fi; echo x > '{witness}'; exit 1"
    );
    let first = lab.start(&keyed(lab, &script))?.handle;
    lab.subject.wait(&first, Duration::from_secs(15))?;
    let second = lab.subject.next_attempt(&first)?;
    lab.remember(&second);
    if !lab.until_living(&["second"], Duration::from_secs(10))? {
        return Err(Trouble::unobserved("the second attempt was not seen to live"));
    }
    let answer = match lab.subject.stop(&first, Duration::from_secs(5)) {
        Ok(said) => said.in_words(),
        Err(trouble) => trouble.to_string(),
    };
    // It would have to be dead by now; that it lives a moment later as well is looked at, too.
    let lives = !until(Duration::from_secs(1), || {
        lab.living().is_ok_and(|living| !living.contains(&"second".to_owned()))
    });
    let seen = Stale { answer, lives, second: lab.subject.inspect(&second)? };
    Ok(Finding::of(&seen, judge_stale(&seen)))
}

fn judge_stale(seen: &Stale) -> Judgement {
    match (seen.lives, seen.second.state) {
        (true, State::Running) => {
            pass(format!("the second attempt lives; the stop was answered: {}", seen.answer))
        }
        (true, _) => fail(format!("the second attempt lives, but is said to be {}", seen.second.in_words())),
        (false, _) => fail(format!("the second attempt was ended; the stop was answered: {}", seen.answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Inconclusive, Partial, Pass};

    #[test]
    fn repetitions() {
        let twice = |names: &[&str], refused: &[&str], effects| Twice {
            asked: 5,
            names: names.iter().map(|name| Handle((*name).to_owned())).collect(),
            refused: refused.iter().map(|why| (*why).to_owned()).collect(),
            existed: 4,
            effects,
        };
        for (seen, verdict) in [
            (twice(&["a"], &[], 1), Pass),
            (twice(&["a", "b"], &[], 2), Fail),
            (twice(&["a", "b"], &[], 1), Fail),
            (twice(&["a"], &["exists"], 1), Partial),
            (twice(&[], &["exists"], 1), Partial),
            (twice(&["a", "b"], &["exists"], 1), Fail),
            (twice(&["a"], &["exists"], 2), Fail),
            (twice(&["a"], &[], 2), Fail),
            (twice(&["a"], &[], 0), Fail),
        ] {
            assert_eq!(judge_twice(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn conflicts() {
        let conflict = |refused: Option<&str>, first, second| Conflict {
            refused: refused.map(str::to_owned),
            first,
            second,
        };
        for (seen, verdict) in [
            (conflict(Some("KEY_CONFLICT"), 1, 0), Pass),
            (conflict(Some("KEY_CONFLICT"), 1, 1), Fail),
            (conflict(Some("KEY_CONFLICT"), 2, 0), Fail),
            (conflict(None, 1, 0), Fail),
            (conflict(None, 1, 1), Fail),
            (conflict(None, 0, 0), Inconclusive),
        ] {
            assert_eq!(judge_conflict(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn late_stops() {
        let stale = |lives, state| Stale { answer: "noop".into(), lives, second: Said::only(state) };
        for (seen, verdict) in [
            (stale(true, State::Running), Pass),
            (stale(false, State::Ended), Fail),
            (stale(true, State::Stopping), Fail),
        ] {
            assert_eq!(judge_stale(&seen).0, verdict, "{seen:?}");
        }
    }
}
