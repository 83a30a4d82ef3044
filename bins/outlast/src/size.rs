//! Sizes as people write them: `32768`, `64KiB`, `1.5G`.

use thiserror::Error;

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum SizeError {
    /// It does not read as a number with a unit.
    #[error(
        "`{0}` is not a size: write a number and a unit, such as 512, 64KiB, 10M or 1.5G (units count in 1024s)"
    )]
    Malformed(String),
    /// It does not fit 2^53, the largest whole number JSON keeps exactly.
    #[error("`{0}` is too large: at most 8 PiB")]
    TooLarge(String),
}

const LARGEST: f64 = (1u64 << 53) as f64;

/// Reads a size in bytes. Units are `B`, `K`, `M`, `G`, `T`, each also as `KB` or `KiB`; they count in 1024s, as
/// memory and pipes do.
pub(crate) fn parse(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.chars().take(40).collect());
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let number: f64 = trimmed[..digits].parse().map_err(|_| malformed())?;
    let shift = match trimmed[digits..].trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(malformed()),
    };
    let bytes = (number * (1u64 << shift) as f64).ceil();
    if bytes > LARGEST {
        return Err(SizeError::TooLarge(text.chars().take(40).collect()));
    }
    Ok(bytes as u64)
}

/// A size for people: three digits at most and a unit.
pub(crate) fn humane(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("64k", 65_536),
            ("1.5 G", 3 << 29),
            ("1TB", 1 << 40),
            ("0.1", 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "-1", "1x", "k", "1..2", "1e3", "٣"] {
            assert!(matches!(parse(text), Err(SizeError::Malformed(_))), "{text}");
        }
        assert!(matches!(parse("9999999999T"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (10 << 10, "10 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 40, "5.0 TiB"),
        ] {
            assert_eq!(humane(bytes), text);
        }
    }
}
