//! `outlast run`: its options and its manual.

use super::manual;
use super::values::{self, Assignment, Input};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueEnum};
use outlast_core::id::Key;
use outlast_core::spec::{Boundary, RunAs};
use outlast_core::time::Millis;
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a command to a proved end, within this call or beyond it
///
/// Starts ARGV (or SCRIPT) under a keeper of its own and waits for the receipt: the record that its whole process tree
/// is dead, how it ended, and where its output ends. The call returns within its budget. If the command is not done by
/// then it goes on in the background, the call answers with exit code 14, and the answer holds the exact commands that
/// continue and that cancel it. A command that is done in time is answered as if it had run in the foreground: with its
/// output and its own exit code.
///
/// Saying the same thing again is safe. Without an idempotency key the call is its own identity (scope, command,
/// arguments, working directory, standard input): the identical call attaches to the job while it runs, and after that
/// hands over a result that nobody received whole, and says so. With a key, the same result is returned for as
/// long as it is kept, and another command under the same key is refused. --new starts afresh.
///
/// The command is given the caller's environment, a standard input of /dev/null unless --stdin says otherwise, and none
/// of the caller's open files: closing a terminal, a pipe or a connection never ends it.
#[derive(Debug, Args)]
#[command(
    after_long_help = manual::RUN,
    override_usage = "outlast run [OPTIONS] -- COMMAND [ARGUMENT]...\n       outlast run [OPTIONS] -c SCRIPT",
    group(ArgGroup::new("work").required(true).args(["argv", "script"]))
)]
pub(crate) struct RunArgs {
    /// The command and its arguments, executed as they are, by no shell
    #[arg(last = true, value_name = "COMMAND", num_args = 1..)]
    pub(crate) argv: Vec<OsString>,
    /// A shell script to run instead of a command
    ///
    /// It is kept as bytes in a file and never pasted into another command. When its last act is a pipeline, the
    /// status of every stage is recorded, and a failed stage fails the script: `cargo test | tail` reports what
    /// `cargo test` did.
    #[arg(short = 'c', value_name = "SCRIPT", allow_hyphen_values = true)]
    pub(crate) script: Option<OsString>,
    /// The shell that runs SCRIPT: a name in PATH, or a path [default: bash, else sh]
    #[arg(long, value_name = "SHELL", conflicts_with = "argv")]
    pub(crate) shell: Option<String>,

