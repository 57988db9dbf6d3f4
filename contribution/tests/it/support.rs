//! Games for the tests, and a property-test runner that prints its seed.

use florin_contribution::{ClosureSource, Coalition, Game, GameError};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A game given by a formula over coalitions.
pub(crate) struct FnGame<F>(pub(crate) usize, pub(crate) F);

impl<F: FnMut(&Coalition) -> f64> Game for FnGame<F> {
    fn players(&self) -> usize {
        self.0
    }

    fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
        Ok((self.1)(coalition))
    }
}

/// Rows of a least-squares problem: row r loses `½ (target_r − x_r · (w₀ + Σ c_i Δ_i))²`, a
/// quadratic in the coefficients.
#[derive(Debug, Clone)]
pub(crate) struct LeastSquares {
    pub(crate) features: Vec<Vec<f64>>,
    pub(crate) targets: Vec<f64>,
    pub(crate) updates: Vec<Vec<f64>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl LeastSquares {
    /// target − prediction of one row at the moved point.
    fn residual(&self, row: usize, coefficients: &[f64]) -> f64 {
        let moves = self.updates.iter().zip(coefficients);
        let prediction: f64 = moves.map(|(update, c)| c * dot(&self.features[row], update)).sum();
        self.targets[row] - prediction
    }

    pub(crate) fn losses(&self, coefficients: &[f64]) -> Vec<f64> {
        let rows = 0..self.targets.len();
        rows.map(|row| 0.5 * self.residual(row, coefficients).powi(2)).collect()
    }

    pub(crate) fn directional_derivatives(&self, coefficients: &[f64]) -> Vec<Vec<f64>> {
        let rows = 0..self.targets.len();
        let slope = |update: &Vec<f64>, row: usize| {
            -self.residual(row, coefficients) * dot(&self.features[row], update)
        };
        self.updates
            .iter()
            .map(|update| rows.clone().map(|row| slope(update, row)).collect())
            .collect()
    }

    pub(crate) fn source(&self) -> impl florin_contribution::AffineSource + '_ {
        ClosureSource::new(
            self.updates.len(),
            |c: &[f64]| Ok::<_, GameError>(self.losses(c)),
            |c: &[f64]| Ok::<_, GameError>(self.directional_derivatives(c)),
        )
    }
}

/// Runs a property on 128 cases, with a seed that is printed on failure (cargo shows the output of
/// failed tests), or with the seed in FLORIN_TEST_SEED.
pub(crate) fn runner() -> TestRunner {
    let seed = match std::env::var("FLORIN_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLORIN_TEST_SEED is a number"),
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    println!("FLORIN_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let config = Config { cases: 128, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// A gap of at most 2 % or 10⁻⁴ nats, as in a market.
pub(crate) fn is_resolved(gap_nano: i64, total_nano: i64) -> bool {
    gap_nano.abs() <= 100_000 || 50 * i128::from(gap_nano).abs() <= i128::from(total_nano).abs()
}
