//! The check of a holdout's labels: a model that trains on one half of the rows must predict the
//! labels of the other half better than chance.
//!
//! Both halves take both parts, so that every row is predicted once. Chance is the accuracy of
//! predictions with the same frequencies that have nothing to do with the labels (Cohen's κ
//! compares with it, J. Cohen, 1960). It takes unequal frequencies into account, so that a model
//! that always predicts a frequent label is not better than chance.
//!
//! A model that predicts the rows on which it trained no better either has learned nothing; then the
//! settings of the training are as doubtful as the labels.
//!
//! Labels that follow the features by a false rule, such as two exchanged labels, pass this check:
//! the holdout alone does not reveal them.

use std::ops::ControlFlow;

use florin_learning::{Dataset, Evaluator, Reference, Schedule, Trainer, Training};
use florin_protocol::RoundNumber;
use florin_work::{decode_model, training};

use super::plan::{LABEL_ROWS_MAX, SHUFFLES};
use super::simulate::{QuoteTask, dataset_error, shuffled};
use super::{QuoteError, training_error};
use crate::error::SimError;
use crate::market::MarketError;

/// Standard errors above chance at which the labels follow the features.
const CLEAR: f64 = 3.0;
/// Standard errors of the upper bound of κ.
const BOUND: f64 = 2.0;
/// The labels look random if κ is below this even at its upper bound.
const KAPPA_MAX: f64 = 0.1;

/// The result of the check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelCheck {
    /// Rows that were predicted.
    pub rows: u32,
    /// Correct predictions as a share.
    pub accuracy: f64,
    /// Correct predictions of the rows on which the models trained, as a share.
    pub trained_accuracy: f64,
    /// Accuracy of predictions with the same frequencies by chance.
    pub chance: f64,
    /// Share of the most frequent label.
    pub majority: f64,
}

/// The verdict of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelVerdict {
    /// The labels follow the features.
    Learnable,
    /// The rows are too few, or one label is too frequent, to decide.
    Undecided,
    /// The labels look random: κ is close to zero, and that is not due to few rows.
    Random,
    /// The same, and the models do not even predict the rows on which they trained better than
    /// chance.
    NothingLearned,
}

impl LabelCheck {
    pub(super) fn new(task: &QuoteTask<'_>) -> Result<Self, QuoteError> {
        let mut order = shuffled(task.holdout.rows(), task.seed);
        order.truncate(LABEL_ROWS_MAX as usize);
        let (first, second) = order.split_at(order.len() / 2);
        let (mut right, mut trained_right, mut chance) = (0.0, 0.0, 0.0);
        for (trained, tested) in [(first, second), (second, first)] {
            let hits = Hits::new(task, trained, tested)?;
            right += hits.right;
            trained_right += hits.trained_right;
            chance += hits.by_chance;
        }
        let rows = order.len() as f64;
        let chosen = task.holdout.subset(&order).map_err(dataset_error)?;
        let most = chosen.class_counts().into_iter().max().unwrap_or(0) as f64;
        Ok(Self {
            rows: order.len() as u32,
            accuracy: right / rows,
            trained_accuracy: trained_right / rows,
            chance: chance / rows,
            majority: most / rows,
        })
    }

    /// The verdict of the check.
    #[must_use]
    pub fn verdict(&self) -> LabelVerdict {
        let error = (self.chance * (1.0 - self.chance) / f64::from(self.rows.max(1))).sqrt();
        let better = self.accuracy - self.chance;
        if better > CLEAR * error {
            return LabelVerdict::Learnable;
        }
        let bound = KAPPA_MAX * (1.0 - self.chance);
        if better + BOUND * error >= bound {
            LabelVerdict::Undecided
        } else if self.trained_accuracy <= self.chance {
            LabelVerdict::NothingLearned
        } else {
            LabelVerdict::Random
        }
    }
}

/// Correct predictions of one half of the rows.
struct Hits {
    right: f64,
    /// Of the other half, on which the model trained.
    trained_right: f64,
    /// The mean over shuffled labels, which has the frequencies of labels and predictions.
    by_chance: f64,
}

impl Hits {
    /// The predictions for the rows `tested` of a model that trains on the rows `trained`.
    fn new(task: &QuoteTask<'_>, trained: &[usize], tested: &[usize]) -> Result<Self, QuoteError> {
        let base = decode_model(&task.spec, task.base_model)
            .map_err(|_| SimError::from(MarketError::Missing("a valid model")))?;
        let own = task.holdout.subset(trained).map_err(dataset_error)?;
        let epochs = task.plan.label_epochs.max(1);
        let how = training(&task.spec, RoundNumber::FIRST);
        let how = Training { epochs, fedprox: None, schedule: Schedule::Constant, ..how };
        let go_on = &mut |_| ControlFlow::Continue(());
        let mut engine = Reference::new();
        let after = engine.train(&task.model, &base, &own, &how, task.seed, go_on);
        let after = after.map_err(training_error)?.params;
        let wide: Vec<f64> = after.iter().map(|value| f64::from(*value)).collect();
        let rows = task.holdout.subset(tested).map_err(dataset_error)?;
        let mut count = |rows: &Dataset| {
            let right = engine.correct_predictions(&task.model, &wide, rows);
            right.map(|right| right as f64).map_err(SimError::from)
        };
        let (right, trained_right) = (count(&rows)?, count(&own)?);
        let mut by_chance = 0.0;
        for shuffle in 0..SHUFFLES {
            let order = shuffled(rows.rows(), task.seed.wrapping_add(shuffle));
            let labels = order.into_iter().map(|row| rows.labels()[row]).collect();
            let features = rows.features().to_vec();
            let other = Dataset::new(features, labels, rows.width(), rows.classes());
            by_chance += count(&other.map_err(dataset_error)?)? / SHUFFLES as f64;
        }
        Ok(Self { right, trained_right, by_chance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_look_random_only_with_enough_rows() {
        let check = |rows, [accuracy, chance, trained_accuracy]: [f64; 3]| {
            LabelCheck { rows, accuracy, trained_accuracy, chance, majority: 0.5 }.verdict()
        };
        for (rows, shares, verdict) in [
            // The standard error of chance is √(0.1 · 0.9 / 900) = 0.01, and κ is 0.1 at 0.19.
            (900, [0.131, 0.1, 0.9], LabelVerdict::Learnable),
            (900, [0.129, 0.1, 0.9], LabelVerdict::Random),
            (900, [0.1, 0.1, 0.9], LabelVerdict::Random),
            (900, [0.1, 0.1, 0.101], LabelVerdict::Random),
            (900, [0.1, 0.1, 0.1], LabelVerdict::NothingLearned),
            // Here it is 0.05.
            (36, [0.1, 0.1, 0.9], LabelVerdict::Undecided),
            // One label on 97 % of the rows decides nothing, unless there are very many rows.
            (1_000, [0.97, 0.97, 0.97], LabelVerdict::Undecided),
            (100_000, [0.97, 0.97, 1.0], LabelVerdict::Random),
        ] {
            assert_eq!(check(rows, shares), verdict, "{rows} rows, {shares:?}");
        }
    }
}
