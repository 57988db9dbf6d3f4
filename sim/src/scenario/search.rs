//! Search settings: which deviations are tried against a mechanism, and how.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::check::Check;
use super::{Scenario, ScenarioError, SeedRange};
use crate::strategy::Strategy;

/// Maximum number of candidates of one strategy.
const CANDIDATES_MAX: u32 = 10_000;
/// Maximum number of strategies of one search.
const FAMILIES_MAX: usize = 64;
/// Maximum number of characters of a strategy's name.
const NAME_MAX: usize = 60;
/// Prefix of every parameter's key: a search varies only the strategy of a group, not its members.
const STRATEGY: &str = "strategy.";
/// Error text for a key that is not a parameter of the strategy.
const NOT_A_PARAMETER: &str = "must name a parameter of the strategy, such as strategy.noise";

/// A search for the best deviation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The deviating group. The gain of its members is their profit minus the honest
    /// counterfactual.
    pub group: String,
    /// Number of candidates of each strategy that has parameters.
    #[serde(default = "default_candidates")]
    pub candidates: u32,
    /// How candidates are chosen.
    #[serde(default)]
    pub method: SearchMethod,
    /// Selection seeds, on which candidates are compared. They are disjoint from the scenario's own
    /// seeds, on which the chosen candidates are measured afterwards: this removes the selection
    /// bias (winner's curse).
    #[serde(default = "default_seeds")]
    pub seeds: SeedRange,
    /// The strategies to try.
    pub strategies: Vec<StrategyFamily>,
}

const fn default_candidates() -> u32 {
    16
}

const fn default_seeds() -> SeedRange {
    SeedRange { first: 1_000_001, count: 3 }
}

/// How candidates are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMethod {
    /// All candidates uniformly at random.
    Random,
    /// The first half uniformly at random, the second half around the best so far with shrinking
    /// distance.
    #[default]
    Refine,
}

/// A strategy, and which of its parameters are searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyFamily {
    /// Its name in results.
    pub name: String,
    /// Number of members that deviate; by default all of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The strategy. Its own parameters are the first candidate and must lie within their ranges.
    pub strategy: Strategy,
    /// Whether participants commit before any update is readable, if it differs from the scenario's
    /// `task.commit_reveal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_reveal: Option<bool>,
    /// The searched parameters, such as `strategy.noise`, with their minimum and maximum.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ParameterRange>,
}

/// The range of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParameterRange {
    /// Integers.
    Whole([i64; 2]),
    /// Real numbers.
    Real([f64; 2]),
}

impl ParameterRange {
    /// The value at a relative position from 0 to 1.
    #[must_use]
    pub fn at(self, place: f64) -> Value {
        match self {
            Self::Real([low, high]) => Value::Float(low + (high - low) * place.clamp(0.0, 1.0)),
            Self::Whole([low, high]) => {
                let count = (high - low) as f64 + 1.0;
                let step = (count * place.clamp(0.0, 1.0)).floor() as i64;
                Value::Integer(low.saturating_add(step).min(high))
            }
        }
    }

    /// The relative position of a value, from 0 to 1; `None` outside the range. [`ParameterRange::at`] is its
    /// inverse.
    #[must_use]
    pub fn position_of(self, value: &Value) -> Option<f64> {
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
        match self {
            Self::Real([low, high]) => {
                let place = if low < high { (number - low) / (high - low) } else { 0.0 };
                (low..=high).contains(&number).then_some(place)
            }
            // The centre of the positions that map to this integer.
            Self::Whole([low, high]) => {
                let (low, high) = (low as f64, high as f64);
                let place = (number - low + 0.5) / (high - low + 1.0);
                (low..=high).contains(&number).then_some(place)
            }
        }
    }

    /// The range in scenario syntax.
    fn to_toml(self) -> String {
        match self {
            Self::Whole([low, high]) => format!("[{low}, {high}]"),
            Self::Real([low, high]) => format!("[{low:?}, {high:?}]"),
        }
    }

    fn is_ordered(self) -> bool {
        match self {
            Self::Whole([low, high]) => low <= high && low.abs().max(high.abs()) < 1 << 31,
            Self::Real([low, high]) => low <= high && low.is_finite() && high.is_finite(),
        }
    }
}

impl StrategyFamily {
    /// The strategy with its parameters at these relative positions, in the order of their keys.
    ///
    /// # Errors
    /// [`ScenarioError::Value`] for a key that is not a parameter of the strategy.
    pub fn at(&self, places: &[f64]) -> Result<Strategy, ScenarioError> {
        let mut table = self.parameter_table()?;
        for ((key, span), place) in self.parameters.iter().zip(places) {
            table.insert(self.parameter_name(&table, key)?.to_owned(), span.at(*place));
        }
        table
            .try_into()
            .map_err(|error: toml::de::Error| self.parameter_error("", &error.to_string()))
    }

    /// The relative positions of the strategy's own parameters in their ranges, in the order of the
    /// keys.
    ///
    /// # Errors
    /// [`ScenarioError::Value`] for a key that is not a parameter of the strategy, and for a value
    /// outside its range.
    pub fn initial_positions(&self) -> Result<Vec<f64>, ScenarioError> {
        let table = self.parameter_table()?;
        let place = |(key, span): (&String, &ParameterRange)| {
            let name = self.parameter_name(&table, key)?;
            let value =
                table.get(name).ok_or_else(|| self.parameter_error(key, NOT_A_PARAMETER))?;
            span.position_of(value).ok_or_else(|| ScenarioError::Value {
                key: format!("search.strategies.{}.{key}", self.name),
                value: value.to_string(),
                right: format!(
                    "the first candidate has this value, so it must lie within parameters.{key} = \
                     {}",
                    span.to_toml()
                ),
            })
        };
        self.parameters.iter().map(place).collect()
    }

