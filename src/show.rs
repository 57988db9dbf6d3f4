//! Output for people and programs: aligned tables, readable amounts, and the same values exactly as
//! JSON.

mod html;

use std::fmt::Write as _;

use anstyle::{AnsiColor, Color, Style};
pub use florin_charts::thousands;
use florin_protocol::{AbandonReason, Amount, PayReason, TaskPhase, Timestamp, VoidReason};
use serde::Serialize;

/// Table headers.
pub const HEAD: Style = Style::new().bold();
/// Less important text.
pub const DIM: Style = Style::new().dimmed();
/// Success.
pub const GOOD: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Green)));
/// Failure.
pub const BAD: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Red)));
/// Attention.
pub const NOTE: Style = Style::new().fg_color(Some(Color::Ansi(AnsiColor::Yellow)));

/// Decimals of a printed amount.
const DECIMALS_SHOWN: usize = 4;

/// Width of a table of sentences in a pipe.
const PIPE_WIDTH: usize = 100;
/// Number of spaces between two columns.
const GAP: usize = 2;
/// Number of spaces between two parts of a line.
const PART_GAP: usize = 3;
/// Width of a label and the space behind it.
const LABEL_WIDTH: usize = 9;
/// Minimum width of a column of words, unless all of its words are shorter.
const WRAPPED_MIN: usize = 20;

/// Formats an amount for people: thousands separators and four decimals, rounded down; a positive
/// amount never prints as "0.0000".
pub(crate) fn fln(amount: Amount) -> String {
    let short = amount.short();
    if short.starts_with('<') {
        return short;
    }
    let (whole, part) = short.split_once('.').unwrap_or((&short, ""));
    format!("{}.{part:0<DECIMALS_SHOWN$}", thousands(whole))
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

/// The outcome of a void round, with its reason.
pub(crate) const fn void(reason: VoidReason) -> &'static str {
    match reason {
        VoidReason::Unresolved => "void: gap unresolved",
        VoidReason::NoUpdateRemains => "void: no update",
        VoidReason::MajorityExcluded => "void: majority excluded",
        VoidReason::NoImprovement => "void: no improvement",
    }
}

