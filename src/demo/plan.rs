//! The demonstration's settings: who takes part, on what, and with how much. The task itself is `task.toml`, beside
//! this file.

use std::fmt;

use florin_protocol::{Address, Amount};

/// Seed where none is given.
pub(crate) const SEED: u64 = 1;
/// Rounds where no number is given.
pub(crate) const ROUNDS: u32 = 10;

/// Share of the digits' rows that the buyer keeps to judge updates by: 755, of which each of ten rounds uses up 75.
pub(super) const HOLDOUT: f64 = 0.42;
/// Share of the rows that nobody in the market sees: the accuracy before and after is measured on them.
pub(super) const TEST: f64 = 0.15;
/// Share of the rows that lies with participants who do not work honestly.
pub(super) const NOT_HONEST: f64 = 0.13;
/// How unequal the shards are (Dirichlet concentration): 0.5 gives most participants a few digits and hardly any others.
pub(super) const ALPHA: f64 = 0.5;
/// Fewest rows of a shard.
pub(super) const ROWS_MIN: usize = 60;

/// How a participant behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Trains on its own rows.
    Honest,
    /// Sends random numbers.
    Noise,
    /// Trains on wrong labels.
    Flip,
    /// Sends the model back as it came.
    Idle,
}

impl Behaviour {
    /// What `florin participate --experiment` calls it.
    pub(super) const fn experiment(self) -> Option<&'static str> {
        match self {
            Self::Honest => None,
            Self::Noise => Some("noise"),
            Self::Flip => Some("flip"),
            Self::Idle => Some("idle"),
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Honest => "honest",
            Self::Noise => "random noise",
            Self::Flip => "flipped labels",
            Self::Idle => "unchanged model",
        })
    }
}

/// The participants, in the order of the shards.
pub(super) const PARTICIPANTS: [(&str, Behaviour); 8] = [
    ("anna", Behaviour::Honest),
    ("boris", Behaviour::Honest),
    ("chen", Behaviour::Honest),
    ("dara", Behaviour::Honest),
    ("emil", Behaviour::Honest),
    ("nils", Behaviour::Noise),
    ("flora", Behaviour::Flip),
    ("ida", Behaviour::Idle),
];

/// What the buyer begins with.
pub(super) const BUYER_FLN: u64 = 5_000;
/// What each participant begins with.
pub(super) const PARTICIPANT_FLN: u64 = 100;
/// What the provider begins with.
pub(super) const PROVIDER_FLN: u64 = 100;

/// An amount of whole florins.
pub(super) fn florins(whole: u64) -> Amount {
    const UNITS_PER_FLORIN: u128 = 1_000_000_000_000_000_000;
    Amount::from_units(u128::from(whole) * UNITS_PER_FLORIN)
}

/// The task file that the demonstration's buyer publishes: `task.toml` beside this file, filled in.
pub(super) fn task_file(seed: u64, rounds: u32, arbiter: Address) -> String {
    let salt = seed & (u64::MAX >> 1); // TOML integers have 63 bits
    include_str!("task.toml")
        .replace("@SALT@", &salt.to_string())
        .replace("@ROUNDS@", &rounds.to_string())
        .replace("@COHORT@", &PARTICIPANTS.len().to_string())
        .replace("@ARBITER@", &arbiter.to_string())
}
