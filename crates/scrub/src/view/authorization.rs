//! Credentials in an HTTP `Authorization` header, in whatever notation it is shown.

use super::Open;

const HEADER: &[u8; 13] = b"authorization";
const SCHEMES: [&[u8]; 3] = [b"bearer", b"basic", b"token"];

/// Fewer characters are more likely a word than a credential.
const MIN_LEN: u64 = 6;

/// The most quotes, colons and blanks between the parts.
const MAX_BETWEEN: u8 = 8;

#[derive(Clone, Debug)]
pub(super) enum Machine {
    /// So much of the header's name has been read.
    Name(usize),
    /// Between name and scheme, after so many characters.
    Between(u8),
    /// In the scheme's name.
    Scheme { name: [u8; 6], len: usize },
    /// Between scheme and credentials.
    Blank(u8),
    /// In what may be credentials, which began here.
    Value(u64),
    /// In credentials, masked to their end.
    Masking,
}

impl Default for Machine {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        if let Self::Value(from) = self { Some(*from) } else { None }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, open: &mut Open) {
        match self {
            Self::Name(_) => {}
            Self::Between(count) if is_between(byte) && *count < MAX_BETWEEN => {
                *count += 1;
                return;
            }
            Self::Between(1..) if byte.is_ascii_alphabetic() => {
                let mut name = [0; 6];
                name[0] = byte.to_ascii_lowercase();
                *self = Self::Scheme { name, len: 1 };
                return;
            }
            Self::Scheme { name, len } => {
                if let Some(place) = name.get_mut(*len).filter(|_| byte.is_ascii_alphabetic()) {
                    *place = byte.to_ascii_lowercase();
                    *len += 1;
                    return;
                }
                if byte == b' ' && SCHEMES.contains(&&name[..*len]) {
                    *self = Self::Blank(1);
                    return;
                }
            }
            Self::Blank(count) if byte == b' ' && *count < MAX_BETWEEN => {
                *count += 1;
                return;
            }
            Self::Blank(_) if is_credential(byte) => {
                *self = Self::Value(at);
                return;
            }
            Self::Value(from) if is_credential(byte) => {
                if at + 1 - *from >= MIN_LEN {
                    open.mask(*from, at + 1);
                    *self = Self::Masking;
                }
                return;
            }
            Self::Masking if is_credential(byte) => {
                open.mask(at, at + 1);
                return;
            }
            Self::Between(_) | Self::Blank(_) | Self::Value(_) | Self::Masking => {}
        }
        let read = if let Self::Name(read) = self { *read } else { 0 };
        *self = Self::Name(next_of_name(read, byte.to_ascii_lowercase()));
        if matches!(self, Self::Name(read) if *read == HEADER.len()) {
            *self = Self::Between(0);
        }
    }
}

/// How much of the name has been read, after one more byte.
fn next_of_name(read: usize, byte: u8) -> usize {
    if HEADER[read] == byte {
        return read + 1;
    }
    // The name begins with an `a` and has only one more, after which it may thus have begun anew.
    if read == 8 && byte == HEADER[1] {
        return 2;
    }
    usize::from(byte == HEADER[0])
}

fn is_between(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b':' | b'=' | b',' | b'\\')
}

fn is_credential(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
}
