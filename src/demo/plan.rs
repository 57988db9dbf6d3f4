//! The demonstration's settings: who takes part, on what, and with how much. The task itself is `task.toml`, beside
//! this file.

use std::fmt;

use florin_protocol::{Address, Amount, TOP_K_PERMILLE_MAX, UpdateFormat};

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
pub(crate) enum Behaviour {
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
pub(crate) const PARTICIPANTS: [(&str, Behaviour); 8] = [
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
pub(crate) fn task_file(seed: u64, rounds: u32, format: UpdateFormat, arbiter: Address) -> String {
    let salt = seed & (u64::MAX >> 1); // TOML integers have 63 bits
    include_str!("task.toml")
        .replace("@SALT@", &salt.to_string())
        .replace("@ROUNDS@", &rounds.to_string())
        .replace("@FORMAT@", &written(format))
        .replace("@COHORT@", &PARTICIPANTS.len().to_string())
        .replace("@ARBITER@", &arbiter.to_string())
}

/// A format as the task file has it.
fn written(format: UpdateFormat) -> String {
    match format {
        UpdateFormat::F32 => r#"{ kind = "f32" }"#.to_owned(),
        UpdateFormat::Bf16 => r#"{ kind = "bf16" }"#.to_owned(),
        UpdateFormat::Int8 => r#"{ kind = "int8" }"#.to_owned(),
        UpdateFormat::TopK { permille } => {
            format!(r#"{{ kind = "top_k", permille = {permille} }}"#)
        }
    }
}

/// A format as the command line has it.
pub(crate) fn format(text: &str) -> Result<UpdateFormat, String> {
    let permille = |n: &u16| (1..=TOP_K_PERMILLE_MAX).contains(n);
    match (text, text.strip_prefix("top_k:")) {
        ("f32", _) => Ok(UpdateFormat::F32),
        ("bf16", _) => Ok(UpdateFormat::Bf16),
        ("int8", _) => Ok(UpdateFormat::Int8),
        (_, Some(share)) => match share.parse().ok().filter(permille) {
            Some(permille) => Ok(UpdateFormat::TopK { permille }),
            None => Err("use top_k:1 to top_k:500, thousandths of the parameters".to_owned()),
        },
        _ => Err("use f32, bf16, int8, or top_k:N".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_written_as_a_task_file_reads_it() {
        for text in ["f32", "bf16", "int8", "top_k:50"] {
            let file = task_file(1, 10, format(text).unwrap(), Address([2; 20]));
            let kind = text.split(':').next().unwrap();
            assert!(file.contains(&format!("format = {{ kind = \"{kind}\"")), "{file}");
        }
        for text in ["", "f16", "top_k", "top_k:0", "top_k:501", "top_k:x", "int8:1"] {
            assert!(format(text).is_err(), "{text}");
        }
    }
}
