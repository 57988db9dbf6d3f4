//! The Ethereum ledger with a node in the test process.

mod conformance;
mod limits;
mod market;
mod model_agreement;
mod node;
