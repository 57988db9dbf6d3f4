//! Task specification: what a buyer requests, what it pays, and the rules. Immutable once
//! published.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::admission::Admission;
use crate::aggregation::Aggregation;
use crate::amount::Amount;
use crate::bytes::Canonical;
use crate::encoding::FeatureEncoding;
use crate::format::UpdateFormat;
use crate::holdout::Holdout;
use crate::id::{Address, ChainId, Digest, MarketId, TaskId};
use crate::limits::{
    BASELINE_EPOCHS_MAX, COALITIONS_COHORT_MAX, COHORT_MAX, CROSS_CHECK_PAIRS_MAX, NAME_BYTES_MAX,
    NODES_MAX, PHASE_MS_MAX, ROUNDS_MAX, TASK_MS_MAX,
};
use crate::micro::Micro;
use crate::model::{DataSchema, ModelArchitecture};
use crate::preprocessing::PreprocessingRules;
use crate::selection::{DeadlineRule, Selection};
use crate::spec_error::{SpecError, require, spec_error};
use crate::staleness::StalenessRule;
use crate::time::Timestamp;
use crate::training::Training;

/// The layout version that this crate writes and reads.
pub const SPEC_VERSION: u16 = 1;

/// Domain of the digest from which the initial parameters follow.
const MODEL_SEED_CONTEXT: &str = "florin v1 initial model";

/// Smallest data pool per round (dust limit): below it, rounding would decide the payouts.
pub const DATA_PER_ROUND_MIN: Amount = Amount::from_units(1_000_000_000_000_000);

/// Time allowed between the end of a round's phases and its settlement on the ledger, in
/// milliseconds.
pub const SETTLEMENT_MARGIN_MS: u64 = 60_000;

/// A learning task. Its digest is its [`TaskId`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct TaskSpec {
    /// Layout of this structure: [`SPEC_VERSION`].
    pub version: u16,
    /// The market it is published in.
    pub market: MarketId,
    /// The account that pays, and that receives the model and the refund.
    pub buyer: Address,
    /// The account that runs the rounds and posts settlements.
    pub coordinator: Address,
    /// The account that may cancel a settlement within its challenge window.
    pub arbiter: Address,
    /// Display name; at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Distinguishes two otherwise equal tasks.
    pub salt: u64,
    /// The model to train.
    pub model: ModelArchitecture,
    /// Digest of the parameters that round 1 starts from.
    pub base_model: Digest,
    /// Schema of the rows.
    pub data: DataSchema,
    /// The validation rows by which updates are valued.
    pub holdout: Holdout,
    /// Settings of local training.
    pub training: Training,
    /// Rules of the rounds.
    pub rounds: RoundRules,
    /// Estimator of the scores.
    pub estimator: Estimator,
    /// Prices, bonds and stakes.
    pub budget: Budget,
    /// Which accounts may enrol.
    pub admission: Admission,
    /// After this time any account may close the task and trigger the refund.
    pub expires: Timestamp,
}

/// Rules of the rounds. All times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct RoundRules {
    /// Number of rounds.
    pub count: u32,
    /// Fewest updates of a round; a round with fewer is abandoned.
    pub cohort_min: u32,
    /// Target number of updates; the commit phase ends early when it is reached.
    pub cohort_target: u32,
    /// Most participants selected beyond the target, for those that are slow or away.
    pub over_selection: u32,
    /// How the cohort is selected.
    pub selection: Selection,
    /// How the deadline of commits follows.
    pub deadline: DeadlineRule,
    /// How updates count that are late for their round.
    pub staleness: StalenessRule,
    /// How long the first round waits for `cohort_target` participants before it starts with
    /// `cohort_min`.
    pub enrol_ms: u64,
    /// Longest time from the offer to the last commit: to fetch the model and train.
    pub train_ms: u64,
    /// Time from the end of the commit phase to the last upload.
    pub reveal_ms: u64,
    /// Time that a provider has for the valuation; then the coordinator does it itself.
    pub value_ms: u64,
    /// How long the task waits for `cohort_min` eligible participants before it ends and refunds; 0
    /// waits until it expires.
    pub stall_ms: u64,
    /// Number of abandoned rounds in a row after which the task ends and refunds; 0 for no limit.
    pub abandoned_max: u32,
    /// Encoding of the updates.
    pub format: UpdateFormat,
    /// Largest L2 norm of a decoded update.
    pub delta_norm_max: Micro,
    /// Aggregation rule of the updates.
    pub aggregation: Aggregation,
    /// Preprocessing of the updates before their valuation.
    pub preprocessing: PreprocessingRules,
    /// Public baseline: passes over the validation rows of earlier rounds by which the model trains
    /// after each productive round; 0 for none.
    pub baseline_epochs: u32,
}

