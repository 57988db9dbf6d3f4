//! From scores to money: the one rule by which a round pays, in integers from here on.
//!
//! Pay is linear in the score. A participant's scores and their squared standard errors are summed over the rounds;
//! what stands out of its own error by `withheld` standard errors is **payable**, and a round pays the part of it that
//! earlier rounds have not: that is the round's **weight**. Noise sums to nothing, so it never stands out; honest work
//! sums faster than its error, so nothing is kept from it for long.
//!
//! A round spends `min(pool, per_nat_max × Σ weights)`, split by weight. A round that made the model no better spends
//! nothing, keeps the weights for later and rolls its pool over.
//!
//! An update that was excluded, because its score is negative beyond its error, debits its sender's bond at the same
//! price per nat. Its score counts in the sum as well, so that a sender whose luck changes from round to round earns
//! nothing by its good days; what the debit took back from earlier pay need not be earned twice.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::fixed::Micro;
use crate::id::{Address, Digest};
use crate::merkle::{Totals, Tree};
use crate::money::{Amount, AmountError};
use crate::payout::{SplitError, split_by_weight};
use crate::report::{Infrastructure, Scored};
use crate::task::Budget;

/// Nano-nats in a nat.
pub const NANO: u128 = 1_000_000_000;

/// An account that can be owed something.
pub type Account = Address;

/// What a task has found out about one account so far; carried from report to report.
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
pub struct Standing {
    /// Sum of its scores in nano-nats.
    #[serde(with = "crate::report::text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub scored_nano: i128,
    /// Sum of its squared standard errors, in nano-nats squared.
    #[serde(with = "crate::report::text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub variance: u128,
    /// The part of the payable score that weights have counted already, less what debits took back, in nano-nats.
    #[serde(with = "crate::report::text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub counted_nano: u128,
    /// Running total paid for data.
    pub data: Amount,
    /// Running total paid for infrastructure.
    pub infrastructure: Amount,
    /// Running total debited from its bond.
    pub debited: Amount,
}

impl Standing {
    /// Its running totals as a settlement's root commits to them: data and infrastructure together, and debits.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn totals(&self) -> Result<Totals, AmountError> {
        Ok(Totals { paid: self.data.plus(self.infrastructure)?, debited: self.debited })
    }
}

/// Why a participant was paid what it was paid in a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Reason {
    /// Its scores stand out of their error: paid by weight.
    Paid,
    /// Positive so far, but not yet beyond its error: withheld, and counted later.
    Withheld,
    /// The update changed nothing: score and error are exactly zero.
    Idle,
    /// Its scores so far do not help, but not beyond their error: nothing paid, nothing debited.
    NotHelpful,
    /// The round did not improve the model: nobody is paid, the pool rolls over.
    NoImprovement,
    /// Negative beyond its error: kept out of the model, and debited from the bond.
    Excluded,
}

/// One participant's part of a round.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Line {
    /// Who.
    pub account: Account,
    /// The part of its payable score that this round counts, in nano-nats.
    #[serde(with = "crate::report::text")]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub weight: u128,
    /// Owed for it.
    pub payout: Amount,
    /// Taken from its bond.
    pub debit: Amount,
    /// Why.
    pub reason: Reason,
}

/// Everything that one round's pay decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPay {
    /// A line per participant, in the order of the scores.
    pub lines: Vec<Line>,
    /// A line per piece of verified work.
    pub infrastructure: Vec<Infrastructure>,
    /// Spent on data in this round.
    pub data_spent: Amount,
    /// Spent on infrastructure in this round.
    pub infrastructure_spent: Amount,
    /// Debited from bonds in this round.
    pub debited: Amount,
    /// The standings after the round.
    pub standings: BTreeMap<Account, Standing>,
}

