//! The home: the folder that holds the jobs of one hand.
//!
//! | name | what |
//! |---|---|
//! | `home.json` | identity, sandbox generation, secret; made once |
//! | `jobs/ID/` | one folder a job; its files are listed at [`crate::job`] |
//! | `open/ID` | a lock file for each job that has a keeper; the warden holds it, and its death frees it |
//! | `fences/HASH.json`, `fences/HASH.lock` | what was fenced of one scope, and the lock that admissions to it share |
//! | `fences/HASH.gate` | there while somebody waits for that lock alone: who comes later waits behind it |
//! | `fence.json` | highest generations as earlier versions kept them, read on |
//! | `dropped.jsonl`, `dropped.1.jsonl` | requests that were dropped as stale, newest last; bounded |
//! | `runner.lock`, `runner.json`, `runner.sock` | the runner's: held while it serves, how often one was started, its socket |
//! | `marks` | mutation marks, appended and synced |
//! | `checkpoints/CALL/` | what resumable commands saved; outlives the attempts of a call |
//! | `tombstones/ID.json` | what is kept of a removed job, so that its key is still answered |
//! | `tmp/` | admissions being prepared |

use crate::files;
use crate::job::Job;
use outlast_core::bytes::{hex, unhex};
use outlast_core::id::{BrainId, CALL_HASH_BYTES, CallHash, JobId, SandboxGeneration, Scope};
use outlast_core::spec::Digest;
use rustix::fs::AtFlags;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use thiserror::Error;

/// Why a home cannot be used.
#[derive(Debug, Error)]
pub enum HomeError {
    /// No variable says where it is.
    #[error("no home for jobs: set OUTLAST_HOME (or HOME) to a folder on a local disk")]
    Nowhere,
    /// It cannot be made or opened.
    #[error("the home for jobs, {path}, cannot be used")]
    Unusable {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It belongs to another sandbox, or to another incarnation of this one: a folder that was restored or used again
    /// must not answer for what it does not hold.
    #[error(
        "the home for jobs, {path}, is that of sandbox {here}, generation {here_generation}, not of sandbox {asked}, \
         generation {asked_generation}"
    )]
    OtherSandbox {
        /// Where.
        path: PathBuf,
        /// The sandbox it was made for.
        here: String,
        /// The generation it was made for.
        here_generation: SandboxGeneration,
        /// The sandbox it was to be opened for.
        asked: String,
        /// The generation it was to be opened for.
        asked_generation: SandboxGeneration,
    },
    /// What cannot be the id of a sandbox.
    #[error(
        "`{shown}` cannot name a sandbox: an id has 1 to {SANDBOX_ID_LIMIT} of the characters A-Z a-z 0-9 . _ : -"
    )]
    BadSandbox {
        /// Its beginning.
        shown: String,
    },
    /// It was made by a later version, or is damaged.
    #[error("the home for jobs, {path}, cannot be read: {why}")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// The most bytes a sandbox's id may have.
pub const SANDBOX_ID_LIMIT: usize = 128;

/// The version of `home.json`.
const HOME_SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Identity {
    schema: u32,
    id: String,
    /// Absent where the home is its own sandbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sandbox: Option<String>,
    sandbox_generation: SandboxGeneration,
    secret: String,
}

/// Whom a home is opened for. What is `None` is whatever the home has.
#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    sandbox: Option<&'a str>,
    generation: Option<SandboxGeneration>,
}

