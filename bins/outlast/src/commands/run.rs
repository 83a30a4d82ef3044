//! `outlast run`.

use crate::args::run::{OnLimit, RunArgs};
use crate::attend::{Arrival, Attendance, attend, refused, start_keeper};
use crate::conduct::{AtLimit, OnInterrupt, Policy};
use crate::context::Context;
use crate::done::Done;
use crate::envelope::TOOL_VERSION;
use crate::failure::{self, Failure};
use crate::vigil::{Streaming, Until, take_signals};
use crate::{removed, spool, terminal};
use outlast_core::bytes::Bytes;
use outlast_core::id::Generation;
use outlast_core::spec::{Command, JobKind, Limits, Manner, Stdin, Work};
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Request, admit};
use outlast_hand::defaults;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::reading::{self, Refused, default_shell};
use outlast_scrub::secrets::Secrets;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most grace that a stop at the end of the budget allows, where nobody asked for more.
const GRACE_AT_LIMIT: Millis = Millis(1_000);

/// Runs a command to its receipt, or to the end of the call.
pub(crate) fn run(context: &Context, args: RunArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let keys = args.tty && context.terminals.stdin && context.terminals.stdout && !context.json();
    let secrets = secret_values(&args.secret)?;
    secrets_stay_out(&args, &secrets)?;
    let command = command(&args)?;
    let bash_env = args.env.iter().rev().find(|set| set.name == "BASH_ENV").map(|set| set.value.clone());
    let bash_env = bash_env.or_else(|| std::env::var_os("BASH_ENV")).filter(|value| !value.is_empty());
    let reading = reading::read(
        &command,
        bash_env.as_deref().map(OsStr::as_bytes),
        // By its face: who calls a command line is a person.
        reading::Caller::Person,
        args.allow_detach,
    )
    .map_err(unread)?;
    let cwd = folder("--cwd", args.cwd.as_deref())?;
    let workspace = match &args.workspace {
        Some(path) => folder("--workspace", Some(path))?,
        None => cwd.clone(),
    };

    let signals = take_signals()?;
    let home = context.home()?;
    let spooled = spool::spool(&home, args.stdin.as_ref(), budget.ends_at(context.started), &signals)?;
    let stdin = if keys { Stdin::Open } else { spooled.stdin };
    let service = args.service;
    let work = Work {
        command,
        cwd: bytes(cwd),
        env: args.env.iter().map(|set| (set.name.clone(), Bytes(set.value.clone().into_vec()))).collect(),
        secrets: secret_hashes(&home, &secrets),
        stdin,
        limits: limits(&args),
        kind: if service { JobKind::Service } else { JobKind::Command },
        merge: args.merge,
        tty: args.tty,
        resume: args.resume,
        containment: args.containment.boundary(),
        user: args.user,
    };
    let manner = Manner {
        workspace: bytes(workspace),
        grace: args.grace.unwrap_or(defaults::GRACE),
        linger: args.linger,
        drain: defaults::DRAIN,
        capture: reading.capture,
        program: if args.resume { program_file(&args) } else { None },
        window: if args.tty { terminal::size() } else { None },
        warnings: reading.warnings,
    };
    let request = Request {
        scope: context.scope.clone(),
        key: args.idempotency_key.clone(),
        work,
        manner,
        stdin: spooled.file,
        generation: Generation(0),
        find: if args.new { Find::New } else { Find::Identical },
        tool_version: TOOL_VERSION.to_owned(),
        run: None,
        brain: None,
    };
    let admitted = admit(&home, &request);
    if !matches!(admitted, Ok(Admitted::New(_)))
        && let Some(file) = &request.stdin
    {
        spool::discard(&home, file);
    }
    let (job, arrival) = match admitted.map_err(|refusal| refused(context, refusal))? {
        Admitted::New(job) => (job, Arrival::Admitted),
        Admitted::Existing(job) => {
            let arrival = arrival_at(&job, request.key.is_some())?;
            (job, arrival)
        }
        Admitted::Removed(tombstone) => return Ok(removed::answer(context, &tombstone, budget)),
    };
    let streaming = if args.background || service { Streaming::Never } else { Streaming::AsItComes };
    let watch = match arrival {
        Arrival::Admitted => {
            let output = streaming == Streaming::AsItComes && !context.json();
            Some(start_keeper(context, &job, output)?)
        }
        _ => None,
    };
    let attendance = Attendance {
        until: if args.background || service { Until::Started } else { Until::Settled },
        policy: policy(&args, context),
        budget,
        max_output: args.max_output,
        streaming,
        keys,
        progress: false,
        arrival,
    };
    attend(context, &home, job, watch, signals, attendance)
}

