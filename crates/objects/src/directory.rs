//! Objects as files of a directory.
//!
//! ```text
//! ROOT/+temp/RANDOM          what is being written, or was when its writer ended
//! ROOT/output+/job-1+/0001   the object `output/job-1/0001`
//! ```
//!
//! Folders end in `+`, which no name contains. So `a` and `a/b` can both be stored, as in a bucket, and nothing that is
//! stored can be taken for what is being written.
//!
//! # Invariants
//!
//! 1. A file appears under an object's name by one rename that refuses to replace, after its bytes were synced.
//! 2. A creation or a removal is answered only after the folder was synced that shows it. This holds for what others did
//!    too: a name that is taken may have been taken a moment ago by a writer that has not synced it yet.
//! 3. Every folder on the way has been synced into its parent while it was the one that the file is now in.
//! 4. A folder may be removed at any time while it is empty. Whoever was about to use it finds out by an error and starts
//!    again from the root; once a file is in it, it stays.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, StatxFlags};
use rustix::io::Errno;
use tokio::sync::Semaphore;

use crate::memory::within;
use crate::{Backend, Created, Doing, Entry, Found, Meta, Name, ObjectError, Page, Span, Verb};

/// Calls at work at once. More would only queue for the disk, each with a thread and its bytes in memory.
const AT_ONCE: usize = 16;

/// How often a walk starts again because a folder on the way was removed under it.
const WALKS: usize = 64;

/// Folders remembered as synced. Beyond it all are forgotten, which costs a sync each.
const REMEMBERED_AT_MOST: usize = 4096;

/// How old a folder must be to be remembered as synced. Times of making have the grain of a tick of the kernel's clock, a
/// few milliseconds: a younger one might be removed and made again with the same.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// The folder of what is being written. It cannot be that of an object: those end in `+`.
const TEMP: &str = "+temp";

/// A store in a directory of a local file system.
///
/// Files have mode 0600, folders 0700, and links are followed nowhere below the root. Any number of processes may use one
/// directory. The whole of it must be one file system, and may be served to readers as it is.
///
/// Every call runs on a thread for blocking work: a creation waits two or three times for the disk, for milliseconds or,
/// behind other writers, seconds, and a read waits too where the bytes are not in memory. A call that was begun is carried
/// out even if its future is dropped.
///
/// A folder whose sync failed may show what the disk does not have, and a second sync would not tell. So after such a
/// failure this handle neither creates nor deletes any more; reading goes on.
pub struct Directory {
    root: Arc<Root>,
    turns: Arc<Semaphore>,
}

struct Root {
    path: PathBuf,
    fd: OwnedFd,
    temp: OwnedFd,
    synced: Mutex<HashMap<String, Identity>>,
    sync_failed: AtomicBool,
}

/// What tells a folder from another of the same path, made after it was removed. A number of an inode is used again, the
/// time of its making is not.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
    born: (i64, u32),
}

impl Identity {
    fn is_settled(&self) -> bool {
        let (Ok(seconds), nanoseconds) = (u64::try_from(self.born.0), self.born.1) else { return false };
        let born = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        SystemTime::now().duration_since(born).is_ok_and(|age| age >= SETTLED_AFTER)
    }
}

/// The folders from the root to an object, the nearest last.
struct Way {
    folders: Vec<OwnedFd>,
}

impl Way {
    fn last<'a>(&'a self, root: &'a Root) -> &'a OwnedFd {
        self.folders.last().unwrap_or(&root.fd)
    }
}

