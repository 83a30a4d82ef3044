//! Control groups: where they are mounted, and leaves of our own in which a command lives and is ended.
//!
//! Hosts differ: version 2 alone, version 2 beside version 1 ("hybrid"), bind-mounted parts, namespaced
//! roots. So nothing is assumed; everything is read from `/proc/self/mountinfo` and `/proc/self/cgroup` and
//! tried out by [`probe`]. Nothing is ever changed but directories that we made.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::raw::{self, CloneSpec};
use crate::wait;

/// One tree of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy<'a> {
    /// Version 2.
    Unified,
    /// The version 1 hierarchy with this controller, such as `pids` or `memory`.
    V1(&'a str),
}

impl Hierarchy<'_> {
    /// What `statfs` says of it, which tells a mount from one that covers it.
    fn magic(self) -> u64 {
        match self {
            Self::Unified => 0x6367_7270,
            Self::V1(_) => 0x0027_e0eb,
        }
    }
}

/// Where a hierarchy is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The directory of this process's own group, at or below the mount.
    pub own: PathBuf,
}

/// Finds the directory of our own group in a hierarchy; `None` if it is not mounted where we can see our
/// group.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn locate(hierarchy: Hierarchy<'_>) -> std::io::Result<Option<Location>> {
    let Some(own) = own_path(&fs::read("/proc/self/cgroup")?, hierarchy) else { return Ok(None) };
    let mountinfo = fs::read("/proc/self/mountinfo")?;
    // The last one mounted covers those before it.
    let mut candidates = locations(&mountinfo, &own, hierarchy).into_iter().rev();
    Ok(candidates.find(|location| {
        open_dir(&location.own)
            .and_then(|dir| rustix::fs::fstatfs(&dir))
            .is_ok_and(|stat| stat.f_type as u64 == hierarchy.magic())
    }))
}

/// Reads our path in a hierarchy out of `/proc/self/cgroup`: lines of `id:controllers:path`.
fn own_path(cgroup: &[u8], hierarchy: Hierarchy<'_>) -> Option<PathBuf> {
    cgroup.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match hierarchy {
            Hierarchy::Unified => id == b"0" && controllers.is_empty(),
            Hierarchy::V1(wanted) => lists(controllers, wanted),
        };
        ours.then(|| PathBuf::from(OsStr::from_bytes(path)))
    })
}

/// Lists every mount of a hierarchy that shows the group `own`, with the directory where it does.
fn locations(mountinfo: &[u8], own: &Path, hierarchy: Hierarchy<'_>) -> Vec<Location> {
    let of_line = |line: &[u8]| {
        // id, parent, device, root, mount point, options, any number of tags; a dash; type, source, options.
        let mut fields = line.split(|byte| *byte == b' ');
        let root = unescape(fields.nth(3)?);
        let mount = unescape(fields.next()?);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = rest.next()?;
        let options = rest.nth(1)?;
        let ours = match hierarchy {
            Hierarchy::Unified => kind == b"cgroup2",
            Hierarchy::V1(controller) => kind == b"cgroup" && lists(options, controller),
        };
        // A root such as `/../..` is above our namespace's, and where in it we are cannot be told.
        let below = own.strip_prefix(&root).ok().filter(|_| ours)?;
        let climbs = own.components().any(|part| part == std::path::Component::ParentDir);
        (!climbs).then(|| Location { own: mount.join(below), mount })
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

fn lists(comma_separated: &[u8], wanted: &str) -> bool {
    comma_separated.split(|byte| *byte == b',').any(|item| item == wanted.as_bytes())
}

/// Undoes the octal escapes (`\040`) with which the kernel writes blanks, newlines and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u32, |value, digit| {
                (b'0'..=b'7').contains(digit).then(|| value * 8 + u32::from(digit - b'0'))
            })
        });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(path).into()
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A control group that we made.
///
/// It is held by its directory, so it stays the same one whatever happens to the name. Dropping it leaves the
/// group as it is: only [`Leaf::remove`] removes it, because the removal is part of a proof.
#[derive(Debug)]
pub struct Leaf {
    parent: OwnedFd,
    dir: OwnedFd,
    name: OsString,
    path: PathBuf,
    id: u64,
}

