//! The market on Ethereum, with a node in the test's own process.

pub(crate) mod node;
