//! The seam between the log and the file system.
//!
//! [`DirDisk`] is the real one. `sim::SimDisk` (feature `sim`) is one that loses power and lies.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Advice, AtFlags, Dir, FileType, Mode, OFlags};

/// One directory of append-only files.
///
/// Names are plain file names. Nothing here retries, and nothing hides an error: the log decides
/// what a failure means.
pub trait Disk {
    /// An open file.
    type File;

    /// Creates an empty file for appending; fails with `AlreadyExists` if the name is taken.
    ///
    /// # Errors
    /// What the system answered.
    fn create_new(&self, name: &str) -> io::Result<Self::File>;

    /// Opens an existing file for reading and, with `writable`, for truncating.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; else what the system answered.
    fn open(&self, name: &str, writable: bool) -> io::Result<Self::File>;

    /// Appends the buffers, in order, by one system call, and returns how many bytes were taken.
    ///
    /// # Errors
    /// What the system answered. Part of the bytes may have been written all the same.
    fn append(&self, file: &Self::File, buffers: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads at an offset into `buffer` and returns how many bytes there were; 0 at the end.
    ///
    /// # Errors
    /// What the system answered.
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// The length of the file in bytes.
    ///
    /// # Errors
    /// What the system answered.
    fn len(&self, file: &Self::File) -> io::Result<u64>;

    /// Cuts the file to `len` bytes.
    ///
    /// # Errors
    /// What the system answered.
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;

    /// Once this returns, the bytes of the file and its length are on the disk.
    ///
    /// # Errors
    /// What the system answered. The bytes written since the last success are then lost or kept,
    /// nobody knows which, and asking again does not tell.
    fn sync_data(&self, file: &Self::File) -> io::Result<()>;

    /// Once this returns, creations and removals in the directory are on the disk.
    ///
    /// # Errors
    /// What the system answered.
    fn sync_dir(&self) -> io::Result<()>;

    /// Forgets cached bytes of the file that are not waiting to be written, so that the next read
    /// shows what the disk has. A request, which a file system may ignore.
    fn evict(&self, _file: &Self::File) {}

    /// Asks that writing `len` bytes from `offset` to the disk begin now. Promises nothing.
    fn start_writeback(&self, _file: &Self::File, _offset: u64, _len: u64) {}

    /// The names in the directory, in any order.
    ///
    /// # Errors
    /// What the system answered.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Removes a name. Whoever has the file open can read it still.
    ///
    /// # Errors
    /// `NotFound` if there is none; else what the system answered.
    fn remove(&self, name: &str) -> io::Result<()>;
}

impl<D: Disk + ?Sized> Disk for &D {
    type File = D::File;

    fn create_new(&self, name: &str) -> io::Result<Self::File> {
        (**self).create_new(name)
    }
    fn open(&self, name: &str, writable: bool) -> io::Result<Self::File> {
        (**self).open(name, writable)
    }
    fn append(&self, file: &Self::File, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).append(file, buffers)
    }
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(file, offset, buffer)
    }
    fn len(&self, file: &Self::File) -> io::Result<u64> {
        (**self).len(file)
    }
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()> {
        (**self).truncate(file, len)
    }
    fn sync_data(&self, file: &Self::File) -> io::Result<()> {
        (**self).sync_data(file)
    }
    fn sync_dir(&self) -> io::Result<()> {
        (**self).sync_dir()
    }
    fn evict(&self, file: &Self::File) {
        (**self).evict(file);
    }
    fn start_writeback(&self, file: &Self::File, offset: u64, len: u64) {
        (**self).start_writeback(file, offset, len);
    }
    fn list(&self) -> io::Result<Vec<String>> {
        (**self).list()
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        (**self).remove(name)
    }
}

/// A real directory, held open, so that a rename or a removal of its path changes nothing.
///
/// Files are made with mode 0600. Links are never followed and only regular files are opened: where
/// the command runs under the same uid it can put anything under these names.
#[derive(Debug)]
pub struct DirDisk {
    dir: OwnedFd,
}

impl DirDisk {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// What the system answered.
    pub fn open(path: impl AsRef<Path>) -> io::Result<DirDisk> {
        // Not O_PATH: such a descriptor can be neither listed nor synced.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path.as_ref(), flags, Mode::empty())?;
        Ok(DirDisk { dir })
    }

    /// Uses a directory that is open already (for reading, not with `O_PATH`).
    #[must_use]
    pub fn from_fd(dir: OwnedFd) -> DirDisk {
        DirDisk { dir }
    }
}

impl Disk for DirDisk {
    type File = File;

    fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::CLOEXEC
            | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(fd))
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<File> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        // NONBLOCK: a fifo under this name must not hold us up.
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(File::from(fd))
    }

    fn append(&self, file: &File, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut file = file;
        file.write_vectored(buffers)
    }

    fn read_at(&self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    fn evict(&self, file: &File) {
        // Pages whose writeback failed are clean by the kernel's account, so this drops them too, and
        // they are the ones that matter.
        let _ = rustix::fs::fadvise(file.as_fd(), 0, None, Advice::DontNeed);
    }

    fn start_writeback(&self, file: &File, offset: u64, len: u64) {
        // Linux starts asynchronous writeback of the range before it drops what is clean in it, and
        // freshly written pages are not. This is `sync_file_range` without the raw system call.
        let _ = rustix::fs::fadvise(file.as_fd(), offset, NonZeroU64::new(len), Advice::DontNeed);
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        // `read_from` opens the directory anew, so that two listings do not share one position.
        for entry in Dir::read_from(&self.dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }
}
