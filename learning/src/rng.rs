//! Reproducible random numbers: one seed gives many independent streams, identical on every
//! machine.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The purpose of a random stream. Two purposes never share a stream, so that drawing more numbers
/// for one does not shift the numbers of another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Init,
    Batches,
    Partition,
    Split,
    Rounding,
}

/// The generator of `seed` for `purpose`, part `part` (an epoch, a redraw).
pub(crate) fn rng(seed: u64, purpose: Purpose, part: u32) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    rng.set_stream((purpose as u64) << 32 | u64::from(part));
    rng
}

/// A uniform integer below `bound`, which must be positive.
///
/// Implemented here rather than taken from `rand`, whose ranges may change between releases: an
/// auditor must reproduce the order of batches.
pub(crate) fn below(rng: &mut ChaCha20Rng, bound: u64) -> u64 {
    debug_assert!(bound > 0, "the bound must be positive");
    let reject_above = u64::MAX - (u64::MAX % bound + 1) % bound;
    loop {
        let drawn = rng.next_u64();
        if drawn <= reject_above {
            return drawn % bound;
        }
    }
}

/// A uniform number in [0, 1) with 53 random bits.
pub(crate) fn uniform(rng: &mut ChaCha20Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A uniform shuffle (Fisher and Yates).
pub(crate) fn shuffle<T>(rng: &mut ChaCha20Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let other = below(rng, last as u64 + 1) as usize;
        items.swap(last, other);
    }
}

/// The order of the rows in one epoch of training. Both engines use it, so that they train on the
/// same batches.
pub(crate) fn epoch_order(rows: usize, seed: u64, epoch: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    shuffle(&mut rng(seed, Purpose::Batches, epoch), &mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_row_once_and_repeats_from_its_seed() {
        let order = epoch_order(101, 7, 3);
        assert_eq!(order, epoch_order(101, 7, 3));
        assert_ne!(order, epoch_order(101, 7, 4));
        assert_ne!(order, epoch_order(101, 8, 3));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..101).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut rng = rng(1, Purpose::Split, 0);
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
        assert_eq!(epoch_order(8, 42, 0), [5, 4, 7, 2, 3, 1, 0, 6]);
        assert_eq!(uniform(&mut rng(42, Purpose::Init, 0)), 0.514_049_295_765_024_1);
    }
}
