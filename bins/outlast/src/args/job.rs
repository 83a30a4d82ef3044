//! `outlast job …`: options and manual of each verb.

use super::manual;
use super::values;
use clap::{Args, Subcommand, ValueEnum};
use outlast_core::time::Millis;

/// What can be done with a job.
#[derive(Debug, Subcommand)]
pub(crate) enum JobVerb {
    List(ListArgs),
    Wait(WaitArgs),
    Status(StatusArgs),
    Logs(LogsArgs),
    Cancel(CancelArgs),
    Settle(SettleArgs),
    Retry(RetryArgs),
    Explain(ExplainArgs),
    Stdin(StdinArgs),
    Resize(ResizeArgs),
    Gc(GcArgs),
}

/// List the jobs of this scope
///
/// Those that are not settled, and those whose result nobody received yet; newest first. With --all, every job that is
/// still kept.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Every job that is kept, also those whose result was handed over
    #[arg(long)]
    pub(crate) all: bool,
}

/// Wait for a job and give its result
///
/// Answers as the call that started it would have: with its output and its own exit code. Where the budget ends first
/// the exit code is 14 and the job goes on; run the same command again. Ctrl-C ends the waiting, not the job.
#[derive(Debug, Args)]
#[command(after_long_help = manual::WAIT)]
pub(crate) struct WaitArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// How long this call may take; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
    /// The most bytes of output in a JSON answer
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "32KiB")]
    pub(crate) max_output: u64,
}

/// Say what state a job is in, without waiting
///
/// Exits 14 while the job is not settled; of a settled job it exits as `job wait` would. It gives no output and does not
/// count as receiving the result.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

/// Read a job's output
///
/// From any cursor, any number of times, while it runs and after. A cursor counts the bytes of both streams together,
/// in the order in which they were drained; `--cursor C` means that all bytes before C are known. Where bytes are no
/// longer kept, or were lost, the answer says which, and why.
///
/// On a terminal what would control it is made visible and well-known tokens are masked; --raw gives the exact bytes.
#[derive(Debug, Args)]
#[command(after_long_help = manual::LOGS)]
pub(crate) struct LogsArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Where to begin
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cursor: u64,
    /// Go on until the job is settled, within the budget
    #[arg(long)]
    pub(crate) follow: bool,
    /// The exact bytes and nothing else, standard output and standard error both to standard output
    #[arg(long)]
    pub(crate) raw: bool,
    /// Which stream
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Which::Both)]
    pub(crate) stream: Which,
    /// How long this call may take with --follow; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
    /// The most bytes of output in a JSON answer
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "32KiB")]
    pub(crate) max_output: u64,
}

/// Which stream of a job's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// Standard output alone
    Stdout,
    /// Standard error alone
    Stderr,
    /// Both, in the order in which they were drained
    Both,
}

/// Stop a job, and prove that its whole tree is dead
///
/// TERM to the whole tree, KILL after the job's grace. Answers 0 once the death is proved; while it is not, 14 with the
/// state `stopping`, and the stop goes on by itself. A job that is settled already is left as it is, and the answer is 0
/// with the receipt it has. A paused job gives up what it saved: the call that started it begins anew.
#[derive(Debug, Args)]
#[command(after_long_help = manual::CANCEL)]
pub(crate) struct CancelArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// KILL at once
    #[arg(long)]
    pub(crate) force: bool,
    /// How long this call may take; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
}

/// Settle a job that lost its keeper
///
/// Ends what is left of its tree through the boundary that contained it, and writes the receipt if its death can be
/// proved. Output is kept; an exit that nobody learnt stays unknown, and is never made up.
///
/// Where nothing can prove its death, a person may attest it: --attest NAME first shows which processes still carry the
/// job's mark, and with --yes records the word under that name. It frees the key and the workspace, and is no death
/// proof.
#[derive(Debug, Args)]
#[command(after_long_help = manual::SETTLE)]
pub(crate) struct SettleArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Attest that it is dead, under this name
    #[arg(long, value_name = "NAME")]
    pub(crate) attest: Option<String>,
    /// With --attest: having seen what was found, record it
    #[arg(long, requires = "attest")]
    pub(crate) yes: bool,
    /// How long this call may take; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
}

/// Start the next attempt of a job
///
/// The same command with the same input, in the caller's environment of now, once the death of the attempt before is
/// proved. Nothing is ever retried unless this command, or the identical call of a resumable command, asks for it.
#[derive(Debug, Args)]
#[command(after_long_help = manual::RETRY)]
pub(crate) struct RetryArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Answer as soon as it has started, with exit code 0
    #[arg(long)]
    pub(crate) background: bool,
    /// How long this call may take; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
    /// The most bytes of output in a JSON answer
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "32KiB")]
    pub(crate) max_output: u64,
}

/// Say why a job is in the state it is in
///
/// Each thing that must be known before it is settled, the one authority that owes it, and the receipt that settled it.
#[derive(Debug, Args)]
#[command(after_long_help = manual::EXPLAIN)]
pub(crate) struct ExplainArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

/// Write to a job's open standard input
///
/// Passes on this call's standard input, to its end. Writes carry the offset at which they begin, so that one which is
/// repeated after a lost answer is not written twice. The job must have been started with `--stdin open`.
#[derive(Debug, Args)]
#[command(after_long_help = manual::STDIN)]
pub(crate) struct StdinArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// The offset at which these bytes begin [default: where the last write ended]
    #[arg(long, value_name = "N")]
    pub(crate) offset: Option<u64>,
    /// Then close it: the command reads its end
    #[arg(long)]
    pub(crate) close: bool,
    /// How long this call may take; 0 for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) budget: Option<Millis>,
}

/// Tell a job's pseudo-terminal its size
#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    /// The job, by its id or a beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Rows
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rows: u16,
    /// Columns
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cols: u16,
}

/// Remove finished jobs that need not be kept longer
///
/// A settled job goes 24 hours after its end, its key is answered for 30 days after that. What is not settled stays.
#[derive(Debug, Args)]
#[command(after_long_help = manual::GC)]
pub(crate) struct GcArgs {
    /// How long finished jobs are kept
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "24h")]
    pub(crate) keep: Millis,
}
