//! The settings that a quote refuses or warns about.

use std::path::Path;

use florin_protocol::payable::FLOOR_SHARE_MIN;
use florin_protocol::{Micro, TaskSpec};
use florin_sim::quote::{LabelCheck, LabelVerdict, PowerVerdict, Quote};

use super::output::percent;
use crate::failure::Failure;
use crate::task_file;

/// A doubtful property of a task.
#[derive(Debug)]
pub(super) enum QuoteFinding {
    Refused(Refusal),
    Warned(&'static str, String),
}

/// A reason to refuse a task: a stable code, the key with its value, and what is valid.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) expected: String,
}

impl Refusal {
    pub(super) fn into_failure(self, file: &Path) -> Failure {
        let Self { code, key, value, expected } = self;
        task_file::refuse(file, code, key, &value, &expected)
    }
}

pub(super) fn diverges(spec: &TaskSpec, step: u64) -> Refusal {
    Refusal {
        code: "TRAINING_DIVERGES",
        key: "training.learning_rate",
        value: spec.training.learning_rate.to_string(),
        expected: format!(
            "the training of an honest member diverges at step {step}: lower the learning rate, set \
             training.clip_gradient, or scale the features to similar ranges"
        ),
    }
}

/// A holdout whose labels have nothing to do with its features pays no honest member.
pub(super) fn labels(spec: &TaskSpec, check: &LabelCheck) -> Option<QuoteFinding> {
    let found = format!(
        "a model that trains on one half of the rows predicts {} of the other half, and chance {}; \
         the most frequent label is {} of the rows",
        percent(check.accuracy),
        percent(check.chance),
        percent(check.majority)
    );
    match check.verdict() {
        LabelVerdict::Learnable => None,
        LabelVerdict::Undecided => Some(QuoteFinding::Warned(
            "LABELS_UNCERTAIN",
            format!(
                "The holdout does not show whether its labels follow the features: {found}. Check \
                 the label column, or use more rows."
            ),
        )),
        LabelVerdict::NothingLearned => Some(QuoteFinding::Refused(no_improvement(
            spec,
            &format!(
                "the training learns nothing: {found}, and of the rows on which it trained it \
                 predicts {}",
                percent(check.trained_accuracy)
            ),
        ))),
        LabelVerdict::Random => Some(QuoteFinding::Refused(Refusal {
            code: "LABELS_RANDOM",
            key: "holdout.source",
            value: format!("{} rows", spec.holdout.rows),
            expected: format!(
                "the labels look random: {found}. Use rows whose labels follow the features, or \
                 settings of [training] that learn them"
            ),
        })),
    }
}

/// The simulated members add no noise, and noise lowers what they improve.
pub(super) fn noise(spec: &TaskSpec) -> Option<QuoteFinding> {
    let least = spec.training.noise_min;
    (least > Micro::ZERO).then(|| {
        QuoteFinding::Warned(
            "NOISE_NOT_SIMULATED",
            format!(
                "Each participant adds noise of at least {least} times its clip \
                 (training.noise_min), and the members of this quote add none: real ones improve the \
                 model less, and earn less. Large batches of many rows lose least."
            ),
        )
    })
}

/// Settings under which honest members are not paid.
pub(super) fn pay(spec: &TaskSpec, quote: &Quote) -> Option<QuoteFinding> {
    let power = &quote.power;
    let has_floor = spec.budget.floor_share >= FLOOR_SHARE_MIN && quote.honest.median > 0;
    let reached = format!(
        "the summed scores of honest members reach {:.1} standard errors, and \
         budget.confidence_z requires {}",
        power.ratio, spec.budget.confidence_z
    );
    match power.verdict() {
        PowerVerdict::Likely => None,
        PowerVerdict::NoImprovement => Some(QuoteFinding::Refused(no_improvement(
            spec,
            "honest updates do not improve the model on the holdout, so that no score can be paid",
        ))),
        PowerVerdict::Impossible if !has_floor => {
            Some(QuoteFinding::Refused(impossible(spec, quote, &reached)))
        }
        PowerVerdict::Impossible | PowerVerdict::Unlikely => Some(QuoteFinding::Warned(
            "PAY_UNLIKELY",
            format!(
                "Most honest members earn nothing for their scores: {reached}. More rows per round \
                 or more training help; a lower budget.confidence_z pays more noise."
            ),
        )),
    }
}

fn no_improvement(spec: &TaskSpec, found: &str) -> Refusal {
    Refusal {
        code: "NO_IMPROVEMENT",
        key: "training.learning_rate",
        value: spec.training.learning_rate.to_string(),
        expected: format!(
            "{found}. Change the settings of [training] or [model], or check the label column"
        ),
    }
}

fn impossible(spec: &TaskSpec, quote: &Quote, reached: &str) -> Refusal {
    let (power, holdout) = (&quote.power, &spec.holdout);
    let needed = power.rows_needed();
    let fits = needed
        .filter(|rows| u64::from(*rows) * u64::from(spec.rounds.count) <= u64::from(holdout.rows));
    let z = format!("{:.1}", power.largest_z());
    let floor = match spec.budget.floor_share < FLOOR_SHARE_MIN {
        true => format!(
            " budget.floor_share = {} pays almost no floor; {FLOOR_SHARE_MIN} is enough.",
            spec.budget.floor_share
        ),
        false => String::new(),
    };
    let (key, value, valid) = match (fits, needed) {
        (Some(rows), _) => (
            "holdout.rows_per_round",
            holdout.rows_per_round.to_string(),
            format!("Use at least about {rows} rows per round, or budget.confidence_z up to {z}"),
        ),
        (None, Some(rows)) => (
            "budget.confidence_z",
            spec.budget.confidence_z.to_string(),
            format!(
                "Use up to {z}, or about {rows} rows in each of {} rounds; the holdout has {}",
                spec.rounds.count, holdout.rows
            ),
        ),
        (None, None) => (
            "budget.confidence_z",
            spec.budget.confidence_z.to_string(),
            format!("Use up to {z}: no number of rows suffices"),
        ),
    };
    let expected = format!("honest members cannot be paid: {reached}.{floor} {valid}");
    Refusal { code: "PAY_IMPOSSIBLE", key, value, expected }
}

#[cfg(test)]
mod tests;
