//! Searches for the best deviation: candidates are compared on selection seeds, and the chosen ones
//! are measured on fresh seeds.

mod candidates;
mod files;
mod page;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::games::{Halted, Wanted, Watch, play_all};
use crate::measure::{Ends, Interval, interval};
use crate::play::Played;
use crate::scenario::{Family, Scenario, Search, Seeds};
use crate::strategy::Strategy;
use candidates::Plan;

pub use candidates::Candidate;

/// The results of a search.
#[derive(Clone, Debug)]
pub struct Attack {
    /// The scenario.
    pub scenario: Scenario,
    /// All candidates, in the order of the search.
    pub tried: Vec<Candidate>,
    /// The best candidate of each strategy, measured on fresh seeds, in the scenario's order.
    pub found: Vec<Found>,
    /// Index of the strategy with the highest gain on the selection seeds.
    pub best: usize,
}

/// The best candidate of a strategy.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name of the strategy.
    pub name: String,
    /// Number of deviating members.
    pub count: u32,
    /// The strategy with its parameters.
    pub strategy: Strategy,
    /// Number of candidates that were tried.
    pub tries: usize,
    /// Its gain on the selection seeds; biased upwards, because it was selected by this gain.
    pub training: f64,
    /// The result of each fresh seed.
    pub fresh: Vec<Fresh>,
    /// Its gain on fresh seeds.
    pub gain: Interval,
    /// Its profit on fresh seeds.
    pub profit: Interval,
    /// Accuracy of the final model on fresh seeds.
    pub accuracy: Interval,
    /// Fraction of its updates that were excluded or rejected as near-duplicates.
    pub refused: Interval,
}

/// The result of one fresh seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fresh {
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
    pub refused: f64,
}

impl Attack {
    /// The gain of the best deviation on fresh seeds, or zero if it is negative: a lower bound of
    /// the smallest ε for which honesty is an ε-equilibrium, over the strategies that were tried.
    /// The deviation is chosen without these seeds, so the estimate has no selection bias.
    #[must_use]
    pub fn epsilon(&self) -> Option<Interval> {
        let gain = self.found.get(self.best)?.gain;
        let least = |value: f64| value.max(0.0);
        let ends = gain.ends.map(|ends| Ends { low: least(ends.low), high: least(ends.high) });
        Some(Interval { mean: least(gain.mean), ends, count: gain.count })
    }
}

/// Searches for the best deviation on up to `threads` threads. `None` if the scenario has no
/// search.
///
/// # Errors
/// The first simulation that failed.
pub fn attack(
    scenario: &Scenario,
    threads: usize,
    watch: Watch<'_>,
) -> Result<Option<Attack>, Halted> {
    let Some(search) = &scenario.search else { return Ok(None) };
    let mut stage = Stage::new(scenario, search, threads, watch);
    let mut plan = Plan::new(search, scenario.seeds.first);
    loop {
        let candidates = plan.next();
        if candidates.is_empty() {
            break;
        }
        let gains = stage.gains(&candidates)?;
        plan.learn(candidates, gains);
    }
    let (tried, chosen) = plan.chosen();
    let mut found = Vec::new();
    for (family, (best, tries)) in search.strategies.iter().zip(chosen) {
        found.push(stage.measure(family, &best, tries)?);
    }
    let best = (0..found.len()).max_by(|a, b| {
        let training = |at: usize| found.get(at).map_or(f64::NEG_INFINITY, |found| found.training);
        training(*a).total_cmp(&training(*b)).then(b.cmp(a))
    });
    Ok(Some(Attack { scenario: scenario.clone(), tried, found, best: best.unwrap_or(0) }))
}

/// Simulates candidates, and their honest counterfactuals once per seed.
struct Stage<'a> {
    scenario: &'a Scenario,
    search: &'a Search,
    group: usize,
    threads: usize,
    watch: Watch<'a>,
    /// Profits of honest members, by group size and seed.
    honest: BTreeMap<(u32, u64), f64>,
    /// Number of finished simulations, and their total number.
    done: usize,
    all: usize,
}

impl<'a> Stage<'a> {
    fn new(scenario: &'a Scenario, search: &'a Search, threads: usize, watch: Watch<'a>) -> Self {
        let group = scenario.population.keys().position(|name| *name == search.population);
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
        let seeds = |seeds: Seeds| seeds.count as usize;
        let tries: usize =
            search.strategies.iter().map(|family| candidates::tries(search, family)).sum();
        stage.all = (tries + counts.len()) * seeds(search.seeds)
            + (search.strategies.len() + counts.len()) * seeds(scenario.seeds);
        stage
    }

