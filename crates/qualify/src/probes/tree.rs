//! The processes of a command: all of them end with it, and none but them.

use super::ends::{Quiet, judge_quiet};
use super::took;
use crate::lab::{Lab, until};
use crate::probe::{Finding, Judgement, Probe, fail, inconclusive, partial, pass};
use crate::subject::{Answer, Said, State, Trouble, millis};
use serde::Serialize;
use std::time::{Duration, Instant};

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "escape",
        title: "A stop leaves nothing of the tree alive",
        does: "`setsid sleep A & (setsid sleep B &); sleep C & sleep D` is stopped once all four live. Each is known by a \
               mark in its environment, and looked for in /proc afterwards.",
        proves: "Processes that left the group and the session, and whose parent is gone, are ended with the command.",
        proves_not: "That a process which takes the mark from its environment, or root that leaves its cgroup, is found.",
        cases: &[32, 34, 37, 44],
        bound_s: 60,
        run: stop_tree,
    },
    Probe {
        id: "exit-tree",
        title: "Told as over means that nothing of it lives",
        does: "The command leaves a child in a session of its own, which closed its output, and exits with 0. When it is \
               told as over, the child is looked for.",
        proves: "\"Over\" is said of the tree and not of its first process.",
        proves_not: "Which of the two a caller wants; both can be known where they are told apart.",
        cases: &[11, 41],
        bound_s: 60,
        run: exit_tree,
    },
    Probe {
        id: "limit-tree",
        title: "A limit leaves nothing of the tree alive",
        does: "The tree of `escape`, with a limit of 1 s in place of a stop.",
        proves: "A limit reaches as far as a stop does.",
        proves_not: "As for `escape`.",
        cases: &[7, 35],
        bound_s: 60,
        run: limit_tree,
    },
    Probe {
        id: "stop-one",
        title: "A stop ends one command and not its neighbour",
        does: "Two commands sleep, a third is run to its end beside them, one of the two is stopped.",
        proves: "Commands are named, and told apart, and one that hangs holds up no other.",
        proves_not: "That many hundred do not.",
        cases: &[22, 40],
        bound_s: 60,
        run: stop_one,
    },
    Probe {
        id: "orphans",
        title: "200 orphans leave no zombies",
        does: "The command makes 200 short processes that nobody waits for, and stays. Zombies of their name are counted \
               until none is left or 5 s are over.",
        proves: "Something reaps what the command leaves: the subject, or the machine's init.",
        proves_not: "Which of the two.",
        cases: &[49, 50],
        bound_s: 60,
        run: orphans,
    },
    Probe {
        id: "fork-storm",
        title: "A stop ends a storm of forks",
        does: "Eight processes, each in a session of its own, fork without pause, up to 150 each. The command is stopped in \
               the middle of that.",
        proves: "The stop is bounded, and catches what is born while it is carried out.",
        proves_not: "That a storm without a bound would be caught; limits of processes are for that.",
        cases: &[50, 76],
        bound_s: 90,
        run: fork_storm,
    },
];

const TREE: &str = "OUTLAST_QUALIFY_ROLE=A setsid sleep 60 & (OUTLAST_QUALIFY_ROLE=B setsid sleep 60 &); \
                    OUTLAST_QUALIFY_ROLE=C sleep 60 & OUTLAST_QUALIFY_ROLE=D sleep 60";
const ROLES: [&str; 4] = ["A", "B", "C", "D"];

#[derive(Debug, Serialize)]
struct Left {
    said: Said,
    after_ms: u64,
    /// What lives some seconds after the subject was done.
    living: Vec<String>,
}

fn stop_tree(lab: &Lab) -> Answer<Finding> {
    let handle = lab.start(&lab.bash(TREE))?.handle;
    if !lab.until_living(&ROLES, Duration::from_secs(10))? {
        return Err(Trouble::unobserved("the tree was not seen to live"));
    }
    let began = Instant::now();
    let said = lab.subject.stop(&handle, Duration::from_secs(20))?;
    let after_ms = millis(began.elapsed());
    let seen = Left { said, after_ms, living: lab.living_after(Duration::from_secs(2))? };
    Ok(Finding::of(&seen, judge_left(&seen)))
}

fn judge_left(seen: &Left) -> Judgement {
    let (after, words) = (took(seen.after_ms), seen.said.in_words());
    match (seen.living.as_slice(), seen.said.state) {
        ([], State::Ended) => {
            let proof = seen.said.proof.as_deref().map_or(String::new(), |proof| format!("; proof: {proof}"));
            pass(format!("nothing lives, told after {after}{proof}"))
        }
        ([], _) => partial(format!("nothing lives, but it is said to be {words} after {after}")),
        (living, _) => fail(format!("{} live on; told as {words} after {after}", living.join(" "))),
    }
}

