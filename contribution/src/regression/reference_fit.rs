//! Reference implementation of the regression fits, for tests: explicit equations, solved by
//! elimination, and a jackknife that actually refits without each pair.

use super::weighted::{Fit, ObservedPairs};
use crate::complementary_pairs::{InitialPairs, PairSampler};
use crate::{Coalition, SeededRng};

/// Pairs with random half differences.
pub(crate) struct RandomPairs {
    pairs: PairSampler,
    sides: Vec<Coalition>,
    half_differences: Vec<f64>,
}

impl RandomPairs {
    pub(crate) fn new(players: usize, count: usize, seed: u64) -> Self {
        println!("{players} players, {count} pairs, seed {seed}");
        let mut pairs = PairSampler::new(players, seed, InitialPairs::PermutationPrefixes);
        let sides: Vec<Coalition> = pairs.by_ref().take(count).collect();
        let mut draw = SeededRng::new(seed, 99);
        let half_differences = sides.iter().map(|_| draw.uniform() - 0.3).collect();
        Self { pairs, sides, half_differences }
    }

    pub(crate) fn observed(&self) -> ObservedPairs<'_> {
        let Self { pairs, sides, half_differences: halves } = self;
        ObservedPairs { total: 0.7, sides, half_differences: halves, pairs }
    }
}

/// The product of signs over every set whose size is in `orders`.
fn features(side: &Coalition, orders: &[usize]) -> Vec<f64> {
    sets(side.universe(), orders)
        .iter()
        .map(|set| set.players().map(|p| if side.contains(p) { 1.0 } else { -1.0 }).product())
        .collect()
}

fn sets(players: usize, orders: &[usize]) -> Vec<Coalition> {
    let all = (0..1_u64 << players).map(|mask| Coalition::from_mask(players, mask));
    all.filter(|set| orders.contains(&set.len())).collect()
}

/// The fit of all interactions of the sizes `orders`, with a ridge penalty on interactions of more
/// than one player. Errors come from fits to all pairs but one (with the weights of all).
pub(crate) fn fit(observed: &ObservedPairs<'_>, orders: &[usize], ridge: f64) -> Fit {
    let weights = observed.weights();
    let values = values(observed, orders, ridge, &weights);
    let mut variances = vec![0.0; values.len()];
    for (left_out, unseen) in observed.finite_population_corrections().into_iter().enumerate() {
        let mut weights = weights.clone();
        weights[left_out] = 0.0;
        let without = self::values(observed, orders, ridge, &weights);
        for ((variance, value), without) in variances.iter_mut().zip(&values).zip(without) {
            *variance += unseen * (value - without).powi(2);
        }
    }
    Fit { values, errors: Some(variances.into_iter().map(f64::sqrt).collect()) }
}

fn values(observed: &ObservedPairs<'_>, orders: &[usize], ridge: f64, weights: &[f64]) -> Vec<f64> {
    let players = observed.players();
    let sets = sets(players, orders);
    let n = sets.len();
    // The stationarity conditions, and the constraint on the sum as one more row and column.
    let mut equations = vec![vec![0.0; n + 2]; n + 1];
    for ((side, half), weight) in observed.sides.iter().zip(observed.half_differences).zip(weights)
    {
        let x = features(side, orders);
        for i in 0..n {
            for j in 0..n {
                equations[i][j] += weight * x[i] * x[j];
            }
            equations[i][n + 1] += weight * x[i] * half;
        }
    }
    for i in 0..n {
        equations[i][i] += if sets[i].len() > 1 { ridge } else { 0.0 };
        equations[i][n] = 1.0;
        equations[n][i] = 1.0;
    }
    equations[n][n + 1] = 0.5 * observed.total;
    let solution = eliminate(equations);
    let value = |player: usize| {
        let own = sets.iter().zip(&solution).filter(|(set, _)| set.contains(player));
        own.map(|(set, a)| 2.0 * a / set.len() as f64).sum()
    };
    (0..players).map(value).collect()
}

/// Gauss–Jordan elimination with pivoting.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let n = rows.len();
    for column in 0..n {
        let pivot = (column..n)
            .max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))
            .unwrap();
        rows.swap(column, pivot);
        let pivot = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != column) {
            let factor = row[column] / pivot[column];
            row.iter_mut().zip(&pivot).for_each(|(x, pivot)| *x -= factor * pivot);
        }
    }
    (0..n).map(|at| rows[at][n] / rows[at][at]).collect()
}

pub(crate) fn assert_close(got: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() <= tolerance * (1.0 + wanted.abs()), "{got} is not {wanted}");
    }
}
