//! The demonstration's settings: the participants, their data and their balances. The task itself
//! is in `task.toml` next to this file.

use std::fmt;

use florin_protocol::{Amount, UpdateFormat};

use crate::commands::now;
use crate::task_file;

/// Default number of rounds.
pub const ROUNDS: u32 = crate::cli::DEMO_ROUNDS;

/// Fraction of the rows for the buyer's holdout: 755 rows, of which each of ten rounds uses 75.
pub(super) const HOLDOUT: f64 = 0.42;
/// Fraction of the rows for the test set, which no party of the market uses; it measures the
/// accuracy before and after.
pub(super) const TEST: f64 = 0.15;
/// Fraction of the rows for the dishonest participants.
pub(super) const NOT_HONEST: f64 = 0.13;
/// Dirichlet concentration of the shards: with 0.5 most participants have many rows of a few digits
/// and few rows of the others.
pub(super) const ALPHA: f64 = 0.5;
/// Minimum number of rows per shard.
pub(super) const ROWS_MIN: usize = 60;

/// The behaviour of a participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Trains on its own rows.
    Honest,
    /// Submits random numbers.
    Noise,
    /// Trains on wrong labels.
    Flip,
    /// Submits the unchanged model.
    Idle,
}

impl Behaviour {
    /// The value of `florin participate --experiment`.
    pub(crate) const fn experiment(self) -> Option<&'static str> {
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
pub const PARTICIPANTS: [(&str, Behaviour); 8] = [
    ("anna", Behaviour::Honest),
    ("boris", Behaviour::Honest),
    ("chen", Behaviour::Honest),
    ("dara", Behaviour::Honest),
    ("emil", Behaviour::Honest),
    ("nils", Behaviour::Noise),
    ("flora", Behaviour::Flip),
    ("ida", Behaviour::Idle),
];

/// Initial balance of the buyer.
pub(super) const BUYER_FLN: u64 = 5_000;
/// Initial balance of each participant.
pub(super) const PARTICIPANT_FLN: u64 = 100;
/// Initial balance of the provider.
pub(super) const PROVIDER_FLN: u64 = 100;

/// Converts whole florins to an amount.
pub(super) fn florins(whole: u64) -> Amount {
    const UNITS_PER_FLORIN: u128 = 1_000_000_000_000_000_000;
    Amount::from_units(u128::from(whole) * UNITS_PER_FLORIN)
}

/// The task file of the demonstration: the template with the settings of `task.toml` next to this
/// file, whose placeholders are filled in.
pub fn task_file(seed: u64, rounds: u32, format: UpdateFormat) -> String {
    let salt = seed & (u64::MAX >> 1); // TOML integers have 63 bits
    let settings = include_str!("task.toml")
        .replace("@SALT@", &salt.to_string())
        .replace("@EXPIRES@", &task_file::half_year_date(now()))
        .replace("@ROUNDS@", &rounds.to_string())
        .replace("@FORMAT@", &format_toml(format))
        .replace("@COHORT@", &PARTICIPANTS.len().to_string());
    let settings = task_file::overlay(&settings).expect("task.toml is valid TOML");
    format!("# The demonstration's task, written by `florin demo`.\n{settings}")
}

/// Formats an update format as in a task file.
fn format_toml(format: UpdateFormat) -> String {
    match format {
        UpdateFormat::F32 => r#"{ kind = "f32" }"#.to_owned(),
        UpdateFormat::Bf16 => r#"{ kind = "bf16" }"#.to_owned(),
        UpdateFormat::Int8 => r#"{ kind = "int8" }"#.to_owned(),
        UpdateFormat::TopK { permille } => {
            format!(r#"{{ kind = "top_k", permille = {permille} }}"#)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_format_is_written_as_the_task_file_reads_it() {
        let formats = [
            (UpdateFormat::F32, "f32"),
            (UpdateFormat::Bf16, "bf16"),
            (UpdateFormat::Int8, "int8"),
            (UpdateFormat::TopK { permille: 50 }, "top_k"),
        ];
        for (format, kind) in formats {
            let file = task_file(1, 10, format);
            let file: toml::Table = toml::from_str(&file).unwrap();
            assert_eq!(file["rounds"]["format"]["kind"].as_str(), Some(kind));
        }
    }
}
