//! The contracts as Rust sees them: bindings made from the committed `contracts/abi/`, and the bytecode.
//!
//! `cargo xtask contracts check` holds those files against a fresh compile.
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
