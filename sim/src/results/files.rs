//! Writes the results folder of an experiment: the scenario, every measure, every member and every
//! round. The same experiment writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::table::Table;
use super::{Program, Results};
use crate::measure::{Key, Measured};
use crate::play::{MemberOutcome, Played, RoundOutcomeRow};

/// The file that an experiment writes last.
pub const RESULTS: &str = "results.json";
/// The file that a search writes last.
pub const ATTACK: &str = "attack.json";
/// Temporary file that tests whether the folder is writable.
const TRIAL: &str = ".florin-trial";

/// Error of writing results.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}; choose another folder with --out, or make room [RESULTS_NOT_WRITTEN]")]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The error of the operating system.
    pub why: String,
}

impl WriteError {
    fn of(path: &Path, why: &dyn std::fmt::Display) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

/// Creates the results folder and checks that it is writable, before an experiment that can take
/// hours.
///
/// # Errors
/// [`WriteError`].
pub fn try_folder(folder: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(folder).map_err(|error| WriteError::of(folder, &error))?;
    let trial = folder.join(TRIAL);
    fs::write(&trial, b"florin").map_err(|error| WriteError::of(&trial, &error))?;
    fs::remove_file(&trial).map_err(|error| WriteError::of(&trial, &error))
}

/// Writes a file into a folder and creates missing parent folders.
pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
    let path = folder.join(name);
    let above = path.parent().unwrap_or(folder);
    fs::create_dir_all(above).map_err(|error| WriteError::of(above, &error))?;
    fs::write(&path, bytes).map_err(|error| WriteError::of(&path, &error))
}

/// Writes a table as CSV and as Parquet.
pub(crate) fn put_table<T>(folder: &Path, name: &str, table: &Table<T>) -> Result<(), WriteError> {
    let file = format!("{name}.parquet");
    let bytes = table.parquet();
    let bytes = bytes.map_err(|error| WriteError::of(&folder.join(&file), &error))?;
    put(folder, &file, &bytes)?;
    put(folder, &format!("{name}.csv"), table.csv().as_bytes())
}

impl Results {
    /// Writes `scenario.toml`, the tables `measures`, `seeds`, `members` and `rounds` (CSV and
    /// Parquet), `report.html`, its first plot as `profit.svg`, and `results.json` into a folder,
    /// which is created if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, program: &Program<'_>) -> Result<(), WriteError> {
        try_folder(folder)?;
        put(folder, "scenario.toml", self.scenario.to_toml().as_bytes())?;
        for (name, text) in self.scenario.files() {
            put(folder, name, text.as_bytes())?;
        }
        put_table(folder, "measures", &self.measures_table())?;
        put_table(folder, "seeds", &self.seeds_table(program))?;
        put_table(folder, "members", &self.members_table(program))?;
        put_table(folder, "rounds", &self.rounds_table(program))?;
        put(folder, "report.html", self.to_html(program).as_bytes())?;
        put(folder, "profit.svg", self.profit_svg().as_bytes())?;
        put(folder, RESULTS, format!("{:#}\n", self.to_json(program)).as_bytes())
    }

    /// The results as one JSON document, without members and rounds.
    #[must_use]
    pub fn to_json(&self, program: &Program<'_>) -> serde_json::Value {
        json!({
            "version": program.version,
            "commit": program.commit,
            "games": self.played.iter().map(|played| program.game(played.seed)).collect::<Vec<_>>(),
            "scenario": self.scenario,
            "measures": self.measures,
            "rules": self.rules_json(program),
            "holds": self.hold(),
            "fits": self.fits,
        })
    }

    fn rules_json(&self, program: &Program<'_>) -> Vec<serde_json::Value> {
        let rule = |judged: &super::Judged| {
            json!({
                "rule": judged.rule,
                "value": judged.value,
                "holds": judged.holds,
                "worst": judged.worst.map(|seed| program.game(seed)),
            })
        };
        self.rules.iter().map(rule).collect()
    }

    fn measures_table(&self) -> Table<&Measured> {
        Table::of(self.measures.iter().collect())
            .text("group", |m: &&Measured| m.key.group.clone().unwrap_or_default())
            .text("measure", |m| m.key.measure.to_owned())
            .real("mean", |m| m.interval.mean)
            .maybe("low", |m| m.interval.low())
            .maybe("high", |m| m.interval.high())
            .whole("seeds", |m| m.interval.count as u64)
    }

    pub(super) fn seeds_table(&self, program: &Program<'_>) -> Table<(&Played, &Key, f64)> {
        let seeds = self.played.iter().zip(&self.figures);
        let rows = seeds.flat_map(|(played, all)| all.iter().map(move |(k, v)| (played, k, *v)));
        Table::of(rows.collect())
            .text("game", |(played, ..): &(&Played, &Key, f64)| program.game(played.seed))
            .whole("seed", |(played, ..)| played.seed)
            .text("group", |(_, key, _)| key.group.clone().unwrap_or_default())
            .text("measure", |(_, key, _)| key.measure.to_owned())
            .real("value", |(.., value)| *value)
    }

    pub(super) fn members_table(
        &self,
        program: &Program<'_>,
    ) -> Table<(&Played, usize, &MemberOutcome)> {
        let rows = self.played.iter().flat_map(|played| {
            played.members.iter().enumerate().map(move |(at, member)| (played, at, member))
        });
        let group = |(played, _, m): &(&Played, usize, &MemberOutcome)| {
            played.groups.get(m.group).cloned().unwrap_or_default()
        };
        Table::of(rows.collect())
            .text("game", |(played, ..): &(&Played, usize, &MemberOutcome)| {
                program.game(played.seed)
            })
            .whole("seed", |(played, ..)| played.seed)
            .whole("member", |(_, at, _)| *at as u64)
            .text("group", group)
            .flag("honest", |(.., m)| m.honest)
            .whole("rows", |(.., m)| m.rows as u64)
            .whole("asked", |(.., m)| m.asked.into())
            .whole("rounds", |(.., m)| m.rounds.into())
            .whole("refused", |(.., m)| m.refused.into())
            .whole("debited", |(.., m)| m.debited.into())
            .real("earned", |(.., m)| m.earned)
            .real("cost", |(.., m)| m.cost)
            .real("profit", |(.., m)| m.profit())
            .real("score", |(.., m)| m.score)
            .real("error", |(.., m)| m.error)
    }

    pub(super) fn rounds_table(&self, program: &Program<'_>) -> Table<(&Played, &RoundOutcomeRow)> {
        let rows = self.played.iter().flat_map(|played| {
            let rounds = played.rounds.iter();
            rounds.map(move |round| (played, round))
        });
        Table::of(rows.collect())
            .text("game", |(played, _): &(&Played, &RoundOutcomeRow)| program.game(played.seed))
            .whole("seed", |(played, _)| played.seed)
            .whole("round", |(_, r)| r.round.into())
            .whole("at_ms", |(_, r)| r.at_ms)
            .flag("settled", |(_, r)| r.settled)
            .whole("there", |(_, r)| r.there as u64)
            .whole("asked", |(_, r)| r.asked as u64)
            .whole("updates", |(_, r)| r.updates as u64)
            .whole("excluded", |(_, r)| r.excluded as u64)
            .whole("set_aside", |(_, r)| r.set_aside as u64)
            .real("improvement", |(_, r)| r.improvement)
            .real("spent", |(_, r)| r.spent)
            .real("accuracy", |(_, r)| r.accuracy)
    }
}