impl Leaf {
    /// Makes the group `name` in the group whose directory is `parent`.
    ///
    /// # Errors
    /// `EEXIST` if there is one, `EACCES`, `EPERM` or `EROFS` without the right, `EAGAIN` at a limit of
    /// groups, `EINVAL` for a name with a slash.
    pub fn create(parent: &Path, name: &OsStr) -> Result<Self, Errno> {
        check_name(name)?;
        let parent_dir = open_dir(parent)?;
        rustix::fs::mkdirat(&parent_dir, name, Mode::from_raw_mode(0o755))?;
        Self::in_dir(parent_dir, parent, name).inspect_err(|_| {
            // Nobody can be in it yet. Should this fail too, the first error tells more.
            if let Ok(dir) = open_dir(parent) {
                let _ = rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR);
            }
        })
    }

    /// Opens a group that an earlier process of ours made, by its name and its [`Leaf::id`], as a settler
    /// must.
    ///
    /// # Errors
    /// `ENOENT` if it has been removed, `ESTALE` if another has taken its name.
    pub fn reopen(parent: &Path, name: &OsStr, id: u64) -> Result<Self, Errno> {
        check_name(name)?;
        let leaf = Self::in_dir(open_dir(parent)?, parent, name)?;
        if leaf.id == id { Ok(leaf) } else { Err(Errno::STALE) }
    }

    fn in_dir(parent: OwnedFd, parent_path: &Path, name: &OsStr) -> Result<Self, Errno> {
        let dir = rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty())?;
        let id = rustix::fs::fstat(&dir)?.st_ino;
        Ok(Self { parent, dir, name: name.to_owned(), path: parent_path.join(name), id })
    }

    /// Its directory, for [`crate::spawn::Spawn::into_cgroup`].
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The path at which it was made.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's number for it, which no other group has had since boot.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Opens its `cgroup.procs` for writing, for [`crate::spawn::Spawn::join`].
    ///
    /// # Errors
    /// `ENODEV` or `ENOENT` if it has been removed.
    pub fn open_procs(&self) -> Result<OwnedFd, Errno> {
        self.open("cgroup.procs", OFlags::WRONLY)
    }

    /// Lists the processes in it (not those in groups below it); see [`procs`].
    ///
    /// # Errors
    /// `ENODEV` or `ENOENT` if it has been removed.
    pub fn procs(&self) -> Result<Vec<Pid>, Errno> {
        procs(self.dir.as_fd())
    }

    /// Kills every process in it and below, those included that are being forked, stopped or frozen.
    ///
    /// The kernel has only sent the signal when this returns: that they are dead is shown by
    /// [`Leaf::populated`].
    ///
    /// # Errors
    /// `EOPNOTSUPP` where groups cannot be killed (before Linux 5.14, or version 1): signal [`Leaf::procs`]
    /// one by one.
    pub fn kill(&self) -> Result<(), Errno> {
        match self.write("cgroup.kill", b"1") {
            Err(Errno::NOENT) if self.exists() => Err(Errno::OPNOTSUPP),
            done => done,
        }
    }

    /// Whether any process in it or below can still execute. Zombies do not count.
    ///
    /// Read it again when a child ends, rather than wait for the file's own notifications, which the kernel
    /// delays by up to 15 ms.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for version 1, which does not tell; `ENODEV` if it has been removed.
    pub fn populated(&self) -> Result<bool, Errno> {
        let events = match self.read("cgroup.events") {
            Err(Errno::NOENT) if self.exists() => return Err(Errno::OPNOTSUPP),
            events => events?,
        };
        match events.lines().find_map(|line| line.strip_prefix("populated ")) {
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            _ => Err(Errno::PROTO),
        }
    }

    /// Freezes every process in it and below, or lets them go on. They can be killed while frozen.
    ///
    /// # Errors
    /// `ENOENT` for version 1 and before Linux 5.2.
    pub fn freeze(&self, frozen: bool) -> Result<(), Errno> {
        self.write("cgroup.freeze", if frozen { b"1" } else { b"0" })
    }

    /// Writes one of its control files, such as `pids.max`.
    ///
    /// # Errors
    /// `ENOENT` if the controller is not enabled here, `EINVAL` for a value it does not take.
    pub fn write(&self, control: &str, value: &[u8]) -> Result<(), Errno> {
        let file = self.open(control, OFlags::WRONLY)?;
        rustix::io::write(&file, value).map(drop)
    }

    /// Reads one of its control files whole.
    ///
    /// # Errors
    /// `ENOENT` if the controller is not enabled here, `EILSEQ` if it holds no text.
    pub fn read(&self, control: &str) -> Result<String, Errno> {
        let mut text = Vec::new();
        read_by_chunk(&self.open(control, OFlags::RDONLY)?, |chunk| text.extend_from_slice(chunk))?;
        String::from_utf8(text).map_err(|_| Errno::ILSEQ)
    }

    /// Removes the group, which the kernel allows only while no process is in it.
    ///
    /// # Errors
    /// `EBUSY` while it holds processes (zombies excepted) or groups; `ENOENT` if it has been removed, or if
    /// the name is no longer its own.
    pub fn remove(&self) -> Result<(), Errno> {
        let named = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if named.st_ino != self.id {
            return Err(Errno::NOENT);
        }
        rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)
    }

    /// Removes the group and those that its command made below it. Nothing is removed that holds a process,
    /// but empty groups may be gone when this reports that.
    ///
    /// # Errors
    /// As [`Leaf::remove`]; `EBUSY` also for a nesting of more than 64.
    pub fn remove_tree(&self) -> Result<(), Errno> {
        match self.remove() {
            Err(Errno::BUSY) => {}
            done => return done,
        }
        remove_below(self.dir.as_fd(), 64)?;
        self.remove()
    }

    fn exists(&self) -> bool {
        rustix::fs::accessat(&self.dir, "cgroup.procs", rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
    }

    fn open(&self, control: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        check_name(OsStr::new(control))?;
        rustix::fs::openat(&self.dir, control, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
    }
}

/// A name that stays in its directory.
fn check_name(name: &OsStr) -> Result<(), Errno> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL),
        bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

