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

/// Separates the thousands of a decimal number by commas: `-1,234.5`.
#[must_use]
pub fn thousands(number: &str) -> String {
    let digits = number.trim_start_matches('-').split('.').next().unwrap_or_default().len();
    let start = number.len() - number.trim_start_matches('-').len();
    let mut text = String::with_capacity(number.len() + digits / 3);
    for (at, letter) in number.char_indices() {
        if at > start && at < start + digits && (start + digits - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn thousands_have_commas() {
        for (number, text) in
            [("999", "999"), ("-1000", "-1,000"), ("1234567.25", "1,234,567.25"), ("-100", "-100")]
        {
            assert_eq!(thousands(number), text);
        }
    }
}
