//! The result of a claim.

use florin_protocol::Amount;
use florin_protocol::merkle::ClaimTotals;

/// The result of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimSummary {
    /// Amount that this claim paid out; zero if everything was paid before.
    pub paid: Amount,
    /// Amount that this claim took from the account's bond, for debits that the same proof covers.
    pub taken: Amount,
    /// Cumulative totals of the account over all final settlements of the task.
    pub totals: ClaimTotals,
}
