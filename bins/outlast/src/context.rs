//! What every command needs to know of the call it answers.

use crate::args::{Cli, Color, Format, Verb};
use crate::budget::{self, Budget, Surroundings};
use crate::failure::{self, Failure};
use crate::follow_up::FollowUp;
use outlast_core::id::{JobId, Scope};
use outlast_core::time::{Millis, Mono};
use outlast_hand::clock;
use outlast_hand::gc::Tombstone;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use std::ffi::OsString;
use std::path::PathBuf;

/// The variable that names the scope.
pub(crate) const SCOPE_VARIABLE: &str = "OUTLAST_SCOPE";

/// The variable that says that a call is made by the command of a job.
pub(crate) const JOB_VARIABLE: &str = "OUTLAST_JOB_ID";

/// One call of this program.
#[derive(Debug)]
pub(crate) struct Context {
    /// When it began.
    pub(crate) started: Mono,
    /// How it answers.
    pub(crate) format: Format,
    /// Whether what is said on standard error is coloured; standard output never is.
    pub(crate) colored: bool,
    /// Whose jobs it may find.
    pub(crate) scope: Scope,
    /// How it is called again.
    pub(crate) follow_up: FollowUp,
    /// Which of the standard streams are terminals.
    pub(crate) terminals: Terminals,
    /// The call is one that starts work (`run`), so making it again continues what it paused.
    pub(crate) starts_work: bool,
    home: Option<PathBuf>,
}

/// Which of the standard streams are terminals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminals {
    /// Standard input.
    pub(crate) stdin: bool,
    /// Standard output.
    pub(crate) stdout: bool,
    /// Standard error.
    pub(crate) stderr: bool,
}

impl Terminals {
    /// Looks at them.
    pub(crate) fn look() -> Terminals {
        Terminals {
            stdin: rustix::termios::isatty(rustix::stdio::stdin()),
            stdout: rustix::termios::isatty(rustix::stdio::stdout()),
            stderr: rustix::termios::isatty(rustix::stdio::stderr()),
        }
    }

    /// Whether a person may be sitting there, who can press Ctrl-C.
    pub(crate) fn any(self) -> bool {
        self.stdin || self.stdout || self.stderr
    }

    /// How answers are written where nobody says.
    pub(crate) fn default_format(self) -> Format {
        if self.stdout { Format::Text } else { Format::Json }
    }
}

impl Context {
    /// From what was typed and where.
    pub(crate) fn new(
        cli: &Cli,
        words: &[OsString],
        terminals: Terminals,
        started: Mono,
    ) -> Result<Context, Failure> {
        let default = terminals.default_format();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Ok(Context {
            started,
            format: cli.global.output.unwrap_or(default),
            colored: match cli.global.color {
                Color::Always => true,
                Color::Never => false,
                Color::Auto => terminals.stderr && !no_color,
            },
            scope: scope()?,
            follow_up: FollowUp::new(words, cli.global.home.as_deref(), cli.global.output, default),
            terminals,
            starts_work: matches!(cli.verb, Verb::Run(_)),
            home: cli.global.home.clone(),
        })
    }

    /// Whether a program reads the answer.
    pub(crate) fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// How long the call has taken so far.
    pub(crate) fn elapsed(&self) -> Millis {
        clock::mono_now().since(self.started)
    }

    /// Decides this call's budget.
    pub(crate) fn budget(&self, option: Option<Millis>) -> Result<Budget, Failure> {
        let surroundings = Surroundings {
            on_terminal: self.terminals.stdout,
            inside_job: std::env::var_os(JOB_VARIABLE).is_some_and(|value| !value.is_empty()),
        };
        let variable = std::env::var_os(budget::VARIABLE);
        budget::decide(option, variable.as_deref(), surroundings)
            .map_err(|error| Failure::new(failure::BAD_ARGUMENT, error.to_string()))
    }

    /// Opens the home, and makes one where there is none.
    pub(crate) fn home(&self) -> Result<Home, Failure> {
        Ok(Home::open(&self.home_path()?)?)
    }

    /// Opens the home if there is one.
    pub(crate) fn existing_home(&self) -> Result<Option<Home>, Failure> {
        Ok(Home::open_existing(&self.home_path()?)?)
    }

    fn home_path(&self) -> Result<PathBuf, Failure> {
        match &self.home {
            None => Ok(Home::locate()?),
            Some(path) => std::path::absolute(path)
                .map_err(|error| Failure::new(failure::BAD_ARGUMENT, format!("--home: {error}"))),
        }
    }

    /// Finds the job a person means, in this scope. A job of another scope is answered like one that does not exist.
    pub(crate) fn find(&self, text: &str) -> Result<(Home, Job), Failure> {
        let Some(home) = self.existing_home()? else { return Err(failure::not_found(text)) };
        let job = match text.parse::<JobId>() {
            Ok(id) => self.job_in_scope(&home, id)?,
            Err(_) => self.by_beginning(&home, text)?,
        };
        job.map(|job| (home, job)).ok_or_else(|| failure::not_found(text))
    }

    /// What is kept of a job of this scope that was removed, where its whole id is given.
    pub(crate) fn removed(&self, text: &str) -> Result<Option<Tombstone>, Failure> {
        let (Some(home), Ok(id)) = (self.existing_home()?, text.parse::<JobId>()) else { return Ok(None) };
        let found = Tombstone::find(&home, id.call)
            .map_err(|error| failure::of_system("reading what is kept of removed jobs", &error))?;
        Ok(found.filter(|kept| kept.receipt.job_id == id && kept.receipt.scope == self.scope))
    }

    /// Opens a job if it is of this scope.
    pub(crate) fn job_in_scope(&self, home: &Home, id: JobId) -> Result<Option<Job>, Failure> {
        let job = home.job(id).map_err(|error| failure::of_system(&format!("opening job {id}"), &error))?;
        Ok(job.filter(|job| job.spec().scope == self.scope))
    }

    fn by_beginning(&self, home: &Home, text: &str) -> Result<Option<Job>, Failure> {
        if text.is_empty() {
            return Ok(None);
        }
        let ids = home.jobs().map_err(|error| failure::of_system("listing the jobs", &error))?;
        let mut found = Vec::new();
        for id in ids.into_iter().filter(|id| id.to_string().starts_with(text)) {
            found.extend(self.job_in_scope(home, id)?);
        }
        if found.len() > 1 {
            let mut ids: Vec<JobId> = found.iter().map(Job::id).collect();
            ids.sort_unstable();
            ids.truncate(8);
            return Err(failure::ambiguous(text, &ids));
        }
        Ok(found.pop())
    }
}

fn scope() -> Result<Scope, Failure> {
    let bad =
        |why: String| Failure::new(failure::BAD_ARGUMENT, format!("{SCOPE_VARIABLE} is no scope: {why}"));
    match std::env::var(SCOPE_VARIABLE) {
        Ok(text) if !text.is_empty() => Scope::new(text).map_err(|error| bad(error.to_string())),
        Ok(_) | Err(std::env::VarError::NotPresent) => {
            Scope::new("default").map_err(|error| bad(error.to_string()))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(bad("it is no UTF-8".to_owned())),
    }
}
