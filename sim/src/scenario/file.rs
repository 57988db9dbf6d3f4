//! Reading and writing scenarios.

use super::{Change, Scenario, ScenarioError};

impl Scenario {
    /// Reads TOML, applies changes to it, and checks what comes out.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn read(text: &str, changes: &[Change]) -> Result<Self, ScenarioError> {
        let malformed = |error: &dyn std::fmt::Display| {
            ScenarioError::Malformed(error.to_string().trim_end().to_owned())
        };
        let mut table: toml::Table = text.parse().map_err(|error| malformed(&error))?;
        // The text itself is read first: its errors know their lines.
        if changes.is_empty() {
            let scenario: Self = toml::from_str(text).map_err(|error| malformed(&error))?;
            scenario.check()?;
            return Ok(scenario);
        }
        for change in changes {
            change.apply(&mut table)?;
        }
        let scenario: Self = table.try_into().map_err(|error| malformed(&error))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// As TOML, every key written out: what a run keeps beside its results.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Every field is a number, a text, a list or a table of those.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}
