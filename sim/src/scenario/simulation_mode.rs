//! Simulation mode: real training, or a surrogate fitted to it.

use serde::{Deserialize, Serialize};

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
