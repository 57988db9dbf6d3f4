//! Random numbers (SplitMix64) from a seed, which alone reproduces a run.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::model::{INITIAL_BALANCE, UNBOUNDED};

/// The generator.
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one of many runs under a seed.
    pub fn for_run(seed: u64, number: u64) -> Self {
        let mut dice = Self(seed ^ number.wrapping_mul(0xd605_1a3c_0f7b_19e5));
        dice.0 = dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: u64) -> usize {
        (self.next() % sides) as usize
    }

    /// True with probability 1 / `many`.
    pub fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// A random amount, sometimes zero or too large.
    pub fn amount(&mut self) -> i128 {
        match self.below(12) {
            0 => 0,
            1 => [INITIAL_BALANCE + 1, UNBOUNDED][self.below(2)],
            _ => self.below(80) as i128,
        }
    }
}

/// A number from the environment, if the variable is set.
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number; it is {text}")))
}

/// The seed of this run; `FLORIN_SEED` reproduces an earlier run.
pub fn seed() -> u64 {
    let seed =
        env_number("FLORIN_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("FLORIN_SEED={seed}");
    seed
}
