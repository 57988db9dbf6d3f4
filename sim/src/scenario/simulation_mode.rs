//! Simulation mode: real training, or a surrogate fitted to it.

use serde::{Deserialize, Serialize};

use super::Scenario;

/// Minimum number of members of a group in a small simulation: fewer give no estimate of the
/// group's spread.
const GROUP_MIN: u32 = 4;
/// Minimum cohort size of a small simulation, if the scenario's minimum is at least as large.
const COHORT_MIN: u32 = 2;

/// How members are simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimulationMode {
    /// Every member trains and every round is valued: up to 10,000 members.
    #[default]
    Real,
    /// Scores are drawn from curves fitted to small real simulations: up to 1,000,000 members.
    Surrogate,
}

impl SimulationMode {
    /// Whether every member really trains.
    #[must_use]
    pub const fn is_real(&self) -> bool {
        matches!(self, Self::Real)
    }
}

/// The small real simulations to which a surrogate is fitted, and with which it is validated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SurrogateSettings {
    /// Members of a small simulation, in the proportions of the whole population, but at least four
    /// of a group.
    pub members: u32,
    /// Maximum number of rounds of a small simulation.
    pub rounds: u32,
    /// Number of training seeds, to which the curves are fitted: each is simulated with a quarter
    /// and with half of the members in a cohort.
    pub training_seeds: u32,
    /// Number of held-out seeds, with all members in a cohort, on which the curves are validated.
    pub held_out: u32,
    /// Largest permitted error on the held-out seeds: of the loss relative to its total decrease,
    /// of the accuracy, and of a group's earnings relative to those of the group that earns most.
    pub error_max: f64,
}

impl Default for SurrogateSettings {
    fn default() -> Self {
        Self { members: 48, rounds: 100, training_seeds: 3, held_out: 16, error_max: 0.15 }
    }
}

impl Scenario {
    /// The scenario at the size of a small real simulation in which a fraction `part` of all
    /// members is in a cohort.
    pub(crate) fn scaled_down(&self, part: f64) -> Self {
        // Devices decide whether an update arrives, and nothing about its score.
        let mut small = self.clone().without_devices();
        small.mode = SimulationMode::Real;
        // A surrogate has no rows on which its model could train.
        small.task.baseline_epochs = 0;
        small.criteria.clear();
        let all: u64 = self.population.values().map(|group| u64::from(group.count)).sum();
        let wanted = f64::from(self.surrogate.members);
        let mut members = 0;
        for group in small.population.values_mut() {
            let share = f64::from(group.count) / all as f64;
            let count = ((share * wanted).round() as u32).max(GROUP_MIN);
            group.count = count.min(group.count);
            members += group.count;
        }
        small.task.cohort = ((f64::from(members) * part).round() as u32).max(2);
        // The minimum shrinks with the cohort, but not below the minimum of any round.
        let part = f64::from(small.task.cohort) / f64::from(self.task.cohort.max(1));
        let least = (f64::from(self.task.cohort_min) * part) as u32;
        small.task.cohort_min = small.task.cohort_min.min(least.max(COHORT_MIN));
        small.rounds = small.rounds.min(self.surrogate.rounds);
        small.learning.holdout_rows =
            small.learning.holdout_rows_per_round.saturating_mul(small.rounds);
        small
    }
}
