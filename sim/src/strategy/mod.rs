//! Strategies of members: honest work and the deviations from it.

mod updates;

use serde::{Deserialize, Serialize};

pub use updates::{
    Knowledge, MemberTraining, MemberTrainingError, SentUpdate, TRIGGER_FEATURES, TrainingResult,
    triggered_rows, updates_to_send,
};

/// Maximum number of identities per member.
pub const IDENTITIES_MAX: u32 = 8;
/// Maximum factor by which a member may inflate its declared rows.
pub const INFLATION_MAX: f64 = 1_000.0;

/// The strategy of a member. Norms are relative to the norm of an honest update or of the last
/// public step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act", deny_unknown_fields)]
pub enum Strategy {
    /// Trains as the task specifies.
    #[default]
    Honest,
    /// Trains on a fraction of its rows, but declares all of them.
    Lazy {
        /// The fraction.
        share: f64,
    },
    /// Trains on all of its rows, but for fewer epochs than the task specifies.
    Hasty {
        /// Number of epochs.
        epochs: u32,
    },
    /// Chooses in each round the fraction of rows to train on: the fraction with the highest mean
    /// profit so far or, in one of ten rounds, a random one.
    Effort,
    /// Sends a zero update.
    Idle,
    /// Sends noise with `scale` times the norm of the last public step.
    Noise {
        /// The factor.
        scale: f64,
    },
    /// Sends the last public step again, with added noise.
    Replay {
        /// Norm of the noise, relative to the step.
        noise: f64,
    },
    /// Trains with flipped labels on a fraction of its rows.
    FlipLabels {
        /// The fraction.
        share: f64,
    },
    /// Trains, and multiplies the update by a factor.
    Scale {
        /// The factor.
        by: f64,
    },
    /// Trains, and multiplies the update by a negative factor.
    SignFlip {
        /// The absolute value of the factor.
        by: f64,
    },
    /// With all others of its group: sends the mean of their updates minus `z` standard deviations
    /// in every component (G. Baruch, M. Baruch and Y. Goldberg, *A Little Is Enough*, 2019).
    Alie {
        /// Number of standard deviations.
        z: f64,
    },
    /// Backdoor attack: labels a fraction of its rows, marked with a trigger, as zeros, and
    /// multiplies the update by a factor.
    Backdoor {
        /// The fraction of marked rows.
        share: f64,
        /// The factor.
        boost: f64,
    },
    /// Copies the update of the honest member with the most rows, with added noise: the update of
    /// the same round if updates are readable before the commit, otherwise the one of the previous
    /// round.
    Plagiarise {
        /// Norm of the noise, relative to the update.
        noise: f64,
    },
    /// Sybil attack: takes part with several identities, which share its rows and bond.
    Sybil {
        /// Number of identities.
        ids: u32,
        /// The relation of their updates.
        how: Identities,
    },
    /// Colludes with others of its group: each sends the mean of their updates, with added noise.
    Collude {
        /// Norm of the noise, relative to the mean.
        noise: f64,
        /// Number of colluders: 2 for pairs, 3 for triples; the whole group if 0 or missing.
        #[serde(default)]
        size: u32,
    },
    /// Colludes with others of its group: one of them trains, and each sends that update with added
    /// noise.
    Ring {
        /// Norm of the noise, relative to the update.
        noise: f64,
        /// Number of colluders, as for `collude`.
        #[serde(default)]
        size: u32,
    },
    /// Duplicates each of its rows, trains on all copies, declares them and bonds for them.
    Duplicate {
        /// Number of copies of each row.
        by: f64,
    },
    /// Declares a multiple of its rows, but bonds only for its own.
    Inflate {
        /// The factor.
        by: f64,
    },
}

/// The updates of the identities of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identities {
    /// All send the same update.
    Same,
    /// Each sends the update from training on its own part of the rows.
    Disjoint,
    /// All send the same update, each with added noise of a fifth of its norm.
    Noisy,
    /// Pairs send the update plus and minus a random vector of twice its norm.
    Hedged,
}

impl Strategy {
    /// Its parameters with their bounds: name, value, minimum, maximum.
    #[must_use]
    pub fn bounds(&self) -> Vec<(&'static str, f64, f64, f64)> {
        match *self {
            Self::Honest | Self::Effort | Self::Idle => Vec::new(),
            Self::Lazy { share } | Self::FlipLabels { share } => vec![("share", share, 0.0, 1.0)],
            Self::Noise { scale } => vec![("scale", scale, 0.0, 1_000.0)],
            Self::Hasty { epochs } => vec![("epochs", f64::from(epochs), 1.0, 1_000.0)],
            Self::Replay { noise } | Self::Plagiarise { noise } => {
                vec![("noise", noise, 0.0, 100.0)]
            }
            Self::Collude { noise, size } | Self::Ring { noise, size } => {
                vec![("noise", noise, 0.0, 100.0), ("size", f64::from(size), 0.0, 10_000.0)]
            }
            Self::Scale { by } | Self::SignFlip { by } => vec![("by", by, 0.0, 1_000.0)],
            Self::Duplicate { by } | Self::Inflate { by } => vec![("by", by, 1.0, INFLATION_MAX)],
            Self::Alie { z } => vec![("z", z, -100.0, 100.0)],
            Self::Backdoor { share, boost } => {
                vec![("share", share, 0.0, 1.0), ("boost", boost, 0.0, 1_000.0)]
            }
            Self::Sybil { ids, .. } => {
                vec![("ids", f64::from(ids), 1.0, f64::from(IDENTITIES_MAX))]
            }
        }
    }

    /// Number of accounts of a member with this strategy.
    #[must_use]
    pub fn identities(&self) -> u32 {
        match self {
            Self::Sybil { ids, .. } => *ids,
            _ => 1,
        }
    }

    /// Number of copies of each row that the member's bond covers.
    #[must_use]
    pub fn row_copies(&self) -> f64 {
        match self {
            Self::Duplicate { by } => *by,
            _ => 1.0,
        }
    }

    /// Number of colluders in a group; 0 for the whole group.
    #[must_use]
    pub fn colluder_count(&self) -> usize {
        match self {
            Self::Collude { size, .. } | Self::Ring { size, .. } => *size as usize,
            _ => 0,
        }
    }

    /// Whether the member does what the task specifies, to the best of its knowledge.
    #[must_use]
    pub fn is_honest(&self) -> bool {
        matches!(self, Self::Honest)
    }

    /// The number of rows that identity `at` of a member with `rows` rows declares, and the number
    /// that its bond covers.
    #[must_use]
    pub fn declared_and_bonded_rows(&self, rows: u64, at: u32) -> (u64, u64) {
        match self {
            Self::Sybil { ids, .. } => {
                let (ids, at) = (u64::from(*ids), u64::from(at));
                let part = (rows * (at + 1) / ids - rows * at / ids).max(1);
                (part, part)
            }
            Self::Duplicate { by } => (scaled(rows, *by), scaled(rows, *by)),
            Self::Inflate { by } => (scaled(rows, *by), rows),
            _ => (rows, rows),
        }
    }
}

/// `rows` times `by`, rounded, and at least one.
fn scaled(rows: u64, by: f64) -> u64 {
    ((rows as f64 * by).round() as u64).max(1)
}
