//! The random streams of initialisation, training, partition, rounding and samples.

pub(crate) use florin_random::{below, shuffle, uniform};
use rand_chacha::ChaCha20Rng;

/// The purpose of a random stream. Two purposes never share a stream, so that drawing more numbers
/// for one does not shift the numbers of another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Init,
    Batches,
    Partition,
    Split,
    Rounding,
    Augmentation,
    Dropout,
    Directions,
    #[cfg(feature = "torch")]
    VirtualWorkers,
    #[cfg(feature = "torch")]
    NodeDraws,
    // The same number in builds without libtorch.
    Reservoir = 10,
}

/// The generator of `seed` for `purpose`, part `part` (an epoch, a redraw).
pub(crate) fn rng(seed: u64, purpose: Purpose, part: u32) -> ChaCha20Rng {
    florin_random::chacha20(seed, (purpose as u64) << 32 | u64::from(part))
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

    /// An auditor must draw the same numbers: a new release of the generator must not change them
    /// unnoticed.
    #[test]
    fn streams_match_the_recorded_numbers() {
        assert_eq!(epoch_order(8, 42, 0), [5, 4, 7, 2, 3, 1, 0, 6]);
        assert_eq!(uniform(&mut rng(42, Purpose::Init, 0)), 0.514_049_295_765_024_1);
    }
}
