//! Formats numbers for display.

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

#[cfg(test)]
mod tests {
    use super::format_number;

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
