//! Keys of a scenario about the selection of cohorts and the deadlines of rounds.

use florin_protocol::limits::COHORT_MAX;
use florin_protocol::{STALENESS_ROUNDS_MAX, SelectionKnob, StalenessRule};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::check::Check;
use super::{BuyerTerms, Group, Scenario, ScenarioError};
use crate::selectors::TIERS;

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
        let is_valid = |rule: StalenessRule| (1..=STALENESS_ROUNDS_MAX).contains(&rule.rounds);
        Check::require(
            self.staleness.is_none_or(is_valid),
            "task.staleness.rounds",
            &self.staleness.map_or(0, |rule| rule.rounds),
            &format!(
                "must be 1 to {STALENESS_ROUNDS_MAX}; without late updates leave out task.staleness"
            ),
        )?;
        let has_late = self.stale_weights.is_none() || self.staleness.is_some();
        let right = "is about late updates: add task.staleness = { rounds = 8, weight = \
                     \"inverse_root\" }";
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

impl Scenario {
    /// A tier of `TiFL` is a fifth of the members: with fewer than a round needs it selects no cohort.
    pub(super) fn check_selector(&self) -> Result<(), ScenarioError> {
        let Some(selector @ Selector::Tifl) = self.task.selector else { return Ok(()) };
        let groups = || self.population.values();
        let members: u64 = groups().map(|group| u64::from(group.count)).sum();
        let identities = groups().map(|group| group.strategy.identities()).max().unwrap_or(1);
        let tier = members / TIERS as u64 * u64::from(identities);
        let least = self.task.cohort_min;
        let right = format!(
            "selects a tier, a fifth of the members: of {members} that is fewer than \
             task.cohort_min = {least}; have at least {} members, or lower task.cohort_min",
            u64::from(least.div_ceil(identities)) * TIERS as u64
        );
        Check::require(tier >= least.into(), "task.selector", &selector.name(), &right)
    }
}

impl Scenario {
    /// A surrogate draws random cohorts that are all waited for: it refuses the keys of this module.
    pub(super) fn check_surrogate_selection(&self) -> Result<(), ScenarioError> {
        let (set, plain) = (&self.task, BuyerTerms::default());
        let right = "has no effect in mode = surrogate: leave it out, or use mode = real";
        let is_default = |key: &str, value: Value, default: Value| {
            Check::require(value == default, key, &value, right)
        };
        is_default("task.selector", json!(set.selector), json!(plain.selector))?;
        is_default("task.selection", json!(set.selection), json!(plain.selection))?;
        let over = json!(plain.over_selection);
        is_default("task.over_selection", json!(set.over_selection), over)?;
        is_default("task.deadline", json!(set.deadline), json!(plain.deadline))?;
        is_default("task.stale_weights", json!(set.stale_weights), json!(plain.stale_weights))?;
        is_default("task.staleness", json!(set.staleness), json!(plain.staleness))?;
        for (name, group) in &self.population {
            let key = format!("population.{name}.quote");
            is_default(&key, json!(group.quote), json!(super::default_quote()))?;
        }
        Ok(())
    }
}

impl Group {
    /// Checks the keys of this module.
    pub(super) fn check_quote(&self, name: &str) -> Result<(), ScenarioError> {
        Check::require_range(format!("population.{name}.quote"), self.quote, 0.0, QUOTE_MAX)
    }
}
