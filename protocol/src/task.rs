//! The task: what a buyer asks for, what it pays, and by which rules. Immutable once published.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::fixed::Micro;
use crate::format::UpdateFormat;
use crate::holdout::Holdout;
use crate::id::{Address, Digest, Market, TaskId};
use crate::limits::{
    CHECK_PAIRS_MAX, COHORT_MAX, NAME_BYTES_MAX, NODES_MAX, PHASE_MS_MAX, ROUNDS_MAX,
};
use crate::money::Amount;
use crate::time::Tick;

/// The layout this crate writes and reads.
pub const SPEC_VERSION: u16 = 1;

/// Smallest data pool per round: below it, rounding would decide who is paid.
pub const DUST_PER_ROUND: Amount = Amount::from_units(1_000_000_000_000_000);

/// Allowed between the end of a round's phases and its settlement on the ledger, in milliseconds.
pub const SETTLE_MS_MARGIN: u64 = 60_000;

/// A learning task. Its digest is its [`TaskId`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Layout of this structure: [`SPEC_VERSION`].
    pub version: u16,
    /// The market it is published in.
    pub market: Market,
    /// Who pays, and receives the model and the refund.
    pub buyer: Address,
    /// Who runs the rounds and posts settlements.
    pub coordinator: Address,
    /// Who may cancel a settlement within its challenge window.
    pub arbiter: Address,
    /// For people; at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Makes two otherwise equal tasks different.
    pub salt: u64,
    /// The model to train.
    pub model: Model,
    /// Digest of the parameters that round 1 begins with.
    pub base_model: Digest,
    /// What rows look like.
    pub data: DataSchema,
    /// The rows by which updates are judged.
    pub holdout: Holdout,
    /// How participants train.
    pub training: Training,
    /// How rounds run.
    pub rounds: RoundRules,
    /// How updates are valued.
    pub estimator: Estimator,
    /// What is paid, and what is put at risk.
    pub budget: Budget,
    /// After this moment anybody may close the task and have the rest refunded.
    pub expires: Tick,
}

/// A model that both engines know how to build.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Model {
    /// Multinomial logistic regression.
    Softmax {
        /// Features of a row.
        inputs: u32,
        /// Number of labels.
        classes: u32,
    },
    /// Fully connected layers with ReLU between them.
    Mlp {
        /// Features of a row.
        inputs: u32,
        /// Units of each hidden layer.
        hidden: Vec<u32>,
        /// Number of labels.
        classes: u32,
    },
    /// Two 3×3 convolutions with ReLU and 2×2 pooling, then one hidden layer.
    Cnn {
        /// Channels of an image.
        channels: u32,
        /// Rows of pixels.
        height: u32,
        /// Columns of pixels.
        width: u32,
        /// Filters of the two convolutions.
        filters: [u32; 2],
        /// Units of the hidden layer.
        hidden: u32,
        /// Number of labels.
        classes: u32,
    },
}

/// What rows look like: the buyer's promise to participants.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSchema {
    /// Features of a row.
    pub width: u32,
    /// Number of labels; labels are `0..classes`.
    pub classes: u32,
}

/// Local training: SGD.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Passes over the participant's rows in a round.
    pub epochs: u32,
    /// Rows of a step.
    pub batch: u32,
    /// Step size.
    pub learning_rate: Micro,
    /// Momentum, below 1; 0 is plain SGD.
    pub momentum: Micro,
    /// L2 penalty.
    pub weight_decay: Micro,
    /// Largest gradient norm of a step; 0 switches clipping off.
    pub clip_gradient: Micro,
    /// FedProx μ: pull towards the round's base model; 0 switches it off.
    pub fedprox: Micro,
}

