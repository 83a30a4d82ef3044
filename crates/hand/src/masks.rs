//! Well-known token shapes, hidden in what a model or a person is shown.
//!
//! Declared secrets never get this far: the keeper masks them before they are stored.

use outlast_scrub::view::for_view;

/// Hides well-known tokens, byte for byte.
pub fn hide_tokens(bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let masked = for_view(bytes);
    // The masker keeps every byte's place; were it ever otherwise, showing nothing is the safe side.
    if masked.len() == bytes.len() {
        bytes.copy_from_slice(&masked);
    } else {
        bytes.fill(outlast_scrub::MASK);
    }
}

/// Hides well-known tokens in a text.
#[must_use]
pub fn hide_tokens_in(text: String) -> String {
    let mut bytes = text.into_bytes();
    hide_tokens(&mut bytes);
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_and_ordinary_text_too() {
        let mut text = b"token=ghp_0123456789abcdefghijABCDEFGHIJ012345 done".to_vec();
        let length = text.len();
        hide_tokens(&mut text);
        assert_eq!(text.len(), length);
        assert!(!text.windows(10).any(|part| part == b"abcdefghij"), "{}", String::from_utf8_lossy(&text));
        assert!(text.ends_with(b" done"));
        assert_eq!(hide_tokens_in("make test".to_owned()), "make test");
    }
}