/// Which file the program is, by the `PATH` it will have.
fn program_file(args: &RunArgs) -> Option<String> {
    let name = args.argv.first()?;
    let set = args.env.iter().rev().find(|set| set.name == "PATH").map(|set| set.value.clone());
    let search = set.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    reading::program_file(name, &search, args.cwd.as_deref().unwrap_or(Path::new("")))
}

/// A command that is refused for what its text says.
fn unread(refused: Refused) -> Failure {
    let (kind, otherwise) = match refused.code {
        "BUSY_WAIT_REFUSED" => (failure::BUSY_WAIT_REFUSED, ""),
        _ => (failure::DETACH_REFUSED, "; --allow-detach runs it anyway, contained"),
    };
    Failure::new(kind, refused.message)
        .suggest(format!("{}{otherwise}", refused.remedy))
        .context(refused.context)
}

fn policy(args: &RunArgs, context: &Context) -> Policy {
    Policy {
        grace_at_limit: args.grace.is_none().then_some(GRACE_AT_LIMIT),
        at_limit: match (args.no_detach, args.on_limit) {
            (true, _) => AtLimit::Pauses,
            (false, OnLimit::Stop) => AtLimit::Stops,
            (false, OnLimit::Background) => AtLimit::GoesOn,
        },
        // Without a terminal nobody pressed Ctrl-C: the signal is a harness that ends the call.
        interrupt: if context.terminals.any() { OnInterrupt::StopsJob } else { OnInterrupt::EndsWaiting },
    }
}

fn arrival_at(job: &Job, keyed: bool) -> Result<Arrival, Failure> {
    let settled = job.receipt().map_err(|error| failure::of_system("reading the receipt", &error))?.is_some();
    Ok(match (keyed, settled) {
        (true, _) => Arrival::ByKey,
        (false, true) => Arrival::EarlierRun,
        (false, false) => Arrival::Attached,
    })
}

fn command(args: &RunArgs) -> Result<Command, Failure> {
    let Some(script) = &args.script else {
        return Ok(Command::Argv(args.argv.iter().map(|word| Bytes(word.as_bytes().to_vec())).collect()));
    };
    let shell = match &args.shell {
        Some(shell) if shell.is_empty() => {
            return Err(Failure::new(
                failure::BAD_ARGUMENT,
                "--shell names nothing; name a shell, or leave it out",
            ));
        }
        Some(shell) => shell.clone(),
        None => default_shell(std::env::var_os("PATH").as_deref()).to_owned(),
    };
    Ok(Command::Script { shell, text: Bytes(script.as_bytes().to_vec()) })
}

/// A folder by its one true name, so that one place is one workspace and one call identity.
fn folder(option: &str, path: Option<&Path>) -> Result<PathBuf, Failure> {
    let refused = |error: &io::Error, path: &Path| {
        Failure::new(
            failure::CWD_NOT_FOUND,
            format!("{option}: {} is no folder that can be entered", path.display()),
        )
        .because_of(error)
        .before_anything()
        .suggest("nothing was started; name a folder that exists")
    };
    match path {
        None => std::env::current_dir().map_err(|error| refused(&error, Path::new("."))),
        Some(path) => reading::folder(path).map_err(|error| refused(&error, path)),
    }
}

/// The secrets that are named, from the caller's environment. One that cannot be masked is refused: it would be in
/// clear wherever the command prints it.
pub(crate) fn secret_values<S: AsRef<str>>(names: &[S]) -> Result<Vec<(String, OsString)>, Failure> {
    let values = values_of(names)?;
    if !values.is_empty() {
        let bytes = values.iter().map(|(name, value)| (name.clone(), value.as_bytes().to_vec()));
        Secrets::new(bytes.collect()).map_err(|error| {
            Failure::new(failure::SECRET_NOT_MASKABLE, error.to_string())
                .before_anything()
                .suggest("nothing was started; pass what is no secret without --secret")
        })?;
    }
    Ok(values)
}

