//! Plots as SVG text.

use std::fmt::Write as _;

use crate::marker::SeriesMarker;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
/// Margins for labels: left, right, top, bottom.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 30.0;
/// Height of a row of error bars.
const ROW: f64 = 34.0;
/// Minimum width for row names.
const NAMES: f64 = 128.0;
/// Approximate width of a character.
const LETTER: f64 = 6.4;
/// Maximum number of characters of a row name.
const LETTERS: usize = 30;

/// The ends of a confidence interval.
#[derive(Debug, Clone, Copy)]
pub struct ErrorBarBounds {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A mean with its confidence interval, drawn in a row of its own.
pub struct ErrorBar {
    /// Name of the row.
    pub name: String,
    /// Index of the marker.
    pub series: usize,
    /// The mean.
    pub mean: f64,
    /// `None` for a single seed: the plot has a marker without a line.
    pub bounds: Option<ErrorBarBounds>,
}

/// A point of a series.
pub struct ScatterPoint {
    /// Horizontal value.
    pub x: f64,
    /// Vertical value.
    pub y: f64,
    /// Index of the marker.
    pub series: usize,
}

/// Escapes text for HTML.
#[must_use]
pub fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The range of the finite values with a small margin; never empty.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    let room = ((high - low) * 0.06).max(high.abs().max(low.abs()) * 0.01).max(1e-9);
    (low - room, high + room)
}

/// Round tick values that divide a range into about four parts.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let raw = ((high - low) / 4.0).max(1e-12);
    let magnitude = 10f64.powf(raw.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| raw / magnitude <= *nice);
    let step = nice.unwrap_or(10.0) * magnitude;
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|at| at as f64 * step).collect()
}

fn label(value: f64, range: (f64, f64)) -> String {
    let span = range.1 - range.0;
    if ticks(range).iter().all(|tick| tick.fract() == 0.0) {
        return format!("{:.0}", value + 0.0);
    }
    let decimals = if span > 8.0 {
        0
    } else if span > 0.8 {
        1
    } else {
        2
    };
    format!("{:.decimals$}", value + 0.0)
}

struct PlotArea {
    x: (f64, f64),
    y: (f64, f64),
}

impl PlotArea {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let share = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low);
        (
            LEFT + share(x, self.x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - share(y, self.y) * (HEIGHT - TOP - BOTTOM),
        )
    }

    fn grid(&self, svg: &mut String) {
        for tick in ticks(self.y) {
            let (_, y) = self.at(self.x.0, tick);
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/><text \
                 x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                label(tick, self.y)
            );
        }
        for tick in ticks(self.x) {
            let (x, _) = self.at(tick, self.y.0);
            let _ = write!(
                svg,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - 10.0,
                label(tick, self.x)
            );
        }
    }
}

fn svg_start(title: &str, height: f64) -> String {
    let title = escape_html(title);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">")
}

/// The legend: the names of the series, each with its marker.
fn legend(names: &[&str], sample: impl Fn(SeriesMarker) -> String) -> String {
    let entry = |(at, name): (usize, &&str)| {
        let sample = sample(SeriesMarker::new(at));
        format!("<span><svg viewBox=\"0 0 26 12\">{sample}</svg>{}</span>", escape_html(name))
    };
    format!(
        "<div class=\"legend\">{}</div>",
        names.iter().enumerate().map(entry).collect::<String>()
    )
}

