//! How a command ended: told soon, and told truly.

use super::took;
use crate::lab::Lab;
use crate::probe::{Finding, Judgement, Probe, Verdict, fail, inconclusive, partial, pass};
use crate::subject::{Answer, Cause, End, Request, Said, State, Trouble, Work, millis};
use serde::Serialize;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "exit-code",
        title: "An exit code is told as it was",
        does: "The command exits with 3.",
        proves: "A code of an ordinary failure arrives.",
        proves_not: "Anything about ends that are not exits.",
        cases: &[80, 107],
        bound_s: 30,
        run: exit_code,
    },
    Probe {
        id: "signal",
        title: "Killed by a signal is told as that",
        does: "The command kills itself with signal 9.",
        proves: "A signal is told apart from an exit with 137, which any program may return.",
        proves_not: "Who sent it.",
        cases: &[86, 104],
        bound_s: 30,
        run: signal,
    },
    Probe {
        id: "no-program",
        title: "A program that is not there is told as not executed",
        does: "A program that does not exist is to be run.",
        proves: "A start that failed is an end of its own, and no command runs for ever in the records.",
        proves_not: "That other failures of a start are told as well.",
        cases: &[79, 82],
        bound_s: 30,
        run: no_program,
    },
    Probe {
        id: "limit-told",
        title: "A limit is told as a limit, and what was written before is kept",
        does: "The command writes a line and sleeps for a minute; its limit is 1 s.",
        proves: "The limit ends the command, and is told as the reason: not as an exit with 0 or −1.",
        proves_not: "That the whole tree is gone; that is `quiet-limit` and `limit-tree`.",
        cases: &[19, 20, 29, 56, 104, 115],
        bound_s: 45,
        run: limit,
    },
    Probe {
        id: "quiet-limit",
        title: "A limit ends a silent command whose child holds the pipe",
        does: "A silent command with a background child, both of which sleep for a minute; the limit is 1 s. When the end \
               is told is measured, and what lives after it is looked for.",
        proves: "The limit runs by its own clock, waits for no output and no end-of-file, and ends the tree.",
        proves_not: "That processes which left the group or session are ended; that is `limit-tree`.",
        cases: &[1, 7, 8, 16, 23],
        bound_s: 60,
        run: quiet_limit,
    },
    Probe {
        id: "parent-exits",
        title: "An exit is told at once, though a child holds the pipe",
        does: "The command starts a child in the background that sleeps for 8 s with its output, and exits with 3.",
        proves: "The exit is told when it happens, and not when the last holder of the pipe is gone.",
        proves_not: "What becomes of the child; that is `exit-tree`.",
        cases: &[4, 5, 10, 11, 14, 62],
        bound_s: 45,
        run: parent_exits,
    },
    Probe {
        id: "tee-behind",
        title: "A command that writes through its own background filter ends",
        does: "`exec > >(cat) 2>&1; echo through; exit 0`: the filter outlives the shell for a moment.",
        proves: "The end is told soon, and the output that went through the filter is kept.",
        proves_not: "What happens to a filter that never ends.",
        cases: &[2],
        bound_s: 30,
        run: tee_behind,
    },
    Probe {
        id: "stop-ignored",
        title: "A stop ends a command that ignores TERM",
        does: "The command and its child ignore TERM. It is stopped, with a grace of 1 s where that can be asked for.",
        proves: "A stop escalates to KILL by itself, for the child too.",
        proves_not: "That a process in uninterruptible sleep would end: no signal can do that.",
        cases: &[31, 38],
        bound_s: 60,
        run: stop_ignored,
    },
    Probe {
        id: "stop-handled",
        title: "A stop lets a command clean up, and keeps what it says then",
        does: "On TERM the command writes a line and exits with 5. It is stopped.",
        proves: "TERM comes first, there is a grace, and output written in it is kept.",
        proves_not: "How long the grace is.",
        cases: &[113],
        bound_s: 45,
        run: stop_handled,
    },
    Probe {
        id: "stop-races-exit",
        title: "A stop that races the exit leads to one true answer",
        does: "Commands that exit with 7 after 0 to 3,000 ms are stopped as soon as their start is answered, others that exit \
               at once are stopped 0 to 1,000 ms later; what is said is asked for twice.",
        proves: "In these rounds, in which either came first, the end was 7 or the stop's signal, and stayed what it was.",
        proves_not: "That no other delay would show another answer.",
        cases: &[43, 46],
        bound_s: 90,
        run: stop_races_exit,
    },
    Probe {
        id: "pipeline",
        title: "A pipeline's failing stage is not hidden by the last one",
        does: "Three scripts: `(exit 101) | tail -n 20` is 101, `yes | head -1` is a success, and so is \
               `grep zzz FILE | wc -l` without a hit.",
        proves: "Stages count, and the two well-known ends that are no failure do not.",
        proves_not: "That every pipeline is judged as its author would.",
        cases: &[],
        bound_s: 45,
        run: pipeline,
    },
];

