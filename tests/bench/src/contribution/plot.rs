//! Plots of the error by evaluations and by time, as SVG: one panel per game, logarithmic axes, our
//! estimators in colour, others in grey.

use std::ops::RangeInclusive;

use florin_charts::{self as charts, Axes, Axis, Colour, Line, LineStyle, Point, Quantity, Unit};

use super::curve::{Curve, CurvePoint, TARGET};

/// The quantity on the horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HorizontalAxis {
    /// Distinct coalitions.
    Evaluations,
    /// Time of the estimator, in seconds.
    Seconds,
}

/// A panel: a game and its title.
pub(super) struct Panel<'a> {
    /// The game's name in the curves.
    pub(super) game: &'a str,
    /// The title of the panel.
    pub(super) title: &'a str,
}

/// Range of the error axis; smaller errors are drawn at the lower edge.
const ERRORS: (f64, f64) = (3e-4, 1.0);
/// The name of an estimator and its line style.
type NamedStyle = (&'static str, LineStyle);

const fn other(colour: Colour, dash: &'static str) -> LineStyle {
    LineStyle::new(colour, dash, 1.4)
}

const fn our(series: usize, width: f64) -> LineStyle {
    LineStyle::new(Colour::Series(series), "", width)
}

/// The estimators in the plot, from back to front.
const LINES: [NamedStyle; 14] = [
    ("pyDVL permutation", other(Colour::Sand, "")),
    ("pyDVL antithetic permutation", other(Colour::Sand, "6 3")),
    ("pyDVL truncated (TMC)", other(Colour::Sand, "1.5 3")),
    ("shapiq PermutationSampling", other(Colour::Grey, "1.5 3")),
    ("shapiq SVARM", other(Colour::Grey, "2 4 8 4")),
    ("shapiq StratifiedSampling", other(Colour::Grey, "8 3 2 3")),
    ("shapiq OwenSampling", other(Colour::Grey, "3 5")),
    ("shapiq KernelSHAP, paired", other(Colour::Grey, "6 3")),
    ("shapiq kADD-SHAP k=2, paired", other(Colour::Grey, "10 4")),
    ("shapiq kADD-SHAP k=3, paired", LineStyle::new(Colour::Ink, "", 1.9)),
    ("Florin antithetic permutation", our(2, 1.9)),
    ("Florin LeverageSHAP", our(0, 1.9)),
    ("Florin odd", our(3, 3.0)),
    ("Florin path, 3 gradients", LineStyle::diamonds()),
];

/// Renders the complete plot.
pub(super) fn svg(
    title: &str,
    panels: &[Panel<'_>],
    curves: &[Curve],
    across: HorizontalAxis,
) -> String {
    let shown = |name: &str| curves.iter().any(|curve| curve.estimator == name);
    let legend: Vec<Line<'_>> = LINES
        .iter()
        .filter(|(name, _)| shown(name))
        .map(|&(name, style)| Line { name, style, points: Vec::new() })
        .collect();
    let drawn: Vec<charts::Panel<'_>> =
        panels.iter().filter_map(|panel| chart_panel(panel, curves, across)).collect();
    charts::panels(title, &legend, &drawn)
}

fn read(point: &CurvePoint, across: HorizontalAxis) -> f64 {
    match across {
        HorizontalAxis::Evaluations => point.evaluations,
        HorizontalAxis::Seconds => point.seconds,
    }
}

/// The range of the horizontal axis: all drawn points with a margin.
fn bounds(curves: &[&Curve], across: HorizontalAxis) -> Option<(f64, f64)> {
    let all = curves.iter().flat_map(|curve| &curve.points).map(|point| read(point, across));
    let seen: Vec<f64> = all.filter(|value| *value > 0.0).collect();
    let low = seen.iter().copied().reduce(f64::min)?;
    let high = seen.iter().copied().reduce(f64::max)?;
    Some((low / 1.15, high * 1.15))
}

/// The panel of a game; `None` without curves.
fn chart_panel<'a>(
    panel: &Panel<'a>,
    curves: &[Curve],
    across: HorizontalAxis,
) -> Option<charts::Panel<'a>> {
    let of = |name: &str| curves.iter().find(|c| c.game == panel.game && c.estimator == name);
    let drawn: Vec<&Curve> = LINES.iter().filter_map(|(name, _)| of(name)).collect();
    let (low, high) = bounds(&drawn, across)?;
    let point = |point: &CurvePoint| Point { x: read(point, across), y: point.error };
    let line = |&(name, style): &NamedStyle| {
        let points = of(name)?.points.iter().filter(|point| read(point, across) > 0.0);
        Some(Line { name, style, points: points.map(point).collect() })
    };
    let error = Quantity { name: "relative error", unit: Unit::Percent };
    let axes = Axes {
        x: horizontal_axis(across, low..=high),
        y: Axis::logarithmic(error, ERRORS.0..=ERRORS.1, percent).with_marked_tick(TARGET),
    };
    Some(charts::Panel { title: panel.title, axes, lines: LINES.iter().filter_map(line).collect() })
}

fn horizontal_axis(across: HorizontalAxis, range: RangeInclusive<f64>) -> Axis {
    let number = |name| Quantity { name, unit: Unit::Number };
    match across {
        HorizontalAxis::Evaluations => {
            Axis::logarithmic(number("distinct coalitions evaluated"), range, whole)
        }
        // The ticks name their own units, from microseconds to seconds.
        HorizontalAxis::Seconds => Axis::logarithmic(
            number("time of the estimator, with coalition values from a table"),
            range,
            duration,
        ),
    }
}

fn percent(share: f64) -> String {
    ((share * 1e4).round() / 100.0).to_string()
}

fn whole(value: f64) -> String {
    florin::show::thousands(&format!("{value:.0}"))
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.9e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.9 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_labels_are_per_cent_counts_and_durations() {
        let ticks = [percent(1e-3), percent(1.0), whole(1e4), duration(1e-4), duration(0.1)];
        assert_eq!(ticks, ["0.1", "100", "10,000", "100 µs", "100 ms"]);
    }

    #[test]
    fn a_panel_without_curves_draws_nothing() {
        let panels = [Panel { game: "g", title: "G" }];
        assert!(!svg("t", &panels, &[], HorizontalAxis::Evaluations).contains("class=\"line\""));
    }
}
