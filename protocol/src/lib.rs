//! Messages of a Florin market, and the exact bytes of each.
//!
//! The terms, in the order in which a round uses them:
//!
//! * **Task** ([`TaskSpec`]): model, data schema, rules, deadlines and budget. Immutable; its
//!   digest is its id.
//! * **Registration** ([`Registration`]): binds a wallet and a node key; each signs for the other.
//! * **Offer** ([`Offer`]): the coordinator's signed offer of one round: base model, deadlines
//!   and pool.
//! * **Commit** ([`Commit`]): a signed commitment to the digest of an update, made before any
//!   update can be read.
//! * **Update** ([`UpdateHeader`]): the signed header that precedes the bytes of the parameter
//!   delta.
//! * **Receipt** ([`Receipt`]): the coordinator's signed proof that it accepted an update.
//! * **Draw** ([`draw_rows`]): selects the rows of the [`holdout`] that evaluate the round, by a
//!   seed that is unpredictable until the reveal phase ends. The rows are disclosed with Merkle
//!   proofs ([`ShownRows`]) and evaluate no other round.
//! * **Score** ([`Scored`]): the value of an update as an integer number of nano-nats of validation
//!   loss. Floats end before this crate: `contribution::to_nano` is the only conversion.
//! * **Weight**: the part of the accumulated score that a round pays, after a margin of z standard
//!   errors is withheld ([`pay`]).
//! * **Payout**: an integer [`Amount`] owed, computed from the weights by the largest remainder
//!   method ([`payout`]).
//! * **Report** ([`Report`]): everything that an auditor needs to recompute the payouts of one
//!   round.
//! * **Statement** ([`Statement`]): the part of a report that concerns one account, in plain text.
//! * **Work record** ([`WorkRecord`]): a provider's signed result for work that can be verified by
//!   recomputation.
//! * **Claim**: withdraws earnings and applies debits, with a Merkle proof of running totals
//!   ([`merkle`]).
//!
//! This crate has no I/O, no clock, no randomness, no floats and no hash maps. Every signed message
//! names its market, and each kind of message is hashed under its own domain. `docs/protocol.md`
//! specifies the bytes; `vectors/` has golden vectors that programs in other languages reproduce.
//!
//! ```
//! use florin_protocol::{Amount, split_by_weight};
//! let pool: Amount = "10".parse().unwrap();
//! let parts = split_by_weight(pool, &[1, 1, 1]).unwrap();
//! assert_eq!(parts.iter().map(|a| a.units()).sum::<u128>(), pool.units());
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

mod bytes;
mod code;
mod draw;
mod earlier;
mod fixed;
mod format;
pub mod holdout;
mod id;
pub mod limits;
pub mod merkle;
mod message;
mod model;
mod money;
pub mod pay;
pub mod payout;
mod report;
#[cfg(feature = "schema")]
mod schema;
mod settle;
mod sign;
mod statement;
mod task;
mod time;
mod wire;
mod work;

pub use bytes::{Canonical, DecodeError, blob_digest};
pub use code::{Code, Rejection};
pub use draw::{DrawError, draw_rows, round_seed};
pub use earlier::EarlierUpdates;
pub use fixed::{FixedError, Micro};
pub use format::{TOP_K_PERMILLE_MAX, UpdateFormat};
pub use holdout::{Holdout, RowTree, ShownRow, ShownRows};
pub use id::{Address, ChainId, Digest, IdError, Market, NodeKey, PayoutId, Round, TaskId};
pub use message::{
    AbandonReason, Commit, Enrol, Missing, Offer, Receipt, RoundOutcome, Scope, UpdateHeader,
    UpdateId,
};
pub use money::{Amount, AmountError};
pub use pay::{Account, Line, PayError, Purse, Reason, RoundPay, Standing, pay_round, totals_tree};
pub use payout::{SplitError, split_by_weight};
pub use report::{
    Check, Entry, Evidence, HoldoutRound, Infrastructure, Metrics, Origin, Repeat, Report, Scored,
    Treatment, Valuation, Worth,
};
pub use settle::{Closing, close_round};
pub use sign::{
    CloseRequest, NodeSignature, NodeSigner, Registration, Role, SignError, Signed, Signer,
    UnpackedKey, VerifyError, WalletSignature, recover_wallet, typed_domain, verify_node,
    verify_wallet,
};
pub use statement::{Statement, nats};
pub use task::{
    Aggregation, Budget, Clip, DUST_PER_ROUND, DataSchema, Estimator, Model, Protection, Repeats,
    RoundRules, SETTLE_MS_MARGIN, SPEC_VERSION, SpecError, TaskSpec, Training,
};
pub use time::Tick;
pub use wire::{
    BlobRequest, ClaimProof, EthereumInfo, LedgerInfo, MarketInfo, Phase, TaskSummary, TaskView,
    UploadState, WorkQuery, WorkVerdict,
};
pub use work::{WorkOrder, WorkRecord, WorkResult};
