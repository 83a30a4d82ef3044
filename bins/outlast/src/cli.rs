//! From words to an exit code.

use crate::args::job::JobVerb;
use crate::args::{Cli, Format, Verb};
use crate::commands;
use crate::context::{Context, Terminals};
use crate::done::{Done, finish};
use crate::envelope::{self, Answer};
use crate::failure::{self, Failure};
use crate::outlet::{Outlet, Which};
use crate::quote;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use outlast_hand::clock;
use std::ffi::{OsStr, OsString};
use std::io::Write;

/// Answers one call.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let started = clock::mono_now();
    let terminals = Terminals::look();
    let cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error, &words, terminals),
    };
    let command = name(&cli.verb);
    let context = match Context::new(&cli, &words, terminals, started) {
        Ok(context) => context,
        Err(failure) => {
            let format = cli.global.output.unwrap_or(terminals.default_format());
            return say(&failure.into(), command, format);
        }
    };
    let done = dispatch(&context, cli.verb).unwrap_or_else(Done::from);
    finish(&context, command, done)
}

fn dispatch(context: &Context, verb: Verb) -> Result<Done, Failure> {
    match verb {
        Verb::Run(args) => commands::run::run(context, *args),
        Verb::Job(verb) => match verb {
            JobVerb::List(args) => commands::job_list::run(context, &args),
            JobVerb::Wait(args) => commands::job_wait::run(context, &args),
            JobVerb::Status(args) => commands::job_status::run(context, &args),
            JobVerb::Logs(args) => commands::job_logs::run(context, &args),
            JobVerb::Cancel(args) => commands::job_cancel::run(context, &args),
            JobVerb::Settle(args) => commands::job_settle::run(context, &args),
            JobVerb::Retry(args) => commands::job_retry::run(context, &args),
            JobVerb::Explain(args) => commands::job_explain::run(context, &args),
            JobVerb::Stdin(args) => commands::job_stdin::run(context, &args),
            JobVerb::Resize(args) => commands::job_resize::run(context, &args),
            JobVerb::Gc(args) => commands::job_gc::run(context, &args),
        },
        Verb::Doctor(args) => commands::doctor::run(context, &args),
        Verb::Qualify(args) => commands::qualify::run(context, &args),
        Verb::Completions(args) => Ok(commands::completions::run(&args)),
        Verb::Schema(_) => Ok(commands::schema::run()),
    }
}

/// What `meta.command` says.
fn name(verb: &Verb) -> &'static str {
    match verb {
        Verb::Run(_) => "run",
        Verb::Job(JobVerb::List(_)) => "job list",
        Verb::Job(JobVerb::Wait(_)) => "job wait",
        Verb::Job(JobVerb::Status(_)) => "job status",
        Verb::Job(JobVerb::Logs(_)) => "job logs",
        Verb::Job(JobVerb::Cancel(_)) => "job cancel",
        Verb::Job(JobVerb::Settle(_)) => "job settle",
        Verb::Job(JobVerb::Retry(_)) => "job retry",
        Verb::Job(JobVerb::Explain(_)) => "job explain",
        Verb::Job(JobVerb::Stdin(_)) => "job stdin",
        Verb::Job(JobVerb::Resize(_)) => "job resize",
        Verb::Job(JobVerb::Gc(_)) => "job gc",
        Verb::Doctor(_) => "doctor",
        Verb::Qualify(_) => "qualify",
        Verb::Completions(_) => "completions",
        Verb::Schema(_) => "schema",
    }
}

/// Words that are no call: help and version are printed, all else is a wrong argument, in the form that was asked for.
fn not_understood(error: &clap::Error, words: &[OsString], terminals: Terminals) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody reading on is no failure of ours; a text that could not be written is.
        return match error.print().and_then(|()| std::io::stdout().flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                let failed = Failure::new(failure::UNAVAILABLE, "writing the text to standard output failed")
                    .because_of(&error);
                say(&failed.into(), "outlast", Format::Text)
            }
            _ => 0,
        };
    }
    let separated = with_separator(error, words);
    let format = asked_format(words).unwrap_or(terminals.default_format());
    if format == Format::Text {
        let _ = error.print();
        if let Some(line) = &separated {
            let hint = format!("hint: put the command after --: {line}\n");
            Outlet::new(Which::Stderr).write_all(hint.as_bytes(), None, None);
        }
        return failure::BAD_ARGUMENT.exit;
    }
    let (command, help) = attempted(words);
    let text = error.render().to_string();
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command was named".to_owned(),
        _ => summary(&text),
    };
    let failure = Failure::new(failure::BAD_ARGUMENT, message).detail(text);
    let mut failure = match separated {
        Some(line) => failure.fix("nothing was done; put the command after --:", line),
        None => failure.fix(suggestion(error), help),
    };
    failure.context = error.get(ContextKind::InvalidArg).and_then(|value| match value {
        ContextValue::String(argument) => {
            Some(serde_json::json!({ "_source": "external", "_trusted": false, "argument": argument }))
        }
        _ => None,
    });
    say(&failure.into(), command, format)
}

