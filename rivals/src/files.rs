//! Output that lies in a file.

use outlast_qualify::subject::{Answer, Follow, Sink, Trouble};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Gives a file's bytes from `from` on; with `follow`, until the writer is done and all was given.
pub(crate) fn read(
    path: &Path,
    from: u64,
    follow: Follow,
    sink: Sink<'_>,
    done: &mut dyn FnMut() -> bool,
) -> Answer<u64> {
    let until = match follow {
        Follow::No => None,
        Follow::Until(within) => Some(Instant::now() + within),
    };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(from),
        Err(error) => return Err(Trouble::unobserved(format!("{}: {error}", path.display()))),
    };
    file.seek(SeekFrom::Start(from)).map_err(Trouble::unobserved)?;
    let mut cursor = from;
    let mut buffer = vec![0; 1 << 20];
    loop {
        // Asked before the read, so that what was written before the end is not missed.
        let last = until.is_none_or(|until| Instant::now() >= until) || done();
        loop {
            let count = file.read(&mut buffer).map_err(Trouble::unobserved)?;
            if count == 0 {
                break;
            }
            cursor += count as u64;
            if let ControlFlow::Break(()) = sink(&buffer[..count]) {
                return Ok(cursor);
            }
        }
        if last {
            return Ok(cursor);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_place_and_a_reader_may_leave() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, b"abcdef").unwrap();
        let mut seen = Vec::new();
        let end = read(
            &path,
            2,
            Follow::No,
            &mut |bytes| {
                seen.extend_from_slice(bytes);
                ControlFlow::Continue(())
            },
            &mut || true,
        );
        assert_eq!((end, seen.as_slice()), (Ok(6), &b"cdef"[..]));
        let absent =
            read(&folder.path().join("no"), 3, Follow::No, &mut |_| ControlFlow::Break(()), &mut || true);
        assert_eq!(absent, Ok(3));
    }
}
