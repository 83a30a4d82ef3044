//! Command lines that can be typed again: what an answer gives as the next step must be exact.

use outlast_core::spec::quoted;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The words as one line that a shell splits into exactly these words again.
pub(crate) fn line<I>(words: I) -> String
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    words.into_iter().map(|word| word_as_typed(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// One word as it has to be typed. What is no UTF-8, or would move a terminal's cursor, takes the `$'…'` form, which
/// POSIX has since 2024 and bash, zsh and ksh always had; everything else needs no more than single quotes.
fn word_as_typed(word: &OsStr) -> String {
    match word.to_str() {
        Some(text) if !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') => quoted(text),
        _ => dollar_quoted(word.as_bytes()),
    }
}

fn dollar_quoted(bytes: &[u8]) -> String {
    let mut text = "$'".to_owned();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => text.extend(['\\', c]),
                _ if c.is_control() => {
                    // Three octal digits, always: a digit that follows is not taken for a part of it.
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        text.push_str(&format!("\\{byte:03o}"));
                    }
                }
                _ => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\{byte:03o}"));
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn plain_words_stay_plain() {
        assert_eq!(
            line(["outlast", "job", "wait", "7k2m9qxw4t1rz5cb.1.1"]),
            "outlast job wait 7k2m9qxw4t1rz5cb.1.1"
        );
        assert_eq!(line(["sh", "-c", "echo 'a b'; x"]), r"sh -c 'echo '\''a b'\''; x'");
        assert_eq!(line(["", "~", "*", "a\nb"]), "'' '~' '*' 'a\nb'");
    }

    #[test]
    fn what_is_no_text_is_spelt() {
        let odd = std::ffi::OsString::from_vec(b"a\xff1\x1b'\\".to_vec());
        assert_eq!(line([odd]), r"$'a\3771\033\'\\'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn bash_reads_the_same_words(words: Vec<Vec<u8>>) {
            let words: Vec<std::ffi::OsString> = words
                .into_iter()
                .map(|word| std::ffi::OsString::from_vec(word.into_iter().filter(|byte| *byte != 0).collect()))
                .collect();
            let script = format!("for w in {}; do printf '%s\\0' \"$w\"; done", line(&words));
            let output = std::process::Command::new("bash").env("LC_ALL", "C").arg("-c").arg(script).output().unwrap();
            let expected: Vec<u8> =
                words.iter().flat_map(|word| word.as_bytes().iter().copied().chain([0])).collect();
            prop_assert_eq!(output.stdout, expected);
        }
    }
}
