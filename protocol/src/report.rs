//! The report: everything that an auditor needs to recompute the payouts of one round.

use std::collections::BTreeMap;
use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::amount::{Amount, AmountError};
use crate::bytes::Canonical;
use crate::class_effects::ClassEffects;
use crate::id::{Address, Digest, RoundNumber, SettlementId, TaskId};
use crate::message::{AbandonReason, MissingReason, RoundOutcome, RoundScope, UpdateId};
use crate::micro::Micro;
use crate::pay::{AccountTotals, PayLine};
use crate::time::Timestamp;

/// One accepted update.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct UpdateEntry {
    /// The sender's wallet.
    pub sender: Address,
    /// Digest of its signed header.
    pub header: UpdateId,
    /// Digest of its bytes.
    pub update: Digest,
    /// The random salt of its commitment. Only the sender knows it before the reveal; the round's
    /// seed depends on it.
    pub salt: Digest,
    /// Rows the sender declared.
    pub rows_declared: u64,
    /// Rows that count: the declared number, at most what the bond covers.
    pub rows_counted: u64,
    /// The sender's bond when the coordinator accepted the commit.
    pub bond: Amount,
    /// Position of its commit among the accepted commits of the round, from 1.
    pub commit_position: u32,
    /// Number of versions of the model since its sender was selected:
    /// [`OngoingTraining::versions`](crate::OngoingTraining::versions), 0 for one that this round
    /// selected.
    pub staleness: u32,
}

/// The source that a near-duplicate repeats.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum DuplicateSource {
    /// An earlier commit of the same round, by this sender.
    SameRound(Address),
    /// The global model deltas of earlier rounds, which are public: one delta or a linear
    /// combination.
    GlobalDeltas,
    /// An update that this sender sent in an earlier round, which is public.
    EarlierRound(Address),
}

/// A match of an update with an earlier source.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct DuplicateMatch {
    /// The source.
    pub source: DuplicateSource,
    /// Cosine similarity of the two, rounded down.
    pub cosine: Micro,
}

/// Preprocessing of an update before its valuation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Preprocessing {
    /// Factor that rescaled it to the cohort's median norm; 1 if it was not rescaled.
    pub norm_factor: Micro,
    /// The match, if the update was rejected as a near-duplicate; its value is zero then.
    pub duplicate_of: Option<DuplicateMatch>,
    /// Weight of the update: its counted rows, up to the task's weight cap, less for a stale update
    /// by the task's rule. 0 for a rejected update and for an update that changes nothing.
    pub weight: u64,
}

impl Default for Preprocessing {
    /// No preprocessing, and one row.
    fn default() -> Self {
        Self { norm_factor: Micro::ONE, duplicate_of: None, weight: 1 }
    }
}

/// Score of one update, in integers (`contribution::to_nano` is the conversion from floats).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct UpdateScore {
    /// The sender of the update.
    pub account: Address,
    /// φ in nano-nats of validation loss; positive means an improvement.
    pub score_nano: i64,
    /// Standard error of the score over the validation rows, in nano-nats.
    pub error_nano: u64,
    /// The score is significantly negative: the update is not aggregated.
    pub excluded: bool,
    /// Preprocessing of the update before its valuation.
    pub preprocessing: Preprocessing,
}

/// The estimator of a stage's scores.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ScoreEstimator {
    /// The Aumann–Shapley value by Gauss–Legendre quadrature with this many nodes.
    Path(u8),
    /// The Shapley value by enumeration of all coalitions.
    Shapley,
    /// The Shapley value by this many antithetic pairs of permutations.
    Permutations(u16),
}

impl fmt::Display for ScoreEstimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(nodes) => write!(f, "{nodes} nodes"),
            Self::Shapley => f.write_str("Shapley"),
            Self::Permutations(pairs) => write!(f, "{pairs} pairs"),
        }
    }
}

/// One stage of a valuation: of all updates, or of those that are not excluded.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ValuationStage {
    /// The last estimator that the stage tried.
    pub estimator: ScoreEstimator,
    /// The improvement by the stage's updates together, in nano-nats.
    pub total_nano: i64,
    /// The part of it that their scores do not explain.
    pub gap_nano: i64,
    /// Passes over the round's validation rows of all estimators that the stage tried.
    pub units: u64,
}

/// The step of the public baseline after a productive round: the model also trains on the validation
/// rows that this round and earlier ones disclosed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct PublicBaseline {
    /// Number of rows that it trains on.
    pub rows: u32,
    /// Mean bounded loss of the aggregated model on the round's validation rows, in nano-nats.
    pub loss_before_nano: i64,
    /// The same after training, by two-fold cross-validation: each half of the rows is evaluated
    /// after training on the other and on all earlier rows. Absent if a training diverged, or if the
    /// model after training on all rows has no lower loss on the round's rows.
    pub validation_loss_nano: Option<i64>,
}

