//! The demonstration on a development chain: the chain, the settlements as the contracts recorded
//! them, and a replay of all payments on an embedded ledger.

mod chain;
mod html;
mod on_chain;
mod replay;

pub(crate) use chain::DemoChain;
pub(crate) use html::section;
pub(crate) use on_chain::OnChain;
#[cfg(test)]
pub(crate) use on_chain::{Gas, RoundSettlement};
#[cfg(test)]
pub(crate) use replay::LedgerReplay;
