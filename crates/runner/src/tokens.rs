//! Bearer tokens: random texts that prove who calls. A file holds their hashes, so whoever reads it can use none of them.
//!
//! A line is `HASH [scope=PREFIX] [expires=UNIX_SECONDS] [name=WORD]`; empty lines and those that begin with `#` say nothing.
//! `HASH` is the BLAKE3 of the whole token, as 64 hexadecimal digits. Each line ends with a line break, also the last: one
//! without may be half written, and half a scope is a wider one.
//!
//! The file is looked at with every call, so a token is new, or revoked, from the next call on. What each state of the file
//! means:
//!
//! | state | tokens that are good |
//! |---|---|
//! | as it was | the same |
//! | changed, every line understood, closed to others | those in it |
//! | gone | none |
//! | anything else | those of the last good state; [`Tokens::problem`] says what is wrong |

use outlast_core::id::{BadName, Scope};
use outlast_hand::home::fill_random;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fmt::Write;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// What every token begins with, so that scanners for leaked secrets know one.
pub const PREFIX: &str = "olt_";

/// Random bytes in a token.
pub const RANDOM_BYTES: usize = 32;

/// The largest token file, in bytes.
pub const FILE_AT_MOST: u64 = 1 << 20;

/// The longest name of a token, in bytes.
pub const NAME_AT_MOST: usize = 64;

/// How old a change must be for the next one to be sure of another time stamp: kernels and file systems count in steps of
/// up to two seconds.
const STAMP_STEP: Duration = Duration::from_secs(3);

/// Why a token file is not taken, or a token not made.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("the token file {path} cannot be read: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is a folder, a pipe, a device.
    #[error("{0} is no plain file, so it cannot be the token file")]
    NotAFile(PathBuf),
    /// Others may read or write it.
    #[error("the token file {path} has mode {mode:04o}: others can read or write it; `chmod 600 {path}`")]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It belongs to somebody who may give himself any token.
    #[error(
        "the token file {path} belongs to user {owner}, not to the runner's ({runner}) or root; `chown {runner} {path}`"
    )]
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
        /// The user the runner runs as.
        runner: u32,
    },
    /// It is too large.
    #[error("the token file {0} has more than {FILE_AT_MOST} bytes, the limit")]
    TooLarge(PathBuf),
    /// A line cannot be understood.
    #[error("line {number} of the token file {path} {problem}")]
    Line {
        /// In which file.
        path: PathBuf,
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// No such scope can be written into a line.
    #[error("the scope of a token {0}")]
    Scope(String),
    /// No such name can be written into a line.
    #[error("a token's name has 1 to {NAME_AT_MOST} letters, digits, hyphens, dots or underscores")]
    Name,
    /// The system gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(io::Error),
}

/// Who presented a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The token's name; the first digits of its hash where it has none.
    pub name: String,
    /// What the scopes begin with that it may use; every scope where absent.
    pub scope_prefix: Option<String>,
}

impl Principal {
    /// Whether it may use a scope: any where it has no prefix, else the prefix itself, or what follows it after a border,
    /// which is `/` or `:`. So `team` covers `team/a` and `team:a`, and neither `teams` nor `tea`.
    #[must_use]
    pub fn may_use(&self, scope: &Scope) -> bool {
        let Some(prefix) = &self.scope_prefix else { return true };
        match scope.as_str().strip_prefix(prefix.as_str()) {
            None => false,
            Some(rest) => rest.is_empty() || prefix.ends_with(BORDER) || rest.starts_with(BORDER),
        }
    }
}

const BORDER: [char; 2] = ['/', ':'];

/// One line.
#[derive(Debug, Clone)]
struct Entry {
    // Compared in constant time by its type.
    hash: blake3::Hash,
    scope_prefix: Option<String>,
    expires: Option<u64>,
    name: Option<String>,
}

/// What tells one state of a file from another. The change time is there for a change of mode or owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a later change is sure to have another stamp. A stamp from the future never is.
    fn is_settled(&self) -> bool {
        let seconds = self.changed.0.max(self.modified.0);
        let stamped = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        SystemTime::now().duration_since(stamped).is_ok_and(|age| age > STAMP_STEP)
    }
}

