//! Formats numbers for display.

use florin_charts::format_number;

use crate::measure::ConfidenceInterval;

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
    use super::format_bounds;
    use crate::measure::confidence_interval;

    #[test]
    fn a_single_seed_is_shown_without_an_interval() {
        assert_eq!(format_bounds(&confidence_interval(&[1.0])), "one seed");
        assert_eq!(format_bounds(&confidence_interval(&[1.0, 1.0])), "1.00 to 1.00");
    }
}
