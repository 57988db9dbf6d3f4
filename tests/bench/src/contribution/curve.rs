//! The arithmetic of the comparison: errors, medians, and the point at which a curve reaches one
//! per cent.

use serde::{Deserialize, Serialize};

/// The relative error at which estimators are compared.
pub(super) const TARGET: f64 = 0.01;

/// One estimate of one instance of a game, compared with the exact values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Trial {
    /// Maximum number of evaluations.
    pub(super) budget: u64,
    /// Index of the instance.
    pub(super) instance: usize,
    /// Number of distinct coalitions evaluated.
    pub(super) evaluations: u64,
    /// `‖φ̂ − φ‖₂ / ‖φ‖₂`.
    pub(super) error: f64,
    /// Time of the estimator; coalition values are looked up in a table.
    pub(super) seconds: f64,
}

/// The medians over all instances at one budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CurvePoint {
    /// Number of distinct coalitions evaluated.
    pub(super) evaluations: f64,
    /// Relative error.
    pub(super) error: f64,
    /// Seconds.
    pub(super) seconds: f64,
}

/// One estimator on one game, over all budgets.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Curve {
    /// Name of the estimator.
    pub(super) estimator: String,
    /// Name of the game.
    pub(super) game: String,
    /// Medians, in the order of the budgets.
    pub(super) points: Vec<CurvePoint>,
}

/// The point at which a curve reaches [`TARGET`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reached {
    /// At this number of evaluations, interpolated between two budgets.
    At(f64),
    /// At the first budget already.
    Within(f64),
    /// Not at all; the point with the smallest error.
    Never(CurvePoint),
}

impl Reached {
    /// The number of evaluations, if the target is reached.
    pub(super) fn evaluations(self) -> Option<f64> {
        match self {
            Self::At(evaluations) | Self::Within(evaluations) => Some(evaluations),
            Self::Never(_) => None,
        }
    }
}

impl Curve {
    /// The medians of the budgets at which all `instances` have an estimate.
    pub(super) fn from_trials(
        estimator: &str,
        game: &str,
        trials: &[Trial],
        instances: usize,
    ) -> Self {
        let mut budgets: Vec<u64> = trials.iter().map(|trial| trial.budget).collect();
        budgets.sort_unstable();
        budgets.dedup();
        let points = budgets.into_iter().filter_map(|budget| {
            let at: Vec<&Trial> = trials.iter().filter(|trial| trial.budget == budget).collect();
            let of = |read: &dyn Fn(&Trial) -> f64| median(at.iter().map(|trial| read(trial)));
            (at.len() == instances).then(|| {
                Some(CurvePoint {
                    evaluations: of(&|trial| trial.evaluations as f64)?,
                    error: of(&|trial| trial.error)?,
                    seconds: of(&|trial| trial.seconds)?,
                })
            })?
        });
        Self { estimator: estimator.to_owned(), game: game.to_owned(), points: points.collect() }
    }

    /// The point at which the curve first reaches [`TARGET`]. Between two budgets the error is
    /// interpolated as a power of the evaluations. `None` for a curve without points.
    pub(super) fn reached(&self) -> Option<Reached> {
        let below = self.points.iter().position(|point| point.error <= TARGET);
        Some(match below {
            Some(0) => Reached::Within(self.points[0].evaluations),
            Some(at) => {
                let (above, below) = (self.points[at - 1], self.points[at]);
                Reached::At(between(above, below))
            }
            None => {
                let best = self.points.iter().min_by(|a, b| a.error.total_cmp(&b.error))?;
                Reached::Never(*best)
            }
        })
    }

    /// The first point at or below [`TARGET`].
    pub(super) fn first_below_target(&self) -> Option<CurvePoint> {
        self.points.iter().copied().find(|point| point.error <= TARGET)
    }
}

/// The point at which the line between two points crosses [`TARGET`] on logarithmic axes.
fn between(above: CurvePoint, below: CurvePoint) -> f64 {
    /// Errors below this are rounding errors.
    const ERROR_MIN: f64 = 1e-12;
    let (high, low) = (above.error.ln(), below.error.max(ERROR_MIN).ln());
    let share = (high - TARGET.ln()) / (high - low);
    (above.evaluations.ln() + share * (below.evaluations.ln() - above.evaluations.ln())).exp()
}