    /// How long this call may take; 0 for as long as it takes
    ///
    /// Without it: $AGENT_CALL_BUDGET_MS, else 30s when standard output is not a terminal, else none. Inside a job
    /// there is none either. Durations are written 500ms, 30s, 5m, 1h30m; a bare number is seconds.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "This call")]
    pub(crate) budget: Option<Millis>,
    /// What happens to the command when the budget ends
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLimit::Background, help_heading = "This call",
        conflicts_with_all = ["service", "background"])]
    pub(crate) on_limit: OnLimit,
    /// Answer as soon as the command has started, with exit code 0
    #[arg(long, conflicts_with_all = ["service", "tty"], help_heading = "This call")]
    pub(crate) background: bool,
    /// Start a new job even if this call was made before
    #[arg(long, conflicts_with = "idempotency_key", help_heading = "This call")]
    pub(crate) new: bool,
    /// The identity of this command, chosen by the caller
    ///
    /// The same key with the same command returns the same job, running or finished, and never starts it twice. The
    /// same key with another command is refused (exit 6), and the answer names what differs.
    #[arg(long, value_name = "KEY", value_parser = values::key, help_heading = "This call")]
    pub(crate) idempotency_key: Option<Key>,
    /// The most bytes of output in a JSON answer
    ///
    /// Longer output is given as its beginning and its end, with the command that reads the rest.
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "32KiB", help_heading = "This call")]
    pub(crate) max_output: u64,

    /// The deadline of the whole work, over all calls; 0 for none [default: 1h, none for a service]
    ///
    /// When it passes the whole tree is ended, and the job answers TIMEOUT (exit 10). It runs by the keeper's own clock,
    /// whether or not there is output, and whether or not anyone waits.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "The work")]
    pub(crate) timeout: Option<Millis>,
    /// End the work when it makes no progress for so long
    ///
    /// Progress is what the command reports in $OUTLAST_PROGRESS, else bytes of output. Without this option there is no
    /// such limit, except that a command which reports progress may not pause it for more than 5m.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "The work")]
    pub(crate) idle_timeout: Option<Millis>,
    /// A server: it lives until it is stopped
    ///
    /// It has no deadline, its descendants may outlive its first process, and the call answers 0 once it has started.
    #[arg(long, conflicts_with_all = ["resume", "tty"], help_heading = "The work")]
    pub(crate) service: bool,
    /// The command saves its work and can continue from there
    ///
    /// It is given a folder, $OUTLAST_CHECKPOINT, that outlives its attempts. It saves there by renaming a finished file
    /// into place, together with what it has already done. After its death is proved, the identical call is the next
    /// attempt and continues from the last save.
    #[arg(long, help_heading = "The work")]
    pub(crate) resume: bool,
    /// With --resume: pause at the budget instead of going on in the background
    ///
    /// When the budget ends, or on SIGTERM, the command is told to save (SIGTERM) and then ended; the answer is 14 with
    /// the state `paused`, and the command that continues is this same call. Where it is still saving 2 seconds after
    /// the budget, the state is `stopping`, and the same call waits for it.
    #[arg(long, requires = "resume", conflicts_with_all = ["background", "service"], help_heading = "The work")]
    pub(crate) no_detach: bool,
    /// Run on a pseudo-terminal
    ///
    /// At a terminal, keys and window size are passed on. Ctrl-C goes to the command; Ctrl-] detaches and leaves it
    /// running.
    #[arg(long, conflicts_with_all = ["stdin"], help_heading = "The work")]
    pub(crate) tty: bool,

    /// The folder it starts in [default: the current one]
    #[arg(long, value_name = "DIR", help_heading = "Its surroundings")]
    pub(crate) cwd: Option<PathBuf>,
    /// The folder whose files it may change [default: where it starts]
    ///
    /// While a job's end is unknown, nothing new is admitted in its workspace, nor in one inside or around it.
    #[arg(long, value_name = "DIR", help_heading = "Its surroundings")]
    pub(crate) workspace: Option<PathBuf>,
    /// Set a variable for it (repeatable)
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Its surroundings",
        value_parser = OsStringValueParser::new().try_map(|text| values::assignment(&text)))]
    pub(crate) env: Vec<Assignment>,
    /// Give it this variable of the caller's environment as a secret (repeatable)
    ///
    /// The value is kept in memory only. Wherever the command prints it, it is masked before it is stored.
    #[arg(long, value_name = "NAME", value_parser = values::variable_name, help_heading = "Its surroundings")]
    pub(crate) secret: Vec<String>,
    /// What it reads: a file, - for this call's input to its end, or open
    ///
    /// A file or - is copied whole before anything starts; if - does not end within the budget, nothing is started
    /// (exit 4). `open` leaves a pipe that `outlast job stdin` writes to and closes.
    #[arg(long, value_name = "FILE|-|open", help_heading = "Its surroundings",
        value_parser = OsStringValueParser::new().try_map(|text| values::input(&text)))]
    pub(crate) stdin: Option<Input>,
    /// Send standard error through the same pipe as standard output, which keeps their order exact
    #[arg(long, help_heading = "Its surroundings")]
    pub(crate) merge: bool,
    /// Run as another user (needs root)
    #[arg(long, value_name = "UID[:GID]", value_parser = values::user, help_heading = "Its surroundings")]
    pub(crate) user: Option<RunAs>,

    /// What owns its process tree
    ///
    /// `auto` is the strongest of the next two that this machine has. What is asked for and cannot be had is an error,
    /// never a weaker choice. `outlast doctor` shows what can be had.
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Containment::Auto, help_heading = "Its bounds")]
    pub(crate) containment: Containment,
    /// The most processes and threads at once
    #[arg(long, value_name = "N", value_parser = values::processes, help_heading = "Its bounds")]
    pub(crate) pids_limit: Option<u64>,
    /// The most memory, 1MiB at least
    #[arg(long, value_name = "SIZE", value_parser = values::memory, help_heading = "Its bounds")]
    pub(crate) memory_limit: Option<u64>,
    /// The most output kept, 64KiB at least; 0 for all of it [default: 1GiB]
    ///
    /// Past it the first 1 MiB and the newest are kept, the gap is stated, and the command is never blocked.
    #[arg(long, value_name = "SIZE", value_parser = values::log_limit, help_heading = "Its bounds")]
    pub(crate) log_limit: Option<u64>,
    /// Time between asking the tree to end (TERM) and ending it (KILL) [default: 10s]
    ///
    /// With `--on-limit stop` the call ends near its budget: unless this option says otherwise, the stop at the budget
    /// gives 1s at most.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, help_heading = "Its bounds")]
    pub(crate) grace: Option<Millis>,
    /// Time that descendants have after the command's own process has ended
    ///
    /// Those that are left then are ended, and the receipt lists them as stragglers. The command's own exit is kept.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "5s", help_heading = "Its bounds")]
    pub(crate) linger: Millis,
    /// Run a command that tries to leave its job
    ///
    /// `&` without a `wait`, nohup, setsid, and work handed to another daemon are refused by the command's syntax
    /// (DETACH_REFUSED), because what leaves a job cannot be proved to have ended. With this option it runs, and what
    /// it leaves behind is still ended.
    #[arg(long, help_heading = "Its bounds")]
    pub(crate) allow_detach: bool,
}