/// An end that the subject told, and when.
#[derive(Debug, Serialize)]
struct Told {
    said: Said,
    after_ms: u64,
}

fn told(lab: &Lab, request: &Request, within: Duration) -> Answer<Told> {
    let began = Instant::now();
    let handle = lab.start(request)?.handle;
    let said = lab.subject.wait(&handle, within)?;
    Ok(Told { said, after_ms: millis(began.elapsed()) })
}

fn exit_code(lab: &Lab) -> Answer<Finding> {
    let seen = told(lab, &lab.bash("exit 3"), Duration::from_secs(15))?;
    Ok(Finding::of(&seen, judge_exit_code(&seen.said)))
}

fn judge_exit_code(said: &Said) -> Judgement {
    match (said.state, &said.end) {
        (State::Ended, Some(End::Exited { code: 3 })) => pass("exit 3"),
        (State::Ended, None) => partial("told that it ended, and not how"),
        _ => fail(said.in_words()),
    }
}

fn signal(lab: &Lab) -> Answer<Finding> {
    let seen = told(lab, &lab.bash("kill -9 $$"), Duration::from_secs(15))?;
    Ok(Finding::of(&seen, judge_signal(&seen.said)))
}

fn judge_signal(said: &Said) -> Judgement {
    match (said.state, &said.end) {
        (State::Ended, Some(End::Signaled { signal: 9 })) => pass("signal 9"),
        (State::Ended, Some(End::Signaled { signal: 0 })) => partial("a signal, not which"),
        (State::Ended, Some(End::Exited { code: code @ (137 | -9) })) => {
            partial(format!("told as exit {code}, as a program's own would be"))
        }
        (State::Ended, None) => partial("told that it ended, and not how"),
        _ => fail(said.in_words()),
    }
}

fn no_program(lab: &Lab) -> Answer<Finding> {
    let program = OsString::from("/no/such/program-for-this-probe");
    let refused = lab.start(&Request::of(Work::Argv(vec![program])));
    let seen = match refused {
        Ok(started) => Ok(lab.subject.wait(&started.handle, Duration::from_secs(15))?),
        Err(trouble @ Trouble::Refused { .. }) => Err(trouble),
        Err(trouble) => return Err(trouble),
    };
    Ok(Finding::of(&seen, judge_no_program(seen.as_ref())))
}

fn judge_no_program(seen: Result<&Said, &Trouble>) -> Judgement {
    match seen {
        Err(trouble) => pass(trouble.to_string()),
        Ok(Said { state: State::Ended, end: Some(End::NotExecuted { why }), .. }) => {
            pass(format!("not executed: {why}"))
        }
        Ok(Said { state: State::Ended, end: Some(End::Exited { code: code @ 1..=255 }), .. }) => {
            partial(format!("told as exit {code}, as a program's own would be"))
        }
        Ok(said) => fail(said.in_words()),
    }
}

#[derive(Debug, Serialize)]
struct Limited {
    said: Said,
    after_ms: u64,
    output: String,
}

