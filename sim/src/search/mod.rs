//! Searches for the best deviation: candidates are compared on selection seeds, and the chosen ones
//! are measured on fresh seeds.

mod candidates;
mod files;
mod page;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::{ProgressFn, SimulationJob, run_batch};
use crate::error::SimulationFailed;
use crate::measure::{ConfidenceBounds, ConfidenceInterval, confidence_interval};
use crate::outcome::{MemberOutcome, SimulationOutcome};
use crate::scenario::{Scenario, Search, SeedRange, StrategyFamily};
use crate::strategy::Strategy;
use candidates::CandidatePlan;

pub use candidates::Candidate;

/// The results of a search.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// The scenario.
    pub scenario: Scenario,
    /// All candidates, in the order of the search.
    pub candidates: Vec<Candidate>,
    /// The best candidate of each strategy, measured on fresh seeds, in the scenario's order.
    pub strategies: Vec<StrategyResult>,
    /// Index of the strategy with the highest gain on the selection seeds.
    pub best: usize,
}

/// The best candidate of a strategy.
#[derive(Clone, Debug)]
pub struct StrategyResult {
    /// The name of the strategy.
    pub name: String,
    /// Number of deviating members.
    pub count: u32,
    /// The strategy with its parameters.
    pub strategy: Strategy,
    /// Number of candidates that were tried.
    pub candidate_count: usize,
    /// Its gain on the selection seeds; biased upwards, because it was selected by this gain.
    pub selection_gain: f64,
    /// The result of each fresh seed.
    pub evaluations: Vec<SeedEvaluation>,
    /// Its gain on fresh seeds.
    pub gain: ConfidenceInterval,
    /// Its profit on fresh seeds.
    pub profit: ConfidenceInterval,
    /// Accuracy of the final model on fresh seeds.
    pub accuracy: ConfidenceInterval,
    /// Fraction of its updates that were excluded or rejected as near-duplicates.
    pub rejected: ConfidenceInterval,
}

/// The result of one fresh seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeedEvaluation {
    /// The seed.
    pub seed: u64,
    /// Mean profit of a deviating member, in florins.
    pub profit: f64,
    /// Its honest counterfactual: mean profit of the same members, honest.
    pub honest: f64,
    /// Accuracy of the final model.
    pub accuracy: f64,
    /// Fraction of the deviating members' updates that were excluded or rejected as
    /// near-duplicates.
    pub rejected: f64,
}

impl SearchResults {
    /// The gain of the best deviation on fresh seeds, or zero if it is negative: a lower bound of
    /// the smallest ε for which honesty is an ε-equilibrium, over the strategies that were tried.
    /// The deviation is chosen without these seeds, so the estimate has no selection bias.
    #[must_use]
    pub fn epsilon(&self) -> Option<ConfidenceInterval> {
        let gain = self.strategies.get(self.best)?.gain;
        let least = |value: f64| value.max(0.0);
        let ends = gain
            .bounds
            .map(|ends| ConfidenceBounds { low: least(ends.low), high: least(ends.high) });
        Some(ConfidenceInterval { mean: least(gain.mean), bounds: ends, count: gain.count })
    }
}

/// Searches for the best deviation on up to `threads` threads. `None` if the scenario has no
/// search.
///
/// # Errors
/// The first simulation that failed.
pub fn search_deviations(
    scenario: &Scenario,
    threads: usize,
    watch: ProgressFn<'_>,
) -> Result<Option<SearchResults>, SimulationFailed> {
    let Some(search) = &scenario.search else { return Ok(None) };
    let mut stage = CandidateEvaluator::new(scenario, search, threads, watch);
    let mut plan = CandidatePlan::new(search, scenario.seeds.first);
    loop {
        let candidates = plan.next_generation();
        if candidates.is_empty() {
            break;
        }
        let gains = stage.selection_gains(&candidates)?;
        plan.record_gains(candidates, gains);
    }
    let (tried, chosen) = plan.into_results();
    let mut found = Vec::new();
    for (best, tries) in chosen {
        // A strategy without a candidate has no result, so the lists are not parallel.
        if let Some(family) = search.strategies.get(best.strategy_index) {
            found.push(stage.measure(family, &best, tries)?);
        }
    }
    let best = (0..found.len()).max_by(|a, b| {
        let training =
            |at: usize| found.get(at).map_or(f64::NEG_INFINITY, |found| found.selection_gain);
        training(*a).total_cmp(&training(*b)).then(b.cmp(a))
    });
    Ok(Some(SearchResults {
        scenario: scenario.clone(),
        candidates: tried,
        strategies: found,
        best: best.unwrap_or(0),
    }))
}

/// Simulates candidates, and their honest counterfactuals once per seed.
struct CandidateEvaluator<'a> {
    scenario: &'a Scenario,
    search: &'a Search,
    group: usize,
    threads: usize,
    watch: ProgressFn<'a>,
    /// Profits of honest members, by group size and seed.
    honest: BTreeMap<(u32, u64), f64>,
    /// Number of finished simulations, and their total number.
    done: usize,
    all: usize,
}