#[derive(Debug)]
struct State {
    entries: Vec<Entry>,
    /// The state that was looked at last; `None` makes the next look a reading one.
    stamp: Option<Stamp>,
    problem: Option<String>,
}

/// The tokens of one file.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

impl Tokens {
    /// Reads a token file.
    ///
    /// # Errors
    /// [`TokenError`]: at the start all of it must be in order.
    pub fn open(path: &Path) -> Result<Tokens, TokenError> {
        let (entries, stamp) = read(path)?;
        let state = State { entries, stamp: stamp.is_settled().then_some(stamp), problem: None };
        Ok(Tokens { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Whose token this is, at a time in seconds since the Unix epoch; `None` where it is nobody's, has expired or was
    /// revoked. It takes as long for a token that is nearly right as for any other.
    #[must_use]
    pub fn check(&self, presented: &[u8], now_unix: u64) -> Option<Principal> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh(&self.path);
        let hash = blake3::hash(presented);
        let mut found = None;
        for entry in &state.entries {
            // All of them, so that the time does not tell which.
            if entry.hash == hash {
                found = Some(entry);
            }
        }
        let entry = found.filter(|entry| entry.expires.is_none_or(|expires| now_unix < expires))?;
        let name = entry.name.clone().unwrap_or_else(|| entry.hash.to_hex()[..8].to_owned());
        Some(Principal { name, scope_prefix: entry.scope_prefix.clone() })
    }

    /// What is wrong with the file now, while the tokens of its last good state are in force; `None` where nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh(&self.path);
        state.problem.clone()
    }
}

impl State {
    fn refresh(&mut self, path: &Path) {
        let current = match std::fs::metadata(path) {
            Ok(metadata) => Stamp::of(&metadata),
            Err(error) => return self.take(Err(TokenError::Read { path: path.to_owned(), error })),
        };
        if self.stamp == Some(current) {
            return;
        }
        let read = read(path);
        // What the system could not do now it may do next time, though the file stays as it is.
        let is_of_file = !matches!(read, Ok(_) | Err(TokenError::Read { .. }));
        self.take(read);
        if is_of_file && current.is_settled() {
            self.stamp = Some(current);
        }
    }

