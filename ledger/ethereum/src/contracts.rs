//! The contracts' bindings, generated from the committed `contracts/abi/`, and their bytecode.
//!
//! `cargo xtask contracts check` compares those files with a fresh compilation.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::panic,
    clippy::unwrap_used
)]

alloy_sol_types::sol!(
    #[derive(Debug, PartialEq, Eq)]
    Market,
    "../../contracts/abi/Market.json"
);
alloy_sol_types::sol!(
    #[derive(Debug, PartialEq, Eq)]
    FlorinToken,
    "../../contracts/abi/FlorinToken.json"
);
alloy_sol_types::sol!(
    #[derive(Debug, PartialEq, Eq)]
    Registry,
    "../../contracts/abi/Registry.json"
);

/// The protocol's form of an address.
#[must_use]
pub fn to_address(address: alloy_primitives::Address) -> florin_protocol::Address {
    florin_protocol::Address(address.into_array())
}
