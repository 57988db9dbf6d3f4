//! The Ethereum ledger on anvil.

mod chain;
mod conformance;
mod exactly_once;
mod faulty_endpoints;
mod market;
mod outbox;
mod sending;