    fn count(&self, family: &Family) -> u32 {
        let group = self.scenario.population.get(&self.search.population);
        family.count.unwrap_or_else(|| group.map_or(0, |group| group.count))
    }

    /// Simulates strategies on seeds, and the honest counterfactuals that are not yet known.
    fn play(
        &mut self,
        strategies: &[(&Family, Strategy)],
        seeds: Seeds,
    ) -> Result<Vec<Vec<Played>>, Halted> {
        let mut games: Vec<Wanted> = Vec::new();
        let mut missing: Vec<(u32, u64)> = Vec::new();
        for (family, _) in strategies {
            let count = self.count(family);
            let honest = Arc::new(self.scenario.deviating(family, Strategy::Honest));
            for seed in seeds.all() {
                if !self.honest.contains_key(&(count, seed)) && !missing.contains(&(count, seed)) {
                    missing.push((count, seed));
                    games.push((seed, Arc::clone(&honest)));
                }
            }
        }
        for (family, strategy) in strategies {
            let scenario = Arc::new(self.scenario.deviating(family, *strategy));
            games.extend(seeds.all().map(|seed| (seed, Arc::clone(&scenario))));
        }
        let (before, all, watch) = (self.done, self.all, self.watch);
        self.done += games.len();
        let watch = move |done: usize, _: usize| watch(before + done, all);
        let mut played = play_all(games, self.threads, &watch)?.into_iter();
        for (key, game) in missing.into_iter().zip(played.by_ref()) {
            self.honest.insert(key, self.profit(&game));
        }
        let each = strategies.iter().map(|_| played.by_ref().take(seeds.count as usize).collect());
        Ok(each.collect())
    }

    /// The mean gain of each candidate on the selection seeds.
    fn gains(&mut self, candidates: &[Candidate]) -> Result<Vec<f64>, Halted> {
        let search = self.search;
        let strategies: Vec<(&Family, Strategy)> = candidates
            .iter()
            .filter_map(|one| Some((search.strategies.get(one.family)?, one.strategy)))
            .collect();
        let played = self.play(&strategies, search.seeds)?;
        let gain = |((family, _), games): (&(&Family, Strategy), Vec<Played>)| {
            let fresh = self.fresh(family, &games);
            mean(fresh.iter().map(|seed| seed.profit - seed.honest))
        };
        Ok(strategies.iter().zip(played).map(gain).collect())
    }

    fn fresh(&self, family: &Family, games: &[Played]) -> Vec<Fresh> {
        let count = self.count(family);
        let one = |game: &Played| {
            let members = || game.members.iter().filter(|member| member.group == self.group);
            let sum = |of: fn(&crate::play::MemberOutcome) -> u32| {
                members().map(|member| f64::from(of(member))).sum::<f64>()
            };
            let last = game.rounds.last();
            Fresh {
                seed: game.seed,
                profit: self.profit(game),
                honest: self.honest.get(&(count, game.seed)).copied().unwrap_or(f64::NAN),
                accuracy: last.map_or(game.accuracy_before, |round| round.accuracy),
                refused: sum(|member| member.refused) / sum(|member| member.rounds).max(1.0),
            }
        };
        games.iter().map(one).collect()
    }

    /// Mean profit of a member of the group.
    fn profit(&self, game: &Played) -> f64 {
        let members = game.members.iter().filter(|member| member.group == self.group);
        mean(members.map(crate::play::MemberOutcome::profit))
    }

    /// Measures the chosen candidate of a strategy on fresh seeds.
    fn measure(
        &mut self,
        family: &Family,
        best: &Candidate,
        tries: usize,
    ) -> Result<Found, Halted> {
        let played = self.play(&[(family, best.strategy)], self.scenario.seeds)?;
        let games = played.into_iter().next().unwrap_or_default();
        let fresh = self.fresh(family, &games);
        let of =
            |figure: fn(&Fresh) -> f64| interval(&fresh.iter().map(figure).collect::<Vec<f64>>());
        Ok(Found {
            name: family.name.clone(),
            count: self.count(family),
            strategy: best.strategy,
            tries,
            training: best.gain,
            gain: of(|seed| seed.profit - seed.honest),
            profit: of(|seed| seed.profit),
            accuracy: of(|seed| seed.accuracy),
            refused: of(|seed| seed.refused),
            fresh,
        })
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { f64::NAN }
}
