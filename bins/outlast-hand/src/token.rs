//! `outlast-hand token new`.

use crate::args::{self, Failure};
use lexopt::{Arg, Parser};
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
            Arg::Value(value) if verb.is_none() => verb = Some(value),
            Arg::Long("file") => file = Some(args::path(&mut parser, "--file")?),
            Arg::Long("scope") => scope = Some(args::text(&mut parser, "--scope")?),
            Arg::Long("name") => name = Some(args::text(&mut parser, "--name")?),
            Arg::Long("expires") => {
                lives = Some(args::number(&mut parser, "--expires", "a number of seconds from now")?);
            }
            Arg::Long("help") | Arg::Short('h') => return crate::help::of(&[crate::help::TOKEN]),
            other => return Err(other.unexpected().into()),
        }
    }
    if verb.as_deref() != Some("new".as_ref()) {
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
