//! The market on Ethereum, with a node in the test's own process.

mod conforms;
mod limits;
mod market;
mod node;
mod same_rules;
