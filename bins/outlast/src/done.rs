//! The end of a call: its answer is written, and what depends on its having arrived is done.

use crate::context::Context;
use crate::envelope::{self, Answer, Data};
use crate::failure::{self, Failure};
use crate::outlet::{Ears, LAST_WORDS, Outlet, Which, Written};
use outlast_core::spec::Warning;
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
    if let Written::Failed(errno) = written {
        let failed = Failure::new(failure::UNAVAILABLE, "writing the answer to standard output failed")
            .because_of(&std::io::Error::from(errno));
        tell(&format!("error: {}", failed.line()));
    }
    match (written, hand_over) {
        (Written::Told, _) => failure::TERMINATED.exit,
        (Written::Whole, Some(job)) => {
            job.mark_handed_over();
            answer.exit_code()
        }
        // The result did not arrive: the identical call, or `job wait`, gives it again.
        (Written::Closed | Written::OutOfTime | Written::Failed(_), Some(_)) => failure::INCOMPLETE.exit,
        // An answer that is not there is no success, though what it tells of may be.
        (Written::Failed(_), None) if answer.exit_code() == 0 => failure::UNAVAILABLE.exit,
        (_, None) => answer.exit_code(),
    }
}

/// Says a line on standard error while the call goes on.
pub(crate) fn tell(text: &str) {
    write_now(&one_line(&format!("outlast: {text}")));
}

/// Says a warning on standard error while the call goes on.
pub(crate) fn warn(context: &Context, warning: &Warning) {
    write_now(&warning_line(warning, context.colored));
}

fn write_now(line: &str) {
    let until = clock::mono_now().plus(LAST_WORDS);
    Outlet::new(Which::Stderr).write_all(line.as_bytes(), Some(until), None);
}

fn warning_line(warning: &Warning, colored: bool) -> String {
    let word = paint(colored, "33", "warning");
    one_line(&format!("outlast: {word}: {} ({})", warning.message, warning.code))
}

fn paint(colored: bool, color: &str, text: &str) -> String {
    if colored { format!("\u{1b}[{color}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// What people are told on standard error: warnings, then how it ended.
fn lines(answer: &Answer, colored: bool) -> String {
    let mut lines: String = answer.warnings.iter().map(|warning| warning_line(warning, colored)).collect();
    match (&answer.note, &answer.error) {
        (Some(note), _) if note.is_empty() => {}
        (Some(note), _) => {
            lines.push_str(&one_line(&format!("outlast: {note}")));
            lines.push_str(&next_steps(answer));
        }
        (None, Some(error)) if error.code == failure::INCOMPLETE.code => {
            lines.push_str(&one_line(&format!("outlast: {}", error.message)));
            lines.push_str(&next_steps(answer));
        }
        (None, Some(error)) => {
            let word = paint(colored, "31", "error");
            lines.push_str(&one_line(&format!("outlast: {word}: {}", error.line())));
        }
        (None, None) => {}
    }
    lines
}

/// The commands that go on from here, each alone on its line, so that it can be copied. They are quoted for a shell, so
/// a line end within one of them is a part of it.
fn next_steps(answer: &Answer) -> String {
    let (mut go_on, mut cancel) = (None, None);
    if let Some(Data::Job(job)) = &answer.data {
        (go_on, cancel) = (job.continue_command.as_ref(), job.cancel_command.as_ref());
    }
    let go_on = answer.error.as_ref().and_then(|error| error.fix_command.as_ref()).or(go_on);
    let mut lines = String::new();
    if let Some(command) = go_on {
        lines.push_str(&format!("  continue: {command}\n"));
    }
    if let Some(command) = cancel.filter(|command| Some(*command) != go_on) {
        lines.push_str(&format!("  cancel:   {command}\n"));
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
    fn the_next_step_stands_alone_on_its_line() {
        let failure = Failure::new(failure::INCOMPLETE, "the call's budget of 2s is over")
            .fix("continue with", "outlast job wait x");
        assert_eq!(
            lines(&failure.into(), true),
            "outlast: the call's budget of 2s is over\n  continue: outlast job wait x\n"
        );
    }

    #[test]
    fn colour_is_not_the_only_sign() {
        let answer = Answer::from(Failure::new(failure::JOB_LOST, "x"));
        assert_eq!(lines(&answer, true), "outlast: \u{1b}[31merror\u{1b}[0m: x (JOB_LOST)\n");
    }
}
