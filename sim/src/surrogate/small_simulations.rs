//! The small real simulations for fitting and validation, and the observations from them.

use std::collections::BTreeMap;

use florin_learning::parallel_map;
use florin_protocol::Report;

use crate::error::{SimError, SimulationFailed};
use crate::outcome::SimulationOutcome;
use crate::population::Population;
use crate::scenario::Scenario;
use crate::simulation::Simulation;

/// One update of a real round.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedUpdate {
    /// Index of the member.
    pub(super) member: usize,
    /// Index of its group.
    pub(super) group: usize,
    /// Number of its counted rows.
    pub(super) rows: f64,
    /// Its weight in the aggregate.
    pub(super) share: f64,
    /// Its score, in nats.
    pub(super) score: f64,
    /// The standard error of the score.
    pub(super) error: f64,
    /// Whether it was rejected as a near-duplicate.
    pub(super) is_near_duplicate: bool,
}

/// One real round.
#[derive(Clone, Debug)]
pub(super) struct ObservedRound {
    /// The loss on the test rows before the round, in nats.
    pub(super) loss: f64,
    /// Its updates.
    pub(super) updates: Vec<ObservedUpdate>,
}

/// Observations from one real simulation.
#[derive(Clone, Debug)]
pub(super) struct SimulationObservations {
    /// The loss before the first round and after each round, in nats.
    pub(super) losses: Vec<f64>,
    /// The accuracy before the first round and after each round.
    pub(super) accuracies: Vec<f64>,
    /// Its rounds.
    pub(super) rounds: Vec<ObservedRound>,
    /// Number of updates in the aggregate of each round.
    pub(super) update_counts: Vec<f64>,
}

impl SimulationObservations {
    /// Number of updates of each round.
    pub(super) fn updates(&self) -> Vec<f64> {
        self.update_counts.clone()
    }
}

/// Runs real simulations, each a scenario with a seed, on up to `threads` threads. An error names
/// the seed of the simulation that failed.
pub(super) fn run_all(
    all: &[(Scenario, u64)],
    threads: usize,
) -> Result<Vec<(SimulationObservations, SimulationOutcome)>, SimulationFailed> {
    let tasks: Vec<&(Scenario, u64)> = all.iter().collect();
    let run = |(scenario, seed): &(Scenario, u64)| {
        run_one(scenario, *seed).map_err(|error| SimulationFailed { seed: *seed, error })
    };
    parallel_map(threads, tasks, run).into_iter().collect()
}

fn run_one(
    scenario: &Scenario,
    seed: u64,
) -> Result<(SimulationObservations, SimulationOutcome), SimError> {
    let mut game = Simulation::new(scenario, seed, Population::draw(scenario, seed)?)?;
    let (loss, accuracy) = game.test_metrics()?;
    let mut seen = SimulationObservations {
        losses: vec![loss],
        accuracies: vec![accuracy],
        rounds: Vec::new(),
        update_counts: Vec::new(),
    };
    while game.wait_for_round()? {
        let before = seen.losses.last().copied().unwrap_or_default();
        game.run_round(1)?;
        game.measure_accuracy()?;
        let (loss, accuracy) = game.test_metrics()?;
        seen.losses.push(loss);
        seen.accuracies.push(accuracy);
        let updates = game.report().map(|report| updates(&game, report)).unwrap_or_default();
        seen.update_counts
            .push(updates.iter().filter(|update| !update.is_near_duplicate).count() as f64);
        seen.rounds.push(ObservedRound { loss: before, updates });
    }
    Ok((seen, game.finish()?))
}

/// The updates of a report with their weights in the aggregate: relative to all updates for the
/// excluded ones, and relative to the others for the others.
fn updates(game: &Simulation<'_>, report: &Report) -> Vec<ObservedUpdate> {
    let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
    let scores: Vec<_> = scores.zip(&report.entries).collect();
    let counted = |only_included: bool| -> f64 {
        let included =
            scores.iter().filter(|(score, _)| score.preprocessing.duplicate_of.is_none());
        let relevant = included.filter(|(score, _)| !only_included || !score.excluded);
        relevant.map(|(_, entry)| entry.rows_counted as f64).sum::<f64>().max(1.0)
    };
    let (all, rest) = (counted(false), counted(true));
    let update =
        |(score, entry): &(&florin_protocol::UpdateScore, &florin_protocol::UpdateEntry)| {
            let (member, group) = game.owner_of(entry.sender)?;
            let is_near_duplicate = score.preprocessing.duplicate_of.is_some();
            let rows = entry.rows_counted as f64;
            Some(ObservedUpdate {
                member,
                group,
                rows,
                share: rows / if score.excluded { all } else { rest },
                score: score.score_nano as f64 / 1e9,
                error: score.error_nano as f64 / 1e9,
                is_near_duplicate,
            })
        };
    scores.iter().filter_map(update).collect()
}

/// Mean earnings of the members of each group, in florins.
pub(super) fn mean_earnings(played: &[SimulationOutcome]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (game, member) in played.iter().flat_map(|game| game.members.iter().map(move |m| (game, m)))
    {
        let Some(name) = game.groups.get(member.group) else { continue };
        let (sum, count) = sums.entry(name.clone()).or_default();
        *sum += member.earned;
        *count += 1.0;
    }
    sums.into_iter().map(|(name, (sum, count))| (name, sum / count)).collect()
}
