//! A command becomes a job.

use crate::answer;
use crate::guard::Admittance;
use http::StatusCode;
use outlast_core::bytes::Bytes;
use outlast_core::id::{JobId, Scope};
use outlast_core::spec::{Command, JobKind, Limits, Manner, Stdin, Work};
use outlast_core::time::Millis;
use outlast_hand::admit::{Admitted, Find, Refusal, Request, admit_with};
use outlast_hand::control::Watch;
use outlast_hand::defaults;
use outlast_hand::gc::Tombstone;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::launch::{Held, Launch, hold};
use outlast_hand::nest::Nest;
use outlast_hand::reading;
use outlast_scrub::secrets::Secrets;
use outlast_wire::admission::{Admission, Caller, LimitsAsked, StdinFrom};
use outlast_wire::limits;
use outlast_wire::problem::Problem;
use outlast_wire::view::Arrival;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The program whose version a resumable command's save is for.
const TOOL_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What every command of this hand is given.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Variables it inherits.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// The keeper's program.
    pub(crate) keeper: Option<PathBuf>,
    /// Where keepers come from, where one could be had.
    pub(crate) nest: Option<Arc<Nest>>,
}

/// The job that answers.
#[expect(clippy::large_enum_variant, reason = "one of it exists, for a moment")]
pub(crate) enum Answered {
    /// It is here. With the watch of its keeper, where that was launched just now.
    Here(Job, Arrival, Option<Watch>),
    /// It was removed.
    Removed(Box<Tombstone>),
}

/// Admits a command and launches its keeper, or finds the job that it is.
pub(crate) fn admit(
    home: &Home,
    ground: &Ground,
    admittance: &Admittance,
    admission: Admission,
    lives: &dyn Fn(JobId) -> bool,
) -> Result<Answered, Problem> {
    let Some(facts) = &admittance.facts else {
        return Err(answer::internal(&"an admission without its headers"));
    };
    check_sizes(&admission)?;
    let secrets = secrets(&admission)?;
    let mut admission = admission;
    if let Command::Script { shell, .. } = &mut admission.command
        && shell.is_empty()
    {
        *shell = reading::default_shell(path_of(ground, &admission.env, &admission.inherited)).to_owned();
    }
    let bash_env = admission.env.get("BASH_ENV").or_else(|| admission.inherited.get("BASH_ENV"));
    let bash_env = bash_env.map(|value| value.0.as_slice()).filter(|value| !value.is_empty());
    let caller = match admission.caller {
        Caller::Person => reading::Caller::Person,
        Caller::Model => reading::Caller::Model,
    };
    let reading =
        reading::read(&admission.command, bash_env, caller, admission.allow_detach).map_err(|refused| {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, refused.code, refused.message)
                .remedy(refused.remedy)
                .context(refused.context)
        })?;
    let cwd = folder("cwd", &admission.cwd)?;
    let workspace = match &admission.workspace {
        Some(path) => folder("workspace", path)?,
        None => cwd.clone(),
    };
    let spool = match &admission.stdin {
        StdinFrom::Spooled { spool } => Some(spooled(home, &admittance.scope, spool)?),
        StdinFrom::Null | StdinFrom::Open => None,
    };
    let stdin = match (&admission.stdin, &spool) {
        (StdinFrom::Open, _) => Stdin::Open,
        (_, Some(spooled)) => Stdin::Spooled { blake3: spooled.blake3.clone(), bytes: spooled.bytes },
        (_, None) => Stdin::Null,
    };
    let service = admission.kind == JobKind::Service;
    let program = admission.resume.then(|| program_of(ground, &admission, &cwd)).flatten();
    let work = Work {
        command: admission.command,
        cwd: bytes(cwd),
        env: admission.env,
        secrets: secrets.iter().map(|(name, value)| (name.clone(), home.secret_hash(value))).collect(),
        stdin,
        limits: bounds(&admission.limits, service),
        kind: admission.kind,
        merge: admission.merge,
        tty: admission.tty,
        resume: admission.resume,
        containment: admission.containment,
        user: admission.user,
    };
    let manner = Manner {
        workspace: bytes(workspace),
        grace: admission.grace.unwrap_or(defaults::GRACE),
        linger: admission.linger.unwrap_or(defaults::LINGER),
        drain: defaults::DRAIN,
        capture: reading.capture,
        program,
        window: admission.window,
        warnings: reading.warnings,
    };
    let request = Request {
        scope: admittance.scope.clone(),
        key: Some(admission.key),
        work,
        manner,
        stdin: spool.as_ref().map(|spooled| spooled.file.clone()),
        generation: facts.generation,
        find: Find::Attempt(admission.attempt),
        tool_version: TOOL_VERSION.to_owned(),
        run: admission.run,
        brain: admission.brain,
    };
    let how = Launch {
        watch_output: false,
        program: ground.keeper.clone(),
        environment: environment(ground, admission.inherited, &secrets),
        nest: ground.nest.clone(),
    };
    // Its keeper prepares itself while the job becomes durable, and starts the command after that.
    let mut held = None;
    let admitted = admit_with(home, &request, lives, &mut |job| held = hold(job, &how).ok());
    match admitted.map_err(|refusal| refused(&refusal))? {
        Admitted::New(job) => {
            // What cannot be launched is settled as never started; the job's own answer says so.
            let watch = held.map(|held: Held| held.go().watch);
            Ok(Answered::Here(job, Arrival::Admitted, watch))
        }
        Admitted::Existing(job) => Ok(Answered::Here(job, Arrival::Existing, None)),
        Admitted::Removed(tombstone) => Ok(Answered::Removed(tombstone)),
    }
}

