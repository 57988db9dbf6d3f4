//! Formats numbers for display.

use crate::measure::ConfidenceInterval;

/// A number with as many decimals as its magnitude requires, and without a minus sign for zero.
#[must_use]
pub fn format_number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1_000.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let is_zero = text.chars().all(|c| matches!(c, '-' | '0' | '.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

/// A count with its noun: `1 seed`, `3 seeds`.
#[must_use]
pub fn format_count(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// The bounds of a confidence interval; a single seed has none.
#[must_use]
pub fn format_bounds(interval: &ConfidenceInterval) -> String {
    let bounds = interval
        .bounds
        .map(|ends| format!("{} to {}", format_number(ends.low), format_number(ends.high)));
    bounds.unwrap_or_else(|| "one seed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{format_bounds, format_number};
    use crate::measure::confidence_interval;

    #[test]
    fn a_single_seed_is_shown_without_an_interval() {
        assert_eq!(format_bounds(&confidence_interval(&[1.0])), "one seed");
        assert_eq!(format_bounds(&confidence_interval(&[1.0, 1.0])), "1.00 to 1.00");
    }

    #[test]
    fn decimals_depend_on_the_magnitude() {
        for (value, text) in [
            (0.0, "0.000"),
            (-0.0001, "0.000"),
            (0.1234, "0.123"),
            (-3.456, "-3.46"),
            (12.34, "12.3"),
            (12_345.6, "12346"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}
