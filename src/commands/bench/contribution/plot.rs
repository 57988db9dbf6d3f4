//! Plots of the error by evaluations and by time, as SVG: one panel per game, logarithmic axes, our
//! estimators in colour, others in grey.

use std::fmt::Write as _;

use super::curve::{Curve, CurvePoint, TARGET};
use super::ours::OURS;
use super::rounds::PATH;

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

const COLUMNS: usize = 2;
const PANEL: (f64, f64) = (470.0, 270.0);
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;
/// Range of the error axis; smaller errors are drawn at the lower edge.
const ERRORS: (f64, f64) = (3e-4, 1.0);
const LEGEND_COLUMNS: usize = 4;
const LEGEND_LINE: f64 = 19.0;
const HEAD: f64 = 52.0;

/// The line style of an estimator.
struct LineStyle {
    estimator: &'static str,
    class: &'static str,
    dash: &'static str,
}

const fn line_style(estimator: &'static str, class: &'static str, dash: &'static str) -> LineStyle {
    LineStyle { estimator, class, dash }
}

/// The estimators in the plot, from back to front.
const LINES: [LineStyle; 14] = [
    line_style("pyDVL permutation", "pydvl", ""),
    line_style("pyDVL antithetic permutation", "pydvl", "6 3"),
    line_style("pyDVL truncated (TMC)", "pydvl", "1.5 3"),
    line_style("shapiq PermutationSampling", "shapiq", "1.5 3"),
    line_style("shapiq SVARM", "shapiq", "2 4 8 4"),
    line_style("shapiq StratifiedSampling", "shapiq", "8 3 2 3"),
    line_style("shapiq OwenSampling", "shapiq", "3 5"),
    line_style("shapiq KernelSHAP, paired", "shapiq", "6 3"),
    line_style("shapiq kADD-SHAP k=2, paired", "shapiq", "10 4"),
    line_style("shapiq kADD-SHAP k=3, paired", "best", ""),
    line_style("Florin antithetic permutation", "anti", ""),
    line_style("Florin LeverageSHAP", "lever", ""),
    line_style("Florin odd", "odd", ""),
    line_style("Florin path, 3 gradients", "odd", ""),
];

const STYLE: &str = "\
svg{--bg:#ffffff;--ink:#1f2328;--dim:#656d76;--grid:#e6e9ed;--shapiq:#97a1ae;--pydvl:#c3ac7c;\
--best:#4c5866;--anti:#8250df;--lever:#0f7f78;--odd:#d1382d}\
@media(prefers-color-scheme:dark){svg{--bg:#0d1117;--ink:#e6edf3;--dim:#8b949e;--grid:#232a33;\
--shapiq:#6b7684;--pydvl:#8c7a52;--best:#b4bec9;--anti:#b48cff;--lever:#3fc1b4;--odd:#ff6f61}}\
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--ink)}\
.t{font-size:13px;font-weight:600}.d{fill:var(--dim);font-size:11px}.h{font-size:16px;font-weight:600}\
.g{stroke:var(--grid)}.one{stroke:var(--dim);stroke-dasharray:2 3}\
.l{fill:none;stroke-width:1.4;stroke-linejoin:round;stroke-linecap:round}\
.shapiq{stroke:var(--shapiq)}.pydvl{stroke:var(--pydvl)}.best{stroke:var(--best);stroke-width:1.9}\
.anti{stroke:var(--anti);stroke-width:1.9}.lever{stroke:var(--lever);stroke-width:1.9}\
.odd{stroke:var(--odd);stroke-width:3}.p{fill:var(--odd);stroke:var(--bg);stroke-width:1.5}";

/// A logarithmic axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(self, value: f64) -> f64 {
        let clamped = value.clamp(self.low, self.high);
        let share = (clamped / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// The powers of ten on the axis.
    fn decades(self) -> Vec<f64> {
        /// Tolerance for a bound that is a power of ten up to rounding.
        const SLACK: f64 = 1e-9;
        let first = (self.low.log10() - SLACK).ceil() as i32;
        let last = (self.high.log10() + SLACK).floor() as i32;
        (first..=last).map(|power| 10_f64.powi(power)).collect()
    }
}

/// Renders the complete plot.
pub(super) fn svg(
    title: &str,
    panels: &[Panel<'_>],
    curves: &[Curve],
    across: HorizontalAxis,
) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let shown: Vec<&LineStyle> =
        LINES.iter().filter(|line| curves.iter().any(|c| c.estimator == line.estimator)).collect();
    let legend = shown.len().div_ceil(LEGEND_COLUMNS) as f64 * LEGEND_LINE;
    let (width, above) = (COLUMNS as f64 * PANEL.0 + 20.0, HEAD + legend);
    let height = above + rows as f64 * PANEL.1 + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\
         <rect width=\"{width}\" height=\"{height}\" fill=\"var(--bg)\"/>\
         <text class=\"h\" x=\"16\" y=\"26\">{title}</text>\n"
    );
    for (at, line) in shown.iter().enumerate() {
        let x = 16.0 + (at % LEGEND_COLUMNS) as f64 * (width - 20.0) / LEGEND_COLUMNS as f64;
        let y = HEAD + (at / LEGEND_COLUMNS) as f64 * LEGEND_LINE;
        legend_entry(&mut out, line, x, y);
    }
    for (at, panel) in panels.iter().enumerate() {
        let x = 10.0 + (at % COLUMNS) as f64 * PANEL.0;
        let y = above + (at / COLUMNS) as f64 * PANEL.1;
        draw_panel(&mut out, panel, curves, across, (x, y));
    }
    out.push_str("</svg>\n");
    out
}

