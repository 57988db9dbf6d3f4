//! What is done to a round's updates before they are valued, so that nobody gains by how it sends its work.
//!
//! First, an update that repeats an earlier commit, somebody else's update of an earlier round or the public steps of
//! the rounds before is **set aside**: it becomes zero, and its rows do not count. Then all updates are brought to the length of the cohort's median: **clipped**, or
//! lengthened. Both are pure functions of decoded updates, rows and the order of commits; coordinator, provider and
//! auditor come to the same bits.

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

/// A model has that many parameters for every public step that is looked for, or else one step only: mixtures of many
/// steps would fill a small model's space.
const PARAMETERS_PER_STEP: usize = 50;

/// A round's updates as they are valued, in the order of the entries.
#[derive(Debug)]
pub struct Protected {
    /// The updates.
    pub deltas: Rows,
    /// The rows by which they count: those of the entries, and none for what was set aside.
    pub rows: Vec<u64>,
    /// By what each was multiplied.
    pub clips: Vec<Micro>,
    /// What each repeats.
    pub repeats: Vec<Option<Repeat>>,
}

impl Protected {
    /// What was done to the update of entry `at`.
    pub(crate) fn treatment(&self, at: usize) -> Treatment {
        Treatment { clip: self.clips[at], repeats: self.repeats[at] }
    }
}

/// What everybody could read when a round began.
#[derive(Debug)]
pub struct Known {
    /// What the rounds before did to the model, the latest first.
    pub steps: Rows,
    /// Who sent the updates of earlier rounds, in the order in which they were sent.
    pub senders: Vec<Address>,
    /// These updates.
    pub updates: Rows,
}

/// Applies a task's protection.
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
    let told = |found: Found| Repeat {
        of: match known.senders.get(found.of.wrapping_sub(last)) {
            Some(sender) => Origin::LastUpdate(*sender),
            None => entries
                .get(found.of)
                .map_or(Origin::PublicSteps, |entry| Origin::Update(entry.sender)),
        },
        cosine: millionths(found.cosine),
    };
    found.into_iter().map(|found| found.map(told)).collect()
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

/// A cosine above zero in millionths, rounded down; at most one, which rounding may exceed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to a million, and rounding down is meant"
)]
fn millionths(cosine: f64) -> Micro {
    Micro((cosine.clamp(0.0, 1.0) * 1e6).floor() as u64)
}
