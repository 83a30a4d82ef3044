//! Passwords in URLs: `scheme://user:password@host`.

use super::Open;

/// Longer user names, passwords and hosts are none.
const MAX_LEN: u64 = 256;

#[derive(Clone, Debug)]
pub(super) enum Machine {
    /// So much of a letter and `://` has been read.
    Scheme(u8),
    /// In what may be a user's name, since this place.
    User(u64),
    /// In what may be a password, which began here. It goes to the last `@` before the host ends.
    Password { from: u64, at_sign: Option<u64> },
}

impl Default for Machine {
    fn default() -> Self {
        Self::Scheme(0)
    }
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        match self {
            Self::Password { from, .. } => Some(*from),
            Self::Scheme(_) | Self::User(_) => None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, open: &mut Open) {
        match self {
            Self::Scheme(_) => {}
            Self::User(from) if at - *from < MAX_LEN => {
                if byte == b':' {
                    *self = Self::Password { from: at + 1, at_sign: None };
                    return;
                }
                if byte != b'@' && belongs(byte) {
                    return;
                }
            }
            Self::Password { from, at_sign } if at - *from < MAX_LEN && belongs(byte) => {
                if byte == b'@' {
                    *at_sign = Some(at);
                }
                return;
            }
            Self::User(_) => {}
            Self::Password { .. } => self.end(open),
        }
        let read = if let Self::Scheme(read) = self { *read } else { 0 };
        *self = match (read, byte) {
            (1, b':') => Self::Scheme(2),
            (2, b'/') => Self::Scheme(3),
            (3, b'/') => Self::User(at + 1),
            _ => Self::Scheme(u8::from(byte.is_ascii_alphanumeric())),
        };
    }

    pub(super) fn end(&mut self, open: &mut Open) {
        if let Self::Password { from, at_sign: Some(at_sign) } = self {
            open.mask(*from, *at_sign);
        }
        *self = Self::default();
    }
}

/// What may stand between the slashes and the path.
fn belongs(byte: u8) -> bool {
    byte > b' '
        && byte != 0x7f
        && !matches!(byte, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
}