/// What a system call answered, and what is known of its meaning.
#[derive(Debug)]
enum Fault {
    /// It says nothing about an object.
    Io(io::Error),
    /// Something else is where a file or a folder of ours should be.
    Foreign,
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        match errno {
            Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::NXIO => Fault::Foreign,
            other => Fault::Io(other.into()),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

impl Fault {
    fn is_missing(&self) -> bool {
        matches!(self, Fault::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    fn during(self, verb: Verb, name: &Name) -> ObjectError {
        match self {
            Fault::Foreign => ObjectError::Damaged {
                name: name.clone(),
                problem: "something that is no object is in its place",
            },
            Fault::Io(error) => refused(verb, error),
        }
    }
}

fn refused(verb: Verb, error: io::Error) -> ObjectError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ObjectError::Denied { verb, source: error.into() }
        }
        // What fails for lack of room or of something else that comes back; and what the disk failed at, since every
        // attempt uses a new file.
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::OutOfMemory
        | io::ErrorKind::Interrupted
        | io::ErrorKind::TimedOut
        | io::ErrorKind::StaleNetworkFileHandle
        | io::ErrorKind::NotFound => ObjectError::unavailable(verb, true, error),
        _ => {
            let errno = Errno::from_io_error(&error);
            let passing =
                errno.is_some_and(|e| [Errno::IO, Errno::MFILE, Errno::NFILE, Errno::AGAIN].contains(&e));
            ObjectError::unavailable(verb, passing, error)
        }
    }
}

impl Directory {
    /// Opens the store at `path`, and makes what is missing of it.
    ///
    /// # Errors
    /// [`ObjectError::Denied`] or [`ObjectError::Unavailable`], with what the system answered.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Directory, ObjectError> {
        let path = path.into();
        let root = blocking(Verb::Open, move || {
            Root::open(&path).map_err(|error| refused(Verb::Open, about(&path, error)))
        })
        .await?;
        Ok(Directory { root: Arc::new(root), turns: Arc::new(Semaphore::new(AT_ONCE)) })
    }

    async fn run<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl FnOnce(&Root) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|closed| ObjectError::unavailable(verb, false, closed))?;
        let root = Arc::clone(&self.root);
        blocking(verb, move || {
            let _turn = turn;
            work(&root)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    verb: Verb,
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|lost| Err(ObjectError::unavailable(verb, false, lost)))
}

/// The same error, saying which path it is about.
fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Opens a folder to list it, sync it and go on from it; never through a link.
fn open_folder(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn make_folder(parent: impl AsFd, name: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    }
}