fn legend_entry(out: &mut String, line: &LineStyle, x: f64, y: f64) {
    if is_point(line) {
        diamond(out, x + 13.0, y - 4.0);
    } else {
        let (end, at) = (x + 26.0, y - 4.0);
        let LineStyle { class, dash, .. } = line;
        let _ = write!(
            out,
            "<path class=\"l {class}\" stroke-dasharray=\"{dash}\" d=\"M{x} {at}H{end}\"/>"
        );
    }
    let _ = writeln!(out, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 32.0, line.estimator);
}

fn is_point(line: &LineStyle) -> bool {
    line.estimator.strip_prefix(OURS).is_some_and(|rest| rest.trim() == PATH)
}

fn diamond(out: &mut String, x: f64, y: f64) {
    const HALF: f64 = 6.5;
    let _ = write!(
        out,
        "<path class=\"p\" d=\"M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z\"/>",
        x - HALF,
        y - HALF,
        x + HALF,
        y + HALF
    );
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

fn draw_panel(
    out: &mut String,
    panel: &Panel<'_>,
    curves: &[Curve],
    across: HorizontalAxis,
    (x, y): (f64, f64),
) {
    let of = |line: &LineStyle| {
        curves.iter().find(|c| c.game == panel.game && c.estimator == line.estimator)
    };
    let drawn: Vec<&Curve> = LINES.iter().filter_map(of).collect();
    let Some((low, high)) = bounds(&drawn, across) else { return };
    let horizontal = Axis { low, high, from: x + LEFT, to: x + PANEL.0 - RIGHT };
    let (from, to) = (y + PANEL.1 - BOTTOM, y + TOP);
    let vertical = Axis { low: ERRORS.0, high: ERRORS.1, from, to };
    let _ = writeln!(
        out,
        "<text class=\"t\" x=\"{}\" y=\"{}\">{}</text>",
        x + LEFT,
        y + 18.0,
        panel.title
    );
    grid(out, horizontal, vertical, across);
    for line in &LINES {
        let Some(curve) = of(line) else { continue };
        let places: Vec<(f64, f64)> = curve
            .points
            .iter()
            .filter(|point| read(point, across) > 0.0)
            .map(|point| (horizontal.at(read(point, across)), vertical.at(point.error)))
            .collect();
        if is_point(line) {
            places.iter().for_each(|&(x, y)| diamond(out, x, y));
            continue;
        }
        let mut path = String::new();
        for (at, (x, y)) in places.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let LineStyle { class, dash, .. } = line;
        let _ =
            writeln!(out, "<path class=\"l {class}\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
    }
}

fn grid(out: &mut String, horizontal: Axis, vertical: Axis, across: HorizontalAxis) {
    let (left, right) = (horizontal.from, horizontal.to);
    let (bottom, top) = (vertical.from, vertical.to);
    for error in vertical.decades() {
        let y = vertical.at(error);
        let class = if (error / TARGET - 1.0).abs() < 1e-6 { "one" } else { "g" };
        let _ = write!(
            out,
            "<path class=\"{class}\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\
             <text class=\"d\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y + 4.0,
            percent(error)
        );
    }
    for value in horizontal.decades() {
        let x = horizontal.at(value);
        let _ = write!(
            out,
            "<path class=\"g\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>\
             <text class=\"d\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 15.0,
            match across {
                HorizontalAxis::Evaluations => whole(value),
                HorizontalAxis::Seconds => duration(value),
            }
        );
    }
    let label = match across {
        HorizontalAxis::Evaluations => "distinct coalitions evaluated",
        HorizontalAxis::Seconds => "time of the estimator, with coalition values from a table",
    };
    let _ = writeln!(
        out,
        "<text class=\"d\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
        (left + right) / 2.0,
        bottom + 30.0
    );
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 100.0)
}

fn whole(value: f64) -> String {
    crate::show::thousands(&format!("{value:.0}"))
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
    fn decades_have_equal_width_on_a_logarithmic_axis() {
        let axis = Axis { low: 1.0, high: 1_000.0, from: 0.0, to: 300.0 };
        let places: Vec<f64> = axis.decades().iter().map(|&value| axis.at(value).round()).collect();
        assert_eq!(places, [0.0, 100.0, 200.0, 300.0]);
        assert_eq!(axis.at(0.1), 0.0);
        let upright = Axis { low: 1e-2, high: 1.0, from: 200.0, to: 0.0 };
        assert!((upright.at(0.1) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn tick_labels_have_units() {
        let ticks = [percent(1e-3), percent(1.0), whole(1e4), duration(1e-4), duration(0.1)];
        assert_eq!(ticks, ["0.1 %", "100 %", "10,000", "100 µs", "100 ms"]);
    }

    #[test]
    fn a_panel_without_curves_draws_nothing() {
        let panels = [Panel { game: "g", title: "G" }];
        assert!(!svg("t", &panels, &[], HorizontalAxis::Evaluations).contains("class=\"l"));
    }
}
