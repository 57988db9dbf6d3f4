//! Debits: the price of harm, and the part of earlier pay that a debit claws back. `pay_tests.rs` has
//! the tests.

use crate::amount::Amount;
use crate::pay::{AccountTotals, NANO_PER_NAT, PayError, ScorePrice, scaled_amount};
use crate::report::UpdateScore;
use crate::task::Budget;

/// The price of harm in a round.
#[derive(Clone, Copy)]
pub(crate) struct HarmPrice {
    pub(crate) price: ScorePrice,
    /// The pool without the floor.
    pub(crate) most: Amount,
    /// The round's improvement in nano-nats.
    pub(crate) improvement: u128,
}

impl HarmPrice {
    /// The price of nano-nats of harm.
    fn of(self, budget: &Budget, harm: u128) -> Amount {
        let Self { price: ScorePrice { spent, increments }, most, improvement } = self;
        let due = match spent.is_zero() {
            true => scaled_amount(budget.per_nat_max, harm, NANO_PER_NAT),
            false => scaled_amount(spent, harm, increments),
        };
        due.min(scaled_amount(most, harm, improvement))
    }
}

/// The debit of a harmful update: its harm at the price of the round, up to the limit and the bond.
pub(crate) fn debit(
    budget: &Budget,
    price: HarmPrice,
    score: &UpdateScore,
    bond: Amount,
    account: &mut AccountTotals,
) -> Result<Amount, PayError> {
    let harm = u128::from(score.score_nano.unsigned_abs());
    let due = price.of(budget, harm);
    let debit = due.min(budget.debit_max).min(bond);
    clawback(account, harm, debit, due)?;
    Ok(debit)
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
