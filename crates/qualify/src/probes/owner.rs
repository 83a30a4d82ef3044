//! What owns the command is lost: what becomes of the command, its output and what is said of it.

use crate::lab::{Expected, Lab, until};
use crate::probe::{Finding, Judgement, Probe, fail, inconclusive, partial, pass};
use crate::subject::{Answer, Containment, End, Said, Settled, State, Trouble};
use serde::Serialize;
use std::time::Duration;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "owner-killed",
        title: "The owner is killed: output is whole, and what is said is true",
        does: "The command writes a numbered line 40 times over two seconds, leaves a witness file and exits with 7. After \
               the first line whatever owns it is killed with signal 9, and brought back as it would be after a crash. Then \
               what the subject says is held against what the command did.",
        proves: "Nothing is invented about a command whose owner was lost, and its output is not lost with the owner.",
        proves_not: "That an end can be known after such a loss; \"unknown\" is a true answer, and passes.",
        cases: &[77, 86],
        bound_s: 75,
        run: owner_killed,
    },
    Probe {
        id: "unknown-then-settled",
        title: "A lost command is unknown until it is settled with proof, or a reason why not",
        does: "The command sleeps with a child in a session of its own; its owner is killed. What is said is noted, then it is \
               settled, and what lives is looked for.",
        proves: "A loss is told as one, never with an invented code; settling ends what is left, and either proves that or \
                 says why it cannot.",
        proves_not: "That the reason is the last word: a person may know more.",
        cases: &[46, 86],
        bound_s: 75,
        run: unknown_settled,
    },
    Probe {
        id: "settled-by-proof",
        title: "In a PID namespace a lost command is settled with proof",
        does: "As `unknown-then-settled`, in a PID namespace: its init gone is proof that everything in it is.",
        proves: "There is a containment whose loss can be settled without anybody's word.",
        proves_not: "That it is to be had on every machine.",
        cases: &[86],
        bound_s: 75,
        run: settled_by_proof,
    },
];

#[derive(Debug, Serialize)]
struct Lost {
    owner: String,
    restarted: String,
    /// Whether the command did its work to the end, by its own witness.
    finished: bool,
    lives: bool,
    said: Said,
    /// Lines of output that can be read, and whether they are the right ones from the first on.
    lines: u64,
    in_order: bool,
    whole: bool,
}

fn owner_killed(lab: &Lab) -> Answer<Finding> {
    let witness = lab.witness("finished");
    let script = format!(
        "for i in {{1..40}}; do echo \"line $i\"; sleep 0.05; done; echo done >> '{witness}'; exit 7"
    );
    let handle = lab.start(&lab.bash(&script))?.handle;
    if !lab.until_output_has(&handle, "line 1\n", Duration::from_secs(10))? {
        return Err(Trouble::unobserved("its first line could not be read in 10 s"));
    }
    let owner = lab.subject.kill_owner(&handle)?;
    // The command goes on to its end, or went with its owner: either way nothing of it lives after a while.
    let gone = until(Duration::from_secs(12), || lab.living().is_ok_and(|living| living.is_empty()));
    let restarted = lab.subject.restart_owner()?;
    let said = lab.subject.wait(&handle, Duration::from_secs(5))?;
    let all: String = (1..=40).map(|i| format!("line {i}\n")).collect();
    let (read, said) = match lab.read_all(&handle) {
        Ok(read) => (Some(read), said),
        // Output that is gone with the owner is a sight, and no reason to see nothing.
        Err(Trouble::Refused { why, .. } | Trouble::Unavailable { why }) => {
            (None, Said { because: format!("{}; output: {why}", said.because), ..said })
        }
        Err(trouble) => return Err(trouble),
    };
    let text = read.as_ref().map(|read| read.first.clone()).unwrap_or_default();
    let seen = Lost {
        owner,
        restarted,
        finished: lab.lines(&witness)? == 1,
        lives: !gone,
        lines: text.iter().filter(|byte| **byte == b'\n').count() as u64,
        in_order: all.as_bytes().starts_with(&text),
        whole: read.is_some_and(|read| read.is(&Expected::bytes(all.as_bytes()))),
        said,
    };
    Ok(Finding::of(&seen, judge_lost(&seen)))
}