fn bad(code: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
}

fn check_sizes(admission: &Admission) -> Result<(), Problem> {
    let words = match &admission.command {
        Command::Argv(words) => words.len(),
        Command::Script { .. } => 1,
    };
    let no_nul = |bytes: &Bytes| !bytes.0.contains(&0);
    match &admission.command {
        Command::Argv(words) => {
            if words.first().is_none_or(|word| word.0.is_empty()) {
                return Err(bad("BAD_COMMAND", "the command names no program"));
            }
            if !words.iter().all(no_nul) {
                return Err(bad(
                    "BAD_COMMAND",
                    "a word of the command has a NUL byte, which no program can be given",
                ));
            }
        }
        Command::Script { shell, .. } if shell.contains('\0') => {
            return Err(bad("BAD_COMMAND", "the shell's name has a NUL byte"));
        }
        Command::Script { .. } => {}
    }
    if let Some(size) = admission.limits.log_bytes
        && (1..defaults::LEAST_LOG).contains(&size)
    {
        let detail = format!(
            "log_bytes is {size}; a log has at least {} bytes, and 0 is no limit",
            defaults::LEAST_LOG
        );
        return Err(bad("BAD_LIMIT", detail));
    }
    for (what, count) in [
        ("words of the command", words),
        ("variables", admission.env.len() + admission.inherited.len()),
        ("secrets", admission.secrets.len()),
    ] {
        if count > limits::LIST_ITEMS {
            let detail = format!("{count} {what}, the limit is {}", limits::LIST_ITEMS);
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", detail));
        }
    }
    let variables = admission.env.iter().chain(&admission.inherited).chain(&admission.secrets);
    for (name, value) in variables {
        if name.is_empty() || name.contains(['=', '\0']) || !no_nul(value) {
            let name: String = name.chars().take(80).collect();
            return Err(bad(
                "BAD_VARIABLE",
                format!("{name:?} or its value cannot be an environment variable"),
            ));
        }
    }
    Ok(())
}

/// The secrets, checked: each can be masked, and none stands in what is kept in clear.
fn secrets(admission: &Admission) -> Result<Vec<(String, Vec<u8>)>, Problem> {
    let secrets: Vec<(String, Vec<u8>)> =
        admission.secrets.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
    if secrets.is_empty() {
        return Ok(secrets);
    }
    Secrets::new(secrets.clone()).map_err(|error| {
        bad("SECRET_NOT_MASKABLE", error.to_string())
            .remedy("pass what is no secret as an inherited variable")
    })?;
    let words: Vec<&[u8]> = match &admission.command {
        Command::Argv(words) => words.iter().map(|word| word.0.as_slice()).collect(),
        Command::Script { text, .. } => vec![&text.0],
    };
    let kept = words.into_iter().chain(admission.env.values().map(|value| value.0.as_slice()));
    let names = [Some(admission.key.as_str()), admission.run.as_ref().map(|run| run.as_str())];
    let names = names.into_iter().chain([admission.brain.as_ref().map(|brain| brain.as_str())]).flatten();
    let names = names.chain(admission.env.keys().map(String::as_str));
    for text in kept.chain(names.map(str::as_bytes)) {
        let values = secrets.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        if let Some(name) = reading::secret_within(text, values) {
            let detail = format!("the value of the secret {name} stands in what is kept in clear");
            return Err(
                bad("SECRET_IN_COMMAND", detail).remedy("let the command read it from its environment")
            );
        }
    }
    Ok(secrets)
}

fn folder(field: &str, path: &Bytes) -> Result<PathBuf, Problem> {
    let path = Path::new(OsStr::from_bytes(&path.0));
    let refused = |why: String| {
        bad("CWD_NOT_FOUND", format!("{field}: {}: {why}", path.display()))
            .remedy("nothing was started; name a folder that exists on the hand, by its absolute path")
    };
    if !path.is_absolute() {
        return Err(refused("it is not absolute".to_owned()));
    }
    // By its one true name, so that one place is one workspace.
    let found = std::fs::canonicalize(path).map_err(|error| refused(error.to_string()))?;
    if found.is_dir() { Ok(found) } else { Err(refused("it is no folder".to_owned())) }
}

/// Standard input that was spooled before.
struct SpooledInput {
    file: String,
    blake3: String,
    bytes: u64,
}