/// What the end of the budget does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLimit {
    /// It goes on in the background, and the call answers 14
    Background,
    /// It is ended, that is proved, and the call answers TIMEOUT (10)
    Stop,
}

/// What owns a process tree, as an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Containment {
    /// A cgroup of its own where one can be made, else a subreaper
    Auto,
    /// A cgroup of its own, and a keeper that adopts every orphan
    #[value(name = "cgroup2+subreaper")]
    Cgroup2Subreaper,
    /// A keeper that adopts every orphan
    Subreaper,
    /// A PID namespace of its own
    #[value(name = "pid_namespace")]
    PidNamespace,
}

impl Containment {
    /// What the spec asks for; `None` for the strongest there is.
    pub(crate) fn boundary(self) -> Option<Boundary> {
        match self {
            Containment::Auto => None,
            Containment::Cgroup2Subreaper => Some(Boundary::Cgroup2Subreaper),
            Containment::Subreaper => Some(Boundary::Subreaper),
            Containment::PidNamespace => Some(Boundary::PidNamespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    fn parse(words: &[&str]) -> Result<Cli, String> {
        let words = ["outlast", "run"].iter().chain(words);
        Cli::try_parse_from(words).map_err(|error| error.kind().to_string())
    }

    #[test]
    fn what_is_accepted() {
        for words in [
            &["--", "true"][..],
            &["-c", "a | b"],
            &["-c", "-x"],
            &["--output", "json", "--", "ls", "--output", "x"],
            &["--budget", "0", "--timeout", "1h30m", "--", "make", "-j4"],
            &["--env", "A=1", "--env", "B=", "--secret", "C", "--", "env"],
            &["--service", "--", "server"],
            &["--resume", "--no-detach", "--", "x"],
        ] {
            assert!(parse(words).is_ok(), "{words:?}: {:?}", parse(words).err());
        }
    }

    #[test]
    fn what_is_refused() {
        for words in [
            &[][..],
            &["true"],
            &["--"],
            &["-c", "x", "--", "y"],
            &["--shell", "sh", "--", "y"],
            &["--no-detach", "--", "x"],
            &["--service", "--background", "--", "x"],
            &["--service", "--resume", "--", "x"],
            &["--on-limit", "stop", "--background", "--", "x"],
            &["--new", "--idempotency-key", "k", "--", "x"],
            &["--idempotency-key", "", "--", "x"],
            &["--budget", "soon", "--", "x"],
            &["--pids-limit", "0", "--", "x"],
            &["--memory-limit", "1000", "--", "x"],
            &["--containment", "jail", "--", "x"],
            &["--tty", "--stdin", "f", "--", "x"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
