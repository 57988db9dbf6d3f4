//! Looking for the best way of deviating: candidates are held against each other on seeds of their own, and what is chosen
//! is measured on fresh ones.

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

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Attack {
    /// What was asked.
    pub scenario: Scenario,
    /// Everything that was tried, in order.
    pub tried: Vec<Candidate>,
    /// Each strategy at the best numbers that were found for it, on fresh seeds, in the scenario's order.
    pub found: Vec<Found>,
    /// Which of them gained most on the seeds on which candidates were held against each other.
    pub best: usize,
}

/// A strategy at the best numbers that were found for it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// How many deviate.
    pub count: u32,
    /// With its numbers.
    pub strategy: Strategy,
    /// How many candidates were tried.
    pub tries: usize,
    /// Its gain on the seeds that chose it: too high, because it was chosen for it.
    pub training: f64,
    /// What each fresh seed gave.
    pub fresh: Vec<Fresh>,
    /// Its gain on fresh seeds.
    pub gain: Interval,
    /// Its profit on fresh seeds.
    pub profit: Interval,
    /// Accuracy of the last model on fresh seeds.
    pub accuracy: Interval,
    /// Share of its updates that were kept out or set aside.
    pub refused: Interval,
}

/// One fresh seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fresh {
    /// Which.
    pub seed: u64,
    /// Profit of a member who deviates, in florins.
    pub profit: f64,
    /// Profit of the same member, honest.
    pub honest: f64,
    /// Accuracy of the last model.
    pub accuracy: f64,
    /// Share of the deviating members' updates that were kept out or set aside.
    pub refused: f64,
}

impl Attack {
    /// What the best deviation gains on fresh seeds, and zero where none does: the smallest ε for which honesty is an
    /// ε-equilibrium, as far as what was tried can tell. Chosen without a look at these seeds, so that no luck is in it.
    #[must_use]
    pub fn epsilon(&self) -> Option<Interval> {
        let gain = self.found.get(self.best)?.gain;
        let least = |value: f64| value.max(0.0);
        let ends = gain.ends.map(|ends| Ends { low: least(ends.low), high: least(ends.high) });
        Some(Interval { mean: least(gain.mean), ends, count: gain.count })
    }
}

/// Looks for the best way of deviating on so many threads. `None` where the scenario has no search.
///
/// # Errors
/// The first game that came to a halt.
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

/// Plays candidates, and the same members honest once for each seed.
struct Stage<'a> {
    scenario: &'a Scenario,
    search: &'a Search,
    group: usize,
    threads: usize,
    watch: Watch<'a>,
    /// Profits of honest members, by how many they are and seed.
    honest: BTreeMap<(u32, u64), f64>,
    /// Games that were played, and games there will be.
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

    /// Plays strategies on seeds; those that play honestly too, where nobody has yet.
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

    /// The mean gain of each candidate on the seeds for that.
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

    /// Profit of a member of the group.
    fn profit(&self, game: &Played) -> f64 {
        let members = game.members.iter().filter(|member| member.group == self.group);
        mean(members.map(crate::play::MemberOutcome::profit))
    }

    /// The chosen candidate of a strategy, on fresh seeds.
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
