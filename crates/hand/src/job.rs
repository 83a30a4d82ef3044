//! One job's folder, and what a look at it finds.
//!
//! | name | who writes it | what |
//! |---|---|---|
//! | `spec.json` | admission, synced before the folder is published | the immutable command |
//! | `stdin` | admission, synced | standard input, where it was spooled |
//! | `start.json` | who claims the start, exclusively | the start mark |
//! | `ledger.jsonl` | the scribe | what happened, a line each, not synced |
//! | `log.EPOCH.BASE` | the scribe | the byte log's segments; none for a job without output |
//! | `committed` | the scribe, after each sync of the log | the cursor up to which the log is synced |
//! | `receipt.json` | the scribe, or a settler; synced | how it ended |
//! | `attested.json` | a settler; synced | a person's word that it is dead |
//! | `control` | the warden | the socket it listens on while it lives |
//! | `scribe.lock` | the scribe | held while it lives |
//! | `settler.lock` | a settler | held while it settles |
//! | `stdin.lock` | callers that give input | held in turn, so that no two begin at one offset |
//! | `brains/HASH` | a later admission, an acknowledgement; synced | whether a brain keeps the job; see [`crate::brains`] |
//! | `handed` | who answered a caller | the result was handed over whole |
//! | `ending` | the first settler that sends TERM | when, by the monotonic clock |
//! | `discarded` | a cancel; its folder synced | what the command saved was given up: no attempt continues from it |
//! | `script`, `bash_env`, `stages`, `progress` | the keeper, the shell, the command | what a script needs, and what it reports |

pub use crate::contain::Activity;
use crate::files;
use crate::home::Home;
use crate::{clock, log};
use outlast_core::id::{BootId, Cursor, JobId};
use outlast_core::ledger::{StartMark, Summary};
use outlast_core::progress::{Progress, last_report};
use outlast_core::receipt::{Attestation, Receipt};
use outlast_core::spec::{SCHEMA, Spec};
use outlast_core::status::{JobFacts, Liveness};
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The names of a job folder's files.
pub mod name {
    /// See the module's table.
    pub const SPEC: &str = "spec.json";
    /// See the module's table.
    pub const STDIN: &str = "stdin";
    /// See the module's table.
    pub const START: &str = "start.json";
    /// See the module's table.
    pub const LEDGER: &str = "ledger.jsonl";
    /// See the module's table.
    pub const COMMITTED: &str = "committed";
    /// See the module's table.
    pub const RECEIPT: &str = "receipt.json";
    /// See the module's table.
    pub const ATTESTED: &str = "attested.json";
    /// See the module's table.
    pub const CONTROL: &str = "control";
    /// See the module's table.
    pub const SCRIBE_LOCK: &str = "scribe.lock";
    /// See the module's table.
    pub const SETTLER_LOCK: &str = "settler.lock";
    /// See the module's table.
    pub const HANDED: &str = "handed";
    /// See the module's table.
    pub const ENDING: &str = "ending";
    /// See the module's table.
    pub const DISCARDED: &str = "discarded";
    /// See the module's table.
    pub const BRAINS: &str = "brains";
    /// See the module's table.
    pub const SCRIPT: &str = "script";
    /// See the module's table.
    pub const BASH_ENV: &str = "bash_env";
    /// See the module's table.
    pub const STAGES: &str = "stages";
    /// See the module's table.
    pub const PROGRESS: &str = "progress";
}

/// The most of the progress file that is read, from its end.
const PROGRESS_TAIL: u64 = 64 << 10;

/// An open job folder.
#[derive(Debug)]
pub struct Job {
    id: JobId,
    spec: Spec,
    path: PathBuf,
    dir: OwnedFd,
    open: OwnedFd,
}

