//! The learning curve: how much a round takes off the loss, and how many rows a model of that loss gets right.
//!
//! ```text
//! V(ℓ, n) = c · (ℓ − ℓ∞)^k · (1 − ℓ / ℓ₁) · (1 − b / n)   nats that a round of n updates takes off the loss ℓ
//! logit A(ℓ) = a₀ + a₁ ℓ + a₂ ln ℓ                        share of rows that a model of loss ℓ gets right
//! ```
//! Followed round by round, the first line is a curve that begins slowly, where a first model has hardly anything to go
//! by, and then falls like a power of the work done; its last factor is what averaging more updates is good for. `c`,
//! `ℓ∞`, `k`, `ℓ₁` and `b` are those whose curves have the least squared
//! distance from the losses of real games, on rows that nobody in the market sees.

use serde::Serialize;

use super::small::Seen;

/// Smallest loss that is reckoned with, in nats.
const LOSS_MIN: f64 = 1e-3;
/// Steps of the search.
const STEPS: usize = 1_500;
/// Numbers that are searched for.
const NUMBERS: usize = 5;

/// A fitted learning curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// `c`: nats a round takes off when the loss is one nat above the floor.
    pub pace: f64,
    /// `ℓ∞`, in nats.
    pub floor: f64,
    /// `k`.
    pub power: f64,
    /// `b`, in updates.
    pub crowd: f64,
    /// `ℓ₁`, in nats: above all losses that were seen.
    pub top: f64,
    /// `a₀`, `a₁`, `a₂`.
    pub accuracy: [f64; 3],
}

impl Curve {
    /// Nats that a round of so many updates takes off this loss.
    #[must_use]
    pub fn gain(&self, loss: f64, updates: f64) -> f64 {
        let above = (loss - self.floor).max(0.0);
        let crowd = 1.0 - self.crowd / updates.max(1.0);
        let awake = (1.0 - loss / self.top).max(0.0);
        (self.pace * above.powf(self.power) * awake * crowd.max(0.0)).min(above)
    }

    /// Share of rows that a model of this loss gets right.
    #[must_use]
    pub fn accuracy(&self, loss: f64) -> f64 {
        let [a, b, c] = self.accuracy;
        let loss = loss.max(LOSS_MIN);
        1.0 / (1.0 + (-(a + b * loss + c * loss.ln())).exp())
    }

    /// The losses of a game that begins at `loss`: before its first round, and after each.
    fn follow(&self, loss: f64, updates: &[f64]) -> Vec<f64> {
        let mut losses = vec![loss];
        let mut at = loss;
        for updates in updates {
            at -= self.gain(at, *updates);
            losses.push(at);
        }
        losses
    }

    /// The curve of least squares through real games.
    #[must_use]
    pub(super) fn fit(games: &[Seen]) -> Self {
        let updates: Vec<Vec<f64>> = games.iter().map(Seen::updates).collect();
        let first = games.iter().filter_map(|seen| seen.losses.first());
        let highest = first.fold(0.0_f64, |most, loss| most.max(*loss));
        let error = |numbers: &[f64; NUMBERS]| {
            let curve = Self::of(numbers, highest);
            let of = |(seen, updates): (&Seen, &Vec<f64>)| -> f64 {
                let first = seen.losses.first().copied().unwrap_or_default();
                let own = curve.follow(first, updates);
                own.iter().zip(&seen.losses).map(|(own, real)| (own - real).powi(2)).sum()
            };
            games.iter().zip(&updates).map(of).sum()
        };
        let best = descend(&error, [-1.0, -2.0, 0.3, -0.5, -0.5], STEPS);
        Self { accuracy: accuracy_of(games), ..Self::of(&best, highest) }
    }

    /// From numbers without bounds.
    fn of([pace, floor, power, crowd, top]: &[f64; NUMBERS], highest: f64) -> Self {
        Self {
            pace: pace.exp(),
            floor: floor.exp(),
            power: power.exp(),
            crowd: crowd.exp(),
            top: highest + top.exp(),
            accuracy: [0.0; 3],
        }
    }
}

fn accuracy_of(games: &[Seen]) -> [f64; 3] {
    let mut rows = Vec::new();
    for (loss, right) in games.iter().flat_map(|seen| seen.losses.iter().zip(&seen.accuracies)) {
        let (loss, right) = (loss.max(LOSS_MIN), right.clamp(0.005, 0.995));
        rows.push(([1.0, loss, loss.ln()], (right / (1.0 - right)).ln(), 1.0));
    }
    least_squares(&rows)
}

