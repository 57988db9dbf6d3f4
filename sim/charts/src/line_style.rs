//! How a line is drawn: its stroke and its markers.

use std::fmt::Write as _;

use crate::marker::{SeriesMarker, ShapeRest};
use crate::palette::Colour;
use crate::point::Point;

/// Marker of a line without a series: a diamond.
const DIAMOND: usize = 3;

/// How a line is drawn.
#[derive(Debug, Clone, Copy)]
pub struct LineStyle {
    colour: Colour,
    /// An SVG dash pattern; empty for a solid line.
    dash: &'static str,
    width: f64,
    /// The marker of its points; `None` for a line without markers.
    pub(crate) marker: Option<SeriesMarker>,
    pub(crate) has_line: bool,
}

impl LineStyle {
    /// The style of a series by its index: a colour, a dash pattern and a marker.
    #[must_use]
    pub fn for_series(place: usize) -> Self {
        let marker = SeriesMarker::new(place);
        let (colour, dash) = (marker.colour(), marker.dash());
        Self { colour, dash, width: 2.2, marker: Some(marker), has_line: true }
    }

    /// A line without markers.
    #[must_use]
    pub const fn new(colour: Colour, dash: &'static str, width: f64) -> Self {
        Self { colour, dash, width, marker: None, has_line: true }
    }

    /// Diamonds without a line.
    #[must_use]
    pub const fn diamonds() -> Self {
        let marker = SeriesMarker::new(DIAMOND);
        Self {
            colour: marker.colour(),
            dash: "",
            width: 0.0,
            marker: Some(marker),
            has_line: false,
        }
    }

    /// The SVG attributes of the line.
    pub(crate) fn stroke(self) -> String {
        let dashed = match self.dash {
            "" => String::new(),
            dash => format!(" stroke-dasharray=\"{dash}\""),
        };
        format!(
            "fill=\"none\" stroke=\"{}\"{dashed} stroke-width=\"{}\" stroke-linejoin=\"round\"",
            self.colour.css(),
            self.width
        )
    }

    /// The entry of a legend: 26 units wide and 12 high, from this point on.
    pub(crate) fn sample(self, from: Point) -> String {
        let (end, y) = (from.x + 26.0, from.y + 6.0);
        let mut svg = String::new();
        if self.has_line {
            let stroke = self.stroke();
            let _ = write!(svg, "<path d=\"M{:.1} {y:.1}H{end:.1}\" {stroke}/>", from.x);
        }
        if let Some(marker) = self.marker {
            let centre = Point { x: from.x + 13.0, y };
            svg.push_str(&marker.shape(centre, 4.0, ShapeRest::default()));
        }
        svg
    }
}
