//! `outlast-hand connect`.

use crate::args::{self, Failure, home};
use lexopt::{Arg, Parser};
use outlast_hand::home::Home;
use outlast_runner::connect;
use outlast_sys::spawn::Spawn;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// How long a runner that was started here stays once it is idle, in seconds.
const IDLE: &str = "600";

pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let mut parser = Parser::from_args(args);
    let (mut named_home, mut may_start) = (None, true);
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("home") => named_home = Some(args::path(&mut parser, "--home")?),
            Arg::Long("no-start") => may_start = false,
            Arg::Long("help") | Arg::Short('h') => return crate::help::of(&[crate::help::CONNECT]),
            other => return Err(other.unexpected().into()),
        }
    }
    let home = home(named_home)?;
    let start = || match may_start {
        true => start(&home),
        false => {
            let why = format!("no runner serves {} and --no-start was given", home.display());
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
    };
    let socket = connect::runner(&home, start).map_err(|error| Failure::of(&error))?;
    connect::pass_on(&socket).map_err(|error| Failure::of(&error))
}

/// Starts a runner that outlives this process and whatever started it. Two that are started at once sort it out by the
/// home's lock: one of them ends.
fn start(home: &Path) -> io::Result<()> {
    // So that a home that cannot be made is this program's error, not that of a process nobody hears.
    Home::open(home).map_err(io::Error::other)?;
    let text = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::other);
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let program = std::env::current_exe()?;
    let mut spawn = Spawn::new(text(program.clone().into())?);
    let words =
        ["serve".into(), "--idle-exit".into(), IDLE.into(), "--home".into(), home.as_os_str().to_owned()];
    let argv: io::Result<Vec<CString>> =
        [program.into_os_string()].into_iter().chain(words).map(text).collect();
    spawn.argv(argv?).new_session();
    for target in 0..3 {
        spawn.fd(null.as_fd(), target);
    }
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let mut entry = name.into_vec();
        entry.push(b'=');
        entry.extend(value.into_vec());
        CString::new(entry).ok()
    });
    spawn.env(environment.collect());
    spawn.spawn_orphan().map(drop).map_err(|error| io::Error::from(error.errno))
}
