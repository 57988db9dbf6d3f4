//! Runs an experiment: all its seeds, and each of them with every dishonest group honest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use florin_learning::parallel_map;

use crate::batch::{ProgressFn, SimulationJob, run_batch};
use crate::error::SimulationFailed;
use crate::measure::{MeasureValues, measure_seed};
use crate::outcome::SimulationOutcome;
use crate::results::Results;
use crate::scenario::Scenario;
use crate::strategy::Strategy;
use crate::surrogate::{Fit, MarketFit, SurrogateSimulation};

/// Simulates all seeds of a scenario on up to `threads` threads. `watch` receives the number of
/// finished simulations and the total.
///
/// # Errors
/// The first simulation that failed; no further simulation starts after it.
pub fn run_experiment(
    scenario: &Scenario,
    threads: usize,
    watch: ProgressFn<'_>,
) -> Result<Results, SimulationFailed> {
    if !scenario.mode.is_real() {
        return run_surrogate(scenario, threads, watch);
    }
    let seeds = scenario.seeds;
    // Honest counterfactual: each dishonest group is also simulated as honest, with the same seeds.
    let as_it_is = Arc::new(scenario.clone());
    let honest = honest_counterfactuals(scenario);
    let mut games: Vec<SimulationJob> = Vec::new();
    for seed in seeds.all() {
        games.push((seed, Arc::clone(&as_it_is)));
        games.extend(honest.iter().map(|(_, changed)| (seed, Arc::clone(changed))));
    }
    let mut outcomes = run_batch(games, threads, watch)?.into_iter();
    let (mut played, mut all) = (Vec::new(), Vec::<MeasureValues>::new());
    while let Some(game) = outcomes.next() {
        let otherwise = honest.iter().map(|(group, _)| *group).zip(outcomes.by_ref());
        all.push(measure_seed(&game, &otherwise.collect()));
        played.push(game);
    }
    Ok(Results::from_outcomes(scenario, played, all, Vec::new()))
}

/// Fits the curves and simulates all seeds of a scenario; `watch` receives the number of finished
/// simulations and the total.
///
/// # Errors
/// The first simulation that failed: of the scenario, or one to which its curves are fitted.
fn run_surrogate(
    scenario: &Scenario,
    threads: usize,
    watch: ProgressFn<'_>,
) -> Result<Results, SimulationFailed> {
    let mut markets = vec![(None, Arc::new(scenario.clone()))];
    markets.extend(
        honest_counterfactuals(scenario).into_iter().map(|(at, changed)| (Some(at), changed)),
    );
    let all = markets.len() * scenario.seeds.count as usize;
    watch(0, all);
    let fits = markets.iter().map(|(_, market)| Fit::new(market, threads));
    let fits = fits.collect::<Result<Vec<Fit>, SimulationFailed>>()?;
    // Seed by seed; for each seed the markets in their order.
    let games = scenario.seeds.all().flat_map(|seed| {
        markets.iter().zip(&fits).map(move |((_, market), fit)| (seed, market, fit))
    });
    // One simulation per thread is faster than several threads in one simulation.
    let inner = (threads / all).max(1);
    let done = AtomicUsize::new(0);
    let play = |(seed, market, fit): (u64, &Arc<Scenario>, &Fit)| {
        let played = SurrogateSimulation::new(market, fit, seed, inner).run();
        watch(done.fetch_add(1, Ordering::Relaxed).saturating_add(1), all);
        played.map_err(|error| SimulationFailed { seed, error: error.into() })
    };
    let outcomes = parallel_map(threads, games.collect(), play);
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let lowest: Vec<f64> = (0..markets.len())
        .map(|market| {
            let losses = outcomes.iter().skip(market).step_by(markets.len());
            losses.flat_map(|(_, losses)| losses).copied().fold(f64::INFINITY, f64::min)
        })
        .collect();
    let mut outcomes = outcomes.into_iter().map(|(game, _)| game);
    let (mut played, mut all) = (Vec::new(), Vec::new());
    while let Some(game) = outcomes.next() {
        let groups = markets.iter().filter_map(|(made_honest, _)| *made_honest);
        let honest: BTreeMap<usize, SimulationOutcome> = groups.zip(outcomes.by_ref()).collect();
        all.push(measure_seed(&game, &honest));
        played.push(game);
    }
    let fitted =
        markets.iter().zip(fits).zip(lowest).map(|(((made_honest, _), fit), lowest_loss)| {
            let made_honest =
                made_honest.and_then(|at| scenario.population.keys().nth(at).cloned());
            MarketFit { made_honest, fit, lowest_loss }
        });
    Ok(Results::from_outcomes(scenario, played, all, fitted.collect()))
}

/// The honest counterfactuals of a scenario: for each dishonest group, its index among the group
/// names and the scenario with that group honest.
pub(crate) fn honest_counterfactuals(scenario: &Scenario) -> Vec<(usize, Arc<Scenario>)> {
    let others = scenario.population.iter().enumerate();
    let others = others.filter(|(_, (_, group))| !group.strategy.is_honest());
    let made_honest = |(at, (name, _)): (usize, (&String, _))| {
        let mut changed = scenario.clone();
        if let Some(group) = changed.population.get_mut(name) {
            group.strategy = Strategy::Honest;
        }
        (at, Arc::new(changed))
    };
    others.map(made_honest).collect()
}
