//! The rules of the market for compute, as a state machine over integers.
//!
//! ```text
//! order ─▶ bidding ─▶ revealing ─▶ funding ─▶ running ─▶ delivered ─▶ auditing ─▶ opening ─▶ settled
//!              │           │          │          │                        ▲          │
//!              └───────────┴──────────┴─ no lease: refund                 └─ silent  └─▶ disputing ─▶ slashed
//! ```
//!
//! * **Order** ([`ComputeOrder`]): the training that a renter buys, cut into segments. It fixes everything that the
//!   result depends on, so that a segment that starts at a given state has one end.
//! * **Job** ([`ComputeJob`]): the training, by the digests of its graph, rows and settings.
//! * **Bid** ([`Bid`]): a sealed price for a useful device-second. The lowest product of price and predicted
//!   time wins and is paid the second one ([`award`]).
//! * **Segment**: the unit of delivery and audit. The provider commits to its end by a salted leaf.
//! * **Audit** ([`draw_audits`]): auditors that are drawn after the delivery compute drawn segments again. They
//!   commit to their ends before the leaf opens.
//! * **Dispute** ([`Dispute`]): two traces that differ are halved until one step is left, which a referee
//!   computes.
//! * **Lease** ([`Lease`]): the order with its books. Each phase has a deadline and a default on silence that
//!   any account can trigger. After each action, the deposits are the sum of the balances.
//!
//! * **Listing** ([`Listing`]): devices that a provider offers under a stake. A probe ([`ProbeShape`]) tests its card
//!   before it counts, and its leases test it after that ([`Drift`]).
//!
//! This crate has no I/O, no clock, no randomness, no floats and no hash maps.
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

mod auction;
mod audit;
mod books;
mod card;
mod data_class;
mod dispute;
mod error;
mod job;
mod lease;
mod listing;
mod market_statistics;
mod observed_lease;
mod order;
mod record;
mod stake;
mod wallet_signed;

pub use auction::{Award, Bid, award, bid_commitment};
pub use audit::{AuditDraw, Secret, draw_auditors, draw_audits, end_commitment, segment_leaf};
pub use books::{Books, ComputeAccount};
pub use card::StepTimes;
pub use data_class::{DataClass, LEASE_READ_MS_MAX, LeaseRead};
pub use dispute::{Dispute, Party};
pub use error::LeaseError;
pub use job::{
    CHECKPOINTS_BYTES_MAX, ComputeJob, JOB_ROWS_MAX, LEASE_STATES_BYTES_MAX, VIRTUAL_WORKERS_MAX,
};
pub use lease::{Checkpoint, ComputeAction, Lease, LeaseOutcome, Phase, SegmentAudit};
pub use listing::{
    Card, DRAWN_LINKS, DRIFT_ALLOWANCE, DRIFT_LIMIT, DRIFT_RECOVERY_MAX, DRIFT_STEP_MAX,
    DrawnProbe, Drift, Factor, LISTED_DEVICES_MAX, LISTING_MS_MAX, LISTING_MS_MIN, LinksUpload,
    Listing, ListingAction, ListingEvent, ListingOpening, ListingOutcome, ListingPhase,
    ListingPolicy, ListingRecord, ListingRequest, ListingTerms, ListingView, PROBE_FIELD,
    PROBE_MATRIX_BYTES, PROBE_POOL, PROBE_SIDE, PROBE_SLACK, PROBE_STATES_MAX, PROBE_WINDOW_MS,
    PROBES_MAX, Probe, ProbeLink, ProbeShape, ProbeStep, SHOW_WINDOW_MS, SHOWN_BYTES_MAX,
    ShownFactor, ShownLink, ShownLinks, ShownState, SignedListingAction, SignedMessage,
    draw_commitment, drawn_links, first_state, pool_matrix, state_leaf, step,
};
pub use market_statistics::{DayPrice, MarketStatistics, ProviderStatistics, covered_ms};
pub use observed_lease::{AwardFacts, LeaseFacts, ObservedLease};
pub use order::{AuditTerms, ComputeOrder, Deposits, Windows};
pub use record::{
    CheckpointUpload, LeaseAction, LeaseOpening, LeaseRecord, OrderChanges, OrderMoney,
    OrderRequest, OrderView, RecordedAction, RecordedLease, SignedLeaseAction, StateUpload,
    beacon_commitment,
};
pub use stake::{PARTS, StakeRule, stake_min};
