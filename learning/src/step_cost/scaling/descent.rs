//! The search for the parameters with the least logarithmic errors: projected Levenberg–Marquardt
//! steps (Marquardt 1963) from a few fixed starts.

use super::{Nodes, OVERLAP, OVERLAP_MIN, PARAMETERS, ScalingSample, bounds, overlapped};

/// Steps of a descent, at most.
const STEPS_MAX: usize = 500;
/// Exponents from which a descent starts.
const OVERLAPS: [f64; 4] = [1.0, 1.5, 3.0, 8.0];
/// Shares of the shortest step that a gradient takes without its rows, at the start of a descent.
const SHARES: [f64; 3] = [0.1, 0.5, 0.9];
/// The damping at the start, its factors after a good and a bad step, and its limits.
const DAMPING: f64 = 1e-2;
const DAMPING_LESS: f64 = 0.2;
const DAMPING_MORE: f64 = 5.0;
const DAMPING_MIN: f64 = 1e-14;
const DAMPING_MAX: f64 = 1e14;
/// A descent ends when a good step improves the sum of squares by a smaller part.
const GAIN_MIN: f64 = 1e-13;
/// Good steps in a row with so small a gain that end a descent.
const SMALL_GAINS_MAX: usize = 5;
/// A sum of squares that no measurement needs to improve: exact samples reach it.
const SQUARES_MIN: f64 = 1e-28;

type Parameters = [f64; PARAMETERS];

/// A sample in the form of the model: the factors of its parameters, and the logarithm of its time.
pub(super) struct Observation {
    /// Factors of the parameters, in their order. The exponent has none.
    factors: Parameters,
    /// `ln` of the measured seconds.
    log_seconds: f64,
}

impl From<&ScalingSample> for Observation {
    fn from(sample: &ScalingSample) -> Self {
        let mut factors = [0.0; PARAMETERS];
        (factors[0], factors[1]) = (1.0, sample.rows as f64);
        if let Some(further) = sample.replicas.checked_sub(2) {
            let at = if sample.nodes == Nodes::One { 2 } else { 4 };
            (factors[at], factors[at + 1]) = (1.0, f64::from(further));
        }
        Self { factors, log_seconds: sample.step_seconds.ln() }
    }
}

impl Observation {
    /// `T_grad` and `T_sync`.
    fn parts(&self, parameters: &Parameters) -> (f64, f64) {
        let of = |at: usize| self.factors[at] * parameters[at];
        (of(0) + of(1), of(2) + of(3) + of(4) + of(5))
    }

    /// `ln predicted − ln measured`.
    fn residual(&self, parameters: &Parameters) -> f64 {
        let (grad, sync) = self.parts(parameters);
        overlapped(grad, sync, parameters[OVERLAP]).ln() - self.log_seconds
    }

    /// The derivatives of the residual.
    fn derivatives(&self, parameters: &Parameters) -> Parameters {
        let (grad, sync) = self.parts(parameters);
        let overlap = parameters[OVERLAP];
        let all = overlapped(grad, sync, overlap);
        let by_part = |part: f64| (part / all).powf(overlap - 1.0) / all;
        let (by_grad, by_sync) = (by_part(grad), by_part(sync));
        let by_overlap = |part: f64| match part > 0.0 {
            true => (part / all).powf(overlap) * (part / all).ln() / overlap,
            false => 0.0,
        };
        std::array::from_fn(|at| match at {
            0 | 1 => self.factors[at] * by_grad,
            OVERLAP => by_overlap(grad) + by_overlap(sync),
            _ => self.factors[at] * by_sync,
        })
    }
}

/// The best end of the descents from all starts. Parameters that are not free are 0, or the least
/// exponent.
pub(super) fn minimise(observations: &[Observation], free: [bool; PARAMETERS]) -> Parameters {
    let mut best = (f64::INFINITY, [0.0; PARAMETERS]);
    for overlap in OVERLAPS {
        for share in SHARES {
            let start = start(observations, free, &Start { overlap, share });
            let found = descend(observations, free, start);
            if found.0 < best.0 {
                best = found;
            }
        }
    }
    best.1
}

struct Start {
    overlap: f64,
    share: f64,
}

/// Gradients share the shortest step between their two parameters. An average takes half of the
/// shortest step, and doubles at the most replicas.
fn start(observations: &[Observation], free: [bool; PARAMETERS], how: &Start) -> Parameters {
    let shortest = observations.iter().map(|of| of.log_seconds).fold(f64::INFINITY, f64::min).exp();
    let most = |at: usize| observations.iter().map(|of| of.factors[at]).fold(1.0, f64::max);
    std::array::from_fn(|at| match at {
        OVERLAP if free[OVERLAP] => how.overlap,
        OVERLAP => OVERLAP_MIN,
        _ if !free[at] => 0.0,
        0 => shortest * how.share,
        1 => shortest * (1.0 - how.share) / most(at),
        _ => shortest / 2.0 / most(at),
    })
}

