//! Preprocessing of a round's updates before the valuation, so that neither copies nor larger norms
//! earn extra.
//!
//! First, an update is **rejected as a near-duplicate** if it repeats an earlier commit, another
//! sender's update of an earlier round or the global model deltas of earlier rounds: it becomes
//! zero, and its rows do not count. Then all updates are **rescaled** to the cohort's median norm.
//! Both steps are pure functions of the decoded updates, the rows and the order of commits, so that
//! coordinator, provider and auditor compute the same bits.

mod clip;
mod gram;
mod likeness;
mod public;
mod repeats;
#[cfg(test)]
mod tests;

use florin_learning::Rows;
use florin_learning::params::norm as norm_of;
use florin_protocol::{
    Address, Clip, Entry, Micro, Origin, Protection, Repeat, Repeats, Treatment,
};

pub use clip::{clip_factor, median_norm, rescale};
pub use gram::Gram;
pub use likeness::{Likeness, SAME_COSINE, SAME_COSINE_SMALL, likeness, mixture};
pub use public::{Public, republished};
pub use repeats::{
    Found, NOISY_AGREEMENT, NOISY_COSINE, NOISY_OWN, REPLAY_COSINE, REPLAY_OWN, repeats, replays,
};

/// Number of parameters per global model delta that is compared; at least one delta is. Linear
/// combinations of many deltas would span a small model's space.
const PARAMETERS_PER_STEP: usize = 50;

/// A round's preprocessed updates, in the order of the entries.
#[derive(Debug)]
pub struct Protected {
    /// The updates.
    pub deltas: Rows,
    /// Weights of the updates: the entries' counted rows, and zero for rejected updates.
    pub rows: Vec<u64>,
    /// The factor of each update's rescaling.
    pub clips: Vec<Micro>,
    /// The near-duplicate match of each update.
    pub repeats: Vec<Option<Repeat>>,
}

impl Protected {
    /// The preprocessing of the update of entry `at`.
    pub(crate) fn treatment(&self, at: usize) -> Treatment {
        Treatment { clip: self.clips[at], repeats: self.repeats[at] }
    }
}

/// Public vectors at the start of a round.
#[derive(Debug)]
pub struct Known {
    /// The global model deltas of earlier rounds, the latest first.
    pub steps: Rows,
    /// Senders of the updates of earlier rounds, in commit order.
    pub senders: Vec<Address>,
    /// The updates of earlier rounds.
    pub updates: Rows,
}

/// Preprocesses the updates by a task's rules.
#[must_use]
pub fn protect(rules: Protection, entries: &[Entry], mut deltas: Rows, known: &Known) -> Protected {
    let mut rows: Vec<u64> = entries.iter().map(|entry| entry.rows_counted).collect();
    let repeats = match rules.repeats {
        Repeats::Counted => vec![None; entries.len()],
        Repeats::SetAside => find(entries, &rows, &deltas, known),
    };
    for (at, (rows, repeat)) in rows.iter_mut().zip(&repeats).enumerate() {
        if repeat.is_some() {
            deltas.row_mut(at).fill(0.0);
            *rows = 0;
        }
    }
    let clips = match rules.clip {
        Clip::None => vec![Micro::ONE; entries.len()],
        Clip::Median => clip(&mut deltas, &rows),
    };
    Protected { deltas, rows, clips, repeats }
}

fn find(entries: &[Entry], rows: &[u64], deltas: &Rows, known: &Known) -> Vec<Option<Repeat>> {
    let looked_for = known.steps.len().min((deltas.width() / PARAMETERS_PER_STEP).max(1));
    let mut vectors = deltas.slices();
    vectors.extend(known.steps.slices().into_iter().take(looked_for));
    let last = vectors.len();
    vectors.extend(known.updates.slices());
    let orders: Vec<u32> = entries.iter().map(|entry| entry.order).collect();
    let at = |who: &Address| entries.binary_search_by_key(who, |entry| entry.sender).ok();
    let same_sender: Vec<Option<usize>> = known.senders.iter().map(at).collect();
    let public = Public {
        steps: entries.len()..last,
        updates: last..vectors.len(),
        same_sender: &same_sender,
        vectors: &vectors,
    };
    let gram = Gram::apart(&vectors, known.updates.len());
    let found = repeats(&gram, rows, &orders, &public);
    let to_match = |found: Found| Repeat {
        of: match known.senders.get(found.of.wrapping_sub(last)) {
            Some(sender) => Origin::LastUpdate(*sender),
            None => entries
                .get(found.of)
                .map_or(Origin::PublicSteps, |entry| Origin::Update(entry.sender)),
        },
        cosine: millionths(found.cosine),
    };
    found.into_iter().map(|found| found.map(to_match)).collect()
}

fn clip(deltas: &mut Rows, rows: &[u64]) -> Vec<Micro> {
    let lengths = deltas.slices().into_iter().map(norm_of);
    let norms: Vec<(f64, u64)> = lengths.zip(rows).map(|(norm, rows)| (norm, *rows)).collect();
    let Some(median) = median_norm(&norms) else {
        return vec![Micro::ONE; deltas.len()];
    };
    let factors: Vec<Micro> = norms.iter().map(|(norm, _)| clip_factor(median, *norm)).collect();
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