/// What is wrong, in one line: the first, and what is listed below it where that ends at a colon.
fn summary(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    if !first.ends_with(':') {
        return first.to_owned();
    }
    let listed: Vec<&str> = lines.take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    format!("{first} {}", listed.join(", "))
}

/// The call that was meant where the command of `run` does not stand behind `--`.
fn with_separator(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unexpected)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument
        || unexpected.starts_with('-')
        || attempted(words).0 != "run"
        || words.iter().any(|word| word == "--")
    {
        return None;
    }
    let run = words.iter().position(|word| word == "run")?;
    let at = run + 1 + words[run + 1..].iter().position(|word| word == unexpected.as_str())?;
    let program = std::iter::once(OsStr::new("outlast"));
    let before = words[1..at].iter().map(OsString::as_os_str);
    let after = words[at..].iter().map(OsString::as_os_str);
    Some(quote::line(program.chain(before).chain([OsStr::new("--")]).chain(after)))
}

fn suggestion(error: &clap::Error) -> &'static str {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            "nothing was done; a command to run and its own options stand behind `--`; the options are shown by"
        }
        _ => "nothing was done; the manual is shown by",
    }
}

/// The form that the words ask for, though they could not be read as a whole.
fn asked_format(words: &[OsString]) -> Option<Format> {
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--output") => words.next().and_then(|value| value.to_str()),
            Some(word) => word.strip_prefix("--output="),
            None => None,
        };
        match value {
            Some("json") => return Some(Format::Json),
            Some("text") => return Some(Format::Text),
            _ => {}
        }
    }
    None
}

/// The command that was meant, and the call that shows its manual.
fn attempted(words: &[OsString]) -> (&'static str, String) {
    const COMMANDS: [&str; 16] = [
        "run",
        "job list",
        "job wait",
        "job status",
        "job logs",
        "job cancel",
        "job settle",
        "job retry",
        "job explain",
        "job stdin",
        "job resize",
        "job gc",
        "doctor",
        "qualify",
        "completions",
        "schema",
    ];
    let mut plain: Vec<&str> = Vec::new();
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    while let Some(word) = words.next().filter(|_| plain.len() < 2) {
        match word {
            // What follows is its value.
            "--home" | "--output" | "--color" => drop(words.next()),
            word if word.starts_with('-') => {}
            word => plain.push(word),
        }
    }
    let meant = plain.join(" ");
    let found = COMMANDS.iter().find(|name| meant == **name || meant.starts_with(&format!("{name} ")));
    match found {
        Some(name) => (name, format!("outlast help {name}")),
        None => ("outlast", "outlast help".to_owned()),
    }
}

fn say(answer: &Answer, command: &str, format: Format) -> u8 {
    let (which, text) = match (format, &answer.error) {
        (Format::Json, _) => (Which::Stdout, envelope::to_json(answer, command, 0)),
        (Format::Text, Some(failure)) => {
            (Which::Stderr, format!("outlast: error: {}\n", failure.line()).into_bytes())
        }
        (Format::Text, None) => (Which::Stderr, Vec::new()),
    };
    // What is said here is a failure already, which a failed write does not change.
    Outlet::new(which).write_all(&text, None, None);
    answer.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_form_is_known_before_the_rest_is() {
        for (line, format) in [
            ("outlast run --output json --nonsense", Some(Format::Json)),
            ("outlast --output=text run", Some(Format::Text)),
            ("outlast run -- x --output json", None),
            ("outlast run --output xml", None),
            ("outlast", None),
        ] {
            assert_eq!(asked_format(&words(line)), format, "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = "error: the following required arguments were not provided:\n  <JOB>\n  <N>\n\nUsage: x\n";
        assert_eq!(summary(text), "the following required arguments were not provided: <JOB>, <N>");
        assert_eq!(summary("error: unexpected argument\n\nUsage: x\n"), "unexpected argument");
    }

    #[test]
    fn a_command_without_its_separator_is_understood() {
        for (line, meant) in [
            ("outlast run sleep 1", Some("outlast run -- sleep 1")),
            ("/x/outlast run --budget 1s sleep -v", Some("outlast run --budget 1s -- sleep -v")),
            ("outlast run --nonsense", None),
            ("outlast run -- sleep --budget", None),
            ("outlast job wait a b", None),
        ] {
            let words = words(line);
            let found = Cli::read(&words).err().and_then(|error| with_separator(&error, &words));
            assert_eq!(found.as_deref(), meant, "{line}");
        }
    }

    #[test]
    fn the_command_that_was_meant() {
        for (line, name) in [
            ("outlast run --nonsense -- x", "run"),
            ("outlast job wait", "job wait"),
            ("outlast job wait a b", "job wait"),
            ("outlast --output text run x", "run"),
            ("outlast job nonsense", "outlast"),
            ("outlast", "outlast"),
        ] {
            assert_eq!(attempted(&words(line)).0, name, "{line}");
        }
    }
}