fn limit(lab: &Lab) -> Answer<Finding> {
    let mut request = lab.bash("echo before; sleep 60");
    request.deadline = Some(Duration::from_secs(1));
    request.grace = Some(Duration::from_secs(1));
    let began = Instant::now();
    let handle = lab.start(&request)?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(20))?;
    let after_ms = millis(began.elapsed());
    let output = String::from_utf8_lossy(&lab.read_all(&handle)?.first).into_owned();
    let seen = Limited { said, after_ms, output };
    Ok(Finding::of(&seen, judge_limit(&seen)))
}

fn judge_limit(seen: &Limited) -> Judgement {
    let Limited { said, after_ms, output } = seen;
    if said.state != State::Ended {
        return fail(format!("after {} it is {}", took(*after_ms), said.in_words()));
    }
    if output != "before\n" {
        return fail(format!("what was written before the limit is lost: {output:?}"));
    }
    let after = took(*after_ms);
    match (said.cause, &said.end) {
        (Some(Cause::Deadline), _) => pass(format!("told as its limit after {after}")),
        (_, Some(End::Exited { code: code @ ..=0 })) => fail(format!("told as exit {code} after {after}")),
        _ => partial(format!("ended after {after}; told as {}, not that it was a limit", said.in_words())),
    }
}

/// A limit, what is said, and what lives.
#[derive(Debug, Serialize)]
pub(super) struct Quiet {
    pub(super) said: Said,
    pub(super) after_ms: u64,
    pub(super) living: Vec<String>,
}

fn quiet_limit(lab: &Lab) -> Answer<Finding> {
    let mut request = lab.bash("OUTLAST_QUALIFY_ROLE=child sleep 60 & OUTLAST_QUALIFY_ROLE=main sleep 60");
    request.deadline = Some(Duration::from_secs(1));
    request.grace = Some(Duration::from_secs(1));
    let began = Instant::now();
    let handle = lab.start(&request)?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(25))?;
    let after_ms = millis(began.elapsed());
    let living = lab.living_after(Duration::from_secs(2))?;
    let seen = Quiet { said, after_ms, living };
    Ok(Finding::of(&seen, judge_quiet(&seen)))
}

/// A limit of 1 s and a grace of 1 s, and as much again for a machine with other work.
const LIMIT_IS_LATE_MS: u64 = 5_000;

pub(super) fn judge_quiet(seen: &Quiet) -> Judgement {
    let Quiet { said, after_ms, living } = seen;
    let after = took(*after_ms);
    if said.state != State::Ended {
        return fail(format!("after {after} it is {}", said.in_words()));
    }
    if !living.is_empty() {
        return fail(format!("told as over after {after}, but {} live on", living.join(" ")));
    }
    match *after_ms {
        0..LIMIT_IS_LATE_MS => pass(format!("over after {after}, nothing lives")),
        _ => fail(format!("over only after {after}, for a limit of 1 s")),
    }
}

#[derive(Debug, Serialize)]
struct Parent {
    /// What was said when the exit was told.
    said: Said,
    after_ms: u64,
    /// What lived then.
    living: Vec<String>,
}

fn parent_exits(lab: &Lab) -> Answer<Finding> {
    lab.get_ready_to_look()?;
    let began = Instant::now();
    let handle = lab.start(&lab.bash("OUTLAST_QUALIFY_ROLE=child sleep 8 & echo done; exit 3"))?.handle;
    let (said, _) = lab.until_end_is_told(&handle, Duration::from_secs(20))?;
    let after_ms = millis(began.elapsed());
    let seen = Parent { said, after_ms, living: lab.living()? };
    Ok(Finding::of(&seen, judge_parent(&seen)))
}

fn judge_parent(seen: &Parent) -> Judgement {
    let Parent { said, after_ms, living } = seen;
    let after = took(*after_ms);
    match (&said.end, said.state) {
        (None, State::Ended) if *after_ms <= 3_000 => partial(format!("over after {after}; not told how")),
        (None, _) => fail(format!("after {after} it is {}", said.in_words())),
        (Some(End::Exited { code: 3 }), _) if *after_ms > 3_000 => {
            fail(format!("told only after {after}, when the child was gone or ended"))
        }
        (Some(End::Exited { code: 3 }), State::Ended) if !living.is_empty() => {
            partial(format!("exit 3 told after {after}, as the end of it all, while its child lives"))
        }
        (Some(End::Exited { code: 3 }), _) => pass(format!("exit 3 told after {after}; {}", said.in_words())),
        (Some(_), _) => fail(format!("told as {}", said.in_words())),
    }
}