    /// The strategy as a table.
    fn parameter_table(&self) -> Result<Table, ScenarioError> {
        Table::try_from(self.strategy).map_err(|error| self.parameter_error("", &error.to_string()))
    }

    /// The name of a parameter in the strategy's table.
    fn parameter_name<'a>(&self, table: &Table, key: &'a str) -> Result<&'a str, ScenarioError> {
        let name = key.strip_prefix(STRATEGY).filter(|name| *name != "kind");
        let name = name.filter(|name| table.contains_key(*name));
        name.ok_or_else(|| self.parameter_error(key, NOT_A_PARAMETER))
    }

    fn parameter_error(&self, key: &str, why: &str) -> ScenarioError {
        ScenarioError::Value {
            key: format!("search.strategies.{}.parameters", self.name),
            value: key.to_owned(),
            right: why.to_owned(),
        }
    }
}

impl Scenario {
    /// The scenario in which the searched group deviates with this strategy.
    pub(crate) fn with_deviation(&self, family: &StrategyFamily, strategy: Strategy) -> Self {
        let mut changed = self.clone();
        if let Some(group) =
            self.search.as_ref().and_then(|search| changed.population.get_mut(&search.group))
        {
            group.strategy = strategy;
            group.count = family.count.unwrap_or(group.count);
        }
        let commit_reveal = family.commit_reveal.unwrap_or(changed.task.commit_reveal);
        changed.task.commit_reveal = commit_reveal;
        changed.search = None;
        changed
    }

    pub(super) fn check_search(&self) -> Result<(), ScenarioError> {
        let Some(search) = &self.search else { return Ok(()) };
        let there = self.population.contains_key(&search.group);
        Check::require(there, "search.group", &search.group, "unknown group")?;
        let right = "must be 1 to 10000";
        Check::require(
            (1..=CANDIDATES_MAX).contains(&search.candidates),
            "search.candidates",
            &search.candidates,
            right,
        )?;
        let seeds = search.seeds;
        let right = "must be 1 to 1000 seeds from 0 to 2^62";
        let fine = (1..=1_000).contains(&seeds.count) && seeds.first < 1 << 62;
        Check::require(fine, "search.seeds", &seeds.count, right)?;
        let end = |seeds: SeedRange| seeds.first.saturating_add(seeds.count.into());
        let apart = end(seeds) <= self.seeds.first || end(self.seeds) <= seeds.first;
        let right = "must be disjoint from the scenario's own seeds: a candidate cannot be \
                     measured on the seeds that selected it";
        Check::require(apart, "search.seeds.first", &seeds.first, right)?;
        let families = search.strategies.len();
        let right = "must be 1 to 64 strategies";
        let fine = (1..=FAMILIES_MAX).contains(&families);
        Check::require(fine, "search.strategies", &families, right)?;
        let mut names = std::collections::BTreeSet::new();
        for family in &search.strategies {
            let key = "search.strategies.name";
            let named = (1..=NAME_MAX).contains(&family.name.chars().count())
                && !family.name.contains(char::is_control);
            Check::require(named, key, &family.name, "must be 1 to 60 printable characters")?;
            Check::require(names.insert(&family.name), key, &family.name, "must be unique")?;
            for (key, span) in &family.parameters {
                let key = format!("search.strategies.{}.parameters.{key}", family.name);
                let right = "must be two numbers, the smaller one first";
                Check::require(span.is_ordered(), key, &span.to_toml(), right)?;
            }
            family.initial_positions()?;
            // Bounds are intervals: if both ends are valid, all values between them are.
            for corner in [0.0, 1.0] {
                let strategy = family.at(&vec![corner; family.parameters.len()])?;
                self.with_deviation(family, strategy).check()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_positions_map_to_parameter_values() {
        let text = "name = 'a'\nstrategy = { kind = 'backdoor', fraction = 0.5, boost = 1.0 }\n\
            parameters = { 'strategy.boost' = [1.0, 3.0], 'strategy.fraction' = [0.0, 1.0] }";
        let family: StrategyFamily = toml::from_str(text).unwrap();
        let strategy = family.at(&[0.5, 0.25]).unwrap();
        assert_eq!(strategy, Strategy::Backdoor { fraction: 0.25, boost: 2.0 });
        let identities = ParameterRange::Whole([2, 4]);
        let at = [0.0, 0.34, 0.99, 1.0].map(|place| identities.at(place).as_integer().unwrap());
        assert_eq!(at, [2, 3, 4, 4]);
        let (whole, real) = (ParameterRange::Whole([2, 4]), ParameterRange::Real([-1.0, 3.0]));
        for number in 2..=4 {
            let place = whole.position_of(&Value::Integer(number)).unwrap();
            assert_eq!(whole.at(place), Value::Integer(number));
        }
        assert_eq!(real.position_of(&Value::Float(0.0)), Some(0.25));
        assert_eq!(ParameterRange::Real([2.0, 2.0]).position_of(&Value::Float(2.0)), Some(0.0));
        assert_eq!(whole.position_of(&Value::Integer(5)), None);
        assert_eq!(real.position_of(&Value::Float(-1.1)), None);
        let wrong = text.replace("strategy.boost", "rows");
        assert!(toml::from_str::<StrategyFamily>(&wrong).unwrap().at(&[0.0, 0.0]).is_err());
    }
}
