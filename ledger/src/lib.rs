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
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod action;
mod api;
pub mod bench;
mod channel;
pub mod conformance;
mod entry;
pub mod limits;
pub mod local;
pub mod remote;
pub mod rpc;
pub mod state;
mod transaction;

pub use action::Action;
pub use api::{
    BondState, Claim, Ledger, LedgerError, PendingSettlement, Posted, Refusal, Settlement,
    SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};
pub use entry::{Account, Cause, Movement, Pool};
pub use local::{Block, ChainError, Clock, Genesis, Head, LocalChain, Verification};
pub use remote::RemoteLedger;
pub use transaction::{Checked, Fate, Outcome, SignedTransaction, Transaction};
