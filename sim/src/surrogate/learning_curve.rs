//! The learning curve: the decrease of the loss in a round, and the accuracy of a model with a
//! given loss.
//!
//! ```text
//! V(ℓ, n) = exp( piecewise linear in ln ℓ ) · (1 − b / n)    decrease of the loss ℓ in a round of
//! n updates, in nats
//! logit A(ℓ) = a₀ + a₁ ℓ + a₂ ln ℓ                          accuracy of a model with the loss ℓ
//! ```
//! The knots are losses in geometric sequence, from the initial loss of the real simulations to the
//! lowest one; below it the last piece is extrapolated. The factor `1 − b / n` is the benefit of
//! averaging more updates. The values at the knots and `b` minimise the squared distance between
//! the logarithms of the predicted losses, followed round by round, and those of the real
//! simulations on test rows. Late rounds decrease the loss little, and then sampling noise decides
//! the pay.

use serde::Serialize;

use super::least_squares::least_squares;
use super::small_simulations::SimulationObservations;

/// Minimum loss, in nats.
pub(super) const LOSS_MIN: f64 = 1e-3;
/// Number of knots of the curve.
const KNOTS: usize = 10;
/// Number of fitted parameters.
const NUMBERS: usize = KNOTS + 1;
/// Number of Levenberg–Marquardt steps.
const STEPS: usize = 100;
/// Weight of the second differences of the curve relative to equal deviations from the real losses,
/// both in logarithms. It is small, so that it matters only where there are few observations.
const STIFFNESS: f64 = 0.01;
/// Step of the numerical derivative.
const DERIVATIVE_STEP: f64 = 1e-5;

/// One knot of the curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Knot {
    /// The loss, in nats.
    pub loss: f64,
    /// Decrease of the loss in a round, in the limit of many updates, in nats.
    pub gain: f64,
}

/// A fitted learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LearningCurve {
    /// The knots, from the highest loss to the lowest.
    pub knots: [Knot; KNOTS],
    /// `b`, in updates.
    pub averaging_offset: f64,
    /// `a₀`, `a₁`, `a₂`.
    pub accuracy: [f64; 3],
}

impl LearningCurve {
    /// Decrease of the loss in a round with this number of updates, in nats.
    #[must_use]
    pub fn loss_decrease(&self, loss: f64, updates: f64) -> f64 {
        let crowd = (1.0 - self.averaging_offset / updates.max(1.0)).max(0.0);
        (self.interpolate(loss) * crowd).min((loss - LOSS_MIN).max(0.0))
    }

    /// The lowest loss of a fitted simulation, in nats: below it the curve is extrapolated.
    #[must_use]
    pub const fn lowest_loss(&self) -> f64 {
        self.knots[KNOTS - 1].loss
    }

    /// The interpolated value: constant above the first knot; below the last one the last piece is
    /// extrapolated, but it falls at least in proportion to the loss.
    fn interpolate(&self, loss: f64) -> f64 {
        let [.., before, last] = self.knots;
        if loss >= self.knots[0].loss {
            return self.knots[0].gain;
        }
        let power = |a: Knot, b: Knot| (a.gain / b.gain).ln() / (a.loss / b.loss).ln();
        let from = |b: Knot, power: f64| b.gain * (loss.max(LOSS_MIN) / b.loss).powf(power);
        let piece = self.knots.windows(2).find(|pair| loss >= pair[1].loss);
        piece.map_or_else(
            || from(last, power(before, last).max(1.0)),
            |pair| from(pair[1], power(pair[0], pair[1])),
        )
    }

    /// Accuracy of a model with this loss.
    #[must_use]
    pub fn accuracy(&self, loss: f64) -> f64 {
        let [a, b, c] = self.accuracy;
        let loss = loss.max(LOSS_MIN);
        1.0 / (1.0 + (-(a + b * loss + c * loss.ln())).exp())
    }

