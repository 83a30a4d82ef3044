//! `outlast-hand token new`.

use crate::args::Failure;
use lexopt::{Arg, Parser, ValueExt};
use outlast_runner::tokens;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let mut parser = Parser::from_args(args);
    let (mut file, mut scope, mut name, mut lives) = (None::<PathBuf>, None, None, None::<u64>);
    let mut verb = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Value(value) if verb.is_none() => verb = Some(value.string()?),
            Arg::Long("file") => file = Some(parser.value()?.into()),
            Arg::Long("scope") => scope = Some(parser.value()?.string()?),
            Arg::Long("name") => name = Some(parser.value()?.string()?),
            Arg::Long("expires") => lives = Some(parser.value()?.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if verb.as_deref() != Some("new") {
        return Err(Failure::usage("say `token new --file FILE`"));
    }
    let Some(file) = file else {
        return Err(Failure::usage("--file FILE is missing: where the token's hash is kept"));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let expires = lives.map(|lives| now.saturating_add(lives));
    let made = tokens::new_token(scope.as_deref(), expires, name.as_deref());
    let (secret, line) = made.map_err(|error| Failure::usage(error.to_string()))?;
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let added = options.open(&file).and_then(|mut file| {
        // One write, so that a runner that reads meanwhile sees a whole line.
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()
    });
    added.map_err(|error| Failure::of(&error))?;
    println!("{secret}");
    Ok(())
}