/// Estimator of the scores.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Estimator {
    /// Aumann–Shapley values by Gauss–Legendre quadrature along the round's path.
    Path {
        /// Number of quadrature nodes (gradients).
        nodes: u8,
        /// Pairs of complementary coalitions per participant that a cross-check of the scores
        /// evaluates; 0 disables it.
        cross_check_pairs: u8,
    },
    /// Shapley values by the losses of coalitions alone: all of them in a small round, those of
    /// random orders in a larger one.
    Coalitions,
}

/// Budgets, prices, bonds and stakes.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Budget {
    /// Budget for data, locked in escrow.
    pub data: Amount,
    /// Budget for infrastructure, locked in escrow.
    pub infrastructure: Amount,
    /// Highest price of one nat of improvement of the validation loss (κ_max).
    pub per_nat_max: Amount,
    /// Share of the data budget that pays a floor: each round pays an equal part of it to senders
    /// with a positive payable score, and in a void round to all. From 0 to 1.
    pub floor_share: Micro,
    /// Number of standard errors z that is withheld from a score until later rounds confirm it; at
    /// most 4.
    pub confidence_z: Micro,
    /// Minimum bond of a participant, and the most that the arbiter may slash from its bonds.
    pub bond_min: Amount,
    /// Bond per counted row: rows beyond `bond / bond_per_row` do not count.
    pub bond_per_row: Amount,
    /// Largest debit from a bond in one round.
    pub debit_max: Amount,
    /// Minimum stake of a provider.
    pub stake_min: Amount,
    /// Price of one unit of verified work: one pass over the round's validation rows.
    pub per_unit: Amount,
    /// Challenge window: the time from posting a settlement until it is final.
    pub challenge_ms: u64,
    /// Unbonding delay: how long a bond stays at risk after its owner requests it back.
    pub unbond_ms: u64,
}

impl TaskSpec {
    /// A small valid task, for tests, benchmarks and simulations: they change the settings that
    /// matter to them. Optional settings have no effect here: a new one gets the value with which
    /// tasks behave as before.
    #[must_use]
    pub fn example() -> Self {
        Self {
            version: SPEC_VERSION,
            market: MarketId { chain: ChainId(1), genesis: Digest([1; 32]) },
            buyer: Address([1; 20]),
            coordinator: Address([2; 20]),
            arbiter: Address([3; 20]),
            name: "example".to_owned(),
            salt: 0,
            model: ModelArchitecture::Softmax { inputs: 64, classes: 10 },
            base_model: Digest([1; 32]),
            data: DataSchema { width: 64, classes: 10, encoding: None },
            holdout: Holdout { root: Digest([1; 32]), rows: 360, rows_per_round: 36 },
            training: Training::example(),
            rounds: RoundRules::example(),
            estimator: Estimator::Path { nodes: 3, cross_check_pairs: 1 },
            budget: Budget::example(),
            admission: Admission::Open,
            expires: Timestamp(TASK_MS_MAX),
        }
    }
}

impl RoundRules {
    fn example() -> Self {
        Self {
            count: 10,
            cohort_min: 2,
            cohort_target: 4,
            over_selection: 0,
            selection: Selection::default(),
            deadline: DeadlineRule::Fixed,
            staleness: StalenessRule::default(),
            enrol_ms: 1_000,
            train_ms: 1_000,
            reveal_ms: 1_000,
            value_ms: 1_000,
            stall_ms: 0,
            abandoned_max: 0,
            format: UpdateFormat::F32,
            delta_norm_max: Micro(10_000_000),
            aggregation: Aggregation::Mean,
            preprocessing: PreprocessingRules::default(),
            baseline_epochs: 0,
        }
    }
}

impl Budget {
    const fn example() -> Self {
        const CENT: u128 = 10_000_000_000_000_000;
        Self {
            data: Amount::from_units(10_000 * CENT),
            infrastructure: Amount::from_units(1_000 * CENT),
            per_nat_max: Amount::from_units(10_000 * CENT),
            floor_share: Micro::ZERO,
            confidence_z: Micro(2_000_000),
            bond_min: Amount::from_units(500 * CENT),
            bond_per_row: Amount::from_units(5 * CENT),
            debit_max: Amount::from_units(200 * CENT),
            stake_min: Amount::from_units(100 * CENT),
            per_unit: Amount::from_units(10 * CENT),
            challenge_ms: 1,
            unbond_ms: 63_001,
        }
    }
}

