//! What process lists show of this process.

use std::io;

/// Where this process's command line lies.
///
/// For a process that is forked to be something else than what it is forked from: whoever looks for it looks at command
/// lines. It has the room of the one that the program was started with, so that is made as long as is needed. Nothing may
/// look at the arguments of this process any more; the standard library reads them from there.
#[derive(Debug)]
pub struct CommandLine {
    start: usize,
    length: usize,
}

impl CommandLine {
    /// Finds it. A process that is forked has it in the same place.
    ///
    /// # Errors
    /// Where `/proc` does not say.
    pub fn find() -> io::Result<CommandLine> {
        let stat = std::fs::read("/proc/self/stat")?;
        let (start, end) = arguments(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(CommandLine { start, length: end - start })
    }

    /// Shows `words`; what does not fit is left out.
    pub fn show(&self, words: &[&[u8]]) {
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.iter().copied().chain([0])).collect();
        // The last byte is NUL, or the kernel takes the text for one word.
        text.truncate(self.length.saturating_sub(1));
        text.resize(self.length, 0);
        // SAFETY: the kernel said that the arguments lie there; they are this process's own, writable, and no Rust
        // object: they were copied when they were read, and nothing reads them any more. `text` has just that length.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.start as *mut u8, self.length) };
    }
}

/// Where the arguments lie: fields 48 and 49 of `/proc/PID/stat`, as of proc(5).
fn arguments(stat: &[u8]) -> Option<(usize, usize)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
    // After the name comes field 3.
    let mut fields = text.split_whitespace().skip(48 - 3);
    let mut next = || fields.next()?.parse::<usize>().ok();
    let (start, end) = (next()?, next()?);
    (start != 0 && end > start).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_found_whatever_the_name() {
        let rest: String = (3..=52).map(|field| format!(" {field}")).collect();
        assert_eq!(arguments(format!("12 (a) b){rest}").as_bytes()), Some((48, 49)));
        assert_eq!(arguments(b"12 (name) S 1 2 3"), None);
        assert_eq!(arguments(b""), None);
    }
}
