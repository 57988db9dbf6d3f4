//! Text inside HTML and SVG.

use crate::axis::Unit;

/// A space at which a line does not break.
pub const NO_BREAK: char = '\u{a0}';

/// Escapes text for HTML.
#[must_use]
pub fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escapes prose for HTML. No line breaks between a number and the word or sign behind it.
#[must_use]
pub fn escape_prose(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let at = |place: usize| letters.get(place).copied().unwrap_or(' ');
    let joins = |place: usize| {
        let (before, after) = (at(place.wrapping_sub(1)), at(place + 1));
        before.is_ascii_digit() && (after.is_alphabetic() || matches!(after, '%' | '±'))
            || before == '±' && after.is_ascii_digit()
    };
    let kept = letters.iter().enumerate().map(|(place, letter)| match letter {
        ' ' if joins(place) => NO_BREAK,
        letter => *letter,
    });
    escape_html(&kept.collect::<String>())
}

/// A number with its unit; no line breaks between them.
#[must_use]
pub fn with_unit(number: &str, unit: Unit) -> String {
    match unit.symbol() {
        "" => number.to_owned(),
        symbol => format!("{number}{NO_BREAK}{symbol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_does_not_break_between_a_number_and_its_unit() {
        for (text, prose) in [
            ("earned 12.3 FLN of 50 FLN.", "earned 12.3\u{a0}FLN of 50\u{a0}FLN."),
            ("97.0 % → 98 %", "97.0\u{a0}% → 98\u{a0}%"),
            ("0.1 ± 0.2 nats", "0.1\u{a0}±\u{a0}0.2\u{a0}nats"),
            ("rows 1 2 3", "rows 1 2 3"),
            (" 5 < 6 ", " 5 &lt; 6 "),
        ] {
            assert_eq!(escape_prose(text), prose);
        }
        assert_eq!(with_unit("97.0", Unit::Percent), "97.0\u{a0}%");
        assert_eq!(with_unit("3", Unit::Number), "3");
    }

    #[test]
    fn text_is_escaped_for_html() {
        assert_eq!(escape_html("<b>\"&"), "&lt;b&gt;&quot;&amp;");
    }
}
