//! What can be typed, and the manual that goes with it: the text of `--help` is written here, beside what it explains.

pub(crate) mod job;
pub(crate) mod manual;
pub(crate) mod qualify;
pub(crate) mod run;
pub(crate) mod values;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Commands that outlast the call, and a "done" that is proved.
///
/// `outlast run` starts a command under a keeper of its own and waits for it: for as long as this call may take, and
/// no longer. What is not done by then goes on, and the answer says how to continue and how to cancel it. A command
/// counts as done when its whole process tree is proved dead and its output is kept, and not before.
///
/// No server is needed. Each job is a folder below the home (see HOME in `outlast help run`), and every command here
/// reads what its keeper wrote there.
#[derive(Debug, Parser)]
#[command(
    name = "outlast",
    version,
    after_long_help = manual::OVERVIEW,
    arg_required_else_help = false,
    subcommand_required = true,
    disable_help_subcommand = false,
    infer_subcommands = false,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Cli {
    /// Reads a call.
    ///
    /// Building the definitions of all commands costs more than everything else a short `run` does before its command
    /// starts, so a call that begins with `run` is read by that definition alone. What that does not understand, help
    /// included, goes to the whole one, so that there is one voice to people.
    pub(crate) fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
        if words.get(1).is_some_and(|word| word == "run")
            && let Ok(call) = RunCall::try_parse_from(&words[1..])
        {
            return Ok(Cli { global: call.global, verb: Verb::Run(Box::new(call.args)) });
        }
        Cli::try_parse_from(words)
    }
}

/// `run` and its options, as a call of its own; see [`Cli::read`].
#[derive(Debug, Parser)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct RunCall {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    args: run::RunArgs,
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The folder that holds the jobs
    ///
    /// Without it: $OUTLAST_HOME, else $XDG_STATE_HOME/outlast, else ~/.local/state/outlast. It must be on a local
    /// disk.
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub(crate) home: Option<PathBuf>,
    /// Answer as text or as one JSON object
    ///
    /// Without it: JSON when standard output is not a terminal, text when it is.
    #[arg(long, global = true, value_name = "FORMAT", value_enum, help_heading = "Everywhere")]
    pub(crate) output: Option<Format>,
    /// When to colour text
    ///
    /// Colour is never the only sign of anything. NO_COLOR turns it off too.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto, help_heading = "Everywhere")]
    pub(crate) color: Color,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people.
    Text,
    /// One object for programs.
    Json,
}

/// When text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<run::RunArgs>),
    /// Wait for, read, stop and settle jobs
    ///
    /// A job is named by its id, or by any beginning of it that no other job has. Only jobs of the caller's scope
    /// ($OUTLAST_SCOPE) are found.
    #[command(subcommand, after_long_help = manual::JOB)]
    Job(job::JobVerb),
    Doctor(DoctorArgs),
    Qualify(qualify::QualifyArgs),
    Completions(CompletionsArgs),
    Schema(SchemaArgs),
}

/// Say what this machine offers, and check what is kept
///
/// Reports which containment can be had, which limits, how the home is stored, and what is missing for more. With
/// --verify it reads every job of the home and checks each invariant that must hold after any fault; anything that
/// does not is listed, and the exit code is 1.
#[derive(Debug, Args)]
#[command(after_long_help = manual::DOCTOR)]
pub(crate) struct DoctorArgs {
    /// Check every job of the home against the invariants
    #[arg(long)]
    pub(crate) verify: bool,
}

/// Print completions for a shell
///
/// For bash: `outlast completions bash > ~/.local/share/bash-completion/completions/outlast`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the JSON schema of every answer
///
/// The schema (draft 2020-12) of the object that each command writes with --output json.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_short_way_reads_what_the_long_one_does() {
        for line in [
            "outlast run -- true",
            "outlast run --output json --home /h --color never --budget 1s -- make -j4 --output text",
            "outlast run -c x --shell sh --env A=1 --env B=2 --secret C --new --resume --no-detach",
            "outlast run --stdin - --service --containment subreaper --user 1:2 -- x -- y",
            "outlast --output json run -- x",
            "outlast job list",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (short, long) = (Cli::read(&words).unwrap(), Cli::try_parse_from(&words).unwrap());
            assert_eq!(format!("{short:?}"), format!("{long:?}"), "{line}");
        }
        for line in
            ["outlast run", "outlast run --help", "outlast run -h", "outlast run --version", "outlast run x"]
        {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (short, long) = (Cli::read(&words).unwrap_err(), Cli::try_parse_from(&words).unwrap_err());
            assert_eq!(short.to_string(), long.to_string(), "{line}");
        }
    }

    #[test]
    fn every_command_and_option_is_explained() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no text", command.get_name());
            for argument in command.get_arguments() {
                let explained = argument.get_help().or(argument.get_long_help()).is_some();
                assert!(explained, "{} {} has no text", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        check(&command);
    }
}
