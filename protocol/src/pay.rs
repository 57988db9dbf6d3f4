//! The pay rule: integer payouts and debits of a round from its scores.
//!
//! Pay is linear in the score. For each participant the scores and their squared standard errors
//! are summed over the rounds. The **payable** score is `max(0, Σφ − z·√ΣSE²)`, where z is the
//! task's `confidence_z` setting. A round's **increment** is the increase of the payable score since
//! the last payment. Sampling noise averages out and never becomes payable; honest work grows
//! faster than its standard error, so it is withheld only for a few rounds. In the last round the
//! whole sum of every participant whose payable score is positive becomes payable: what was withheld
//! is settled. If a task ends earlier, one more report without updates does the same.
//!
//! **Money follows measured improvement.** A round spends on scores at most its pool without the
//! [floor](crate::floor), at most `per_nat_max` for each nat of its increments, and no more than keeps
//! all score pay of the task within `per_nat_max` for each nat by which the model improved so
//! far. A [void](crate::void) round spends nothing on scores, carries the increments over and rolls
//! its pool over; it moves no bond.
//!
//! An update is excluded if its score is significantly negative (below −z·SE). It debits its
//! sender's bond at the same price per nat, and at no more than the round's pool would pay for a nat
//! of the round's improvement: where little is payable yet, as in the first round, the price of
//! increments alone would be `per_nat_max`. Its score also counts in the sum, so that a sender
//! whose scores fluctuate earns nothing from its good rounds. The part of earlier pay that a debit
//! claws back does not have to be earned again.

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::amount::{Amount, AmountError};
use crate::apportionment::{SplitError, split_by_weight};
use crate::debits::{HarmPrice, debit};
use crate::floor::split_floor;
use crate::id::{Address, Digest};
use crate::merkle::{ClaimTotals, ClaimTree};
use crate::message::VoidReason;
use crate::micro::Micro;
use crate::report::{InfrastructurePayment, UpdateScore, Valuation};
use crate::task::Budget;
use crate::void::void_reason;

/// Nano-nats per nat.
pub const NANO_PER_NAT: u128 = 1_000_000_000;

/// An account that can be owed money.
pub type Account = Address;

/// Accumulated scores and amounts of one account in a task, carried from report to report.
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
pub struct AccountTotals {
    /// Sum of its scores in nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub score_sum_nano: i128,
    /// Sum of its squared standard errors, in nano-nats squared.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub variance_nano2: u128,
    /// The part of the payable score that earlier increments already include, less clawbacks, in
    /// nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub paid_score_nano: u128,
    /// Running total paid for data.
    pub data: Amount,
    /// Running total paid for infrastructure.
    pub infrastructure: Amount,
    /// Running total debited from its bond.
    pub debited: Amount,
}

impl AccountTotals {
    /// The running totals that a settlement's root commits to: data plus infrastructure pay, and
    /// debits.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn claim_totals(&self) -> Result<ClaimTotals, AmountError> {
        Ok(ClaimTotals { paid: self.data.plus(self.infrastructure)?, debited: self.debited })
    }
}

/// The reason for a participant's pay in a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum PayReason {
    /// The payable score increased: paid by its increment.
    Paid,
    /// The summed score is positive but not significantly: withheld until later rounds.
    Withheld,
    /// The update changed nothing: score and standard error are exactly zero.
    Idle,
    /// The summed score is not positive, but the update is not significantly harmful: no pay, no
    /// debit.
    NotHelpful,
    /// The round is void, or all score pay that the improvement covers is spent: the increment is
    /// carried over.
    CarriedOver,
    /// Significantly harmful: not aggregated, and debited from the bond.
    Excluded,
}

/// The pay of one participant in one round.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct PayLine {
    /// The participant.
    pub account: Account,
    /// The increase of its payable score in this round, in nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub increment: u128,
    /// Amount owed for the round: for the increment, and the floor.
    pub payout: Amount,
    /// The floor in it.
    pub floor: Amount,
    /// Amount debited from its bond.
    pub debit: Amount,
    /// Reason for the amounts.
    pub reason: PayReason,
}

