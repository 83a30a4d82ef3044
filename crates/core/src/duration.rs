//! Lengths of time as people write them: `90s`, `5m`, `1h30m`, `1500ms`, `0`.

use crate::time::Millis;
use thiserror::Error;

/// Why a text is no length of time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// The text does not read as numbers with units.
    #[error(
        "`{0}` is not a duration: write a number and a unit, such as 500ms, 30s, 5m, 1h30m or 2d (a bare number is seconds)"
    )]
    Malformed(String),
    /// The length does not fit 2^53 milliseconds, the largest a JSON number keeps exactly.
    #[error("`{0}` is too long: at most 285,000 years")]
    TooLong(String),
}

const LARGEST: u64 = 1 << 53;

/// Reads a length of time. Units are `ms`, `s`, `m`, `h`, `d`, largest first; a bare number counts seconds and
/// may have a fraction.
///
/// # Errors
/// [`DurationError`], which names the text and the remedy.
pub fn parse(text: &str) -> Result<Millis, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(malformed());
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| malformed())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let factor = match &rest[..unit_end] {
            "ms" => 1.0,
            "" | "s" | "sec" | "secs" => 1000.0,
            "m" | "min" | "mins" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return Err(malformed()),
        };
        rest = &rest[unit_end..];
        total += number * factor;
    }
    // Rounded up, so that no non-zero length becomes zero, which means "none".
    let millis = total.ceil();
    if millis > LARGEST as f64 {
        return Err(DurationError::TooLong(text.to_owned()));
    }
    Ok(Millis(millis as u64))
}

/// The shortest exact text that [`parse`] reads back as `length`.
#[must_use]
pub fn format(length: Millis) -> String {
    match length.0 {
        0 => "0".to_owned(),
        n if n % 86_400_000 == 0 => format!("{}d", n / 86_400_000),
        n if n % 3_600_000 == 0 => format!("{}h", n / 3_600_000),
        n if n % 60_000 == 0 => format!("{}m", n / 60_000),
        n if n % 1000 == 0 => format!("{}s", n / 1000),
        n => format!("{n}ms"),
    }
}

/// `length` for people: two units at most, rounded down.
#[must_use]
pub fn humane(length: Millis) -> String {
    let n = length.0;
    match n {
        0..1_000 => format!("{n} ms"),
        1_000..60_000 => format!("{}.{} s", n / 1000, n % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", n / 60_000, n % 60_000 / 1000),
        3_600_000..86_400_000 => format!("{} h {} min", n / 3_600_000, n % 3_600_000 / 60_000),
        _ => format!("{} d {} h", n / 86_400_000, n % 86_400_000 / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_people_write() {
        for (text, millis) in [
            ("0", 0),
            ("30", 30_000),
            ("30s", 30_000),
            ("1500ms", 1500),
            ("1.5", 1500),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("0.0001", 1),
        ] {
            assert_eq!(parse(text), Ok(Millis(millis)), "{text}");
        }
        for text in ["", "-1", "1x", "s", "1h-3m", "1..2s", "٣s", "1e3"] {
            assert!(matches!(parse(text), Err(DurationError::Malformed(_))), "{text}");
        }
        assert!(matches!(parse("999999999999999999d"), Err(DurationError::TooLong(_))));
    }

    proptest! {
        #[test]
        fn format_is_read_back(n in 0..LARGEST) {
            prop_assert_eq!(parse(&format(Millis(n))), Ok(Millis(n)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
