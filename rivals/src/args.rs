//! What can be typed.

use clap::Parser;
use std::path::PathBuf;

/// Ask other tools what `outlast qualify` asks Outlast, side by side
///
/// Whatever is not installed is left out, with the line that installs it. The exit code is that of Outlast's own column.
#[derive(Debug, Parser)]
#[command(name = "outlast-rivals", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Where `rivals/install` put things
    #[arg(long, value_name = "DIR", default_value = "target/rivals")]
    pub(crate) install_dir: PathBuf,
    /// Only these tools (with commas): outlast, nohup, pueue, systemd-run, conmon, sandbox-agent, codex
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Only these probes (with commas); `latency` is the name of what is measured
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) probes: Vec<String>,
    /// Without these probes (with commas)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,
    /// Fewer samples and bytes
    #[arg(long)]
    pub(crate) quick: bool,
    /// How much the bulk probe prints, in MiB
    #[arg(long, value_name = "MIB")]
    pub(crate) bulk_mib: Option<u64>,
    /// How many samples a latency has
    #[arg(long, value_name = "N")]
    pub(crate) samples: Option<usize>,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The program `outlast` [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) outlast: Option<PathBuf>,
    /// The folder below which everything is done [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
