//! Test fixtures that several crates share. No installed program depends on this crate.
//!
//! * [`figures`] writes the figures that tests measure.
//! * [`ledger_model`] is an independent model of the ledger's rules in small integers.
#![allow(missing_docs, reason = "only tests call it")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it panics")]

pub mod figures;
pub mod ledger_model;
