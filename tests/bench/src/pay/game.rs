//! One simulated task, and the figures that the benchmark reads from its reports.

use std::collections::BTreeMap;

use anyhow::Context;
use florin_protocol::{Report, RoundOutcome, ScoreEstimator, ValuationStage};
use florin_sim::market::{amount_to_florins, florins_to_amount};
use florin_sim::population::Population;
use florin_sim::{Scenario, Simulation};

/// Name of the group of honest members.
const HONEST: &str = "honest";
/// Nano-nats per nat.
const NANO: f64 = 1e9;

/// The figures of one task.
#[derive(Clone, Debug, Default)]
pub(super) struct Game {
    /// Mean change of an honest member's balance, in florins.
    pub(super) honest: f64,
    /// Change of the balance of the honest member that earned least.
    pub(super) worst: f64,
    /// Change of the balances of all attackers.
    pub(super) attackers: f64,
    /// Number of attackers.
    pub(super) attacker_count: usize,
    /// The part of honest members' positive scores that was never paid: of all, and of the member
    /// that lost most.
    pub(super) forfeited: [f64; 2],
    /// Debits of honest members.
    pub(super) debits: u32,
    /// Accuracy of the last model on the test rows.
    pub(super) accuracy: f64,
    /// Rounds that paid scores although a stage had an unresolved gap, or the cross-check denied a
    /// score.
    pub(super) unresolved: u32,
    /// Rounds after which more than `per_nat_max` was paid for the measured improvement.
    pub(super) overpaid: u32,
    /// Void rounds.
    pub(super) void: u32,
    /// Passes over the rows of all valued rounds, and of each that the first estimator resolved.
    pub(super) units: u64,
    pub(super) settled_units: Vec<u64>,
    /// Valued rounds that needed another estimator.
    pub(super) climbed: u32,
    /// Rounds that ended, of those of the task.
    pub(super) rounds: u32,
    /// Whether the money adds up.
    pub(super) balanced: bool,
}

/// Simulates one task.
pub(super) fn play(scenario: &Scenario, seed: u64) -> anyhow::Result<Game> {
    let per_nat = florins_to_amount(scenario.task.per_nat_max);
    let mut simulation = Simulation::new(scenario, seed, Population::draw(scenario, seed)?)?;
    let honest = scenario.population.keys().position(|name| name == HONEST);
    let mut game = Game::default();
    while simulation.wait_for_round()? {
        simulation.run_round(1)?;
        simulation.measure_accuracy()?;
        let report = simulation.report().context("the round has a report")?;
        game.read(report, amount_to_florins(per_nat));
        let is_honest = |account| simulation.owner_of(account).map(|(_, group)| group) == honest;
        game.forfeited = forfeited(report, is_honest);
    }
    let outcome = simulation.finish()?;
    let group = |member: &florin_sim::outcome::MemberOutcome| Some(member.group) == honest;
    let own: Vec<f64> =
        outcome.members.iter().filter(|member| group(member)).map(|m| m.earned).collect();
    game.honest = own.iter().sum::<f64>() / own.len().max(1) as f64;
    game.worst = own.iter().copied().fold(f64::INFINITY, f64::min);
    let others = || outcome.members.iter().filter(|member| !group(member));
    game.attackers = others().map(|member| member.earned).sum();
    game.attacker_count = others().count();
    game.debits = outcome.members.iter().filter(|m| group(m)).map(|m| m.debited).sum();
    game.accuracy = outcome.rounds.last().map_or(0.0, |round| round.accuracy);
    game.balanced = outcome.balanced;
    Ok(game)
}

impl Game {
    fn read(&mut self, report: &Report, per_nat_max: f64) {
        self.rounds += 1;
        let improvement = report.improvement_total_nano as f64 / NANO;
        let paid = amount_to_florins(report.score_pay_total);
        self.overpaid += u32::from(paid > per_nat_max * improvement * (1.0 + 1e-12));
        let Some(valuation) = &report.valuation else { return };
        let resolved =
            valuation.is_confirmed() && valuation.stages.iter().all(ValuationStage::is_resolved);
        self.unresolved += u32::from(!resolved && report.outcome == RoundOutcome::Settled);
        self.void += u32::from(matches!(report.outcome, RoundOutcome::Void(_)));
        self.units += valuation.units;
        let is_first = |stage: &ValuationStage| stage.estimator == ScoreEstimator::Path(3);
        match valuation.stages.iter().all(is_first) {
            true => self.settled_units.push(valuation.units),
            false => self.climbed += 1,
        }
    }
}

/// The part of positive scores that is not paid: of all accounts, and of the one that lost most.
fn forfeited(report: &Report, counts: impl Fn(florin_protocol::Address) -> bool) -> [f64; 2] {
    let own: BTreeMap<_, _> =
        report.account_totals.iter().filter(|(account, _)| counts(**account)).collect();
    let (mut unpaid, mut all, mut worst) = (0.0, 0.0, 0.0f64);
    for totals in own.values().filter(|totals| totals.score_sum_nano > 0) {
        let score = totals.score_sum_nano as f64;
        let lost = (score - totals.paid_score_nano as f64).max(0.0);
        (unpaid, all) = (unpaid + lost, all + score);
        worst = worst.max(lost / score);
    }
    [if all > 0.0 { unpaid / all } else { 0.0 }, worst]
}
