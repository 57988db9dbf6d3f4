//! One simulated task: its accuracy over virtual time, and the work and the pay of its members.

use anyhow::Context;
use florin_protocol::Report;
use florin_sim::devices::DeviceRound;
use florin_sim::market::amount_to_florins;
use florin_sim::outcome::SimulationOutcome;
use florin_sim::population::Population;
use florin_sim::{GraphTask, Scenario, Simulation};

/// The figures of one task.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// Virtual seconds and test accuracy after each round.
    pub(super) curve: Vec<(f64, f64)>,
    /// Accuracy of the last model on each member's own rows.
    pub(super) own: Vec<f64>,
    /// Updates that members trained, and those that rounds accepted.
    pub(super) trained: usize,
    pub(super) accepted: usize,
    /// Milliseconds that members were at work.
    busy_ms: u64,
    /// Milliseconds that devices of members computed, of all devices together.
    computed_ms: f64,
    /// Florins paid for data and useful rows, by group: rows that had a weight in a model.
    paid: Vec<(f64, f64)>,
    /// Nano-nats of the scores and useful rows of each round, by group.
    scored: Vec<Vec<(f64, f64)>>,
    /// Florins paid for data in each round, and the number of updates that they paid.
    payouts: Vec<(f64, usize)>,
    /// Updates of honest members that counted as repeats.
    repeats: usize,
    /// The outcome of the market.
    pub(super) outcome: SimulationOutcome,
}

impl Trial {
    /// Simulates one task.
    pub(super) fn run(
        scenario: &Scenario,
        graph: Option<&GraphTask>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let population = Population::draw(scenario, seed)?;
        let mut simulation = match graph {
            None => Simulation::new(scenario, seed, population)?,
            Some(graph) => Simulation::with_graph(scenario, seed, population, graph)?,
        };
        let mut curve = Vec::new();
        let mut begun = None;
        let mut paid = vec![(0.0, 0.0); scenario.population.len()];
        let (mut repeats, mut payouts, mut scored) = (0, Vec::new(), Vec::new());
        while simulation.wait_for_round()? {
            simulation.run_round(1)?;
            simulation.measure_accuracy()?;
            let row = simulation.rounds().last().context("a round has an outcome")?;
            let begun = *begun.get_or_insert(row.at_ms.saturating_sub(row.duration_ms));
            curve.push((row.at_ms.saturating_sub(begun) as f64 / 1e3, row.accuracy));
            let mut of_round = vec![(0.0, 0.0); scenario.population.len()];
            repeats += record_pay(&simulation, &mut paid, &mut of_round);
            scored.push(of_round);
            payouts.extend(simulation.report().map(payouts_of));
        }
        let own = simulation.accuracies_of_members()?;
        let trained = simulation.trained();
        let accepted = simulation.rounds().iter().map(|row| row.updates).sum();
        let (busy_ms, computed_ms) = (simulation.busy_ms(), simulation.computed_ms());
        let outcome = simulation.finish()?;
        Ok(Self {
            curve,
            own,
            trained,
            accepted,
            busy_ms,
            computed_ms,
            paid,
            scored,
            payouts,
            repeats,
            outcome,
        })
    }

    /// Mean accuracy of the last tenth of the rounds.
    pub(super) fn final_accuracy(&self) -> f64 {
        let from = self.curve.len() - self.curve.len().div_ceil(10);
        mean(self.curve[from..].iter().map(|(_, accuracy)| *accuracy))
    }

    /// Virtual seconds from the first offer until the accuracy first reaches `target`.
    pub(super) fn time_to(&self, target: f64) -> Option<f64> {
        self.curve.iter().find(|(_, accuracy)| *accuracy >= target).map(|(at, _)| *at)
    }

    /// Share of the trained updates that no round accepted.
    pub(super) fn wasted(&self) -> f64 {
        1.0 - self.accepted as f64 / self.trained.max(1) as f64
    }

    /// Share of the time in which each of the `places` for members was at work.
    pub(super) fn utilisation(&self, places: u32) -> f64 {
        let seconds = self.curve.last().map_or(0.0, |(at, _)| *at);
        self.busy_ms as f64 / 1e3 / (seconds * f64::from(places)).max(f64::MIN_POSITIVE)
    }

    /// Share of the time in which each device of the members computed, from the first selection to
    /// the end of the last round.
    pub(super) fn devices_at_work(&self) -> f64 {
        let seconds = self.curve.last().map_or(0.0, |(at, _)| *at);
        let count = |round: DeviceRound| f64::from(round.times.devices);
        let devices: f64 = self.outcome.members.iter().filter_map(|it| it.devices).map(count).sum();
        self.computed_ms / 1e3 / (seconds * devices).max(f64::MIN_POSITIVE)
    }

    /// Share of the time of members at work in which each of their devices computes: the rest is for
    /// whole workers, transfers of a step, and the model's download.
    pub(super) fn computing_at_work(&self) -> f64 {
        let devices = self.outcome.members.iter().filter_map(|it| it.devices);
        let count = devices.clone().count().max(1) as f64;
        let each = devices.map(|round| f64::from(round.times.devices)).sum::<f64>() / count;
        self.computed_ms / (self.busy_ms as f64 * each).max(f64::MIN_POSITIVE)
    }

