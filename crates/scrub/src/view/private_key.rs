//! Private keys in PEM, on lines of their own or in one string with escaped line ends.

use super::Open;

const BEGIN: &[u8; 6] = b"BEGIN ";
const END: &[u8; 8] = b"-----END";
const LABEL_LEN: usize = 40;

/// More than any key needs. A block without its end hides no more than this.
const MAX_LEN: u32 = 16 * 1024;

#[derive(Clone, Debug)]
pub(super) enum Machine {
    /// So many dashes have been read, five being enough.
    Dashes(u8),
    /// So much of the word after them.
    Begin(usize),
    /// In the label, of which the last bytes are kept.
    Label { label: [u8; LABEL_LEN], len: usize },
    /// After the label of a private key: so many dashes.
    Closing(u8),
    /// After a whole first line but for its end.
    LineEnd,
    /// In the key: how much of it has come, whether this line is a header, and how much of the end mark.
    Key { len: u32, header: bool, end: usize, from: u64 },
}

impl Default for Machine {
    fn default() -> Self {
        Self::Dashes(0)
    }
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        match self {
            Self::Key { end: 1.., from, .. } => Some(*from),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, open: &mut Open) {
        match self {
            Self::Dashes(count) => {
                *self = match byte {
                    b'-' => Self::Dashes((*count + 1).min(5)),
                    b'B' if *count == 5 => Self::Begin(1),
                    _ => Self::Dashes(0),
                };
            }
            Self::Begin(read) if byte == BEGIN[*read] => {
                *read += 1;
                if *read == BEGIN.len() {
                    *self = Self::Label { label: [0; LABEL_LEN], len: 0 };
                }
            }
            Self::Label { label, len } if *len < LABEL_LEN && is_label(byte) => {
                label[*len] = byte;
                *len += 1;
            }
            Self::Label { label, len } if byte == b'-' && is_private(&label[..*len]) => {
                *self = Self::Closing(1)
            }
            Self::Closing(5) if matches!(byte, b'\n' | b'\r') => *self = Self::key(),
            // An escaped line end.
            Self::Closing(5) if byte == b'\\' => {
                *self = Self::LineEnd;
                self.step_line_end(at, byte, open);
            }
            Self::Closing(count) if byte == b'-' => *count = (*count + 1).min(5),
            Self::LineEnd => self.step_line_end(at, byte, open),
            Self::Key { .. } => self.step_key(at, byte, open),
            Self::Begin(_) | Self::Label { .. } | Self::Closing(_) => {
                *self = Self::Dashes(u8::from(byte == b'-'))
            }
        }
    }

    fn key() -> Self {
        Self::Key { len: 0, header: false, end: 0, from: 0 }
    }

    /// The key begins with the escape itself, which need not be told from it.
    fn step_line_end(&mut self, at: u64, byte: u8, open: &mut Open) {
        *self = Self::key();
        self.step_key(at, byte, open);
    }

    fn step_key(&mut self, at: u64, byte: u8, open: &mut Open) {
        let Self::Key { len, header, end, from } = self else { return };
        *len += 1;
        if byte == END[*end] {
            if *end == 0 {
                *from = at;
            }
            *end += 1;
            if *end == END.len() {
                *self = Self::Dashes(0);
            }
            return;
        }
        if *end > 0 {
            open.mask(*from, at);
            *end = 0;
            if byte == b'-' {
                // More than five dashes: the last of them may begin the end mark.
                *from = at;
                *end = 1;
                return;
            }
        }
        match byte {
            b'\n' | b'\r' => *header = false,
            b':' => {
                *header = true;
                open.mask(at, at + 1);
            }
            _ if *header || belongs(byte) => open.mask(at, at + 1),
            _ => *len = MAX_LEN,
        }
        if *len >= MAX_LEN {
            *self = Self::Dashes(0);
        }
    }
}

fn is_label(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' '
}

fn is_private(label: &[u8]) -> bool {
    label.ends_with(b"PRIVATE KEY") || label.ends_with(b"PRIVATE KEY BLOCK")
}

/// What keys and the names of their headers are made of.
fn belongs(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b' ' | b'\t' | b'\\' | b'-' | b',')
}
