//! Compares the validation rows that rounds disclose with the participant's own rows.
//!
//! A holdout that gives other labels to the same features scores honest work as harmful: the buyer
//! and the participant number their labels differently, or one of them has wrong ones. The
//! participant leaves such a task before debits take its bond.

use std::collections::HashMap;

use florin_learning::Dataset;
use florin_protocol::Report;

use super::{Agent, AgentError};
use crate::audit::RowBytes;
use crate::client::{Client, ClientError};
use crate::event::ParticipantEvent;

/// Fewest contradicting rows for an alarm: fewer can be single wrong labels.
pub const CONTRADICTIONS_MIN: u64 = 8;
/// Share of contradicting rows among the matching ones above which a participant leaves, in
/// percent. Independent label noise in both data sets stays below one half.
pub const CONTRADICTIONS_PERCENT_MAX: u64 = 75;
/// Disclosed rows that one process compares; later rounds are not fetched.
pub const COMPARED_ROWS_MAX: u64 = 65_536;

/// The first half of the hash of a row's features.
type Features = [u8; 16];

/// Rows with equal features, in the participant's data and in the rounds so far.
#[derive(Debug, Default)]
pub(super) struct LabelComparison {
    /// The label of each row of the participant; `None` if rows with equal features have several.
    own: HashMap<Features, Option<u32>>,
    compared: u64,
    matching: u64,
    contradicting: u64,
}

impl LabelComparison {
    /// The participant's rows; nothing is compared yet.
    pub(super) fn new(own: &Dataset) -> Self {
        let mut labels = HashMap::with_capacity(own.rows());
        for (row, label) in own.labels().iter().enumerate() {
            let known = labels.entry(features(own, row)).or_insert(Some(*label));
            *known = known.filter(|known| known == label);
        }
        Self { own: labels, ..Self::default() }
    }

    /// Compares a round's rows. Features with several labels of the participant do not count.
    pub(super) fn add(&mut self, disclosed: &Dataset) {
        for (row, label) in disclosed.labels().iter().enumerate() {
            self.compared += 1;
            if let Some(Some(own)) = self.own.get(&features(disclosed, row)) {
                self.matching += 1;
                self.contradicting += u64::from(own != label);
            }
        }
    }

    /// Whether the labels contradict each other beyond chance.
    pub(super) const fn is_alarming(&self) -> bool {
        self.contradicting >= CONTRADICTIONS_MIN
            && self.contradicting * 100 > self.matching * CONTRADICTIONS_PERCENT_MAX
    }
}

fn features(data: &Dataset, row: usize) -> Features {
    let mut hasher = blake3::Hasher::new();
    for value in data.row(row) {
        hasher.update(&value.to_le_bytes());
    }
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = *hasher.finalize().as_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

impl Agent<'_, '_> {
    /// Compares the rows of a reported round with the participant's own, and fetches them if they
    /// are not given. Beyond the threshold, the agent raises an alarm.
    pub(super) fn compare_labels(
        &mut self,
        report: &Report,
        fetched: Option<RowBytes>,
    ) -> Result<(), AgentError> {
        let (client, task): (&Client, _) = (self.context.client, self.config.task);
        let (round, drawn) = (report.scope.round, &report.holdout.rows);
        let mut comparison = match self.comparison.take() {
            Some(known) => known,
            None => LabelComparison::new(self.data()),
        };
        // A round whose valuation failed may have drawn rows that were never disclosed.
        if report.valuation.is_none() || comparison.compared >= COMPARED_ROWS_MAX {
            self.comparison = Some(comparison);
            return Ok(());
        }
        let limit = self.spec.holdout.disclosed_bytes_max(self.spec.data.width);
        let fetched = match fetched {
            Some(bytes) => Ok(bytes),
            None => {
                self.with_client(|| client.disclosed_rows(task, round, limit)).map(RowBytes::from)
            }
        };
        let not_compared = match fetched {
            Ok(bytes) => match florin_work::verify_disclosed_rows(&self.spec, drawn, &bytes) {
                Ok(rows) => {
                    comparison.add(&rows);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            Err(ClientError::Rejected(rejection)) => Some(rejection.to_string()),
            Err(error) => return Err(error.into()),
        };
        if let Some(why) = not_compared {
            self.emit(&ParticipantEvent::RowsNotCompared { round, why });
        }
        if comparison.is_alarming() {
            let (matching, contradicting) = (comparison.matching, comparison.contradicting);
            self.emit(&ParticipantEvent::LabelsContradict { round, matching, contradicting });
        }
        self.comparison = Some(comparison);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(labels: impl Iterator<Item = u32>) -> Dataset {
        let labels: Vec<u32> = labels.collect();
        let features = (0..labels.len()).map(|row| row as f32).collect();
        Dataset::new(features, labels, 1, 10).unwrap()
    }

    fn compare(own: &Dataset, disclosed: &Dataset) -> LabelComparison {
        let mut comparison = LabelComparison::new(own);
        comparison.add(disclosed);
        comparison
    }

    #[test]
    fn contradictions_count_only_beyond_the_threshold() {
        let own = data((0..100).map(|row| row % 10));
        for (wrong, alarming) in [(0, false), (7, false), (50, false), (75, false), (76, true)] {
            let disclosed = data((0..100).map(|row| (row + u32::from(row < wrong)) % 10));
            let found = compare(&own, &disclosed);
            assert_eq!((found.matching, found.contradicting), (100, u64::from(wrong)));
            assert_eq!(found.is_alarming(), alarming, "{wrong} of 100");
        }
        // A few wrong rows are too few, even if all rows are wrong.
        for (rows, alarming) in [(7, false), (8, true)] {
            let disclosed = data((0..rows).map(|row| (row + 1) % 10));
            assert_eq!(compare(&own, &disclosed).is_alarming(), alarming, "{rows}");
        }
    }

    #[test]
    fn rows_that_only_one_party_has_do_not_count() {
        let own = data((0..100).map(|row| row % 10));
        let features = (0..100).map(|row| row as f32 + 0.5).collect();
        let others = Dataset::new(features, vec![3; 100], 1, 10).unwrap();
        let found = compare(&own, &others);
        assert_eq!((found.compared, found.matching, found.is_alarming()), (100, 0, false));
    }

    #[test]
    fn features_with_several_own_labels_do_not_count() {
        let own = Dataset::new(vec![1.0; 20], (0..20).map(|row| row % 2).collect(), 1, 10).unwrap();
        let disclosed = Dataset::new(vec![1.0; 20], vec![2; 20], 1, 10).unwrap();
        assert_eq!(compare(&own, &disclosed).matching, 0);
    }

    /// Two samples of one population in which every label is wrong with a probability of 0.3: half
    /// of the rows that both have contradict each other, and no participant leaves.
    #[test]
    fn label_noise_raises_no_alarm() {
        for seed in 0..200u64 {
            let noisy = |party: u64| {
                let label = move |row: u64| {
                    let draw = blake3::hash(&[seed, party, row].map(u64::to_le_bytes).concat());
                    let [wrong, label, ..] = *draw.as_bytes();
                    if wrong < 77 { u32::from(label) % 10 } else { (row % 10) as u32 }
                };
                data((0..300).map(label))
            };
            let found = compare(&noisy(1), &noisy(2));
            assert!(!found.is_alarming(), "seed {seed}: {found:?}");
            assert!(found.contradicting > CONTRADICTIONS_MIN, "seed {seed}: {found:?}");
        }
    }
}