impl Job {
    pub(crate) fn open(home: &Home, id: JobId) -> io::Result<Option<Job>> {
        let dir = match files::open_subdir(home.jobs_dir(), &id.to_string()) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let path = home.path().join("jobs").join(id.to_string());
        let spec: Spec = match read_json(dir.as_fd(), name::SPEC)? {
            Some(spec) => spec,
            // Being removed: the spec goes first.
            None => return Ok(None),
        };
        if spec.schema > SCHEMA {
            let why =
                format!("job {id} was admitted by a later version (schema {}); use that one", spec.schema);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let open = home.open_dir().try_clone_to_owned()?;
        Ok(Some(Job { id, spec, path, dir, open }))
    }

    /// A job that was published just now, from what its publisher holds of it.
    pub(crate) fn published(home: &Home, spec: Spec, dir: OwnedFd) -> io::Result<Job> {
        let id = spec.job_id;
        let path = home.path().join("jobs").join(id.to_string());
        Ok(Job { id, spec, path, dir, open: home.open_dir().try_clone_to_owned()? })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    /// What it was admitted with.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its folder, open.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Reads all there is to know about it now.
    ///
    /// The order matters: liveness is read before the receipt, so that a keeper that finishes in between is seen by
    /// its receipt, and never as gone without one.
    ///
    /// # Errors
    /// What the system says, or that a file does not parse.
    pub fn look(&self) -> io::Result<JobFacts> {
        self.read_facts(true)
    }

    /// As [`Job::look`], for a settler that holds the warden's lock itself.
    pub(crate) fn look_under_lock(&self) -> io::Result<JobFacts> {
        self.read_facts(false)
    }

    fn read_facts(&self, ask_warden: bool) -> io::Result<JobFacts> {
        let mut facts = JobFacts {
            spec: self.spec.clone(),
            boot_id: boot_id()?,
            age: clock::unix_now().since(self.spec.admitted_at),
            start: None,
            warden: Liveness::NeverSeen,
            scribe: Liveness::NeverSeen,
            ledger: Summary::default(),
            receipt: self.receipt()?,
            attestation: read_json(self.dir(), name::ATTESTED)?,
            save_is_spent: self.save_is_spent(),
        };
        if facts.receipt.is_none() {
            facts.warden = match ask_warden {
                true => liveness(self.open.as_fd(), &self.id.to_string())?,
                false => Liveness::Gone,
            };
            facts.scribe = liveness(self.dir(), name::SCRIBE_LOCK)?;
            facts.start = self.start_mark()?;
            facts.receipt = self.receipt()?;
        } else {
            facts.start = self.start_mark()?;
        }
        facts.ledger = Summary::of(&files::read_small(self.dir(), name::LEDGER)?.unwrap_or_default());
        Ok(facts)
    }

    /// The receipt, once there is one.
    ///
    /// # Errors
    /// What the system says, or that it does not parse.
    pub fn receipt(&self) -> io::Result<Option<Receipt>> {
        read_json(self.dir(), name::RECEIPT)
    }

    /// The person's word, where one was given.
    ///
    /// # Errors
    /// What the system says, or that it does not parse.
    pub fn attestation(&self) -> io::Result<Option<Attestation>> {
        read_json(self.dir(), name::ATTESTED)
    }

    /// The start mark, once somebody took it. A mark without its text counts as taken by a keeper that died writing
    /// it, which is what an unreadable one is treated as.
    ///
    /// # Errors
    /// What the system says.
    pub fn start_mark(&self) -> io::Result<Option<StartMark>> {
        let Some(text) = files::read_small(self.dir(), name::START)? else { return Ok(None) };
        // The mark is published with its text (linked into place), so this fails only for a damaged one.
        serde_json::from_slice(&text).map(Some).map_err(|error| damaged(name::START, &error))
    }

    /// A reader of its output.
    ///
    /// # Errors
    /// What the system says.
    pub fn log(&self) -> io::Result<log::LogReader> {
        log::LogReader::open(&self.path)
    }

    /// The cursor up to which its output is known to be synced.
    ///
    /// # Errors
    /// What the system says.
    pub fn committed(&self) -> io::Result<Cursor> {
        if let Some(receipt) = self.receipt()? {
            return Ok(receipt.output.final_cursor);
        }
        let text = files::read_small(self.dir(), name::COMMITTED)?.unwrap_or_default();
        Ok(<[u8; 8]>::try_from(text.as_slice()).map_or(Cursor(0), |bytes| Cursor(u64::from_le_bytes(bytes))))
    }

    /// The last progress its command reported.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        read_progress(&self.work_dir().join(name::PROGRESS))
    }

    /// The folder of the files that the command itself may write: the job's own, unless it runs as somebody else.
    #[must_use]
    pub fn work_dir(&self) -> PathBuf {
        work_dir(&self.path, &self.spec)
    }

    /// What its processes use. Found by the leader's cgroup or its descendants; `None` where it does not run.
    #[must_use]
    pub fn activity(&self) -> Option<Activity> {
        let StartMark::Keeper(mark) = self.start_mark().ok()?? else { return None };
        let warden = rustix::process::Pid::from_raw(i32::try_from(mark.warden_pid).ok()?)?;
        if outlast_sys::pidfd::start_time(warden) != Some(mark.warden_start_time) {
            return None;
        }
        Some(crate::contain::activity_below(warden))
    }

    /// Whether what it saved was given up.
    #[must_use]
    pub fn save_is_discarded(&self) -> bool {
        rustix::fs::statat(self.dir(), name::DISCARDED, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether no attempt continues from what it saved any more: it was given up, or a later attempt has it.
    fn save_is_spent(&self) -> bool {
        let next = self.path.with_file_name(self.id.next_attempt().to_string());
        self.spec.work.resume && (self.save_is_discarded() || next.exists())
    }

    /// Whether a caller was given its result whole.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        rustix::fs::statat(self.dir(), name::HANDED, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Notes that a caller was given its result whole. Not synced: after a power cut it is handed over again, which
    /// the answer then says.
    pub fn mark_handed_over(&self) {
        let _ = files::create_new(self.dir(), name::HANDED, b"");
    }
}

/// See [`Job::work_dir`].
pub(crate) fn work_dir(job_path: &Path, spec: &Spec) -> PathBuf {
    match spec.work.user {
        None => job_path.to_owned(),
        Some(_) => {
            let home = job_path.parent().and_then(Path::parent).unwrap_or(job_path);
            home.join("work").join(spec.job_id.to_string())
        }
    }
}

pub(crate) fn read_progress(path: &Path) -> Option<Progress> {
    use std::io::{Read, Seek, SeekFrom};
    use std::os::unix::fs::OpenOptionsExt;
    // The command owns this file: it may be a fifo or a link by now.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let mut file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() {
        return None;
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(PROGRESS_TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(PROGRESS_TAIL).read_to_end(&mut tail).ok()?;
    last_report(&tail)
}

/// This boot.
///
/// `OUTLAST_TEST_BOOT_ID` stands in for it in builds with debug assertions, so that tests can restart the machine.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn boot_id() -> io::Result<BootId> {
    // No process outlives its boot.
    static THIS: OnceLock<BootId> = OnceLock::new();
    #[cfg(debug_assertions)]
    if let Some(pretended) = std::env::var("OUTLAST_TEST_BOOT_ID").ok().and_then(|id| BootId::new(id).ok()) {
        return Ok(pretended);
    }
    if let Some(id) = THIS.get() {
        return Ok(id.clone());
    }
    let id = BootId::new(outlast_sys::pidfd::boot_id()?).map_err(io::Error::other)?;
    Ok(THIS.get_or_init(|| id).clone())
}

/// The inode number of the PID namespace this process is in; 0 where `/proc` does not tell.
pub(crate) fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Whether the lock under this name is held. Taking it shared for a moment is the only way to ask; the keeper that
/// takes it exclusively waits for as long.
pub(crate) fn liveness(dir: BorrowedFd<'_>, name: &str) -> io::Result<Liveness> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOFOLLOW;
    match rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty()) {
        Ok(file) => match files::try_lock(&file, FlockOperation::NonBlockingLockShared)? {
            true => Ok(Liveness::Gone),
            false => Ok(Liveness::Alive),
        },
        Err(rustix::io::Errno::NOENT) => Ok(Liveness::NeverSeen),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<T>> {
    match files::read_small(dir, name)? {
        None => Ok(None),
        Some(text) => serde_json::from_slice(&text).map(Some).map_err(|error| damaged(name, &error)),
    }
}

fn damaged(name: &str, error: &serde_json::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} is damaged ({error}); it is kept as it is"))
}
