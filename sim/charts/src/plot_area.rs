//! The area of a plot: maps values to places, and draws grid, ticks and axis titles.

use std::fmt::Write as _;

use crate::axis::Axes;
use crate::text::escape_html;

/// Width of a plot in SVG units.
pub(crate) const WIDTH: f64 = 440.0;
/// Height of a plot in SVG units.
pub(crate) const HEIGHT: f64 = 260.0;
/// Space right of the area.
pub(crate) const RIGHT: f64 = 14.0;
/// Space below the area, for tick labels and the title of the horizontal axis. The style sheet
/// enlarges the text on narrow screens, where it must fit too.
pub(crate) const BOTTOM: f64 = 46.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 30.0;

/// Opens the SVG of a plot.
pub(crate) fn svg_start(title: &str, height: f64) -> String {
    let title = escape_html(title);
    format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">"
    )
}

/// The place of the area in its SVG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AreaRectangle {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl AreaRectangle {
    /// The area of a plot that has the SVG for itself.
    pub(crate) const WHOLE: Self =
        Self { left: LEFT, right: WIDTH - RIGHT, top: TOP, bottom: HEIGHT - BOTTOM };
}

/// Maps values to places.
pub(crate) struct PlotArea<'a> {
    axes: &'a Axes,
    rectangle: AreaRectangle,
}

impl<'a> PlotArea<'a> {
    pub(crate) const fn new(axes: &'a Axes, rectangle: AreaRectangle) -> Self {
        Self { axes, rectangle }
    }

    pub(crate) fn x(&self, value: f64) -> f64 {
        let AreaRectangle { left, right, .. } = self.rectangle;
        left + self.axes.x.share(value) * (right - left)
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        let AreaRectangle { top, bottom, .. } = self.rectangle;
        bottom - self.axes.y.share(value) * (bottom - top)
    }

    /// Draws the grid, the ticks and the titles of both axes.
    pub(crate) fn grid(&self, svg: &mut String) {
        let AreaRectangle { left, right, top, bottom } = self.rectangle;
        for tick in self.axes.y.ticks() {
            let y = self.y(tick);
            let class = if self.axes.y.is_marked(tick) { "zero" } else { "grid" };
            let _ = write!(
                svg,
                "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"{class}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.0,
                escape_html(&self.axes.y.tick_label(tick))
            );
        }
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{}\" y=\"{}\">{}</text>",
            left - LEFT + 2.0,
            top - 14.0,
            escape_html(&self.axes.y.title())
        );
        self.horizontal_axis(svg, bottom);
    }

    /// Draws the grid, the ticks and the title of the horizontal axis only.
    pub(crate) fn columns(&self, svg: &mut String) {
        let AreaRectangle { top, bottom, .. } = self.rectangle;
        for tick in self.axes.x.ticks() {
            let x = self.x(tick);
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" class=\"grid\"/>"
            );
        }
        self.horizontal_axis(svg, bottom);
    }

    /// Draws the ticks and the title of the horizontal axis below the area.
    fn horizontal_axis(&self, svg: &mut String, bottom: f64) {
        for tick in self.axes.x.ticks() {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                self.x(tick),
                bottom + 18.0,
                escape_html(&self.axes.x.tick_label(tick))
            );
        }
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            self.rectangle.right,
            bottom + 38.0,
            escape_html(&self.axes.x.title())
        );
    }
}
