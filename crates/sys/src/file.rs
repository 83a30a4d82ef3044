//! Hints to the page cache that `rustix` does not offer.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::raw;

/// Starts writing `len` bytes from `offset` of a file to its disk, and does not wait for it.
///
/// It spreads the cost of the final sync: that of a 1 GiB log sinks from half a second to some milliseconds.
/// It makes nothing durable, neither data nor the metadata needed to find it; only a sync does.
///
/// # Errors
/// `ESPIPE` for what is no file, `EINVAL` for a range beyond the largest offset; and an error of the disk
/// that an earlier write met.
pub fn sync_file_range_write(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else {
        return Err(Errno::INVAL);
    };
    // SAFETY: no pointers; the kernel checks the numbers.
    unsafe {
        raw::syscall(
            libc::SYS_sync_file_range,
            [fd.as_raw_fd() as usize, offset, len, libc::SYNC_FILE_RANGE_WRITE as usize, 0],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_hint_is_taken_for_a_file_and_refused_for_a_pipe() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        sync_file_range_write(file.as_fd(), 4096, 4096).unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(sync_file_range_write(reader.as_fd(), 0, 1), Err(Errno::SPIPE));
        assert_eq!(sync_file_range_write(file.as_fd(), u64::MAX, 1), Err(Errno::INVAL));
    }
}
