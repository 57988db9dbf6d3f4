//! Writes the results folder of a search: the scenario, all candidates, the best of each strategy
//! and its evaluation on fresh seeds.

use std::path::Path;

use serde_json::json;

use super::{Candidate, SearchResults, SeedEvaluation, StrategyResult};
use crate::results::{
    Program, ResultTable, SEARCH, WriteError, check_writable, format_number, write_file,
    write_table,
};
use crate::scenario::StrategyFamily;

impl StrategyResult {
    /// The strategy with its parameters in scenario syntax: `kind = "noise", scale = 0.5`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        to_toml(&self.strategy, toml::Value::to_string)
    }

    /// The same for display: names without quotes, numbers rounded.
    #[must_use]
    pub fn display_text(&self) -> String {
        to_toml(&self.strategy, |value| match value {
            toml::Value::String(name) => name.clone(),
            toml::Value::Float(number) => format_number(*number),
            other => other.to_string(),
        })
    }
}

fn to_toml(
    strategy: &crate::strategy::Strategy,
    format_value: impl Fn(&toml::Value) -> String,
) -> String {
    let table = toml::Table::try_from(strategy).unwrap_or_default();
    // The kind comes first, then its parameters.
    let (kind, rest): (Vec<_>, Vec<_>) = table.iter().partition(|(key, _)| *key == "kind");
    let pairs =
        kind.into_iter().chain(rest).map(|(key, value)| format!("{key} = {}", format_value(value)));
    pairs.collect::<Vec<String>>().join(", ")
}

impl SearchResults {
    /// Writes `scenario.toml`, the tables `candidates`, `strategies` and `seeds`, `report.html`,
    /// `gain.svg` and `search.json` into a folder.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, program: &Program<'_>) -> Result<(), WriteError> {
        check_writable(folder)?;
        write_file(folder, "scenario.toml", self.scenario.to_toml().as_bytes())?;
        for (name, text) in self.scenario.attached_files() {
            write_file(folder, name, text.as_bytes())?;
        }
        write_table(folder, "candidates", &self.candidates_table(program))?;
        write_table(folder, "strategies", &self.strategies_table(program))?;
        write_table(folder, "seeds", &self.seeds_table(program))?;
        write_file(folder, "report.html", self.to_html(program).as_bytes())?;
        write_file(folder, "gain.svg", self.gain_svg().as_bytes())?;
        write_file(folder, SEARCH, format!("{:#}\n", self.to_json(program)).as_bytes())
    }

    /// The results of the search as one JSON document.
    #[must_use]
    pub fn to_json(&self, program: &Program<'_>) -> serde_json::Value {
        let strategy = |found: &StrategyResult| {
            let runs = found.evaluations.iter().map(|seed| program.run_id(seed.seed));
            json!({
                "name": found.name,
                "count": found.count,
                "strategy": found.strategy,
                "candidates": found.candidate_count,
                "selection_gain": found.selection_gain,
                "gain": found.gain,
                "profit": found.profit,
                "accuracy": found.accuracy,
                "rejected": found.rejected,
                "runs": runs.collect::<Vec<_>>(),
            })
        };
        json!({
            "version": program.version,
            "commit": program.commit,
            "scenario": self.scenario,
            "epsilon": self.epsilon(),
            "best": self.strategies.get(self.best).map(|best| &best.name),
            "strategies": self.strategies.iter().map(strategy).collect::<Vec<_>>(),
        })
    }

    fn strategy_name(&self, family: usize) -> String {
        let search = self.scenario.search.as_ref();
        let family: Option<&StrategyFamily> =
            search.and_then(|search| search.strategies.get(family));
        family.map(|family| family.name.clone()).unwrap_or_default()
    }

    fn candidates_table(&self, program: &Program<'_>) -> ResultTable<&Candidate> {
        ResultTable::new(self.candidates.iter().collect())
            .text("commit", |_: &&Candidate| program.commit.to_owned())
            .text("name", |one| self.strategy_name(one.strategy_index))
            .text("strategy", |one| to_toml(&one.strategy, toml::Value::to_string))
            .float("selection_gain", |one| one.gain)
    }

    fn strategies_table(&self, program: &Program<'_>) -> ResultTable<&StrategyResult> {
        ResultTable::new(self.strategies.iter().collect())
            .text("commit", |_: &&StrategyResult| program.commit.to_owned())
            .text("name", |found| found.name.clone())
            .integer("count", |found| found.count.into())
            .text("strategy", |found| found.to_toml())
            .integer("candidates", |found| found.candidate_count as u64)
            .float("selection_gain", |found| found.selection_gain)
            .float("gain", |found| found.gain.mean)
            .optional_float("gain_low", |found| found.gain.low())
            .optional_float("gain_high", |found| found.gain.high())
            .float("profit", |found| found.profit.mean)
            .optional_float("profit_low", |found| found.profit.low())
            .optional_float("profit_high", |found| found.profit.high())
            .float("accuracy", |found| found.accuracy.mean)
            .float("rejected", |found| found.rejected.mean)
            .integer("seeds", |found| found.gain.count as u64)
    }

    fn seeds_table(
        &self,
        program: &Program<'_>,
    ) -> ResultTable<(&StrategyResult, &SeedEvaluation)> {
        let rows = self
            .strategies
            .iter()
            .flat_map(|found| found.evaluations.iter().map(move |f| (found, f)));
        ResultTable::new(rows.collect())
            .text("run", |(_, fresh): &(&StrategyResult, &SeedEvaluation)| {
                program.run_id(fresh.seed)
            })
            .integer("seed", |(_, fresh)| fresh.seed)
            .text("name", |(found, _)| found.name.clone())
            .float("profit", |(_, fresh)| fresh.profit)
            .float("honest", |(_, fresh)| fresh.honest)
            .float("gain", |(_, fresh)| fresh.profit - fresh.honest)
            .float("accuracy", |(_, fresh)| fresh.accuracy)
            .float("rejected", |(_, fresh)| fresh.rejected)
    }
}