fn judge_lost(seen: &Lost) -> Judgement {
    let words = seen.said.in_words();
    if seen.lives {
        return inconclusive("the command did not end in 12 s");
    }
    let fate = match seen.finished {
        true => "the command finished",
        false => "the command went with its owner",
    };
    let output = match (seen.whole, seen.in_order) {
        (true, _) => "output whole".to_owned(),
        (false, true) => format!("{} of 40 lines kept", seen.lines),
        (false, false) => format!("{} lines kept, not the ones that were written", seen.lines),
    };
    let line = format!("{fate}; {output}; told as {words}");
    let invented = match (&seen.said.end, seen.finished) {
        (Some(End::Exited { code: 7 }), true) | (Some(End::Unknown { .. }) | None, _) => false,
        // That a signal ended it is true where it went with its owner, and a program that found its output closed may
        // say so with a code of its own.
        (Some(End::Signaled { .. }), finished) => finished,
        (Some(End::Exited { code }), finished) => finished || *code == 0 || *code == 7,
        (Some(End::NotExecuted { .. }), _) => true,
    };
    match seen.said.state {
        State::Forgotten => fail(format!("{line} (the record is lost)")),
        State::Running | State::Stopping => fail(format!("{line} (nothing of it lives)")),
        _ if invented => fail(format!("{line} (invented)")),
        _ if !seen.in_order => fail(line),
        _ if seen.finished && !seen.whole && seen.said.gap.is_none() => fail(line),
        State::Unknown => match seen.finished {
            true => pass(line),
            false => partial(line),
        },
        State::Ended if seen.finished && seen.said.end.is_none() => partial(line),
        State::Ended => match seen.finished {
            true => pass(line),
            false => partial(line),
        },
    }
}

#[derive(Debug, Serialize)]
struct Unknown {
    owner: String,
    /// What was said before it was settled.
    before: Said,
    /// What lived then.
    lived: Vec<String>,
    settled: Settled,
    /// What lives after that.
    living: Vec<String>,
}

const ORPHANED: &str = "(OUTLAST_QUALIFY_ROLE=B setsid sleep 60 &); OUTLAST_QUALIFY_ROLE=D sleep 60; exit 0";

fn unknown_settled(lab: &Lab) -> Answer<Finding> {
    let seen = lose_and_settle(lab, None)?;
    Ok(Finding::of(&seen, judge_unknown(&seen)))
}

fn settled_by_proof(lab: &Lab) -> Answer<Finding> {
    let seen = lose_and_settle(lab, Some(Containment::PidNamespace))?;
    Ok(Finding::of(&seen, judge_proof(&seen)))
}

fn lose_and_settle(lab: &Lab, containment: Option<Containment>) -> Answer<Unknown> {
    let mut request = lab.bash(ORPHANED);
    request.containment = containment;
    let handle = lab.start(&request)?.handle;
    if !lab.until_living(&["B", "D"], Duration::from_secs(10))? {
        return Err(Trouble::unobserved("the tree was not seen to live"));
    }
    let owner = lab.subject.kill_owner(&handle)?;
    lab.subject.restart_owner()?;
    let before = until_not_running(lab, &handle)?;
    let lived = lab.living()?;
    let settled = lab.subject.settle(&handle, Duration::from_secs(15))?;
    let living = lab.living_after(Duration::from_secs(2))?;
    Ok(Unknown { owner, before, lived, settled, living })
}

/// A subject may need a moment to see that the owner is gone.
fn until_not_running(lab: &Lab, handle: &crate::subject::Handle) -> Answer<Said> {
    lab.subject.wait(handle, Duration::from_secs(3))
}