/// The sum of squared residuals and the parameters at the end of a descent.
fn descend(
    observations: &[Observation],
    free: [bool; PARAMETERS],
    start: Parameters,
) -> (f64, Parameters) {
    let squares = |parameters: &Parameters| -> f64 {
        observations.iter().map(|of| of.residual(parameters).powi(2)).sum()
    };
    let (mut at, mut least) = (start, squares(&start));
    let (mut damping, mut small_gains) = (DAMPING, 0);
    let mut normal = Normal::new(observations, &at);
    for _ in 0..STEPS_MAX {
        if least < SQUARES_MIN || small_gains == SMALL_GAINS_MAX || damping > DAMPING_MAX {
            break;
        }
        let next = normal.step(&at, free, damping);
        let sum = squares(&next);
        // A sum that is no number is no improvement.
        if sum < least {
            small_gains = if least - sum < GAIN_MIN * least { small_gains + 1 } else { 0 };
            (at, least) = (next, sum);
            damping = (damping * DAMPING_LESS).max(DAMPING_MIN);
            normal = Normal::new(observations, &at);
        } else {
            damping *= DAMPING_MORE;
        }
    }
    (least, at)
}

/// The normal equations of the linearised residuals.
struct Normal {
    matrix: [Parameters; PARAMETERS],
    gradient: Parameters,
}

impl Normal {
    fn new(observations: &[Observation], parameters: &Parameters) -> Self {
        let mut all = Self { matrix: [[0.0; PARAMETERS]; PARAMETERS], gradient: [0.0; PARAMETERS] };
        for of in observations {
            let (row, residual) = (of.derivatives(parameters), of.residual(parameters));
            for i in 0..PARAMETERS {
                all.gradient[i] += row[i] * residual;
                for j in 0..PARAMETERS {
                    all.matrix[i][j] += row[i] * row[j];
                }
            }
        }
        all
    }

    /// The parameters after a damped step, within their bounds. A parameter at a bound stays there
    /// while its gradient points outward.
    fn step(&self, from: &Parameters, free: [bool; PARAMETERS], damping: f64) -> Parameters {
        let moves: [bool; PARAMETERS] = std::array::from_fn(|at| {
            let (least, most) = bounds(at);
            let is_stuck = (from[at] <= least && self.gradient[at] >= 0.0)
                || (from[at] >= most && self.gradient[at] <= 0.0);
            free[at] && !is_stuck && self.matrix[at][at] > 0.0
        });
        // Columns are scaled to 1, so that the units of the parameters do not matter.
        let scale: Parameters = std::array::from_fn(|at| match moves[at] {
            true => 1.0 / self.matrix[at][at].sqrt(),
            false => 0.0,
        });
        let mut matrix: [Parameters; PARAMETERS] = std::array::from_fn(|i| {
            std::array::from_fn(|j| match i == j {
                true => 1.0 + damping,
                false => self.matrix[i][j] * scale[i] * scale[j],
            })
        });
        let mut change: Parameters = std::array::from_fn(|at| -self.gradient[at] * scale[at]);
        solve(&mut matrix, &mut change);
        std::array::from_fn(|at| {
            let (least, most) = bounds(at);
            (from[at] + change[at] * scale[at]).clamp(least, most)
        })
    }
}

/// Gaussian elimination. A damped matrix is positive definite, so it needs no pivots.
fn solve(matrix: &mut [Parameters; PARAMETERS], right: &mut Parameters) {
    for pivot in 0..PARAMETERS {
        for row in pivot + 1..PARAMETERS {
            let factor = matrix[row][pivot] / matrix[pivot][pivot];
            let of_pivot = matrix[pivot];
            for (number, of_pivot) in matrix[row].iter_mut().zip(of_pivot) {
                *number -= factor * of_pivot;
            }
            right[row] -= factor * right[pivot];
        }
    }
    for row in (0..PARAMETERS).rev() {
        let known: f64 = (row + 1..PARAMETERS).map(|at| matrix[row][at] * right[at]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_are_slopes_of_the_residual() {
        let parameters = [0.1, 0.01, 0.2, 0.03, 0.4, 0.05, 2.5];
        for (replicas, nodes) in [(1, Nodes::One), (5, Nodes::One), (7, Nodes::Several)] {
            let sample = ScalingSample { rows: 30, replicas, nodes, step_seconds: 0.7 };
            let observation = Observation::from(&sample);
            let derivatives = observation.derivatives(&parameters);
            for (at, derivative) in derivatives.into_iter().enumerate() {
                let moved = |change: f64| {
                    let mut parameters = parameters;
                    parameters[at] += change;
                    observation.residual(&parameters)
                };
                let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                assert!((derivative - slope).abs() < 1e-5, "{at}: {derivative} and {slope}");
            }
        }
    }

    #[test]
    fn equations_are_solved() {
        let mut matrix = std::array::from_fn(|i| {
            std::array::from_fn(|j| if i == j { 8.0 } else { 1.0 / (1 + i + j) as f64 })
        });
        let wanted: Parameters = std::array::from_fn(|at| at as f64 - 2.5);
        let mut right =
            matrix.map(|row: Parameters| row.iter().zip(wanted).map(|(of, x)| of * x).sum());
        solve(&mut matrix, &mut right);
        for (found, wanted) in right.into_iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-12, "{found} is not {wanted}");
        }
    }
}
