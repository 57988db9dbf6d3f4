//! Reproducible random numbers: one seed gives many independent streams, identical on every
//! machine.
//!
//! Ranges and shuffles are implemented here rather than taken from a library whose algorithms may
//! change between releases, because an auditor must reproduce them. The crate owns no entropy:
//! every seed is an argument.
//!
//! # The streams of the workspace
//!
//! Recorded vectors, scores, models and published tables depend on every stream, so each has its
//! own generator, and none may change:
//!
//! | stream | generator | integers below a bound |
//! |---|---|---|
//! | rows of a round (`protocol`) | BLAKE3's extended output, part of the protocol, which depends on no other crate | rejection |
//! | valuation, training, partition, rounding (`contribution`, `learning`) | [`chacha20`] | [`below`]: rejection |
//! | noise of private training (`learning`) | [`chacha20_of_secret`] | [`below`]: rejection |
//! | orders of the benchmark of a provider's devices (`bench`) | [`chacha20`] | [`below`]: rejection |
//! | laboratory and simulated faults (`sim`) | ChaCha8 of a BLAKE3 digest, one stream per purpose | multiplication, a bias of at most 2⁻⁶⁴ |

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The ChaCha20 generator of `seed` for one stream; two streams of one seed are independent.
pub fn chacha20(seed: u64, stream: u64) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

/// The ChaCha20 generator of a secret: its numbers cannot be predicted without all 32 bytes.
pub fn chacha20_of_secret(secret: &[u8; 32]) -> ChaCha20Rng {
    ChaCha20Rng::from_seed(*secret)
}

/// A uniform integer below `bound`, without bias.
///
/// # Panics
/// If `bound` is 0.
pub fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    assert!(bound > 0, "there is no number below 0");
    let reject_above = u64::MAX - (u64::MAX % bound + 1) % bound;
    loop {
        let drawn = rng.next_u64();
        if drawn <= reject_above {
            return drawn % bound;
        }
    }
}

/// A uniform number in [0, 1), with 53 random bits.
pub fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Shuffles `items` uniformly (Fisher and Yates).
pub fn shuffle<T>(rng: &mut impl Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let other = below(rng, last as u64 + 1) as usize;
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut rng = chacha20(1, 3 << 32);
        let mut seen = [0_u32; 3];
        for _ in 0..30_000 {
            seen[below(&mut rng, 3) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (9_700..10_300).contains(&count)), "{seen:?}");
    }

    /// An auditor must draw the same numbers: a new release of the generator must not change them
    /// unnoticed.
    #[test]
    fn streams_match_the_recorded_numbers() {
        assert_eq!(uniform(&mut chacha20(42, 0)), 0.514_049_295_765_024_1);
        let mut order: Vec<usize> = (0..8).collect();
        shuffle(&mut chacha20(42, 1 << 32), &mut order);
        assert_eq!(order, [5, 4, 7, 2, 3, 1, 0, 6]);
    }
}
