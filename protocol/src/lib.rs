//! What may be said in a Florin market, and exactly which bytes say it.
//!
//! The words, in the order a round meets them:
//!
//! * **Task** ([`TaskSpec`]): model, data schema, rules, deadlines and budget. Immutable; its digest is its id.
//! * **Registration** ([`Registration`]): a wallet and a node key, each signing for the other.
//! * **Offer** ([`Offer`]): the coordinator's signed invitation to one round: base model, deadlines, pool, bond.
//! * **Commit** ([`Commit`]): the digest of an update and a salt, signed before anybody can read an upload.
//! * **Update** ([`UpdateHeader`]): the signed header that travels in front of the parameter delta's bytes.
//! * **Receipt** ([`Receipt`]): the coordinator's signed proof that it took an update.
//! * **Draw** ([`draw_rows`]): which rows of the [`holdout`] judge the round, by a seed that nobody could know before
//!   the reveals closed. They are shown with their proofs ([`ShownRows`]) and judge no other round.
//! * **Score**: what an update was worth, in integer nano-nats of validation loss ([`Scored`]). Floats stop before
//!   this crate: `contribution` has the one door.
//! * **Weight**: the part of the scores that is paid now, after what is withheld for their error ([`pay`]).
//! * **Payout**: an integer [`Amount`] owed, from weights by largest remainder ([`payout`]).
//! * **Report** ([`Report`]): everything a stranger needs to recompute one round's payouts.
//! * **Statement** ([`Statement`]): the same, told to one participant.
//! * **Work record** ([`WorkRecord`]): a provider's signed result for work that the market can check.
//! * **Claim**: drawing what is owed, and taking what is debited, with a Merkle proof of running totals ([`merkle`]).
//!
//! This crate does no input or output and has no clock, no randomness, no floats and no hash maps. Every signed thing
//! names its market, and is hashed under a domain of its own: see `docs/protocol.md`, and `vectors/` for golden bytes
//! that another language reproduces.
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
