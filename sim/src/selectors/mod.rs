//! Selectors of the literature beside the market's own: they replace the cohort of an open round.
//! Unlike the market's, they may use what only a laboratory knows: which members are online, a
//! member's own loss, its true time and its later availability.

mod oort;
mod refl;
mod tifl;

use rand_chacha::ChaCha8Rng;

use crate::random::uniform;
use crate::scenario::Selector;
use oort::Oort;
pub(crate) use tifl::TIERS;
use tifl::Tifl;

/// A member that a selector may select: it is online.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectableMember {
    /// Index in the population.
    pub(crate) number: usize,
    /// Seconds from an offer to its commit.
    pub(crate) seconds: f64,
    /// Probability that it is online one expected round later.
    pub(crate) later: f64,
}

/// A selected member's result in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberFeedback {
    /// Index in the population.
    pub(crate) number: usize,
    /// Oort's statistical utility: rows times the root of the mean squared loss.
    pub(crate) utility: f64,
    /// Accuracy of the round's base model on its rows.
    pub(crate) accuracy: f64,
}

/// The state of a scenario's selector.
#[derive(Clone, Debug)]
pub(crate) enum SelectorState {
    Oort(Oort),
    Tifl(Tifl),
    Refl,
}

impl SelectorState {
    pub(crate) fn new(selector: Selector, rounds: u32) -> Self {
        match selector {
            Selector::Oort => Self::Oort(Oort::default()),
            Selector::Tifl => Self::Tifl(Tifl::new(rounds)),
            Selector::Refl => Self::Refl,
        }
    }

    /// The members of a cohort with this many places.
    pub(crate) fn select(
        &mut self,
        members: &[SelectableMember],
        places: usize,
        round: u64,
        rng: &mut ChaCha8Rng,
    ) -> Vec<usize> {
        match self {
            Self::Oort(oort) => oort.select(members, places, round, rng),
            Self::Tifl(tifl) => tifl.select(members, places, rng),
            Self::Refl => refl::select(members, places, rng),
        }
    }

    pub(crate) fn observe(&mut self, results: &[MemberFeedback], round: u64) {
        match self {
            Self::Oort(oort) => oort.observe(results, round),
            Self::Tifl(tifl) => tifl.observe(results),
            Self::Refl => {}
        }
    }
}

/// Draws up to `places` of the numbers without replacement, in proportion to their weights
/// (Efraimidis and Spirakis, 2006).
fn weighted_sample(weighted: &[(usize, f64)], places: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut keys: Vec<(f64, usize)> = weighted
        .iter()
        .map(|(number, weight)| (-(1.0 - uniform(rng)).ln() / weight.max(1e-12), *number))
        .collect();
    keys.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    keys.into_iter().take(places).map(|(_, number)| number).collect()
}