/// Refuses a secret's value in what is kept of the call in clear. The caller's shell puts it there where `$NAME` stands
/// outside single quotes.
fn secrets_stay_out(args: &RunArgs, secrets: &[(String, OsString)]) -> Result<(), Failure> {
    let kept = args
        .argv
        .iter()
        .chain(&args.script)
        .map(|word| ("the command", word.as_bytes()))
        .chain(args.env.iter().map(|set| ("a value of --env", set.value.as_bytes())))
        .chain(args.idempotency_key.iter().map(|key| ("the idempotency key", key.as_str().as_bytes())));
    for (place, text) in kept {
        let values = secrets.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        if let Some(name) = reading::secret_within(text, values) {
            return Err(Failure::new(
                failure::SECRET_IN_COMMAND,
                format!("the value of the secret {name} stands in {place}, which is kept and shown in clear"),
            )
            .suggest(format!(
                "nothing was started; let the command read it from its environment, in single quotes: \
                 `-c 'echo \"${name}\"'`"
            )));
        }
    }
    Ok(())
}

fn values_of<S: AsRef<str>>(names: &[S]) -> Result<Vec<(String, OsString)>, Failure> {
    names
        .iter()
        .map(|name| {
            let name = name.as_ref();
            let value = std::env::var_os(name).filter(|value| !value.is_empty());
            value.map(|value| (name.to_owned(), value)).ok_or_else(|| {
                Failure::new(
                    failure::SECRET_NOT_SET,
                    format!("the secret {name} is not set in this call's environment"),
                )
                .before_anything()
                .suggest(format!("nothing was started; set {name} for this call"))
            })
        })
        .collect()
}

/// What a spec keeps of secrets: their names, and hashes that tell nothing without the home.
pub(crate) fn secret_hashes(home: &Home, secrets: &[(String, OsString)]) -> BTreeMap<String, String> {
    secrets.iter().map(|(name, value)| (name.clone(), home.secret_hash(value.as_bytes()))).collect()
}

fn limits(args: &RunArgs) -> Limits {
    let none_for_zero = |length: Millis| (length != Millis(0)).then_some(length);
    Limits {
        deadline: match args.timeout {
            Some(length) => none_for_zero(length),
            None => (!args.service).then_some(defaults::DEADLINE),
        },
        idle: args.idle_timeout.and_then(none_for_zero),
        log_bytes: match args.log_limit {
            Some(0) => None,
            Some(bytes) => Some(bytes),
            None => Some(defaults::LOG_LIMIT),
        },
        pids: args.pids_limit,
        memory_bytes: args.memory_limit,
    }
}

fn bytes(path: PathBuf) -> Bytes {
    Bytes(path.into_os_string().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn args(words: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from(["outlast", "run"].iter().chain(words)).unwrap();
        let Verb::Run(args) = cli.verb else { panic!("not run") };
        *args
    }

    #[test]
    fn deadlines_by_kind() {
        for (words, deadline) in [
            (&["--", "x"][..], Some(defaults::DEADLINE)),
            (&["--service", "--", "x"], None),
            (&["--service", "--timeout", "5s", "--", "x"], Some(Millis(5000))),
            (&["--timeout", "0", "--", "x"], None),
        ] {
            assert_eq!(limits(&args(words)).deadline, deadline, "{words:?}");
        }
        assert_eq!(limits(&args(&["--log-limit", "0", "--", "x"])).log_bytes, None);
        assert_eq!(limits(&args(&["--", "x"])).log_bytes, Some(1 << 30));
        assert_eq!(limits(&args(&["--", "x"])).idle, None);
        assert_eq!(args(&["--", "x"]).linger, defaults::LINGER, "the manual's default is the hand's");
    }

    #[test]
    fn what_would_leave_is_refused_before_anything() {
        let command = Command::Script { shell: "bash".into(), text: "echo a\nnohup make".into() };
        let failure = unread(reading::read(&command, None, reading::Caller::Person, false).unwrap_err());
        assert_eq!((failure.code.as_ref(), failure.exit_code), ("DETACH_REFUSED", 2));
        assert!(failure.message.starts_with("2:1: "));
        assert!(failure.suggestion.as_ref().unwrap().ends_with("; --allow-detach runs it anyway, contained"));
    }

    #[test]
    fn a_folder_has_one_name() {
        let there = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(there.path()).unwrap();
        std::fs::create_dir(real.join("a")).unwrap();
        std::os::unix::fs::symlink("a", real.join("b")).unwrap();
        assert_eq!(folder("--cwd", Some(&real.join("b/../b"))).unwrap(), real.join("a"));
        for missing in ["c", "a/nothing"] {
            assert_eq!(folder("--cwd", Some(&real.join(missing))).unwrap_err().code, "CWD_NOT_FOUND");
        }
    }
}