impl Canonical for TaskSpec {
    const DOMAIN: &'static str = "florin v1 task";
}

impl TaskSpec {
    /// The task's id: the digest of the specification.
    #[must_use]
    pub fn id(&self) -> TaskId {
        TaskId(self.digest().0)
    }

    /// The seed of the initial parameters of the task's model: the first eight bytes, little-endian,
    /// of the digest of this specification with a base model of zeros. So the buyer cannot choose
    /// the parameters, and two tasks do not start from the same ones.
    #[must_use]
    pub fn model_seed(&self) -> u64 {
        let without_model = Self { base_model: Digest::default(), ..self.clone() };
        let digest = blake3::derive_key(MODEL_SEED_CONTEXT, &without_model.to_bytes());
        u64::from_le_bytes(*digest.first_chunk().unwrap_or(&[0; 8]))
    }

    /// Checks every rule that needs neither ledger nor data.
    ///
    /// # Errors
    /// The first [`SpecError`], with the key, its value and what is valid.
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
        self.check_baseline()?;
        self.check_estimator()?;
        self.budget.check(self.rounds.count)?;
        self.check_pay()?;
        self.admission.check(self.rounds.cohort_min)?;
        self.check_conflicts_of_interest()
    }

    /// Rules that prevent one party from defrauding the others.
    fn check_conflicts_of_interest(&self) -> Result<(), SpecError> {
        require(
            self.arbiter != self.buyer,
            "arbiter",
            self.arbiter,
            "must not be the buyer: a buyer could cancel every settlement and keep the model",
        )?;
        require(
            self.arbiter != Address::default(),
            "arbiter",
            self.arbiter,
            "name an account: no key is known for the zero address",
        )?;
        let least = self.unbond_ms_min();
        if self.budget.unbond_ms < least {
            let right = format!(
                "must be at least {least} ms (rounds.train_ms + reveal_ms + value_ms + \
                 budget.challenge_ms + 60000): a bond must outlive the settlement that may debit it"
            );
            return Err(spec_error("budget.unbond_ms", self.budget.unbond_ms, right));
        }
        Ok(())
    }

    /// The minimum unbonding delay: from a commit to the end of its settlement's challenge window,
    /// plus [`SETTLEMENT_MARGIN_MS`].
    #[must_use]
    pub fn unbond_ms_min(&self) -> u64 {
        self.rounds
            .round_ms()
            .saturating_add(self.budget.challenge_ms)
            .saturating_add(SETTLEMENT_MARGIN_MS)
    }

    fn check_data(&self) -> Result<(), SpecError> {
        let (inputs, classes) = (self.model.inputs().unwrap_or_default(), self.model.classes());
        if self.data.width != inputs {
            let right = self.model.width_in_words();
            return Err(spec_error("data.width", self.data.width, right));
        }
        if self.data.classes != classes {
            let right = format!("the model has {classes} classes: make both equal");
            return Err(spec_error("data.classes", self.data.classes, right));
        }
        if let Some(encoding) = &self.data.encoding {
            encoding.check(&self.data)?;
        }
        let are_images = self
            .data
            .encoding
            .as_ref()
            .is_some_and(|encoding| matches!(encoding.features, FeatureEncoding::Images(_)));
        self.training.augmentation.check(are_images)?;
        require(
            self.tokenizer().is_none() || matches!(self.model, ModelArchitecture::Graph(_)),
            "data.tokens",
            "…",
            "only a model of kind \"graph\" takes tokens",
        )?;
        self.holdout.check(self.rounds.count, self.data.width)
    }

    /// Only the models of the reference engine have a public baseline. Whether a graph is one follows
    /// from its operators, which the specification does not contain.
    fn check_baseline(&self) -> Result<(), SpecError> {
        let is_cnn = matches!(self.model, ModelArchitecture::Cnn { .. });
        let is_trainer = self.model.trainer().is_some();
        require(
            !is_trainer || self.training.noise_min == Micro::ZERO,
            "training.noise_min",
            self.training.noise_min,
            "use 0 with a trainer: it has no gradients of rows",
        )?;
        require(
            !(is_cnn || is_trainer) || self.rounds.baseline_epochs == 0,
            "rounds.baseline_epochs",
            self.rounds.baseline_epochs,
            "use 0 with a cnn or a trainer: it has no public baseline",
        )
    }

    fn check_estimator(&self) -> Result<(), SpecError> {
        let Estimator::Path { nodes, cross_check_pairs } = self.estimator else {
            return require(
                self.rounds.cohort_target <= COALITIONS_COHORT_MAX,
                "rounds.cohort_target",
                self.rounds.cohort_target,
                "coalitions value at most 64 updates",
            );
        };
        if let ModelArchitecture::Graph(graph) = &self.model {
            require(
                graph.has_gradient(),
                "estimator.kind",
                "\"path\"",
                "use \"coalitions\": the model's trainer has no gradient",
            )?;
        }
        require(
            cross_check_pairs <= CROSS_CHECK_PAIRS_MAX,
            "estimator.cross_check_pairs",
            cross_check_pairs,
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

impl RoundRules {
    /// The longest total duration of a round's phases, in milliseconds.
    #[must_use]
    pub const fn round_ms(&self) -> u64 {
        self.train_ms.saturating_add(self.reveal_ms).saturating_add(self.value_ms)
    }

    /// Most participants selected for a round: target plus over-selection.
    #[must_use]
    pub const fn selection_size(&self) -> u32 {
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
            self.selection_size() <= COHORT_MAX,
            "rounds.over_selection",
            self.over_selection,
            "cohort_target and over_selection together must be at most 1024",
        )?;
        require(
            self.delta_norm_max > Micro::ZERO,
            "rounds.delta_norm_max",
            self.delta_norm_max,
            "must be above 0: it limits the norm of every update",
        )?;
        self.selection.check()?;
        self.deadline.check()?;
        self.staleness.check()?;
        self.format.check()?;
        require(
            self.baseline_epochs <= BASELINE_EPOCHS_MAX,
            "rounds.baseline_epochs",
            self.baseline_epochs,
            "use 0 (no public baseline) to 16 passes; 2 is the default",
        )?;
        for (key, ms) in [
            ("rounds.train_ms", self.train_ms),
            ("rounds.reveal_ms", self.reveal_ms),
            ("rounds.value_ms", self.value_ms),
        ] {
            require((1..=PHASE_MS_MAX).contains(&ms), key, ms, "use 1 ms to 30 days")?;
        }
        for (key, ms) in [("rounds.enrol_ms", self.enrol_ms), ("rounds.stall_ms", self.stall_ms)] {
            require(ms <= PHASE_MS_MAX, key, ms, "use at most 30 days")?;
        }
        require(
            self.abandoned_max <= ROUNDS_MAX,
            "rounds.abandoned_max",
            self.abandoned_max,
            "use at most 100000, or 0 for no limit",
        )?;
        self.check_aggregation()
    }

    fn check_aggregation(&self) -> Result<(), SpecError> {
        match self.aggregation {
            Aggregation::TrimmedMean { trim } => require(
                trim < Micro(500_000) && trim.0.is_multiple_of(1_000),
                "rounds.aggregation.trim",
                trim,
                "must be below 0.5, with at most three decimals: some values must remain",
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
        let dust = DATA_PER_ROUND_MIN.mul_div_down(rounds.into(), 1).unwrap_or(DATA_PER_ROUND_MIN);
        if self.data < dust {
            let right = format!(
                "below the dust limit: {rounds} rounds need a data pool of at least {dust}"
            );
            return Err(spec_error("budget.data", self.data, right));
        }
        require(
            !self.per_nat_max.is_zero(),
            "budget.per_nat_max",
            self.per_nat_max,
            "must be above 0: it is the highest price of one nat of improvement",
        )?;
        require(
            self.floor_share <= Micro::ONE,
            "budget.floor_share",
            self.floor_share,
            "must be from 0 to 1: 0.2 pays a fifth of the data budget as a floor",
        )?;
        if self.bond_min < self.debit_max {
            let right = format!(
                "must cover one round's maximum debit (budget.debit_max = {})",
                self.debit_max
            );
            return Err(spec_error("budget.bond_min", self.bond_min, right));
        }
        require(
            !self.bond_per_row.is_zero(),
            "budget.bond_per_row",
            self.bond_per_row,
            "must be above 0: rows count only as far as the bond covers them",
        )?;
        require(
            self.challenge_ms > 0,
            "budget.challenge_ms",
            self.challenge_ms,
            "use at least 1 ms: without a challenge window no settlement could be cancelled",
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