    fn take(&mut self, read: Result<(Vec<Entry>, Stamp), TokenError>) {
        match read {
            Ok((entries, stamp)) => {
                *self = State { entries, stamp: stamp.is_settled().then_some(stamp), problem: None };
            }
            Err(TokenError::Read { path, error }) if error.kind() == io::ErrorKind::NotFound => {
                let problem = format!("the token file {} is gone: no token is good", path.display());
                *self = State { entries: Vec::new(), stamp: None, problem: Some(problem) };
            }
            Err(error) => {
                self.stamp = None;
                self.problem = Some(error.to_string());
            }
        }
    }
}

fn read(path: &Path) -> Result<(Vec<Entry>, Stamp), TokenError> {
    let failed = |error| TokenError::Read { path: path.to_owned(), error };
    // Never waiting for somebody to write into a pipe of this name.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let mut file = std::fs::File::from(file);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(TokenError::NotAFile(path.to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(TokenError::Open { path: path.to_owned(), mode });
    }
    let runner = rustix::process::geteuid().as_raw();
    if metadata.uid() != runner && metadata.uid() != 0 {
        return Err(TokenError::Owner { path: path.to_owned(), owner: metadata.uid(), runner });
    }
    let mut bytes = Vec::new();
    (&mut file).take(FILE_AT_MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_AT_MOST {
        return Err(TokenError::TooLarge(path.to_owned()));
    }
    let entries = parse(&bytes).map_err(|(number, problem)| TokenError::Line {
        path: path.to_owned(),
        number,
        problem,
    })?;
    // The stamp of before: where it was written meanwhile, the next look finds another.
    Ok((entries, Stamp::of(&metadata)))
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>, (usize, String)> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut lines = HashMap::new();
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let line = std::str::from_utf8(line).map_err(|_| (number, "is not UTF-8".to_owned()))?;
        let Some(line) = line.strip_suffix('\n') else {
            return Err((number, "has no line break at its end, so it may be half written".to_owned()));
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = parse_line(line).map_err(|problem| (number, problem))?;
        if let Some(first) = lines.insert(entry.hash, number) {
            return Err((number, format!("has the same token as line {first}")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Reads one line. What is said to be wrong repeats nothing of it: a token itself may stand there by mistake.
fn parse_line(line: &str) -> Result<Entry, String> {
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
    let hash = words.next().unwrap_or_default();
    if hash.starts_with(PREFIX) {
        return Err("holds a token itself where its hash belongs; revoke it and make another".into());
    }
    let hash = blake3::Hash::from_hex(hash)
        .map_err(|_| "does not begin with a hash of 64 hexadecimal digits".to_owned())?;
    let mut entry = Entry { hash, scope_prefix: None, expires: None, name: None };
    for word in words {
        let twice = match word.split_once('=') {
            Some(("scope", prefix)) => {
                check_scope(prefix).map_err(|problem| format!("has a scope that {problem}"))?;
                entry.scope_prefix.replace(prefix.to_owned()).is_some()
            }
            Some(("expires", seconds)) => {
                let plain = seconds.bytes().all(|byte| byte.is_ascii_digit());
                let seconds = seconds.parse().ok().filter(|_| plain);
                let seconds = seconds.ok_or("has an expiry that is no number of seconds since 1970")?;
                entry.expires.replace(seconds).is_some()
            }
            Some(("name", name)) if is_name(name) => entry.name.replace(name.to_owned()).is_some(),
            Some(("name", _)) => return Err(format!("has a bad name: {}", TokenError::Name)),
            _ => return Err("has a word that is none of scope=, expires= and name=".into()),
        };
        if twice {
            return Err("says something twice".into());
        }
    }
    Ok(entry)
}

fn check_scope(prefix: &str) -> Result<(), String> {
    match Scope::new(prefix) {
        Err(BadName::Empty) => Err("is empty; leave it away for every scope".into()),
        Err(error) => Err(format!("is none: {error}")),
        Ok(_) if prefix.contains(' ') => Err("contains a blank, which this file cannot hold".into()),
        Ok(_) => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    let fits = (1..=NAME_AT_MOST).contains(&name.len());
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Makes a token: the secret, which is told once and kept nowhere, and the line for the file, without its line break.
/// `expires` is in seconds since the Unix epoch.
///
/// # Errors
/// [`TokenError::Scope`], [`TokenError::Name`], [`TokenError::Random`].
pub fn new_token(
    scope: Option<&str>,
    expires: Option<u64>,
    name: Option<&str>,
) -> Result<(String, String), TokenError> {
    if let Some(prefix) = scope {
        check_scope(prefix).map_err(TokenError::Scope)?;
    }
    if name.is_some_and(|name| !is_name(name)) {
        return Err(TokenError::Name);
    }
    let mut random = [0; RANDOM_BYTES];
    fill_random(&mut random).map_err(TokenError::Random)?;
    let mut secret = String::with_capacity(PREFIX.len() + 2 * RANDOM_BYTES);
    secret.push_str(PREFIX);
    for byte in random {
        // Writing into a text cannot fail.
        let _ = write!(secret, "{byte:02x}");
    }
    let mut line = blake3::hash(secret.as_bytes()).to_hex().to_string();
    for (key, value) in [
        ("scope", scope.map(str::to_owned)),
        ("expires", expires.map(|seconds| seconds.to_string())),
        ("name", name.map(str::to_owned)),
    ] {
        if let Some(value) = value {
            let _ = write!(line, " {key}={value}");
        }
    }
    Ok((secret, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct File {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl File {
        fn new(text: &str) -> File {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tokens");
            let file = File { _folder: folder, path };
            file.replace(text);
            file
        }

        /// By renaming, as editors do.
        fn replace(&self, text: &str) {
            let aside = self.path.with_extension("new");
            std::fs::write(&aside, text).unwrap();
            std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&aside, &self.path).unwrap();
        }

        fn mode(&self, mode: u32) {
            std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(mode)).unwrap();
        }

        fn tokens(&self) -> Tokens {
            Tokens::open(&self.path).unwrap()
        }
    }

    fn made(scope: Option<&str>, expires: Option<u64>, name: Option<&str>) -> (String, String) {
        let (secret, line) = new_token(scope, expires, name).unwrap();
        (secret, format!("{line}\n"))
    }

    fn is_good(tokens: &Tokens, secret: &str) -> bool {
        tokens.check(secret.as_bytes(), 0).is_some()
    }

    #[test]
    fn a_token_is_random_and_its_file_does_not_hold_it() {
        let (secret, line) = new_token(Some("team"), Some(17), Some("ci")).unwrap();
        assert_eq!(secret.len(), 4 + 64);
        assert!(secret.starts_with(PREFIX) && !line.contains(&secret[4..]));
        assert!(line.ends_with(" scope=team expires=17 name=ci"));
        assert_ne!(secret, new_token(None, None, None).unwrap().0);
        let file = File::new(&format!("# for the build\n\n  {line}\r\n"));
        let principal = file.tokens().check(secret.as_bytes(), 16).unwrap();
        assert_eq!(principal, Principal { name: "ci".into(), scope_prefix: Some("team".into()) });
        let shown = format!("{:?}", file.tokens());
        assert!(!shown.contains(&secret), "{shown}");
    }

    #[test]
    fn only_the_whole_token_is_good() {
        let (secret, line) = made(None, None, None);
        let (other, _) = made(None, None, None);
        let file = File::new(&line);
        let tokens = file.tokens();
        let hash = line.trim();
        for wrong in ["", PREFIX, &secret[..67], &format!("{secret}0"), &other, hash, &secret.to_uppercase()]
        {
            assert!(!is_good(&tokens, wrong), "{wrong}");
        }
        let principal = tokens.check(secret.as_bytes(), u64::MAX).unwrap();
        assert_eq!(principal.name, hash[..8]);
        assert!(principal.may_use(&Scope::new("anything").unwrap()));
    }

    #[test]
    fn a_token_expires() {
        let (secret, line) = made(None, Some(100), None);
        let file = File::new(&line);
        let tokens = file.tokens();
        let good: Vec<bool> =
            [0, 99, 100, 101].map(|now| tokens.check(secret.as_bytes(), now).is_some()).into();
        assert_eq!(good, [true, true, false, false]);
    }

    #[test]
    fn tokens_rotate_and_are_revoked_without_a_restart() {
        let (old, old_line) = made(None, None, None);
        let (new, new_line) = made(None, None, None);
        let file = File::new(&old_line);
        let tokens = file.tokens();
        let good = || [is_good(&tokens, &old), is_good(&tokens, &new)];
        assert_eq!(good(), [true, false]);
        // Both for a while, as a rotation wants it; appended, as `token new` does.
        let mut appended = std::fs::OpenOptions::new().append(true).open(&file.path).unwrap();
        io::Write::write_all(&mut appended, new_line.as_bytes()).unwrap();
        assert_eq!(good(), [true, true]);
        file.replace(&new_line);
        assert_eq!(good(), [false, true]);
        // In place, of the same size, within one step of the clock.
        for _ in 0..50 {
            std::fs::write(&file.path, &old_line).unwrap();
            assert_eq!(good(), [true, false]);
            std::fs::write(&file.path, &new_line).unwrap();
            assert_eq!(good(), [false, true]);
        }
        assert_eq!(tokens.problem(), None);
        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(good(), [false, false]);
        assert!(tokens.problem().unwrap().contains("gone"));
        file.replace(&old_line);
        assert_eq!(good(), [true, false]);
        assert_eq!(tokens.problem(), None);
    }

    #[test]
    fn a_bad_change_keeps_the_last_good_state_and_is_reported() {
        let (old, old_line) = made(None, None, None);
        let (new, new_line) = made(None, None, None);
        let file = File::new(&old_line);
        let tokens = file.tokens();
        let good = || [is_good(&tokens, &old), is_good(&tokens, &new)];

        file.replace(&format!("{new_line}garbage\n"));
        assert_eq!(good(), [true, false]);
        assert!(tokens.problem().unwrap().starts_with("line 2 "), "{:?}", tokens.problem());

        file.replace(&new_line);
        file.mode(0o602);
        assert_eq!(good(), [true, false]);
        assert!(tokens.problem().unwrap().contains("chmod 600"));
        // Closed again, with nothing else changed, it is taken.
        file.mode(0o600);
        assert_eq!(good(), [false, true]);
        assert_eq!(tokens.problem(), None);

        // Half a line is not half a scope.
        file.replace(&format!("{} scope=acme/te", old_line.trim()));
        assert_eq!(good(), [false, true]);
        assert!(tokens.problem().unwrap().contains("half written"));
    }

    #[test]
    fn a_file_that_is_not_in_order_is_refused_at_the_start() {
        let (secret, line) = made(None, None, None);
        let hash = line.trim();
        let bad = [
            "garbage".to_owned(),
            hash[..63].to_owned(),
            format!("{hash} scope="),
            format!("{hash} scope=a scope=b"),
            format!("{hash} expires=soon"),
            format!("{hash} expires=-1"),
            format!("{hash} expires=+1"),
            format!("{hash} expires=99999999999999999999"),
            format!("{hash} name="),
            format!("{hash} name=a\u{1b}[31m"),
            format!("{hash} scope=a b"),
            format!("{hash} owner=me"),
            format!("{hash}\n{hash}"),
            secret.clone(),
        ];
        for text in bad {
            let file = File::new(&format!("# one\n{text}\n"));
            let error = Tokens::open(&file.path).unwrap_err();
            let number = if text.contains('\n') { 3 } else { 2 };
            assert!(
                matches!(error, TokenError::Line { number: found, .. } if found == number),
                "{text}: {error}"
            );
            assert!(!error.to_string().contains(&secret) && !error.to_string().contains('\u{1b}'));
        }
        let file = File::new(&line);
        for mode in [0o640, 0o604, 0o620, 0o610, 0o601] {
            file.mode(mode);
            assert!(matches!(Tokens::open(&file.path), Err(TokenError::Open { .. })), "{mode:o}");
        }
        file.mode(0o400);
        file.tokens();
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Tokens::open(folder.path()), Err(TokenError::NotAFile(_))));
        assert!(matches!(Tokens::open(&folder.path().join("none")), Err(TokenError::Read { .. })));
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(matches!(Tokens::open(&pipe), Err(TokenError::NotAFile(_))));
        let large = File::new(&"#\n".repeat((FILE_AT_MOST / 2 + 1) as usize));
        assert!(matches!(Tokens::open(&large.path), Err(TokenError::TooLarge(_))));
    }

    #[test]
    fn a_scope_prefix_ends_at_a_border() {
        let may = |prefix: &str, scope: &str| {
            let principal = Principal { name: "n".into(), scope_prefix: Some(prefix.into()) };
            principal.may_use(&Scope::new(scope).unwrap())
        };
        for scope in ["team", "team/a", "team:a", "team/", "team/a/b"] {
            assert!(may("team", scope), "{scope}");
        }
        for scope in ["tea", "teams", "team-a", "team a", "Team", "a/team", "team.a"] {
            assert!(!may("team", scope), "{scope}");
        }
        assert!(may("team/", "team/a") && may("team:", "team:a"));
        assert!(!may("team/", "team") && !may("team/", "team:a"));
        assert!(may("té", "té/a") && !may("té", "tén"));
    }

    #[test]
    fn what_a_line_cannot_hold_is_not_made() {
        for scope in ["", "a b", "a\nb", &"s".repeat(513)] {
            assert!(matches!(new_token(Some(scope), None, None), Err(TokenError::Scope(_))), "{scope}");
        }
        for name in ["", "a b", "a\n", "a=b#\u{7}", &"n".repeat(65)] {
            assert!(matches!(new_token(None, None, Some(name)), Err(TokenError::Name)), "{name}");
        }
        // Whatever is made is read.
        for scope in ["a=b", "#x", "é/:", "scope=a"] {
            let (secret, line) = made(Some(scope), Some(u64::MAX), Some("n_1.x-Y"));
            let principal = File::new(&line).tokens().check(secret.as_bytes(), 0).unwrap();
            assert_eq!(principal.scope_prefix.as_deref(), Some(scope));
        }
    }
}
