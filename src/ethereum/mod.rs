//! A market's ledger on Ethereum, behind the feature `ethereum`. A build without it has
//! `without_ethereum.rs` in its place, which refuses by name. The commands on contracts and the
//! demonstration on a development chain are beside their callers, behind the same feature.
//!
//! * [`node`]: the node, the file that names a market's contracts, the outbox next to a wallet.
//! * [`client`]: a market's ledger on Ethereum, for reading and for a wallet that writes.
//! * [`coordinate`]: the same for a coordinator.

mod client;
pub(crate) mod coordinate;
pub(crate) mod node;

pub(crate) use client::{ledger_without_coordinator, reading_ledger, signing_ledger};
