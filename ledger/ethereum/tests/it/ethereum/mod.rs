//! The Ethereum ledger with a node in the test process.

mod conforms;
mod limits;
mod market;
mod node;
mod same_rules;