impl Root {
    fn open(path: &Path) -> io::Result<Root> {
        let path = std::path::absolute(path)?;
        let missing: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        // Above the root it is synced what was made, and as far as may be what was there: another call may have made it a
        // moment ago.
        for above in path.ancestors().skip(1) {
            let made_in_it = missing.iter().any(|made| made.parent() == Some(above));
            match File::open(above).and_then(|folder| folder.sync_all()) {
                Err(error) if made_in_it => return Err(error),
                _ => {}
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        make_folder(&fd, TEMP)?;
        let temp = open_folder(&fd, TEMP)?;
        rustix::fs::fsync(&fd)?;
        let (synced, sync_failed) = (Mutex::default(), AtomicBool::new(false));
        Ok(Root { path, fd, temp, synced, sync_failed })
    }

    fn create(&self, name: &Name, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.writable(Verb::Put)?;
        self.try_create(name, bytes).map_err(|fault| fault.during(Verb::Put, name))
    }

    fn try_create(&self, name: &Name, bytes: &[u8]) -> Result<Created, Fault> {
        let leaf = leaf_of(name);
        let mut way = self.make_way(name)?;
        // Objects named by their content are mostly there already: then their bytes need not be written to find out.
        let mut draft = None;
        match rustix::fs::statat(way.last(self), leaf, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => draft = Some(Draft::write(&self.temp, bytes)?),
            Err(errno) => return Err(errno.into()),
            Ok(_) => {}
        }
        let mut created = Created::Exists;
        if let Some(mut draft) = draft {
            let mut published = draft.publish(way.last(self), leaf);
            for _ in 0..WALKS {
                if published != Err(Errno::NOENT) {
                    break;
                }
                way = self.make_way(name)?;
                published = draft.publish(way.last(self), leaf);
            }
            match published {
                Ok(()) => created = Created::New { version: None },
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.sync(way.last(self))?;
        Ok(created)
    }

    fn read(&self, name: &Name, span: Option<Span>) -> Result<Found, ObjectError> {
        let file = self.open_object(name).map_err(|fault| match fault {
            fault if fault.is_missing() => ObjectError::NotFound { name: name.clone() },
            fault => fault.during(Verb::Get, name),
        })?;
        let failed = |error| refused(Verb::Get, error);
        let facts = file.metadata().map_err(failed)?;
        if !facts.is_file() {
            return Err(Fault::Foreign.during(Verb::Get, name));
        }
        let range = within(name, facts.len(), span)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).map_err(|error| match error.kind() {
            // Nothing here shortens a file.
            io::ErrorKind::UnexpectedEof => {
                ObjectError::Damaged { name: name.clone(), problem: "it became shorter while it was read" }
            }
            _ => failed(error),
        })?;
        Ok(Found { bytes: bytes.into(), meta: Meta { len: facts.len(), version: None } })
    }

    fn open_object(&self, name: &Name) -> Result<File, Fault> {
        let way = self.find_way(name)?;
        // NONBLOCK: a fifo in its place must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(way.last(self), leaf_of(name), flags, Mode::empty())?.into())
    }

    fn head(&self, name: &Name) -> Result<Option<Meta>, ObjectError> {
        let look = || {
            let way = self.find_way(name)?;
            let stat = rustix::fs::statat(way.last(self), leaf_of(name), AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(stat.st_size as u64),
                _ => Err(Fault::Foreign),
            }
        };
        match look() {
            Ok(len) => Ok(Some(Meta { len, version: None })),
            Err(fault) if fault.is_missing() => Ok(None),
            Err(fault) => Err(fault.during(Verb::Head, name)),
        }
    }

    fn list(&self, folder: Option<&Name>, after: Option<&Name>, limit: usize) -> Result<Page, ObjectError> {
        let mut listing =
            Listing { after: after.map_or("", Name::as_str), wanted: limit + 1, entries: Vec::new() };
        let mut start = open_folder(&self.fd, ".").map_err(Fault::from);
        let mut prefix = String::new();
        for segment in folder.iter().flat_map(|folder| folder.segments()) {
            start = start.and_then(|above| Ok(open_folder(above, &format!("{segment}+"))?));
            prefix.push_str(segment);
            prefix.push('/');
        }
        match start.and_then(|start| listing.visit(start, &mut prefix)) {
            Ok(()) => {}
            Err(Fault::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                return Err(refused(Verb::List, error));
            }
            // Nothing is below what is no folder of ours.
            Err(_) => {}
        }
        let more = listing.entries.len() > limit;
        listing.entries.truncate(limit);
        Ok(Page { entries: listing.entries, more })
    }

    fn delete(&self, name: &Name) -> Result<(), ObjectError> {
        self.writable(Verb::Delete)?;
        match self.try_delete(name) {
            Err(fault) if !fault.is_missing() => Err(fault.during(Verb::Delete, name)),
            _ => Ok(()),
        }
    }

    fn try_delete(&self, name: &Name) -> Result<(), Fault> {
        let way = self.find_way(name)?;
        match rustix::fs::unlinkat(way.last(self), leaf_of(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Where it was gone already, its removal may not have been synced yet.
        self.sync(way.last(self))?;
        // Folders are not objects, but a million empty ones would be a burden. One that comes back after a loss of power
        // does no harm.
        let segments: Vec<&str> = name.segments().collect();
        for depth in (0..way.folders.len()).rev() {
            let above = depth.checked_sub(1).map_or(&self.fd, |above| &way.folders[above]);
            if rustix::fs::unlinkat(above, format!("{}+", segments[depth]), AtFlags::REMOVEDIR).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn tidy(&self, older_than: Duration) -> io::Result<u64> {
        let now = SystemTime::now();
        let mut removed = 0;
        for entry in Dir::read_from(&self.temp)? {
            let entry = entry?;
            let name = entry.file_name();
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let Ok(fd) = rustix::fs::openat(&self.temp, name, flags, Mode::empty()) else {
                continue;
            };
            let file = File::from(fd);
            let facts = file.metadata()?;
            // From the future, by a clock that was set back: its age is not known.
            let Ok(age) = now.duration_since(facts.modified()?) else { continue };
            if !facts.is_file() || age < older_than {
                continue;
            }
            // Whoever writes it holds this lock until it is published or given up.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                continue;
            }
            match rustix::fs::unlinkat(&self.temp, name, AtFlags::empty()) {
                Ok(()) => removed += 1,
                // Published or given up between.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(removed)
    }

    fn writable(&self, verb: Verb) -> Result<(), ObjectError> {
        if self.sync_failed.load(Ordering::Acquire) {
            let why =
                "a sync of a folder failed earlier, so nobody knows what the disk has; open the store again";
            return Err(ObjectError::unavailable(verb, false, why));
        }
        Ok(())
    }

    fn sync(&self, folder: &OwnedFd) -> Result<(), Fault> {
        rustix::fs::fsync(folder).map_err(|errno| {
            self.sync_failed.store(true, Ordering::Release);
            Fault::Io(errno.into())
        })
    }

    /// The way to an object; the error for a missing file where a folder is missing.
    fn find_way(&self, name: &Name) -> Result<Way, Fault> {
        let mut way = Way { folders: Vec::new() };
        for segment in folders_of(name) {
            let folder = open_folder(way.last(self), &format!("{segment}+"))?;
            way.folders.push(folder);
        }
        Ok(way)
    }

    /// The way to an object, with what is missing of it made, and every folder synced into its parent.
    fn make_way(&self, name: &Name) -> Result<Way, Fault> {
        let mut made = self.try_make_way(name);
        for _ in 0..WALKS {
            match made {
                Err(fault) if fault.is_missing() => made = self.try_make_way(name),
                _ => break,
            }
        }
        made
    }

    fn try_make_way(&self, name: &Name) -> Result<Way, Fault> {
        let mut way = Way { folders: Vec::new() };
        let mut path = String::new();
        for segment in folders_of(name) {
            let in_parent = format!("{segment}+");
            let parent = way.last(self);
            let folder = match open_folder(parent, &in_parent) {
                Err(Errno::NOENT) => {
                    make_folder(parent, &in_parent)?;
                    open_folder(parent, &in_parent)?
                }
                opened => opened?,
            };
            path.push_str(&in_parent);
            self.sync_into(parent, &folder, &path)?;
            way.folders.push(folder);
        }
        Ok(way)
    }

    /// Sees to it that a folder is durable in its parent, whoever made it.
    fn sync_into(&self, parent: &OwnedFd, folder: &OwnedFd, path: &str) -> Result<(), Fault> {
        let identity = identity_of(folder);
        let synced = || self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if identity.is_some() && synced().get(path).copied() == identity {
            return Ok(());
        }
        self.sync(parent)?;
        // What cannot be told from its successor is synced each time.
        if let Some(identity) = identity
            && identity.is_settled()
        {
            let mut synced = synced();
            if synced.len() >= REMEMBERED_AT_MOST {
                synced.clear();
            }
            synced.insert(path.to_owned(), identity);
        }
        Ok(())
    }
}

fn identity_of(folder: &OwnedFd) -> Option<Identity> {
    let wanted = StatxFlags::BTIME | StatxFlags::INO;
    let facts = rustix::fs::statx(folder, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    StatxFlags::from_bits_retain(facts.stx_mask).contains(wanted).then_some(Identity {
        device: (facts.stx_dev_major, facts.stx_dev_minor),
        inode: facts.stx_ino,
        born: (facts.stx_btime.tv_sec, facts.stx_btime.tv_nsec),
    })
}

fn leaf_of(name: &Name) -> &str {
    name.as_str().rsplit('/').next().unwrap_or_default()
}

fn folders_of(name: &Name) -> impl Iterator<Item = &str> {
    let mut segments = name.segments();
    segments.next_back();
    segments
}

/// A file that nobody sees yet. It is removed when it is dropped unpublished.
struct Draft<'a> {
    temp: &'a OwnedFd,
    name: String,
    /// Open for the sake of its lock, by which [`Root::tidy`] knows that somebody is at work.
    _file: File,
    published: bool,
}

impl<'a> Draft<'a> {
    /// Writes the bytes to a new file, and syncs them.
    fn write(temp: &'a OwnedFd, bytes: &[u8]) -> io::Result<Draft<'a>> {
        loop {
            let mut random = [0_u8; 16];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let name = format!("{:032x}", u128::from_ne_bytes(random));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(temp, &name, flags, Mode::RUSR | Mode::WUSR)?;
            let mut draft = Draft { temp, name, _file: fd.into(), published: false };
            // Taken already: somebody tidies, with no patience at all, and is about to remove it.
            if rustix::fs::flock(&draft._file, FlockOperation::NonBlockingLockExclusive)
                == Err(Errno::WOULDBLOCK)
            {
                continue;
            }
            draft._file.write_all(bytes)?;
            draft._file.sync_all()?;
            return Ok(draft);
        }
    }

    /// Gives the file its name, if nothing has it; `EXIST` if something has, `NOENT` if the folder was removed.
    fn publish(&mut self, folder: &OwnedFd, leaf: &str) -> Result<(), Errno> {
        match rustix::fs::renameat_with(self.temp, &self.name, folder, leaf, RenameFlags::NOREPLACE) {
            Ok(()) => self.published = true,
            // File systems that cannot refuse to replace in a rename refuse it in a link. The temporary name goes when
            // this is dropped.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(self.temp, &self.name, folder, leaf, AtFlags::empty())?;
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed now is removed by tidying.
            let _ = rustix::fs::unlinkat(self.temp, &self.name, AtFlags::empty());
        }
    }
}

/// A walk over the tree in the order of the names, which is not that of the folders: `a-b` comes before `a/b`, and that
/// before `a0`.
struct Listing<'a> {
    after: &'a str,
    wanted: usize,
    entries: Vec<Entry>,
}

impl Listing<'_> {
    /// Takes what is below a folder; `prefix` is its name with the `/` after it, or empty for the root.
    fn visit(&mut self, folder: OwnedFd, prefix: &mut String) -> Result<(), Fault> {
        let mut keys = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let Ok(text) = entry.file_name().to_str() else { continue };
            let key = match text.strip_suffix('+') {
                Some(segment) => format!("{prefix}{segment}/"),
                None => format!("{prefix}{text}"),
            };
            // What comes before is dropped here, since a folder may hold a great many.
            let before = key.as_str() <= self.after && !(key.ends_with('/') && self.after.starts_with(&key));
            if !before && key.strip_suffix('/').unwrap_or(&key).parse::<Name>().is_ok() {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        let prefix_len = prefix.len();
        for key in keys {
            if self.entries.len() == self.wanted {
                return Ok(());
            }
            let text = &key[prefix_len..];
            if let Some(segment) = text.strip_suffix('/') {
                // Removed between, or nothing of ours.
                let Some(inner) = present(open_folder(&folder, &format!("{segment}+")))? else { continue };
                prefix.push_str(text);
                let visited = self.visit(inner, prefix);
                prefix.truncate(prefix_len);
                visited?;
                continue;
            }
            let Some(stat) = present(rustix::fs::statat(&folder, text, AtFlags::SYMLINK_NOFOLLOW))? else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && let Ok(name) = key.parse()
            {
                self.entries.push(Entry { name, len: stat.st_size as u64 });
            }
        }
        Ok(())
    }
}

fn present<T>(answer: Result<T, Errno>) -> Result<Option<T>, Fault> {
    match answer.map_err(Fault::from) {
        Ok(there) => Ok(Some(there)),
        Err(Fault::Foreign) => Ok(None),
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault),
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Directory").field(&self.root.path).finish()
    }
}

impl Backend for Directory {
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created> {
        let name = name.clone();
        Box::pin(self.run(Verb::Put, move |root| root.create(&name, &bytes)))
    }

    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found> {
        if version.is_some() {
            return Box::pin(async { Err(ObjectError::NoVersions) });
        }
        let name = name.clone();
        Box::pin(self.run(Verb::Get, move |root| root.read(&name, span)))
    }

    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>> {
        let name = name.clone();
        Box::pin(self.run(Verb::Head, move |root| root.head(&name)))
    }

    fn list<'a>(
        &'a self,
        folder: Option<&'a Name>,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Doing<'a, Page> {
        let (folder, after) = (folder.cloned(), after.cloned());
        Box::pin(self.run(Verb::List, move |root| root.list(folder.as_ref(), after.as_ref(), limit)))
    }

    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()> {
        let name = name.clone();
        Box::pin(self.run(Verb::Delete, move |root| root.delete(&name)))
    }

    fn tidy(&self, older_than: Duration) -> Doing<'_, u64> {
        Box::pin(
            self.run(Verb::Tidy, move |root| {
                root.tidy(older_than).map_err(|error| refused(Verb::Tidy, error))
            }),
        )
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
