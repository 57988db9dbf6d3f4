//! The deadline of a round's commits: the task's time, or earlier by prediction.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use super::levels::Scale;
use super::{Candidates, TaskHistory};
use crate::id::{Address, RoundNumber};
use crate::micro::Micro;
use crate::spec_error::{SpecError, require};
use crate::task::RoundRules;

/// A predicted deadline is at least this part of the task's time.
const FLOOR_PARTS: u64 = 16;
/// Largest slack of a predicted deadline.
const SLACK_MAX: Micro = Micro(100_000_000);

/// How a round's deadline of commits follows.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum DeadlineRule {
    /// `train_ms` after the offer.
    #[default]
    Fixed,
    /// A quantile of the cohort's predicted times, with some slack; at most `train_ms` after the
    /// offer.
    Predicted {
        /// The quantile, from 0 to 1.
        quantile: Micro,
        /// Factor of the predicted time, from 1 to 100.
        slack: Micro,
    },
}

impl DeadlineRule {
    pub(crate) fn check(self) -> Result<(), SpecError> {
        let Self::Predicted { quantile, slack } = self else { return Ok(()) };
        require(
            quantile <= Micro::ONE,
            "rounds.deadline.quantile",
            quantile,
            "must be from 0 to 1: 0.9 waits for nine of ten",
        )?;
        require(
            (Micro::ONE..=SLACK_MAX).contains(&slack),
            "rounds.deadline.slack",
            slack,
            "must be from 1 to 100: 1.5 waits half as long again as predicted",
        )
    }
}

/// Milliseconds from a round's offer to its deadline of commits: at least a sixteenth of the task's
/// time. A participant without a prediction counts with the task's time; one whose training began in
/// an earlier round does not count, unless all did. A round after one with too few updates has all
/// of it.
#[must_use]
pub fn commit_deadline_ms(
    rules: &RoundRules,
    round: RoundNumber,
    candidates: &Candidates,
    history: &TaskHistory,
    cohort: &[Address],
) -> u64 {
    let DeadlineRule::Predicted { quantile, slack } = rules.deadline else {
        return rules.train_ms;
    };
    if history.had_too_few_updates() {
        return rules.train_ms;
    }
    let inputs = (candidates, history);
    let scale = Scale::new(rules.selection.knob, round, inputs, cohort, cohort.len());
    let predicted = |account: &Address| scale.predicted_ms(*account).unwrap_or(rules.train_ms);
    let begins = |account: &&Address| history.member(**account).ongoing.is_none();
    let mut times: Vec<u64> = cohort.iter().filter(begins).map(predicted).collect();
    times.sort_unstable();
    let last = u64::try_from(times.len().saturating_sub(1)).unwrap_or(u64::MAX);
    let position = last.saturating_mul(quantile.0).div_ceil(Micro::ONE.0);
    let position = usize::try_from(position).unwrap_or(usize::MAX);
    let Some(predicted) = times.get(position).or(times.last()) else {
        return rules.train_ms;
    };
    let waited = u128::from(*predicted).saturating_mul(slack.0.into());
    let waited = waited.checked_div(Micro::ONE.0.into()).unwrap_or_default();
    let floor = rules.train_ms.div_ceil(FLOOR_PARTS);
    u64::try_from(waited).unwrap_or(u64::MAX).clamp(floor, rules.train_ms)
}