/// How rounds run. All times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRules {
    /// How many rounds.
    pub count: u32,
    /// Fewest updates that make a round; with fewer it is abandoned.
    pub cohort_min: u32,
    /// Updates wanted; commits close early when so many are in.
    pub cohort_target: u32,
    /// Participants asked beyond the target, against stragglers.
    pub over_selection: u32,
    /// How long the first round waits for `cohort_target` participants before it makes do with `cohort_min`.
    pub enrol_ms: u64,
    /// From the offer to the last commit: time to fetch the model and train.
    pub train_ms: u64,
    /// From the close of commits to the last upload.
    pub reveal_ms: u64,
    /// How long a provider has for the valuation before the coordinator does it itself.
    pub value_ms: u64,
    /// How updates are written.
    pub format: UpdateFormat,
    /// Largest L2 norm of an update, as it is decoded.
    pub delta_norm_max: Micro,
    /// How updates combine.
    pub aggregation: Aggregation,
    /// What is done to updates before they are valued.
    pub protection: Protection,
}

/// What is done to updates before they are valued, so that nobody gains by how it sends its work.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    /// How long an update may be beside the others.
    pub clip: Clip,
    /// What becomes of an update that repeats what was there before.
    pub repeats: Repeats,
}

/// How long an update may be beside the others.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Clip {
    /// As long as `delta_norm_max` allows.
    None,
    /// As long as the median of the round's updates, weighted by their counted rows: longer ones are shortened to it,
    /// shorter ones lengthened, at most twice.
    #[default]
    Median,
}

/// What becomes of an update that is a near-duplicate of an earlier commit, or of public steps of the rounds before.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Repeats {
    /// It counts like any other.
    Counted,
    /// It counts as zero, and so do its rows: the earliest commit owns the work.
    #[default]
    SetAside,
}

/// How updates combine into the next model.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
pub enum Aggregation {
    /// Mean weighted by counted rows. The rule that valuation measures exactly.
    Mean,
    /// Coordinate-wise median.
    Median,
    /// Coordinate-wise mean without the largest and smallest.
    TrimmedMean {
        /// Share cut off at each end, below one half.
        trim: Micro,
    },
    /// The update nearest to its neighbours (Blanchard et al. 2017).
    Krum {
        /// How many hostile updates to survive.
        byzantine: u32,
    },
    /// Mean weighted by rows, each update clipped to the cohort's median norm.
    ClippedMean,
}

/// How updates are valued.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Estimator {
    /// Aumann–Shapley by Gauss–Legendre quadrature along the round's path.
    Path {
        /// Number of gradients.
        nodes: u8,
        /// Pairs of complementary coalitions per participant that are evaluated to check the scores; 0 for no check.
        check_pairs: u8,
    },
}

/// What is paid, and what is put at risk.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Locked for data.
    pub data: Amount,
    /// Locked for infrastructure services.
    pub infrastructure: Amount,
    /// Most that is paid for one nat of improvement of the validation loss (κ_max).
    pub per_nat_max: Amount,
    /// Standard errors withheld from a score until later rounds make it certain (z).
    pub withheld: Micro,
    /// Smallest bond of a participant.
    pub bond_min: Amount,
    /// Bond that one counted row takes: rows beyond `bond / bond_per_row` do not count.
    pub bond_per_row: Amount,
    /// Most that one round may debit from a bond.
    pub debit_max: Amount,
    /// Smallest stake of a provider.
    pub stake_min: Amount,
    /// Paid for one unit of verified work: one pass over the holdout.
    pub per_unit: Amount,
    /// How long a posted settlement can be challenged before it is final.
    pub challenge_ms: u64,
    /// How long a bond stays at risk after its owner asks for it back.
    pub unbond_ms: u64,
}

impl Canonical for TaskSpec {
    const DOMAIN: &'static str = "florin v1 task";
}

/// A setting that cannot work: which, what it is, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {right}")]
pub struct SpecError {
    /// The key as it is written in the task file.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub right: String,
}

pub(crate) fn wrong(
    key: &'static str,
    value: impl std::fmt::Display,
    right: impl Into<String>,
) -> SpecError {
    SpecError { key, value: value.to_string(), right: right.into() }
}

pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl std::fmt::Display,
    right: &str,
) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(wrong(key, value, right)) }
}

impl TaskSpec {
    /// The task's id: its digest.
    #[must_use]
    pub fn id(&self) -> TaskId {
        TaskId(self.digest().0)
    }

