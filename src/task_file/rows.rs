//! A range of a data set's rows, in a task file and on the command line.

use std::ops::Range;

use florin_learning::Dataset;

/// Parses a range of rows `A..B`, B excluded.
///
/// # Errors
/// A sentence with the expected form.
pub(crate) fn parse_rows(text: &str) -> Result<Range<usize>, String> {
    let wrong =
        || format!("{text:?} is not a range of rows: write A..B with A < B, such as 0..500");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let parse = |t: &str| t.trim().parse::<usize>().map_err(|_| wrong());
    let (from, to) = (parse(from)?, parse(to)?);
    if from < to { Ok(from..to) } else { Err(wrong()) }
}

/// Selects a range of a data set's rows.
///
/// # Errors
/// A sentence with the allowed range.
pub(crate) fn select_rows(data: &Dataset, range: Range<usize>) -> Result<Dataset, String> {
    if range.end > data.rows() {
        return Err(format!(
            "the data has {0} rows: write 0..{0} or a range within it",
            data.rows()
        ));
    }
    data.slice(range).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_a_rising_range() {
        assert_eq!(parse_rows("0..500").unwrap(), 0..500);
        for text in ["", "5", "5..5", "6..5", "a..b", "-1..5", "1...5"] {
            assert!(parse_rows(text).is_err(), "{text:?}");
        }
    }
}
