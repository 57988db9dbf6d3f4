//! Writes the results folder of an experiment: the scenario, every measure, every member and every
//! round. The same experiment writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::table::ResultTable;
use super::{Program, Results, criteria_json};
use crate::devices::DeviceRound;
use crate::measure::{MeasureKey, MeasureSummary, MeasureValues};
use crate::outcome::{MemberOutcome, RoundOutcomeRow, SimulationOutcome};

/// The file that an experiment writes last.
pub const RESULTS: &str = "results.json";
/// The file that a search writes last.
pub const SEARCH: &str = "search.json";
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
    fn new(path: &Path, why: &dyn std::fmt::Display) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

/// Creates the results folder and checks that it is writable, before an experiment that can take
/// hours.
///
/// # Errors
/// [`WriteError`].
pub fn check_writable(folder: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, &error))?;
    let trial = folder.join(TRIAL);
    fs::write(&trial, b"florin").map_err(|error| WriteError::new(&trial, &error))?;
    fs::remove_file(&trial).map_err(|error| WriteError::new(&trial, &error))
}

/// Writes a file into a folder and creates missing parent folders.
pub(crate) fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
    let path = folder.join(name);
    let above = path.parent().unwrap_or(folder);
    fs::create_dir_all(above).map_err(|error| WriteError::new(above, &error))?;
    fs::write(&path, bytes).map_err(|error| WriteError::new(&path, &error))
}

/// Writes a table as CSV and, with the feature `parquet`, as Parquet.
pub(crate) fn write_table<T>(
    folder: &Path,
    name: &str,
    table: &ResultTable<T>,
) -> Result<(), WriteError> {
    #[cfg(feature = "parquet")]
    {
        let file = format!("{name}.parquet");
        let bytes = table.parquet();
        let bytes = bytes.map_err(|error| WriteError::new(&folder.join(&file), &error))?;
        write_file(folder, &file, &bytes)?;
    }
    write_file(folder, &format!("{name}.csv"), table.csv().as_bytes())
}

impl Results {
    /// Writes `scenario.toml`, the tables `measures`, `seeds`, `members` and `rounds` (CSV and
    /// Parquet), `report.html`, its first plot as `profit.svg`, and `results.json` into a folder,
    /// which is created if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, program: &Program<'_>) -> Result<(), WriteError> {
        check_writable(folder)?;
        write_file(folder, "scenario.toml", self.scenario.to_toml().as_bytes())?;
        for (name, text) in self.scenario.attached_files() {
            write_file(folder, name, text.as_bytes())?;
        }
        write_table(folder, "measures", &measures_table(&self.measures))?;
        write_table(folder, "seeds", &self.seeds_table(program))?;
        write_table(folder, "members", &self.members_table(program))?;
        write_table(folder, "rounds", &self.rounds_table(program))?;
        write_file(folder, "report.html", self.to_html(program).as_bytes())?;
        write_file(folder, "profit.svg", self.profit_svg().as_bytes())?;
        write_file(folder, RESULTS, format!("{:#}\n", self.to_json(program)).as_bytes())
    }

    /// The results as one JSON document, without members and rounds.
    #[must_use]
    pub fn to_json(&self, program: &Program<'_>) -> serde_json::Value {
        let runs = self.outcomes.iter().map(|played| program.run_id(played.seed));
        json!({
            "version": program.version,
            "commit": program.commit,
            "runs": runs.collect::<Vec<_>>(),
            "scenario": self.scenario,
            "measures": self.measures,
            "criteria": criteria_json(&self.criteria, program),
            "passed": self.verdict().passed(),
            "fits": self.fits,
            "selector": self.selector_rounds(),
        })
    }

    pub(super) fn seeds_table(&self, program: &Program<'_>) -> ResultTable<SeedRow<'_>> {
        let seeds = self.outcomes.iter().map(|played| played.seed);
        seeds_table(seeds.zip(&self.values), program)
    }

    pub(super) fn members_table(&self, program: &Program<'_>) -> ResultTable<MemberRow<'_>> {
        let rows = self.outcomes.iter().flat_map(|played| {
            played.members.iter().enumerate().map(move |(at, member)| (played, at, member))
        });
        let group = |(played, _, m): &MemberRow<'_>| {
            played.groups.get(m.group).cloned().unwrap_or_default()
        };
        ResultTable::new(rows.collect())
            .text("run", |(played, ..): &MemberRow<'_>| program.run_id(played.seed))
            .integer("seed", |(played, ..)| played.seed)
            .integer("member", |(_, at, _)| *at as u64)
            .text("group", group)
            .boolean("honest", |(.., m)| m.honest)
            .integer("rows", |(.., m)| m.rows as u64)
            .integer("selected", |(.., m)| m.selected.into())
            .integer("rounds", |(.., m)| m.rounds.into())
            .integer("rejected", |(.., m)| m.rejected.into())
            .integer("debited", |(.., m)| m.debited.into())
            .float("earned", |(.., m)| m.earned)
            .float("cost", |(.., m)| m.cost)
            .float("profit", |(.., m)| m.profit())
            .float("score", |(.., m)| m.score)
            .float("standard_error", |(.., m)| m.error)
            .when(self.scenario.has_devices(), device_columns)
    }

    pub(super) fn rounds_table(
        &self,
        program: &Program<'_>,
    ) -> ResultTable<(&SimulationOutcome, &RoundOutcomeRow)> {
        let rows = self.outcomes.iter().flat_map(|played| {
            let rounds = played.rounds.iter();
            rounds.map(move |round| (played, round))
        });
        ResultTable::new(rows.collect())
            .text("run", |(played, _): &(&SimulationOutcome, &RoundOutcomeRow)| {
                program.run_id(played.seed)
            })
            .integer("seed", |(played, _)| played.seed)
            .integer("round", |(_, r)| r.round.into())
            .integer("at_ms", |(_, r)| r.at_ms)
            .boolean("settled", |(_, r)| r.settled)
            .integer("online", |(_, r)| r.online as u64)
            .integer("selected", |(_, r)| r.selected as u64)
            .integer("updates", |(_, r)| r.updates as u64)
            .integer("excluded", |(_, r)| r.excluded as u64)
            .integer("near_duplicates", |(_, r)| r.near_duplicates as u64)
            .float("improvement", |(_, r)| r.improvement)
            .float("spent", |(_, r)| r.spent)
            .float("accuracy", |(_, r)| r.accuracy)
            .when(self.scenario.has_devices(), |table| {
                table
                    .integer("late", |(_, r)| r.late as u64)
                    .integer("too_small", |(_, r)| r.too_small as u64)
                    .float("duration_s", |(_, r)| r.duration_ms as f64 / 1e3)
            })
    }
}

/// A seed, a measure and its value.
pub(crate) type SeedRow<'a> = (u64, &'a MeasureKey, f64);

