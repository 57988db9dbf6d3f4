//! What tells the groups of a plot apart: a colour, and with it a shape or a way of dashing, for those who do not see the
//! colour and for paper.

use std::fmt::Write as _;

/// How many of each there are.
const KINDS: usize = 6;
/// How lines are dashed; the first is not.
const DASHES: [&str; KINDS] = ["", "7 4", "2 3", "10 3 2 3", "14 4", "1 5"];

/// A group's mark, by its place: the first six have colours of their own, and the next six have them again with other
/// shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    colour: usize,
    kind: usize,
}

impl Mark {
    pub(super) const fn of(place: usize) -> Self {
        Self { colour: place % KINDS, kind: (place + place / KINDS) % KINDS }
    }

    pub(super) fn colour(self) -> String {
        format!("var(--c{})", self.colour)
    }

    /// The shape around a point, as large as a circle of this radius looks.
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

    /// How a line of this group is drawn.
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
    fn groups_differ_without_their_colours_and_no_two_of_thirty_six_are_the_same() {
        let marks: Vec<Mark> = (0..KINDS * KINDS).map(Mark::of).collect();
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
                assert!(!all[..at].contains(one), "{one} stands for two groups");
            }
        }
    }
}
