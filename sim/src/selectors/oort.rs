//! Oort: F. Lai, X. Zhu, H. V. Madhyastha and M. Chowdhury, "Oort: Efficient Federated Learning via
//! Guided Participant Selection", OSDI 2021, with the defaults of its code.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;

use super::{MemberFeedback, SelectableMember, weighted_sample};

const EXPLORATION: f64 = 0.9;
const EXPLORATION_DECAY: f64 = 0.95;
const EXPLORATION_MIN: f64 = 0.2;
/// Exponent of the penalty for members slower than the preferred duration.
const ROUND_PENALTY: f64 = 2.0;
/// Percentile of the durations that is preferred at first, and its step.
const PERCENTILE_FIRST: f64 = 10.0;
const PERCENTILE_STEP: f64 = 5.0;
/// Rounds between two steps of the pacer.
const PACER_ROUNDS: usize = 20;
/// A step prefers longer rounds if the utility changed by at most this part of the last one's, and shorter ones if it changed
/// by at least that factor.
const PACER_FLAT: f64 = 0.1;
const PACER_SHARP: f64 = 5.0;
const CLIP_PERCENTILE: f64 = 98.0;
const CUT_OFF: f64 = 0.7;
const UNCERTAINTY: f64 = 0.1;

/// The state of the selector.
#[derive(Clone, Debug)]
pub(crate) struct Oort {
    /// Utility and last round of every tried member.
    tried: BTreeMap<usize, (f64, u64)>,
    exploration: f64,
    percentile: f64,
    /// The exploited members of the open round.
    exploiting: BTreeSet<usize>,
    /// Mean utility of each round's exploited members.
    exploited: Vec<f64>,
}

impl Default for Oort {
    fn default() -> Self {
        Self {
            tried: BTreeMap::new(),
            exploration: EXPLORATION,
            percentile: PERCENTILE_FIRST,
            exploiting: BTreeSet::new(),
            exploited: Vec::new(),
        }
    }
}

impl Oort {
    pub(super) fn select(
        &mut self,
        members: &[SelectableMember],
        places: usize,
        round: u64,
        rng: &mut ChaCha8Rng,
    ) -> Vec<usize> {
        self.pace();
        let preferred = percentile(members.iter().map(|m| m.seconds).collect(), self.percentile);
        let untried: Vec<(usize, f64)> = members
            .iter()
            .filter(|member| !self.tried.contains_key(&member.number))
            .map(|member| (member.number, 1.0 / member.seconds.max(1e-9)))
            .collect();
        let explored = ((places as f64 * self.exploration) as usize).min(untried.len());
        self.exploration = (self.exploration * EXPLORATION_DECAY).max(EXPLORATION_MIN);
        let scores = self.scores(members, round, preferred);
        let exploited = (places - explored).min(scores.len());
        let mut sorted: Vec<f64> = scores.iter().map(|(_, score)| *score).collect();
        sorted.sort_by(|one, other| other.total_cmp(one));
        let cut = exploited.checked_sub(1).map_or(f64::INFINITY, |last| sorted[last] * CUT_OFF);
        let best: Vec<(usize, f64)> =
            scores.into_iter().filter(|(_, score)| *score >= cut).collect();
        let mut cohort = weighted_sample(&best, exploited, rng);
        self.exploiting = cohort.iter().copied().collect();
        cohort.extend(weighted_sample(&untried, places - cohort.len(), rng));
        cohort
    }

    /// The utilities of the tried members, with the bonus for a long wait and the penalty for slow
    /// ones.
    fn scores(
        &self,
        members: &[SelectableMember],
        round: u64,
        preferred: f64,
    ) -> Vec<(usize, f64)> {
        let all = || self.tried.values().map(|(utility, _)| *utility);
        let clip = percentile(all().collect(), CLIP_PERCENTILE);
        let low = all().fold(f64::INFINITY, f64::min);
        let range = (clip - low).max(1e-4);
        let score = |member: &SelectableMember| {
            let (utility, last) = self.tried.get(&member.number)?;
            let wait = (UNCERTAINTY * (round.max(1) as f64).ln() / (*last).max(1) as f64).sqrt();
            let score = (utility.min(clip) - low) / range + wait;
            let penalty = match member.seconds > preferred {
                true => (preferred / member.seconds).powf(ROUND_PENALTY),
                false => 1.0,
            };
            Some((member.number, score * penalty))
        };
        members.iter().filter_map(score).collect()
    }

    /// Prefers longer rounds if the utility of the last rounds is about that of those before, and shorter ones if it changed
    /// sharply.
    fn pace(&mut self) {
        let count = self.exploited.len();
        if count < 2 * PACER_ROUNDS || !count.is_multiple_of(PACER_ROUNDS) {
            return;
        }
        let sum = |part: &[f64]| part.iter().sum::<f64>();
        let last = sum(&self.exploited[count - PACER_ROUNDS..]);
        let before = sum(&self.exploited[count - 2 * PACER_ROUNDS..count - PACER_ROUNDS]);
        let change = (last - before).abs();
        if change <= before * PACER_FLAT {
            self.percentile = (self.percentile + PERCENTILE_STEP).min(100.0);
        } else if change >= before * PACER_SHARP {
            self.percentile = (self.percentile - PERCENTILE_STEP).max(PERCENTILE_STEP);
        }
    }

    pub(super) fn observe(&mut self, results: &[MemberFeedback], round: u64) {
        for result in results {
            self.tried.insert(result.number, (result.utility, round));
        }
        let exploited = results.iter().filter(|result| self.exploiting.contains(&result.number));
        let (sum, count) =
            exploited.fold((0.0, 0_u32), |(sum, count), result| (sum + result.utility, count + 1));
        self.exploited.push(sum / f64::from(count.max(1)));
    }
}

/// A percentile of some values; 0 without any.
fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * percent / 100.0) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pacer_prefers_longer_rounds_while_the_utility_is_flat_and_shorter_ones_after_a_jump() {
        let paced = |before: f64, last: f64| {
            let exploited = [vec![before; PACER_ROUNDS], vec![last; PACER_ROUNDS]].concat();
            let mut oort = Oort { percentile: 50.0, exploited, ..Oort::default() };
            oort.pace();
            oort.percentile
        };
        assert_eq!([paced(1.0, 1.05), paced(1.0, 0.95)], [55.0, 55.0]);
        assert_eq!([paced(1.0, 2.0), paced(1.0, 0.5)], [50.0, 50.0]);
        assert_eq!(paced(1.0, 7.0), 45.0);
    }

    #[test]
    fn the_utility_of_a_round_is_the_mean_of_its_exploited_members() {
        let mut oort = Oort { exploiting: BTreeSet::from([1, 2]), ..Oort::default() };
        let of = |number, utility| MemberFeedback { number, utility, accuracy: 0.0 };
        oort.observe(&[of(1, 2.0), of(2, 4.0), of(3, 90.0)], 1);
        assert_eq!(oort.exploited, [3.0]);
    }
}
