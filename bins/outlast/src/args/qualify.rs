//! `outlast qualify`: its options and its manual.

use clap::Args;
use std::path::PathBuf;

/// Probe what runs commands here, and say what was seen
///
/// Asks Outlast on this machine, by its command line, the questions that decide whether commands can be left to it: what
/// becomes of their output, their processes and their ends when things go as they do in the field. Each probe has an exact
/// judgement and a time of its own, so that a subject which hangs fails. docs/QUALIFICATION.md, and --explain, say what
/// each answer proves and does not.
///
/// It uses a home of its own below --scratch, and removes it. It takes some minutes and 2 GB of disk; with --quick, one
/// minute.
#[derive(Debug, Args)]
#[command(after_long_help = QUALIFY)]
pub(crate) struct QualifyArgs {
    /// Probe the runner at this address instead of this machine
    ///
    /// unix:PATH, tls:HOST:PORT, ssh:DESTINATION[:HOME], exec:PROGRAM ARG…, or listen:ADDRESS:PORT for a hand that dials.
    /// What cannot be seen from here is looked at by commands that the hand runs.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) runner: Option<String>,
    /// The fingerprint of the runner's certificate (repeatable): `sha256:` and 64 digits, as the runner prints it
    #[arg(long, value_name = "FINGERPRINT", requires = "runner")]
    pub(crate) runner_pin: Vec<String>,
    /// The authorities that may have signed the runner's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "runner", conflicts_with = "runner_pin")]
    pub(crate) runner_ca: Option<PathBuf>,
    /// The file that holds the token for the runner
    #[arg(long, value_name = "FILE", requires = "runner")]
    pub(crate) runner_token_file: Option<PathBuf>,
    /// Kill the runner, with signal 9, in every probe: for addresses that start a new one (ssh:, exec:… connect)
    #[arg(long, requires = "runner")]
    pub(crate) kill_runner: bool,
    /// Fewer samples and bytes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these probes (repeatable, or with commas); `latency` is the name of what is measured
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Without these probes (repeatable, or with commas)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// Write the record to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// A probe that the subject does not support is no failure
    #[arg(long)]
    pub(crate) allow_unsupported: bool,
    /// The folder below which a home is made for the time of the probing [default: the system's temporary folder]
    ///
    /// Figures are those of the disk that it lies on.
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Probe nothing; say what each probe does, and what its answer proves
    #[arg(long)]
    pub(crate) explain: bool,
}

/// After `outlast qualify --help`.
const QUALIFY: &str = "\
Exit codes:
  0    every probe passed; with --allow-unsupported: or is not supported
  1    NOT_QUALIFIED: some did not; `data.probes` says which, and what was seen
  2    there is no probe of that name
  4    what is to be probed cannot be, or the scratch folder cannot be made
  12   SUBJECT_UNAVAILABLE: what is to be probed does not answer

Examples:
  outlast qualify --quick
  outlast qualify --only escape,owner-killed --output json
  outlast qualify --runner unix:$HOME/.local/state/outlast/runner.sock
  outlast qualify --runner ssh:build-host --kill-runner
  outlast qualify --runner 'exec:podman exec -i box outlast-hand connect'
  outlast qualify --explain";
