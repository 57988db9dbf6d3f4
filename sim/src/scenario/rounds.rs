//! Keys of a scenario about the selection of cohorts and the deadlines of rounds.

use florin_protocol::limits::COHORT_MAX;
use florin_protocol::{STALENESS_ROUNDS_MAX, SelectionKnob};
use serde::{Deserialize, Serialize};

use super::check::Check;
use super::{BuyerTerms, Group, ScenarioError};

/// Largest factor of a quote.
const QUOTE_MAX: f64 = 1_000.0;
/// Largest slack of a predicted deadline.
const SLACK_MAX: f64 = 100.0;

/// The task's rule of selection, as in a task file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectionTerms {
    /// The aim.
    pub knob: SelectionKnob,
    /// Smallest share of the places that explore.
    pub explore: f64,
}

/// A deadline by prediction, as in a task file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedDeadline {
    /// Quantile of the cohort's predicted times.
    pub quantile: f64,
    /// Factor of the predicted time.
    #[serde(default = "default_slack")]
    pub slack: f64,
}

const fn default_slack() -> f64 {
    1.5
}

/// A selector of the literature in place of the market's, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// Oort (OSDI 2021).
    Oort,
    /// `TiFL`'s tiers (HPDC 2020).
    Tifl,
    /// REFL's preference for the least available (EuroSys 2023).
    Refl,
}

impl Selector {
    /// Its name in scenarios.
    const fn name(self) -> &'static str {
        match self {
            Self::Oort => "oort",
            Self::Tifl => "tifl",
            Self::Refl => "refl",
        }
    }
}

/// A rule of the literature for the weights of stale updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StaleWeights {
    /// REFL's rule (EuroSys 2023): by staleness, and by the difference from the fresh updates.
    Refl,
}

impl BuyerTerms {
    /// Checks the keys of this module.
    pub(super) fn check_selection(&self) -> Result<(), ScenarioError> {
        Check::require_range("task.selection.explore", self.selection.explore, 0.0, 1.0)?;
        if let Some(PredictedDeadline { quantile, slack }) = self.deadline {
            Check::require_range("task.deadline.quantile", quantile, 0.0, 1.0)?;
            Check::require_range("task.deadline.slack", slack, 1.0, SLACK_MAX)?;
        }
        let rounds = self.staleness.map_or(0, |rule| rule.rounds);
        Check::require(
            rounds <= STALENESS_ROUNDS_MAX,
            "task.staleness.rounds",
            &rounds,
            "must be at most 64",
        )?;
        let has_late = self.stale_weights.is_none() || rounds > 0;
        let right = "is about late updates: add task.staleness = { rounds = 8 }";
        Check::require(has_late, "task.stale_weights", &"refl", right)?;
        let most = COHORT_MAX.saturating_sub(self.cohort);
        let right = format!("must be 0 to {most}: with task.cohort at most {COHORT_MAX}");
        Check::require(
            self.over_selection <= most,
            "task.over_selection",
            &self.over_selection,
            &right,
        )?;
        let has_one = self.selector.is_none() || self.selection == SelectionTerms::default();
        let right =
            "replaces the market's selection: remove one of task.selector and task.selection";
        let name = self.selector.map_or("", Selector::name);
        Check::require(has_one, "task.selector", &name, right)
    }
}

impl Group {
    /// Checks the keys of this module.
    pub(super) fn check_quote(&self, name: &str) -> Result<(), ScenarioError> {
        Check::require_range(format!("population.{name}.quote"), self.quote, 0.0, QUOTE_MAX)
    }
}