/// Result of the pay rule for one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPay {
    /// One line per participant, in the order of the scores.
    pub lines: Vec<PayLine>,
    /// In the last round, one line per account without a score whose withheld score is paid,
    /// ascending.
    pub final_lines: Vec<PayLine>,
    /// One line per piece of verified work.
    pub infrastructure: Vec<InfrastructurePayment>,
    /// Spent on scores in this round.
    pub score_pay: Amount,
    /// Spent on data in this round: on scores and on the floor.
    pub data_spent: Amount,
    /// Spent on infrastructure in this round.
    pub infrastructure_spent: Amount,
    /// Debited from bonds in this round.
    pub debited: Amount,
    /// The totals of the task after the round.
    pub totals: PayTotals,
}

/// The payments and the improvement of a task so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayTotals {
    /// The totals of each account.
    pub accounts: BTreeMap<Account, AccountTotals>,
    /// Improvement of the model over all rounds that changed it, in nano-nats.
    pub improvement_nano: u64,
    /// Paid for scores.
    pub score_pay: Amount,
}

/// Why a round cannot be paid. Each is an inconsistency of the inputs, not a response to a
/// participant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayError {
    /// An amount overflows or would become negative.
    #[error("round pay: {0}")]
    Amount(#[from] AmountError),
    /// The pool cannot be split by the weights.
    #[error("round pay: {0}")]
    Split(#[from] SplitError),
    /// The sums of an account's scores or squared errors overflow.
    #[error("round pay: scores of {0} overflow 128 bits")]
    Overflow(Account),
    /// Two scores for one account.
    #[error("round pay: {0} has two scores")]
    DuplicateScore(Account),
}

/// Amounts that a round may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundBudget {
    /// The most that this round may spend on data, with the floor.
    pub pool: Amount,
    /// The floor in it.
    pub floor: Amount,
    /// The remaining infrastructure budget of the task.
    pub infrastructure: Amount,
}

impl RoundBudget {
    /// The most that the round may spend on scores: the pool without the floor.
    fn for_scores(&self) -> Result<Amount, AmountError> {
        self.pool.minus(self.floor.min(self.pool))
    }
}

/// The result of a round's valuation, as far as the pay rule needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuedRound<'a> {
    /// The round improved the model by this many nano-nats.
    Improved(u64, &'a [UpdateScore]),
    /// The round is void.
    Void(VoidReason, &'a [UpdateScore]),
    /// The round has no scores.
    Abandoned,
}

impl<'a> ValuedRound<'a> {
    /// The round of a valuation.
    #[must_use]
    pub fn new(valuation: &'a Valuation) -> Self {
        let reason = valuation.void_reason();
        Self::from_reason(reason, &valuation.scores, valuation.improvement_nano())
    }

    /// A round whose scores have no gap.
    #[must_use]
    pub fn from_scores(scores: &'a [UpdateScore], improvement_nano: i64) -> Self {
        Self::from_reason(void_reason(scores, improvement_nano), scores, improvement_nano)
    }

    fn from_reason(
        reason: Option<VoidReason>,
        scores: &'a [UpdateScore],
        improvement_nano: i64,
    ) -> Self {
        match reason {
            Some(reason) => Self::Void(reason, scores),
            None => Self::Improved(u64::try_from(improvement_nano).unwrap_or(0), scores),
        }
    }

    /// Its improvement in nano-nats; 0 if it is not productive.
    fn improvement(self) -> u128 {
        match self {
            Self::Improved(improvement, _) => improvement.into(),
            Self::Void(..) | Self::Abandoned => 0,
        }
    }

    pub(crate) const fn scores(self) -> &'a [UpdateScore] {
        match self {
            Self::Improved(_, scores) | Self::Void(_, scores) => scores,
            Self::Abandoned => &[],
        }
    }
}