impl PublicBaseline {
    /// Whether the step becomes part of the round's model: it lowers the loss.
    #[must_use]
    pub fn is_adopted(&self) -> bool {
        self.validation_loss_nano.is_some_and(|after| after < self.loss_before_nano)
    }
}

/// Valuation of a round's updates.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Valuation {
    /// Mean bounded loss of the base model on the round's validation rows, in nano-nats.
    pub loss_before_nano: i64,
    /// The same for the base model plus the weighted mean of the updates that are not excluded.
    pub loss_after_nano: i64,
    /// v(N): loss before minus loss after, in nano-nats.
    pub total_nano: i64,
    /// v(N) − Σ scores of the updates that are not excluded: the estimator's efficiency gap.
    pub gap_nano: i64,
    /// Mean bounded loss of the model that the task's rule aggregates from the updates that are not
    /// excluded; in a void round it does not become the round's model.
    pub model_loss_nano: i64,
    /// The stages of the valuation: one, or two if an update is excluded.
    pub stages: Vec<ValuationStage>,
    /// One score per accepted update, in the order of the entries.
    pub scores: Vec<UpdateScore>,
    /// Forward or gradient passes over the round's validation rows that the valuation took.
    pub units: u64,
    /// Data that supports spot checks, without repeating the whole valuation.
    pub evidence: ValuationEvidence,
}

/// Data that supports the scores of a round.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ValuationEvidence {
    /// For every entry the directional derivative of the improvement along its update at each
    /// quadrature node, in nano-nats. The score is their sum weighted by the quadrature weights.
    pub derivatives_nano: Vec<Vec<i64>>,
    /// Cross-check of the scores by sampled coalitions. Absent if the task requests none, or if
    /// fewer than 2 or more than
    /// [`CROSS_CHECK_COHORT_MAX`](crate::limits::CROSS_CHECK_COHORT_MAX) updates are not excluded.
    pub cross_check: Option<CrossCheck>,
    /// The classes that the updates improve. Absent unless the task's selection reads it
    /// ([`SelectionKnob::reads_classes`](crate::SelectionKnob::reads_classes)), and without few
    /// classes, with a large cohort, or with a trainer in place of a model.
    pub class_effects: Option<ClassEffects>,
}

/// A second estimate of the scores from sampled coalition values, without gradients. Apart from the
/// coalition values, all its contents can be recomputed from them.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct CrossCheck {
    /// Version of the estimator `OddRegression` (paired regression) that produced it.
    pub version: u32,
    /// Seed of the sampled coalitions.
    pub seed: u64,
    /// Budget of coalition evaluations.
    pub passes: u64,
    /// Every evaluated coalition, ascending.
    pub table: Vec<CoalitionValue>,
    /// One score in nano-nats per entry that is not excluded, in the order of the entries.
    pub scores_nano: Vec<i64>,
}

/// Value v(S) of one coalition S.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct CoalitionValue {
    /// The members: their positions in the round's entries, ascending.
    pub members: Vec<u16>,
    /// v(S): the decrease in loss when only these members' updates are applied, with the round's
    /// fixed weights; in nano-nats.
    pub value_nano: i64,
}

/// Accuracy and loss of the model before and after the round (with the task's aggregation rule).
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ModelMetrics {
    /// Number of validation rows of the round.
    pub rows: u32,
    /// Rows that the base model classifies correctly.
    pub correct_before: u32,
    /// Rows that the round's model classifies correctly.
    pub correct_after: u32,
    /// Mean bounded loss of the round's model, in nano-nats.
    pub loss_after_nano: i64,
}

/// Payment for one piece of verified work.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct InfrastructurePayment {
    /// The provider.
    pub provider: Address,
    /// Digest of the signed work record.
    pub record: Digest,
    /// Units of work: passes over the round's validation rows.
    pub units: u64,
    /// Amount owed for it.
    pub amount: Amount,
}

/// The holdout rows that evaluate a round.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct HoldoutSample {
    /// Seed of the draw; unpredictable until the reveal phase ends.
    pub seed: Digest,
    /// Their positions in the holdout, ascending; empty if there are too few updates. They evaluate
    /// no other round.
    pub rows: Vec<u32>,
}

/// The arrivals of a round, by the coordinator's clock. The selection of later cohorts uses them; no
/// draw of this round and no pay does.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct RoundTimes {
    /// Start of the round.
    pub opened: Timestamp,
    /// Deadline for commits.
    pub commit_by: Timestamp,
    /// When each commit was accepted, in the order of the commits.
    pub commits: Vec<Timestamp>,
    /// The end of the commit phase.
    pub commits_closed: Timestamp,
    /// When each update was accepted, in the order of the entries.
    pub updates: Vec<Timestamp>,
}

