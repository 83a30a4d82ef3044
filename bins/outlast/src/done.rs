//! The end of a call: its answer is written, and what depends on its having arrived is done.

use crate::context::Context;
use crate::envelope::{self, Answer};
use crate::failure::{self, Failure};
use crate::outlet::{Ears, LAST_WORDS, Outlet, Which, Written};
use outlast_core::time::Mono;
use outlast_hand::clock;
use outlast_hand::job::Job;

/// What a command has come to.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The answer.
    pub(crate) answer: Answer,
    /// Whose result this is: handed over once the answer has been written whole.
    pub(crate) hand_over: Option<Job>,
    /// Signals that may come while it is written.
    pub(crate) ears: Option<Ears>,
    /// When the call has to be over.
    pub(crate) until: Option<Mono>,
    /// Leave without a word, with this code.
    pub(crate) leave: Option<u8>,
    /// Standard output carries the job's own bytes and no envelope.
    pub(crate) raw: bool,
}

impl From<Answer> for Done {
    fn from(answer: Answer) -> Done {
        Done { answer, ..Done::default() }
    }
}

impl From<Failure> for Done {
    fn from(failure: Failure) -> Done {
        Answer::from(failure).into()
    }
}

/// Writes an answer and returns the exit code of the call.
pub(crate) fn finish(context: &Context, command: &str, done: Done) -> u8 {
    if let Some(code) = done.leave {
        return code;
    }
    let Done { answer, hand_over, ears, until, raw, .. } = done;
    // Past its budget a call still tries for a moment.
    let until = until.map(|until| until.max(clock::mono_now()).plus(LAST_WORDS));
    let stdout = Outlet::new(Which::Stdout);
    let written = if context.json() && !raw {
        let text = envelope::to_json(&answer, command, context.elapsed().0);
        stdout.write_all(&text, until, ears.as_ref())
    } else {
        let written = stdout.write_all(&answer.text, until, ears.as_ref());
        let lines = lines(&answer, context.colored);
        Outlet::new(Which::Stderr).write_all(lines.as_bytes(), until, ears.as_ref());
        written
    };
    match (written, hand_over) {
        (Written::Told, _) => failure::TERMINATED.exit,
        (Written::Whole, Some(job)) => {
            job.mark_handed_over();
            answer.exit_code()
        }
        // The result did not arrive: the identical call, or `job wait`, gives it again.
        (Written::Closed | Written::OutOfTime, Some(_)) => failure::INCOMPLETE.exit,
        (_, None) => answer.exit_code(),
    }
}

/// What people are told on standard error: warnings, then how it ended.
fn lines(answer: &Answer, colored: bool) -> String {
    let paint = |color: &str, text: &str| {
        if colored { format!("\u{1b}[{color}m{text}\u{1b}[0m") } else { text.to_owned() }
    };
    let mut lines = String::new();
    for warning in &answer.warnings {
        let word = paint("33", "warning");
        lines.push_str(&one_line(&format!("outlast: {word}: {} ({})", warning.message, warning.code)));
    }
    match (&answer.note, &answer.error) {
        (Some(note), _) if note.is_empty() => {}
        (Some(note), _) => lines.push_str(&one_line(&format!("outlast: {note}"))),
        (None, Some(error)) => {
            let incomplete = error.exit_code == failure::INCOMPLETE.exit;
            let word = if incomplete { paint("33", "not done yet") } else { paint("31", "error") };
            lines.push_str(&one_line(&format!("outlast: {word}: {}", error.line())));
        }
        (None, None) => {}
    }
    lines
}

/// One line, whatever was quoted in it; the escapes are those of this file alone.
fn one_line(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if c.is_control() && c != '\u{1b}' => '\u{fffd}',
            c => c,
        })
        .collect();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_core::spec::Warning;

    #[test]
    fn warnings_come_before_the_failure_and_each_is_a_line() {
        let mut answer = Answer::from(Failure::new(failure::JOB_LOST, "a\nb"));
        answer.warnings.push(Warning { code: "BUSY_WAIT".into(), message: "it waits".into(), context: None });
        assert_eq!(
            lines(&answer, false),
            "outlast: warning: it waits (BUSY_WAIT)\noutlast: error: a b (JOB_LOST)\n"
        );
        answer.note = Some(String::new());
        assert_eq!(lines(&answer, false), "outlast: warning: it waits (BUSY_WAIT)\n");
    }

    #[test]
    fn colour_is_not_the_only_sign() {
        let answer = Answer::from(Failure::new(failure::JOB_LOST, "x"));
        assert_eq!(lines(&answer, true), "outlast: \u{1b}[31merror\u{1b}[0m: x (JOB_LOST)\n");
    }
}
