//! Moments of the wall clock as RFC 3339 text, in UTC.

use outlast_core::time::UnixMicros;

/// `moment` as `2026-11-29T15:04:05.123Z`.
pub(crate) fn format(moment: UnixMicros) -> String {
    let seconds = moment.0 / 1_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let milli = moment.0 / 1000 % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The date of a day counted from 1970-01-01, by the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last of its year; 400 years have the same number of days every time.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (cycle, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(format(UnixMicros(seconds * 1_000_000)), text);
        }
        assert_eq!(format(UnixMicros(1_234_567)), "1970-01-01T00:00:01.234Z");
    }

    #[test]
    fn days_follow_each_other() {
        let mut before = civil(0);
        for day in 1..200_000 {
            let now = civil(day);
            let next_day = now.0 == before.0 && now.1 == before.1 && now.2 == before.2 + 1;
            let next_month = now.0 == before.0 && now.1 == before.1 + 1 && now.2 == 1;
            let next_year = now == (before.0 + 1, 1, 1) && (before.1, before.2) == (12, 31);
            assert!(next_day || next_month || next_year, "{before:?} {now:?}");
            before = now;
        }
    }
}