#[derive(Debug, Serialize)]
struct Filtered {
    said: Said,
    after_ms: u64,
    output: String,
}

fn tee_behind(lab: &Lab) -> Answer<Finding> {
    let began = Instant::now();
    let handle = lab.start(&lab.bash("exec > >(cat) 2>&1; echo through; exit 0"))?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(15))?;
    let after_ms = millis(began.elapsed());
    let output = String::from_utf8_lossy(&lab.read_all(&handle)?.first).into_owned();
    let seen = Filtered { said, after_ms, output };
    Ok(Finding::of(&seen, judge_filtered(&seen)))
}

fn judge_filtered(seen: &Filtered) -> Judgement {
    let Filtered { said, after_ms, output } = seen;
    match (said.state, &said.end, output.as_str()) {
        (State::Ended, Some(End::Exited { code: 0 }), "through\n") if *after_ms < 10_000 => {
            pass(format!("exit 0 after {}, output whole", took(*after_ms)))
        }
        (State::Ended, _, "through\n") => fail(format!("{} after {}", said.in_words(), took(*after_ms))),
        (State::Ended, ..) => fail(format!("output {output:?}, and does not say that any is missing")),
        _ => fail(format!("after {} it is {}", took(*after_ms), said.in_words())),
    }
}

#[derive(Debug, Serialize)]
struct Stopped {
    said: Said,
    after_ms: u64,
    living: Vec<String>,
    output: String,
}

fn stopped(lab: &Lab, request: &Request) -> Answer<Stopped> {
    let handle = lab.start(request)?.handle;
    if !lab.until_output_has(&handle, "ready", Duration::from_secs(10))? {
        return Err(Trouble::unobserved(
            "the command did not get ready in 10 s, or its output could not be read",
        ));
    }
    let began = Instant::now();
    let said = lab.subject.stop(&handle, Duration::from_secs(20))?;
    let after_ms = millis(began.elapsed());
    let living = lab.living_after(Duration::from_secs(3))?;
    let output = String::from_utf8_lossy(&lab.read_all(&handle)?.first).into_owned();
    Ok(Stopped { said, after_ms, living, output })
}

fn stop_ignored(lab: &Lab) -> Answer<Finding> {
    let mut request =
        lab.bash("trap '' TERM; OUTLAST_QUALIFY_ROLE=child sleep 60 & echo ready; wait; sleep 60");
    request.grace = Some(Duration::from_secs(1));
    let seen = stopped(lab, &request)?;
    Ok(Finding::of(&seen, judge_stop_ignored(&seen)))
}

fn judge_stop_ignored(seen: &Stopped) -> Judgement {
    let after = took(seen.after_ms);
    match (seen.said.state, seen.living.as_slice()) {
        (State::Ended, []) => pass(format!("over after {after}; {}", seen.said.in_words())),
        (State::Ended, living) => {
            fail(format!("told as over after {after}, but {} live on", living.join(" ")))
        }
        (State::Stopping | State::Running, [_, ..]) => {
            fail(format!("never escalated: it runs on after {after}"))
        }
        (_, []) => partial(format!("gone, but said to be {} after {after}", seen.said.in_words())),
        (_, living) => fail(format!("{}, and {} live on", seen.said.in_words(), living.join(" "))),
    }
}

fn stop_handled(lab: &Lab) -> Answer<Finding> {
    let request = lab.bash("trap 'echo cleaned; exit 5' TERM; echo ready; while :; do sleep 0.05; done");
    let seen = stopped(lab, &request)?;
    Ok(Finding::of(&seen, judge_stop_handled(&seen)))
}

