//! Everything of the program that needs a ledger on Ethereum, behind the feature `ethereum`. A
//! build without it has `without_ethereum.rs` in its place, which refuses by name.
//!
//! * [`node`]: the node, the file that names a market's contracts, the outbox next to a wallet.
//! * [`client`]: a market's ledger on Ethereum, for reading and for a wallet that writes.
//! * [`coordinate`]: the same for a coordinator.
//! * [`ledger`]: `florin ledger deploy`, `status` and `verify`.
//! * [`demo`]: the demonstration on a development chain.

mod client;
pub(crate) mod coordinate;
pub(crate) mod demo;
pub(crate) mod ledger;
mod node;

pub(crate) use client::{reading_ledger, signing_ledger};
