//! How a scenario is played: by real training, or by curves fitted to it.

use serde::{Deserialize, Serialize};

/// How a scenario is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// Everybody trains, and every round is valued: up to 10,000 members.
    #[default]
    Real,
    /// Scores are drawn from curves that were fitted to small real games: up to 1,000,000 members.
    Surrogate,
}

impl Speed {
    /// Whether everybody really trains.
    #[must_use]
    pub const fn is_real(&self) -> bool {
        matches!(self, Self::Real)
    }
}

/// The small real games that a surrogate is fitted to, and held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Small {
    /// Members of a small game, in the proportions of the whole population, but at least four of a group.
    pub members: u32,
    /// Rounds of a small game, if the scenario has more.
    pub rounds: u32,
    /// Seeds whose games the curves are fitted to: each is played with a quarter and with half of the members in a
    /// round.
    pub seeds: u32,
    /// Other seeds, whose games with all members in a round the curves are held against.
    pub held_out: u32,
    /// Largest error against those games that is let pass: of the loss beside what all rounds take off it, of the share
    /// of right rows, and of a group's earnings beside those of the group that earns most.
    pub error_max: f64,
}

impl Default for Small {
    fn default() -> Self {
        Self { members: 48, rounds: 100, seeds: 3, held_out: 16, error_max: 0.15 }
    }
}