/// The numbers that make `Σ weight · (terms · numbers − value)²` least; terms that say nothing get zeros.
pub(super) fn least_squares(rows: &[([f64; 3], f64, f64)]) -> [f64; 3] {
    let mut m = [[0.0; 4]; 3];
    for (terms, value, weight) in rows {
        for (i, line) in m.iter_mut().enumerate() {
            for (j, term) in terms.iter().enumerate() {
                line[j] += weight * terms[i] * term;
            }
            line[3] += weight * terms[i] * value;
        }
    }
    // A little ridge keeps a term that never changes from having no answer.
    let size = m[0][0] + m[1][1] + m[2][2];
    (0..3).for_each(|i| m[i][i] += 1e-9 * size);
    for i in 0..3 {
        if m[i][i].abs() <= f64::MIN_POSITIVE {
            continue;
        }
        let pivot = m[i];
        for (j, line) in m.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = line[i] / pivot[i];
            let _ = j;
            line.iter_mut().zip(&pivot).for_each(|(own, p)| *own -= factor * p);
        }
    }
    std::array::from_fn(|i| if m[i][i].abs() > f64::MIN_POSITIVE { m[i][3] / m[i][i] } else { 0.0 })
}

/// Downhill with a simplex (J. A. Nelder and R. Mead, 1965): no chance is involved.
fn descend(
    error: &dyn Fn(&[f64; NUMBERS]) -> f64,
    start: [f64; NUMBERS],
    steps: usize,
) -> [f64; NUMBERS] {
    let value = |at: &[f64; NUMBERS]| {
        let found = error(at);
        if found.is_finite() { found } else { f64::MAX }
    };
    let mut corners: Vec<([f64; NUMBERS], f64)> = vec![(start, value(&start))];
    for axis in 0..NUMBERS {
        let mut at = start;
        at[axis] += 0.7;
        corners.push((at, value(&at)));
    }
    for _ in 0..steps {
        corners.sort_by(|a, b| a.1.total_cmp(&b.1));
        let Some((worst, worst_value)) = corners.pop() else { break };
        let n = corners.len() as f64;
        let centre: [f64; NUMBERS] =
            std::array::from_fn(|i| corners.iter().map(|(at, _)| at[i]).sum::<f64>() / n);
        let along = |by: f64| -> [f64; NUMBERS] {
            std::array::from_fn(|i| centre[i] + by * (centre[i] - worst[i]))
        };
        let best = corners.first().map_or(f64::MAX, |(_, value)| *value);
        let second = corners.last().map_or(f64::MAX, |(_, value)| *value);
        let mirrored = (along(1.0), value(&along(1.0)));
        let next = if mirrored.1 < best {
            let further = (along(2.0), value(&along(2.0)));
            if further.1 < mirrored.1 { further } else { mirrored }
        } else if mirrored.1 < second {
            mirrored
        } else {
            (along(-0.5), value(&along(-0.5)))
        };
        if next.1 < worst_value {
            corners.push(next);
            continue;
        }
        corners.push((worst, worst_value));
        let Some((first, _)) = corners.first().copied() else { break };
        for (at, own) in corners.iter_mut().skip(1) {
            *at = std::array::from_fn(|i| (at[i] + first[i]) / 2.0);
            *own = value(at);
        }
    }
    corners.sort_by(|a, b| a.1.total_cmp(&b.1));
    corners.first().map_or(start, |(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_found_again_from_its_own_games() {
        let truth = Curve {
            pace: 0.4,
            floor: 0.1,
            power: 1.4,
            crowd: 1.5,
            top: 2.6,
            accuracy: [2.0, -1.5, -0.3],
        };
        let game = |updates: f64| {
            let losses = truth.follow(2.3, &vec![updates; 60]);
            let accuracies = losses.iter().map(|loss| truth.accuracy(*loss)).collect();
            Seen { losses, accuracies, rounds: Vec::new(), asked: vec![updates; 60] }
        };
        let found = Curve::fit(&[game(8.0), game(32.0)]);
        let (own, real) = (found.follow(2.3, &[100.0; 60]), truth.follow(2.3, &[100.0; 60]));
        for (own, real) in own.iter().zip(&real) {
            assert!((own - real).abs() < 0.02, "{found:?}: {own} is not {real}");
        }
        assert!((found.accuracy(0.4) - truth.accuracy(0.4)).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn least_squares_by_hand() {
        let rows: Vec<_> = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]
            .map(|(x, y)| ([1.0, x, x * x], y, 1.0))
            .into_iter()
            .collect();
        let [a, b, c] = least_squares(&rows);
        assert!((a - 1.0).abs() < 1e-4 && (b - 2.0).abs() < 1e-4 && c.abs() < 1e-4, "{a} {b} {c}");
    }
}
