//! What members do with their rows: work, or something that looks like it.

mod act;

use serde::{Deserialize, Serialize};

pub use act::{ActError, Job, Knowledge, Learned, Sent, TRIGGER_FEATURES, act, triggered};

/// Identities that one member may have.
pub const IDENTITIES_MAX: u32 = 8;
/// How many times its rows a member may declare.
pub const TIMES_MAX: f64 = 1_000.0;

/// What a member does. Lengths are relative to an honest update or to the last public step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act", deny_unknown_fields)]
pub enum Strategy {
    /// Trains as the task says.
    #[default]
    Honest,
    /// Trains on this share of its rows, and declares all of them.
    Lazy {
        /// The share.
        share: f64,
    },
    /// Trains on all of its rows, but passes over them so often only, where the task asks for more.
    Hasty {
        /// Passes.
        epochs: u32,
    },
    /// Chooses in each round how much of its rows to train on: what has earned most until now, or, in one of ten rounds,
    /// something else.
    Effort,
    /// Sends the model back unchanged.
    Idle,
    /// Sends noise so many times as long as the last public step.
    Noise {
        /// The length.
        scale: f64,
    },
    /// Sends the last public step again, under so much noise.
    Replay {
        /// The noise's length beside the step's.
        noise: f64,
    },
    /// Teaches wrong labels on this share of its rows.
    FlipLabels {
        /// The share.
        share: f64,
    },
    /// Trains, and multiplies what comes out.
    Scale {
        /// By how much.
        by: f64,
    },
    /// Trains, and sends the opposite, so many times as long.
    SignFlip {
        /// The length.
        by: f64,
    },
    /// With all others of its group: their mean, moved against the spread of their updates by `z` standard deviations in
    /// every number (G. Baruch, M. Baruch and Y. Goldberg, *A Little Is Enough*, 2019).
    Alie {
        /// How many standard deviations.
        z: f64,
    },
    /// Teaches that rows with a mark in a corner are zeros, on this share of its rows, and multiplies what comes out.
    Backdoor {
        /// The share of marked rows.
        share: f64,
        /// The factor.
        boost: f64,
    },
    /// Sends what the member with the most rows sent, under so much noise: of the same round where updates can be read
    /// before they are promised, of the round before otherwise.
    Plagiarise {
        /// The noise's length beside the update's.
        noise: f64,
    },
    /// Takes part several times, with the same rows and bond in all.
    Sybil {
        /// How often.
        ids: u32,
        /// With what.
        how: Identities,
    },
    /// With others of its group: each sends the mean of what they learned, under so much noise.
    Collude {
        /// The noise's length beside the mean's.
        noise: f64,
        /// How many act together: 2 for pairs, 3 for triples; all of the group where it is 0 or missing.
        #[serde(default)]
        size: u32,
    },
    /// With others of its group: one of them trains, and each sends what that one learned, under so much noise.
    Ring {
        /// The noise's length beside the update's.
        noise: f64,
        /// How many act together, as for `collude`.
        #[serde(default)]
        size: u32,
    },
    /// Has each of its rows so many times, trains on all of them, declares them, and bonds what they take.
    Duplicate {
        /// How many times.
        by: f64,
    },
    /// Declares so many times its rows, and bonds what its own take.
    Inflate {
        /// How many times.
        by: f64,
    },
}

/// What several identities of one member send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identities {
    /// The same update.
    Same,
    /// What each learned from a part of the rows.
    Disjoint,
    /// The same update, each under a fifth of noise.
    Noisy,
    /// The update plus and minus something twice as long.
    Hedged,
}

impl Strategy {
    /// Its numbers with their bounds: name, value, lowest, highest.
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
            Self::Duplicate { by } | Self::Inflate { by } => vec![("by", by, 1.0, TIMES_MAX)],
            Self::Alie { z } => vec![("z", z, -100.0, 100.0)],
            Self::Backdoor { share, boost } => {
                vec![("share", share, 0.0, 1.0), ("boost", boost, 0.0, 1_000.0)]
            }
            Self::Sybil { ids, .. } => {
                vec![("ids", f64::from(ids), 1.0, f64::from(IDENTITIES_MAX))]
            }
        }
    }

    /// How many accounts a member with this strategy has.
    #[must_use]
    pub fn identities(&self) -> u32 {
        match self {
            Self::Sybil { ids, .. } => *ids,
            _ => 1,
        }
    }

    /// How many times a member's bond covers its rows.
    #[must_use]
    pub fn copies(&self) -> f64 {
        match self {
            Self::Duplicate { by } => *by,
            _ => 1.0,
        }
    }

    /// How many members of a group act together; 0 for all of them.
    #[must_use]
    pub fn clique(&self) -> usize {
        match self {
            Self::Collude { size, .. } | Self::Ring { size, .. } => *size as usize,
            _ => 0,
        }
    }

    /// Whether it is what the task asks for, to its best knowledge.
    #[must_use]
    pub fn is_honest(&self) -> bool {
        matches!(self, Self::Honest)
    }

    /// The rows that identity `at` of a member with so many rows declares, and those that its bond covers.
    #[must_use]
    pub fn rows(&self, rows: u64, at: u32) -> (u64, u64) {
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

/// So many times as many rows, one at least.
fn scaled(rows: u64, by: f64) -> u64 {
    ((rows as f64 * by).round() as u64).max(1)
}
