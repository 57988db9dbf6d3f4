//! Writes the results folder of a search: the scenario, all candidates, the best of each strategy
//! and its evaluation on fresh seeds.

use std::path::Path;

use serde_json::json;

use super::{Attack, Candidate, Found, Fresh};
use crate::results::{ATTACK, Program, Table, WriteError, figure, put, put_table, try_folder};
use crate::scenario::Family;

impl Found {
    /// The strategy with its parameters in scenario syntax: `act = "noise", scale = 0.5`.
    #[must_use]
    pub fn words(&self) -> String {
        words(&self.strategy, toml::Value::to_string)
    }

    /// The same for display: names without quotes, numbers rounded.
    #[must_use]
    pub fn in_short(&self) -> String {
        words(&self.strategy, |value| match value {
            toml::Value::String(name) => name.clone(),
            toml::Value::Float(number) => figure(*number),
            other => other.to_string(),
        })
    }
}

fn words(strategy: &crate::strategy::Strategy, told: impl Fn(&toml::Value) -> String) -> String {
    let table = toml::Table::try_from(strategy).unwrap_or_default();
    // The action comes first, then its parameters.
    let (act, rest): (Vec<_>, Vec<_>) = table.iter().partition(|(key, _)| *key == "act");
    let pairs = act.into_iter().chain(rest).map(|(key, value)| format!("{key} = {}", told(value)));
    pairs.collect::<Vec<String>>().join(", ")
}

impl Attack {
    /// Writes `scenario.toml`, the tables `candidates`, `found` and `seeds`, `report.html`,
    /// `gain.svg` and `attack.json` into a folder.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, program: &Program<'_>) -> Result<(), WriteError> {
        try_folder(folder)?;
        put(folder, "scenario.toml", self.scenario.to_toml().as_bytes())?;
        for (name, text) in self.scenario.files() {
            put(folder, name, text.as_bytes())?;
        }
        put_table(folder, "candidates", &self.candidates_table(program))?;
        put_table(folder, "found", &self.found_table(program))?;
        put_table(folder, "seeds", &self.seeds_table(program))?;
        put(folder, "report.html", self.to_html(program).as_bytes())?;
        put(folder, "gain.svg", self.gain_svg().as_bytes())?;
        put(folder, ATTACK, format!("{:#}\n", self.to_json(program)).as_bytes())
    }

    /// The results of the search as one JSON document.
    #[must_use]
    pub fn to_json(&self, program: &Program<'_>) -> serde_json::Value {
        let found = |found: &Found| {
            json!({
                "name": found.name,
                "count": found.count,
                "strategy": found.strategy,
                "tries": found.tries,
                "training": found.training,
                "gain": found.gain,
                "profit": found.profit,
                "accuracy": found.accuracy,
                "refused": found.refused,
                "games": found.fresh.iter().map(|seed| program.game(seed.seed)).collect::<Vec<_>>(),
            })
        };
        json!({
            "version": program.version,
            "commit": program.commit,
            "scenario": self.scenario,
            "epsilon": self.epsilon(),
            "best": self.found.get(self.best).map(|best| &best.name),
            "found": self.found.iter().map(found).collect::<Vec<_>>(),
        })
    }

    fn name_of(&self, family: usize) -> String {
        let search = self.scenario.search.as_ref();
        let family: Option<&Family> = search.and_then(|search| search.strategies.get(family));
        family.map(|family| family.name.clone()).unwrap_or_default()
    }

    fn candidates_table(&self, program: &Program<'_>) -> Table<&Candidate> {
        Table::of(self.tried.iter().collect())
            .text("commit", |_: &&Candidate| program.commit.to_owned())
            .text("name", |one| self.name_of(one.family))
            .text("strategy", |one| words(&one.strategy, toml::Value::to_string))
            .real("training_gain", |one| one.gain)
    }

    fn found_table(&self, program: &Program<'_>) -> Table<&Found> {
        Table::of(self.found.iter().collect())
            .text("commit", |_: &&Found| program.commit.to_owned())
            .text("name", |found| found.name.clone())
            .whole("count", |found| found.count.into())
            .text("strategy", |found| found.words())
            .whole("tries", |found| found.tries as u64)
            .real("training_gain", |found| found.training)
            .real("gain", |found| found.gain.mean)
            .maybe("gain_low", |found| found.gain.low())
            .maybe("gain_high", |found| found.gain.high())
            .real("profit", |found| found.profit.mean)
            .maybe("profit_low", |found| found.profit.low())
            .maybe("profit_high", |found| found.profit.high())
            .real("accuracy", |found| found.accuracy.mean)
            .real("refused", |found| found.refused.mean)
            .whole("seeds", |found| found.gain.count as u64)
    }

    fn seeds_table(&self, program: &Program<'_>) -> Table<(&Found, &Fresh)> {
        let rows = self.found.iter().flat_map(|found| found.fresh.iter().map(move |f| (found, f)));
        Table::of(rows.collect())
            .text("game", |(_, fresh): &(&Found, &Fresh)| program.game(fresh.seed))
            .whole("seed", |(_, fresh)| fresh.seed)
            .text("name", |(found, _)| found.name.clone())
            .real("profit", |(_, fresh)| fresh.profit)
            .real("honest", |(_, fresh)| fresh.honest)
            .real("gain", |(_, fresh)| fresh.profit - fresh.honest)
            .real("accuracy", |(_, fresh)| fresh.accuracy)
            .real("refused", |(_, fresh)| fresh.refused)
    }
}
