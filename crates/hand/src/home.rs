//! The home: the folder that holds the jobs of one hand.
//!
//! | name | what |
//! |---|---|
//! | `home.json` | identity, sandbox generation, secret; made once |
//! | `jobs/ID/` | one folder a job; its files are listed at [`crate::job`] |
//! | `open/ID` | a lock file for each job that has a keeper; the warden holds it, and its death frees it |
//! | `fence.json`, `fence.lock` | the highest generation seen of each scope, and the lock admission shares |
//! | `marks` | mutation marks, appended and synced |
//! | `checkpoints/CALL/` | what resumable commands saved; outlives the attempts of a call |
//! | `tombstones/ID.json` | what is kept of a removed job, so that its key is still answered |
//! | `tmp/` | admissions being prepared |

use crate::files;
use crate::job::Job;
use outlast_core::bytes::{hex, unhex};
use outlast_core::id::{CALL_HASH_BYTES, CallHash, JobId, SandboxGeneration, Scope};
use outlast_core::spec::Digest;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
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
    /// It was made by a later version, or is damaged.
    #[error("the home for jobs, {path}, cannot be read: {why}")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// The version of `home.json`.
const HOME_SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Identity {
    schema: u32,
    id: String,
    sandbox_generation: SandboxGeneration,
    secret: String,
}

/// An open home.
pub struct Home {
    path: PathBuf,
    dir: OwnedFd,
    jobs: OwnedFd,
    open: OwnedFd,
    id: String,
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
        let unusable = |source| HomeError::Unusable { path: path.to_owned(), source };
        match Self::open_existing(path) {
            Ok(Some(home)) => Ok(home),
            Ok(None) => {
                make(path).map_err(unusable)?;
                Self::open_existing(path)?.ok_or_else(|| unusable(io::ErrorKind::NotFound.into()))
            }
            Err(error) => Err(error),
        }
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

    /// Opens a job; `None` where there is none of that id.
    ///
    /// # Errors
    /// What the system says, or that its spec cannot be read.
    pub fn job(&self, id: JobId) -> io::Result<Option<Job>> {
        Job::open(self, id)
    }
}

/// Makes a home. Several processes may do so at once: the identity is published by a rename that refuses to
/// replace, and the losers use the winner's.
fn make(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let dir = files::open_dir(path)?;
    let dir = dir.as_fd();
    for name in ["jobs", "open", "tmp", "checkpoints", "tombstones"] {
        files::ensure_dir(dir, name)?;
    }
    let mut random = [0u8; 40];
    fill_random(&mut random)?;
    let identity = Identity {
        schema: HOME_SCHEMA,
        id: hex(&random[..8]),
        sandbox_generation: SandboxGeneration(1),
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
