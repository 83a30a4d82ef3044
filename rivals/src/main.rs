//! Asks other tools what `outlast qualify` asks Outlast, and shows all answers side by side.
//!
//! A tool is asked through what it offers its own users. What it does not offer is shown as unsupported, which is no
//! failure; what it does better is shown too. Nothing here is needed to use Outlast, and nothing is installed by it: see
//! `rivals/install`.
#![forbid(unsafe_code)]

mod args;
mod base64;
mod codex;
mod conmon;
mod files;
mod http;
mod nohup;
mod pueue;
mod rival;
mod sandbox_agent;
mod systemd_run;

use args::Args;
use clap::Parser;
use outlast_qualify::qualify::{Options, Progress, qualify};
use outlast_qualify::report::{self, Report};
use outlast_qualify::subject::Subject;
use outlast_qualify::subjects::local::LocalCli;
use rival::{Place, RIVALS};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            tell(&format!("error: {why}"));
            ExitCode::from(2)
        }
    }
}

fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "outlast-rivals: {line}");
}

fn run(args: &Args) -> Result<u8, String> {
    let options = Options {
        quick: args.quick,
        only: args.probes.clone(),
        skip: args.skip.clone(),
        bulk_bytes: args.bulk_mib.map(|mib| mib << 20),
        samples: args.samples,
    };
    if let Some(name) = options.unknown_names().first() {
        return Err(format!("there is no probe `{name}`"));
    }
    let names: Vec<&str> = ["outlast"].into_iter().chain(RIVALS.iter().map(|rival| rival.name)).collect();
    if let Some(name) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("there is no rival `{name}`; there are {}", names.join(", ")));
    }
    let chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let install = args.install_dir.canonicalize().unwrap_or_else(|_| args.install_dir.clone());
    let scratch = Scratch::new(args.scratch.clone().unwrap_or_else(std::env::temp_dir))?;

    let mut reports: Vec<Report> = Vec::new();
    let mut missing: Vec<String> = Vec::new();
    let mut ask = |name: &'static str, opened: Result<Arc<dyn Subject>, String>| match opened {
        Ok(subject) => {
            let report = qualify(&subject, &options, &scratch.folder, &mut |progress| {
                if let Progress::Done(row) = progress {
                    tell(&format!("{name}: {:<12} {:<17} {}", row.verdict.word(), row.id, row.line));
                }
            });
            reports.push(report);
        }
        Err(why) => missing.push(format!("{name}: not asked: {why}")),
    };
    if chosen("outlast") {
        let opened = outlast(args, &scratch.folder);
        ask("outlast", opened.clone().map(|local| -> Arc<dyn Subject> { local }));
        if let Ok(Err(trouble)) = opened.map(|local| local.remove()) {
            tell(&format!("outlast: {trouble}"));
        }
    }
    for rival in RIVALS.iter().filter(|rival| chosen(rival.name)) {
        let place = Place { install: install.clone(), scratch: scratch.folder.join(rival.name) };
        std::fs::create_dir(&place.scratch)
            .map_err(|error| format!("{}: {error}", place.scratch.display()))?;
        let opened = (rival.available)(&place)
            .map_err(|why| format!("{why} (install: {})", rival.install))
            .and_then(|()| (rival.open)(&place).map_err(|trouble| trouble.to_string()));
        ask(rival.name, opened);
    }
    let mut text = report::table(&reports);
    for line in &missing {
        text.push_str(&format!("\n{line}"));
    }
    text.push('\n');
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("writing the table: {error}"))?;
    if let Some(path) = &args.json {
        let record =
            serde_json::json!({ "schema": report::SCHEMA, "reports": reports, "not_asked": missing });
        std::fs::write(path, format!("{record:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    // The exit code is about Outlast alone: nobody's build should fail because of what others cannot do.
    let own = reports.iter().find(|report| report.subject.name == "outlast");
    let not_asked = if chosen("outlast") { report::UNAVAILABLE } else { 0 };
    Ok(own.map_or(not_asked, |report| report.exit_code(false)))
}

fn outlast(args: &Args, folder: &Path) -> Result<Arc<LocalCli>, String> {
    let program = match &args.outlast {
        Some(program) => program.clone(),
        // Beside this program, as both are built.
        None => std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("outlast"),
    };
    let program = program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?;
    LocalCli::new(&program, folder).map(Arc::new).map_err(|trouble| trouble.to_string())
}

/// A folder for everything that is left by anybody, removed at the end.
struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    fn new(parent: PathBuf) -> Result<Scratch, String> {
        let folder = parent.join(format!("outlast-rivals-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Scratch { folder })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tell(&format!("{} was not removed: {error}", self.folder.display()));
        }
    }
}
