//! Strategies of members: honest work and the deviations from it.

use serde::{Deserialize, Serialize};

/// Maximum number of identities per member.
pub const IDENTITIES_MAX: u32 = 16;
/// Maximum number of rounds by which a copied update or a replayed step may be older than the latest
/// one.
pub const ROUNDS_BACK_MAX: u32 = 8;
/// Maximum factor by which a member may inflate its declared rows.
pub const INFLATION_MAX: f64 = 1_000.0;

/// The strategy of a member. Norms are relative to the norm of an honest update or of the last
/// public step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Strategy {
    /// Trains as the task specifies.
    #[default]
    Honest,
    /// Trains on a fraction of its rows, but declares all of them.
    Lazy {
        /// The fraction.
        fraction: f64,
    },
    /// Trains on all of its rows, but for fewer epochs than the task specifies.
    FewerEpochs {
        /// Number of epochs.
        epochs: u32,
    },
    /// Trains as the task specifies, but only in the faster half of the rounds for which it is selected, by the expected
    /// time of the cohort: it takes the others' places in vain.
    Hoard,
    /// Chooses in each round the fraction of rows to train on: the fraction with the highest mean
    /// profit so far or, in one of ten rounds, a random one.
    AdaptiveEffort,
    /// Sends a zero update.
    ZeroUpdate,
    /// Sends noise with `scale` times the norm of the last public step.
    Noise {
        /// The factor.
        scale: f64,
    },
    /// Sends a public step again, with added noise.
    Replay {
        /// Norm of the noise, relative to the step.
        noise: f64,
        /// Which step: 0 for the last one, 1 for the one before it, and so on.
        #[serde(default)]
        rounds_back: u32,
    },
    /// Trains in its first round, and sends that update again in every later round.
    Repeat,
    /// Trains with flipped labels on a fraction of its rows.
    FlipLabels {
        /// The fraction.
        fraction: f64,
    },
    /// Trains, and multiplies the update by a factor.
    Scale {
        /// The factor.
        factor: f64,
    },
    /// Trains, and multiplies the update by a negative factor.
    SignFlip {
        /// The absolute value of the factor.
        factor: f64,
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
        fraction: f64,
        /// The factor.
        boost: f64,
    },
    /// Copies the update of the honest member with the most rows, with added noise: the update of
    /// the same round if updates are readable before the commit, otherwise the one of the previous
    /// round.
    Copy {
        /// Norm of the noise, relative to the update.
        noise: f64,
        /// By how many rounds the copied update is older than the latest readable one.
        #[serde(default)]
        rounds_back: u32,
        /// The update or step that is mixed into the copy.
        #[serde(default)]
        mix: CopyMix,
    },
    /// Sybil attack: takes part with several identities, which fraction its rows and bond.
    Sybil {
        /// Number of identities.
        identities: u32,
        /// The relation of their updates.
        updates: SybilUpdates,
    },
    /// Sybil attack with a bond for all rows by each identity: the bond is multiplied.
    Replicate {
        /// Number of identities.
        identities: u32,
        /// The relation of their updates.
        updates: SybilUpdates,
    },
    /// Sybil attack with two identities, which send the update plus and minus a random vector.
    Hedge {
        /// Norm of the random vector, relative to the update.
        factor: f64,
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
    SharedTraining {
        /// Norm of the noise, relative to the update.
        noise: f64,
        /// Number of colluders, as for `collude`.
        #[serde(default)]
        size: u32,
    },
    /// Trains on the holdout rows that earlier rounds disclosed, in place of rows of its own.
    TrainOnDisclosed,
    /// The buyer with other identities: each trains on the whole holdout, and together they declare
    /// and bond a multiple of the member's rows.
    TrainOnHoldout {
        /// Number of identities.
        identities: u32,
        /// The factor.
        factor: f64,
    },
    /// Sends public bytes of an earlier task in each round, in place of rows of its own.
    CopyEarlierTask {
        /// The copied bytes.
        copies: EarlierBytes,
    },
    /// Duplicates each of its rows, trains on all copies, declares them and bonds for them.
    DuplicateRows {
        /// Number of copies of each row.
        factor: f64,
    },
    /// Declares a multiple of its rows, but bonds only for its own.
    InflateRows {
        /// The factor.
        factor: f64,
    },
    /// Declares a multiple of its rows and bonds for all of them, but trains only on its own.
    InflateBond {
        /// The factor.
        factor: f64,
    },
}

/// The update or step that is mixed into a copied update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyMix {
    /// Nothing.
    #[default]
    None,
    /// The last public step, scaled to 30 % of the norm of the copied update.
    LastStep,
    /// The update of the honest member with the second most rows: the mean of both is sent.
    SecondBest,
}

/// The public bytes of an earlier task that a member copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlierBytes {
    /// The update of the honest member with the most rows in the first round.
    FirstUpdate,
    /// The difference between the last model and the base model of the current round.
    LastModel,
}

