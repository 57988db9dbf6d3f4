//! Detection of near-duplicates: updates that repeat an earlier commit, an update of an earlier
//! round or the global model deltas of earlier rounds. The thresholds and their evidence:
//! docs/decisions/0011-near-duplicate-rejection-and-norm-scaling.md.

use std::ops::Range;

use super::{Gram, PublicVectors, Similarity, find_republished, nearest_combination, similarity};

/// Smallest cosine with an earlier update for a copy under noise.
pub const COPY_COSINE_MIN: f64 = 0.85;
/// Smallest cosine with a global model delta for a replay under noise. Honest updates are often
/// similar to the last deltas, so a smaller cosine is no evidence.
pub const REPLAY_COSINE_MIN: f64 = 0.95;
/// Smallest cosine of the own parts for a copy under noise.
pub const COPY_OWN_PART_MIN: f64 = 0.7;
/// Smallest cosine of the own parts for a replay under noise.
pub const REPLAY_OWN_PART_MIN: f64 = 0.5;
/// Agreement of the residual with the other members' below which it is noise, in standard
/// deviations of a random direction.
pub const NOISE_AGREEMENT_MAX: f64 = 3.0;

/// An earlier vector that an update repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NearDuplicate {
    /// Its index in the Gram matrix.
    pub index: usize,
    /// Cosine of the two vectors.
    pub cosine: f64,
}

impl Similarity<'_> {
    /// Computes the cheaper statistic first: it already clears nearly all honest updates.
    fn is_noisy_match(&self, cosine: f64, own_part: f64) -> bool {
        self.cosine() > cosine
            && self.residual_agreement().is_some_and(|agreement| agreement < NOISE_AGREEMENT_MAX)
            && self.own_part_cosine().is_some_and(|own| own > own_part)
    }

    /// Whether the later update is a near-duplicate of the earlier one. Similar own parts alone are
    /// not sufficient: two members may have learned the same from similar rows. But the residuals
    /// of honest members agree with those of others.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.is_equal_up_to_scale() || self.is_noisy_match(COPY_COSINE_MIN, COPY_OWN_PART_MIN)
    }

    /// Whether the update replays a global model delta. Honest updates share much of their own part
    /// with deltas to which they contributed, so only equality and noise are evidence.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.is_equal_up_to_scale() || self.is_noisy_match(REPLAY_COSINE_MIN, REPLAY_OWN_PART_MIN)
    }
}

/// The cosine with the global model deltas, if the update is a linear combination of them, or one
/// of them under noise.
#[must_use]
pub fn find_replay(
    gram: &Gram,
    beyond: &Gram,
    rows: &[u64],
    steps: Range<usize>,
    later: usize,
) -> Option<f64> {
    let (cosine, same) = nearest_combination(gram, beyond, later);
    // A cheap bound: a smaller cosine excludes every single delta.
    let near = cosine > REPLAY_COSINE_MIN;
    let mut one = steps.map(|step| similarity(gram, beyond, rows, (later, step)));
    (same || near && one.any(|step| step.is_replay())).then_some(cosine)
}

/// The match of a pair, if the later vector copies the earlier one.
pub(super) fn find_copy(
    gram: &Gram,
    beyond: &Gram,
    rows: &[u64],
    pair: (usize, usize),
) -> Option<NearDuplicate> {
    let (later, of) = pair;
    let cosine = gram.cosine(later, of);
    // A cheap bound: a smaller cosine excludes a copy.
    let near = cosine > COPY_COSINE_MIN;
    (near && similarity(gram, beyond, rows, pair).is_copy())
        .then_some(NearDuplicate { index: of, cosine })
}

/// The near-duplicate match of each update: with the global model deltas, with another sender's
/// update of an earlier round, or else with the earliest commit that it copies. `orders` is the
/// commit positions; the updates are the first vectors of the matrix.
#[must_use]
pub fn find_duplicates(
    gram: &Gram,
    rows: &[u64],
    orders: &[u32],
    public: &PublicVectors<'_>,
) -> Vec<Option<NearDuplicate>> {
    let mut by_order: Vec<usize> = (0..rows.len()).collect();
    by_order.sort_by_key(|&i| (orders[i], i));
    let steps = &public.global_deltas;
    let (mut gram, mut beyond) = (gram.clone(), gram.project_out(steps.clone()));
    let replay = |later| {
        let cosine = find_replay(&gram, &beyond, rows, steps.clone(), later)?;
        Some(NearDuplicate { index: steps.start, cosine })
    };
    let mut found: Vec<Option<NearDuplicate>> = (0..rows.len()).map(replay).collect();
    // A duplicate is not a witness for other pairs.
    let mut witnesses = rows.to_vec();
    let is_found = found.iter().map(Option::is_some);
    witnesses.iter_mut().zip(is_found).filter(|(_, found)| *found).for_each(|(rows, _)| *rows = 0);
    for (later, found) in found.iter_mut().enumerate().filter(|(_, found)| found.is_none()) {
        *found = find_republished(&mut gram, &mut beyond, &witnesses, public, later);
        if found.is_some() {
            witnesses[later] = 0;
        }
    }
    for (place, &later) in by_order.iter().enumerate() {
        if found[later].is_some() {
            continue;
        }
        let repeat = by_order[..place].iter().find_map(|&earlier| {
            let copy = find_copy(&gram, &beyond, &witnesses, (later, earlier))?;
            // If the earlier commit itself copies an earlier update of this sender, this sender is
            // not the copier.
            let origin = original_of(&found, earlier);
            let own = public.is_own_work(&mut gram, &mut beyond, &witnesses, (later, origin));
            (!own).then_some(copy)
        });
        if repeat.is_some() {
            witnesses[later] = 0;
        }
        found[later] = repeat;
    }
    found
}

/// The original of update `at`: follows the chain of copies; `at` itself if it is not a duplicate.
fn original_of(found: &[Option<NearDuplicate>], at: usize) -> usize {
    let mut at = at;
    // A copy always refers to an earlier commit, or to a vector that is not an update of this
    // round.
    while let Some(Some(NearDuplicate { index: of, .. })) = found.get(at) {
        at = *of;
    }
    at
}
