//! The Ethereum ledger on anvil.

mod chain;
mod conformance;
