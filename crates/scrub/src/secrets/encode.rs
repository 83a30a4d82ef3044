//! The forms a value takes when programs print it.

use std::collections::BTreeSet;

use super::MIN_VALUE_LEN;

/// Adds the value itself and all its forms.
pub(super) fn forms_of(value: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    let mut add = |form: Vec<u8>| {
        // A form can be shorter than its value only by what cannot be told apart; see `base64_core`.
        if form.len() >= MIN_VALUE_LEN {
            forms.insert(form);
        }
    };
    add(value.to_vec());
    if value.contains(&b'\n') {
        add(crlf(value));
    }
    for digits in [LOWER_HEX, UPPER_HEX] {
        add(hex(value, digits));
        for keeps in PERCENT_KEEPS {
            add(percent(value, digits, keeps, false));
            add(percent(value, digits, keeps, true));
        }
    }
    for alphabet in [STANDARD, URL] {
        let whole = base64(value, alphabet);
        for width in [64, 76] {
            add(wrapped(&whole, width));
        }
        let mut padded = whole.clone();
        padded.resize(whole.len().next_multiple_of(4), b'=');
        add(padded);
        add(whole);
        for before in 0..3 {
            add(base64_core(value, alphabet, before));
        }
    }
    for style in JSON_STYLES {
        let once = json(value, style);
        add(json(&once, style));
        add(once);
    }
}

/// Each bare newline as carriage return and newline, which is what a terminal makes of it.
fn crlf(value: &[u8]) -> Vec<u8> {
    let mut form = Vec::with_capacity(value.len() + 16);
    for (at, byte) in value.iter().enumerate() {
        if *byte == b'\n' && (at == 0 || value[at - 1] != b'\r') {
            form.push(b'\r');
        }
        form.push(*byte);
    }
    form
}

const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";

fn hex(value: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    value.iter().flat_map(|byte| hex_byte(*byte, digits)).collect()
}

fn hex_byte(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

/// What encoders leave as it is, beside letters and digits: RFC 3986; JavaScript's `encodeURIComponent` and
/// its `encodeURI`; Python's `quote`; HTML forms.
const PERCENT_KEEPS: [&[u8]; 5] = [b"-._~", b"-._~!'()*", b"-._~!'()*;,/?:@&=+$#", b"-._~/", b"-._*"];

fn percent(value: &[u8], digits: &[u8; 16], keeps: &[u8], space_as_plus: bool) -> Vec<u8> {
    let mut form = Vec::with_capacity(value.len());
    for byte in value {
        if byte.is_ascii_alphanumeric() || keeps.contains(byte) {
            form.push(*byte);
        } else if *byte == b' ' && space_as_plus {
            form.push(b'+');
        } else {
            form.push(b'%');
            form.extend(hex_byte(*byte, digits));
        }
    }
    form
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Base64 without padding.
fn base64(value: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let mut form = Vec::with_capacity(value.len().div_ceil(3) * 4);
    for group in value.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        // One character more than there are bytes in the group.
        for place in 0..=group.len() {
            form.push(alphabet[(bits >> (18 - 6 * place)) as usize & 63]);
        }
    }
    form
}

/// The characters that are the value's alone in the base64 of something that has `before` more bytes in front
/// (modulo 3) and anything behind.
fn base64_core(value: &[u8], alphabet: &[u8; 64], before: usize) -> Vec<u8> {
    let embedded = [&[0u8; 2][..before], value].concat();
    let first = (before * 8).div_ceil(6);
    let end = embedded.len() * 8 / 6;
    base64(&embedded, alphabet)[first..end].to_vec()
}

/// Broken into lines, as `base64` and PEM tools do.
fn wrapped(form: &[u8], width: usize) -> Vec<u8> {
    form.chunks(width).collect::<Vec<_>>().join(&b'\n')
}

/// How a JSON writer escapes what it need not.
struct JsonStyle {
    digits: &'static [u8; 16],
    ascii_only: bool,
    slash: bool,
    html: bool,
}

/// The plain way (serde, JavaScript, Python with `ensure_ascii` off), Python's, PHP's and Go's.
const JSON_STYLES: [&JsonStyle; 6] = [
    &JsonStyle { digits: LOWER_HEX, ascii_only: false, slash: false, html: false },
    &JsonStyle { digits: UPPER_HEX, ascii_only: false, slash: false, html: false },
    &JsonStyle { digits: LOWER_HEX, ascii_only: true, slash: false, html: false },
    &JsonStyle { digits: UPPER_HEX, ascii_only: true, slash: false, html: false },
    &JsonStyle { digits: LOWER_HEX, ascii_only: true, slash: true, html: false },
    &JsonStyle { digits: LOWER_HEX, ascii_only: false, slash: false, html: true },
];

/// The inside of a JSON string. Bytes that are no UTF-8 cannot be in one and stay.
fn json(value: &[u8], style: &JsonStyle) -> Vec<u8> {
    let mut form = Vec::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => form.extend(b"\\\""),
                '\\' => form.extend(b"\\\\"),
                '\n' => form.extend(b"\\n"),
                '\r' => form.extend(b"\\r"),
                '\t' => form.extend(b"\\t"),
                '\u{8}' => form.extend(b"\\b"),
                '\u{c}' => form.extend(b"\\f"),
                '/' if style.slash => form.extend(b"\\/"),
                '\0'..='\u{1f}' => unicode_escape(character, style, &mut form),
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if style.html => {
                    unicode_escape(character, style, &mut form);
                }
                '\u{7f}'.. if style.ascii_only && !character.is_ascii() => {
                    unicode_escape(character, style, &mut form);
                }
                _ => form.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        form.extend(chunk.invalid());
    }
    form
}

