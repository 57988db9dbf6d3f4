//! Heat maps: the value of a measure for every pair of two settings.

use std::fmt::Write as _;

use crate::{escape_html, format_number};

const CELL: f64 = 64.0;
const CELL_HEIGHT: f64 = 36.0;
/// Space for the row names, above the cells, and below them.
const LEFT: f64 = 96.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;
/// Maximum number of characters of a setting's value.
const LETTERS: usize = 10;

/// The values of a measure over two settings.
pub struct HeatMap<'a> {
    /// Name of the setting on the horizontal axis, and its values.
    pub columns: (&'a str, &'a [String]),
    /// Name of the setting on the vertical axis, and its values.
    pub rows: (&'a str, &'a [String]),
    /// The cells, row by row; `None` where there is no result.
    pub cells: Vec<Option<f64>>,
}

/// Draws the heat map as SVG. Negative and positive cells have different colours. The opacity grows
/// with the distance from zero, or from the smallest value if no value is negative.
#[must_use]
pub fn heat_map(title: &str, map: &HeatMap<'_>) -> String {
    let known = || map.cells.iter().flatten().copied().filter(|value| value.is_finite());
    let (low, high) = known()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let (columns, rows) = (map.columns.1.len(), map.rows.1.len());
    let (width, height) =
        (LEFT + CELL * columns as f64 + 8.0, TOP + CELL_HEIGHT * rows as f64 + BOTTOM);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" role=\"img\" \
         aria-label=\"{}\">",
        escape_html(title)
    );
    for (row, name) in map.rows.1.iter().enumerate() {
        let y = TOP + CELL_HEIGHT * (row as f64 + 0.5) + 4.0;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            short(name)
        );
    }
    for (column, name) in map.columns.1.iter().enumerate() {
        let (x, y) = (LEFT + CELL * (column as f64 + 0.5), height - BOTTOM + 16.0);
        let _ = write!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            short(name)
        );
    }
    for (at, value) in map.cells.iter().enumerate().take(columns * rows) {
        let (row, column) = (at / columns, at % columns);
        let (x, y) = (LEFT + CELL * column as f64, TOP + CELL_HEIGHT * row as f64);
        let (class, strength) = cell_style(*value, low, high);
        let text = value.map_or_else(|| "–".to_owned(), format_number);
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"4\" \
             class=\"{class}\" fill-opacity=\"{strength:.2}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\" class=\"value\">{text}</text>",
            CELL - 3.0,
            CELL_HEIGHT - 3.0,
            x + CELL / 2.0,
            y + CELL_HEIGHT / 2.0 + 3.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"14\" text-anchor=\"end\" class=\"axis\">{} ↓</text><text x=\"{:.1}\" \
         y=\"{:.1}\" text-anchor=\"middle\" class=\"axis\">{} →</text>",
        LEFT - 8.0,
        escape_html(last_part(map.rows.0)),
        LEFT + CELL * columns as f64 / 2.0,
        height - 6.0,
        escape_html(map.columns.0)
    );
    svg + "</svg>"
}

/// CSS class and opacity of a cell.
fn cell_style(value: Option<f64>, low: f64, high: f64) -> (&'static str, f64) {
    let Some(value) = value.filter(|value| value.is_finite()) else { return ("nothing", 0.3) };
    let share = |from: f64, to: f64| {
        let part = (value - from) / (to - from);
        0.12 + 0.68 * if part.is_finite() { part.clamp(0.0, 1.0) } else { 1.0 }
    };
    // With values on both sides of zero, the colour shows the sign.
    let furthest = low.abs().max(high.abs());
    match (low < 0.0, value < 0.0) {
        (true, true) => ("cold", share(0.0, -furthest)),
        (true, false) => ("warm", share(0.0, furthest)),
        (false, _) => ("warm", share(low, high)),
    }
}

/// The last part of a dotted key: `task.budget` becomes `budget`.
fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn short(name: &str) -> String {
    escape_html(&name.trim_matches('"').chars().take(LETTERS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_cell_and_negative_cells_have_another_colour() {
        let (across, down) = (["1".to_owned(), "2".to_owned()], ["x<".to_owned()]);
        let map = |cells| HeatMap { columns: ("a.b", &across), rows: ("c.d", &down), cells };
        let svg = heat_map("t", &map(vec![Some(-1.0), Some(2.0)]));
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains("cold") && svg.contains("warm") && svg.contains("x&lt;"));
        assert!(svg.contains(">-1.00<") && svg.contains(">2.00<") && svg.contains("d ↓"));
        let one = heat_map("t", &map(vec![Some(3.0), None]));
        assert!(one.contains("nothing") && !one.contains("NaN"), "{one}");
        assert_eq!(cell_style(Some(5.0), 5.0, 9.0).1, 0.12);
        assert_eq!(cell_style(Some(9.0), 5.0, 9.0).1, 0.8);
    }
}
