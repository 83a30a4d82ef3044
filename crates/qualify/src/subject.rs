//! What is probed, and what it may answer.

use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Something that runs commands for others, and is asked to show how well it does.
///
/// Every call is bounded: an implementation answers within the time it is given, or within [`Subject::patience`] where
/// the call has none of its own, and says [`Trouble::NoAnswer`] where what it asked did not. What cannot be done at all
/// is [`Trouble::Unsupported`], with the reason; it is shown as that, and is neither a success nor a failure.
///
/// Calls come from several threads at once: two admissions that race are a probe.
pub trait Subject: Send + Sync {
    /// What it is, which version, and how it is reached.
    fn describe(&self) -> Description;

    /// Whether its commands run on the machine, and see the files, of whoever asks.
    fn on_this_machine(&self) -> bool;

    /// A folder that its commands can write to, in which probes keep what commands leave as witness.
    fn scratch(&self) -> String;

    /// The longest that one call may take which has no bound of its own.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Starts a command and returns as soon as the subject has it; see [`Request`].
    ///
    /// Where the subject knows workspaces, each command without a key has one of its own: one whose end is unknown must
    /// not keep the next probe's from being admitted.
    fn start(&self, request: &Request) -> Answer<Started>;

    /// Starts a command for a caller that never gets the answer. Where a subject can do no better, the answer is
    /// dropped.
    fn start_and_lose_the_answer(&self, request: &Request) -> Answer<()> {
        self.start(request).map(drop)
    }

    /// What the subject says of a command now.
    fn inspect(&self, handle: &Handle) -> Answer<Said>;

    /// What the subject says once nothing more will come of the command by itself, or when the time is over. The
    /// default asks again and again; a subject that can be waited for should be.
    fn wait(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let until = Instant::now() + within;
        loop {
            let said = self.inspect(handle)?;
            if said.state.is_final() || Instant::now() >= until {
                return Ok(said);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Starts a command, waits for its end and gives what is said then: the one call most callers make.
    fn run(&self, request: &Request, within: Duration) -> Answer<Said> {
        let started = self.start(request)?;
        self.wait(&started.handle, within)
    }

    /// Gives the command's output from a byte cursor on to `sink`, and returns the cursor behind the last byte given.
    ///
    /// With [`Follow::Until`] it goes on until the command's output is complete or the time is over. A sink that
    /// breaks is a reader that goes away in the middle: the connection is dropped, and the command must not notice.
    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64>;

    /// Asks for the command's end and gives what is said when it is proved, or when the time is over.
    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said>;

    /// Writes to the open standard input of a command, then closes it where asked to.
    fn write_stdin(&self, handle: &Handle, bytes: &[u8], close: bool) -> Answer<()>;

    /// Starts the same command once more, as the attempt after this one. The handle is that of the new attempt alone.
    fn next_attempt(&self, handle: &Handle) -> Answer<Handle>;

    /// Kills, with signal 9, what owns the command (keeper, supervisor, daemon), and says what that was.
    fn kill_owner(&self, handle: &Handle) -> Answer<String>;

    /// Has the owner come back as it would after a crash, and says how; a subject that needs none says so.
    fn restart_owner(&self) -> Answer<String>;

    /// Settles a command whose owner was lost.
    fn settle(&self, handle: &Handle, within: Duration) -> Answer<Settled>;

    /// The processes of this machine that exist because of the subject while the command runs, the command's own left
    /// out. Their memory is what the subject costs.
    fn owners(&self, handle: &Handle) -> Answer<Vec<u32>>;
}

/// How often a condition that can only be asked for is asked again.
pub(crate) const POLL: Duration = Duration::from_millis(2);

/// Where output goes. A sink that breaks is a reader that leaves.
pub type Sink<'s> = &'s mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// What a subject answers.
pub type Answer<T> = Result<T, Trouble>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Trouble {
    /// The subject has no such thing.
    #[error("{why}")]
    Unsupported {
        /// Why not.
        why: String,
    },
    /// The subject understood, and refused.
    #[error("refused ({code}): {why}")]
    Refused {
        /// The subject's own code.
        code: String,
        /// Its reason.
        why: String,
    },
    /// The subject did not answer in time.
    #[error("no answer in {} s", *after_ms as f64 / 1000.0)]
    NoAnswer {
        /// How long it was waited for.
        after_ms: u64,
    },
    /// The subject cannot be reached.
    #[error("unavailable: {why}")]
    Unavailable {
        /// What was seen.
        why: String,
    },
    /// Something that is not the subject's doing prevented the observation.
    #[error("could not be observed: {why}")]
    Unobserved {
        /// What was seen.
        why: String,
    },
}

impl Trouble {
    /// The subject has no such thing.
    pub fn unsupported(why: impl Into<String>) -> Trouble {
        Trouble::Unsupported { why: why.into() }
    }

    /// The subject cannot be reached.
    pub fn unavailable(why: impl fmt::Display) -> Trouble {
        Trouble::Unavailable { why: why.to_string() }
    }

    /// Something else prevented the observation.
    pub fn unobserved(why: impl fmt::Display) -> Trouble {
        Trouble::Unobserved { why: why.to_string() }
    }

    /// The subject refused.
    pub fn refused(code: impl Into<String>, why: impl Into<String>) -> Trouble {
        Trouble::Refused { code: code.into(), why: why.into() }
    }

    /// There was no answer within this time.
    #[must_use]
    pub fn no_answer(after: Duration) -> Trouble {
        Trouble::NoAnswer { after_ms: millis(after) }
    }
}

/// A subject in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Its name; the head of its column.
    pub name: String,
    /// Its version, as it says itself.
    pub version: String,
    /// How it is reached.
    pub reached: String,
    /// What contains its commands, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary: Option<String>,
}

/// The subject's name of one attempt of one command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Handle(pub String);

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A program and its arguments, executed by no shell.
    Argv(Vec<OsString>),
    /// A shell script whose pipeline stages are to count. A subject that reports what its shell reports answers
    /// [`Trouble::Unsupported`]: it is not wrong, it promises less.
    Script(String),
}

/// What the command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// Nothing.
    #[default]
    Null,
    /// What [`Subject::write_stdin`] gives it.
    Open,
}