fn unicode_escape(character: char, style: &JsonStyle, form: &mut Vec<u8>) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        let [high, low] = unit.to_be_bytes();
        form.extend(b"\\u");
        form.extend(hex_byte(high, style.digits));
        form.extend(hex_byte(low, style.digits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(value: &str) -> BTreeSet<Vec<u8>> {
        let mut forms = BTreeSet::new();
        forms_of(value.as_bytes(), &mut forms);
        forms
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        for (value, form) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(value.as_bytes(), STANDARD), form.as_bytes());
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf], STANDARD), b"+/+/");
        assert_eq!(base64(&[0xfb, 0xff, 0xbf], URL), b"-_-_");
    }

    #[test]
    fn a_core_is_found_wherever_the_value_lies() {
        for before in 0..7 {
            for after in 0..4 {
                let text = ["x".repeat(before), "s3cr3t!".to_owned(), "y".repeat(after)].concat();
                let core = base64_core(b"s3cr3t!", STANDARD, before % 3);
                let encoded = base64(text.as_bytes(), STANDARD);
                assert!(encoded.windows(core.len()).any(|part| part == core), "{before} {after}");
                assert!(core.len() >= 8);
            }
        }
    }

    #[test]
    fn usual_encoders_are_covered() {
        let forms = forms("pä\"s/w d\n<1>");
        for form in [
            "pä\"s/w d\n<1>",
            "pä\"s/w d\r\n<1>",
            "p%C3%A4%22s%2Fw%20d%0A%3C1%3E",
            "p%c3%a4%22s%2fw%20d%0a%3c1%3e",
            "p%C3%A4%22s%2Fw+d%0A%3C1%3E",
            "p%C3%A4%22s/w%20d%0A%3C1%3E",
            "pä\\\"s/w d\\n<1>",
            "p\\u00e4\\\"s/w d\\n<1>",
            "p\\u00E4\\\"s/w d\\n<1>",
            "p\\u00e4\\\"s\\/w d\\n<1>",
            "pä\\\"s/w d\\n\\u003c1\\u003e",
            "pä\\\\\\\"s/w d\\\\n<1>",
            "70c3a422732f7720640a3c313e",
            "70C3A422732F7720640A3C313E",
            "cMOkInMvdyBkCjwxPg",
            "cMOkInMvdyBkCjwxPg==",
        ] {
            assert!(forms.contains(form.as_bytes()), "{form}");
        }
    }

    #[test]
    fn a_plain_value_has_few_forms() {
        // Itself, hex twice (alike in upper case here), base64 whole, padded and three cores.
        assert!(forms("abcdefghijklmnop").len() <= 8, "{}", forms("abcdefghijklmnop").len());
    }

    #[test]
    fn bytes_that_are_no_text_stay_in_json() {
        assert_eq!(json(b"a\xffb\"", JSON_STYLES[0]), b"a\xffb\\\"");
        assert_eq!(json("\u{1F600}\u{1}".as_bytes(), JSON_STYLES[2]), b"\\ud83d\\ude00\\u0001");
    }
}
