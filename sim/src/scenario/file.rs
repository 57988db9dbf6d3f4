//! Reads and writes scenarios.

use std::fmt::Display;
use std::path::Path;

use toml::Table;

use super::unknown_keys::unknown_key;
use super::{Scenario, ScenarioError, SettingOverride};

impl Scenario {
    /// Reads TOML, applies changes and validates the result. Relative file names in it refer to the
    /// current folder.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn read(text: &str, changes: &[SettingOverride]) -> Result<Self, ScenarioError> {
        Self::read_in(Path::new("."), text, changes)
    }

    /// Like [`Scenario::read`]; relative file names in it refer to `folder`.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn read_in(
        folder: &Path,
        text: &str,
        changes: &[SettingOverride],
    ) -> Result<Self, ScenarioError> {
        let mut table: Table = text.parse().map_err(|error| malformed(&error))?;
        for change in changes {
            change.apply(&mut table)?;
        }
        let read = Self::from_table(&table).map_err(|error| locate_error(text, changes, error));
        let mut scenario = read?;
        scenario.read_traces(folder)?;
        if let Some(change) = changes.iter().find(|change| change.is_under("surrogate"))
            && scenario.mode.is_real()
        {
            let why = "sets how a surrogate is fitted, but this scenario has mode = real: leave \
                       it out, or add --set mode=surrogate";
            return Err(ScenarioError::Change(format!("--set {} {why}", change.to_argument())));
        }
        scenario.check()?;
        Ok(scenario)
    }

    fn from_table(table: &Table) -> Result<Self, ScenarioError> {
        let scenario: Self = table.clone().try_into().map_err(|error| malformed(&error))?;
        let understood = Table::try_from(&scenario).map_err(|error| malformed(&error))?;
        match unknown_key(table, &understood) {
            None => Ok(scenario),
            Some(key) => Err(malformed(&format!("unknown key {key}: leave it out"))),
        }
    }

    /// The scenario as TOML with all keys: the form that is stored beside its results.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // All fields serialize to TOML.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

fn malformed(error: &dyn Display) -> ScenarioError {
    ScenarioError::Malformed(error.to_string().trim_end().to_owned())
}

/// Locates a mistake: in the text, whose errors have line numbers, or in one of the changes.
fn locate_error(text: &str, changes: &[SettingOverride], error: ScenarioError) -> ScenarioError {
    let in_text = toml::from_str::<Scenario>(text);
    if let (Err(error), true) = (&in_text, changes.is_empty()) {
        return malformed(error);
    }
    let Ok(mut table) = text.parse::<Table>() else { return error };
    // The first change that makes a valid text invalid.
    let broken = in_text.is_ok().then(|| {
        changes.iter().find(|change| {
            let applied = change.apply(&mut table);
            applied.is_err() || Scenario::from_table(&table).is_err()
        })
    });
    match (broken.flatten(), in_text) {
        (Some(change), _) => {
            let ScenarioError::Malformed(why) = error else { return error };
            malformed(&format!("--set {}: {why}", change.to_argument()))
        }
        // The text lacks a key that the changes do not supply either.
        (None, Err(error)) => malformed(&error),
        (None, Ok(_)) => error,
    }
}
