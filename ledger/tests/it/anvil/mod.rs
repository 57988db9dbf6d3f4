//! The Ethereum ledger on anvil.

mod chain;
mod conformance;
mod flaky;
mod once;
mod sending;
