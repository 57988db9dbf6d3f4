//! The report: everything a stranger needs to recompute one round's payouts.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::fixed::Micro;
use crate::id::{Address, Digest, PayoutId, Round, TaskId};
use crate::message::{Missing, RoundOutcome, Scope, UpdateId};
use crate::money::Amount;
use crate::pay::{Line, Standing};

/// One accepted update.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Entry {
    /// Whose.
    pub sender: Address,
    /// Digest of its signed header.
    pub header: UpdateId,
    /// Digest of its bytes.
    pub update: Digest,
    /// What blinded its commitment, and known to its sender only until it was revealed: the round's seed rests on it.
    pub salt: Digest,
    /// Rows the sender declared.
    pub rows_declared: u64,
    /// Rows that count: as far as the bond covers them.
    pub rows_counted: u64,
    /// What the sender had at risk when its commit was taken.
    pub bond: Amount,
    /// The place of its commit among those that were taken in the round, from 1.
    pub order: u32,
}

/// What an update repeats.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Origin {
    /// The update of this sender, which was committed earlier.
    Update(Address),
    /// What the rounds before did to the model, which everybody knows: one such step, or a mixture.
    PublicSteps,
    /// The update that this sender sent in an earlier round, which everybody could read.
    LastUpdate(Address),
}

/// An update repeats what was there before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Repeat {
    /// What it repeats.
    pub of: Origin,
    /// The cosine between the two, rounded down.
    pub cosine: Micro,
}

/// What was done to an update before it was valued.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Treatment {
    /// By what it was multiplied to be as long as the cohort's median; 1 if it was not.
    pub clip: Micro,
    /// What it repeats: then it was set aside, and counted as zero.
    pub repeats: Option<Repeat>,
}

impl Default for Treatment {
    /// Nothing was done.
    fn default() -> Self {
        Self { clip: Micro::ONE, repeats: None }
    }
}

/// One update's score, in integers: floats ended at `contribution`'s door.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Scored {
    /// Whose update.
    pub account: Address,
    /// φ in nano-nats of validation loss; positive helps.
    pub score_nano: i64,
    /// Its standard error over validation rows, in nano-nats.
    pub error_nano: u64,
    /// Negative beyond its error: kept out of the model.
    pub excluded: bool,
    /// What was done to the update before it was valued.
    pub treatment: Treatment,
}

/// What the valuation of a round found.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Valuation {
    /// Mean cross-entropy of the base model on the round's rows, in nano-nats.
    pub loss_before_nano: i64,
    /// The same with the updates that were not excluded, by weighted mean.
    pub loss_after_nano: i64,
    /// v(N) = before − after.
    pub total_nano: i64,
    /// v(N) − Σ scores of the updates that were not excluded: the estimator's own error.
    pub gap_nano: i64,
    /// A score for every entry, in the order of the entries.
    pub scores: Vec<Scored>,
    /// Passes over the round's rows that it took.
    pub units: u64,
    /// What a stranger can verify it by without repeating all of it.
    pub evidence: Evidence,
}

/// What supports the scores of a round.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Evidence {
    /// For every entry the slope of the improvement along its update at each node of the path, in nano-nats: the score
    /// is their sum by the quadrature's weights.
    pub slopes_nano: Vec<Vec<i64>>,
    /// The scores estimated once more, from coalitions alone; absent where the task asks for none, or where the updates
    /// that were not excluded are fewer than 2 or more than [`CHECK_COHORT_MAX`](crate::limits::CHECK_COHORT_MAX).
    pub check: Option<Check>,
}

/// A second opinion on the scores, from whole coalitions and without gradients. Everything in it but the worths follows
/// from the worths.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Check {
    /// Version of the `odd` estimator that made it.
    pub version: u32,
    /// What its coalitions were drawn from.
    pub seed: u64,
    /// How many coalitions it might use.
    pub passes: u64,
    /// Every coalition that it used, ascending.
    pub table: Vec<Worth>,
    /// A score in nano-nats for every entry that was not excluded, in the order of the entries.
    pub scores_nano: Vec<i64>,
}

/// What one coalition is worth.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Worth {
    /// Places of its members among the round's entries, ascending.
    pub entries: Vec<u16>,
    /// By how much the model moved by them alone, with the round's fixed shares, has less loss; in nano-nats.
    pub worth_nano: i64,
}