/// The complete record of one round. Every figure in it can be recomputed from the blobs that it
/// names.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Report {
    /// Layout of this structure: 1.
    pub version: u16,
    /// Market, task and round.
    pub scope: RoundScope,
    /// Digest of the preceding round's report; the task's id in round 1.
    pub previous_report: Digest,
    /// Digest of the round's offer.
    pub offer: Digest,
    /// How the round ended.
    pub outcome: RoundOutcome,
    /// Digest of the model that the round starts from.
    pub base_model: Digest,
    /// Digest of the model after the round.
    pub model: Digest,
    /// The holdout rows that evaluate the round.
    pub holdout: HoldoutSample,
    /// Every accepted commit: sender and commitment, ascending by sender.
    pub commits: Vec<(Address, Digest)>,
    /// The accepted updates, ascending by sender.
    pub entries: Vec<UpdateEntry>,
    /// When they arrived.
    pub times: RoundTimes,
    /// Selected participants without an accepted update, and why.
    pub missing: Vec<(Address, MissingReason)>,
    /// Scores of the updates; absent in an abandoned round.
    pub valuation: Option<Valuation>,
    /// The step of the public baseline; absent in a round that is not productive, and in a task
    /// without a public baseline.
    pub baseline: Option<PublicBaseline>,
    /// Accuracy and loss of the model; absent in an abandoned round.
    pub metrics: Option<ModelMetrics>,
    /// The most this round could spend on data.
    pub pool: Amount,
    /// One line per entry, in the order of the entries.
    pub lines: Vec<PayLine>,
    /// One line per piece of verified work.
    pub infrastructure: Vec<InfrastructurePayment>,
    /// The withheld pay of accounts without an update in this round; only in the last round.
    pub final_lines: Vec<PayLine>,
    /// The accumulated totals after the round, ascending by account.
    pub account_totals: BTreeMap<Address, AccountTotals>,
    /// Improvement of the task's model so far, in nano-nats: the sum over the rounds that changed it.
    pub improvement_total_nano: u64,
    /// Paid for scores in the task so far: at most `per_nat_max` for each nat of the improvement.
    pub score_pay_total: Amount,
    /// Paid for data in the task so far: for scores and as floor.
    pub data_total: Amount,
    /// Paid for infrastructure in the task so far.
    pub infrastructure_total: Amount,
    /// Root of the claim tree before the round; zeros in round 1. Chains the settlements.
    pub previous_root: Digest,
    /// Root of the claim tree (running totals) after the round.
    pub root: Digest,
    /// Id of the settlement.
    pub settlement_id: SettlementId,
}

impl Canonical for Report {
    const DOMAIN: &'static str = "florin v1 report";
}

impl Report {
    /// The layout version that this crate writes.
    pub const VERSION: u16 = 1;

    /// Whether the round was productive: its updates improved the model.
    #[must_use]
    pub fn is_productive(&self) -> bool {
        self.outcome == RoundOutcome::Settled
    }

    /// Paid for data in the round, also to accounts without an update in it.
    ///
    /// # Errors
    /// [`AmountError`] on overflow.
    pub fn data_paid(&self) -> Result<Amount, AmountError> {
        Amount::total(self.lines.iter().chain(&self.final_lines).map(|line| line.payout))
    }

    /// Whether the round posts a settlement: it was valued, it pays what was withheld, or the
    /// coordinator gave a receipt for an update. A receipt of a round that was never settled holds up
    /// an early close.
    #[must_use]
    pub fn has_settlement(&self) -> bool {
        self.outcome.is_valued() || !self.final_lines.is_empty() || !self.entries.is_empty()
    }

    /// Whether the task ended with this report before its last round: no round follows.
    #[must_use]
    pub fn ends_task(&self) -> bool {
        self.outcome == RoundOutcome::Abandoned(AbandonReason::TaskEnded)
    }

    /// The id of a round's settlement. It depends only on task and round, so that a round can be
    /// settled only once.
    #[must_use]
    pub fn settlement_id(task: TaskId, round: RoundNumber) -> SettlementId {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 payout");
        hasher.update(&task.0);
        hasher.update(&round.0.to_le_bytes());
        SettlementId(*hasher.finalize().as_bytes())
    }

    /// The pay line of one participant.
    #[must_use]
    pub fn line(&self, account: Address) -> Option<&PayLine> {
        self.lines.iter().chain(&self.final_lines).find(|line| line.account == account)
    }

    /// The score of one participant.
    #[must_use]
    pub fn score(&self, account: Address) -> Option<&UpdateScore> {
        self.valuation.as_ref()?.scores.iter().find(|score| score.account == account)
    }
}

/// 128-bit integers as decimal strings in JSON, which has no integers of that size.
pub(crate) mod decimal_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = <String as Deserialize>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
