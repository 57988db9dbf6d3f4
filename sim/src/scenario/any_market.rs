//! A scenario of either market: of tasks, or of compute.

use std::path::Path;

use super::{Scenario, ScenarioError, SettingOverride};
use crate::compute::{ComputeScenario, read_compute_scenario};

/// A scenario of either market.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyScenario {
    /// Members train the model of a task.
    Tasks(Box<Scenario>),
    /// Providers compute leases.
    Compute(Box<ComputeScenario>),
}

impl AnyScenario {
    /// Like [`Scenario::read_in`].
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn read_in(
        folder: &Path,
        text: &str,
        changes: &[SettingOverride],
    ) -> Result<Self, ScenarioError> {
        match read_compute_scenario(text, changes)? {
            Some(scenario) => Ok(Self::Compute(Box::new(scenario))),
            None => Ok(Self::Tasks(Box::new(Scenario::read_in(folder, text, changes)?))),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Tasks(scenario) => &scenario.name,
            Self::Compute(scenario) => &scenario.name,
        }
    }

    /// The question that it answers.
    #[must_use]
    pub fn question(&self) -> &str {
        match self {
            Self::Tasks(scenario) => &scenario.question,
            Self::Compute(scenario) => &scenario.question,
        }
    }

    /// The scenario as TOML with all keys.
    #[must_use]
    pub fn to_toml(&self) -> String {
        match self {
            Self::Tasks(scenario) => scenario.to_toml(),
            Self::Compute(scenario) => scenario.to_toml(),
        }
    }
}