/// The relation between the updates of the identities of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SybilUpdates {
    /// All send the same update.
    Same,
    /// Each sends the update from training on its own part of the rows.
    Disjoint,
    /// As `disjoint`, but each trains for as many times the epochs as there are identities, so that
    /// its update has about the norm of an honest one.
    DisjointLonger,
    /// All send the same update, each with added noise of a fifth of its norm.
    Noisy,
    /// The first sends the update; the others send copies with added noise of a fifth of its norm,
    /// scaled by 0.7 to 1.3.
    Rescaled,
    /// Pairs send the update plus and minus a random vector of twice its norm.
    Hedged,
}

impl Strategy {
    /// Its parameters with their bounds: name, value, minimum, maximum.
    #[must_use]
    pub fn bounds(&self) -> Vec<(&'static str, f64, f64, f64)> {
        match *self {
            Self::Honest
            | Self::Hoard
            | Self::AdaptiveEffort
            | Self::ZeroUpdate
            | Self::Repeat
            | Self::CopyEarlierTask { .. }
            | Self::TrainOnDisclosed => Vec::new(),
            Self::Lazy { fraction } | Self::FlipLabels { fraction } => {
                vec![("fraction", fraction, 0.0, 1.0)]
            }
            Self::Noise { scale } => vec![("scale", scale, 0.0, 1_000.0)],
            Self::FewerEpochs { epochs } => vec![("epochs", f64::from(epochs), 1.0, 1_000.0)],
            Self::Replay { noise, rounds_back } | Self::Copy { noise, rounds_back, .. } => {
                let most = f64::from(ROUNDS_BACK_MAX);
                vec![
                    ("noise", noise, 0.0, 100.0),
                    ("rounds_back", f64::from(rounds_back), 0.0, most),
                ]
            }
            Self::Collude { noise, size } | Self::SharedTraining { noise, size } => {
                vec![("noise", noise, 0.0, 100.0), ("size", f64::from(size), 0.0, 10_000.0)]
            }
            Self::Scale { factor } | Self::SignFlip { factor } | Self::Hedge { factor } => {
                vec![("factor", factor, 0.0, 1_000.0)]
            }
            Self::DuplicateRows { factor }
            | Self::InflateRows { factor }
            | Self::InflateBond { factor } => {
                vec![("factor", factor, 1.0, INFLATION_MAX)]
            }
            Self::Alie { z } => vec![("z", z, -100.0, 100.0)],
            Self::Backdoor { fraction, boost } => {
                vec![("fraction", fraction, 0.0, 1.0), ("boost", boost, 0.0, 1_000.0)]
            }
            Self::TrainOnHoldout { identities, factor } => {
                let most = f64::from(IDENTITIES_MAX);
                vec![
                    ("identities", f64::from(identities), 1.0, most),
                    ("factor", factor, 1.0, INFLATION_MAX),
                ]
            }
            Self::Sybil { identities, .. } | Self::Replicate { identities, .. } => {
                vec![("identities", f64::from(identities), 1.0, f64::from(IDENTITIES_MAX))]
            }
        }
    }

    /// Number of accounts of a member with this strategy.
    #[must_use]
    pub fn identities(&self) -> u32 {
        match self {
            Self::Sybil { identities, .. }
            | Self::Replicate { identities, .. }
            | Self::TrainOnHoldout { identities, .. } => *identities,
            Self::Hedge { .. } => 2,
            _ => 1,
        }
    }

    /// Number of copies of each row that the member's bond covers.
    #[must_use]
    pub fn row_copies(&self) -> f64 {
        match self {
            Self::DuplicateRows { factor }
            | Self::InflateBond { factor }
            | Self::TrainOnHoldout { factor, .. } => *factor,
            _ => 1.0,
        }
    }

    /// Number of rows that the bonds of all identities cover, relative to the member's `rows`.
    #[must_use]
    pub fn bond_multiple(&self, rows: u64) -> f64 {
        let bonded = |identity| self.declared_and_bonded_rows(rows, identity).1;
        let all: u64 = (0..self.identities()).map(bonded).sum();
        all as f64 / rows.max(1) as f64
    }

    /// Number of colluders in a group; 0 for the whole group.
    #[must_use]
    pub fn colluder_count(&self) -> usize {
        match self {
            Self::Collude { size, .. } | Self::SharedTraining { size, .. } => *size as usize,
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
            Self::Sybil { .. } | Self::Hedge { .. } => {
                let (identities, at) = (u64::from(self.identities()), u64::from(at));
                let part = (rows * (at + 1) / identities - rows * at / identities).max(1);
                (part, part)
            }
            Self::DuplicateRows { factor } | Self::InflateBond { factor } => {
                (scaled(rows, *factor), scaled(rows, *factor))
            }
            Self::TrainOnHoldout { identities, factor } => {
                let part = scaled(rows, *factor / f64::from((*identities).max(1)));
                (part, part)
            }
            Self::InflateRows { factor } => (scaled(rows, *factor), rows),
            _ => (rows, rows),
        }
    }
}

/// `rows` times `factor`, rounded, and at least one.
pub(crate) fn scaled(rows: u64, factor: f64) -> u64 {
    ((rows as f64 * factor).round() as u64).max(1)
}
