//! Values of options, read where they are typed, so that a wrong one is refused before anything is done.

use crate::size;
use outlast_core::duration;
use outlast_core::id::Key;
use outlast_core::spec::RunAs;
use outlast_core::time::Millis;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A length of time.
pub(crate) fn duration(text: &str) -> Result<Millis, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

/// A size in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| error.to_string())
}

/// The least that a memory limit may be: below it no program starts, and what the kernel says then is no help.
const LEAST_MEMORY: u64 = 1 << 20;

/// A limit of memory.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size if size < LEAST_MEMORY => Err("the limit is at least 1MiB; leave it out for none".to_owned()),
        size => Ok(size),
    }
}

/// A limit of the output that is kept.
pub(crate) fn log_limit(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        size if (1..outlast_hand::defaults::LEAST_LOG).contains(&size) => {
            Err("the limit is at least 64KiB; 0 keeps all output".to_owned())
        }
        size => Ok(size),
    }
}

/// A limit of processes.
pub(crate) fn processes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("the limit is at least 1; leave it out for none".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("the limit is a number, at least 1".to_owned()),
    }
}

/// An idempotency key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|error| error.to_string())
}

/// A variable for the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// Its name.
    pub(crate) name: String,
    /// Its value; any bytes but NUL.
    pub(crate) value: OsString,
}

/// `NAME=VALUE`.
pub(crate) fn assignment(text: &OsStr) -> Result<Assignment, String> {
    let bytes = text.as_bytes();
    let Some(at) = bytes.iter().position(|byte| *byte == b'=') else {
        return Err("write NAME=VALUE; to pass a variable on as it is nothing need be said".to_owned());
    };
    let name = variable_name(&String::from_utf8_lossy(&bytes[..at]))?;
    Ok(Assignment { name, value: OsString::from_vec(bytes[at + 1..].to_vec()) })
}

/// The name of a variable, as POSIX shells take it. Those that the keeper sets for the command are not the caller's.
pub(crate) fn variable_name(text: &str) -> Result<String, String> {
    let mut characters = text.chars();
    let begins = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !begins || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        let shown: String = text.chars().take(40).collect();
        return Err(format!(
            "`{shown}` is no name of a variable: letters, digits and _, not beginning with a digit"
        ));
    }
    if SET_BY_KEEPER.contains(&text) {
        return Err(format!("{text} is set by Outlast itself"));
    }
    Ok(text.to_owned())
}

const SET_BY_KEEPER: [&str; 3] = ["OUTLAST_JOB_ID", "OUTLAST_PROGRESS", "OUTLAST_CHECKPOINT"];

/// What the command reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// A file.
    File(PathBuf),
    /// This call's own standard input, to its end.
    Ours,
    /// A pipe that later calls write to.
    Open,
}

/// `FILE`, `-` or `open`.
pub(crate) fn input(text: &OsStr) -> Result<Input, String> {
    match text.as_bytes() {
        b"" => Err("name a file, or - for this call's own standard input, or open".to_owned()),
        b"-" => Ok(Input::Ours),
        b"open" => Ok(Input::Open),
        _ => Ok(Input::File(PathBuf::from(text))),
    }
}

/// `UID` or `UID:GID`.
pub(crate) fn user(text: &str) -> Result<RunAs, String> {
    let number = |part: &str| {
        part.parse::<u32>().ok().filter(|id| *id != u32::MAX).ok_or_else(|| {
            format!(
                "`{text}` is not UID or UID:GID; both are numbers (`id -u NAME` and `id -g NAME` show them)"
            )
        })
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(RunAs { uid: number(uid)?, gid: number(gid)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments() {
        let read = |text: &str| assignment(OsStr::new(text));
        assert_eq!(read("A=b=c"), Ok(Assignment { name: "A".into(), value: "b=c".into() }));
        assert_eq!(read("_9="), Ok(Assignment { name: "_9".into(), value: "".into() }));
        for text in ["A", "=b", "9A=b", "A-B=c", "OUTLAST_JOB_ID=x"] {
            assert!(read(text).is_err(), "{text}");
        }
        let odd = OsString::from_vec(b"A=\xff".to_vec());
        assert_eq!(assignment(&odd).map(|set| set.value.into_vec()), Ok(vec![0xff]));
    }

    #[test]
    fn inputs() {
        assert_eq!(input(OsStr::new("-")), Ok(Input::Ours));
        assert_eq!(input(OsStr::new("open")), Ok(Input::Open));
        assert_eq!(input(OsStr::new("./open")), Ok(Input::File("./open".into())));
        assert!(input(OsStr::new("")).is_err());
    }

    #[test]
    fn users() {
        assert_eq!(user("65534"), Ok(RunAs { uid: 65534, gid: 65534 }));
        assert_eq!(user("1:2"), Ok(RunAs { uid: 1, gid: 2 }));
        for text in ["", "root", "1:", ":1", "-1", "4294967295", "1:2:3"] {
            assert!(user(text).is_err(), "{text}");
        }
    }
}