/// Means with error bars, one below the other, and a line at zero.
#[must_use]
pub fn error_bars(title: &str, rows: &[ErrorBar]) -> String {
    let ends = |row: &ErrorBar| row.bounds.map_or([row.mean; 2], |ends| [ends.low, ends.high]);
    let across = range(rows.iter().flat_map(ends).chain([0.0]));
    let height = TOP + ROW * rows.len().max(1) as f64 + BOTTOM;
    let longest = rows.iter().map(|row| row.name.chars().count().min(LETTERS)).max();
    let names = (longest.unwrap_or_default() as f64 * LETTER + 14.0).max(NAMES);
    let x =
        |value: f64| names + (value - across.0) / (across.1 - across.0) * (WIDTH - names - RIGHT);
    let mut svg = svg_start(title, height);
    for tick in ticks(across) {
        let at = x(tick);
        let _ = write!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" class=\"grid\"/><text \
             x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            height - BOTTOM,
            height - 10.0,
            label(tick, across)
        );
    }
    let zero = x(0.0);
    let _ = write!(
        svg,
        "<line x1=\"{zero:.1}\" x2=\"{zero:.1}\" y1=\"{TOP}\" y2=\"{}\" class=\"zero\"/>",
        height - BOTTOM
    );
    for (at, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (at as f64 + 0.5);
        let name: String = row.name.chars().take(LETTERS).collect();
        let mark = SeriesMarker::new(row.series);
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            names - 10.0,
            y + 4.0,
            escape_html(&name)
        );
        if let Some(ErrorBarBounds { low, high }) = row.bounds {
            let _ = write!(
                svg,
                "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\" \
                 stroke-width=\"3\"/>",
                x(low),
                x(high),
                mark.colour()
            );
        }
        svg.push_str(&mark.shape(x(row.mean), y, 5.5, ""));
    }
    svg + "</svg>"
}

/// A scatter plot of several series.
#[must_use]
pub fn scatter_plot(title: &str, dots: &[ScatterPoint], names: &[&str]) -> String {
    let frame =
        PlotArea { x: range(dots.iter().map(|dot| dot.x)), y: range(dots.iter().map(|dot| dot.y)) };
    let mut svg = svg_start(title, HEIGHT);
    frame.grid(&mut svg);
    for dot in dots.iter().filter(|dot| dot.x.is_finite() && dot.y.is_finite()) {
        let (x, y) = frame.at(dot.x, dot.y);
        svg.push_str(&SeriesMarker::new(dot.series).shape(x, y, 3.2, " opacity=\"0.65\""));
    }
    svg + "</svg>" + &legend(names, |mark| mark.shape(13.0, 6.0, 4.2, ""))
}

/// Line plot over rounds, from 1.
#[must_use]
pub fn line_plot(title: &str, series: &[(&str, Vec<f64>)]) -> String {
    let rounds = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(2);
    let all = series.iter().flat_map(|(_, values)| values.iter().copied());
    let frame = PlotArea { x: (1.0, rounds as f64), y: range(all) };
    let mut svg = svg_start(title, HEIGHT);
    frame.grid(&mut svg);
    for (at, (_, values)) in series.iter().enumerate() {
        let points = values.iter().enumerate().map(|(round, value)| {
            let (x, y) = frame.at(round as f64 + 1.0, *value);
            format!("{x:.1},{y:.1}")
        });
        let points: Vec<String> = points.collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" {} stroke-width=\"2.5\" \
             stroke-linejoin=\"round\"/>",
            points.join(" "),
            SeriesMarker::new(at).stroke()
        );
    }
    let names: Vec<&str> = series.iter().map(|(name, _)| *name).collect();
    let sample = |mark: SeriesMarker| {
        format!(
            "<line x1=\"0\" x2=\"26\" y1=\"6\" y2=\"6\" {} stroke-width=\"2.5\"/>",
            mark.stroke()
        )
    };
    svg + "</svg>" + &if names.len() > 1 { legend(&names, sample) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_plots_are_valid_svg() {
        for svg in [
            error_bars("a", &[]),
            scatter_plot("b", &[], &[]),
            line_plot("c", &[("d", Vec::new())]),
        ] {
            assert!(
                svg.starts_with("<svg") && svg.contains("</svg>") && !svg.contains("NaN"),
                "{svg}"
            );
        }
    }

    #[test]
    fn names_are_escaped_and_ticks_are_round_numbers() {
        let row = |ends| ErrorBar { name: "<b>".to_owned(), series: 0, mean: 0.5, bounds: ends };
        let whole = error_bars("t", &[row(Some(ErrorBarBounds { low: -1.0, high: 2.0 }))]);
        assert!(whole.contains("&lt;b&gt;") && whole.contains("stroke-width=\"3\""), "{whole}");
        let one = error_bars("t", &[row(None)]);
        assert!(one.contains("<circle") && !one.contains("stroke-width=\"3\""), "{one}");
        assert_eq!(ticks((-0.5, 9.7)), [0.0, 5.0]);
        assert_eq!(ticks((0.0, 1.0)), [0.0, 0.5, 1.0]);
    }
}
