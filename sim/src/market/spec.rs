//! The task specification of a scenario, and the addresses of its roles.

use florin_protocol::{
    Address, Aggregation, Amount, Budget, ChainId, DataSchema, DeadlineRule, Digest,
    DuplicatePolicy, Estimator, Holdout, MarketId, Micro, ModelArchitecture, NormScaling,
    PreprocessingRules, RoundRules, Selection, TaskSpec, Timestamp, Training,
};

use crate::scenario::{self, DataShape, PredictedDeadline, Scenario};

/// The buyer's address.
pub const BUYER: Address = Address([0xb0; 20]);
/// The coordinator's address.
pub const COORDINATOR: Address = Address([0xc0; 20]);
/// The address that holds the pool of the tokenised mechanism.
pub const POOL: Address = Address([0xd0; 20]);
const ARBITER: Address = Address([0xa0; 20]);

/// Millionths in one.
const MILLION: f64 = 1e6;
/// Base units per millionth of a florin.
const MICRO_UNITS: u128 = 1_000_000_000_000;
/// Placeholder for a digest.
const UNNAMED: Digest = Digest([1; 32]);
/// Length of the challenge window of a settlement, in milliseconds.
const CHALLENGE_MS: u64 = 1_000;
/// Time that bonds stay locked after an unbond request, in milliseconds.
const UNBOND_MS: u64 = 24 * 3_600 * 1_000;
/// Time that the first round waits for further enrolments, in milliseconds.
pub const ENROL_MS: u64 = 1;
/// Maximum norm of an update.
const NORM_MAX: f64 = 20.0;
/// Quadrature nodes of a valuation: gradient evaluations along the path.
const NODES: u8 = 3;

/// The account of one identity of a member.
#[must_use]
pub fn account(member: usize, identity: u32) -> Address {
    let mut bytes = [0x11; 20];
    bytes[..8].copy_from_slice(&(member as u64).to_be_bytes());
    bytes[8..12].copy_from_slice(&identity.to_be_bytes());
    Address(bytes)
}

/// Florins as an amount, rounded to the millionth.
#[must_use]
pub fn florins_to_amount(florins: f64) -> Amount {
    Amount::from_units((florins * MILLION).round() as u128 * MICRO_UNITS)
}

/// An amount in florins, for display and statistics.
#[must_use]
pub fn amount_to_florins(amount: Amount) -> f64 {
    amount.units() as f64 / (MICRO_UNITS as f64 * MILLION)
}

fn micro(value: f64) -> Micro {
    Micro((value * MILLION).round() as u64)
}

impl Scenario {
    /// The task specification. [`MarketId::open`](super::MarketId::open) sets the digests of holdout
    /// and model.
    #[must_use]
    pub fn task_spec(&self, seed: u64) -> TaskSpec {
        let l = &self.learning;
        let DataShape { width, classes, .. } = l.shape();
        let model = match l.hidden.is_empty() {
            true => ModelArchitecture::Softmax { inputs: width, classes },
            false => ModelArchitecture::Mlp { inputs: width, hidden: l.hidden.clone(), classes },
        };
        let example = TaskSpec::example();
        TaskSpec {
            market: MarketId { chain: ChainId(1), genesis: Digest([1; 32]) },
            buyer: BUYER,
            coordinator: COORDINATOR,
            arbiter: ARBITER,
            name: self.name.clone(),
            salt: seed,
            model,
            base_model: UNNAMED,
            data: DataSchema { width, classes, encoding: None },
            holdout: Holdout {
                root: UNNAMED,
                rows: l.holdout_rows,
                rows_per_round: l.holdout_rows_per_round,
            },
            training: Training {
                epochs: l.epochs,
                batch: l.batch,
                learning_rate: micro(l.learning_rate),
                ..example.training
            },
            rounds: self.round_rules(),
            estimator: Estimator::Path {
                nodes: NODES,
                cross_check_pairs: self.task.cross_check_pairs,
            },
            budget: self.budget(),
            expires: Timestamp(u64::MAX >> 2),
            ..example
        }
    }

    fn preprocessing_rules(&self) -> PreprocessingRules {
        let weight_cap = self.task.weight_cap;
        let mut rules = PreprocessingRules { weight_cap, ..PreprocessingRules::DEFAULT };
        if !self.task.clip {
            rules.norm_scaling = NormScaling::None;
        }
        if !self.task.reject_near_duplicates {
            rules.near_duplicates = DuplicatePolicy::Accept;
        }
        rules
    }

    fn round_rules(&self) -> RoundRules {
        let t = &self.task;
        let ms = |seconds: f64| (seconds * 1e3).round().max(1.0) as u64;
        let aggregation = match t.aggregation {
            scenario::Aggregation::Mean => Aggregation::Mean,
            scenario::Aggregation::Median => Aggregation::Median,
            scenario::Aggregation::TrimmedMean => Aggregation::TrimmedMean { trim: micro(0.1) },
        };
        RoundRules {
            count: self.rounds,
            cohort_min: t.cohort_min,
            cohort_target: t.cohort,
            over_selection: t.over_selection,
            selection: Selection { knob: t.selection.knob, explore: micro(t.selection.explore) },
            deadline: match t.deadline {
                None => DeadlineRule::Fixed,
                Some(PredictedDeadline { quantile, slack }) => {
                    DeadlineRule::Predicted { quantile: micro(quantile), slack: micro(slack) }
                }
            },
            staleness: t.staleness.unwrap_or_default(),
            enrol_ms: ENROL_MS,
            train_ms: ms(t.train_s),
            reveal_ms: ms(t.reveal_s),
            value_ms: 60_000,
            delta_norm_max: micro(NORM_MAX),
            aggregation,
            preprocessing: self.preprocessing_rules(),
            baseline_epochs: if self.mode.is_real() { t.baseline_epochs } else { 0 },
            ..TaskSpec::example().rounds
        }
    }

    fn budget(&self) -> Budget {
        let t = &self.task;
        Budget {
            data: florins_to_amount(t.budget),
            infrastructure: florins_to_amount(1.0),
            per_nat_max: florins_to_amount(t.per_nat_max),
            confidence_z: micro(t.confidence_z),
            floor_share: micro(t.floor_share),
            bond_min: florins_to_amount(t.bond_min),
            bond_per_row: florins_to_amount(t.bond_per_row),
            debit_max: florins_to_amount(t.debit_max),
            per_unit: Amount::ZERO,
            challenge_ms: CHALLENGE_MS,
            unbond_ms: UNBOND_MS,
            ..TaskSpec::example().budget
        }
    }
}
