//! Lines and scattered points over two axes.

use std::fmt::Write as _;

use crate::axis::{Axes, Axis};
use crate::legend::{Sample, legend};
use crate::line_style::LineStyle;
use crate::marker::{SeriesMarker, ShapeRest};
use crate::number_format::format_number;
use crate::plot_area::{AreaRectangle, HEIGHT, PlotArea, svg_start};
use crate::point::Point;
use crate::text::{escape_html, with_unit};

/// The most points of a line that are marked; more would hide the line.
const MARKED_MAX: usize = 24;
/// Radius of the points of a line.
const RADIUS: f64 = 3.4;
/// Height from which on a rise of the last point leaves no space for a label below it.
const STEEP_RISE: f64 = 40.0;

/// A line with its name.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Its style.
    pub style: LineStyle,
    /// Its points, in order; those that are not finite are left out.
    pub points: Vec<Point>,
}

impl<'a> Line<'a> {
    /// The line of a series by its index: `values` at `first`, `first + 1`, and so on.
    #[must_use]
    pub fn from_values(name: &'a str, place: usize, first: u32, values: &[f64]) -> Self {
        let point = |(at, y): (usize, &f64)| Point { x: f64::from(first) + at as f64, y: *y };
        let points = values.iter().enumerate().map(point).collect();
        Self { name, style: LineStyle::for_series(place), points }
    }
}

/// A point of a series.
#[derive(Debug, Clone, Copy)]
pub struct ScatterPoint {
    /// Its place.
    pub at: Point,
    /// Index of its series.
    pub series: usize,
}

fn is_finite(point: &Point) -> bool {
    point.x.is_finite() && point.y.is_finite()
}

/// Draws a line, with a marker and a tooltip at each point unless there are many.
pub(crate) fn draw_line(svg: &mut String, area: &PlotArea<'_>, axes: &Axes, line: &Line<'_>) {
    let points: Vec<Point> = line.points.iter().copied().filter(is_finite).collect();
    let place = |point: &Point| Point { x: area.x(point.x), y: area.y(point.y) };
    if line.style.has_line && !points.is_empty() {
        let mut path = String::new();
        for (at, Point { x, y }) in points.iter().map(place).enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let _ = writeln!(svg, "<path class=\"line\" d=\"{path}\" {}/>", line.style.stroke());
    }
    let Some(marker) = line.style.marker.filter(|_| points.len() <= MARKED_MAX) else { return };
    for point in &points {
        let tooltip = format!(
            "<title>{}, {} {}: {}</title>",
            escape_html(line.name),
            escape_html(axes.x.name()),
            escape_html(&axes.x.tick_label(point.x)),
            described(&axes.y, point.y)
        );
        let rest = ShapeRest { attributes: "", content: &tooltip };
        let radius = if line.style.has_line { RADIUS } else { 2.0 * RADIUS };
        svg.push_str(&marker.shape(place(point), radius, rest));
    }
}

/// A value with the unit of its axis.
fn described(axis: &Axis, value: f64) -> String {
    escape_html(&with_unit(&format_number(value), axis.unit()))
}

/// A plot of lines. A single line has its last value beside its end, several have a legend.
#[must_use]
pub fn line_plot(title: &str, axes: &Axes, lines: &[Line<'_>]) -> String {
    let area = PlotArea::new(axes, AreaRectangle::WHOLE);
    let mut svg = svg_start(title, HEIGHT);
    area.grid(&mut svg);
    for line in lines {
        draw_line(&mut svg, &area, axes, line);
    }
    if let [line] = lines
        && let Some(last) = line.points.iter().rev().find(|point| is_finite(point))
    {
        let earlier = line.points.iter().rev().filter(|point| is_finite(point)).nth(1);
        let rise = earlier.map_or(0.0, |earlier| area.y(earlier.y) - area.y(last.y));
        let end = Point { x: area.x(last.x), y: area.y(last.y) };
        let place = label_place(end, rise);
        let _ = write!(
            svg,
            "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            place.x,
            place.y,
            described(&axes.y, last.y)
        );
    }
    let entries = lines.iter().map(|line| (line.name, Sample::Line(line.style)));
    svg + "</svg>" + &if lines.len() > 1 { legend(entries) } else { String::new() }
}

/// The lower right corner of the label of a line's end: above it, or in the uppermost part of the
/// area below it, or to its left where the line rises steeply.
fn label_place(end: Point, rise: f64) -> Point {
    let is_high = end.y < AreaRectangle::WHOLE.top + 20.0;
    match (is_high, rise > STEEP_RISE) {
        (false, _) => Point { y: end.y - 12.0, ..end },
        (true, false) => Point { y: end.y + 22.0, ..end },
        (true, true) => Point { x: end.x - 10.0, y: end.y + 4.0 },
    }
}

/// A scatter plot of several series.
#[must_use]
pub fn scatter_plot(title: &str, axes: &Axes, dots: &[ScatterPoint], names: &[&str]) -> String {
    let area = PlotArea::new(axes, AreaRectangle::WHOLE);
    let mut svg = svg_start(title, HEIGHT);
    area.grid(&mut svg);
    let rest = ShapeRest { attributes: " opacity=\"0.65\"", content: "" };
    for dot in dots.iter().filter(|dot| is_finite(&dot.at)) {
        let place = Point { x: area.x(dot.at.x), y: area.y(dot.at.y) };
        svg.push_str(&SeriesMarker::new(dot.series).shape(place, 3.2, rest));
    }
    let entries = names.iter().enumerate().map(|(at, name)| (*name, Sample::Marker(at)));
    svg + "</svg>" + &legend(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Quantity, Unit};

    #[test]
    fn the_label_of_the_last_value_is_beside_its_line() {
        let top = AreaRectangle::WHOLE.top;
        let places = [(top + 100.0, 90.0), (top, 5.0), (top, 90.0)];
        let places = places.map(|(y, rise)| label_place(Point { x: 400.0, y }, rise));
        assert!(places[0].y < top + 100.0, "above a low end");
        assert!(places[1].y > top + 12.0, "below a high end");
        assert!(places[2].x < 400.0, "to the left of a steep rise");
    }

    fn axes() -> Axes {
        let round = Quantity { name: "round", unit: Unit::Number };
        let paid = Quantity { name: "paid", unit: Unit::Florins };
        Axes { x: Axis::counting(round, 0.0..=2.0), y: Axis::between(paid, 0.0..=10.0) }
    }

    #[test]
    fn an_empty_plot_has_axis_titles_and_is_valid_svg() {
        for svg in [
            line_plot("c", &axes(), &[Line::from_values("d", 0, 1, &[])]),
            line_plot("c", &axes(), &[]),
            scatter_plot("b", &axes(), &[], &[]),
        ] {
            assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains(">paid, FLN</text>") && svg.contains(">round</text>"), "{svg}");
        }
    }

    #[test]
    fn one_line_shows_its_last_value_and_several_have_a_legend() {
        let one = line_plot("t", &axes(), &[Line::from_values("<a>", 0, 0, &[1.0, f64::NAN, 9.0])]);
        assert!(one.contains("class=\"strong\"") && one.contains(">9.00\u{a0}FLN</text>"), "{one}");
        assert!(one.contains("&lt;a&gt;, round 2: 9.00\u{a0}FLN") && !one.contains("NaN"), "{one}");
        let two = ["a", "b"].map(|name| Line::from_values(name, 0, 0, &[1.0]));
        let two = line_plot("t", &axes(), &two);
        assert!(two.contains("class=\"legend\"") && !two.contains("class=\"strong\""), "{two}");
    }
}