/// The inputs of a round's pay.
#[derive(Clone, Copy, Debug)]
pub struct PayInputs<'a> {
    /// The task's prices.
    pub budget: &'a Budget,
    /// The amounts that the round may spend.
    pub limits: RoundBudget,
    /// Whether this is the task's last round, or its end before that.
    pub is_last: bool,
    /// The totals before the round.
    pub before: &'a PayTotals,
    /// The valuation: one score per account.
    pub round: ValuedRound<'a>,
    /// Each account's bond.
    pub bonds: &'a BTreeMap<Account, Amount>,
    /// Verified work to pay.
    pub work: &'a [VerifiedWork],
}

/// Verified work to pay: provider, digest of its work record, units.
pub type VerifiedWork = (Account, Digest, u64);

/// The pool of a round: the remaining data budget divided by the remaining rounds, rounded down.
/// The last round may spend the whole rest.
#[must_use]
pub fn round_pool(data_left: Amount, rounds_left: u32) -> Amount {
    data_left.mul_div_down(1, u128::from(rounds_left.max(1))).unwrap_or(Amount::ZERO)
}

/// Computes the pay of one round.
///
/// # Errors
/// [`PayError`]; then the round pays nothing.
pub fn pay_round(inputs: &PayInputs<'_>) -> Result<RoundPay, PayError> {
    let PayInputs { budget, limits, before, round, .. } = *inputs;
    let scores = round.scores();
    let mut totals = before.clone();
    if let ValuedRound::Improved(improvement, _) = round {
        totals.improvement_nano = totals.improvement_nano.saturating_add(improvement);
    }
    let mut lines = score_lines(inputs, &mut totals.accounts)?;
    let mut final_lines =
        if inputs.is_last { final_lines(inputs, &totals.accounts)? } else { vec![] };

    let increments: Vec<u128> =
        lines.iter().chain(&final_lines).map(|line| line.increment).collect();
    let price = price_scores(inputs, &totals, &increments)?;
    let payouts = split_by_weight(price.spent, &increments)?;
    for (line, payout) in lines.iter_mut().chain(&mut final_lines).zip(payouts) {
        settle_line(line, payout, price.spent, totals.accounts.entry(line.account).or_default())?;
    }
    let is_void = matches!(round, ValuedRound::Void(..));
    let floors = split_floor(limits.floor, round, &totals.accounts, budget.confidence_z)?;
    let mut debited = Amount::ZERO;
    let harm_price =
        HarmPrice { price, most: limits.for_scores()?, improvement: round.improvement() };
    for ((line, floor), score) in lines.iter_mut().zip(floors).zip(scores) {
        let account = totals.accounts.entry(score.account).or_default();
        (line.floor, line.payout) = (floor, line.payout.plus(floor)?);
        account.data = account.data.plus(floor)?;
        if score.excluded && !is_void {
            let bond = inputs.bonds.get(&score.account).copied().unwrap_or_default();
            line.debit = debit(budget, harm_price, score, bond, account)?;
            account.debited = account.debited.plus(line.debit)?;
            debited = debited.plus(line.debit)?;
        }
    }
    totals.score_pay = totals.score_pay.plus(price.spent)?;
    let data_spent = price.spent.plus(Amount::total(lines.iter().map(|line| line.floor))?)?;
    let (infrastructure, infrastructure_spent) = pay_work(inputs, &mut totals.accounts)?;
    Ok(RoundPay {
        lines,
        final_lines,
        infrastructure,
        score_pay: price.spent,
        data_spent,
        infrastructure_spent,
        debited,
        totals,
    })
}

/// The amount that a round spends on scores, and the nano-nats that it pays.
#[derive(Clone, Copy)]
pub(crate) struct ScorePrice {
    pub(crate) spent: Amount,
    pub(crate) increments: u128,
}

