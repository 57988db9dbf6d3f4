//! The market's ledger: the trait [`Ledger`], the [embedded chain](embedded), the
//! [remote](remote) client of such a chain over HTTP, and one [conformance] suite that every ledger
//! passes, also the one on Ethereum (crate `florin-ledger-ethereum`).
//!
//! Bookkeeping is double entry: money is held in accounts (`Wallet`, `Escrow`, `Bond`, `Stake`,
//! `Owed`, `Treasury`) and only moves from one account to another. The whole supply is created
//! once, at genesis. For every task, at every moment:
//! `deposited = data paid + infrastructure paid + refunded + still locked`.
//!
//! This crate handles amounts only and contains no machine learning. It uses no floats. The
//! embedded chain takes its clock as an argument.
//!
//! ```
//! use std::sync::Arc;
//!
//! use florin_ledger::conformance::TestSigner;
//! use florin_ledger::{EmbeddedChain, Genesis, Ledger};
//! use florin_protocol::{ChainId, NodeSigner, Timestamp, WalletSigner};
//!
//! let folder = tempfile::tempdir()?;
//! let (operator, alice, bob) =
//!     (NodeSigner::from_seed(&[1; 32]), TestSigner::new(1)?, TestSigner::new(2)?);
//! let genesis = Genesis {
//!     chain_id: ChainId(1),
//!     operator: alice.address(),
//!     operator_key: operator.key(),
//!     allocations: vec![(alice.address(), "100".parse()?)],
//!     created: Timestamp(0),
//! };
//! let path = folder.path().join("ledger");
//! EmbeddedChain::create(&path, &genesis)?;
//! let chain = EmbeddedChain::open(&path, operator, Arc::new(|| Timestamp(1_000)))?;
//! chain.transfer(&alice, bob.address(), "2.5".parse()?)?;
//! assert_eq!(chain.balance(bob.address())?.to_string(), "2.5");
//! drop(chain);
//! assert_eq!(EmbeddedChain::verify(&path)?.transactions, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
pub mod conformance;
pub mod embedded;
mod entry;
pub mod ethereum;
mod lease;
pub mod limits;
mod listing;
pub mod model;
mod refusal;
pub mod remote;
pub mod rpc;
pub mod split;
pub mod state;
mod terms;
mod transaction;
mod transport;
pub mod trust_anchors;

pub use action::Action;
pub use api::{
    BondState, Claim, ClaimOutcome, Ledger, LedgerError, MemberShare, Objection, PendingSettlement,
    PostOutcome, Refusal, Settlement, SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};
pub use embedded::{
    Block, BlockSource, ChainError, ChainHead, ChainSnapshot, EmbeddedChain, FollowError, Genesis,
    LedgerClock, SignedHead, SnapshotHead, Verification, follow_head, verify_served_chain,
};
pub use entry::{Account, Cause, Movement, Pool};
pub use lease::{
    LEASE_CHALLENGE_MS_MAX, LEASE_CHALLENGE_MS_MIN, LEASE_SETTLE_MS, lease_claims, lease_task,
};
pub use listing::{listing_claims, listing_task};
pub use remote::RemoteLedger;
pub use transaction::{
    SignedTransaction, Transaction, TransactionOutcome, TransactionStatus, VerifiedTransaction,
};
pub use transport::{LedgerTransport, submit_remote};
pub use trust_anchors::{TrustAnchors, TrustAnchorsError};
