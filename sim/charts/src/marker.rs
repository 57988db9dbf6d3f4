//! Markers that distinguish the series of a plot: a colour combined with a shape or a dash pattern,
//! for colour-blind readers and for print.

use std::fmt::Write as _;

/// Number of colours, shapes and dash patterns.
const KINDS: usize = 6;
/// SVG dash patterns; the first is a solid line.
const DASHES: [&str; KINDS] = ["", "7 4", "2 3", "10 3 2 3", "14 4", "1 5"];

/// The marker of a series, by its index: the first six series have different colours; the next six
/// reuse the colours with other shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeriesMarker {
    colour: usize,
    kind: usize,
}

impl SeriesMarker {
    pub(super) const fn new(place: usize) -> Self {
        Self { colour: place % KINDS, kind: (place + place / KINDS) % KINDS }
    }

    pub(super) fn colour(self) -> String {
        format!("var(--c{})", self.colour)
    }

    /// The shape centred on a point, with about the area of a circle of this radius.
    pub(super) fn shape(self, x: f64, y: f64, radius: f64, rest: &str) -> String {
        let colour = self.colour();
        let corners: &[(f64, f64)] = match self.kind {
            0 => {
                return format!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"{rest}/>"
                );
            }
            1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            2 => &[(0.0, -1.25), (1.15, 0.85), (-1.15, 0.85)],
            3 => &[(0.0, -1.35), (1.1, 0.0), (0.0, 1.35), (-1.1, 0.0)],
            4 => &[(0.0, 1.25), (1.15, -0.85), (-1.15, -0.85)],
            // An upright cross.
            _ => &[
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
            ],
        };
        let mut points = String::new();
        for (dx, dy) in corners {
            let _ = write!(points, "{:.1},{:.1} ", x + dx * radius, y + dy * radius);
        }
        format!("<polygon points=\"{}\" fill=\"{colour}\"{rest}/>", points.trim_end())
    }

    /// SVG attributes for a line of this series.
    pub(super) fn stroke(self) -> String {
        let dashes = DASHES.get(self.kind).copied().unwrap_or_default();
        let dashed = match dashes {
            "" => String::new(),
            dashes => format!(" stroke-dasharray=\"{dashes}\""),
        };
        format!("stroke=\"{}\"{dashed}", self.colour())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_six_markers_are_distinct_and_shapes_differ_without_colours() {
        let marks: Vec<SeriesMarker> = (0..KINDS * KINDS).map(SeriesMarker::new).collect();
        for (at, mark) in marks.iter().enumerate() {
            assert!(!marks[..at].contains(mark), "{at}: {mark:?}");
        }
        let without =
            |text: String| text.split("var(--c").map(|part| part[1..].to_owned()).collect();
        let shapes: Vec<String> =
            marks[..KINDS].iter().map(|mark| without(mark.shape(9.0, 9.0, 3.0, ""))).collect();
        let strokes: Vec<String> =
            marks[..KINDS].iter().map(|mark| without(mark.stroke())).collect();
        for all in [shapes, strokes] {
            for (at, one) in all.iter().enumerate() {
                assert!(!all[..at].contains(one), "{one} marks two series");
            }
        }
    }
}