    /// Whether the task can work at all: every rule that needs no ledger and no data.
    ///
    /// # Errors
    /// The first [`SpecError`], with the key, its value and what would be right.
    pub fn check(&self) -> Result<(), SpecError> {
        require(self.version == SPEC_VERSION, "version", self.version, "must be 1")?;
        require(
            !self.name.trim().is_empty() && self.name.len() <= NAME_BYTES_MAX,
            "name",
            format!("{:?}", self.name),
            "give the task a name of 1 to 120 bytes",
        )?;
        require(
            !self.name.chars().any(char::is_control),
            "name",
            format!("{:?}", self.name),
            "control characters are not allowed",
        )?;
        self.model.check()?;
        self.check_data()?;
        self.training.check()?;
        self.rounds.check()?;
        self.check_estimator()?;
        self.budget.check(self.rounds.count)?;
        self.check_powers()
    }

    /// What keeps one party from robbing the others.
    fn check_powers(&self) -> Result<(), SpecError> {
        require(
            self.arbiter != self.buyer,
            "arbiter",
            self.arbiter,
            "must not be the buyer, who could cancel every settlement and keep the model",
        )?;
        let least = self.unbond_ms_min();
        if self.budget.unbond_ms < least {
            let right = format!(
                "must be at least {least} ms (rounds.train_ms + reveal_ms + value_ms, \
                 budget.challenge_ms and a minute): a bond outlives the settlement that may debit it"
            );
            return Err(wrong("budget.unbond_ms", self.budget.unbond_ms, right));
        }
        Ok(())
    }

    /// The shortest time for which a bond must stay at risk: from a commit to the end of its settlement's challenge
    /// window, and [`SETTLE_MS_MARGIN`].
    #[must_use]
    pub fn unbond_ms_min(&self) -> u64 {
        self.rounds
            .round_ms()
            .saturating_add(self.budget.challenge_ms)
            .saturating_add(SETTLE_MS_MARGIN)
    }

    fn check_data(&self) -> Result<(), SpecError> {
        let (inputs, classes) = (self.model.inputs().unwrap_or_default(), self.model.classes());
        if self.data.width != inputs {
            let right = format!("the model takes {inputs} features: make both equal");
            return Err(wrong("data.width", self.data.width, right));
        }
        if self.data.classes != classes {
            let right = format!("the model tells {classes} classes apart: make both equal");
            return Err(wrong("data.classes", self.data.classes, right));
        }
        self.holdout.check(self.rounds.count, self.data.width)
    }

    fn check_estimator(&self) -> Result<(), SpecError> {
        let Estimator::Path { nodes, check_pairs } = self.estimator;
        require(
            check_pairs <= CHECK_PAIRS_MAX,
            "estimator.check_pairs",
            check_pairs,
            "use 0 (no check) to 16 pairs of coalitions per participant; 1 is the default",
        )?;
        require(
            (1..=NODES_MAX).contains(&nodes),
            "estimator.nodes",
            nodes,
            "use 1 to 8 Gauss-Legendre nodes; 3 is the default",
        )
    }
}

impl Training {
    fn check(&self) -> Result<(), SpecError> {
        require(
            (1..=1_000).contains(&self.epochs),
            "training.epochs",
            self.epochs,
            "use 1 to 1000 epochs",
        )?;
        require(
            (1..=65_536).contains(&self.batch),
            "training.batch",
            self.batch,
            "use 1 to 65536 rows",
        )?;
        require(
            self.learning_rate > Micro::ZERO && self.learning_rate <= Micro(100_000_000),
            "training.learning_rate",
            self.learning_rate,
            "must be above 0 and at most 100",
        )?;
        require(
            self.momentum < Micro::ONE,
            "training.momentum",
            self.momentum,
            "must be at least 0 and below 1",
        )?;
        require(
            self.weight_decay <= Micro::ONE,
            "training.weight_decay",
            self.weight_decay,
            "must be from 0 to 1",
        )
    }
}

