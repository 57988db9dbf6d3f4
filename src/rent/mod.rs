//! Leases of compute as renters and the market see them: quotes of orders, the history of a lease from its
//! verified record, statements of its accounts, and expected earnings. No I/O.

mod doubts;
mod earnings;
mod expectation;
mod history;
mod market_order;
mod quote;
mod reasons;
pub(crate) mod records;
mod statement;
#[cfg(test)]
mod tests;

pub(crate) use doubts::{OrderFacts, doubts};
pub(crate) use earnings::{Earnings, Net, OrderEarnings};
pub(crate) use expectation::ExpectedEarnings;
pub(crate) use history::{LeaseHistory, LeaseNews, LeaseTransfer, outcome_text};
pub(crate) use market_order::{MarketOrder, statistics_json};
pub(crate) use quote::{OrderQuote, percent};
pub(crate) use statement::{AccountStatement, account_statements};