/// The amount that the round spends on its increments.
fn price_scores(
    inputs: &PayInputs<'_>,
    totals: &PayTotals,
    increments: &[u128],
) -> Result<ScorePrice, PayError> {
    let PayInputs { budget, limits, .. } = *inputs;
    let sum = increments.iter().try_fold(0u128, |sum, nano| sum.checked_add(*nano));
    let increments = sum.ok_or(SplitError::Overflow)?;
    let covered = scaled_amount(budget.per_nat_max, totals.improvement_nano.into(), NANO_PER_NAT);
    let spent = scaled_amount(budget.per_nat_max, increments, NANO_PER_NAT)
        .min(limits.for_scores()?)
        .min(covered.minus(totals.score_pay.min(covered))?);
    Ok(ScorePrice { spent, increments })
}

/// Enters the payout of an increment into its line and its account. If the round spends nothing,
/// the increment is carried over.
fn settle_line(
    line: &mut PayLine,
    payout: Amount,
    spent: Amount,
    account: &mut AccountTotals,
) -> Result<(), PayError> {
    if line.increment == 0 {
        return Ok(());
    }
    if spent.is_zero() {
        line.increment = 0;
        if line.reason == PayReason::Paid {
            line.reason = PayReason::CarriedOver;
        }
        return Ok(());
    }
    line.payout = payout;
    account.paid_score_nano = account.paid_score_nano.saturating_add(line.increment);
    account.data = account.data.plus(payout)?;
    Ok(())
}

/// `rate × amount / unit`, rounded down and saturating at 2¹²⁸ − 1. A pool, a limit or a bond
/// always caps the result, so that a large rate cannot prevent a round from closing.
pub(crate) fn scaled_amount(rate: Amount, amount: u128, unit: u128) -> Amount {
    rate.mul_div_down(amount, unit).unwrap_or(Amount::from_units(u128::MAX))
}

/// Adds the round's scores to the accounts' totals, and computes the increments.
fn score_lines(
    inputs: &PayInputs<'_>,
    accounts: &mut BTreeMap<Account, AccountTotals>,
) -> Result<Vec<PayLine>, PayError> {
    let scores = inputs.round.scores();
    let mut seen = BTreeSet::new();
    let mut lines = Vec::with_capacity(scores.len());
    for score in scores {
        if !seen.insert(score.account) {
            return Err(PayError::DuplicateScore(score.account));
        }
        let totals = accounts.entry(score.account).or_default();
        if !matches!(inputs.round, ValuedRound::Void(VoidReason::Unresolved, _)) {
            add_score(totals, score)?;
        }
        lines.push(score_line(inputs, totals, score)?);
    }
    Ok(lines)
}

fn add_score(totals: &mut AccountTotals, score: &UpdateScore) -> Result<(), PayError> {
    let overflow = || PayError::Overflow(score.account);
    let error = u128::from(score.error_nano);
    totals.score_sum_nano =
        totals.score_sum_nano.checked_add(score.score_nano.into()).ok_or_else(overflow)?;
    totals.variance_nano2 = error
        .checked_mul(error)
        .and_then(|square| totals.variance_nano2.checked_add(square))
        .ok_or_else(overflow)?;
    Ok(())
}

const fn empty_line(account: Account, increment: u128, reason: PayReason) -> PayLine {
    PayLine {
        account,
        increment,
        payout: Amount::ZERO,
        floor: Amount::ZERO,
        debit: Amount::ZERO,
        reason,
    }
}

/// The line of a score, before any amount.
fn score_line(
    inputs: &PayInputs<'_>,
    totals: &AccountTotals,
    score: &UpdateScore,
) -> Result<PayLine, PayError> {
    let increment = increment(inputs, score.account, totals)?;
    let line = |increment, reason| Ok(empty_line(score.account, increment, reason));
    let is_void = matches!(inputs.round, ValuedRound::Void(..));
    if score.excluded && !is_void {
        return line(if inputs.is_last { increment } else { 0 }, PayReason::Excluded);
    }
    if increment > 0 {
        return match is_void && !inputs.is_last {
            true => line(0, PayReason::CarriedOver),
            false => line(increment, PayReason::Paid),
        };
    }
    let reason = if score.score_nano == 0 && score.error_nano == 0 {
        PayReason::Idle
    } else if totals.score_sum_nano > 0 {
        PayReason::Withheld
    } else {
        PayReason::NotHelpful
    };
    line(0, reason)
}

