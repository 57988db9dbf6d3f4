//! Runs an experiment on the market for compute, and writes its results.

use std::path::Path;

use serde_json::{Value, json};

use super::ComputeError;
use super::market::ComputeMarket;
use super::measure::measure;
use super::outcome::{ComputeLease, ComputeMember, ComputeOutcome};
use super::scenario::ComputeScenario;
use crate::ProgressFn;
use crate::batch::run_all;
use crate::measure::{MeasureSummary, MeasureValues, summarise_seeds};
use crate::results::{
    CriterionResult, Program, RESULTS, ResultTable, Verdict, WriteError, check_writable,
    criteria_json, find_measure, judge, measures_table, seeds_table, write_file, write_table,
};

/// The results of an experiment.
#[derive(Clone, Debug)]
pub struct ComputeResults {
    /// The scenario.
    pub scenario: ComputeScenario,
    /// The outcome of every seed, in order.
    pub outcomes: Vec<ComputeOutcome>,
    /// The measures of each seed.
    pub values: Vec<MeasureValues>,
    /// The means and confidence intervals of the measures.
    pub measures: Vec<MeasureSummary>,
    /// The results of the scenario's pass criteria.
    pub criteria: Vec<CriterionResult>,
}

/// Plays all seeds of a scenario on up to `threads` threads, each once as it is and, if a group is not honest, once
/// with every group honest. `watch` receives the number of finished seeds and the total.
///
/// # Errors
/// The first seed that failed, with its error.
pub fn run_compute_experiment(
    scenario: &ComputeScenario,
    threads: usize,
    watch: ProgressFn<'_>,
) -> Result<ComputeResults, (u64, ComputeError)> {
    let honest = (!scenario.is_honest()).then(|| scenario.made_honest());
    let seeds: Vec<u64> = scenario.seeds.all().collect();
    let one = |seed: u64| play_seed(scenario, honest.as_ref(), seed).map_err(|error| (seed, error));
    let played = run_all(seeds, threads, watch, one)?;
    let (outcomes, values): (Vec<ComputeOutcome>, Vec<MeasureValues>) = played.into_iter().unzip();
    let measures = summarise_seeds(&values);
    let pairs = outcomes.iter().zip(&values);
    let pairs: Vec<_> = pairs.map(|(outcome, values)| (outcome.seed, values)).collect();
    let criteria = judge(&scenario.criteria, &measures, &pairs);
    Ok(ComputeResults { scenario: scenario.clone(), outcomes, values, measures, criteria })
}

fn play_seed(
    scenario: &ComputeScenario,
    honest: Option<&ComputeScenario>,
    seed: u64,
) -> Result<(ComputeOutcome, MeasureValues), ComputeError> {
    let played = ComputeMarket::new(scenario, seed)?.play()?;
    let honest = honest.map(|honest| ComputeMarket::new(honest, seed)?.play()).transpose()?;
    let values = measure(scenario, &played, honest.as_ref());
    Ok((played, values))
}

impl ComputeResults {
    /// Whether the pass criteria are satisfied.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.criteria)
    }

    /// The summary of one measure over all seeds.
    #[must_use]
    pub fn measure(&self, measure: &str, group: Option<&str>) -> Option<&MeasureSummary> {
        find_measure(&self.measures, measure, group)
    }

    /// The results as one JSON document, without members and leases.
    #[must_use]
    pub fn to_json(&self, program: &Program<'_>) -> Value {
        let runs = self.outcomes.iter().map(|played| program.run_id(played.seed));
        json!({
            "version": program.version,
            "commit": program.commit,
            "runs": runs.collect::<Vec<_>>(),
            "scenario": self.scenario,
            "measures": self.measures,
            "criteria": criteria_json(&self.criteria, program),
            "passed": self.verdict().passed(),
        })
    }

    /// Writes `scenario.toml`, the tables `measures`, `seeds`, `members` and `leases` (CSV and Parquet), `report.html`,
    /// its first plot as `profit.svg`, and `results.json` into a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self, folder: &Path, program: &Program<'_>) -> Result<(), WriteError> {
        check_writable(folder)?;
        write_file(folder, "scenario.toml", self.scenario.to_toml().as_bytes())?;
        write_table(folder, "measures", &measures_table(&self.measures))?;
        let seeds = self.outcomes.iter().map(|played| played.seed);
        write_table(folder, "seeds", &seeds_table(seeds.zip(&self.values), program))?;
        write_table(folder, "members", &self.members_table(program))?;
        write_table(folder, "leases", &self.leases_table(program))?;
        write_file(folder, "report.html", self.to_html(program).as_bytes())?;
        write_file(folder, "profit.svg", self.profit_svg().as_bytes())?;
        write_file(folder, RESULTS, format!("{:#}\n", self.to_json(program)).as_bytes())
    }

    fn members_table(
        &self,
        program: &Program<'_>,
    ) -> ResultTable<(&ComputeOutcome, usize, &ComputeMember)> {
        let rows = self.outcomes.iter().flat_map(|played| {
            played.members.iter().enumerate().map(move |(at, member)| (played, at, member))
        });
        ResultTable::new(rows.collect())
            .text("run", |(played, ..): &(&ComputeOutcome, usize, &ComputeMember)| {
                program.run_id(played.seed)
            })
            .integer("seed", |(played, ..)| played.seed)
            .integer("member", |(_, at, _)| *at as u64)
            .text("group", |(.., m)| m.group.clone())
            .text("role", |(.., m)| m.role.name().to_owned())
            .float("earned", |(.., m)| m.earned)
            .float("cost", |(.., m)| m.cost)
            .float("profit", |(.., m)| m.profit())
            .integer("works", |(.., m)| m.works.into())
            .integer("slashed", |(.., m)| m.slashed.into())
            .integer("defaulted", |(.., m)| m.defaulted.into())
            .float("device_hours", |(.., m)| m.device_hours)
            .boolean("listed", |(.., m)| m.is_listed)
    }

    fn leases_table(&self, program: &Program<'_>) -> ResultTable<(&ComputeOutcome, &ComputeLease)> {
        let rows = self
            .outcomes
            .iter()
            .flat_map(|played| played.leases.iter().map(move |lease| (played, lease)));
        ResultTable::new(rows.collect())
            .text("run", |(played, _): &(&ComputeOutcome, &ComputeLease)| {
                program.run_id(played.seed)
            })
            .integer("seed", |(played, _)| played.seed)
            .integer("job", |(_, lease)| lease.job.into())
            .text("renter", |(_, lease)| lease.renter.clone())
            .text("provider", |(_, lease)| lease.provider.clone())
            .float("opened_hours", |(_, lease)| lease.opened_hours)
            .float("hours", |(_, lease)| lease.hours)
            .text("end", |(_, lease)| lease.end.name().to_owned())
            .integer("delivered", |(_, lease)| lease.delivered.into())
            .integer("audited", |(_, lease)| lease.audited.into())
            .float("paid", |(_, lease)| lease.paid)
            .float("audit_paid", |(_, lease)| lease.audit_paid)
            .optional_float("price", |(_, lease)| lease.price)
    }
}