fn exit_tree(lab: &Lab) -> Answer<Finding> {
    let script = "(OUTLAST_QUALIFY_ROLE=B setsid sleep 60 >/dev/null 2>&1 &); exit 0";
    lab.get_ready_to_look()?;
    let began = Instant::now();
    let handle = lab.start(&lab.bash(script))?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(25))?;
    let after_ms = millis(began.elapsed());
    let seen = Left { said, after_ms, living: lab.living()? };
    Ok(Finding::of(&seen, judge_exit_tree(&seen)))
}

fn judge_exit_tree(seen: &Left) -> Judgement {
    let (after, words) = (took(seen.after_ms), seen.said.in_words());
    match (seen.said.state, seen.living.as_slice()) {
        (State::Ended, []) => pass(format!("{words} after {after}, nothing lives")),
        (State::Ended, living) => {
            fail(format!("told as {words} after {after}, while {} lives", living.join(" ")))
        }
        (State::Running, [_, ..]) => partial(format!("still {words} after {after}, as it is")),
        _ => fail(format!("{words} after {after}")),
    }
}

fn limit_tree(lab: &Lab) -> Answer<Finding> {
    let mut request = lab.bash(TREE);
    request.deadline = Some(Duration::from_secs(1));
    request.grace = Some(Duration::from_secs(1));
    let began = Instant::now();
    let handle = lab.start(&request)?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(25))?;
    let after_ms = millis(began.elapsed());
    let seen = Quiet { said, after_ms, living: lab.living_after(Duration::from_secs(2))? };
    Ok(Finding::of(&seen, judge_quiet(&seen)))
}

#[derive(Debug, Serialize)]
struct Neighbours {
    /// What was said of the command that was run beside the two.
    third: Said,
    third_ms: u64,
    stopped: Said,
    other: Said,
    living: Vec<String>,
}

fn stop_one(lab: &Lab) -> Answer<Finding> {
    let one = lab.start(&lab.bash("OUTLAST_QUALIFY_ROLE=one sleep 60; :"))?.handle;
    let two = lab.start(&lab.bash("OUTLAST_QUALIFY_ROLE=two sleep 60; :"))?.handle;
    if !lab.until_living(&["one", "two"], Duration::from_secs(10))? {
        return Err(Trouble::unobserved("the two were not seen to live"));
    }
    let began = Instant::now();
    let third = lab.start(&lab.bash("exit 0"))?.handle;
    let third = lab.subject.wait(&third, Duration::from_secs(15))?;
    let third_ms = millis(began.elapsed());
    let stopped = lab.subject.stop(&one, Duration::from_secs(15))?;
    until(Duration::from_secs(2), || lab.living().is_ok_and(|living| !living.contains(&"one".to_owned())));
    let mut living = lab.living()?;
    living.retain(|role| role != "leader");
    let other = lab.subject.inspect(&two)?;
    let seen = Neighbours { third, third_ms, stopped, other, living };
    Ok(Finding::of(&seen, judge_neighbours(&seen)))
}

fn judge_neighbours(seen: &Neighbours) -> Judgement {
    let Neighbours { third, third_ms, stopped, other, living } = seen;
    if third.state != State::Ended {
        return fail(format!(
            "a command beside two that sleep is {} after {}",
            third.in_words(),
            took(*third_ms)
        ));
    }
    if living.iter().any(|role| role == "one") {
        return fail(format!("the one that was stopped lives; {}", stopped.in_words()));
    }
    if !living.iter().any(|role| role == "two") {
        return fail("the other one was ended too");
    }
    match (stopped.state, other.state) {
        (State::Ended, State::Running) => {
            pass(format!("one ended, the other runs; a third took {}", took(*third_ms)))
        }
        _ => fail(format!("the stopped one is {}, the other {}", stopped.in_words(), other.in_words())),
    }
}

#[derive(Debug, Serialize)]
struct Orphans {
    all_made: bool,
    /// How many were left when the time was over.
    zombies: usize,
    most: usize,
}

fn orphans(lab: &Lab) -> Answer<Finding> {
    // A name of their own, so that nobody else's zombies are counted: a shell that ends may take any.
    let name: String = format!(
        "qz{}",
        lab.mark().chars().rev().filter(char::is_ascii_alphanumeric).take(12).collect::<String>()
    );
    let script = format!(
        "for i in {{1..200}}; do ( {{ printf {name} > /proc/self/comm; sleep 0.1; :; }} & ); done; echo made; sleep 60"
    );
    let handle = lab.start(&lab.bash(&script))?.handle;
    let all_made = lab.until_output_has(&handle, "made", Duration::from_secs(20))?;
    let (mut zombies, mut most) = (0, 0);
    let mut failed = None;
    // The last of them sleeps when `made` is said; none is early, and 5 s are long.
    let began = Instant::now();
    until(Duration::from_secs(5), || match lab.zombies(&name) {
        Ok(now) => {
            (zombies, most) = (now, most.max(now));
            now == 0 && began.elapsed() > Duration::from_millis(500)
        }
        Err(trouble) => {
            failed = Some(trouble);
            true
        }
    });
    if let Some(trouble) = failed {
        return Err(trouble);
    }
    let seen = Orphans { all_made, zombies, most };
    Ok(Finding::of(&seen, judge_orphans(&seen)))
}

