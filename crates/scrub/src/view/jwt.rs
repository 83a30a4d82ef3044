//! JSON web tokens: two JSON objects in base64, which begin alike, and a signature, joined by dots.

use super::{Open, is_word};

const OBJECT: &[u8; 3] = b"eyJ";

/// A longer header than this is none.
const MAX_HEADER: u64 = 1024;

#[derive(Clone, Debug, Default)]
pub(super) enum Machine {
    #[default]
    Idle,
    /// Reading the beginning of the header; so much of it has come.
    Begin(usize),
    /// In the rest of the header, which began at this place.
    Header(u64),
    /// Reading the beginning of the claims.
    Claims { from: u64, read: usize },
    /// In a token, masked to its end.
    Masking,
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        match self {
            Self::Header(from) | Self::Claims { from, .. } => Some(*from),
            Self::Idle | Self::Begin(_) | Self::Masking => None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, begins: bool, open: &mut Open) {
        match self {
            Self::Masking if is_word(byte) || byte == b'.' => {
                open.mask(at, at + 1);
                return;
            }
            Self::Begin(read) if byte == OBJECT[*read] => {
                *read += 1;
                if *read == OBJECT.len() {
                    *self = Self::Header(at + 1);
                }
                return;
            }
            Self::Header(from) if is_word(byte) && at - *from < MAX_HEADER => return,
            Self::Header(from) if byte == b'.' && at > *from => {
                *self = Self::Claims { from: *from, read: 0 };
                return;
            }
            Self::Claims { from, read } if byte == OBJECT[*read] => {
                *read += 1;
                if *read == OBJECT.len() {
                    open.mask(*from, at + 1);
                    *self = Self::Masking;
                }
                return;
            }
            _ => *self = Self::Idle,
        }
        if begins && byte == OBJECT[0] {
            *self = Self::Begin(1);
        }
    }
}