    /// Florins for data of a group, and its rows that had a weight in a model.
    pub(super) fn pay_and_useful_rows(&self, group: &str) -> (f64, f64) {
        let at = self.outcome.groups.iter().position(|name| name == group);
        at.and_then(|at| self.paid.get(at)).copied().unwrap_or_default()
    }

    /// Share of the accepted updates that counted as repeats.
    pub(super) fn repeats(&self) -> f64 {
        self.repeats as f64 / self.accepted.max(1) as f64
    }

    /// Gini coefficient of the accepted updates of the members.
    pub(super) fn gini_of_work(&self) -> f64 {
        gini(self.outcome.members.iter().map(|member| f64::from(member.rounds)).collect())
    }

    /// Gini coefficient of the members' pay.
    pub(super) fn gini_of_pay(&self) -> f64 {
        gini(self.outcome.members.iter().map(|member| member.earned.max(0.0)).collect())
    }

    /// The two sums whose ratio compares the scores for each useful row of two groups within the same
    /// rounds (Mantel and Haenszel, 1959): a round counts as far as both had rows in it.
    pub(super) fn scores_within_rounds(&self, one: &str, other: &str) -> (f64, f64) {
        let at = |group: &str| self.outcome.groups.iter().position(|name| name == group);
        let (Some(one), Some(other)) = (at(one), at(other)) else { return (0.0, 0.0) };
        let both =
            self.scored.iter().filter_map(|round| Some((round.get(one)?, round.get(other)?)));
        both.fold((0.0, 0.0), |(above, below), ((score, rows), (other_score, other_rows))| {
            let all = (rows + other_rows).max(1.0);
            (above + score * other_rows / all, below + other_score * rows / all)
        })
    }

    /// The Gini coefficient if each round paid all its updates alike and went to those with the least
    /// pay, the round with the most pay first. No selector can do that: none knows the pay of later
    /// rounds.
    pub(super) fn gini_of_equalised_pay(&self) -> f64 {
        let mut paid = vec![0.0; self.outcome.members.len()];
        let mut rounds = self.payouts.clone();
        rounds.sort_by(|(a, m), (b, n)| (b / *n as f64).total_cmp(&(a / *m as f64)));
        for (pay, updates) in rounds {
            paid.sort_by(f64::total_cmp);
            paid.iter_mut().take(updates).for_each(|one| *one += pay / updates as f64);
        }
        gini(paid)
    }

    /// The pay of all members of a group, less their debits, in florins.
    pub(super) fn earned_by(&self, group: &str) -> f64 {
        let at = self.outcome.groups.iter().position(|name| name == group);
        let members = self.outcome.members.iter().filter(|member| Some(member.group) == at);
        members.map(|member| member.earned).sum()
    }

    /// Variance of the accuracy over the members' own rows.
    pub(super) fn own_variance(&self) -> f64 {
        let center = mean(self.own.iter().copied());
        mean(self.own.iter().map(|one| (one - center).powi(2)))
    }
}

/// Adds the pay and the useful rows of the last round to those of the groups, and its scores and useful rows
/// to `scored`. Returns the number of its repeats.
fn record_pay(
    simulation: &Simulation<'_>,
    paid: &mut [(f64, f64)],
    scored: &mut [(f64, f64)],
) -> usize {
    let Some(report) = simulation.report() else { return 0 };
    let mut repeats = 0;
    for line in &report.lines {
        let Some((_, group)) = simulation.owner_of(line.account) else { continue };
        let Some((pay, rows)) = paid.get_mut(group) else { continue };
        *pay += amount_to_florins(line.payout);
        let Some(score) = report.score(line.account) else { continue };
        repeats += usize::from(score.preprocessing.duplicate_of.is_some());
        if report.is_productive() && !score.excluded {
            *rows += score.preprocessing.weight as f64;
            if let Some((sum, rows)) = scored.get_mut(group) {
                *sum += score.score_nano as f64;
                *rows += score.preprocessing.weight as f64;
            }
        }
    }
    repeats
}

/// The pay of a round, and the number of updates that it paid.
fn payouts_of(report: &Report) -> (f64, usize) {
    let paid = report.lines.iter().map(|line| amount_to_florins(line.payout));
    let paid: Vec<f64> = paid.filter(|florins| *florins > 0.0).collect();
    (paid.iter().sum(), paid.len().max(1))
}

/// The mean of some values; 0 without any.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), one| (sum + one, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// The Gini coefficient: 0 if all are equal, almost 1 if one has everything.
fn gini(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
    if sum <= 0.0 {
        return 0.0;
    }
    let ranked: f64 = values.iter().zip(1_u32..).map(|(one, rank)| f64::from(rank) * one).sum();
    2.0 * ranked / (count * sum) - (count + 1.0) / count
}
