//! Random directions, the same in every run.

use florin_learning::params;
use florin_protocol::blob_digest;

use super::attack::scaled;

/// A stream of random numbers.
pub(super) struct Noise {
    seed: u64,
    drawn: u64,
    ready: Vec<u64>,
}

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0, ready: Vec::new() }
    }

    fn next(&mut self) -> u64 {
        if let Some(number) = self.ready.pop() {
            return number;
        }
        self.drawn += 1;
        let block = blob_digest(&[self.seed.to_le_bytes(), self.drawn.to_le_bytes()].concat());
        let numbers = block.0.chunks_exact(8).map(|eight| {
            let bytes = eight.try_into().expect("chunks of eight bytes");
            u64::from_le_bytes(bytes)
        });
        self.ready = numbers.collect();
        self.next()
    }

    /// Uniform, above 0 and below 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Standard normal, by the Box-Muller transform.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A vector of length `length` in a random direction.
    pub(super) fn direction(&mut self, numbers: usize, length: f64) -> Vec<f32> {
        let drawn: Vec<f32> = (0..numbers).map(|_| self.normal() as f32).collect();
        scaled(&drawn, length / params::norm(&drawn).max(f64::MIN_POSITIVE))
    }

    /// A vector plus a random direction of `share` times its length.
    pub(super) fn with_noise(&mut self, delta: &[f32], share: f64) -> Vec<f32> {
        let aside = self.direction(delta.len(), share * params::norm(delta));
        delta.iter().zip(aside).map(|(a, b)| a + b).collect()
    }

    /// Copies of an update: the first is exact, the others have 20 % noise and 0.7 to 1.3 times the
    /// length.
    pub(super) fn noisy_copies(&mut self, delta: &[f32], copies: usize) -> Vec<Vec<f32>> {
        let mut all = vec![delta.to_vec()];
        for _ in 1..copies {
            let by = 0.7 + 0.6 * self.unit();
            all.push(scaled(&self.with_noise(delta, 0.2), by));
        }
        all
    }
}
