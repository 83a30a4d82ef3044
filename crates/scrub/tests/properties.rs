//! What must hold for any input and any way of cutting it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use outlast_scrub::secrets::Secrets;
use outlast_scrub::terminal::{TerminalFilter, for_terminal};
use outlast_scrub::view::{ViewMasker, for_view};
use proptest::prelude::*;

/// Cuts `text` at the given places, in any order.
fn pieces(text: &[u8], cuts: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec()).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

/// Values without the mask itself, which could make one look like another.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-c]{4,9}".prop_map(String::into_bytes),
        "[ -)+-~]{4,40}".prop_map(String::into_bytes),
        "[a-zäß\"\\\\/<>& \n]{6,30}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>().prop_filter("mask", |byte| *byte != b'*'), 6..50),
    ]
    .prop_filter("long enough without its line ends", |value| {
        value.len() - value.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count() >= 4
    })
}

/// Encoders that share no code with the crate.
mod reference {
    pub(super) fn base64(bytes: &[u8], url: bool, pad: bool) -> Vec<u8> {
        let bits: Vec<bool> =
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect();
        let mut out: Vec<u8> = bits
            .chunks(6)
            .map(|group| {
                let number =
                    (0..6).fold(0u8, |number, at| number << 1 | u8::from(group.get(at) == Some(&true)));
                match number {
                    0..=25 => b'A' + number,
                    26..=51 => b'a' + number - 26,
                    52..=61 => b'0' + number - 52,
                    62 => {
                        if url {
                            b'-'
                        } else {
                            b'+'
                        }
                    }
                    _ => {
                        if url {
                            b'_'
                        } else {
                            b'/'
                        }
                    }
                }
            })
            .collect();
        while pad && !out.len().is_multiple_of(4) {
            out.push(b'=');
        }
        out
    }

    pub(super) fn hex(bytes: &[u8], upper: bool) -> Vec<u8> {
        let digit = |byte: &u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        bytes.iter().map(digit).collect::<String>().into_bytes()
    }

    pub(super) fn percent(bytes: &[u8], upper: bool) -> Vec<u8> {
        let mut out = Vec::new();
        for byte in bytes {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(*byte),
                _ if upper => out.extend(format!("%{byte:02X}").bytes()),
                _ => out.extend(format!("%{byte:02x}").bytes()),
            }
        }
        out
    }
}