impl RoundRules {
    /// The longest that a round's phases may take together, in milliseconds.
    #[must_use]
    pub const fn round_ms(&self) -> u64 {
        self.train_ms.saturating_add(self.reveal_ms).saturating_add(self.value_ms)
    }

    /// How many participants a round asks: target and over-selection.
    #[must_use]
    pub const fn asked(&self) -> u32 {
        match self.cohort_target.checked_add(self.over_selection) {
            Some(n) => n,
            None => u32::MAX,
        }
    }

    fn check(&self) -> Result<(), SpecError> {
        require(
            (1..=ROUNDS_MAX).contains(&self.count),
            "rounds.count",
            self.count,
            "use 1 to 100000 rounds",
        )?;
        require(
            self.cohort_min >= 1,
            "rounds.cohort_min",
            self.cohort_min,
            "a round needs at least 1 update",
        )?;
        require(
            self.cohort_target >= self.cohort_min,
            "rounds.cohort_target",
            self.cohort_target,
            "must be at least rounds.cohort_min",
        )?;
        require(
            self.asked() <= COHORT_MAX,
            "rounds.over_selection",
            self.over_selection,
            "cohort_target and over_selection together must be at most 1024",
        )?;
        require(
            self.delta_norm_max > Micro::ZERO,
            "rounds.delta_norm_max",
            self.delta_norm_max,
            "must be above 0: every update is held to it",
        )?;
        self.format.check()?;
        for (key, ms) in [
            ("rounds.train_ms", self.train_ms),
            ("rounds.reveal_ms", self.reveal_ms),
            ("rounds.value_ms", self.value_ms),
        ] {
            require((1..=PHASE_MS_MAX).contains(&ms), key, ms, "use 1 ms to 30 days")?;
        }
        require(
            self.enrol_ms <= PHASE_MS_MAX,
            "rounds.enrol_ms",
            self.enrol_ms,
            "use at most 30 days",
        )?;
        match self.aggregation {
            Aggregation::TrimmedMean { trim } => require(
                trim < Micro(500_000) && trim.0.is_multiple_of(1_000),
                "rounds.aggregation.trim",
                trim,
                "must be below 0.5, with at most three decimals: something must remain",
            ),
            Aggregation::Krum { byzantine } => require(
                u64::from(self.cohort_min)
                    >= u64::from(byzantine).saturating_mul(2).saturating_add(3),
                "rounds.aggregation.byzantine",
                byzantine,
                "Krum needs cohort_min of at least 2 * byzantine + 3",
            ),
            Aggregation::Mean | Aggregation::Median | Aggregation::ClippedMean => Ok(()),
        }
    }
}

impl Budget {
    fn check(&self, rounds: u32) -> Result<(), SpecError> {
        let dust = DUST_PER_ROUND.mul_div_down(rounds.into(), 1).unwrap_or(DUST_PER_ROUND);
        if self.data < dust {
            let right = format!(
                "below the dust limit: {rounds} rounds need a data pool of at least {dust}"
            );
            return Err(wrong("budget.data", self.data, right));
        }
        require(
            !self.per_nat_max.is_zero(),
            "budget.per_nat_max",
            self.per_nat_max,
            "must be above 0: it is the most that one nat of improvement earns",
        )?;
        require(
            self.withheld <= Micro(10_000_000),
            "budget.withheld",
            self.withheld,
            "use at most 10 standard errors",
        )?;
        if self.bond_min < self.debit_max {
            let right = format!(
                "must cover one round's maximum debit (budget.debit_max = {})",
                self.debit_max
            );
            return Err(wrong("budget.bond_min", self.bond_min, right));
        }
        require(
            !self.bond_per_row.is_zero(),
            "budget.bond_per_row",
            self.bond_per_row,
            "must be above 0: rows count only as far as the bond covers them",
        )?;
        for (key, ms) in
            [("budget.challenge_ms", self.challenge_ms), ("budget.unbond_ms", self.unbond_ms)]
        {
            require(ms <= PHASE_MS_MAX, key, ms, "use at most 30 days")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
