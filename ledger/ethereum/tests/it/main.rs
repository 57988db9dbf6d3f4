//! The ledger on Ethereum as its users see it. The list of modules is the table of contents.
#![allow(missing_docs)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests unwrap, and the model counts in small integers"
)]

mod anvil;
mod ethereum;
