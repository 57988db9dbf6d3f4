//! The task that ended before the simulated one: played first, by the honest groups alone.

use crate::error::SimError;
use crate::member_updates::PublicTask;
use crate::population::Population;
use crate::scenario::Scenario;

use super::Simulation;

/// Difference between the seeds of the two tasks, so that their rows and models differ.
const SEED_DISTANCE: u64 = 1 << 32;

/// Plays the earlier task of a scenario to its end; `None` if the scenario has none.
pub(super) fn play(scenario: &Scenario, seed: u64) -> Result<Option<PublicTask>, SimError> {
    if scenario.task.earlier_task.is_none() {
        return Ok(None);
    }
    let mut earlier = scenario.clone();
    earlier.task.earlier_task = None;
    earlier.population.retain(|_, group| group.strategy.is_honest());
    let seed = seed.wrapping_add(SEED_DISTANCE);
    let population = Population::draw(&earlier, seed)?;
    let mut simulation = Simulation::new(&earlier, seed, population)?;
    let mut first_update = None;
    while simulation.wait_for_round()? {
        simulation.run_round(1)?;
        first_update = first_update.or_else(|| simulation.copy_targets.first().cloned());
    }
    let last_model = simulation.market.newest_model()?;
    Ok(first_update.map(|target| PublicTask { first_update: target.best, last_model }))
}