/// The lines of the last round for accounts without a score in it.
fn final_lines(
    inputs: &PayInputs<'_>,
    accounts: &BTreeMap<Account, AccountTotals>,
) -> Result<Vec<PayLine>, PayError> {
    let scored: BTreeSet<Account> =
        inputs.round.scores().iter().map(|score| score.account).collect();
    let mut lines = Vec::new();
    for (account, totals) in accounts {
        if scored.contains(account) {
            continue;
        }
        let increment = increment(inputs, *account, totals)?;
        if increment > 0 {
            lines.push(empty_line(*account, increment, PayReason::Paid));
        }
    }
    Ok(lines)
}

/// The increase of an account's payable score since the last payment. In the last round a positive
/// payable score is the whole sum.
fn increment(
    inputs: &PayInputs<'_>,
    account: Account,
    totals: &AccountTotals,
) -> Result<u128, PayError> {
    let payable = payable_nano(inputs.budget.confidence_z, totals);
    let mut payable = payable.ok_or(PayError::Overflow(account))?;
    if inputs.is_last && payable > 0 {
        payable = u128::try_from(totals.score_sum_nano).unwrap_or(payable);
    }
    Ok(payable.saturating_sub(totals.paid_score_nano))
}

/// The payable score of an account: `max(0, Σφ − z·√ΣSE²)` in nano-nats, with the square root and
/// the product rounded up. `None` on overflow.
#[must_use]
pub fn payable_nano(confidence_z: Micro, standing: &AccountTotals) -> Option<u128> {
    let scored = u128::try_from(standing.score_sum_nano).unwrap_or(0);
    let root = standing.variance_nano2.isqrt();
    let root =
        if root.checked_mul(root)? < standing.variance_nano2 { root.checked_add(1)? } else { root };
    let error = root.checked_mul(confidence_z.0.into())?.div_ceil(u128::from(Micro::ONE.0));
    Some(scored.saturating_sub(error))
}

fn pay_work(
    inputs: &PayInputs<'_>,
    standings: &mut BTreeMap<Account, AccountTotals>,
) -> Result<(Vec<InfrastructurePayment>, Amount), PayError> {
    let PayInputs { budget, work, .. } = *inputs;
    let mut left = inputs.limits.infrastructure;
    let mut spent = Amount::ZERO;
    let mut lines = Vec::with_capacity(work.len());
    for (provider, record, units) in work {
        let amount = scaled_amount(budget.per_unit, u128::from(*units), 1).min(left);
        left = left.minus(amount)?;
        spent = spent.plus(amount)?;
        let standing = standings.entry(*provider).or_default();
        standing.infrastructure = standing.infrastructure.plus(amount)?;
        lines.push(InfrastructurePayment {
            provider: *provider,
            record: *record,
            units: *units,
            amount,
        });
    }
    Ok((lines, spent))
}

/// The Merkle tree of running totals, to whose root a settlement commits. Accounts without pay
/// and debits have no leaf.
///
/// # Errors
/// [`AmountError::Overflow`].
pub fn claim_tree(standings: &BTreeMap<Account, AccountTotals>) -> Result<ClaimTree, AmountError> {
    let mut leaves = Vec::with_capacity(standings.len());
    for (account, standing) in standings {
        let totals = standing.claim_totals()?;
        if !totals.is_zero() {
            leaves.push((*account, totals));
        }
    }
    Ok(ClaimTree::new(leaves))
}

#[cfg(test)]
#[path = "pay_tests.rs"]
mod tests;
