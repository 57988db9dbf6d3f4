//! Random directions from the laboratory's streams, the same in every run.

use florin_learning::params;
use florin_sim::random::{random_direction, stream};

/// A sequence of random directions.
pub(super) struct Noise {
    seed: u64,
    drawn: u64,
}

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// A vector of length `length` in a random direction.
    pub(super) fn direction(&mut self, numbers: usize, length: f64) -> Vec<f32> {
        self.drawn += 1;
        random_direction(&mut stream(self.seed, "direction", [self.drawn, 0]), numbers, length)
    }

    /// A vector plus a random direction of `share` times its length.
    pub(super) fn with_noise(&mut self, delta: &[f32], share: f64) -> Vec<f32> {
        let aside = self.direction(delta.len(), share * params::norm(delta));
        delta.iter().zip(aside).map(|(a, b)| a + b).collect()
    }
}
