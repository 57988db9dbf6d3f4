//! Several plots beside each other in one SVG file, with one legend.

use std::fmt::Write as _;

use crate::axis::Axes;
use crate::line_plot::{Line, draw_line};
use crate::page::standalone_svg;
use crate::plot_area::{AreaRectangle, PlotArea};
use crate::point::Point;
use crate::text::escape_html;

const COLUMNS: usize = 2;
const PANEL_WIDTH: f64 = 470.0;
const PANEL_HEIGHT: f64 = 294.0;
/// Margins of a panel, for its title, tick labels and axis titles.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 44.0;
const LEGEND_COLUMNS: usize = 4;
const LEGEND_LINE: f64 = 19.0;
/// Height of the title above the legend.
const HEAD: f64 = 52.0;

/// A plot among several.
#[derive(Debug, Clone)]
pub struct Panel<'a> {
    /// Its title.
    pub title: &'a str,
    /// Its axes.
    pub axes: Axes,
    /// Its lines, from back to front.
    pub lines: Vec<Line<'a>>,
}

/// Draws the panels as an SVG file. `legend` has the lines of the legend; their points are not
/// drawn.
#[must_use]
pub fn panels(title: &str, legend: &[Line<'_>], panels: &[Panel<'_>]) -> String {
    let rows = panels.len().div_ceil(COLUMNS) as f64;
    let width = COLUMNS as f64 * PANEL_WIDTH + 20.0;
    let above = HEAD + legend.len().div_ceil(LEGEND_COLUMNS) as f64 * LEGEND_LINE;
    let height = above + rows * PANEL_HEIGHT + 10.0;
    let escaped = escape_html(title);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\"><title>{escaped}</title><text class=\"head\" x=\"16\" \
         y=\"26\">{escaped}</text>\n"
    );
    for (at, line) in legend.iter().enumerate() {
        let column = (width - 20.0) / LEGEND_COLUMNS as f64;
        let x = 16.0 + (at % LEGEND_COLUMNS) as f64 * column;
        let y = HEAD + (at / LEGEND_COLUMNS) as f64 * LEGEND_LINE;
        svg.push_str(&line.style.sample(Point { x, y: y - 10.0 }));
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 32.0, escape_html(line.name));
    }
    for (at, panel) in panels.iter().enumerate() {
        let x = 10.0 + (at % COLUMNS) as f64 * PANEL_WIDTH;
        let y = above + (at / COLUMNS) as f64 * PANEL_HEIGHT;
        draw_panel(&mut svg, panel, Point { x, y });
    }
    standalone_svg(&(svg + "</svg>"))
}

fn draw_panel(svg: &mut String, panel: &Panel<'_>, corner: Point) {
    let rectangle = AreaRectangle {
        left: corner.x + LEFT,
        right: corner.x + PANEL_WIDTH - RIGHT,
        top: corner.y + TOP,
        bottom: corner.y + PANEL_HEIGHT - BOTTOM,
    };
    let area = PlotArea::new(&panel.axes, rectangle);
    let _ = write!(
        svg,
        "<text class=\"strong\" x=\"{}\" y=\"{}\">{}</text>",
        corner.x + 6.0,
        corner.y + 16.0,
        escape_html(panel.title)
    );
    area.grid(svg);
    for line in &panel.lines {
        draw_line(svg, &area, &panel.axes, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Axis, Quantity, Unit};
    use crate::line_style::LineStyle;
    use crate::palette::Colour;

    #[test]
    fn every_panel_has_axis_titles_and_the_file_has_one_legend() {
        let time = Quantity { name: "time", unit: Unit::Seconds };
        let error = Quantity { name: "error", unit: Unit::Percent };
        let axis = |quantity| Axis::logarithmic(quantity, 0.1..=10.0, |value| value.to_string());
        let axes = Axes { x: axis(time), y: axis(error) };
        let line =
            |points| Line { name: "a&b", style: LineStyle::new(Colour::Ink, "", 1.4), points };
        let at = |x, y| Point { x, y };
        let panel = |title| Panel {
            title,
            axes: axes.clone(),
            lines: vec![line(vec![at(0.1, 10.0), at(10.0, 0.1)])],
        };
        let svg = panels("t", &[line(Vec::new())], &[panel("one"), panel("two"), panel("three")]);
        assert_eq!(svg.matches(">time, s</text>").count(), 3);
        assert_eq!(svg.matches(">error, %</text>").count(), 3);
        assert_eq!(svg.matches("class=\"line\"").count(), 3);
        assert_eq!(svg.matches(">a&amp;b</text>").count(), 1);
        assert!(svg.starts_with("<svg xmlns="), "{svg}");
    }
}
