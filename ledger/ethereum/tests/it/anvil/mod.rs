//! The Ethereum ledger on anvil.

mod chain;
mod conformance;
mod flaky;
mod once;
mod outbox;
mod scene;
mod sending;
