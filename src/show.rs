//! Output for people and programs: aligned tables, readable amounts, and the same values exactly as
//! JSON.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Color, Style};
use florin_protocol::{Amount, PayReason, TaskPhase, Timestamp};
use serde::Serialize;

/// Table headers.
pub(crate) const HEAD: Style = Style::new().bold();
/// Less important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Success.
pub(crate) const GOOD: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Green)));
/// Failure.
pub(crate) const BAD: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Red)));
/// Attention.
pub(crate) const NOTE: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Yellow)));

/// Decimals of a printed amount.
const DECIMALS_SHOWN: usize = 4;

/// Formats an amount for people: thousands separators and four decimals, rounded down; a positive
/// amount never prints as "0.0000".
pub(crate) fn fln(amount: Amount) -> String {
    let exact = amount.to_string();
    let (whole, part) = exact.split_once('.').unwrap_or((&exact, ""));
    let shown: String = part.chars().chain("0000".chars()).take(DECIMALS_SHOWN).collect();
    if whole == "0" && shown == "0000" && !amount.is_zero() {
        return "<0.0001".to_owned();
    }
    format!("{}.{shown}", thousands(whole))
}

/// Inserts thousands separators.
pub(crate) fn thousands(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats an amount for programs: base units, as text.
pub(crate) fn units(amount: Amount) -> String {
    amount.units().to_string()
}

/// Formats wei as ether, with six decimals, rounded up so that a cost is never understated.
#[cfg(feature = "ethereum")]
pub(crate) fn ether(wei: u128) -> String {
    const WEI_PER_MICRO: u128 = 1_000_000_000_000;
    let micro = wei.div_ceil(WEI_PER_MICRO);
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

/// A fraction of a whole, in per cent.
#[expect(clippy::cast_precision_loss, reason = "for people, to one decimal")]
pub(crate) fn share(part: Amount, whole: Amount) -> String {
    if whole.is_zero() {
        return "–".to_owned();
    }
    format!("{:.1} %", 100.0 * part.units() as f64 / whole.units() as f64)
}

/// Correct predictions as a fraction of all rows, in per cent.
pub(crate) fn accuracy(correct: u32, rows: u32) -> String {
    format!("{:.1} %", 100.0 * f64::from(correct) / f64::from(rows.max(1)))
}

/// A phase in a word or two.
pub(crate) fn phase(phase: TaskPhase) -> &'static str {
    match phase {
        TaskPhase::AwaitingBlobs => "awaiting model and holdout",
        TaskPhase::Enrolling => "enrolling",
        TaskPhase::Committing => "training",
        TaskPhase::Revealing => "uploading",
        TaskPhase::Valuing => "valuing",
        TaskPhase::Settling => "settling",
        TaskPhase::Closing => "closing",
        TaskPhase::Done => "done",
    }
}

/// A reason in a word or two; the statement has the whole sentence.
pub(crate) fn reason(reason: PayReason) -> &'static str {
    match reason {
        PayReason::Paid => "paid",
        PayReason::Withheld => "not yet significant",
        PayReason::Idle => "no change",
        PayReason::NotHelpful => "no positive score",
        PayReason::NoImprovement => "no improvement",
        PayReason::Excluded => "excluded",
    }
}

/// Formats a time as a date in UTC.
pub(crate) fn date(at: Timestamp) -> String {
    let seconds = at.0 / 1_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = crate::task_file::civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest % 3_600 / 60)
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    anstream::println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A cell and its style.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Creates a cell with a style.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Self {
        Self { text: value.to_string(), style: Style::new() }
    }
}

/// A table with aligned columns. Colours are removed if the output is not a terminal.
#[derive(Debug)]
pub(crate) struct TextTable {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// Creates an empty table. A title that starts with `>` is a right-aligned column.
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        let columns = titles
            .iter()
            .map(|title| match title.strip_prefix('>') {
                Some(title) => (title, Align::Right),
                None => (*title, Align::Left),
            })
            .collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether the table has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(t, _)| t.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        widths
    }

    /// Renders the table as text, with ANSI colours.
    pub(crate) fn render(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        let titles = self.columns.iter().map(|(title, _)| (*title, HEAD));
        self.line(&mut out, &widths, titles);
        let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        self.line(&mut out, &widths, rule.iter().map(|rule| (rule.as_str(), DIM)));
        for row in &self.rows {
            self.line(&mut out, &widths, row.iter().map(|cell| (cell.text.as_str(), cell.style)));
        }
        out
    }

    fn line<'a>(
        &self,
        out: &mut String,
        widths: &[usize],
        cells: impl Iterator<Item = (&'a str, Style)>,
    ) {
        let last = self.columns.len().saturating_sub(1);
        for (at, ((text, style), width)) in cells.zip(widths).enumerate() {
            let pad = " ".repeat(width.saturating_sub(text.chars().count()));
            let left = self.columns.get(at).is_none_or(|(_, align)| *align == Align::Left);
            let _ = match (left, at == last) {
                (true, true) => write!(out, "{style}{text}{style:#}"),
                (true, false) => write!(out, "{style}{text}{style:#}{pad}  "),
                (false, true) => write!(out, "{pad}{style}{text}{style:#}"),
                (false, false) => write!(out, "{pad}{style}{text}{style:#}  "),
            };
        }
        out.push('\n');
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        anstream::print!("{}", self.render());
    }
}

/// Prints names and values in two columns.
pub(crate) fn facts(facts: &[(&str, String)]) {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    for (name, value) in facts {
        let pad = " ".repeat(width - name.chars().count());
        anstream::println!("{DIM}{name}{DIM:#}{pad}  {value}");
    }
}

/// Prints a hint for the next step.
pub(crate) fn hint(text: &str) {
    anstream::println!("{DIM}{text}{DIM:#}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        text.parse().unwrap()
    }

    #[test]
    fn amounts_are_short_in_tables_and_exact_in_json() {
        for (text, shown) in [
            ("0", "0.0000"),
            ("12.5", "12.5000"),
            ("1234567.123456", "1,234,567.1234"),
            ("0.00001", "<0.0001"),
        ] {
            assert_eq!(fln(amount(text)), shown);
        }
        assert_eq!(units(amount("0.5")), "500000000000000000");
        assert_eq!(share(amount("1"), amount("8")), "12.5 %");
        assert_eq!(share(amount("1"), Amount::ZERO), "–");
        assert_eq!(ether(1_234_567_000_000_000_001), "1.234568");
        assert_eq!(ether(0), "0.000000");
    }

    #[test]
    fn numbers_are_right_aligned_and_words_left_aligned() {
        let mut table = TextTable::new(&["who", ">rows"]);
        table.row(["ann".into(), 5.into()]);
        table.row(["b".into(), 1_234.into()]);
        let text = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(text, "who  rows\n───  ────\nann     5\nb    1234\n");
    }

    #[test]
    fn ticks_are_printed_as_dates() {
        assert_eq!(date(Timestamp(0)), "1970-01-01 00:00 UTC");
        assert_eq!(date(Timestamp(1_709_210_096_000)), "2024-02-29 12:34 UTC");
    }
}
