use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The BLAKE3 digest of an object's bytes.
///
/// As text it is 64 lower-case hexadecimal digits, which is a valid segment of a [`Name`](crate::Name).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest: one is 64 digits of 0-9 and a-f.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a digest is 64 digits of 0-9 and a-f")]
pub struct BadDigest;

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// A digest that was computed elsewhere.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// Its 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        // The library reads capitals too; one digest has one text here, since texts become names.
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(BadDigest);
        }
        blake3::Hash::from_hex(text).map(|hash| Digest(*hash.as_bytes())).map_err(|_| BadDigest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_its_text() {
        let digest = Digest::of(b"hello");
        let text = digest.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse::<Digest>(), Ok(digest));
        assert!(text.parse::<crate::Name>().is_ok());
        assert_eq!(text.to_uppercase().parse::<Digest>(), Err(BadDigest));
        assert_eq!(text[1..].parse::<Digest>(), Err(BadDigest));
        assert_ne!(Digest::of(b""), digest);
    }
}
