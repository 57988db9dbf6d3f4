//! Bars that are divided into parts.

use std::fmt::Write as _;

use crate::axis::Axes;
use crate::legend::{Sample, legend};
use crate::number_format::format_number;
use crate::palette::Colour;
use crate::plot_area::{AreaRectangle, HEIGHT, PlotArea, svg_start};
use crate::text::{escape_html, escape_prose, with_unit};

/// Share of a bar's space that the bar takes.
const BAR_SHARE: f64 = 0.72;

/// Stacked bars at 1, 2, 3, …: `bars[at][series]` is the height of a part. Negative parts are left
/// out.
#[must_use]
pub fn stacked_bars(title: &str, axes: &Axes, names: &[&str], bars: &[Vec<f64>]) -> String {
    let area = PlotArea::new(axes, AreaRectangle::WHOLE);
    let mut svg = svg_start(title, HEIGHT);
    area.grid(&mut svg);
    let width = (area.x(1.0) - area.x(0.0)) * BAR_SHARE;
    for (at, parts) in (1_u32..).zip(bars) {
        let left = area.x(f64::from(at)) - width / 2.0;
        let mut base = 0.0;
        for ((series, value), name) in parts.iter().enumerate().zip(names) {
            if *value <= 0.0 || !value.is_finite() {
                continue;
            }
            let (from, to) = (area.y(base), area.y(base + value));
            let _ = write!(
                svg,
                "<rect class=\"part\" x=\"{left:.1}\" y=\"{to:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\" fill=\"{}\"><title>{} {at}, {}: {}</title></rect>",
                (from - to).max(0.0),
                Colour::Series(series).css(),
                escape_html(axes.x.name()),
                escape_html(name),
                escape_html(&with_unit(&format_number(*value), axes.y.unit()))
            );
            base += value;
        }
    }
    svg + "</svg>" + &fill_legend(names.iter().copied())
}

/// A part of a whole.
#[derive(Debug, Clone)]
pub struct SharePart {
    /// Its name in the legend.
    pub name: String,
    /// Its size; the bar shows the share of the sum.
    pub value: f64,
}

/// One bar, divided into parts that add up to the whole, with a legend.
#[must_use]
pub fn share_bar(title: &str, parts: &[SharePart]) -> String {
    let whole = parts.iter().map(|part| part.value).sum::<f64>().max(1e-9);
    let mut html = format!(
        "<svg class=\"share\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">",
        escape_html(title)
    );
    let mut left = 0.0;
    for (at, part) in parts.iter().enumerate() {
        let width = 100.0 * part.value / whole;
        let _ = write!(
            html,
            "<rect x=\"{left:.3}\" width=\"{width:.3}\" height=\"10\" fill=\"{}\"><title>{}: \
             {width:.1}\u{a0}%</title></rect>",
            Colour::Series(at).css(),
            escape_prose(&part.name)
        );
        left += width;
    }
    html + "</svg>" + &fill_legend(parts.iter().map(|part| part.name.as_str()))
}

/// A legend of the series' colours.
fn fill_legend<'a>(names: impl Iterator<Item = &'a str>) -> String {
    legend(names.enumerate().map(|(at, name)| (name, Sample::Fill(Colour::Series(at)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Axis, Quantity, Unit};

    fn axes() -> Axes {
        let round = Quantity { name: "round", unit: Unit::Number };
        let paid = Quantity { name: "paid", unit: Unit::Florins };
        Axes { x: Axis::counting(round, 0.5..=2.5), y: Axis::between(paid, 0.0..=10.0) }
    }

    #[test]
    fn the_parts_of_a_bar_stand_on_each_other() {
        let svg = stacked_bars("t", &axes(), &["a", "b"], &[vec![5.0, 5.0], vec![-1.0, 2.0]]);
        assert_eq!(svg.matches("class=\"part\"").count(), 3, "a negative part is left out");
        assert!(svg.contains("<title>round 2, b: 2.00\u{a0}FLN</title>"), "{svg}");
        assert!(svg.contains(">paid, FLN</text>") && svg.contains(">round</text>"), "{svg}");
    }

    #[test]
    fn the_parts_of_a_share_bar_fill_it() {
        let part = |name: &str, value| SharePart { name: name.to_owned(), value };
        let svg = share_bar("t", &[part("paid 30 FLN", 30.0), part("left", 10.0)]);
        assert!(svg.contains("width=\"75.000\"") && svg.contains("x=\"75.000\""), "{svg}");
        assert!(svg.contains("paid 30\u{a0}FLN</span>"), "{svg}");
    }

    #[test]
    fn bars_without_parts_are_valid_svg() {
        for svg in [stacked_bars("t", &axes(), &[], &[]), share_bar("t", &[])] {
            assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{svg}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