/// How good the model is, before the round and after it (with the task's own aggregation rule).
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Metrics {
    /// Rows of the holdout that judged the round.
    pub rows: u32,
    /// Rows whose label the base model gets right.
    pub correct_before: u32,
    /// Rows whose label the round's model gets right.
    pub correct_after: u32,
    /// Mean cross-entropy of the round's model, in nano-nats.
    pub loss_after_nano: i64,
}

/// Pay for one piece of verified work.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Infrastructure {
    /// Who did it.
    pub provider: Address,
    /// Digest of the signed work record.
    pub record: Digest,
    /// Units: passes over the round's rows.
    pub units: u64,
    /// Owed for it.
    pub amount: Amount,
}

/// The rows by which a round was judged.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HoldoutRound {
    /// By which they were drawn: nobody could know it before the reveals closed.
    pub seed: Digest,
    /// Their places in the holdout, ascending; none where too few updates came. No other round is judged by them.
    pub rows: Vec<u32>,
}

/// One round, whole: from the bytes it names, every figure in it can be computed again.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Report {
    /// Layout of this structure: 1.
    pub version: u16,
    /// Market, task and round.
    pub scope: Scope,
    /// The report of the round before; the task's id in round 1.
    pub previous: Digest,
    /// Digest of the round's offer.
    pub offer: Digest,
    /// How the round ended.
    pub outcome: RoundOutcome,
    /// Digest of the model the round began with.
    pub base_model: Digest,
    /// Digest of the model it ended with.
    pub model: Digest,
    /// The rows by which it was judged.
    pub holdout: HoldoutRound,
    /// Every commit that was taken: sender and commitment, ascending by sender.
    pub commits: Vec<(Address, Digest)>,
    /// The accepted updates, ascending by sender.
    pub entries: Vec<Entry>,
    /// Who was asked and is not among them, and why.
    pub missing: Vec<(Address, Missing)>,
    /// What the updates were worth; absent in an abandoned round.
    pub valuation: Option<Valuation>,
    /// How good the model is; absent in an abandoned round.
    pub metrics: Option<Metrics>,
    /// The most this round could spend on data.
    pub pool: Amount,
    /// A line per entry, in the order of the entries.
    pub lines: Vec<Line>,
    /// A line per piece of verified work.
    pub infrastructure: Vec<Infrastructure>,
    /// The standings after the round, ascending by account.
    pub standings: BTreeMap<Address, Standing>,
    /// Paid for data in the task so far.
    pub data_total: Amount,
    /// Paid for infrastructure in the task so far.
    pub infrastructure_total: Amount,
    /// Root of the tree of running totals before the round; zeros in round 1. Chains the settlements.
    pub root_before: Digest,
    /// Root of the tree of running totals.
    pub root: Digest,
    /// Names the settlement.
    pub payout: PayoutId,
}

impl Canonical for Report {
    const DOMAIN: &'static str = "florin v1 report";
}

impl Report {
    /// The layout this crate writes.
    pub const VERSION: u16 = 1;

    /// Whether the model got better by it: the updates together were worth something. If not, those that were shown
    /// before it are worth as much to the model as they were.
    #[must_use]
    pub fn came_to_something(&self) -> bool {
        self.valuation.as_ref().is_some_and(|valuation| valuation.total_nano > 0)
    }

    /// The name of a round's settlement: the same whenever it is asked for, so that it can happen only once.
    #[must_use]
    pub fn payout_id(task: TaskId, round: Round) -> PayoutId {
        let mut hasher = blake3::Hasher::new_derive_key("florin v1 payout");
        hasher.update(&task.0);
        hasher.update(&round.0.to_le_bytes());
        PayoutId(*hasher.finalize().as_bytes())
    }

    /// The line of one participant.
    #[must_use]
    pub fn line(&self, account: Address) -> Option<&Line> {
        self.lines.iter().find(|line| line.account == account)
    }

    /// The score of one participant.
    #[must_use]
    pub fn score(&self, account: Address) -> Option<&Scored> {
        self.valuation.as_ref()?.scores.iter().find(|score| score.account == account)
    }
}

/// Wide integers as decimal text in JSON, which has no 128-bit numbers.
pub(crate) mod text {
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
