//! Base64, as JSON interfaces carry bytes.

/// Text as bytes; `None` where it is none.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut number, mut bits) = (0u32, 0);
    for sign in text.trim_end_matches('=').bytes() {
        let value = match sign {
            b'A'..=b'Z' => sign - b'A',
            b'a'..=b'z' => sign - b'a' + 26,
            b'0'..=b'9' => sign - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        number = (number << 6 | u32::from(value)) & 0xfff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((number >> bits & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_the_bytes_it_stands_for() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
            ("AP+Afw==", b"\x00\xff\x80\x7f"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes));
        }
        assert_eq!(decode("a-b"), None);
    }
}