fn judge_unknown(seen: &Unknown) -> Judgement {
    let before = seen.before.in_words();
    let lived = match seen.lived.as_slice() {
        [] => "nothing lived".to_owned(),
        lived => format!("{} lived", lived.join(" ")),
    };
    let first = format!("told as {before} ({lived})");
    match (&seen.before.end, seen.before.state) {
        (_, State::Forgotten) => return fail(format!("{first}; the record is lost")),
        (Some(End::Exited { .. }), _) => return fail(format!("{first}: invented")),
        (_, State::Ended) if !seen.lived.is_empty() => return fail(format!("{first}: it was not over")),
        (_, State::Running | State::Stopping) if seen.lived.is_empty() => {
            return fail(format!("{first}: nothing of it lived"));
        }
        _ => {}
    }
    if let Some(End::Exited { code }) = &seen.settled.said.end {
        return fail(format!("{first}; settled as exit {code}: invented"));
    }
    let after = match &seen.settled {
        Settled { refused: Some(why), .. } => format!("not settled: {why}"),
        Settled { said, .. } => match &said.proof {
            Some(proof) => format!("settled, proof: {proof}"),
            None => format!("settled as {}", said.in_words()),
        },
    };
    if !seen.living.is_empty() {
        return fail(format!("{first}; {after}; {} live on", seen.living.join(" ")));
    }
    match &seen.settled {
        Settled { refused: None, said: Said { proof: None, .. } } => {
            partial(format!("{first}; {after}, without proof or reason"))
        }
        _ => pass(format!("{first}; {after}; nothing lives")),
    }
}

fn judge_proof(seen: &Unknown) -> Judgement {
    match judge_unknown(seen) {
        (crate::probe::Verdict::Pass, line) if seen.settled.said.proof.is_none() => partial(line),
        judgement => judgement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Inconclusive, Partial, Pass};

    fn lost(said: Said, finished: bool, lines: u64) -> Lost {
        Lost {
            owner: "keeper".into(),
            restarted: "needs none".into(),
            finished,
            lives: false,
            said,
            lines,
            in_order: true,
            whole: lines == 40,
        }
    }

    fn exited(code: i64) -> Said {
        Said::ended(End::Exited { code })
    }

    #[test]
    fn what_is_said_after_a_loss() {
        let signaled = || Said::ended(End::Signaled { signal: 9 });
        for (seen, verdict) in [
            (lost(Said::only(State::Unknown), true, 40), Pass),
            (lost(exited(7), true, 40), Pass),
            (lost(Said::only(State::Unknown), true, 20), Fail),
            (lost(exited(0), true, 40), Fail),
            (lost(exited(-1), true, 40), Fail),
            (lost(signaled(), true, 40), Fail),
            (lost(signaled(), false, 12), Partial),
            (lost(exited(0), false, 12), Fail),
            (lost(exited(7), false, 12), Fail),
            (lost(Said::only(State::Running), true, 40), Fail),
            (lost(Said::only(State::Forgotten), true, 40), Fail),
            (lost(Said::only(State::Ended), true, 40), Partial),
            (Lost { in_order: false, whole: false, ..lost(Said::only(State::Unknown), true, 40) }, Fail),
            (Lost { lives: true, ..lost(Said::only(State::Running), false, 3) }, Inconclusive),
        ] {
            assert_eq!(judge_lost(&seen).0, verdict, "{seen:?}");
        }
    }

    fn unknown(before: Said, lived: bool, settled: Settled, lives: bool) -> Unknown {
        let roles = |some| if some { vec!["B".to_owned()] } else { vec![] };
        Unknown { owner: "keeper".into(), before, lived: roles(lived), settled, living: roles(lives) }
    }

    #[test]
    fn what_settling_comes_to() {
        let said = || Said::only(State::Unknown);
        let refused = || Settled { said: said(), refused: Some("nothing proves it".into()) };
        let proved = || Settled { said: Said { proof: Some("init gone".into()), ..said() }, refused: None };
        let plain = || Settled { said: said(), refused: None };
        for (seen, with_reason, with_proof) in [
            (unknown(said(), true, proved(), false), Pass, Pass),
            (unknown(said(), true, refused(), false), Pass, Partial),
            (unknown(said(), true, plain(), false), Partial, Partial),
            (unknown(said(), true, proved(), true), Fail, Fail),
            (unknown(exited(0), false, proved(), false), Fail, Fail),
            (unknown(exited(-1), true, refused(), false), Fail, Fail),
            (unknown(Said::only(State::Ended), true, proved(), false), Fail, Fail),
            (unknown(Said::only(State::Running), false, proved(), false), Fail, Fail),
            (unknown(Said::only(State::Forgotten), true, refused(), false), Fail, Fail),
            (unknown(said(), true, Settled { said: exited(0), refused: None }, false), Fail, Fail),
        ] {
            assert_eq!(judge_unknown(&seen).0, with_reason, "{seen:?}");
            assert_eq!(judge_proof(&seen).0, with_proof, "{seen:?}");
        }
    }
}
