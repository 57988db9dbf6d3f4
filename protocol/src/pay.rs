//! The pay rule: integer payouts and debits of a round from its scores.
//!
//! Pay is linear in the score. For each participant the scores and their squared standard errors
//! are summed over the rounds. The **payable** score is `max(0, Σφ − z·√ΣSE²)`, where z is the
//! task's `confidence_z` setting. A round's **weight** is the increase of the payable score since
//! the last payment. Sampling noise averages out and never becomes payable; honest work grows
//! faster than its standard error, so it is withheld only for a few rounds.
//!
//! A round spends `min(pool, per_nat_max × Σ weights)`, split by weight. A round that does not
//! improve the model spends nothing, carries the weights over and rolls its pool over.
//!
//! An update is excluded if its score is significantly negative (below −z·SE). It debits its
//! sender's bond at the same price per nat. Its score also counts in the sum, so that a sender
//! whose scores fluctuate earns nothing from its good rounds. The part of earlier pay that a debit
//! claws back does not have to be earned again.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::amount::{Amount, AmountError};
use crate::apportionment::{SplitError, split_by_weight};
use crate::id::{Address, Digest};
use crate::merkle::{ClaimTotals, ClaimTree};
use crate::micro::Micro;
use crate::report::{InfrastructurePayment, UpdateScore};
use crate::task::Budget;

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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccountTotals {
    /// Sum of its scores in nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub score_sum_nano: i128,
    /// Sum of its squared standard errors, in nano-nats squared.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub variance_nano2: u128,
    /// The part of the payable score that earlier weights already include, less clawbacks, in
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PayReason {
    /// The payable score increased: paid by weight.
    Paid,
    /// The summed score is positive but not significantly: withheld until later rounds.
    Withheld,
    /// The update changed nothing: score and standard error are exactly zero.
    Idle,
    /// The summed score is not positive, but the update is not significantly harmful: no pay, no
    /// debit.
    NotHelpful,
    /// The round did not improve the model: no pay; the pool rolls over.
    NoImprovement,
    /// Significantly harmful: not aggregated, and debited from the bond.
    Excluded,
}

/// The pay of one participant in one round.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PayLine {
    /// The participant.
    pub account: Account,
    /// The increase of its payable score in this round, in nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub weight: u128,
    /// Amount owed for it.
    pub payout: Amount,
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
    /// One line per piece of verified work.
    pub infrastructure: Vec<InfrastructurePayment>,
    /// Spent on data in this round.
    pub data_spent: Amount,
    /// Spent on infrastructure in this round.
    pub infrastructure_spent: Amount,
    /// Debited from bonds in this round.
    pub debited: Amount,
    /// The totals of all accounts after the round.
    pub account_totals: BTreeMap<Account, AccountTotals>,
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
    /// The most that this round may spend on data.
    pub pool: Amount,
    /// The remaining infrastructure budget of the task.
    pub infrastructure: Amount,
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
/// `scores` has one score per account; `bonds` is each account's bond; `improvement_nano` is v(N)
/// of the aggregated updates, in nano-nats.
///
/// # Errors
/// [`PayError`]; then the round pays nothing.
pub fn pay_round(
    budget: &Budget,
    purse: RoundBudget,
    before: &BTreeMap<Account, AccountTotals>,
    scores: &[UpdateScore],
    bonds: &BTreeMap<Account, Amount>,
    improvement_nano: i64,
    work: &[VerifiedWork],
) -> Result<RoundPay, PayError> {
    let mut standings = before.clone();
    let mut lines = Vec::with_capacity(scores.len());
    let mut seen = std::collections::BTreeSet::new();
    for score in scores {
        if !seen.insert(score.account) {
            return Err(PayError::DuplicateScore(score.account));
        }
        let standing = standings.entry(score.account).or_default();
        lines.push(compute_weight(budget.confidence_z, standing, score, improvement_nano)?);
    }
    let weights: Vec<u128> = lines.iter().map(|line| line.weight).collect();
    let weight_total =
        weights.iter().try_fold(0u128, |sum, w| sum.checked_add(*w)).ok_or(SplitError::Overflow)?;
    let data_spent = scaled_amount(budget.per_nat_max, weight_total, NANO_PER_NAT).min(purse.pool);
    let payouts = split_by_weight(data_spent, &weights)?;
    let mut debited = Amount::ZERO;
    for ((line, payout), score) in lines.iter_mut().zip(payouts).zip(scores) {
        line.payout = payout;
        if score.excluded {
            let harm = u128::from(score.score_nano.unsigned_abs());
            let due = match weight_total {
                0 => scaled_amount(budget.per_nat_max, harm, NANO_PER_NAT),
                _ => scaled_amount(data_spent, harm, weight_total),
            };
            let bond = bonds.get(&score.account).copied().unwrap_or_default();
            line.debit = due.min(budget.debit_max).min(bond);
            debited = debited.plus(line.debit)?;
            clawback(standings.entry(score.account).or_default(), harm, line.debit, due)?;
        }
        let standing = standings.entry(score.account).or_default();
        standing.data = standing.data.plus(line.payout)?;
        standing.debited = standing.debited.plus(line.debit)?;
    }
    let (infrastructure, infrastructure_spent) = pay_work(budget, purse, work, &mut standings)?;
    Ok(RoundPay {
        lines,
        infrastructure,
        data_spent,
        infrastructure_spent,
        debited,
        account_totals: standings,
    })
}

/// `rate × amount / unit`, rounded down and saturating at 2¹²⁸ − 1. A pool, a limit or a bond
/// always caps the result, so that a large rate cannot prevent a round from closing.
fn scaled_amount(rate: Amount, amount: u128, unit: u128) -> Amount {
    rate.mul_div_down(amount, unit).unwrap_or(Amount::from_units(u128::MAX))
}

/// Adds a score to the account's totals and computes the participant's weight.
fn compute_weight(
    confidence_z: Micro,
    standing: &mut AccountTotals,
    score: &UpdateScore,
    improvement_nano: i64,
) -> Result<PayLine, PayError> {
    let overflow = || PayError::Overflow(score.account);
    let line = |weight, reason| PayLine {
        account: score.account,
        weight,
        payout: Amount::ZERO,
        debit: Amount::ZERO,
        reason,
    };
    let error = u128::from(score.error_nano);
    standing.score_sum_nano =
        standing.score_sum_nano.checked_add(score.score_nano.into()).ok_or_else(overflow)?;
    standing.variance_nano2 = error
        .checked_mul(error)
        .and_then(|square| standing.variance_nano2.checked_add(square))
        .ok_or_else(overflow)?;
    if score.excluded {
        return Ok(line(0, PayReason::Excluded));
    }
    if score.score_nano == 0 && score.error_nano == 0 {
        return Ok(line(0, PayReason::Idle));
    }
    let payable = payable_nano(confidence_z, standing).ok_or_else(overflow)?;
    let weight = payable.saturating_sub(standing.paid_score_nano);
    if weight == 0 {
        let reason =
            if standing.score_sum_nano > 0 { PayReason::Withheld } else { PayReason::NotHelpful };
        return Ok(line(0, reason));
    }
    if improvement_nano <= 0 {
        return Ok(line(0, PayReason::NoImprovement));
    }
    standing.paid_score_nano = payable;
    Ok(line(weight, PayReason::Paid))
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

/// Clawback: a debit of `debit` settles its share (`debit / price`) of the harm of `harm`
/// nano-nats, and the score paid so far shrinks by that share.
fn clawback(
    standing: &mut AccountTotals,
    harm: u128,
    debit: Amount,
    price: Amount,
) -> Result<(), PayError> {
    if !price.is_zero() {
        let settled = Amount::from_units(harm).mul_div_down(debit.units(), price.units())?;
        standing.paid_score_nano = standing.paid_score_nano.saturating_sub(settled.units());
    }
    Ok(())
}

fn pay_work(
    budget: &Budget,
    purse: RoundBudget,
    work: &[VerifiedWork],
    standings: &mut BTreeMap<Account, AccountTotals>,
) -> Result<(Vec<InfrastructurePayment>, Amount), PayError> {
    let mut left = purse.infrastructure;
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
