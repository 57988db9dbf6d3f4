//! Means with error bars.

use std::fmt::Write as _;

use crate::axis::{Axes, Axis, Quantity, Unit};
use crate::marker::{SeriesMarker, ShapeRest};
use crate::plot_area::{AreaRectangle, BOTTOM, PlotArea, RIGHT, WIDTH, svg_start};
use crate::point::Point;
use crate::text::escape_html;

/// Height of a row: the name, and the error bar below it.
const ROW: f64 = 44.0;
const TOP: f64 = 6.0;
/// Space left of the area.
const LEFT: f64 = 16.0;
/// Maximum number of characters of a row name; more would not fit.
const LETTERS: usize = 46;

/// The ends of a confidence interval.
#[derive(Debug, Clone, Copy)]
pub struct ErrorBarBounds {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A mean with its confidence interval, drawn in a row of its own.
#[derive(Debug, Clone)]
pub struct ErrorBar {
    /// Name of the row.
    pub name: String,
    /// Index of the marker.
    pub series: usize,
    /// The mean.
    pub mean: f64,
    /// `None` for a single seed: the plot has a marker without a line.
    pub bounds: Option<ErrorBarBounds>,
}

/// Means with error bars, one below the other, and a line at zero.
#[must_use]
pub fn error_bars(title: &str, quantity: Quantity<'_>, rows: &[ErrorBar]) -> String {
    let ends = |row: &ErrorBar| row.bounds.map_or([row.mean; 2], |ends| [ends.low, ends.high]);
    let across = Axis::covering(quantity, rows.iter().flat_map(ends).chain([0.0]));
    let row = Quantity { name: "", unit: Unit::Number };
    let axes = Axes { x: across, y: Axis::between(row, 0.0..=1.0) };
    let height = TOP + ROW * rows.len().max(1) as f64 + BOTTOM;
    let bottom = height - BOTTOM;
    let rectangle = AreaRectangle { left: LEFT, right: WIDTH - RIGHT, top: TOP, bottom };
    let area = PlotArea::new(&axes, rectangle);
    let mut svg = svg_start(title, height);
    area.columns(&mut svg);
    let zero = area.x(0.0);
    let _ = write!(
        svg,
        "<line x1=\"{zero:.1}\" x2=\"{zero:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" class=\"zero\"/>"
    );
    for (at, row) in rows.iter().enumerate() {
        draw_row(&mut svg, &area, row, TOP + ROW * at as f64);
    }
    svg + "</svg>"
}

fn draw_row(svg: &mut String, area: &PlotArea<'_>, row: &ErrorBar, top: f64) {
    let name: String = row.name.chars().take(LETTERS).collect();
    let marker = SeriesMarker::new(row.series);
    let y = top + 30.0;
    let _ = write!(
        svg,
        "<text class=\"row\" x=\"2\" y=\"{:.1}\">{}</text>",
        top + 15.0,
        escape_html(&name)
    );
    if let Some(ErrorBarBounds { low, high }) = row.bounds {
        let _ = write!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\" \
             stroke-width=\"3\"/>",
            area.x(low),
            area.x(high),
            marker.colour().css()
        );
    }
    svg.push_str(&marker.shape(Point { x: area.x(row.mean), y }, 5.5, ShapeRest::default()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFIT: Quantity<'static> = Quantity { name: "profit", unit: Unit::Florins };

    #[test]
    fn names_are_escaped_and_a_single_seed_has_no_bar() {
        let row = |ends| ErrorBar { name: "<b>".to_owned(), series: 0, mean: 0.5, bounds: ends };
        let whole = error_bars("t", PROFIT, &[row(Some(ErrorBarBounds { low: -1.0, high: 2.0 }))]);
        assert!(whole.contains("&lt;b&gt;") && whole.contains("stroke-width=\"3\""), "{whole}");
        let one = error_bars("t", PROFIT, &[row(None)]);
        assert!(one.contains("<circle") && !one.contains("stroke-width=\"3\""), "{one}");
    }

    #[test]
    fn the_axis_has_a_title_with_a_unit() {
        let svg = error_bars("a", PROFIT, &[]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
        assert!(svg.contains(">profit, FLN</text>") && !svg.contains("NaN"), "{svg}");
    }
}
