//! Which updates repeat what was there before: an update that was committed earlier, or the public step of the round
//! before. The thresholds and what they rest on: docs/decisions/0011-near-duplicates-and-innovation.md.

use std::ops::Range;

use super::{Gram, Likeness, Public, likeness, mixture, republished};

/// Cosine with an earlier update from which a copy under noise is looked for.
pub const NOISY_COSINE: f64 = 0.85;
/// Cosine with a public step from which a replay under noise is looked for: honest updates are often near to the last
/// steps, so less than this says nothing.
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

impl Likeness<'_> {
    /// Asks for the cheaper figure first: it already speaks for nearly everybody who is honest.
    fn is_under_noise(&self, cosine: f64, own_part: f64) -> bool {
        self.cosine() > cosine
            && self.agreement().is_some_and(|agreement| agreement < NOISY_AGREEMENT)
            && self.own().is_some_and(|own| own > own_part)
    }

    /// Whether the later update is a near-duplicate of the earlier one. Shared own parts alone do not tell: two members
    /// may have learned from similar rows what the others did not. What they learned beyond agrees with somebody's.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.is_same() || self.is_under_noise(NOISY_COSINE, NOISY_OWN)
    }

    /// Whether the update is a public step sent back. Honest updates share much of their own part with steps that they
    /// have shaped themselves, so only sameness and noise tell.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.is_same() || self.is_under_noise(REPLAY_COSINE, REPLAY_OWN)
    }
}

/// The cosine with the public steps where the update is a mixture of them, or one of them under noise.
#[must_use]
pub fn replays(
    gram: &Gram,
    beyond: &Gram,
    rows: &[u64],
    steps: Range<usize>,
    later: usize,
) -> Option<f64> {
    let (cosine, same) = mixture(gram, beyond, later);
    // Cheap, and nothing below it can be near to one of them.
    let near = cosine > REPLAY_COSINE;
    let mut one = steps.map(|step| likeness(gram, beyond, rows, (later, step)));
    (same || near && one.any(|step| step.is_replay())).then_some(cosine)
}

/// The earlier one of a pair, where the later one is a copy of it.
pub(super) fn copied(
    gram: &Gram,
    beyond: &Gram,
    rows: &[u64],
    pair: (usize, usize),
) -> Option<Found> {
    let (later, of) = pair;
    let cosine = gram.cosine(later, of);
    // Cheap, and nothing below it can be a copy.
    let near = cosine > NOISY_COSINE;
    (near && likeness(gram, beyond, rows, pair).is_copy()).then_some(Found { of, cosine })
}

/// For each update what it repeats: the public steps, an update that somebody else sent in an earlier round, or else the
/// earliest commit that it is a copy of. `orders` are the places of the commits; the updates are the first vectors of the
/// matrix.
#[must_use]
pub fn repeats(
    gram: &Gram,
    rows: &[u64],
    orders: &[u32],
    public: &Public<'_>,
) -> Vec<Option<Found>> {
    let mut by_order: Vec<usize> = (0..rows.len()).collect();
    by_order.sort_by_key(|&i| (orders[i], i));
    let steps = &public.steps;
    let (mut gram, mut beyond) = (gram.clone(), gram.beyond(steps.clone()));
    let replay = |later| {
        let cosine = replays(&gram, &beyond, rows, steps.clone(), later)?;
        Some(Found { of: steps.start, cosine })
    };
    let mut found: Vec<Option<Found>> = (0..rows.len()).map(replay).collect();
    // Who repeats something bears witness for nobody.
    let mut witnesses = rows.to_vec();
    let is_found = found.iter().map(Option::is_some);
    witnesses.iter_mut().zip(is_found).filter(|(_, found)| *found).for_each(|(rows, _)| *rows = 0);
    for (later, found) in found.iter_mut().enumerate().filter(|(_, found)| found.is_none()) {
        *found = republished(&mut gram, &mut beyond, &witnesses, public, later);
        if found.is_some() {
            witnesses[later] = 0;
        }
    }
    for (place, &later) in by_order.iter().enumerate() {
        if found[later].is_some() {
            continue;
        }
        let repeat = by_order[..place].iter().find_map(|&earlier| {
            let copy = copied(&gram, &beyond, &witnesses, (later, earlier))?;
            // Whoever committed a member's own earlier update first is not the first to have sent it.
            let origin = origin(&found, earlier);
            let own = public.is_own(&mut gram, &mut beyond, &witnesses, (later, origin));
            (!own).then_some(copy)
        });
        if repeat.is_some() {
            witnesses[later] = 0;
        }
        found[later] = repeat;
    }
    found
}

/// What update `at` is a copy of in the end: itself where it repeats nothing.
fn origin(found: &[Option<Found>], at: usize) -> usize {
    let mut at = at;
    // A copy is always of an earlier commit, or of something that is no update of this round.
    while let Some(Some(Found { of, .. })) = found.get(at) {
        at = *of;
    }
    at
}