/// Why a round was abandoned.
pub(crate) fn abandoned(reason: AbandonReason) -> String {
    match reason {
        AbandonReason::TooFewUpdates { got, needed } => format!("{got} updates, {needed} needed"),
        AbandonReason::ValuationFailed => "no valuation".to_owned(),
        AbandonReason::TaskEnded => "the task ended".to_owned(),
    }
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
        PayReason::CarriedOver => "carried over",
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

/// Formats a time as a date in UTC, to the second.
pub(crate) fn moment(at: Timestamp) -> String {
    let date = date(at);
    let minute = date.trim_end_matches(" UTC");
    format!("{minute}:{:02} UTC", at.0 / 1_000 % 60)
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    anstream::println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// An event of a command that runs for a while, as JSON: its name, then its fields.
#[derive(Debug, Serialize)]
pub(crate) struct JsonEvent<'a> {
    /// The name.
    pub(crate) event: &'a str,
    /// An object.
    #[serde(flatten)]
    pub(crate) fields: serde_json::Value,
}

/// Prints a value as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) {
    let line = serde_json::to_string(value).expect("events have text keys and finite numbers");
    anstream::println!("{line}");
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
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Creates a cell with a style.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
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
pub struct TextTable {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// Creates an empty table. A title that starts with `>` is a right-aligned column.
    pub fn new(titles: &[&'static str]) -> Self {
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
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether the table has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The width of each column: that of its widest cell, and at least that of its title.
    fn widths(&self, title_width: fn(&str) -> usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(t, _)| title_width(t)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        widths
    }

    /// Renders the table as text, with ANSI colours, in lines of at most `limit` characters: the
    /// widest column of words is wrapped, and if that is not enough, each row becomes a list of
    /// titles and values.
    pub(crate) fn render(&self, limit: Option<usize>) -> String {
        let mut widths = self.widths(visible_width);
        let mut out = String::new();
        if limit.is_some_and(|limit| !self.shrink(&mut widths, limit)) {
            self.records(&mut out, limit);
            return out;
        }
        let titles: Vec<Cell> =
            self.columns.iter().map(|(title, _)| Cell::styled(*title, HEAD)).collect();
        self.wrapped_row(&mut out, &widths, &titles);
        let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
        self.line(&mut out, &widths, rule.iter().map(|rule| (rule.as_str(), DIM)));
        for row in &self.rows {
            self.wrapped_row(&mut out, &widths, row);
        }
        out
    }

    fn wrapped_row(&self, out: &mut String, widths: &[usize], row: &[Cell]) {
        let wrapped: Vec<Vec<&str>> =
            row.iter().zip(widths).map(|(cell, width)| wrap(&cell.text, *width)).collect();
        let lines = wrapped.iter().map(Vec::len).max().unwrap_or(1);
        for at in 0..lines {
            let parts = wrapped.iter().map(|lines| lines.get(at).copied().unwrap_or_default());
            self.line(out, widths, parts.zip(row.iter().map(|cell| cell.style)));
        }
    }

    /// Narrows columns until a line has at most `limit` characters: first those with long titles,
    /// then the widest column of words. Returns false if that column would become too narrow.
    fn shrink(&self, widths: &mut Vec<usize>, limit: usize) -> bool {
        if excess(widths, limit) > 0 {
            *widths = self.widths(longest_word);
        }
        let excess = excess(widths, limit);
        if excess == 0 {
            return true;
        }
        let columns = self.columns.iter().zip(widths).enumerate();
        let words = columns.filter(|(_, ((_, align), _))| *align == Align::Left);
        match words.max_by_key(|(_, (_, width))| **width) {
            Some((at, ((title, _), width))) => {
                let cells = self.rows.iter().filter_map(|row| row.get(at));
                let word = cells.map(|cell| longest_word(&cell.text)).max().unwrap_or_default();
                let least = longest_word(title).max(word.min(WRAPPED_MIN));
                let fits = *width >= excess + least;
                *width = width.saturating_sub(excess).max(least);
                fits
            }
            None => false,
        }
    }

    /// Renders each row as a list of titles and values, without empty values.
    fn records(&self, out: &mut String, limit: Option<usize>) {
        for (at, row) in self.rows.iter().enumerate() {
            if at > 0 {
                out.push('\n');
            }
            let pairs = self.columns.iter().zip(row).filter(|(_, cell)| !cell.text.is_empty());
            let pairs: Vec<(&str, &str, Style)> =
                pairs.map(|((title, _), cell)| (*title, cell.text.as_str(), cell.style)).collect();
            pair_lines(out, &pairs, limit);
        }
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

    /// Prints the table, wrapped also in a pipe: for sentences, which no program reads.
    pub(crate) fn print_wrapped(&self) {
        anstream::print!("{}", self.render(output_width().or(Some(PIPE_WIDTH))));
    }

    /// Prints the table.
    pub fn print(&self) {
        anstream::print!("{}", self.render(output_width()));
    }
}

/// Prints names and values in two columns.
pub(crate) fn facts(facts: &[(&str, String)]) {
    let pairs: Vec<(&str, &str, Style)> =
        facts.iter().map(|(name, value)| (*name, value.as_str(), Style::new())).collect();
    let mut out = String::new();
    pair_lines(&mut out, &pairs, output_width());
    anstream::print!("{out}");
}

/// Renders names and values in two columns; values are wrapped to lines of at most `limit`
/// characters.
fn pair_lines(out: &mut String, pairs: &[(&str, &str, Style)], limit: Option<usize>) {
    let width = pairs.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or_default();
    let left = limit.unwrap_or(usize::MAX).saturating_sub(width + GAP).max(WRAPPED_MIN);
    for (name, value, style) in pairs {
        let pad = " ".repeat(width - name.chars().count());
        for (at, line) in wrap(value, left).into_iter().enumerate() {
            let _ = match at {
                0 => writeln!(out, "{DIM}{name}{DIM:#}{pad}  {style}{line}{style:#}"),
                _ => writeln!(out, "{:width$}  {style}{line}{style:#}", ""),
            };
        }
    }
}

/// Number of characters by which a line of columns exceeds `limit`.
fn excess(widths: &[usize], limit: usize) -> usize {
    let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    total.saturating_sub(limit)
}

fn longest_word(text: &str) -> usize {
    text.split(' ').map(visible_width).max().unwrap_or_default()
}

/// Number of characters without colours.
fn visible_width(text: &str) -> usize {
    visible(text).count()
}

/// The positions of the characters that are not part of a colour.
fn visible(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut in_colour = false;
    text.char_indices().filter_map(move |(at, letter)| {
        let was_in_colour = in_colour;
        in_colour = letter == '\u{1b}' || in_colour && letter != 'm';
        (!was_in_colour && !in_colour).then_some(at)
    })
}

/// Breaks a text into lines of at most `width` characters, at spaces where possible; colours have
/// no width. An empty text is one empty line.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    loop {
        let Some(end) = visible(rest).nth(width) else {
            lines.push(rest);
            return lines;
        };
        // A space right behind the line is a place to break as well.
        let behind = rest[end..].chars().next().map_or(end, |next| end + next.len_utf8());
        let at = rest[..behind].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
}

/// Number of characters in a line of the output: COLUMNS, otherwise the terminal's width, otherwise
/// no limit, so that programs read whole lines from a pipe.
fn output_width() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || {
        let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
        Some(usize::from(width.0))
    };
    columns.or_else(terminal).filter(|width| *width >= WRAPPED_MIN)
}

/// Prints a hint for the next step.
pub(crate) fn hint(text: &str) {
    paragraph("", text, DIM);
}

/// Prints a sentence, wrapped to the width of the terminal.
pub(crate) fn sentence(text: &str) {
    paragraph("", text, Style::new());
}

/// Prints a text behind a label in the first column, wrapped as [`paragraph`]. The text may have
/// colours.
pub(crate) fn labelled(label: &str, text: &str) {
    let label = Cell::styled(format!("{label:<LABEL_WIDTH$}"), HEAD);
    anstream::print!("{}", render_paragraph(&label, text, Style::new(), output_width()));
}

/// Prints the parts of a line, separated by spaces. On a narrow terminal the line breaks between
/// parts, and further lines are indented by the first part.
pub(crate) fn parts(parts: &[String]) -> String {
    render_parts(parts, output_width().unwrap_or(usize::MAX))
}

fn render_parts(parts: &[String], limit: usize) -> String {
    let indent = parts.first().map_or(0, |first| visible_width(first));
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if visible_width(line) + PART_GAP + visible_width(part) <= limit => {
                let _ = write!(line, "{:PART_GAP$}{part}", "");
            }
            Some(_) => lines.push(format!("{:indent$}{:PART_GAP$}{part}", "", "")),
            None => lines.push(part.clone()),
        }
    }
    lines.join("\n")
}

/// Prints a text behind a dimmed prefix, each line in the style. On a terminal it is wrapped, and
/// further lines are indented by the prefix; into a pipe it stays one line.
pub(crate) fn paragraph(prefix: &str, text: &str, style: Style) {
    let prefix = Cell::styled(prefix, DIM);
    anstream::print!("{}", render_paragraph(&prefix, text, style, output_width()));
}

fn render_paragraph(prefix: &Cell, text: &str, style: Style, limit: Option<usize>) -> String {
    let Cell { text: prefix, style: prefix_style } = prefix;
    let indent = prefix.chars().count();
    let left = limit.unwrap_or(usize::MAX).saturating_sub(indent).max(WRAPPED_MIN);
    let mut out = String::new();
    for (at, line) in text.split('\n').flat_map(|line| wrap(line, left)).enumerate() {
        let _ = match at {
            0 => writeln!(out, "{prefix_style}{prefix}{prefix_style:#}{style}{line}{style:#}"),
            _ => writeln!(out, "{:indent$}{style}{line}{style:#}", ""),
        };
    }
    out
}

#[cfg(test)]
mod tests;
