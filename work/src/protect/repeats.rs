//! Which updates repeat what was there before: an update that was committed earlier, or the public step of the round
//! before. The thresholds and what they rest on: docs/decisions/0011-near-duplicates-and-innovation.md.

use std::ops::Range;

use super::{Gram, Likeness, Replayed, likeness, replayed};

/// Cosine with an earlier update from which a copy under noise is looked for.
pub const NOISY_COSINE: f64 = 0.85;
/// Cosine with a mixture of the public steps from which a replay under noise is looked for: honest updates are often near
/// to the last steps, so less than this says nothing.
pub const REPLAY_COSINE: f64 = 0.95;
/// Cosine of the own parts that makes a copy under noise.
pub const NOISY_OWN: f64 = 0.7;
/// Agreement of the rest with the others' below which it is noise, in standard deviations of a random direction.
pub const NOISY_AGREEMENT: f64 = 3.0;

/// An earlier vector that an update repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Its number in the matrix.
    pub of: usize,
    /// The cosine between the two.
    pub cosine: f64,
}

fn is_noise(agreement: Option<f64>) -> bool {
    agreement.is_some_and(|agreement| agreement < NOISY_AGREEMENT)
}

impl Likeness {
    /// Whether the later update is a near-duplicate of the earlier one. Shared own parts alone do not tell: two members
    /// may have learned from similar rows what the others did not. What they learned beyond agrees with somebody's.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        let owned = self.own.is_some_and(|own| own > NOISY_OWN);
        self.same || self.cosine > NOISY_COSINE && owned && is_noise(self.agreement)
    }
}

impl Replayed {
    /// Whether the update is public steps sent back. Honest updates have much in common with steps that they have shaped
    /// themselves, so only sameness and noise tell.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.same || self.cosine > REPLAY_COSINE && is_noise(self.agreement)
    }
}

/// For each update what it repeats: the public steps, or else the earliest commit that it is a copy of. `orders` are the
/// places of the commits; the updates are the first vectors of the matrix, `steps` are the numbers of the public steps,
/// the latest first.
#[must_use]
pub fn repeats(
    gram: &Gram,
    rows: &[u64],
    orders: &[u32],
    steps: Range<usize>,
) -> Vec<Option<Found>> {
    let mut by_order: Vec<usize> = (0..rows.len()).collect();
    by_order.sort_by_key(|&i| (orders[i], i));
    let beyond = gram.beyond(steps.clone());
    let replay = |later| {
        let replay = replayed(gram, &beyond, rows, later);
        replay.is_replay().then_some(Found { of: steps.start, cosine: replay.cosine })
    };
    let mut found: Vec<Option<Found>> = (0..rows.len()).map(replay).collect();
    // Who repeats something bears witness for nobody.
    let mut witnesses = rows.to_vec();
    let is_found = found.iter().map(Option::is_some);
    witnesses.iter_mut().zip(is_found).filter(|(_, found)| *found).for_each(|(rows, _)| *rows = 0);
    for (place, &later) in by_order.iter().enumerate() {
        if found[later].is_some() {
            continue;
        }
        found[later] = by_order[..place].iter().find_map(|&earlier| {
            let cosine = gram.cosine(later, earlier);
            // Cheap, and nothing below it can be a copy.
            let near = cosine > NOISY_COSINE;
            let copy = near && likeness(gram, &beyond, &witnesses, (later, earlier)).is_copy();
            copy.then_some(Found { of: earlier, cosine })
        });
        if found[later].is_some() {
            witnesses[later] = 0;
        }
    }
    found
}