/// All ways in which a value is to be found, made by the reference encoders.
fn encoded(value: &[u8], way: usize) -> Vec<u8> {
    match way % 9 {
        0 => value.to_vec(),
        1 => reference::base64(value, false, true),
        2 => reference::base64(value, true, true),
        3 => reference::base64(value, false, false),
        4 => reference::base64(value, true, false),
        5 => reference::hex(value, false),
        6 => reference::hex(value, true),
        7 => reference::percent(value, false),
        _ => reference::percent(value, true),
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Removes what the crate does not take to belong to a value.
fn trimmed(value: &[u8]) -> &[u8] {
    let ends = value.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    &value[..value.len() - ends]
}

fn masked_by_pieces(secrets: &Secrets, pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut masker = secrets.masker();
    let mut out = Vec::new();
    for piece in pieces {
        masker.push(piece, &mut out);
    }
    masker.flush(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_form_of_a_secret_survives_however_output_is_cut(
        values in prop::collection::vec(value(), 1..4),
        parts in prop::collection::vec((any::<usize>(), 0usize..9, "[ -)+-~\n]{0,8}"), 1..8),
        cuts in cuts(),
    ) {
        let named = values.iter().enumerate().map(|(at, value)| (format!("S{at}"), value.clone())).collect();
        let secrets = Secrets::new(named).unwrap();
        let mut text = Vec::new();
        for (which, way, between) in &parts {
            text.extend(between.bytes());
            text.extend(encoded(trimmed(&values[which % values.len()]), *way));
        }
        let whole = masked_by_pieces(&secrets, &[text.clone()]);
        prop_assert_eq!(whole.len(), text.len());
        for value in &values {
            for way in 0..9 {
                let form = encoded(trimmed(value), way);
                prop_assert!(!contains(&whole, &form), "{} survives", form.escape_ascii());
            }
        }
        // What is not masked is as it was.
        prop_assert!(whole.iter().zip(&text).all(|(masked, byte)| masked == byte || *masked == b'*'));
        prop_assert_eq!(&masked_by_pieces(&secrets, &pieces(&text, &cuts)), &whole);
        let mut in_place = text.clone();
        secrets.mask(&mut in_place);
        prop_assert_eq!(in_place, whole);
    }

    #[test]
    fn a_secret_inside_something_longer_is_found_in_its_base64(
        value in value(),
        before in "[ -~]{0,7}",
        after in "[ -~]{0,7}",
        url in any::<bool>(),
        pad in any::<bool>(),
    ) {
        let value = trimmed(&value);
        let secrets = Secrets::new(vec![("S".into(), value.to_vec())]).unwrap();
        let all = [before.as_bytes(), value, after.as_bytes()].concat();
        let mut text = reference::base64(&all, url, pad);
        secrets.mask(&mut text);
        // Every character that holds bits of the value alone.
        let first = (before.len() * 8).div_ceil(6);
        let end = (before.len() + value.len()) * 8 / 6;
        prop_assert!(text[first..end].iter().all(|byte| *byte == b'*'), "{}", text.escape_ascii());
    }

    #[test]
    fn overlapping_secrets_are_masked_alike_however_output_is_cut(
        values in prop::collection::vec("[ab]{4,7}", 1..6), text in "[ab]{0,60}", cuts in cuts(),
    ) {
        let named = values.iter().map(|value| (value.clone(), value.clone().into_bytes())).collect();
        let secrets = Secrets::new(named).unwrap();
        let mut expected = text.clone().into_bytes();
        for value in &values {
            for at in 0..text.len() {
                if text[at..].starts_with(value.as_str()) {
                    expected[at..at + value.len()].fill(b'*');
                }
            }
        }
        // The other forms consist of other characters, but for base64 of these letters, which has none of
        // them alone.
        prop_assert_eq!(masked_by_pieces(&secrets, &pieces(text.as_bytes(), &cuts)), expected);
    }

    #[test]
    fn only_what_may_begin_a_secret_is_held_back(
        values in prop::collection::vec("[a-c]{4,8}", 1..4), text in "[a-d]{0,40}",
    ) {
        let named = values.iter().map(|value| (value.clone(), value.clone().into_bytes())).collect();
        let mut masker = Secrets::new(named).unwrap().masker();
        let mut out = Vec::new();
        for at in 0..text.len() {
            masker.push(&text.as_bytes()[at..=at], &mut out);
            let seen = &text[..=at];
            // Another form may begin alike, but none is made of these letters beyond its third.
            let begins =
                |len: usize| values.iter().any(|value| value.len() > len && seen.ends_with(&value[..len]));
            let expected = (3..8).rev().find(|len| *len <= seen.len() && begins(*len)).unwrap_or(2);
            prop_assert!(masker.held_len() <= expected, "{} of {seen}", masker.held_len());
            prop_assert_eq!(out.len() + masker.held_len(), seen.len());
        }
    }

    #[test]
    fn views_do_not_depend_on_cuts_and_keep_lengths(
        parts in prop::collection::vec(prop_oneof![
            "[ -~\n]{0,12}",
            "(ghp_|AKIA|sk-|sk-ant-|xoxb-|eyJ|glpat-|pypi-AgE|AIza)[A-Za-z0-9_-]{0,50}",
            "eyJ[a-zA-Z0-9]{0,9}[.]eyJ[a-zA-Z0-9]{0,9}[.]?[a-zA-Z0-9]{0,9}",
            "(https?|redis)://[a-z]{0,4}:?[a-z:@]{0,9}@?[a-z]{0,4}/?",
            "[aA]uthorization\"?: ?(Bearer|basic|x) [a-z]{0,9}",
            "[A-Z_]{0,4}(KEY|TOKEN|password|Secret)\"?[=: ]{1,2}\"?[a-z0-9A-Z/.-]{0,40}",
            "-{3,6}BEGIN (RSA )?PRIVATE KEY-----\n[A-Za-z:\\[ -]{0,20}\n?-{0,7}(END)?",
            "(\\\\n|%20|\u{1b}\\[1m)",
        ], 0..8),
        noise in prop::collection::vec(any::<u8>(), 0..20),
        cuts in cuts(),
    ) {
        let text = [parts.concat().into_bytes(), noise].concat();
        let whole = for_view(&text);
        prop_assert_eq!(whole.len(), text.len());
        prop_assert!(whole.iter().zip(&text).all(|(masked, byte)| masked == byte || *masked == b'*'));
        let mut masker = ViewMasker::new();
        let mut out = Vec::new();
        for piece in pieces(&text, &cuts) {
            masker.push(&piece, &mut out);
        }
        masker.flush(&mut out);
        prop_assert_eq!(out, whole);
    }

    #[test]
    fn nothing_a_terminal_acts_on_is_put_out(
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..6),
            "\u{1b}[\\[\\]PX^_(#c78][0-9;:?>! ]{0,5}[a-zA-Z@~\u{7}]?".prop_map(String::into_bytes),
            "[\u{80}-\u{a0}\u{202a}-\u{202e}é日😀]{0,4}".prop_map(String::into_bytes),
            "\u{1b}\\[[0-9;:]{0,6}m".prop_map(String::into_bytes),
            Just(b"\x1b\\".to_vec()),
            Just(b"\n\r\t".to_vec()),
            Just(b"\xf0\x9f".to_vec()),
            Just(b"\xc2".to_vec()),
        ], 0..12),
        cuts in cuts(),
    ) {
        let text = parts.concat();
        let whole = for_terminal(&text);
        let shown = std::str::from_utf8(&whole).expect("valid UTF-8");
        let mut rest = shown.chars();
        while let Some(character) = rest.next() {
            if character == '\u{1b}' {
                prop_assert_eq!(rest.next(), Some('['));
                let end = rest.by_ref().find(|parameter| !matches!(parameter, '0'..='9' | ';' | ':'));
                prop_assert_eq!(end, Some('m'));
            } else {
                let kept = !character.is_control() || matches!(character, '\n' | '\r' | '\t');
                prop_assert!(kept, "{:?}", character);
                let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
                prop_assert!(!turns, "{:?}", character);
            }
        }
        prop_assert_eq!(&for_terminal(&whole), &whole);
        let mut filter = TerminalFilter::new();
        let mut out = Vec::new();
        for piece in pieces(&text, &cuts) {
            filter.push(&piece, &mut out);
        }
        filter.flush(&mut out);
        prop_assert_eq!(out, whole);
    }
}
