//! Preprocessing of a round's updates before the valuation, so that neither copies nor larger norms
//! earn extra, and a large bond does not decide a round.
//!
//! First, an update is **rejected as a near-duplicate** if it repeats an earlier commit, another
//! sender's update of an earlier round or the global model deltas of earlier rounds: it becomes
//! zero, and its rows do not count. Then the **weights** are capped and those of stale updates
//! reduced, and all updates are **rescaled** to the cohort's median norm. All steps are pure functions of the decoded updates, the rows and the order of commits, so that
//! coordinator, provider and auditor compute the same bits.

mod duplicates;
mod gram;
mod public_vectors;
mod rescale;
mod similarity;
#[cfg(test)]
mod tests;

use florin_learning::RowMatrix;
use florin_protocol::{
    Address, DuplicateMatch, DuplicatePolicy, DuplicateSource, Micro, NormScaling, Preprocessing,
    PreprocessingRules, StalenessWeight, UpdateEntry,
};

pub use duplicates::{
    COPY_COSINE_MIN, COPY_OWN_PART_MIN, NOISE_AGREEMENT_MAX, NearDuplicate, REPLAY_COSINE_MIN,
    REPLAY_OWN_PART_MIN, find_duplicates, find_replay,
};
pub use gram::Gram;
pub use public_vectors::{PublicVectors, find_republished};
pub use rescale::{median_norm, norm_factor, norms, rescale};
pub use similarity::{SAME_COSINE, SAME_COSINE_SMALL, Similarity, nearest_combination, similarity};

/// Number of parameters per global model delta that is compared; at least one delta is. Linear
/// combinations of many deltas would span a small model's space.
const PARAMETERS_PER_DELTA: usize = 50;

/// A round's preprocessed updates, in the order of the entries.
#[derive(Debug)]
pub struct PreprocessedUpdates {
    /// The updates.
    pub deltas: RowMatrix,
    /// Weights of the updates: the entries' counted rows up to the cap, and zero for rejected
    /// updates and for updates that change nothing.
    pub rows: Vec<u64>,
    /// The factor of each update's rescaling.
    pub norm_factors: Vec<Micro>,
    /// The near-duplicate match of each update.
    pub duplicates: Vec<Option<DuplicateMatch>>,
}

impl PreprocessedUpdates {
    /// The preprocessing of the update of entry `at`.
    pub(crate) fn preprocessing(&self, at: usize) -> Preprocessing {
        Preprocessing {
            norm_factor: self.norm_factors[at],
            duplicate_of: self.duplicates[at],
            weight: self.rows[at],
        }
    }
}

/// Public vectors at the start of a round.
#[derive(Debug)]
pub struct PublicHistory {
    /// The global model deltas of earlier rounds, the latest first.
    pub global_deltas: RowMatrix,
    /// Senders of the updates of earlier rounds, in commit order.
    pub senders: Vec<Address>,
    /// The updates of earlier rounds.
    pub updates: RowMatrix,
}

/// Preprocesses the updates by a task's rules. Stale updates have a smaller weight.
#[must_use]
pub fn preprocess(
    rules: PreprocessingRules,
    staleness: StalenessWeight,
    entries: &[UpdateEntry],
    mut deltas: RowMatrix,
    known: &PublicHistory,
) -> PreprocessedUpdates {
    let mut rows: Vec<u64> = entries.iter().map(|entry| entry.rows_counted).collect();
    let repeats = match rules.near_duplicates {
        DuplicatePolicy::Accept => vec![None; entries.len()],
        DuplicatePolicy::Reject => find_matches(entries, &rows, &deltas, known),
    };
    for (at, (rows, repeat)) in rows.iter_mut().zip(&repeats).enumerate() {
        if repeat.is_some() {
            deltas.row_mut(at).fill(0.0);
            *rows = 0;
        }
    }
    cap_weights(rules.weight_cap, &deltas, &mut rows);
    for (rows, entry) in rows.iter_mut().zip(entries) {
        *rows = staleness.weigh(*rows, entry.staleness);
    }
    let clips = match rules.norm_scaling {
        NormScaling::None => vec![Micro::ONE; entries.len()],
        NormScaling::Median => rescale_to_median(&mut deltas, &rows),
    };
    PreprocessedUpdates { deltas, rows, norm_factors: clips, duplicates: repeats }
}

/// Takes the weight of updates that change nothing, and limits the others to `cap` times their
/// lower median; 0 sets no limit.
fn cap_weights(cap: u16, deltas: &RowMatrix, rows: &mut [u64]) {
    for (rows, delta) in rows.iter_mut().zip(deltas.slices()) {
        if delta.iter().all(|value| *value == 0.0) {
            *rows = 0;
        }
    }
    let mut counted: Vec<u64> = rows.iter().copied().filter(|rows| *rows > 0).collect();
    counted.sort_unstable();
    let Some(&median) = counted.get(counted.len().saturating_sub(1) / 2) else { return };
    if cap > 0 {
        let limit = median.saturating_mul(cap.into());
        rows.iter_mut().for_each(|rows| *rows = limit.min(*rows));
    }
}

fn find_matches(
    entries: &[UpdateEntry],
    rows: &[u64],
    deltas: &RowMatrix,
    known: &PublicHistory,
) -> Vec<Option<DuplicateMatch>> {
    let looked_for = known.global_deltas.len().min((deltas.width() / PARAMETERS_PER_DELTA).max(1));
    let mut vectors = deltas.slices();
    vectors.extend(known.global_deltas.slices().into_iter().take(looked_for));
    let last = vectors.len();
    vectors.extend(known.updates.slices());
    let orders: Vec<u32> = entries.iter().map(|entry| entry.commit_position).collect();
    let at = |who: &Address| entries.binary_search_by_key(who, |entry| entry.sender).ok();
    let same_sender: Vec<Option<usize>> = known.senders.iter().map(at).collect();
    let public = PublicVectors {
        global_deltas: entries.len()..last,
        updates: last..vectors.len(),
        same_sender: &same_sender,
        vectors: &vectors,
    };
    let gram = Gram::without_last_block(&vectors, known.updates.len());
    let found = find_duplicates(&gram, rows, &orders, &public);
    let to_match = |found: NearDuplicate| DuplicateMatch {
        source: match known.senders.get(found.index.wrapping_sub(last)) {
            Some(sender) => DuplicateSource::EarlierRound(*sender),
            None => entries.get(found.index).map_or(DuplicateSource::GlobalDeltas, |entry| {
                DuplicateSource::SameRound(entry.sender)
            }),
        },
        cosine: millionths(found.cosine),
    };
    found.into_iter().map(|found| found.map(to_match)).collect()
}

fn rescale_to_median(deltas: &mut RowMatrix, rows: &[u64]) -> Vec<Micro> {
    let norms = norms(&deltas.slices(), rows);
    let Some(median) = median_norm(&norms) else {
        return vec![Micro::ONE; deltas.len()];
    };
    let factors: Vec<Micro> = norms.iter().map(|(norm, _)| norm_factor(median, *norm)).collect();
    for (at, factor) in factors.iter().enumerate() {
        if *factor != Micro::ONE {
            rescale(deltas.row_mut(at), *factor);
        }
    }
    factors
}

/// A positive cosine in millionths, rounded down and clamped to one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to a million, and rounding down is meant"
)]
fn millionths(cosine: f64) -> Micro {
    Micro((cosine.clamp(0.0, 1.0) * 1e6).floor() as u64)
}
