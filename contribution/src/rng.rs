//! The random generator of the estimators.

use rand_chacha::ChaCha20Rng;

/// The random generator of one valuation.
pub struct SeededRng(ChaCha20Rng);

impl SeededRng {
    /// The generator of `seed` for purpose `stream`; two streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(florin_random::chacha20(seed, stream))
    }

    /// A uniform integer below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        florin_random::below(&mut self.0, bound)
    }

    /// A uniform index below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// A uniform number in `0..1`, with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        florin_random::uniform(&mut self.0)
    }

    /// Shuffles `items` uniformly (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        florin_random::shuffle(&mut self.0, items);
    }

    /// A uniform random permutation of `0..n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }

    /// A uniform random subset of `size` players of `0..universe` (Floyd).
    ///
    /// # Panics
    /// If `size` is above `universe`.
    pub fn coalition(&mut self, universe: usize, size: usize) -> crate::Coalition {
        assert!(size <= universe, "{size} players of {universe}");
        let mut chosen = crate::Coalition::empty(universe);
        for last in universe - size..universe {
            let candidate = self.index(last + 1);
            chosen.insert(if chosen.contains(candidate) { last } else { candidate });
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_match_the_recorded_permutation() {
        assert_eq!(SeededRng::new(42, 0).permutation(6), PERMUTATION);
        assert_ne!(SeededRng::new(42, 1).permutation(6), PERMUTATION);
    }

    const PERMUTATION: [usize; 6] = [5, 3, 4, 1, 0, 2];

    #[test]
    fn every_coalition_of_a_size_is_equally_likely() {
        let mut draw = SeededRng::new(7, 0);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..30_000 {
            let coalition = draw.coalition(5, 2);
            assert_eq!(coalition.len(), 2);
            *seen.entry(coalition).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 10);
        assert!(seen.values().all(|count| (2_800..3_200).contains(count)), "{seen:?}");
    }
}
