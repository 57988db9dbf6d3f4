//! Charts of the page: those of the demonstration and of the laboratory.

use florin_charts::{
    Axes, Axis, ErrorBarBounds, Line, LineStyle, Point, Quantity, ScatterPoint, SharePart, Unit,
    error_bars, line_plot, scatter_plot, share_bar, stacked_bars,
};
use serde::Deserialize;

/// A unit of an axis.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AxisUnit {
    Number,
    Percent,
    Florins,
    Nats,
    Seconds,
}

/// The range of an axis.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Range {
    /// The values, with a margin.
    Covering,
    /// From zero to above the largest value.
    FromZero,
    /// Whole numbers from the smallest to the largest value.
    Counting,
}

/// A quantity and the range of its axis.
#[derive(Deserialize)]
struct AxisRequest {
    name: String,
    unit: AxisUnit,
    range: Range,
}

impl AxisRequest {
    fn quantity(&self) -> Quantity<'_> {
        let unit = match self.unit {
            AxisUnit::Number => Unit::Number,
            AxisUnit::Percent => Unit::Percent,
            AxisUnit::Florins => Unit::Florins,
            AxisUnit::Nats => Unit::Nats,
            AxisUnit::Seconds => Unit::Seconds,
        };
        Quantity { name: &self.name, unit }
    }

    fn axis(&self, values: impl Iterator<Item = f64>) -> Axis {
        match self.range {
            Range::Covering => Axis::covering(self.quantity(), values),
            Range::FromZero => Axis::from_zero(self.quantity(), values),
            Range::Counting => {
                let ends = values.filter(|value| value.is_finite());
                let (low, high) = ends
                    .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                        (low.min(value), high.max(value))
                    });
                let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
                Axis::counting(self.quantity(), low..=high.max(low + 1.0))
            }
        }
    }
}

/// A line: `[x, y]` for each point.
#[derive(Deserialize)]
struct LineRequest {
    name: String,
    points: Vec<[f64; 2]>,
}

impl LineRequest {
    fn style(&self, place: usize) -> Line<'_> {
        Line {
            name: &self.name,
            style: LineStyle::for_series(place),
            points: self.points.iter().map(|[x, y]| Point { x: *x, y: *y }).collect(),
        }
    }
}

/// Lines over two axes.
#[derive(Deserialize)]
pub(crate) struct LinePlot {
    title: String,
    x: AxisRequest,
    y: AxisRequest,
    lines: Vec<LineRequest>,
}

impl LinePlot {
    pub(crate) fn draw(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let axes = Axes {
            x: self.x.axis(points().map(|[x, _]| *x)),
            y: self.y.axis(points().map(|[_, y]| *y)),
        };
        let lines: Vec<Line<'_>> =
            self.lines.iter().enumerate().map(|(place, line)| line.style(place)).collect();
        line_plot(&self.title, &axes, &lines)
    }
}

/// A point of a series.
#[derive(Deserialize)]
struct DotRequest {
    at: [f64; 2],
    series: usize,
}

/// Points of several series.
#[derive(Deserialize)]
pub(crate) struct ScatterPlot {
    title: String,
    x: AxisRequest,
    y: AxisRequest,
    names: Vec<String>,
    dots: Vec<DotRequest>,
}

impl ScatterPlot {
    pub(crate) fn draw(&self) -> String {
        let dot = |dot: &DotRequest| ScatterPoint {
            at: Point { x: dot.at[0], y: dot.at[1] },
            series: dot.series,
        };
        let axes = Axes {
            x: self.x.axis(self.dots.iter().map(|dot| dot.at[0])),
            y: self.y.axis(self.dots.iter().map(|dot| dot.at[1])),
        };
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        scatter_plot(&self.title, &axes, &self.dots.iter().map(dot).collect::<Vec<_>>(), &names)
    }
}

/// Bars at 1, 2, 3, …, each divided into the same parts.
#[derive(Deserialize)]
pub(crate) struct StackedBars {
    title: String,
    x: AxisRequest,
    y: AxisRequest,
    names: Vec<String>,
    bars: Vec<Vec<f64>>,
}

impl StackedBars {
    pub(crate) fn draw(&self) -> String {
        let sums = self.bars.iter().map(|parts| parts.iter().sum());
        let axes = Axes {
            x: Axis::counting(self.x.quantity(), 0.5..=self.bars.len() as f64 + 0.5),
            y: self.y.axis(sums),
        };
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        stacked_bars(&self.title, &axes, &names, &self.bars)
    }
}

/// A part of a whole.
#[derive(Deserialize)]
struct PartRequest {
    name: String,
    value: f64,
}

/// One bar, divided into parts.
#[derive(Deserialize)]
pub(crate) struct ShareBar {
    title: String,
    parts: Vec<PartRequest>,
}

impl ShareBar {
    pub(crate) fn draw(&self) -> String {
        let part = |part: &PartRequest| SharePart { name: part.name.clone(), value: part.value };
        share_bar(&self.title, &self.parts.iter().map(part).collect::<Vec<_>>())
    }
}

/// A mean, with its confidence interval if it has one.
#[derive(Deserialize)]
struct ErrorBarRequest {
    name: String,
    mean: f64,
    bounds: Option<[f64; 2]>,
}

/// Means with error bars, one below the other.
#[derive(Deserialize)]
pub(crate) struct ErrorBars {
    title: String,
    quantity: AxisRequest,
    rows: Vec<ErrorBarRequest>,
}

impl ErrorBars {
    pub(crate) fn draw(&self) -> String {
        let row = |row: &ErrorBarRequest| florin_charts::ErrorBar {
            name: row.name.clone(),
            series: 0,
            mean: row.mean,
            bounds: row.bounds.map(|[low, high]| ErrorBarBounds { low, high }),
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        error_bars(&self.title, self.quantity.quantity(), &rows)
    }
}