/// Why a round cannot be paid. Each of these is a fault in the figures handed in, not an answer to a participant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayError {
    /// Amounts do not add up.
    #[error("round pay: {0}")]
    Amount(#[from] AmountError),
    /// Weights cannot be split.
    #[error("round pay: {0}")]
    Split(#[from] SplitError),
    /// A score or error so large that its sums overflow.
    #[error("round pay: scores of {0} overflow 128 bits")]
    Overflow(Account),
    /// The same account twice.
    #[error("round pay: {0} is scored twice")]
    Twice(Account),
}

/// What a round has to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purse {
    /// The most this round may spend on data.
    pub pool: Amount,
    /// What is left for infrastructure in the whole task.
    pub infrastructure: Amount,
}

/// Verified work to be paid: provider, digest of its work record, units.
pub type Work = (Account, Digest, u64);

/// The pool of a round: what is left for data, divided by the rounds that are left, rounded down. The last round has
/// everything that is left.
#[must_use]
pub fn round_pool(data_left: Amount, rounds_left: u32) -> Amount {
    data_left.mul_div_down(1, u128::from(rounds_left.max(1))).unwrap_or(Amount::ZERO)
}

/// Pays one round.
///
/// `scores` are the round's valued updates, each account once; `bonds` gives what each account has at risk;
/// `improvement_nano` is v(N) of the updates that went into the model, in nano-nats.
///
/// # Errors
/// [`PayError`]; nothing is paid then.
pub fn pay_round(
    budget: &Budget,
    purse: Purse,
    before: &BTreeMap<Account, Standing>,
    scores: &[Scored],
    bonds: &BTreeMap<Account, Amount>,
    improvement_nano: i64,
    work: &[Work],
) -> Result<RoundPay, PayError> {
    let mut standings = before.clone();
    let mut lines = Vec::with_capacity(scores.len());
    let mut seen = std::collections::BTreeSet::new();
    for score in scores {
        if !seen.insert(score.account) {
            return Err(PayError::Twice(score.account));
        }
        let standing = standings.entry(score.account).or_default();
        lines.push(weigh(budget.withheld, standing, score, improvement_nano)?);
    }
    let weights: Vec<u128> = lines.iter().map(|line| line.weight).collect();
    let weight_total =
        weights.iter().try_fold(0u128, |sum, w| sum.checked_add(*w)).ok_or(SplitError::Overflow)?;
    let data_spent = price(budget.per_nat_max, weight_total, NANO).min(purse.pool);
    let payouts = split_by_weight(data_spent, &weights)?;
    let mut debited = Amount::ZERO;
    for ((line, payout), score) in lines.iter_mut().zip(payouts).zip(scores) {
        line.payout = payout;
        if score.excluded {
            let harm = u128::from(score.score_nano.unsigned_abs());
            let due = match weight_total {
                0 => price(budget.per_nat_max, harm, NANO),
                _ => price(data_spent, harm, weight_total),
            };
            let bond = bonds.get(&score.account).copied().unwrap_or_default();
            line.debit = due.min(budget.debit_max).min(bond);
            debited = debited.plus(line.debit)?;
            take_back(standings.entry(score.account).or_default(), harm, line.debit, due)?;
        }
        let standing = standings.entry(score.account).or_default();
        standing.data = standing.data.plus(line.payout)?;
        standing.debited = standing.debited.plus(line.debit)?;
    }
    let (infrastructure, infrastructure_spent) = pay_work(budget, purse, work, &mut standings)?;
    Ok(RoundPay { lines, infrastructure, data_spent, infrastructure_spent, debited, standings })
}

/// `rate × amount / unit`, rounded down. Beyond 128 bits it is the largest amount there is: a pool, a limit or a bond
/// always caps it, so that no rate, however large, can keep a round from closing.
fn price(rate: Amount, amount: u128, unit: u128) -> Amount {
    rate.mul_div_down(amount, unit).unwrap_or(Amount::from_units(u128::MAX))
}

