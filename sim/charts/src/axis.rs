//! Axes: a quantity with its unit, a range, and ticks.

use std::ops::RangeInclusive;

use crate::number_format::thousands;

/// The unit of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A count or an index: rounds, rows, members.
    Number,
    /// A share or a probability, from 0 to 1.
    Fraction,
    /// A share in per cent.
    Percent,
    /// Florins.
    Florins,
    /// Florins per percentage point of accuracy.
    FlorinsPerPoint,
    /// Nats, the unit of a loss.
    Nats,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// The unit behind a number; empty for numbers without a unit.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Number | Self::Fraction => "",
            Self::Percent => "%",
            Self::Florins => "FLN",
            Self::FlorinsPerPoint => "FLN per point",
            Self::Nats => "nats",
            Self::Seconds => "s",
        }
    }
}

/// The quantity of an axis.
#[derive(Debug, Clone, Copy)]
pub struct Quantity<'a> {
    /// Its name: `accuracy`.
    pub name: &'a str,
    /// Its unit.
    pub unit: Unit,
}

/// Where the ticks of an axis stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    /// Linear, with ticks at whole numbers only.
    Whole,
    /// Logarithmic, with ticks at the powers of ten.
    Logarithmic,
}

/// An axis. Its title names the quantity and the unit.
#[derive(Debug, Clone)]
pub struct Axis {
    name: String,
    unit: Unit,
    scale: Scale,
    low: f64,
    high: f64,
    /// Formats a tick; `None` for decimals by the distance of the ticks.
    label: Option<fn(f64) -> String>,
    /// A tick whose grid line is dashed.
    marked: Option<f64>,
}

/// The two axes of a plot.
#[derive(Debug, Clone)]
pub struct Axes {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
}

impl Axis {
    fn new(quantity: Quantity<'_>, scale: Scale, range: RangeInclusive<f64>) -> Self {
        let (low, high) = range.into_inner();
        let name = quantity.name.to_owned();
        Self { name, unit: quantity.unit, scale, low, high, label: None, marked: None }
    }

    /// A linear axis over a range.
    #[must_use]
    pub fn between(quantity: Quantity<'_>, range: RangeInclusive<f64>) -> Self {
        Self::new(quantity, Scale::Linear, range)
    }

    /// A linear axis over the finite values, with a small margin; never empty.
    #[must_use]
    pub fn covering(quantity: Quantity<'_>, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extended((f64::INFINITY, f64::NEG_INFINITY), values);
        if low > high {
            return Self::between(quantity, 0.0..=1.0);
        }
        let room = ((high - low) * 0.06).max(high.abs().max(low.abs()) * 0.01).max(1e-9);
        Self::between(quantity, low - room..=high + room)
    }

    /// A linear axis from zero, or from below the smallest value, to above the largest.
    #[must_use]
    pub fn from_zero(quantity: Quantity<'_>, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extended((0.0, 0.0), values);
        let room = (high - low).max(1e-9) * 0.08;
        Self::between(quantity, if low < 0.0 { low - room } else { 0.0 }..=high + room)
    }

    /// An axis of whole numbers.
    #[must_use]
    pub fn counting(quantity: Quantity<'_>, range: RangeInclusive<f64>) -> Self {
        Self::new(quantity, Scale::Whole, range)
    }

    /// A logarithmic axis; `label` formats its powers of ten. Values outside the range are drawn at
    /// its ends.
    #[must_use]
    pub fn logarithmic(
        quantity: Quantity<'_>,
        range: RangeInclusive<f64>,
        label: fn(f64) -> String,
    ) -> Self {
        Self { label: Some(label), ..Self::new(quantity, Scale::Logarithmic, range) }
    }

    /// Dashes the grid line of a tick.
    #[must_use]
    pub fn with_marked_tick(self, tick: f64) -> Self {
        Self { marked: Some(tick), ..self }
    }

    pub(crate) fn is_marked(&self, tick: f64) -> bool {
        self.marked.is_some_and(|marked| (tick / marked - 1.0).abs() < 1e-6)
    }

    /// The title: the quantity and its unit.
    #[must_use]
    pub fn title(&self) -> String {
        match self.unit.symbol() {
            "" => self.name.clone(),
            symbol => format!("{}, {symbol}", self.name),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn unit(&self) -> Unit {
        self.unit
    }

    /// The position of a value: 0 at the low end, 1 at the high end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        if self.scale == Scale::Logarithmic {
            let clamped = value.clamp(self.low, self.high);
            return (clamped / self.low).ln() / (self.high / self.low).ln();
        }
        (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE)
    }