/// An open home.
pub struct Home {
    path: PathBuf,
    dir: OwnedFd,
    jobs: OwnedFd,
    open: OwnedFd,
    tmp: OnceLock<OwnedFd>,
    fences: OnceLock<OwnedFd>,
    tombstones: OnceLock<OwnedFd>,
    id: String,
    sandbox: String,
    sandbox_generation: SandboxGeneration,
    secret: [u8; 32],
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").field("path", &self.path).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Home {
    /// Where the home is: `OUTLAST_HOME`, else `outlast` below `XDG_STATE_HOME`, else `.local/state/outlast` below
    /// `HOME`.
    ///
    /// # Errors
    /// [`HomeError::Nowhere`] where none of them is set to an absolute path.
    pub fn locate() -> Result<PathBuf, HomeError> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(home) = std::env::var_os("OUTLAST_HOME").filter(|home| !home.is_empty()) {
            // A relative one would mean another home in each folder; made absolute it is at least visible in answers.
            return std::path::absolute(PathBuf::from(home)).map_err(|_| HomeError::Nowhere);
        }
        absolute("XDG_STATE_HOME")
            .map(|state| state.join("outlast"))
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state/outlast")))
            .ok_or(HomeError::Nowhere)
    }

    /// Opens a home, and makes what is missing of it, readable by its owner alone.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn open(path: &Path) -> Result<Home, HomeError> {
        Self::open_as(path, None, None)
    }

    /// Opens a home for one incarnation of one sandbox, and makes what is missing of it.
    ///
    /// A new home is made for this sandbox and generation; for its own id and generation 1 where they are `None`. One
    /// that exists must have been made for them; `None` takes what it has.
    ///
    /// # Errors
    /// [`HomeError`]; [`HomeError::OtherSandbox`] where the home is another's.
    pub fn open_as(
        path: &Path,
        sandbox: Option<&str>,
        generation: Option<SandboxGeneration>,
    ) -> Result<Home, HomeError> {
        if let Some(id) = sandbox.filter(|id| !is_sandbox_id(id)) {
            return Err(HomeError::BadSandbox { shown: id.chars().take(80).map(visible).collect() });
        }
        let unusable = |source| HomeError::Unusable { path: path.to_owned(), source };
        let asked = Asked { sandbox, generation };
        let home = match Self::open_existing(path)? {
            Some(home) => home,
            None => {
                make(path, asked).map_err(unusable)?;
                // Whoever was first to publish its identity decides, so it is compared like one that was there.
                Self::open_existing(path)?.ok_or_else(|| unusable(io::ErrorKind::NotFound.into()))?
            }
        };
        let (asked, asked_generation) =
            (sandbox.unwrap_or(&home.sandbox), generation.unwrap_or(home.sandbox_generation));
        if asked != home.sandbox || asked_generation != home.sandbox_generation {
            return Err(HomeError::OtherSandbox {
                path: path.to_owned(),
                asked: asked.to_owned(),
                asked_generation,
                here: home.sandbox,
                here_generation: home.sandbox_generation,
            });
        }
        Ok(home)
    }

    /// Opens a home where there is one.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn open_existing(path: &Path) -> Result<Option<Home>, HomeError> {
        let unusable = |source| HomeError::Unusable { path: path.to_owned(), source };
        let unreadable = |why: String| HomeError::Unreadable { path: path.to_owned(), why };
        let dir = match files::open_dir(path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(error)),
        };
        let Some(text) = files::read_small(dir.as_fd(), "home.json").map_err(unusable)? else {
            return Ok(None);
        };
        let identity: Identity = serde_json::from_slice(&text)
            .map_err(|error| unreadable(format!("home.json does not parse ({error})")))?;
        if identity.schema > HOME_SCHEMA {
            return Err(unreadable(format!(
                "it was made by a later version (schema {}); use that one",
                identity.schema
            )));
        }
        let secret = unhex(&identity.secret)
            .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
            .ok_or_else(|| unreadable("home.json holds no secret".to_owned()))?;
        let jobs = files::open_subdir(dir.as_fd(), "jobs").map_err(unusable)?;
        let open = files::open_subdir(dir.as_fd(), "open").map_err(unusable)?;
        Ok(Some(Home {
            path: path.to_owned(),
            dir,
            jobs,
            open,
            tmp: OnceLock::new(),
            fences: OnceLock::new(),
            tombstones: OnceLock::new(),
            sandbox: identity.sandbox.unwrap_or_else(|| identity.id.clone()),
            id: identity.id,
            sandbox_generation: identity.sandbox_generation,
            secret,
        }))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its identity: 16 hexadecimal digits, made with it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The sandbox it stands for: the one it was made for, else its own id.
    #[must_use]
    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    /// Which incarnation it is.
    #[must_use]
    pub fn sandbox_generation(&self) -> SandboxGeneration {
        self.sandbox_generation
    }

    /// The folder itself.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The folder of jobs.
    #[must_use]
    pub fn jobs_dir(&self) -> BorrowedFd<'_> {
        self.jobs.as_fd()
    }

    /// The folder of liveness locks.
    #[must_use]
    pub fn open_dir(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }

    /// The folder of what is being prepared.
    pub(crate) fn tmp_dir(&self) -> io::Result<BorrowedFd<'_>> {
        once(&self.tmp, || files::open_subdir(self.dir(), "tmp"))
    }

    /// The folder of tombstones.
    pub(crate) fn tombstones_dir(&self) -> io::Result<BorrowedFd<'_>> {
        once(&self.tombstones, || files::open_subdir(self.dir(), "tombstones"))
    }

    /// The folder of fences, made where an earlier version made the home.
    pub(crate) fn fences_dir(&self) -> io::Result<BorrowedFd<'_>> {
        once(&self.fences, || match files::open_subdir(self.dir(), "fences") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                files::ensure_dir(self.dir(), "fences")?;
                // A record in it is durable only where the folder is.
                rustix::fs::fsync(self.dir())?;
                files::open_subdir(self.dir(), "fences")
            }
            other => other,
        })
    }

    /// The part of a job's name that stands for scope and key.
    #[must_use]
    pub fn call_hash_of_key(&self, scope: &Scope, key: &str) -> CallHash {
        self.call_hash(&[b"key", scope.as_str().as_bytes(), key.as_bytes()])
    }

    /// The part of a job's name that stands for a call that is its own identity.
    #[must_use]
    pub fn call_hash_of_call(&self, identity: &Digest) -> CallHash {
        self.call_hash(&[b"call", &identity.0])
    }

    fn call_hash(&self, parts: &[&[u8]]) -> CallHash {
        let hash = self.keyed(parts);
        let mut short = [0; CALL_HASH_BYTES];
        short.copy_from_slice(&hash.as_bytes()[..CALL_HASH_BYTES]);
        CallHash(short)
    }

    /// The hash under which a secret's value enters a digest: without the home's secret it tells nothing about it.
    #[must_use]
    pub fn secret_hash(&self, value: &[u8]) -> String {
        hex(&self.keyed(&[b"secret value", value]).as_bytes()[..16])
    }

    /// The name of what is kept of a scope.
    #[must_use]
    pub fn scope_hash(&self, scope: &Scope) -> String {
        hex(&self.keyed(&[b"scope", scope.as_str().as_bytes()]).as_bytes()[..16])
    }

    /// The name of what is kept of a brain.
    pub(crate) fn brain_hash(&self, brain: &BrainId) -> String {
        hex(&self.keyed(&[b"brain", brain.as_str().as_bytes()]).as_bytes()[..16])
    }

    fn keyed(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }

    /// The ids of all jobs here, in no order.
    ///
    /// # Errors
    /// What the system says.
    pub fn jobs(&self) -> io::Result<Vec<JobId>> {
        Ok(files::names(self.jobs_dir())?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The ids of the jobs of one call, oldest first.
    ///
    /// # Errors
    /// What the system says.
    pub fn jobs_of_call(&self, call: CallHash) -> io::Result<Vec<JobId>> {
        let prefix = format!("{call}.");
        let mut ids: Vec<JobId> = files::names(self.jobs_dir())?
            .iter()
            .filter(|name| name.starts_with(&prefix))
            .filter_map(|name| name.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The latest of the attempts that follow each other from `first` on; `None` where `first` itself is not here. Nothing
    /// is listed for it: an earlier attempt is kept for as long as a later one is, so there are no gaps to look behind.
    ///
    /// # Errors
    /// What the system says.
    pub fn latest_attempt(&self, first: JobId) -> io::Result<Option<JobId>> {
        let mut latest = None;
        let mut next = first;
        while latest != Some(next) && self.has_job(next)? {
            latest = Some(next);
            next = next.next_attempt();
        }
        Ok(latest)
    }

    /// Whether a job of this id is here.
    ///
    /// # Errors
    /// What the system says.
    pub fn has_job(&self, id: JobId) -> io::Result<bool> {
        match rustix::fs::statat(self.jobs_dir(), id.to_string().as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a job; `None` where there is none of that id.
    ///
    /// # Errors
    /// What the system says, or that its spec cannot be read.
    pub fn job(&self, id: JobId) -> io::Result<Option<Job>> {
        Job::open(self, id)
    }
}

/// What is opened when it is first needed, and once.
fn once(cell: &OnceLock<OwnedFd>, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<BorrowedFd<'_>> {
    if let Some(dir) = cell.get() {
        return Ok(dir.as_fd());
    }
    let dir = open()?;
    Ok(cell.get_or_init(|| dir).as_fd())
}

fn is_sandbox_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=SANDBOX_ID_LIMIT).contains(&id.len()) && id.bytes().all(allowed)
}

fn visible(c: char) -> char {
    if c.is_control() { '\u{fffd}' } else { c }
}

/// Makes a home. Several processes may do so at once: the identity is published by a rename that refuses to
/// replace, and the losers use the winner's.
fn make(path: &Path, asked: Asked<'_>) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let dir = files::open_dir(path)?;
    let dir = dir.as_fd();
    for name in ["jobs", "open", "tmp", "checkpoints", "tombstones", "fences"] {
        files::ensure_dir(dir, name)?;
    }
    crate::marks::make(dir)?;
    let mut random = [0u8; 40];
    fill_random(&mut random)?;
    let identity = Identity {
        schema: HOME_SCHEMA,
        id: hex(&random[..8]),
        sandbox: asked.sandbox.map(str::to_owned),
        sandbox_generation: asked.generation.unwrap_or(SandboxGeneration(1)),
        secret: hex(&random[8..]),
    };
    let aside = format!("home.{}.new", hex(&random[..8]));
    files::create_new(dir, &aside, &serde_json::to_vec(&identity)?)?.sync_all()?;
    match files::rename_new(dir, &aside, dir, "home.json") {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rustix::fs::unlinkat(dir, &aside, rustix::fs::AtFlags::empty())?;
        }
        Err(error) => return Err(error),
    }
    rustix::fs::fsync(dir)?;
    // The folder that names this one, so that the home itself is found after a power cut.
    if let Some(parent) = path.parent() {
        rustix::fs::fsync(files::open_dir(parent)?)?;
    }
    Ok(())
}

/// Fills `bytes` with the kernel's random numbers.
///
/// # Errors
/// What the system says.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        let rest = &mut bytes[filled..];
        filled += match rustix::rand::getrandom(rest, flags) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
    }
    Ok(())
}
