//! Legends: the names of series, each with a sample of its line, marker or colour.

use crate::line_style::LineStyle;
use crate::marker::{SeriesMarker, ShapeRest};
use crate::palette::Colour;
use crate::point::Point;
use crate::text::escape_prose;

/// The sample beside a name in a legend.
#[derive(Debug, Clone, Copy)]
pub enum Sample {
    /// A line.
    Line(LineStyle),
    /// The marker of a series, by its index.
    Marker(usize),
    /// A colour.
    Fill(Colour),
}

impl Sample {
    fn svg(self) -> String {
        match self {
            Self::Line(style) => style.sample(Point { x: 0.0, y: 0.0 }),
            Self::Marker(series) => {
                let centre = Point { x: 13.0, y: 6.0 };
                SeriesMarker::new(series).shape(centre, 4.2, ShapeRest::default())
            }
            Self::Fill(colour) => {
                let fill = colour.css();
                format!("<rect x=\"8\" width=\"12\" height=\"12\" rx=\"3\" fill=\"{fill}\"/>")
            }
        }
    }
}

/// A legend below a chart.
#[must_use]
pub fn legend<'a>(entries: impl Iterator<Item = (&'a str, Sample)>) -> String {
    let entry = |(name, sample): (&str, Sample)| {
        let (sample, name) = (sample.svg(), escape_prose(name));
        format!("<span><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\">{sample}</svg>{name}</span>")
    };
    format!("<div class=\"legend\">{}</div>", entries.map(entry).collect::<String>())
}