fn judge_stop_handled(seen: &Stopped) -> Judgement {
    // Beside it stands what its shell says of the `sleep` that was ended with it.
    let cleaned = seen.output.lines().any(|line| line == "cleaned");
    match (seen.said.state, cleaned, &seen.said.end) {
        (State::Ended, _, _) if !seen.living.is_empty() => fail("told as over, but it lives on"),
        (State::Ended, true, Some(End::Exited { code: 5 })) => {
            pass(format!("its last line is kept, exit 5, after {}", took(seen.after_ms)))
        }
        (State::Ended, true, _) => {
            partial(format!("its last line is kept; told as {}", seen.said.in_words()))
        }
        (State::Ended, false, _) => {
            fail(format!("no time to clean up, or its last line is lost; {}", seen.said.in_words()))
        }
        _ => fail(format!("after {} it is {}", took(seen.after_ms), seen.said.in_words())),
    }
}

#[derive(Debug, Serialize)]
struct Race {
    rounds: Vec<(Said, Said)>,
}

fn stop_races_exit(lab: &Lab) -> Answer<Finding> {
    // From lengths that are over before the other comes, to one that hardly ever is.
    const LENGTHS_MS: [u64; 9] = [0, 1, 2, 4, 8, 16, 32, 64, 3_000];
    let rounds = if lab.quick { 2 } else { 6 } * LENGTHS_MS.len();
    let mut seen = Race { rounds: Vec::new() };
    let began = Instant::now();
    while seen.rounds.len() < rounds && began.elapsed() < Duration::from_secs(60) {
        let number = seen.rounds.len();
        let length = Duration::from_millis(LENGTHS_MS[number % LENGTHS_MS.len()]);
        let stop_first = (number / LENGTHS_MS.len()).is_multiple_of(2);
        let script = match stop_first {
            true => format!("sleep {}; exit 7", length.as_secs_f64()),
            false => "exit 7".to_owned(),
        };
        let handle = lab.start(&lab.bash(&script))?.handle;
        if !stop_first {
            // This waits for nothing: the delay is what is varied.
            thread::sleep(length.min(Duration::from_secs(1)));
        }
        match lab.subject.stop(&handle, Duration::from_secs(15)) {
            // That it is over already is an answer.
            Ok(_) | Err(Trouble::Refused { .. }) => {}
            Err(trouble) => return Err(trouble),
        }
        let first = lab.subject.wait(&handle, Duration::from_secs(15))?;
        let second = lab.subject.inspect(&handle)?;
        seen.rounds.push((first, second));
    }
    Ok(Finding::of(&seen, judge_race(&seen)))
}

fn judge_race(seen: &Race) -> Judgement {
    let mut exits = 0;
    let mut untold = 0;
    for (first, second) in &seen.rounds {
        match (first.state, &first.end) {
            (State::Ended, Some(End::Exited { code: 7 })) => exits += 1,
            (State::Ended, Some(End::Signaled { signal: 0 | 9 | 15 } | End::NotExecuted { .. })) => {}
            (State::Ended, Some(End::Exited { code: 137 | 143 | -9 | -15 })) => {}
            (State::Ended, None) => untold += 1,
            _ => return fail(format!("one is {}", first.in_words())),
        }
        if first.end != second.end {
            return fail(format!("told as {}, then as {}", first.in_words(), second.in_words()));
        }
    }
    match (seen.rounds.len(), untold) {
        (rounds, 0) if exits == 0 => inconclusive(format!("{rounds} rounds, and no exit came first")),
        (rounds, 0) if exits == rounds => inconclusive(format!("{rounds} rounds, and no stop came first")),
        (rounds, 0) => pass(format!("{rounds} rounds: {exits} exits, {} stopped first", rounds - exits)),
        (rounds, untold) => partial(format!("{untold} of {rounds} are over without being told how")),
    }
}

