//! Integration tests of the ledgers: the embedded chain, the remote client and the Ethereum
//! implementation.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests unwrap, and the model uses small integers")]

mod model;
mod remote;
mod schema;
