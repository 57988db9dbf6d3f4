//! Who owns what in a market: the trait [`Ledger`], the embedded [local chain](local), the [remote](remote) view of
//! one over HTTP, and one [conformance] suite that each of them passes.
//!
//! Double entry: money sits in accounts (`Wallet`, `Escrow`, `Bond`, `Stake`, `Owed`, `Treasury`) and only ever moves
//! from one to another. It is made once, at genesis. For every task, at every moment:
//! `deposited = data paid + infrastructure paid + refunded + still locked`.
//!
//! This crate knows amounts and nothing about machine learning. It has no floats; the local chain takes its clock as
//! an argument.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::float_arithmetic,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::as_conversions
    )
)]

mod api;

pub use api::{
    BondState, Claim, Ledger, LedgerError, PendingSettlement, Posted, Refusal, Settlement,
    SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};