impl<'a> CandidateEvaluator<'a> {
    fn new(
        scenario: &'a Scenario,
        search: &'a Search,
        threads: usize,
        watch: ProgressFn<'a>,
    ) -> Self {
        let group = scenario.population.keys().position(|name| *name == search.group);
        let mut stage = Self {
            scenario,
            search,
            group: group.unwrap_or_default(),
            threads,
            watch,
            honest: BTreeMap::new(),
            done: 0,
            all: 0,
        };
        let counts: std::collections::BTreeSet<u32> =
            search.strategies.iter().map(|family| stage.count(family)).collect();
        let seeds = |seeds: SeedRange| seeds.count as usize;
        let tries: usize = search
            .strategies
            .iter()
            .map(|family| candidates::candidate_count(search, family))
            .sum();
        stage.all = (tries + counts.len()) * seeds(search.seeds)
            + (search.strategies.len() + counts.len()) * seeds(scenario.seeds);
        stage
    }

    fn count(&self, family: &StrategyFamily) -> u32 {
        let group = self.scenario.population.get(&self.search.group);
        family.count.unwrap_or_else(|| group.map_or(0, |group| group.count))
    }

    /// Simulates strategies on seeds, and the honest counterfactuals that are not yet known.
    fn simulate(
        &mut self,
        strategies: &[(&StrategyFamily, Strategy)],
        seeds: SeedRange,
    ) -> Result<Vec<Vec<SimulationOutcome>>, SimulationFailed> {
        let mut games: Vec<SimulationJob> = Vec::new();
        let mut missing: Vec<(u32, u64)> = Vec::new();
        for (family, _) in strategies {
            let count = self.count(family);
            let honest = Arc::new(self.scenario.with_deviation(family, Strategy::Honest));
            for seed in seeds.all() {
                if !self.honest.contains_key(&(count, seed)) && !missing.contains(&(count, seed)) {
                    missing.push((count, seed));
                    games.push((seed, Arc::clone(&honest)));
                }
            }
        }
        for (family, strategy) in strategies {
            let scenario = Arc::new(self.scenario.with_deviation(family, *strategy));
            games.extend(seeds.all().map(|seed| (seed, Arc::clone(&scenario))));
        }
        let (before, all, watch) = (self.done, self.all, self.watch);
        self.done += games.len();
        let watch = move |done: usize, _: usize| watch(before + done, all);
        let mut played = run_batch(games, self.threads, &watch)?.into_iter();
        for (key, game) in missing.into_iter().zip(played.by_ref()) {
            self.honest.insert(key, self.profit(&game));
        }
        let each = strategies.iter().map(|_| played.by_ref().take(seeds.count as usize).collect());
        Ok(each.collect())
    }

    /// The mean gain of each candidate on the selection seeds.
    fn selection_gains(&mut self, candidates: &[Candidate]) -> Result<Vec<f64>, SimulationFailed> {
        let search = self.search;
        let strategies: Vec<(&StrategyFamily, Strategy)> = candidates
            .iter()
            .filter_map(|one| Some((search.strategies.get(one.strategy_index)?, one.strategy)))
            .collect();
        let played = self.simulate(&strategies, search.seeds)?;
        let gain =
            |((family, _), games): (&(&StrategyFamily, Strategy), Vec<SimulationOutcome>)| {
                let fresh = self.evaluate_seeds(family, &games);
                mean(fresh.iter().map(|seed| seed.profit - seed.honest))
            };
        Ok(strategies.iter().zip(played).map(gain).collect())
    }

    fn evaluate_seeds(
        &self,
        family: &StrategyFamily,
        games: &[SimulationOutcome],
    ) -> Vec<SeedEvaluation> {
        let count = self.count(family);
        let one = |game: &SimulationOutcome| {
            let members = || game.members.iter().filter(|member| member.group == self.group);
            let sum = |of: fn(&MemberOutcome) -> u32| {
                members().map(|member| f64::from(of(member))).sum::<f64>()
            };
            let last = game.rounds.last();
            SeedEvaluation {
                seed: game.seed,
                profit: self.profit(game),
                honest: self.honest.get(&(count, game.seed)).copied().unwrap_or(f64::NAN),
                accuracy: last.map_or(game.accuracy_before, |round| round.accuracy),
                rejected: sum(|member| member.rejected) / sum(|member| member.rounds).max(1.0),
            }
        };
        games.iter().map(one).collect()
    }

    /// Mean profit of a member of the group.
    fn profit(&self, game: &SimulationOutcome) -> f64 {
        let members = game.members.iter().filter(|member| member.group == self.group);
        mean(members.map(MemberOutcome::profit))
    }

    /// Measures the chosen candidate of a strategy on fresh seeds.
    fn measure(
        &mut self,
        family: &StrategyFamily,
        best: &Candidate,
        tries: usize,
    ) -> Result<StrategyResult, SimulationFailed> {
        let played = self.simulate(&[(family, best.strategy)], self.scenario.seeds)?;
        let games = played.into_iter().next().unwrap_or_default();
        let fresh = self.evaluate_seeds(family, &games);
        let of = |figure: fn(&SeedEvaluation) -> f64| {
            confidence_interval(&fresh.iter().map(figure).collect::<Vec<f64>>())
        };
        Ok(StrategyResult {
            name: family.name.clone(),
            count: self.count(family),
            strategy: best.strategy,
            candidate_count: tries,
            selection_gain: best.gain,
            gain: of(|seed| seed.profit - seed.honest),
            profit: of(|seed| seed.profit),
            accuracy: of(|seed| seed.accuracy),
            rejected: of(|seed| seed.rejected),
            evaluations: fresh,
        })
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { f64::NAN }
}
