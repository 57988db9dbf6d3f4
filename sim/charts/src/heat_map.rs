//! Heat maps: a value for every pair of a row and a column. A heat map is a table, which keeps its
//! text legible and scrolls in its box on a narrow screen.

use std::fmt::Write as _;

use crate::text::{escape_html, escape_prose};

/// Maximum number of characters of a row's or a column's name.
const LETTERS: usize = 12;

/// How the opacity of a cell grows with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shading {
    /// In proportion.
    Linear,
    /// With the square root, so that small values are visible beside large ones.
    SquareRoot,
}

/// A cell of a heat map.
#[derive(Debug, Clone)]
pub struct HeatCell {
    /// Its value, which sets the colour.
    pub value: f64,
    /// Its text.
    pub text: String,
    /// Its tooltip; empty for none.
    pub tooltip: String,
}

/// The names along one side of a heat map.
#[derive(Debug, Clone, Copy)]
pub struct HeatSide<'a> {
    /// The kind of thing that the names name: `round`.
    pub title: &'a str,
    /// The names.
    pub names: &'a [String],
}

/// The values over two sides.
#[derive(Debug, Clone)]
pub struct HeatMap<'a> {
    /// The names of the columns.
    pub columns: HeatSide<'a>,
    /// The names of the rows.
    pub rows: HeatSide<'a>,
    /// The cells, row by row; `None` where there is no result.
    pub cells: Vec<Option<HeatCell>>,
    /// How the opacity grows.
    pub shading: Shading,
}

/// Draws the heat map. Negative and positive cells have different colours. The opacity grows with
/// the distance from zero, or from the smallest value if no value is negative.
#[must_use]
pub fn heat_map(title: &str, map: &HeatMap<'_>) -> String {
    let values = map.cells.iter().flatten().map(|cell| cell.value);
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"heat\" aria-label=\"{}\"><tr><th class=\"axis\">{} ↓ \
         {}&nbsp;→</th>",
        escape_html(title),
        escape_html(last_part(map.rows.title)),
        escape_html(last_part(map.columns.title))
    );
    for name in map.columns.names {
        let _ = write!(html, "<th>{}</th>", short(name));
    }
    html.push_str("</tr>");
    let columns = map.columns.names.len();
    for (row, name) in map.rows.names.iter().enumerate() {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", short(name));
        for column in 0..columns {
            let cell = map.cells.get(row * columns + column).and_then(Option::as_ref);
            let (class, strength) = cell_style(cell, low..=high, map.shading);
            let text = cell.map_or("–", |cell| cell.text.as_str());
            let tooltip = cell.filter(|cell| !cell.tooltip.is_empty());
            let tooltip = tooltip
                .map(|cell| format!(" title=\"{}\"", escape_prose(&cell.tooltip)))
                .unwrap_or_default();
            let _ = write!(
                html,
                "<td class=\"{class}\" style=\"--strength:{strength:.0}%\"{tooltip}>{}</td>",
                escape_html(text)
            );
        }
        html.push_str("</tr>");
    }
    html + "</table></div>"
}

/// CSS class of a cell, and its opacity in per cent.
fn cell_style(
    cell: Option<&HeatCell>,
    range: std::ops::RangeInclusive<f64>,
    shading: Shading,
) -> (&'static str, f64) {
    let Some(value) = cell.map(|cell| cell.value).filter(|value| value.is_finite()) else {
        return ("none", 0.0);
    };
    let (low, high) = range.into_inner();
    let opacity = |from: f64, to: f64| {
        let part = (value - from) / (to - from);
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 1.0 };
        let part = if shading == Shading::SquareRoot { part.sqrt() } else { part };
        5.0 + 60.0 * part
    };
    // With values on both sides of zero, the colour shows the sign.
    let furthest = low.abs().max(high.abs());
    match (low < 0.0, value < 0.0) {
        (true, true) => ("down", opacity(0.0, -furthest)),
        (true, false) => ("up", opacity(0.0, furthest)),
        (false, _) => ("up", opacity(low, high)),
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

    fn cell(value: f64) -> HeatCell {
        HeatCell { value, text: format!("{value:.2}"), tooltip: "5 FLN".to_owned() }
    }

    #[test]
    fn every_pair_has_a_cell_and_negative_cells_have_another_colour() {
        let (across, down) = (["1".to_owned(), "2".to_owned()], ["x<".to_owned()]);
        let map = |cells| HeatMap {
            columns: HeatSide { title: "a.b", names: &across },
            rows: HeatSide { title: "c.d", names: &down },
            cells,
            shading: Shading::Linear,
        };
        let html = heat_map("t", &map(vec![Some(cell(-1.0)), Some(cell(2.0))]));
        assert_eq!(html.matches("<td").count(), 2);
        assert!(html.contains("\"down\"") && html.contains("\"up\"") && html.contains("x&lt;"));
        assert!(html.contains(">-1.00<") && html.contains(">2.00<") && html.contains("d ↓"));
        assert!(html.contains(" title=\"5\u{a0}FLN\""), "{html}");
        let one = heat_map("t", &map(vec![Some(cell(3.0)), None]));
        assert!(one.contains("\"none\"") && !one.contains("NaN"), "{one}");
        let opacity = |value| cell_style(Some(&cell(value)), 5.0..=9.0, Shading::Linear).1;
        assert_eq!((opacity(5.0), opacity(9.0)), (5.0, 65.0));
    }

    #[test]
    fn a_square_root_makes_small_values_visible() {
        let opacity = |shading| cell_style(Some(&cell(0.01)), -1.0..=1.0, shading).1;
        assert!((opacity(Shading::Linear) - 5.6).abs() < 1e-9);
        assert!((opacity(Shading::SquareRoot) - 11.0).abs() < 1e-9);
    }

    #[test]
    fn a_wide_heat_map_scrolls_in_its_box() {
        let sides = HeatSide { title: "t", names: &[] };
        let map =
            HeatMap { columns: sides, rows: sides, cells: Vec::new(), shading: Shading::Linear };
        let html = heat_map("t", &map);
        assert!(html.starts_with("<div class=\"scroll\">") && html.ends_with("</table></div>"));
    }
}