fn remove_below(dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
    let mut entries = [MaybeUninit::<u8>::uninit(); 2048];
    let mut children = Vec::new();
    // A descriptor of its own, for its position is that of the listing.
    let listing = rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty())?;
    let mut list = RawDir::new(&listing, &mut entries);
    while let Some(entry) = list.next() {
        let entry = entry?;
        if entry.file_type() == FileType::Directory && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            children.push(entry.file_name().to_owned());
        }
    }
    for child in children {
        match rustix::fs::unlinkat(dir, &child, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::BUSY) if depth > 0 => {}
            Err(errno) => return Err(errno),
        }
        let below = rustix::fs::openat(dir, &child, DIRECTORY, Mode::empty())?;
        remove_below(below.as_fd(), depth - 1)?;
        rustix::fs::unlinkat(dir, &child, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Lists the processes in the group whose directory is `dir`. Those of other PID namespaces, which have no
/// pid here, are left out; zombies are, too.
///
/// # Errors
/// `ENOENT` if it is no group, `ENODEV` if it has been removed, `EOPNOTSUPP` for a threaded group.
pub fn procs(dir: BorrowedFd<'_>) -> Result<Vec<Pid>, Errno> {
    let file = rustix::fs::openat(dir, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut pids = Vec::new();
    let mut number = 0i32;
    read_by_chunk(&file, |chunk| {
        for byte in chunk {
            if byte.is_ascii_digit() {
                number = number.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'));
            } else {
                pids.extend(raw::pid(number));
                number = 0;
            }
        }
    })?;
    Ok(pids)
}

fn read_by_chunk(file: &OwnedFd, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => each(&buffer[..len]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What can be done in a group of version 2, as tried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Making groups in it, or why not.
    pub create: Result<(), Errno>,
    /// Starting a process inside such a group, or why not.
    pub spawn_into: Result<(), Errno>,
    /// Whether such a group can be killed whole.
    pub kill: bool,
}

/// Tries out what can be done in the group whose directory is `parent`, in a group made for the purpose and
/// removed.
#[must_use]
pub fn probe(parent: &Path) -> Capabilities {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let own = rustix::process::getpid().as_raw_nonzero();
    let name = format!("outlast-probe-{own}-{}", TRIES.fetch_add(1, Ordering::Relaxed));
    let leaf = match Leaf::create(parent, OsStr::new(&name)) {
        Ok(leaf) => leaf,
        Err(errno) => return Capabilities { create: Err(errno), spawn_into: Err(errno), kill: false },
    };
    let spawn_into = try_child_in(leaf.dir());
    let kill = rustix::fs::accessat(&leaf.dir, "cgroup.kill", rustix::fs::Access::WRITE_OK, AtFlags::empty());
    // The child has been reaped, so the group is empty.
    let removed = leaf.remove();
    Capabilities { create: removed, spawn_into, kill: kill.is_ok() }
}

/// Has a child be born in the group and end at once.
fn try_child_in(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    unsafe extern "C" fn end(_: *mut core::ffi::c_void) -> ! {
        // SAFETY: ends this process at once and runs none of the parent's exit handlers.
        unsafe { libc::_exit(0) }
    }
    // No exit signal, so that nobody who waits for any child hears of it.
    let spec = CloneSpec { flags: 0, exit_signal: 0, cgroup: Some(dir.as_raw_fd()) };
    // SAFETY: the child does nothing but end.
    let child = unsafe { raw::clone_vfork(spec, end, std::ptr::null_mut())? };
    wait::wait_pidfd(child.pidfd.as_fd(), wait::Children::All, false).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mount: &str, own: &str) -> Location {
        Location { mount: mount.into(), own: own.into() }
    }

    #[test]
    fn our_path_is_that_of_the_right_hierarchy() {
        let text =
            b"9:name=systemd:/init.scope\n4:memory:/agents/a:b\n3:cpu,cpuacct:/c\n0::/user.slice/x y\n";
        let path = |hierarchy| own_path(text, hierarchy).map(|path| path.display().to_string());
        assert_eq!(path(Hierarchy::Unified).unwrap(), "/user.slice/x y");
        assert_eq!(path(Hierarchy::V1("memory")).unwrap(), "/agents/a:b");
        assert_eq!(path(Hierarchy::V1("cpuacct")).unwrap(), "/c");
        assert_eq!(path(Hierarchy::V1("pids")), None);
    }

    #[test]
    fn mounts_are_found_on_every_kind_of_host() {
        let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:3 - cgroup2 cgroup2 rw\n";
        let unified = at("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/a/b");
        assert_eq!(locations(hybrid, Path::new("/a/b"), Hierarchy::Unified), [unified]);
        let memory = at("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a");
        assert_eq!(locations(hybrid, Path::new("/a"), Hierarchy::V1("memory")), [memory]);
        assert_eq!(locations(hybrid, Path::new("/a"), Hierarchy::V1("pids")), []);

        let bind = b"5 1 0:3 /kube/pod\\0407 /mnt/c\\134g rw - cgroup2 none rw,nsdelegate";
        let own = at("/mnt/c\\g", "/mnt/c\\g/x");
        assert_eq!(locations(bind, Path::new("/kube/pod 7/x"), Hierarchy::Unified), [own]);
        // Only whole components count, and a group outside the mounted part is not visible.
        assert_eq!(locations(bind, Path::new("/kube/pod 77"), Hierarchy::Unified), []);
        assert_eq!(locations(bind, Path::new("/"), Hierarchy::Unified), []);

        let above = b"5 1 0:3 /../.. /sys/fs/cgroup rw - cgroup2 none rw";
        assert_eq!(locations(above, Path::new("/"), Hierarchy::Unified), []);
        let here = b"5 1 0:3 / /sys/fs/cgroup rw - cgroup2 none rw";
        assert_eq!(locations(here, Path::new("/../other"), Hierarchy::Unified), []);
        assert_eq!(locations(b"short line\n\n - x", Path::new("/"), Hierarchy::Unified), []);
    }

    #[test]
    fn only_whole_octal_escapes_are_undone() {
        for (field, path) in
            [("a\\040b", "a b"), ("\\012", "\n"), ("\\", "\\"), ("\\04", "\\04"), ("\\777", "\\777")]
        {
            assert_eq!(unescape(field.as_bytes()), Path::new(path));
        }
    }

    #[test]
    fn names_that_would_leave_the_parent_are_refused() {
        for name in ["", ".", "..", "a/b"] {
            assert_eq!(Leaf::create(Path::new("/tmp"), OsStr::new(name)).unwrap_err(), Errno::INVAL);
        }
    }
}