/// The table of the measures of each seed.
pub(crate) fn seeds_table<'a>(
    seeds: impl Iterator<Item = (u64, &'a MeasureValues)>,
    program: &Program<'_>,
) -> ResultTable<SeedRow<'a>> {
    let rows =
        seeds.flat_map(|(seed, all)| all.iter().map(move |(key, value)| (seed, key, *value)));
    ResultTable::new(rows.collect())
        .text("run", |(seed, ..): &SeedRow<'_>| program.run_id(*seed))
        .integer("seed", |(seed, ..)| *seed)
        .text("group", |(_, key, _)| key.group.clone().unwrap_or_default())
        .text("measure", |(_, key, _)| key.measure.to_owned())
        .float("value", |(.., value)| *value)
}

/// The table of all measures.
pub(crate) fn measures_table(measures: &[MeasureSummary]) -> ResultTable<&MeasureSummary> {
    ResultTable::new(measures.iter().collect())
        .text("group", |m: &&MeasureSummary| m.key.group.clone().unwrap_or_default())
        .text("measure", |m| m.key.measure.to_owned())
        .float("mean", |m| m.interval.mean)
        .optional_float("low", |m| m.interval.low())
        .optional_float("high", |m| m.interval.high())
        .integer("seeds", |m| m.interval.count as u64)
}

type MemberRow<'a> = (&'a SimulationOutcome, usize, &'a MemberOutcome);

/// The columns of members with devices; empty for members of groups without.
fn device_columns(table: ResultTable<MemberRow<'_>>) -> ResultTable<MemberRow<'_>> {
    fn seconds(member: &MemberOutcome, of: fn(&DeviceRound) -> f64) -> Option<f64> {
        member.devices.as_ref().map(of).filter(|seconds| seconds.is_finite())
    }
    let name = |member: &MemberOutcome, of: fn(&DeviceRound) -> &'static str| {
        member.devices.as_ref().map_or("", of).to_owned()
    };
    table
        .integer("late", |(.., m)| m.late.into())
        .integer("devices", |(.., m)| m.devices.map_or(0, |of| of.times.devices.into()))
        .integer("devices_used", |(.., m)| m.devices.map_or(0, |of| of.times.used.into()))
        .text("memory", move |(.., m)| name(m, |of| of.times.memory.name()))
        .text("verdict", move |(.., m)| name(m, |of| of.verdict.name()))
        .optional_float("step_seconds", |(.., m)| seconds(m, |of| of.times.step_seconds))
        .optional_float("round_seconds", |(.., m)| seconds(m, |of| of.round_seconds))
}
