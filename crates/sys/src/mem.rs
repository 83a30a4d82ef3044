//! Memory that can be given back: a keeper that waits for hours should hold next to none.

use std::ops::{Deref, DerefMut};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Has all threads that are started from now on allocate from the first one's heap. Else most threads have one of their own,
/// and the free end of such a heap is kept whatever [`give_back`] says. Does nothing where the allocator cannot.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting of the allocator, which it locks itself to change.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives the kernel back what the allocator keeps of freed memory, as far as it makes up whole pages. It takes a moment, in
/// which other threads may wait to allocate, so it is for quiet times. Does nothing where the allocator cannot.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and touches no memory that is in use.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// A page-aligned buffer of its own mapping, readable and writable, zero at first.
///
/// Aligned, because a `read` to an odd offset in a page costs two to three times the CPU; of its own mapping,
/// because then [`PageBuf::release`] can hand its pages back without giving up the buffer.
#[derive(Debug)]
pub struct PageBuf {
    start: std::ptr::NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory alone, like a boxed slice of bytes.
unsafe impl Send for PageBuf {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// Maps a buffer of `len` bytes, rounded up to whole pages and at least one. No page exists before it is
    /// touched.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of mappings or address space.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let len = len.max(1).checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let start = std::ptr::NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Hands all pages back to the kernel. The buffer stays usable and reads as zeros.
    ///
    /// # Errors
    /// None known for a mapping of this kind; if refused, the contents are as before.
    pub fn release(&mut self) -> Result<(), Errno> {
        // SAFETY: our own private mapping, borrowed exclusively; any bytes, zeros too, are valid for it.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long, readable and initialised by the kernel.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference to it is left. An unmap of a whole mapping cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// What a process has in memory, in KiB, out of `smaps_rollup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Everything resident.
    pub rss: u64,
    /// Everything resident, each shared page counted in part.
    pub pss: u64,
    /// Unchanged pages of files that nobody else has mapped.
    pub private_clean: u64,
    /// Pages that are this process's alone: what it costs.
    pub private_dirty: u64,
    /// Pages of no file: heap, stack and changed data, shared with a forked child or not.
    pub anonymous: u64,
}

impl Rollup {
    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            rss: field("Rss"),
            pss: field("Pss"),
            private_clean: field("Private_Clean"),
            private_dirty: field("Private_Dirty"),
            anonymous: field("Anonymous"),
        }
    }
}

/// Measures a process; `None` is this one. For tests and for reports on ourselves: it is slow.
///
/// # Errors
/// If there is no such process, or we may not look into it.
pub fn smaps_rollup(pid: Option<rustix::process::Pid>) -> std::io::Result<Rollup> {
    let path = match pid {
        None => "/proc/self/smaps_rollup".to_owned(),
        Some(pid) => format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero()),
    };
    Ok(Rollup::parse(&std::fs::read_to_string(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollup_is_read_by_field() {
        let text = "55e0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:     2316 kB\nPss:  1051 kB\n\
                    Pss_Dirty: 132 kB\nPrivate_Clean: 404 kB\nPrivate_Dirty:       132 kB\nAnonymous: 140 kB\n";
        let expected =
            Rollup { rss: 2316, pss: 1051, private_clean: 404, private_dirty: 132, anonymous: 140 };
        assert_eq!(Rollup::parse(text), expected);
    }

    #[test]
    fn a_buffer_is_aligned_and_gives_its_pages_back() {
        const MIB: usize = 1 << 20;
        let mut buffer = PageBuf::new(32 * MIB - 5).unwrap();
        assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (32 * MIB, 0));
        assert!(buffer.iter().step_by(4096).all(|byte| *byte == 0));
        buffer.fill(7);
        let mut resident = vec![0u8; buffer.len() / 4096];
        let mut count = |buffer: &PageBuf| {
            let address = buffer.as_ptr().cast_mut().cast();
            // SAFETY: our own mapping, and one byte for each of its pages.
            assert_eq!(unsafe { libc::mincore(address, buffer.len(), resident.as_mut_ptr()) }, 0);
            resident.iter().filter(|page| **page & 1 != 0).count()
        };
        // Not the process's total: other tests run beside this one.
        assert_eq!(count(&buffer), buffer.len() / 4096);
        buffer.release().unwrap();
        assert_eq!(count(&buffer), 0);
        assert!(buffer.iter().step_by(4096).all(|byte| *byte == 0));
        assert!(smaps_rollup(None).unwrap().rss > 0);
    }
}
