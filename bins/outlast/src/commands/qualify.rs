//! `outlast qualify`.

use crate::args::qualify::QualifyArgs;
use crate::context::Context;
use crate::done::{Done, tell};
use crate::envelope::Answer;
use crate::failure::{self, Failure, Kind};
use outlast_qualify::probe::{Probe, Verdict};
use outlast_qualify::probes;
use outlast_qualify::qualify::{Options, Progress, is_accepted, qualify};
use outlast_qualify::report::{self, Report};
use outlast_qualify::subject::{Subject, Trouble};
use outlast_qualify::subjects::{local::LocalCli, runner};
use outlast_wire::address::{Address, DialOptions};
use outlast_wire::tls::{Fingerprint, Trust};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NOT_QUALIFIED: Kind = Kind { code: "NOT_QUALIFIED", exit: 1 };
const SCRATCH_UNUSABLE: Kind = Kind { code: "SCRATCH_UNUSABLE", exit: 4 };
const SUBJECT_UNAVAILABLE: Kind = Kind { code: "SUBJECT_UNAVAILABLE", exit: 12 };

/// Probes a runner, or this machine.
pub(crate) fn run(context: &Context, args: &QualifyArgs) -> Result<Done, Failure> {
    let options =
        Options { quick: args.quick, only: args.only.clone(), skip: args.skip.clone(), ..Options::default() };
    if let Some(name) = options.unknown_names().first() {
        return Err(Failure::new(failure::BAD_ARGUMENT, format!("there is no probe `{name}`"))
            .fix("the probes are listed by", "outlast qualify --explain"));
    }
    if args.explain {
        return Ok(explain(&probes::all()).into());
    }
    let parent = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let mut say = |progress: Progress<'_>| match progress {
        Progress::Done(row) if !context.json() => {
            tell(&format!("{:<12} {:<17} {}", row.verdict.word(), row.id, row.line));
        }
        Progress::Begins(_) | Progress::Done(_) | Progress::Measured(_) => {}
    };
    let report = match &args.runner {
        Some(address) => {
            address.parse::<Address>().map_err(|error| {
                Failure::new(failure::BAD_ARGUMENT, format!("--runner: {error}")).before_anything()
            })?;
            let runner = runner::connect(address, reach(args)?).map_err(|trouble| not_reached(&trouble))?;
            let subject: Arc<dyn Subject> = Arc::<runner::Runner>::clone(&runner);
            let report = qualify(&subject, &options, &parent, &mut say);
            if args.kill_runner {
                tell(&format!("the runner was killed {} times", runner.killed()));
            }
            if let Err(trouble) = runner.remove() {
                tell(&format!("warning: not all was removed on the hand: {trouble}"));
            }
            report
        }
        None => {
            let program = own_program()?;
            let local =
                Arc::new(LocalCli::new(&program, &parent).map_err(|trouble| not_made(&parent, &trouble))?);
            let subject: Arc<dyn Subject> = Arc::<LocalCli>::clone(&local);
            let report = qualify(&subject, &options, local.folder(), &mut say);
            if let Err(trouble) = local.remove() {
                tell(&format!("warning: {} was not removed: {trouble}", local.folder().display()));
            }
            report
        }
    };
    answer(args, &report).map(Done::from)
}

/// What is probed is this very program, wherever it was found.
fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| failure::of_system("finding this program's own file", &error))
}

/// Who the runner must prove to be, and who this is to it.
fn reach(args: &QualifyArgs) -> Result<runner::Reach, Failure> {
    let bad = |error: &dyn std::error::Error| Failure::new(failure::BAD_ARGUMENT, error.to_string());
    let mut options = DialOptions::default();
    if let Some(path) = &args.runner_ca {
        options.trust = Some(Trust::authorities_from_file(path).map_err(|error| bad(&error))?);
    } else if !args.runner_pin.is_empty() {
        let pins: Result<Vec<Fingerprint>, _> = args.runner_pin.iter().map(|pin| pin.parse()).collect();
        options.trust = Some(Trust::Pins(pins.map_err(|error| bad(&error))?));
    }
    if let Some(path) = &args.runner_token_file {
        let token = std::fs::read_to_string(path)
            .map_err(|error| failure::of_system(&format!("reading {}", path.display()), &error))?;
        options.token = Some(token.trim().to_owned());
    }
    Ok(runner::Reach { options, kill_runner: args.kill_runner })
}

/// Why this machine cannot be probed.
fn not_made(parent: &Path, trouble: &Trouble) -> Failure {
    match trouble {
        Trouble::Unobserved { .. } => Failure::new(
            SCRATCH_UNUSABLE,
            format!("no folder can be made in {}: {trouble}", parent.display()),
        )
        .before_anything()
        .suggest("name one that can be written with --scratch"),
        _ => not_reached(trouble),
    }
}

fn not_reached(trouble: &Trouble) -> Failure {
    Failure::new(SUBJECT_UNAVAILABLE, trouble.to_string())
}

fn answer(args: &QualifyArgs, report: &Report) -> Result<Answer, Failure> {
    let record = serde_json::to_value(report)
        .map_err(|error| failure::of_system("writing the record", &std::io::Error::from(error)))?;
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{record:#}\n"))
            .map_err(|error| failure::of_system(&format!("writing {}", path.display()), &error))?;
    }
    let mut answer = Answer::of(record);
    answer.text = report::table(std::slice::from_ref(report)).into_bytes();
    answer.error = match report.exit_code(args.allow_unsupported) {
        0 => None,
        report::UNAVAILABLE => {
            let why = report.unavailable.as_deref().unwrap_or("nothing was asked");
            Some(Failure::new(SUBJECT_UNAVAILABLE, why).suggest("`outlast doctor` shows what is missing"))
        }
        _ => Some(not_qualified(args, report)),
    };
    Ok(answer)
}

fn not_qualified(args: &QualifyArgs, report: &Report) -> Failure {
    let rows = &report.probes;
    let wrong: Vec<&str> = rows
        .iter()
        .filter(|row| !is_accepted(row.verdict, args.allow_unsupported))
        .map(|row| row.id)
        .collect();
    let message = format!("{} of {} probes did not pass: {}", wrong.len(), rows.len(), wrong.join(", "));
    let failure = Failure::new(NOT_QUALIFIED, message).context(json!({ "probes": wrong }));
    match report.count(Verdict::Unsupported) == wrong.len() {
        true => failure.suggest("--allow-unsupported takes what is not supported for no failure"),
        false => {
            failure.suggest("`data.probes` says what was seen, `outlast qualify --explain` what it means")
        }
    }
}

fn explain(chosen: &[Probe]) -> Answer {
    let mut text = String::new();
    let mut probes = Vec::new();
    for probe in chosen {
        let _ = writeln!(
            text,
            "{}: {}\n  does        {}\n  proves      {}\n  proves not  {}\n",
            probe.id, probe.title, probe.does, probe.proves, probe.proves_not
        );
        probes.push(json!({
            "id": probe.id,
            "title": probe.title,
            "does": probe.does,
            "proves": probe.proves,
            "proves_not": probe.proves_not,
            "cases": probe.cases,
            "bound_s": probe.bound_s,
        }));
    }
    let mut answer = Answer::of(Value::from_iter([("probes", Value::from(probes))]));
    answer.text = text.into_bytes();
    answer
}
