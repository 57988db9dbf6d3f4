//! Reads and writes scenarios, with the files that they name.

use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use toml::Table;

use super::unknown_keys::unknown_key;
use super::{Availability, Scenario, ScenarioError, SettingOverride, trace};

/// Stems of the names of results files, which are in the folder to which traces are copied.
const RESERVED_STEMS: [&str; 9] = [
    "scenario", "measures", "seeds", "members", "rounds", "report", "profit", "results", "made-of",
];

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
        if let Some(market) = table.get("market") {
            return Err(ScenarioError::Value {
                key: "market".to_owned(),
                value: market.to_string(),
                right: "only `florin sim run`, `list` and `show` read a scenario of this market; one of tasks has \
                        no such key"
                    .to_owned(),
            });
        }
        for change in changes {
            change.apply(&mut table)?;
        }
        let read = Self::from_table(&table).map_err(|error| locate_error(text, changes, error));
        let mut scenario = read?;
        scenario.read_traces(folder)?;
        scenario.read_cards(folder)?;
        if let Some(table) = &mut scenario.learning.table {
            table.read(folder)?;
        }
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

    /// Reads the traces of its groups, from paths relative to `folder`.
    fn read_traces(&mut self, folder: &Path) -> Result<(), ScenarioError> {
        for (name, group) in &mut self.population {
            if let Availability::Trace { file, trace } = &mut group.online {
                let path = path_inside(folder, file).ok_or_else(|| ScenarioError::Value {
                    key: format!("population.{name}.online.file"),
                    value: file.clone(),
                    right: "must be a path from the scenario's folder, without . and .., of \
                            letters, digits, hyphens, points and _, and no name of a results file"
                        .to_owned(),
                })?;
                *trace = Some(Arc::new(trace::read(&path)?));
            }
        }
        Ok(())
    }

    /// Reads the cards of its groups' devices, from paths relative to `folder`.
    fn read_cards(&mut self, folder: &Path) -> Result<(), ScenarioError> {
        for (name, group) in &mut self.population {
            if let Some(devices) = &mut group.devices {
                devices.read(name, folder)?;
            }
        }
        Ok(())
    }

    /// The files to store beside the scenario: path relative to its folder, and content.
    pub fn attached_files(&self) -> impl Iterator<Item = (&str, &str)> {
        let traces = self.population.values().filter_map(|group| match &group.online {
            Availability::Trace { file, trace: Some(trace) } => {
                Some((file.as_str(), trace.text.as_str()))
            }
            _ => None,
        });
        let devices = self.population.values().filter_map(|group| group.devices.as_ref());
        let cards = devices.filter_map(|devices| devices.attached_file());
        traces
            .chain(cards)
            .chain(self.learning.table.as_ref().and_then(|table| table.attached_file()))
    }
}

/// The path of a file within a folder; `None` if it leads out of the folder or is reserved.
pub(super) fn path_inside(folder: &Path, file: &str) -> Option<PathBuf> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    let path = Path::new(file);
    let stays = path.components().all(|part| matches!(part, Component::Normal(_)));
    // Results are written to the same folder.
    let stem = file.split('.').next().unwrap_or_default();
    let taken = RESERVED_STEMS.contains(&stem);
    (!file.is_empty() && file.chars().all(fine) && stays && !taken).then(|| folder.join(path))
}

pub(crate) fn malformed(error: &dyn Display) -> ScenarioError {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_trace_stays_in_the_scenarios_folder() {
        for path in ["/etc/passwd", "../a.csv", "a/../b.csv", "", "a b.csv"] {
            assert_eq!(path_inside(Path::new("x"), path), None, "{path}");
        }
        assert!(path_inside(Path::new("x"), "days/a.csv").is_some());
    }
}
