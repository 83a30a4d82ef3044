//! What the command reads.

use super::took;
use crate::lab::Lab;
use crate::probe::{Finding, Judgement, Probe, fail, pass};
use crate::subject::{Answer, End, Said, State, Stdin, Trouble, millis};
use serde::Serialize;
use std::time::{Duration, Instant};

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "no-input",
        title: "A command that reads where there is no input goes on",
        does: "The command reads its standard input to its end and writes a word.",
        proves: "Standard input is closed or empty, and no caller's terminal, script or pipe.",
        proves_not: "Anything about input that is given.",
        cases: &[109, 110],
        bound_s: 30,
        run: no_input,
    },
    Probe {
        id: "stdin-exact",
        title: "Input arrives as it was given, and its close as its end",
        does: "A line end and `abc`, NUL and 0xff are written to the open input of `cat`, which is then closed.",
        proves: "No byte of the input is eaten or changed, and the close is delivered.",
        proves_not: "That writes which are repeated after a lost answer arrive once.",
        cases: &[94, 112],
        bound_s: 40,
        run: stdin_exact,
    },
    Probe {
        id: "stdin-after-end",
        title: "Input for a command that has ended is answered",
        does: "A command ends without reading; then something is written to its open input.",
        proves: "The call is answered, with a refusal or as having done nothing, and what is known of the command stays.",
        proves_not: "That nothing was lost: nobody reads it.",
        cases: &[88],
        bound_s: 40,
        run: stdin_after_end,
    },
];

#[derive(Debug, Serialize)]
struct Echo {
    said: Said,
    after_ms: u64,
    expected: String,
    output: String,
}

fn no_input(lab: &Lab) -> Answer<Finding> {
    let began = Instant::now();
    let handle = lab.start(&lab.bash("cat; echo end"))?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(10))?;
    let after_ms = millis(began.elapsed());
    let output = lab.read_all(&handle)?.first.escape_ascii().to_string();
    let seen = Echo { said, after_ms, expected: "end\\n".to_owned(), output };
    Ok(Finding::of(&seen, judge_echo(&seen)))
}

fn stdin_exact(lab: &Lab) -> Answer<Finding> {
    let mut request = lab.bash("exec cat");
    request.stdin = Stdin::Open;
    let began = Instant::now();
    let handle = lab.start(&request)?.handle;
    let bytes = b"\nabc\0\xff";
    lab.subject.write_stdin(&handle, &bytes[..4], false)?;
    lab.subject.write_stdin(&handle, &bytes[4..], true)?;
    let said = lab.subject.wait(&handle, Duration::from_secs(10))?;
    let after_ms = millis(began.elapsed());
    let output = lab.read_all(&handle)?.first.escape_ascii().to_string();
    let seen = Echo { said, after_ms, expected: bytes.escape_ascii().to_string(), output };
    Ok(Finding::of(&seen, judge_echo(&seen)))
}

fn judge_echo(seen: &Echo) -> Judgement {
    let Echo { said, after_ms, expected, output } = seen;
    match (said.state, &said.end) {
        (State::Ended, _) if output != expected => fail(format!("`{output}` in place of `{expected}`")),
        (State::Ended, Some(End::Exited { code: 0 }) | None) => {
            pass(format!("`{output}`, over after {}", took(*after_ms)))
        }
        _ => fail(format!("after {} it is {}", took(*after_ms), said.in_words())),
    }
}

#[derive(Debug, Serialize)]
struct Late {
    answer: Result<(), Trouble>,
    after: Said,
}

fn stdin_after_end(lab: &Lab) -> Answer<Finding> {
    let mut request = lab.bash("exit 4");
    request.stdin = Stdin::Open;
    let handle = lab.start(&request)?.handle;
    lab.subject.wait(&handle, Duration::from_secs(10))?;
    let answer = match lab.subject.write_stdin(&handle, b"late\n", false) {
        Err(trouble @ (Trouble::Unsupported { .. } | Trouble::Unobserved { .. })) => return Err(trouble),
        answer => answer,
    };
    let seen = Late { answer, after: lab.subject.inspect(&handle)? };
    Ok(Finding::of(&seen, judge_late(&seen)))
}

fn judge_late(seen: &Late) -> Judgement {
    let after = seen.after.in_words();
    match (&seen.answer, seen.after.state, &seen.after.end) {
        (Err(trouble @ (Trouble::NoAnswer { .. } | Trouble::Unavailable { .. })), ..) => {
            fail(trouble.to_string())
        }
        (answer, State::Ended, Some(End::Exited { code: 4 })) => match answer {
            Ok(()) => pass(format!("answered; {after}")),
            Err(trouble) => pass(format!("{trouble}; {after}")),
        },
        _ => fail(format!("after it the command is {after}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Pass};

    #[test]
    fn input() {
        let echo = |said: Said, output: &str| Echo {
            said,
            after_ms: 20,
            expected: "\\nabc".to_owned(),
            output: output.to_owned(),
        };
        let exited = |code| Said::ended(End::Exited { code });
        for (seen, verdict) in [
            (echo(exited(0), "\\nabc"), Pass),
            (echo(exited(0), "abc"), Fail),
            (echo(exited(1), "\\nabc"), Fail),
            (echo(Said::only(State::Running), "\\nabc"), Fail),
        ] {
            assert_eq!(judge_echo(&seen).0, verdict, "{seen:?}");
        }
    }

    #[test]
    fn late_input() {
        let exited = |code| Said::ended(End::Exited { code });
        let late = |answer, after| Late { answer, after };
        for (seen, verdict) in [
            (late(Ok(()), exited(4)), Pass),
            (late(Err(Trouble::refused("NO", "ended")), exited(4)), Pass),
            (late(Err(Trouble::no_answer(Duration::from_secs(30))), exited(4)), Fail),
            (late(Ok(()), exited(0)), Fail),
            (late(Ok(()), Said::only(State::Running)), Fail),
        ] {
            assert_eq!(judge_late(&seen).0, verdict, "{seen:?}");
        }
    }
}
