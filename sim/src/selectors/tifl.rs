//! `TiFL`: Z. Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020: members are
//! sorted into tiers by their time, and each round takes all its members from one tier. Tiers with
//! lower accuracy are more probable, within each tier's credits.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;

use super::{MemberFeedback, SelectableMember, weighted_sample};
use crate::random::uniform;

const TIERS: usize = 5;
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
        let size = by_time.len().div_ceil(TIERS).max(1);
        self.tiers =
            by_time.iter().enumerate().map(|(at, member)| (member.number, at / size)).collect();
        let tier = self.next_tier(rng);
        self.credits[tier] = self.credits[tier].saturating_sub(1);
        let of_tier: Vec<(usize, f64)> =
            by_time.iter().skip(tier * size).take(size).map(|m| (m.number, 1.0)).collect();
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
        // The lower a tier's accuracy, the more probable it is; an unknown one counts as 0.
        let errors = self.accuracies.map(|(sum, count)| 1.0 - sum / f64::from(count.max(1)));
        let sum: f64 = errors.iter().sum();
        if sum > 0.0 {
            self.probabilities = errors.map(|error| error / sum);
        }
        self.accuracies = [(0.0, 0); TIERS];
    }
}
