//! `TiFL`: Z. Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020: members are
//! sorted into tiers by their time, and each round takes all its members from one tier. Tiers with
//! lower accuracy are more probable, within each tier's credits.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;

use super::{MemberFeedback, SelectableMember, weighted_sample};
use crate::random::uniform;

pub(crate) const TIERS: usize = 5;
/// Rounds between two changes of the probabilities.
const INTERVAL: usize = 10;
/// A tier's credits, as a multiple of an equal share of the rounds.
const CREDIT_SHARES: f64 = 2.0;

/// The state of the selector.
#[derive(Clone, Debug)]
pub(crate) struct Tifl {
    probabilities: [f64; TIERS],
    credits: [u32; TIERS],
    /// Sum and number of the accuracies of each tier since the last change.
    accuracies: [(f64, u32); TIERS],
    /// The last known accuracy of each tier.
    known: [f64; TIERS],
    /// The tier of the open round.
    current: usize,
    tiers: BTreeMap<usize, usize>,
    rounds: usize,
}

impl Tifl {
    pub(super) fn new(rounds: u32) -> Self {
        let credits = (f64::from(rounds) / TIERS as f64 * CREDIT_SHARES).ceil() as u32;
        Self {
            probabilities: [1.0 / TIERS as f64; TIERS],
            credits: [credits; TIERS],
            accuracies: [(0.0, 0); TIERS],
            known: [0.0; TIERS],
            current: 0,
            tiers: BTreeMap::new(),
            rounds: 0,
        }
    }

    pub(super) fn select(
        &mut self,
        members: &[SelectableMember],
        places: usize,
        rng: &mut ChaCha8Rng,
    ) -> Vec<usize> {
        let mut by_time: Vec<&SelectableMember> = members.iter().collect();
        by_time.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        // Tiers of equal size, but for one member.
        let tier_of = |at: usize| at * TIERS / by_time.len();
        let tiers = by_time.iter().enumerate().map(|(at, member)| (member.number, tier_of(at)));
        self.tiers = tiers.collect();
        let tier = self.next_tier(rng);
        self.current = tier;
        self.credits[tier] = self.credits[tier].saturating_sub(1);
        let of_tier = by_time.iter().enumerate().filter(|(at, _)| tier_of(*at) == tier);
        let of_tier: Vec<(usize, f64)> = of_tier.map(|(_, m)| (m.number, 1.0)).collect();
        weighted_sample(&of_tier, places, rng)
    }

    /// A tier with credits, by the probabilities.
    fn next_tier(&self, rng: &mut ChaCha8Rng) -> usize {
        let weights: Vec<f64> = (0..TIERS)
            .map(|tier| if self.credits[tier] > 0 { self.probabilities[tier] } else { 0.0 })
            .collect();
        let sum: f64 = weights.iter().sum();
        if sum <= 0.0 {
            return 0;
        }
        let mut at = uniform(rng) * sum;
        for (tier, weight) in weights.iter().enumerate() {
            if at < *weight {
                return tier;
            }
            at -= weight;
        }
        TIERS - 1
    }

    pub(super) fn observe(&mut self, results: &[MemberFeedback]) {
        for result in results {
            if let Some(tier) = self.tiers.get(&result.number) {
                self.accuracies[*tier].0 += result.accuracy;
                self.accuracies[*tier].1 += 1;
            }
        }
        self.rounds += 1;
        if !self.rounds.is_multiple_of(INTERVAL) {
            return;
        }
        let before = self.known;
        for (known, (sum, count)) in self.known.iter_mut().zip(self.accuracies) {
            if count > 0 {
                *known = sum / f64::from(count);
            }
        }
        self.accuracies = [(0.0, 0); TIERS];
        // Probabilities change if the accuracy of the round's tier did not improve.
        if self.known[self.current] <= before[self.current] {
            self.change_probabilities();
        }
    }

    /// The tier with the lowest accuracy gets `n` parts, the next one `n − 1`, of the `n` tiers with credits.
    fn change_probabilities(&mut self) {
        let mut open: Vec<usize> = (0..TIERS).filter(|tier| self.credits[*tier] > 0).collect();
        open.sort_by(|one, other| self.known[*one].total_cmp(&self.known[*other]));
        let count = open.len();
        self.probabilities = [0.0; TIERS];
        for (at, tier) in open.into_iter().enumerate() {
            self.probabilities[tier] = 2.0 * (count - at) as f64 / (count * (count + 1)) as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(tifl: &mut Tifl, tier: usize, accuracy: f64) {
        tifl.tiers = BTreeMap::from([(0, tier)]);
        tifl.current = tier;
        for _ in 0..INTERVAL {
            tifl.observe(&[MemberFeedback { number: 0, utility: 0.0, accuracy }]);
        }
    }

    #[test]
    fn probabilities_follow_the_ranks_once_a_tier_improves_no_more() {
        let mut tifl = Tifl::new(100);
        observe(&mut tifl, 1, 0.5);
        assert_eq!(tifl.probabilities, [0.2; TIERS], "it improved");
        observe(&mut tifl, 3, 0.2);
        assert_eq!(tifl.probabilities, [0.2; TIERS]);
        tifl.credits[4] = 0;
        observe(&mut tifl, 1, 0.4);
        let expected = [4.0, 1.0, 3.0, 2.0, 0.0].map(|parts| parts / 10.0);
        for (found, expected) in tifl.probabilities.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{:?}", tifl.probabilities);
        }
    }
}
