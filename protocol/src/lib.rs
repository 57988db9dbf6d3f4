//! Messages of a Florin market, and the exact bytes of each.
//!
//! The terms, in the order in which a round uses them:
//!
//! * **Task** ([`TaskSpec`]): model, data schema, rules, deadlines and budget. Immutable; its
//!   digest is its id.
//! * **Registration** ([`Registration`]): binds a wallet and a node key; each signs for the other.
//! * **Invitation** ([`Invitation`]): the buyer's signed admission of one account to a task.
//! * **Offer** ([`Offer`]): the coordinator's signed offer of one round: base model, deadlines
//!   and pool.
//! * **Commit** ([`Commit`]): a signed commitment to the digest of an update, made before any
//!   update can be read.
//! * **Update** ([`UpdateHeader`]): the signed header that precedes the bytes of the parameter
//!   delta.
//! * **Receipt** ([`UpdateReceipt`]): the coordinator's signed proof that it accepted an update.
//! * **Draw** ([`draw_rows`]): selects the rows of the [`holdout`] that evaluate the round, by a
//!   seed that is unpredictable until the reveal phase ends. The rows are disclosed with Merkle
//!   proofs ([`DisclosedRows`]) and evaluate no other round.
//! * **Score** ([`UpdateScore`]): the value of an update as an integer number of nano-nats of validation
//!   loss. Floats end before this crate: `contribution::to_nano` is the only conversion.
//! * **Weight**: the part of the accumulated score that a round pays, after a margin of z standard
//!   errors is withheld ([`pay`]).
//! * **Payout**: an integer [`Amount`] owed, computed from the weights by the largest remainder
//!   method ([`apportionment`]).
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

mod admission;
mod aggregation;
mod amount;
mod api;
pub mod apportionment;
mod bytes;
mod class_effects;
mod close_round;
mod debits;
mod decimal_float;
mod draw;
mod earlier_updates;
mod eip712;
pub mod encoding;
mod error_code;
pub mod floor;
mod format;
mod graph_model;
pub mod holdout;
mod id;
pub mod limits;
pub mod merkle;
mod message;
mod micro;
mod model;
pub mod pay;
pub mod payable;
mod preprocessing;
#[cfg_attr(target_family = "wasm", path = "recover_portable.rs")]
mod recover;
mod report;
mod report_check;
#[cfg(feature = "schema")]
mod schema;
mod selection;
mod signature;
mod spec_error;
mod staleness;
mod statement;
mod task;
mod task_blobs;
mod time;
mod training;
pub mod void;
mod work_order;

pub use admission::{Admission, Invitation, InvitationTerms, InvitationTextError};
pub use aggregation::Aggregation;
pub use amount::{Amount, AmountError};
pub use api::{
    BlobRequest, ClaimProof, EthereumInfo, LedgerInfo, MarketInfo, ReportSummary, TaskEnd,
    TaskPhase, TaskProgress, TaskSummary, TaskView, UploadProgress, WaitingStatus, WorkAcceptance,
    WorkRequest,
};
pub use apportionment::{SplitError, split_by_weight};
pub use bytes::{Canonical, DecodeError, blob_digest, keccak256};
pub use class_effects::{ClassEffects, SHARE_PARTS};
pub use close_round::{ReportInputs, close_round, end_task};
pub use decimal_float::{DecimalFloat, ParseDecimalFloatError};
pub use draw::{DrawError, draw_rows, round_seed};
pub use earlier_updates::EarlierUpdates;
pub use eip712::{TypedData, TypedValue};
pub use encoding::{
    ColumnEncoding, ColumnKind, FeatureEncoding, ImageEncoding, NumberEncoding, RowEncoding,
    TokenEncoding,
};
pub use error_code::{ErrorCode, Rejection};
pub use format::{TOP_K_PERMILLE_MAX, UpdateFormat};
pub use graph_model::{Blob, GraphForm, GraphModel, ModelLoss, TensorShape};
pub use holdout::{DisclosedRow, DisclosedRows, Holdout, HoldoutTree};
pub use id::{
    Address, ChainId, Digest, IdError, MarketId, NodeKey, RoundNumber, SettlementId, TaskId,
};
pub use message::{
    AbandonReason, Commit, EnrolRequest, LedgerReceipt, MissingReason, Offer, RoundOutcome,
    RoundScope, UpdateHeader, UpdateId, UpdateReceipt, UploadReceipt, VoidReason,
};
pub use micro::{Micro, ParseMicroError};
pub use model::{DataSchema, ModelArchitecture};
pub use pay::{
    Account, AccountTotals, NANO_PER_NAT, PayError, PayInputs, PayLine, PayReason, PayTotals,
    RoundBudget, RoundPay, ValuedRound, claim_tree, pay_round,
};
pub use preprocessing::{DuplicatePolicy, NormScaling, PreprocessingRules};
pub use report::{
    CoalitionValue, CrossCheck, DuplicateMatch, DuplicateSource, HoldoutSample,
    InfrastructurePayment, ModelMetrics, Preprocessing, PublicBaseline, Report, RoundTimes,
    ScoreEstimator, UpdateEntry, UpdateScore, Valuation, ValuationEvidence, ValuationStage,
};
pub use report_check::{Mismatch, check_draw, check_report};
pub use selection::{
    Candidate, Candidates, ClassHistory, DeadlineRule, ExplainedCandidate, MemberHistory,
    OngoingTraining, SCORE_PARTS, ScorePart, Selected, Selection, SelectionKnob, SelectionReason,
    SharedTask, Standing, TaskHistory, asked_by_attendance, commit_deadline_ms, draw_cohort,
    explain_cohort, first_cohort_seed, reserved_for_others, select_cohort,
};
pub use signature::{
    CloseRequest, DecompressedKey, NodeSignature, NodeSigner, Registration, Role, SignError,
    Signed, VerifyError, WalletSignature, WalletSigner, address_of_key, recover_wallet, sign_hash,
    verify_node, verify_wallet,
};
pub use spec_error::SpecError;
pub use staleness::{STALENESS_ROUNDS_MAX, StalenessRule, StalenessWeight};
pub use statement::{Statement, nats};
pub use task::{
    Budget, DATA_PER_ROUND_MIN, Estimator, RoundRules, SETTLEMENT_MARGIN_MS, SPEC_VERSION, TaskSpec,
};
pub use time::{Timestamp, format_ms};
pub use training::{Augmentation, NOISE_MIN_RANGE, Optimizer, Schedule, Training};
pub use work_order::{WorkOrder, WorkRecord, WorkResult};