/// The Euclidean distance of `estimate` from `exact`, relative to the norm of `exact`.
pub(super) fn relative_error(estimate: &[f64], exact: &[f64]) -> f64 {
    let apart: f64 = estimate.iter().zip(exact).map(|(a, b)| (a - b) * (a - b)).sum();
    let length: f64 = exact.iter().map(|b| b * b).sum();
    (apart / length).sqrt()
}

/// The median; `None` if there are no values.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The interpolated quantile at `share`; `None` if there are no values.
pub(super) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let high = (low + 1).min(sorted.len() - 1);
    Some(sorted[low] * (1.0 - part) + sorted[high] * part)
}

/// The geometric mean of the ratio of our error to theirs, over the points with about equal numbers
/// of evaluations; `None` if there are none.
pub(super) fn error_ratio(ours: &Curve, theirs: &Curve) -> Option<f64> {
    /// Numbers of evaluations that differ by less than this fraction are about equal.
    const ALIKE: f64 = 0.05;
    let mut logs = Vec::new();
    for point in &ours.points {
        let alike = |other: &&CurvePoint| {
            (other.evaluations / point.evaluations - 1.0).abs() < ALIKE && other.error > 0.0
        };
        if let Some(other) = theirs.points.iter().find(alike)
            && point.error > 0.0
        {
            logs.push((point.error / other.error).ln());
        }
    }
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Budgets from `first` to `last`, in a geometric sequence with ratio `ratio`.
pub(super) fn budgets(first: u64, last: u64, ratio: f64) -> Vec<u64> {
    let mut all = vec![first];
    let mut next = first as f64;
    while all[all.len() - 1] < last {
        next = (next * ratio).min(last as f64);
        // Complementary pairs need even budgets.
        all.push((next / 2.0).round() as u64 * 2);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(budget: u64, instance: usize, error: f64) -> Trial {
        Trial { budget, instance, evaluations: budget, error, seconds: 0.0 }
    }

    fn curve(points: &[(f64, f64)]) -> Curve {
        let points = points
            .iter()
            .map(|&(evaluations, error)| CurvePoint { evaluations, error, seconds: 0.0 })
            .collect();
        Curve { estimator: "e".into(), game: "g".into(), points }
    }

    #[test]
    fn the_crossing_is_interpolated_on_logarithmic_axes() {
        // From 4 % at 100 to 0.25 % at 1,600 the error falls as 1/evaluations: 1 % at 400.
        let Some(Reached::At(at)) = curve(&[(100.0, 0.04), (1_600.0, 0.0025)]).reached() else {
            panic!("it crosses")
        };
        assert!((at - 400.0).abs() < 1e-9, "{at}");
        let first = curve(&[(20.0, 0.01), (40.0, 0.001)]);
        assert_eq!(first.reached(), Some(Reached::Within(20.0)));
        let never = curve(&[(20.0, 0.03), (40.0, 0.02), (80.0, 0.025)]);
        let best = CurvePoint { evaluations: 40.0, error: 0.02, seconds: 0.0 };
        assert_eq!(never.reached(), Some(Reached::Never(best)));
        assert_eq!(curve(&[]).reached(), None);
    }

    #[test]
    fn a_curve_has_a_point_only_where_every_instance_has_an_estimate() {
        let trials =
            [trial(8, 0, 0.5), trial(8, 1, 0.1), trial(8, 2, 0.2), trial(16, 0, 0.1)].to_vec();
        let curve = Curve::from_trials("e", "g", &trials, 3);
        assert_eq!(curve.points, [CurvePoint { evaluations: 8.0, error: 0.2, seconds: 0.0 }]);
    }

    #[test]
    fn errors_and_quantiles_match_values_computed_by_hand() {
        assert_eq!(relative_error(&[3.0, 1.0], &[3.0, 4.0]), 0.6);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(quantile([0.0, 10.0].into_iter(), 0.9), Some(9.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn errors_are_compared_only_at_equal_numbers_of_evaluations() {
        let ours = curve(&[(100.0, 0.02), (200.0, 0.08), (900.0, 1.0)]);
        let theirs = curve(&[(100.0, 0.01), (202.0, 0.01), (400.0, 0.01)]);
        // Twice and eight times as large: the geometric mean is four.
        assert!((error_ratio(&ours, &theirs).unwrap() - 4.0).abs() < 1e-12);
        assert_eq!(error_ratio(&ours, &curve(&[])), None);
    }

    #[test]
    fn budgets_are_even_and_end_at_the_last_one() {
        assert_eq!(budgets(20, 100, 1.5), [20, 30, 46, 68, 100]);
    }
}
