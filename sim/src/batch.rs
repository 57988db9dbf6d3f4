//! Runs many simulations in parallel and returns their outcomes in input order; the first failure
//! stops the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use florin_learning::parallel_map;

use crate::error::{SimError, SimulationFailed};
use crate::outcome::SimulationOutcome;
use crate::population::Population;
use crate::scenario::Scenario;
use crate::simulation::Simulation;

/// Simulates `scenario` with one seed in the scenario's mode, on up to `threads` threads. The
/// number of threads does not change the outcome.
///
/// # Errors
/// [`SimError`].
pub fn simulate(
    scenario: &Scenario,
    seed: u64,
    threads: usize,
) -> Result<SimulationOutcome, SimError> {
    if !scenario.mode.is_real() {
        return crate::surrogate::play(scenario, seed, threads);
    }
    let mut game = Simulation::new(scenario, seed, Population::draw(scenario, seed)?)?;
    while game.wait_for_round()? {
        game.run_round(threads)?;
        game.measure_accuracy()?;
    }
    game.finish()
}

/// One simulation to run: a seed and its scenario.
pub(crate) type SimulationJob = (u64, Arc<Scenario>);

/// Progress callback: receives the number of finished simulations and the total.
pub type ProgressFn<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Runs all simulations on up to `threads` threads. After a failure no further simulation starts.
pub(crate) fn run_batch(
    games: Vec<SimulationJob>,
    threads: usize,
    watch: ProgressFn<'_>,
) -> Result<Vec<SimulationOutcome>, SimulationFailed> {
    // One simulation per thread is faster than several threads in one simulation.
    let inner = (threads / games.len().max(1)).max(1);
    run_all(games, threads, watch, |(seed, scenario): SimulationJob| {
        simulate(&scenario, seed, inner).map_err(|error| SimulationFailed { seed, error })
    })
}

/// Plays all jobs on up to `threads` threads, with results in order. After a failure no further job starts.
pub(crate) fn run_all<J: Send, R: Send, E: Send>(
    jobs: Vec<J>,
    threads: usize,
    watch: ProgressFn<'_>,
    play: impl Fn(J) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let (all, done, halted) = (jobs.len(), AtomicUsize::new(0), AtomicBool::new(false));
    let one = |job: J| {
        if halted.load(Ordering::Relaxed) {
            return None;
        }
        let played = play(job);
        if played.is_err() {
            halted.store(true, Ordering::Relaxed);
        }
        watch(done.fetch_add(1, Ordering::Relaxed).saturating_add(1), all);
        Some(played)
    };
    // A job that did not start comes after a failure, and `collect` stops at the failure.
    parallel_map(threads, jobs, one).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failed_simulation_stops_the_rest_and_reports_its_seed() {
        let text = "name = 'a'\nquestion = 'Does it stop?'\nrounds = 1\n\
            [population.honest]\ncount = 2\nrows = [20, 20]";
        let mut scenario = Scenario::read(text, &[]).unwrap();
        // The engine refuses a task with no rounds; `play` does not check the scenario again.
        scenario.rounds = 0;
        let scenario = Arc::new(scenario);
        let begun = AtomicUsize::new(0);
        let watch = |_, _| {
            begun.fetch_add(1, Ordering::Relaxed);
        };
        let games = (1..=50).map(|seed| (seed, Arc::clone(&scenario))).collect();
        let halted = run_batch(games, 1, &watch).unwrap_err();
        assert!(halted.to_string().starts_with("seed 1: "), "{halted}");
        assert_eq!(begun.load(Ordering::Relaxed), 1, "no other simulation starts");
    }
}
