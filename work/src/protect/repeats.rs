//! Which updates repeat what was there before: an update that was committed earlier, or the public step of the round
//! before. The thresholds and what they rest on: docs/decisions/0011-near-duplicates-and-innovation.md.

use super::{Gram, Likeness, likeness};

/// Cosine with an earlier update from which a copy under noise is looked for.
pub const NOISY_COSINE: f64 = 0.85;
/// Cosine with the public step from which a replay under noise is looked for: honest updates are often near to the last
/// step, so less than this says nothing.
pub const REPLAY_COSINE: f64 = 0.95;
/// Cosine of the own parts that makes a copy under noise.
pub const NOISY_OWN: f64 = 0.7;
/// Cosine of the own parts that makes a replay under noise.
pub const REPLAY_OWN: f64 = 0.5;
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

impl Likeness {
    fn is_under_noise(&self, cosine: f64, own_part: f64) -> bool {
        self.cosine > cosine
            && self.own.is_some_and(|own| own > own_part)
            && self.agreement.is_some_and(|agreement| agreement < NOISY_AGREEMENT)
    }

    /// Whether the later update is a near-duplicate of the earlier one. Shared own parts alone do not tell: two members
    /// may have learned from similar rows what the others did not. What they learned beyond agrees with somebody's.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.same || self.is_under_noise(NOISY_COSINE, NOISY_OWN)
    }

    /// Whether the update is the public step sent back. Honest updates share much of their own part with a step that
    /// they have shaped themselves, so only sameness and noise tell.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.same || self.is_under_noise(REPLAY_COSINE, REPLAY_OWN)
    }
}

/// For each update what it repeats: the public step, or else the earliest commit that it is a copy of. `orders` are the
/// places of the commits; the updates are the first vectors of the matrix, `step` is the number of the public step.
#[must_use]
pub fn repeats(
    gram: &Gram,
    rows: &[u64],
    orders: &[u32],
    step: Option<usize>,
) -> Vec<Option<Found>> {
    let mut by_order: Vec<usize> = (0..rows.len()).collect();
    by_order.sort_by_key(|&i| (orders[i], i));
    let mut found = vec![None; rows.len()];
    for (place, &later) in by_order.iter().enumerate() {
        let repeated = |earlier: usize| {
            let cosine = gram.cosine(later, earlier);
            // Cheap, and nothing below it can be a repeat.
            let near = cosine > NOISY_COSINE.min(REPLAY_COSINE);
            near.then(|| {
                (Found { of: earlier, cosine }, likeness(gram, rows, step, (later, earlier)))
            })
        };
        let replay = step.and_then(repeated).filter(|(_, likeness)| likeness.is_replay());
        found[later] = replay.map(|(found, _)| found).or_else(|| {
            let copies = by_order[..place].iter().filter_map(|&earlier| repeated(earlier));
            copies.filter(|(_, likeness)| likeness.is_copy()).map(|(found, _)| found).next()
        });
    }
    found
}
