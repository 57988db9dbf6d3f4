//! Markers that distinguish the series of a plot: a colour combined with a shape or a dash pattern,
//! for colour-blind readers and for print.

use std::fmt::Write as _;

use crate::palette::{Colour, SERIES};
use crate::point::Point;

/// Number of shapes and of dash patterns.
const KINDS: usize = 8;
/// SVG dash patterns; the first is a solid line.
const DASHES: [&str; KINDS] = ["", "7 4", "2 3", "10 3 2 3", "14 4", "1 5", "12 3 2 3 2 3", "5 2"];

/// The marker of a series, by its index: the first eight series have different colours; the next
/// eight reuse the colours with other shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeriesMarker {
    colour: usize,
    kind: usize,
}

/// SVG inside the element of a shape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShapeRest<'a> {
    /// Further attributes, each after a space.
    pub(crate) attributes: &'a str,
    /// Content of the element.
    pub(crate) content: &'a str,
}

impl SeriesMarker {
    pub(crate) const fn new(place: usize) -> Self {
        Self { colour: place % SERIES, kind: (place + place / SERIES) % KINDS }
    }

    pub(crate) const fn colour(self) -> Colour {
        Colour::Series(self.colour)
    }

    /// The dash pattern of a line.
    pub(crate) fn dash(self) -> &'static str {
        DASHES.get(self.kind).copied().unwrap_or_default()
    }

    /// The shape centred on a point, with about the area of a circle of this radius. `rest` is SVG:
    /// further attributes, and the content of the element.
    pub(crate) fn shape(self, centre: Point, radius: f64, rest: ShapeRest<'_>) -> String {
        let Point { x, y } = centre;
        let colour = self.colour().css();
        let ShapeRest { attributes, content } = rest;
        let corners = match self.kind {
            0 => {
                return format!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" \
                     fill=\"{colour}\"{attributes}>{content}</circle>"
                );
            }
            1 => [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)].as_slice(),
            2 => &[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)],
            3 => &[(0.0, -1.35), (1.1, 0.0), (0.0, 1.35), (-1.1, 0.0)],
            4 => &[(0.0, 1.25), (1.15, -0.85), (-1.15, -0.85)],
            5 => &UPRIGHT_CROSS,
            6 => &[(-1.25, 0.0), (0.85, 1.15), (0.85, -1.15)],
            _ => &[(-1.25, -0.6), (1.25, -0.6), (1.25, 0.6), (-1.25, 0.6)],
        };
        let mut points = String::new();
        for (dx, dy) in corners {
            let _ = write!(points, "{:.1},{:.1} ", x + dx * radius, y + dy * radius);
        }
        let points = points.trim_end();
        format!("<polygon points=\"{points}\" fill=\"{colour}\"{attributes}>{content}</polygon>")
    }
}

/// The corners of an upright cross of radius 1.
const UPRIGHT_CROSS: [(f64, f64); 12] = [
    (-0.4, -1.25),
    (0.4, -1.25),
    (0.4, -0.4),
    (1.25, -0.4),
    (1.25, 0.4),
    (0.4, 0.4),
    (0.4, 1.25),
    (-0.4, 1.25),
    (-0.4, 0.4),
    (-1.25, 0.4),
    (-1.25, -0.4),
    (-0.4, -0.4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_markers_are_distinct_and_shapes_differ_without_colours() {
        let marks: Vec<SeriesMarker> = (0..SERIES * KINDS).map(SeriesMarker::new).collect();
        for (at, mark) in marks.iter().enumerate() {
            assert!(!marks[..at].contains(mark), "{at}: {mark:?}");
        }
        let without =
            |text: String| text.split("var(--c").map(|part| part[1..].to_owned()).collect();
        let shape =
            |mark: &SeriesMarker| mark.shape(Point { x: 9.0, y: 9.0 }, 3.0, ShapeRest::default());
        let shapes: Vec<String> = marks[..KINDS].iter().map(|mark| without(shape(mark))).collect();
        let dashes: Vec<String> =
            marks[..KINDS].iter().map(|mark| mark.dash().to_owned()).collect();
        for all in [shapes, dashes] {
            for (at, one) in all.iter().enumerate() {
                assert!(!all[..at].contains(one), "{one} marks two series");
            }
        }
    }
}
