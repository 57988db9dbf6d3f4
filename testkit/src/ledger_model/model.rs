//! The model of the tests: six accounts, and the totals of all accounts in place of a root.

use florin_ledger::model;

pub use florin_ledger::model::{BUYER, Flaw, ModelResult, Rules, SplitFlaw, SplitModel};

pub const PEOPLE: usize = 6;
pub const INITIAL_BALANCE: i128 = 2_000;
/// Exceeds every amount of a ledger, and is later than every time.
pub const UNBOUNDED: i128 = i128::MAX;
/// The largest round number.
pub const LAST_ROUND: i128 = u32::MAX as i128;

/// The totals of every account, paid and debited.
pub type AllTotals = [model::Totals; PEOPLE];
pub type LedgerModel = model::LedgerModel<AllTotals>;
pub type Pending = model::Pending<AllTotals>;