#[derive(Debug, Serialize)]
struct Pipelines {
    /// What was said of each, and what is right.
    scripts: Vec<(&'static str, i64, Said)>,
}

fn pipeline(lab: &Lab) -> Answer<Finding> {
    let mut seen = Pipelines { scripts: Vec::new() };
    for (script, right) in
        [("(exit 101) | tail -n 20", 101), ("yes | head -1", 0), ("grep zzz /proc/version | wc -l", 0)]
    {
        let handle = lab.start(&Request::of(Work::Script(script.to_owned())))?.handle;
        seen.scripts.push((script, right, lab.subject.wait(&handle, Duration::from_secs(10))?));
    }
    Ok(Finding::of(&seen, judge_pipeline(&seen)))
}

fn judge_pipeline(seen: &Pipelines) -> Judgement {
    let (mut words, mut verdict) = (Vec::new(), Verdict::Pass);
    for (script, right, said) in &seen.scripts {
        match said.effective {
            Some(code) if code == *right => {}
            Some(code) => {
                verdict = Verdict::Fail;
                words.push(format!("`{script}` is told as {code}"));
            }
            None => {
                verdict = Verdict::Fail;
                words.push(format!("`{script}`: {}", said.in_words()));
            }
        }
    }
    if words.is_empty() { pass("101, 0 and 0") } else { (verdict, words.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Inconclusive, Partial, Pass};

    fn exited(code: i64) -> Said {
        Said::ended(End::Exited { code })
    }

    fn signaled(signal: i32) -> Said {
        Said::ended(End::Signaled { signal })
    }

    fn running_with(end: End) -> Said {
        Said { end: Some(end), ..Said::only(State::Running) }
    }

    #[test]
    fn codes() {
        for (said, verdict) in [
            (exited(3), Pass),
            (exited(0), Fail),
            (exited(-1), Fail),
            (Said::only(State::Ended), Partial),
            (Said::only(State::Running), Fail),
            (Said::only(State::Forgotten), Fail),
        ] {
            assert_eq!(judge_exit_code(&said).0, verdict, "{said:?}");
        }
    }

    #[test]
    fn signals() {
        for (said, verdict) in [
            (signaled(9), Pass),
            (signaled(0), Partial),
            (exited(137), Partial),
            (signaled(15), Fail),
            (exited(0), Fail),
            (exited(1), Fail),
            (Said::only(State::Unknown), Fail),
        ] {
            assert_eq!(judge_signal(&said).0, verdict, "{said:?}");
        }
    }

    #[test]
    fn programs_that_are_not_there() {
        let why = "no such file".to_owned();
        assert_eq!(judge_no_program(Ok(&Said::ended(End::NotExecuted { why }))).0, Pass);
        assert_eq!(judge_no_program(Err(&Trouble::refused("ENOENT", "no such file"))).0, Pass);
        assert_eq!(judge_no_program(Ok(&exited(127))).0, Partial);
        assert_eq!(judge_no_program(Ok(&exited(0))).0, Fail);
        assert_eq!(judge_no_program(Ok(&Said::only(State::Running))).0, Fail);
    }

    #[test]
    fn limits() {
        let limited = |said: Said, output: &str| Limited { said, after_ms: 1_040, output: output.to_owned() };
        let by_deadline = Said { cause: Some(Cause::Deadline), ..signaled(15) };
        for (seen, verdict) in [
            (limited(by_deadline.clone(), "before\n"), Pass),
            (limited(by_deadline, ""), Fail),
            (limited(exited(124), "before\n"), Partial),
            (limited(signaled(15), "before\n"), Partial),
            (limited(exited(-1), "before\n"), Fail),
            (limited(exited(0), "before\n"), Fail),
            (limited(Said::only(State::Running), "before\n"), Fail),
        ] {
            assert_eq!(judge_limit(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn silent_limits() {
        let quiet = |said: Said, after_ms, living: &[&str]| Quiet {
            said,
            after_ms,
            living: living.iter().map(|role| (*role).to_owned()).collect(),
        };
        for (seen, verdict) in [
            (quiet(signaled(15), 1_100, &[]), Pass),
            (quiet(signaled(15), 1_100, &["child"]), Fail),
            (quiet(signaled(15), 9_000, &[]), Fail),
            (quiet(Said::only(State::Running), 25_000, &[]), Fail),
            (quiet(Said::only(State::Unknown), 1_000, &[]), Fail),
        ] {
            assert_eq!(judge_quiet(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn parents() {
        let parent = |said: Said, after_ms, lives: bool| Parent {
            said,
            after_ms,
            living: if lives { vec!["child".to_owned()] } else { vec![] },
        };
        for (seen, verdict) in [
            (parent(running_with(End::Exited { code: 3 }), 50, true), Pass),
            (parent(exited(3), 50, false), Pass),
            (parent(exited(3), 50, true), Partial),
            (parent(exited(3), 8_000, false), Fail),
            (parent(exited(0), 50, true), Fail),
            (parent(Said::only(State::Running), 20_000, false), Fail),
            (parent(Said::only(State::Ended), 50, true), Partial),
        ] {
            assert_eq!(judge_parent(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn filters() {
        let filtered =
            |said: Said, after_ms, output: &str| Filtered { said, after_ms, output: output.to_owned() };
        for (seen, verdict) in [
            (filtered(exited(0), 20, "through\n"), Pass),
            (filtered(exited(0), 20, ""), Fail),
            (filtered(exited(1), 20, "through\n"), Fail),
            (filtered(exited(0), 12_000, "through\n"), Fail),
            (filtered(Said::only(State::Running), 15_000, "through\n"), Fail),
        ] {
            assert_eq!(judge_filtered(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn stops() {
        let stopped = |said: Said, lives: bool, output: &str| Stopped {
            said,
            after_ms: 1_000,
            living: if lives { vec!["child".to_owned()] } else { vec![] },
            output: output.to_owned(),
        };
        for (seen, verdict) in [
            (stopped(signaled(9), false, "ready\n"), Pass),
            (stopped(signaled(9), true, "ready\n"), Fail),
            (stopped(Said::only(State::Stopping), true, "ready\n"), Fail),
            (stopped(Said::only(State::Forgotten), false, "ready\n"), Partial),
            (stopped(Said::only(State::Forgotten), true, "ready\n"), Fail),
        ] {
            assert_eq!(judge_stop_ignored(&seen).0, verdict, "{seen:?}");
        }
        for (seen, verdict) in [
            (stopped(exited(5), false, "ready\ncleaned\n"), Pass),
            (stopped(exited(137), false, "ready\n"), Fail),
            (stopped(exited(137), false, "ready\ncleaned\n"), Partial),
            (stopped(exited(5), true, "ready\ncleaned\n"), Fail),
            (stopped(Said::only(State::Running), true, "ready\n"), Fail),
        ] {
            assert_eq!(judge_stop_handled(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn races() {
        let round =
            |first: Said, second: Said| Race { rounds: vec![(exited(7), exited(7)), (first, second)] };
        for (seen, verdict) in [
            (round(signaled(15), signaled(15)), Pass),
            (round(exited(7), signaled(15)), Fail),
            (round(exited(0), exited(0)), Fail),
            (round(Said::only(State::Unknown), Said::only(State::Unknown)), Fail),
            (round(Said::only(State::Ended), Said::only(State::Ended)), Partial),
            (round(exited(7), exited(7)), Inconclusive),
            (Race { rounds: vec![(signaled(15), signaled(15))] }, Inconclusive),
            (Race { rounds: vec![] }, Inconclusive),
        ] {
            assert_eq!(judge_race(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn pipelines() {
        let told = |codes: [Option<i64>; 3]| Pipelines {
            scripts: [("a", 101), ("b", 0), ("c", 0)]
                .into_iter()
                .zip(codes)
                .map(|((script, right), effective)| (script, right, Said { effective, ..exited(0) }))
                .collect(),
        };
        assert_eq!(judge_pipeline(&told([Some(101), Some(0), Some(0)])).0, Pass);
        assert_eq!(judge_pipeline(&told([Some(0), Some(0), Some(0)])).0, Fail);
        assert_eq!(judge_pipeline(&told([Some(101), Some(141), Some(0)])).0, Fail);
        assert_eq!(judge_pipeline(&told([Some(101), Some(0), Some(1)])).0, Fail);
        assert_eq!(judge_pipeline(&told([Some(101), None, Some(0)])).0, Fail);
    }
}
