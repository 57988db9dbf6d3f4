//! Durations and dates in text form: `90 s`, `1 h 30 min`, `7 d`, or a date.

use std::time::Duration;

use florin_protocol::Timestamp;

const MS_PER_DAY: u64 = 86_400_000;

/// Parses a duration of whole milliseconds such as `90 s` or `1 h 30 min`.
///
/// # Errors
/// A sentence with the expected form.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not a duration: write a number and a unit (ms, s, min, h, d), for example \
             \"90 s\""
        )
    };
    let duration = humantime::parse_duration(text).map_err(|_| wrong())?;
    let ms = u64::try_from(duration.as_millis()).map_err(|_| wrong())?;
    if Duration::from_millis(ms) == duration { Ok(ms) } else { Err(wrong()) }
}

/// Parses a point in time: a duration from now, or a date in UTC such as `2030-01-31` or
/// `2030-01-31T18:00`.
///
/// # Errors
/// A sentence with the expected form.
pub(crate) fn parse_moment(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ms) = parse_ms(text) {
        return Ok(now.saturating_add_ms(ms));
    }
    parse_date(text).ok_or_else(|| {
        format!(
            "{text:?} is neither a duration nor a date: write \"7 d\", \"2030-01-31\" or \
             \"2030-01-31T18:00\" (UTC)"
        )
    })
}

/// Parses a date in UTC, with or without a time of day; `None` if the text is not a date.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut parts = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() || !(1970..=9999).contains(&year) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    if civil(days) != (year, month, day) {
        return None; // such as month 13, or the 30th of February
    }
    let mut parts = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    if hour > 23 || minute > 59 || second > 59 || parts.next().is_some() {
        return None;
    }
    Some(Timestamp((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000))
}

/// A date six to twelve months after `now`: the second start of a half-year from then. All bytes of a
/// task seed its draws, so two runs agree only if both have the same expiry.
#[must_use]
pub fn half_year_date(now: Timestamp) -> String {
    let (year, month, _) = civil(now.0 / MS_PER_DAY);
    let next = year + 1;
    if month < 7 { format!("{next}-01-01") } else { format!("{next}-07-01") }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (Howard Hinnant's `days_from_civil`). A
/// year starts in March here, so that the leap day is its last day.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day.max(1) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).saturating_sub(719_468)
}

/// The date (year, month, day) that is `days` days after 1970-01-01.
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use florin_protocol::format_ms;

    use super::*;

    #[test]
    fn a_half_year_date_is_six_to_twelve_months_ahead() {
        for (now, date) in [
            ("2026-01-01", "2027-01-01"),
            ("2026-06-30T23:59", "2027-01-01"),
            ("2026-07-01", "2027-07-01"),
            ("2026-12-31T23:59", "2027-07-01"),
            ("2028-01-01", "2029-01-01"),
        ] {
            let now = parse_date(now).unwrap();
            assert_eq!(half_year_date(now), date);
            let ms = parse_date(date).unwrap().ms_since(now);
            assert!((180 * MS_PER_DAY..=366 * MS_PER_DAY).contains(&ms), "{date}");
        }
    }

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in [
            ("500 ms", 500),
            ("90 s", 90_000),
            ("90s", 90_000),
            ("1 h 30 min", 5_400_000),
            ("2 h", 7_200_000),
            ("7 d", 604_800_000),
            ("0 s", 0),
            ("1.5 h", 5_400_000),
            ("1 hour 2 minutes 3 seconds", 3_723_000),
            ("1 day", 86_400_000),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
            assert_eq!(parse_ms(&format_ms(ms)), Ok(ms), "{text}");
        }
        assert_eq!(format_ms(90_000), "1 min 30 s");
        for text in
            ["", "90", "s", "-1 s", "1 fortnight", "99999999999999999999 s", "1 us", "0.5 ms"]
        {
            assert!(parse_ms(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn dates_are_days_of_the_calendar() {
        let day = |n: u64| Some(Timestamp(n * MS_PER_DAY));
        assert_eq!(parse_date("1970-01-01"), day(0));
        assert_eq!(parse_date("2000-03-01"), day(11_017));
        assert_eq!(parse_date("2024-02-29T12:00Z"), Some(Timestamp(1_709_208_000_000)));
        for text in [
            "2023-02-29",
            "2024-13-01",
            "2024-00-10",
            "2024-1",
            "1969-12-31",
            "x",
            "2024-01-01T25:00",
        ] {
            assert_eq!(parse_date(text), None, "{text}");
        }
        for days in [0, 58, 59, 60, 365, 11_016, 19_782, 20_000, 47_541] {
            let (year, month, dom) = civil(days);
            assert_eq!(days_from_civil(year, month, dom), days);
        }
    }

    #[test]
    fn a_moment_is_a_date_or_a_duration_from_now() {
        assert_eq!(parse_moment("2 s", Timestamp(5)), Ok(Timestamp(2_005)));
        assert_eq!(parse_moment("1970-01-02", Timestamp(5)), Ok(Timestamp(MS_PER_DAY)));
        assert!(parse_moment("soon", Timestamp(5)).unwrap_err().contains("soon"));
    }
}
