//! Which version of the protocol is spoken.
//!
//! The client offers what it speaks; the runner takes the highest both know and says what it was offered. The client
//! checks that this is what it had offered, and that the choice is the highest common one: whoever changed the offer on
//! its way, to have an older version spoken, is found out. On connections that are not local, TLS keeps both messages
//! whole.

use thiserror::Error;

/// What this code speaks, lowest first.
pub const SUPPORTED: &[u32] = &[1];

/// The most versions that an offer may list.
pub const OFFER_AT_MOST: usize = 32;

/// Why no version is spoken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionError {
    /// Nothing in common.
    #[error(
        "no common version of the hand protocol: offered {offered:?}, spoken here {supported:?}; upgrade the older side"
    )]
    NothingInCommon {
        /// What the client offered.
        offered: Vec<u32>,
        /// What the runner speaks.
        supported: Vec<u32>,
    },
    /// The runner saw another offer than was made.
    #[error("the offer of versions was changed on its way: {sent:?} was sent, {seen:?} was seen")]
    Tampered {
        /// What was sent.
        sent: Vec<u32>,
        /// What the runner says it saw.
        seen: Vec<u32>,
    },
    /// The runner chose a lower version than both speak.
    #[error("version {chosen} was chosen, though both sides speak {best}")]
    TalkedDown {
        /// What was chosen.
        chosen: u32,
        /// The highest in common.
        best: u32,
    },
}

/// The highest version in both lists.
///
/// # Errors
/// [`VersionError::NothingInCommon`].
pub fn choose(offered: &[u32], supported: &[u32]) -> Result<u32, VersionError> {
    let common = offered.iter().filter(|version| supported.contains(version));
    common.max().copied().ok_or_else(|| VersionError::NothingInCommon {
        offered: offered.to_vec(),
        supported: supported.to_vec(),
    })
}

/// What a client checks in the answer to its offer.
///
/// # Errors
/// [`VersionError`].
pub fn check_choice(sent: &[u32], seen: &[u32], supported: &[u32], chosen: u32) -> Result<(), VersionError> {
    if sent != seen {
        return Err(VersionError::Tampered { sent: sent.to_vec(), seen: seen.to_vec() });
    }
    let best = choose(sent, supported)?;
    if chosen != best {
        return Err(VersionError::TalkedDown { chosen, best });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_in_common() {
        assert_eq!(choose(&[1], &[1]), Ok(1));
        assert_eq!(choose(&[3, 1, 2], &[1, 2]), Ok(2));
        assert!(matches!(choose(&[4], &[1, 2]), Err(VersionError::NothingInCommon { .. })));
        assert!(choose(&[], &[1]).is_err());
    }

    #[test]
    fn nobody_talks_it_down() {
        assert_eq!(check_choice(&[1, 2], &[1, 2], &[1, 2, 3], 2), Ok(()));
        let tampered = check_choice(&[1, 2], &[1], &[1, 2, 3], 1);
        assert!(matches!(tampered, Err(VersionError::Tampered { .. })));
        let lower = check_choice(&[1, 2], &[1, 2], &[1, 2, 3], 1);
        assert_eq!(lower, Err(VersionError::TalkedDown { chosen: 1, best: 2 }));
        // A runner that hides what it speaks can only have less in common, never a choice of its own.
        assert!(check_choice(&[1, 2], &[1, 2], &[1], 2).is_err());
    }
}