    /// The losses of a simulation that starts at `loss`: before its first round, and after each
    /// round.
    fn trajectory(&self, loss: f64, updates: &[f64]) -> Vec<f64> {
        let mut losses = vec![loss];
        let mut at = loss;
        for updates in updates {
            at -= self.loss_decrease(at, *updates);
            losses.push(at);
        }
        losses
    }

    /// The least-squares fit to real simulations.
    #[must_use]
    pub(super) fn fit(games: &[SimulationObservations]) -> Self {
        let all = games.iter().flat_map(|seen| &seen.losses).map(|loss| loss.max(LOSS_MIN));
        let first = games.iter().filter_map(|seen| seen.losses.first());
        let highest = first.fold(LOSS_MIN, |most, loss| most.max(*loss));
        // If the loss never decreases, the knots still need a range.
        let lowest = all.fold(highest * 0.9, f64::min);
        let knots: [f64; KNOTS] = std::array::from_fn(|i| {
            highest * (lowest / highest).powf(i as f64 / (KNOTS - 1) as f64)
        });
        let updates: Vec<Vec<f64>> = games.iter().map(SimulationObservations::updates).collect();
        let off = |numbers: &[f64; NUMBERS]| -> Vec<f64> {
            let curve = Self::from_parameters(numbers, &knots);
            let of = |(seen, updates): (&SimulationObservations, &Vec<f64>)| {
                let first = seen.losses.first().copied().unwrap_or_default();
                let pairs = curve.trajectory(first, updates).into_iter().zip(&seen.losses);
                let off = |(own, real): (f64, &f64)| (own.max(LOSS_MIN) / real.max(LOSS_MIN)).ln();
                pairs.map(off).collect::<Vec<f64>>()
            };
            let bends = numbers[..KNOTS]
                .windows(3)
                .map(|knots| STIFFNESS * (knots[0] - 2.0 * knots[1] + knots[2]));
            games.iter().zip(&updates).flat_map(of).chain(bends).collect()
        };
        let begin = std::array::from_fn(|i| knots.get(i).map_or(-1.0, |loss| (0.1 * loss).ln()));
        Self {
            accuracy: fit_accuracy(games),
            ..Self::from_parameters(&levenberg_marquardt(&off, begin), &knots)
        }
    }

    /// The curve for unbounded parameters.
    fn from_parameters(numbers: &[f64; NUMBERS], knots: &[f64; KNOTS]) -> Self {
        let [gains @ .., crowd] = numbers;
        let knot = |i: usize| Knot { loss: knots[i], gain: gains[i].exp() };
        Self { knots: std::array::from_fn(knot), averaging_offset: crowd.exp(), accuracy: [0.0; 3] }
    }
}

fn fit_accuracy(games: &[SimulationObservations]) -> [f64; 3] {
    let mut rows = Vec::new();
    for (loss, right) in games.iter().flat_map(|seen| seen.losses.iter().zip(&seen.accuracies)) {
        let (loss, right) = (loss.max(LOSS_MIN), right.clamp(0.005, 0.995));
        rows.push(([1.0, loss, loss.ln()], (right / (1.0 - right)).ln(), 1.0));
    }
    least_squares(&rows)
}