/// One participant's weight, and the account's new sums.
fn weigh(
    withheld: Micro,
    standing: &mut Standing,
    score: &Scored,
    improvement_nano: i64,
) -> Result<Line, PayError> {
    let overflow = || PayError::Overflow(score.account);
    let line = |weight, reason| Line {
        account: score.account,
        weight,
        payout: Amount::ZERO,
        debit: Amount::ZERO,
        reason,
    };
    let error = u128::from(score.error_nano);
    standing.scored_nano =
        standing.scored_nano.checked_add(score.score_nano.into()).ok_or_else(overflow)?;
    standing.variance = error
        .checked_mul(error)
        .and_then(|square| standing.variance.checked_add(square))
        .ok_or_else(overflow)?;
    if score.excluded {
        return Ok(line(0, Reason::Excluded));
    }
    if score.score_nano == 0 && score.error_nano == 0 {
        return Ok(line(0, Reason::Idle));
    }
    let payable = payable_nano(withheld, standing).ok_or_else(overflow)?;
    let weight = payable.saturating_sub(standing.counted_nano);
    if weight == 0 {
        let reason = if standing.scored_nano > 0 { Reason::Withheld } else { Reason::NotHelpful };
        return Ok(line(0, reason));
    }
    if improvement_nano <= 0 {
        return Ok(line(0, Reason::NoImprovement));
    }
    standing.counted_nano = payable;
    Ok(line(weight, Reason::Paid))
}

/// The part of an account's summed score that stands out of its summed error: `max(0, Σφ − z·√ΣSE²)`, both square root
/// and product rounded up, in nano-nats. `None` if it does not fit.
#[must_use]
pub fn payable_nano(withheld: Micro, standing: &Standing) -> Option<u128> {
    let scored = u128::try_from(standing.scored_nano).unwrap_or(0);
    let root = standing.variance.isqrt();
    let root =
        if root.checked_mul(root)? < standing.variance { root.checked_add(1)? } else { root };
    let error = root.checked_mul(withheld.0.into())?.div_ceil(u128::from(Micro::ONE.0));
    Some(scored.saturating_sub(error))
}

/// After a debit of `debit` where `price` would have been due for `harm` nano-nats: that share of the harm is settled,
/// and what was counted before shrinks by it.
fn take_back(
    standing: &mut Standing,
    harm: u128,
    debit: Amount,
    price: Amount,
) -> Result<(), PayError> {
    if !price.is_zero() {
        let settled = Amount::from_units(harm).mul_div_down(debit.units(), price.units())?;
        standing.counted_nano = standing.counted_nano.saturating_sub(settled.units());
    }
    Ok(())
}

fn pay_work(
    budget: &Budget,
    purse: Purse,
    work: &[Work],
    standings: &mut BTreeMap<Account, Standing>,
) -> Result<(Vec<Infrastructure>, Amount), PayError> {
    let mut left = purse.infrastructure;
    let mut spent = Amount::ZERO;
    let mut lines = Vec::with_capacity(work.len());
    for (provider, record, units) in work {
        let amount = price(budget.per_unit, u128::from(*units), 1).min(left);
        left = left.minus(amount)?;
        spent = spent.plus(amount)?;
        let standing = standings.entry(*provider).or_default();
        standing.infrastructure = standing.infrastructure.plus(amount)?;
        lines.push(Infrastructure { provider: *provider, record: *record, units: *units, amount });
    }
    Ok((lines, spent))
}

/// The tree of running totals: what a settlement's root commits to. Accounts that were neither paid nor debited are
/// left out.
///
/// # Errors
/// [`AmountError::Overflow`].
pub fn totals_tree(standings: &BTreeMap<Account, Standing>) -> Result<Tree, AmountError> {
    let mut leaves = Vec::with_capacity(standings.len());
    for (account, standing) in standings {
        let totals = standing.totals()?;
        if !totals.are_zero() {
            leaves.push((*account, totals));
        }
    }
    Ok(Tree::new(leaves))
}

#[cfg(test)]
#[path = "pay_tests.rs"]
mod tests;