/// The name of a spool: its file below `tmp`, whose name tells hash and length, so that it is read once, and the scope it
/// was made under, so that no other takes it.
pub(crate) fn spool_name(home: &Home, scope: &Scope, random: &str, blake3: &str, bytes: u64) -> String {
    format!("spool.{random}.{}.{blake3}.{bytes}", home.scope_hash(scope))
}

fn spooled(home: &Home, scope: &Scope, spool: &str) -> Result<SpooledInput, Problem> {
    let unknown = || {
        bad("NO_SUCH_SPOOL", "there is no such spooled input here")
            .remedy("spool it again: it is kept for an hour, and one admission takes it")
    };
    let parts: Vec<&str> = spool.split('.').collect();
    let ["spool", random, made_under, blake3, count] = parts.as_slice() else { return Err(unknown()) };
    // As one that does not exist: nothing tells what others have spooled.
    if *made_under != home.scope_hash(scope) {
        return Err(unknown());
    }
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = count.parse().ok().filter(|_| random.len() == 24 && blake3.len() == 64);
    let Some(bytes) = bytes.filter(|_| hexadecimal(random) && hexadecimal(blake3)) else {
        return Err(unknown());
    };
    // Whether it is there is seen when a job takes it: an admission that is repeated finds it taken, by the job it then is.
    Ok(SpooledInput { file: spool.to_owned(), blake3: (*blake3).to_owned(), bytes })
}

fn bounds(asked: &LimitsAsked, service: bool) -> Limits {
    let none_for_zero = |length: Millis| (length != Millis(0)).then_some(length);
    Limits {
        deadline: match asked.deadline {
            Some(length) => none_for_zero(length),
            None => (!service).then_some(defaults::DEADLINE),
        },
        idle: asked.idle.and_then(none_for_zero),
        log_bytes: match asked.log_bytes {
            Some(0) => None,
            Some(bytes) => Some(bytes),
            None => Some(defaults::LOG_LIMIT),
        },
        pids: asked.pids.filter(|count| *count > 0),
        memory_bytes: asked.memory_bytes.filter(|count| *count > 0),
    }
}

fn environment(
    ground: &Ground,
    inherited: BTreeMap<String, Bytes>,
    secrets: &[(String, Vec<u8>)],
) -> Vec<(OsString, OsString)> {
    let mut all = ground.environment.clone();
    all.extend(inherited.into_iter().map(|(name, value)| (name.into(), OsString::from_vec(value.0))));
    all.extend(secrets.iter().map(|(name, value)| (name.into(), OsString::from_vec(value.clone()))));
    all.into_iter().collect()
}

fn path_of<'a>(
    ground: &'a Ground,
    env: &'a BTreeMap<String, Bytes>,
    inherited: &'a BTreeMap<String, Bytes>,
) -> Option<&'a OsStr> {
    let set = env.get("PATH").or_else(|| inherited.get("PATH"));
    set.map(|path| OsStr::from_bytes(&path.0))
        .or_else(|| ground.environment.get(OsStr::new("PATH")).map(OsString::as_os_str))
}

fn program_of(ground: &Ground, admission: &Admission, cwd: &Path) -> Option<String> {
    let Command::Argv(words) = &admission.command else { return None };
    let name = OsStr::from_bytes(&words.first()?.0);
    let search = path_of(ground, &admission.env, &admission.inherited).unwrap_or_default();
    reading::program_file(name, search, cwd)
}

fn bytes(path: PathBuf) -> Bytes {
    Bytes(path.into_os_string().into_vec())
}

/// A refusal as callers are told.
pub(crate) fn refused(refusal: &Refusal) -> Problem {
    let detail = refusal.to_string();
    let conflict = |code: &str| Problem::new(StatusCode::CONFLICT, code, detail.clone());
    match refusal {
        Refusal::Conflict { job_id, differs } => conflict("KEY_CONFLICT")
            .about(*job_id)
            .context(serde_json::json!({ "differs": differs }))
            .remedy("use another key for another command"),
        Refusal::WorkspaceUnknown { job_id } => conflict("WORKSPACE_UNKNOWN")
            .about(*job_id)
            .remedy(format!("settle it: POST /v1/jobs/{job_id}/settle"))
            .retryable(),
        Refusal::ClosedGeneration(_) => crate::guard::stale(&detail),
        Refusal::SealedRun { .. } => conflict("RUN_SEALED").remedy("a sealed run admits nothing more"),
        Refusal::NotProvedDead { job_id } => conflict("NOT_PROVED_DEAD")
            .about(*job_id)
            .remedy(format!("wait for its receipt, or settle it: POST /v1/jobs/{job_id}/settle"))
            .retryable(),
        Refusal::NotTheLatest { latest, .. } => crate::guard::stale(&detail).about(*latest),
        Refusal::NoSuchJob(job_id) => {
            Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_JOB", detail).about(*job_id)
        }
        Refusal::TooLarge { .. } => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", detail),
        Refusal::Storage(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bad("NO_SUCH_SPOOL", "the spooled input is not there any more").remedy("spool it again")
        }
        Refusal::Storage(error) => answer::storage("admitting", error),
    }
}