/// Minimises the squared norm of `off` from the start `begin` (K. Levenberg, 1944; D. Marquardt,
/// 1963); deterministic.
fn levenberg_marquardt(
    off: &dyn Fn(&[f64; NUMBERS]) -> Vec<f64>,
    begin: [f64; NUMBERS],
) -> [f64; NUMBERS] {
    let length = |off: &[f64]| {
        let sum: f64 = off.iter().map(|one| one * one).sum();
        if sum.is_finite() { sum } else { f64::MAX }
    };
    let (mut at, mut damping) = (begin, 1.0);
    let mut here = off(&at);
    for _ in 0..STEPS {
        let beside: Vec<Vec<f64>> = (0..NUMBERS)
            .map(|i| {
                let mut moved = at;
                moved[i] += DERIVATIVE_STEP;
                off(&moved)
            })
            .collect();
        let slopes =
            |row: usize| std::array::from_fn(|i| (beside[i][row] - here[row]) / DERIVATIVE_STEP);
        let lines = here.iter().enumerate().map(|(row, own)| (slopes(row), -own, 1.0));
        let held = (0..NUMBERS)
            .map(|i| (std::array::from_fn(|j| f64::from(u8::from(i == j))), 0.0, damping));
        let step: [f64; NUMBERS] = least_squares(&lines.chain(held).collect::<Vec<_>>());
        let next = std::array::from_fn(|i| at[i] + step[i]);
        let there = off(&next);
        if length(&there) < length(&here) {
            (at, here, damping) = (next, there, damping / 4.0);
        } else {
            damping *= 8.0;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_recovers_the_curve_that_generated_the_data() {
        let gain = |loss: f64| 0.4 * (loss - 0.1_f64).max(0.0).powf(1.4) * (1.0 - loss / 2.6);
        let accuracy = [2.0, -1.5, -0.3];
        let losses = |updates: f64| {
            let next = |loss: &f64| Some(loss - gain(*loss) * (1.0 - 1.5 / updates));
            std::iter::successors(Some(2.3), next).take(61).collect::<Vec<f64>>()
        };
        let right = |loss: f64| {
            LearningCurve {
                accuracy,
                ..LearningCurve::from_parameters(&[0.0; NUMBERS], &[1.0; KNOTS])
            }
            .accuracy(loss)
        };
        let game = |updates: f64| {
            let losses = losses(updates);
            let accuracies = losses.iter().map(|loss| right(*loss)).collect();
            SimulationObservations {
                losses,
                accuracies,
                rounds: Vec::new(),
                update_counts: vec![updates; 60],
            }
        };
        let found = LearningCurve::fit(&[game(8.0), game(32.0)]);
        for (own, real) in found.trajectory(2.3, &[100.0; 60]).iter().zip(&losses(100.0)) {
            assert!((own - real).abs() < 0.02, "{found:?}: {own} is not {real}");
        }
        assert!((found.accuracy(0.4) - right(0.4)).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn the_curve_has_no_peak_between_observations() {
        let losses: Vec<f64> = [2.3, 1.1, 0.6, 0.25, 0.22, 0.21, 0.205, 0.203].to_vec();
        let asked = vec![12.0; losses.len() - 1];
        let accuracies = vec![0.5; losses.len()];
        let found = LearningCurve::fit(&[SimulationObservations {
            losses,
            accuracies,
            rounds: Vec::new(),
            update_counts: asked,
        }]);
        for knot in found.knots {
            assert!(knot.gain < knot.loss, "{found:?}");
        }
    }

    #[test]
    fn the_curve_interpolates_its_knots_and_falls_to_zero() {
        let knots: [f64; KNOTS] = std::array::from_fn(|i| 2.0 * 0.5_f64.powi(i as i32));
        let mut numbers: [f64; NUMBERS] = std::array::from_fn(|i| (0.3 / (i + 1) as f64).ln());
        numbers[KNOTS] = f64::NEG_INFINITY;
        let curve = LearningCurve::from_parameters(&numbers, &knots);
        for (i, knot) in knots.iter().enumerate() {
            let gain = 0.3 / (i + 1) as f64;
            assert!(
                (curve.loss_decrease(*knot, 9.0) - gain.min(knot - LOSS_MIN)).abs() < 1e-12,
                "{knot}"
            );
        }
        assert_eq!(curve.loss_decrease(5.0, 9.0), curve.loss_decrease(2.0, 9.0));
        assert_eq!(curve.loss_decrease(LOSS_MIN, 9.0), 0.0);
        let last = curve.knots[KNOTS - 1];
        let halved = curve.interpolate(last.loss / 2.0);
        assert!((halved - last.gain / 2.0).abs() < 1e-12, "at least in proportion to the loss");
    }
}