    /// The distance of the ticks of a linear axis: a round number.
    fn step(&self) -> f64 {
        let parts = if self.scale == Scale::Whole { 10.0 } else { 4.0 };
        let raw = ((self.high - self.low) / parts).max(1e-12);
        let magnitude = 10f64.powf(raw.log10().floor());
        let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| raw / magnitude <= *nice);
        let step = nice.unwrap_or(10.0) * magnitude;
        if self.scale == Scale::Whole { step.max(1.0) } else { step }
    }

    /// The values that have a tick.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        /// Tolerance for an end that is a tick up to rounding.
        const SLACK: f64 = 1e-9;
        let whole = |from: f64, to: f64| (from - SLACK).ceil() as i64..=(to + SLACK).floor() as i64;
        if self.scale == Scale::Logarithmic {
            let powers = whole(self.low.log10(), self.high.log10());
            return powers.map(|power| 10_f64.powi(power as i32)).collect();
        }
        let step = self.step();
        whole(self.low / step, self.high / step).map(|at| at as f64 * step).collect()
    }

    /// The text of a tick.
    pub(crate) fn tick_label(&self, value: f64) -> String {
        if let Some(label) = self.label {
            return label(value);
        }
        let decimals = (-self.step().log10().floor()).max(0.0) as usize;
        // The sum has no negative zero.
        thousands(&format!("{:.decimals$}", value + 0.0))
    }
}

/// A range, extended to the finite values.
fn extended(range: (f64, f64), values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(range, |(low, high), value| (low.min(value), high.max(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS: Quantity<'static> = Quantity { name: "loss", unit: Unit::Nats };
    const ROUND: Quantity<'static> = Quantity { name: "round", unit: Unit::Number };

    #[test]
    fn ticks_are_round_numbers() {
        let ticks = |range| Axis::between(LOSS, range).ticks();
        assert_eq!(ticks(-0.5..=9.7), [0.0, 5.0]);
        assert_eq!(ticks(0.0..=1.0), [0.0, 0.5, 1.0]);
        for (span, expected) in [(1.0, 0.5), (0.4, 0.1), (100.0, 50.0), (7.9, 2.0)] {
            let step = Axis::between(LOSS, 0.0..=span).step();
            assert!((step - expected).abs() < 1e-9, "{span}: {step}");
        }
    }

    #[test]
    fn a_counting_axis_has_whole_ticks_only() {
        assert_eq!(Axis::counting(ROUND, 1.0..=2.0).ticks(), [1.0, 2.0]);
        assert_eq!(Axis::counting(ROUND, 0.0..=10.0).ticks().len(), 11);
        assert_eq!(Axis::counting(ROUND, 0.0..=200.0).ticks()[..3], [0.0, 20.0, 40.0]);
    }

    #[test]
    fn tick_labels_have_the_decimals_of_their_distance() {
        let labels = |range| {
            let axis = Axis::between(LOSS, range);
            axis.ticks().into_iter().map(|tick| axis.tick_label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(0.0..=0.02), ["0.000", "0.005", "0.010", "0.015", "0.020"]);
        assert_eq!(labels(-1.0..=1.0), ["-1.0", "-0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(labels(0.0..=3000.0), ["0", "1,000", "2,000", "3,000"]);
    }

    #[test]
    fn a_title_names_the_quantity_and_its_unit() {
        assert_eq!(Axis::between(LOSS, 0.0..=1.0).title(), "loss, nats");
        assert_eq!(Axis::counting(ROUND, 0.0..=1.0).title(), "round");
    }

    #[test]
    fn decades_have_equal_width_on_a_logarithmic_axis() {
        let axis = Axis::logarithmic(LOSS, 1.0..=1_000.0, |value| value.to_string());
        let places: Vec<f64> =
            axis.ticks().iter().map(|&value| (300.0 * axis.share(value)).round()).collect();
        assert_eq!(places, [0.0, 100.0, 200.0, 300.0]);
        assert_eq!(axis.share(0.1), 0.0, "a smaller value is drawn at the end");
    }

    #[test]
    fn an_axis_without_values_is_not_empty() {
        assert_eq!(Axis::covering(LOSS, [f64::NAN].into_iter()).ticks(), [0.0, 0.5, 1.0]);
        assert!(Axis::from_zero(LOSS, std::iter::empty()).share(0.0).abs() < 1e-9);
    }
}