/// What owns the process tree, where a probe asks for more than the subject's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Containment {
    /// A PID namespace, whose init takes everything with it.
    PidNamespace,
}

/// One command, and how it is to be run. A subject that cannot honour a part which is asked for does not run the
/// command without it, but answers [`Trouble::Unsupported`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What is run.
    pub work: Work,
    /// The deadline of the whole work.
    pub deadline: Option<Duration>,
    /// The caller's name for it: the same key twice is the same command.
    pub key: Option<String>,
    /// What it reads.
    pub stdin: Stdin,
    /// The time between TERM and KILL; a subject that has no such setting keeps its own.
    pub grace: Option<Duration>,
    /// What must contain it.
    pub containment: Option<Containment>,
    /// All output must be kept, however much it is.
    pub keep_all_output: bool,
}

impl Request {
    /// A command with nothing asked for beyond the subject's defaults.
    #[must_use]
    pub fn of(work: Work) -> Request {
        Request {
            work,
            deadline: None,
            key: None,
            stdin: Stdin::Null,
            grace: None,
            containment: None,
            keep_all_output: false,
        }
    }
}

/// A start that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The command's name from here on.
    pub handle: Handle,
    /// Whether the subject says that it had this command already.
    pub existed: bool,
}

/// How far a reader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// What there is now.
    No,
    /// Until the output is complete, for so long at most.
    Until(Duration),
}

/// Where the subject says that a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is starting, running or waiting to.
    Running,
    /// It is being ended, and that is not done.
    Stopping,
    /// The subject says that it does not know.
    Unknown,
    /// It is over.
    Ended,
    /// The subject has no record of it.
    Forgotten,
}

impl State {
    /// Whether nothing more will come by waiting.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, State::Unknown | State::Ended | State::Forgotten)
    }
}

/// How the subject says that the command's own process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// With a code; −1 and the like too, where a subject says such a thing.
    Exited {
        /// The code.
        code: i64,
    },
    /// By a signal.
    Signaled {
        /// Its number; 0 where the subject says only that there was one.
        signal: i32,
    },
    /// It never became a program.
    NotExecuted {
        /// Why not, in the subject's words.
        why: String,
    },
    /// The subject says that nobody knows.
    Unknown {
        /// Why not, in the subject's words.
        why: String,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited { code } => write!(f, "exit {code}"),
            End::Signaled { signal: 0 } => f.write_str("a signal"),
            End::Signaled { signal } => write!(f, "signal {signal}"),
            End::NotExecuted { .. } => f.write_str("not executed"),
            End::Unknown { .. } => f.write_str("exit unknown"),
        }
    }
}

/// Why the subject says that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// By itself.
    Itself,
    /// The deadline.
    Deadline,
    /// A stop.
    Stop,
    /// Its owner was lost.
    OwnerLost,
}

/// What a subject says of a command. Nothing is filled in for it: what it does not say is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Where it stands.
    pub state: State,
    /// How its own process ended.
    pub end: Option<End>,
    /// The status that pipeline stages come to.
    pub effective: Option<i64>,
    /// Why it ended.
    pub cause: Option<Cause>,
    /// What proves that nothing of it lives.
    pub proof: Option<String>,
    /// What of the output the subject says is missing.
    pub gap: Option<String>,
    /// More in its own words.
    pub because: String,
}

impl Said {
    /// Nothing but the state.
    #[must_use]
    pub fn only(state: State) -> Said {
        Said {
            state,
            end: None,
            effective: None,
            cause: None,
            proof: None,
            gap: None,
            because: String::new(),
        }
    }

    /// Over, with this end.
    #[must_use]
    pub fn ended(end: End) -> Said {
        Said { end: Some(end), ..Said::only(State::Ended) }
    }

    /// In a few words, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let state = match self.state {
            State::Running => "running",
            State::Stopping => "stopping",
            State::Unknown => "unknown",
            State::Ended => "ended",
            State::Forgotten => "no record of it",
        };
        let mut words = state.to_owned();
        if let Some(end) = &self.end {
            words = format!("{words}, {end}");
        }
        match self.cause {
            Some(Cause::Deadline) => words.push_str(", by its limit"),
            Some(Cause::Stop) => words.push_str(", stopped"),
            Some(Cause::OwnerLost) => words.push_str(", owner lost"),
            Some(Cause::Itself) | None => {}
        }
        words
    }
}

/// What came of settling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settled {
    /// What is said now.
    pub said: Said,
    /// Why it is not settled, where it is not, in the subject's words.
    pub refused: Option<String>,
}

/// Whole milliseconds.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