fn judge_orphans(seen: &Orphans) -> Judgement {
    match seen {
        Orphans { all_made: false, .. } => inconclusive("they could not be made in 20 s"),
        Orphans { zombies: 0, .. } => pass("none of 200 is left"),
        Orphans { zombies, .. } => fail(format!("{zombies} zombies are left after 5 s")),
    }
}

#[derive(Debug, Serialize)]
struct Storm {
    /// How many lived when the stop was asked for.
    before: usize,
    said: Said,
    after_ms: u64,
    living: usize,
}

fn fork_storm(lab: &Lab) -> Answer<Finding> {
    // The file is the storm's own end: it is removed when the probe is over, whatever the subject does.
    let file = lab.witness("storm");
    let script = format!(
        "touch '{file}'; for i in {{1..8}}; do setsid bash -c \
         'for ((n = 0; n < 150; n++)); do [ -e \"{file}\" ] || exit; (setsid sleep 60 &); done; sleep 60' & done; sleep 60"
    );
    let handle = lab.start(&lab.bash(&script))?.handle;
    let mut before = 0;
    let storm = until(Duration::from_secs(15), || {
        before = lab.living().map_or(0, |living| living.len());
        before >= 200
    });
    if !storm {
        return Err(Trouble::unobserved(format!("no storm: {before} processes after 15 s")));
    }
    let began = Instant::now();
    let said = lab.subject.stop(&handle, Duration::from_secs(30))?;
    let after_ms = millis(began.elapsed());
    let living = lab.living_after(Duration::from_secs(3))?.len();
    let seen = Storm { before, said, after_ms, living };
    Ok(Finding::of(&seen, judge_storm(&seen)))
}

fn judge_storm(seen: &Storm) -> Judgement {
    let (after, words) = (took(seen.after_ms), seen.said.in_words());
    match (seen.living, seen.said.state) {
        (0, State::Ended) => pass(format!("{} processes and more are gone after {after}", seen.before)),
        (0, _) => partial(format!("all gone, but it is said to be {words} after {after}")),
        (living, _) => fail(format!("{living} live on; told as {words} after {after}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Inconclusive, Partial, Pass};
    use crate::subject::End;

    fn ended() -> Said {
        Said::ended(End::Signaled { signal: 15 })
    }

    fn left(said: Said, living: &[&str]) -> Left {
        Left { said, after_ms: 10, living: living.iter().map(|role| (*role).to_owned()).collect() }
    }

    #[test]
    fn what_a_stop_leaves() {
        for (seen, verdict) in [
            (left(ended(), &[]), Pass),
            (left(ended(), &["B"]), Fail),
            (left(Said::only(State::Stopping), &["A", "B"]), Fail),
            (left(Said::only(State::Stopping), &[]), Partial),
        ] {
            assert_eq!(judge_left(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn what_over_means() {
        for (seen, verdict) in [
            (left(ended(), &[]), Pass),
            (left(ended(), &["B"]), Fail),
            (left(Said::only(State::Running), &["B"]), Partial),
            (left(Said::only(State::Running), &[]), Fail),
            (left(Said::only(State::Forgotten), &["B"]), Fail),
        ] {
            assert_eq!(judge_exit_tree(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn neighbours() {
        let seen = |third, stopped, other, living: &[&str]| Neighbours {
            third,
            third_ms: 20,
            stopped,
            other,
            living: living.iter().map(|role| (*role).to_owned()).collect(),
        };
        let running = || Said::only(State::Running);
        for (seen, verdict) in [
            (seen(ended(), ended(), running(), &["two"]), Pass),
            (seen(ended(), ended(), running(), &["one", "two"]), Fail),
            (seen(ended(), ended(), ended(), &[]), Fail),
            (seen(ended(), running(), running(), &["two"]), Fail),
            (seen(running(), ended(), running(), &["two"]), Fail),
        ] {
            assert_eq!(judge_neighbours(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn zombies() {
        for (all_made, zombies, verdict) in [(true, 0, Pass), (true, 1, Fail), (false, 0, Inconclusive)] {
            assert_eq!(judge_orphans(&Orphans { all_made, zombies, most: 3 }).0, verdict);
        }
    }

    #[test]
    fn storms() {
        let storm = |said, living| Storm { before: 200, said, after_ms: 900, living };
        for (seen, verdict) in [
            (storm(ended(), 0), Pass),
            (storm(ended(), 1), Fail),
            (storm(Said::only(State::Stopping), 0), Partial),
            (storm(Said::only(State::Running), 900), Fail),
        ] {
            assert_eq!(judge_storm(&seen).0, verdict, "{seen:?}");
        }
    }
}
