//! JSON types of the coordinator's HTTP interface besides the signed messages: views, lists and
//! small requests. `docs/protocol.md` lists the routes.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::amount::{Amount, AmountError};
use crate::bytes::Canonical;
use crate::id::{Address, ChainId, Digest, MarketId, NodeKey, RoundNumber, TaskId};
use crate::merkle::ClaimTotals;
use crate::message::{Offer, RoundOutcome};
use crate::report::{ModelMetrics, Report};
use crate::signature::Signed;
use crate::task::TaskSpec;
use crate::time::Timestamp;

/// Identity of a market and its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MarketInfo {
    /// Version of the coordinator's program.
    pub version: String,
    /// Chain and genesis.
    pub market: MarketId,
    /// The coordinator's account.
    pub coordinator: Address,
    /// The key with which it signs offers, receipts, orders and reports.
    pub node_key: NodeKey,
    /// The market's ledger and its location.
    pub ledger: LedgerInfo,
    /// Current time of the coordinator's clock.
    pub now: Timestamp,
}

/// A market's ledger and its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LedgerInfo {
    /// The coordinator's embedded chain, served at `POST /v1/ledger`.
    Embedded,
    /// Contracts on the market's chain, which every client queries directly.
    Ethereum(EthereumInfo),
}

/// Addresses of a market's contracts. The market's genesis is the digest of chain and addresses, so
/// that a market cannot be presented with other contracts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EthereumInfo {
    /// The ERC-20 token of all amounts.
    pub token: Address,
    /// The market contract: escrow, bonds, stakes, settlements.
    pub market: Address,
    /// The registry contract: node keys of wallets.
    pub registry: Address,
    /// Block of the deployment; the market has no earlier events.
    pub block: u64,
    /// A node that the coordinator suggests to clients without one of their own.
    pub rpc: Option<String>,
}

/// The identity of a market on contracts. The block is not part of it: a reorganisation may change it.
#[derive(BorshSerialize, BorshDeserialize)]
struct ContractAddresses {
    chain: ChainId,
    token: Address,
    market: Address,
    registry: Address,
}

impl Canonical for ContractAddresses {
    const DOMAIN: &'static str = "florin v1 deployment";
}

impl EthereumInfo {
    /// The market on these contracts, as messages name it: its genesis is the digest of the chain id and
    /// the addresses.
    #[must_use]
    pub fn market_on(&self, chain: ChainId) -> MarketId {
        let (token, market, registry) = (self.token, self.market, self.registry);
        let genesis = ContractAddresses { chain, token, market, registry }.digest();
        MarketId { chain, genesis }
    }
}

/// Progress of a resumable upload: the sender continues at byte `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UploadProgress {
    /// Bytes that the coordinator has received.
    pub offset: u64,
    /// Total number of bytes.
    pub bytes: u64,
}

/// Phase of a task.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum TaskPhase {
    /// Published and funded; base model or holdout are not uploaded yet.
    AwaitingBlobs,
    /// Waiting for participants.
    Enrolling,
    /// An offer is open: participants train and commit.
    Committing,
    /// The commit phase is over: participants upload their updates.
    Revealing,
    /// The updates are being valued and aggregated.
    Valuing,
    /// The settlement is being posted to the ledger.
    Settling,
    /// Every round is settled; the task is being closed.
    Closing,
    /// Closed and refunded.
    Done,
}

/// Why a task ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum TaskEnd {
    /// Every round has a report.
    Completed,
    /// The buyer closed it.
    ClosedByBuyer,
    /// A settlement was cancelled or rejected; no round can be built on it.
    SettlementInvalid,
    /// No further round can be settled before it expires.
    Expired,
    /// It waited for `rounds.stall_ms` and had fewer than `cohort_min` eligible participants.
    Stalled,
    /// Too many rounds in a row were abandoned.
    RoundsAbandoned,
    /// It was closed on the ledger.
    ClosedOnLedger,
    /// No further round can be built: a fault of the coordinator.
    Fault,
    /// Its model or its holdout did not arrive in time.
    BlobsMissing,
    /// In a full market it made room for a task with more money.
    GaveWay,
}

impl TaskEnd {
    /// Whether a task that ends so before its last round pays what was withheld. After an invalid
    /// settlement, or when the ledger has closed the task, no further settlement is possible.
    #[must_use]
    pub const fn settles_withheld(self) -> bool {
        match self {
            Self::Completed
            | Self::ClosedByBuyer
            | Self::Expired
            | Self::Stalled
            | Self::RoundsAbandoned
            | Self::GaveWay => true,
            Self::SettlementInvalid | Self::ClosedOnLedger | Self::Fault | Self::BlobsMissing => {
                false
            }
        }
    }
}

/// The participants that a task without an open round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WaitingStatus {
    /// Eligible participants that the next round needs now.
    pub needed: u32,
    /// Eligible participants.
    pub eligible: u32,
    /// Enrolled participants whose bond is below `budget.bond_min`.
    pub bond_too_small: u32,
    /// Enrolled participants that missed a commit or a reveal and have not enrolled again, or,
    /// before `target_until`, that sit out the next round.
    pub inactive: u32,
    /// From this time on `cohort_min` participants are enough.
    pub target_until: Timestamp,
    /// When the task ends if it still has too few.
    pub ends: Timestamp,
}

/// Public state of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Version of this view; it grows with every change. Request the next one with `?after=` (long
    /// poll).
    pub sequence: u64,
    /// Current time of the coordinator's clock.
    pub now: Timestamp,
    /// The task's id.
    pub id: TaskId,
    /// The task specification.
    pub spec: TaskSpec,
    /// Current phase.
    pub phase: TaskPhase,
    /// From this moment on the phase is over; `None` where it has no deadline.
    #[serde(default)]
    pub phase_ends: Option<Timestamp>,
    /// The current round, or the last one.
    pub round: RoundNumber,
    /// Rounds with a report.
    pub reported: u32,
    /// Settlements that are final on the ledger.
    pub finalised: u32,
    /// Participants enrolled.
    pub enrolled: u32,
    /// Commits accepted in the current round.
    pub committed: u32,
    /// Updates accepted in the current round.
    pub revealed: u32,
    /// The current round's offer.
    pub offer: Option<Signed<Offer>>,
    /// Digest of the latest model.
    pub model: Digest,
    /// Blobs that have not been uploaded yet.
    pub missing_blobs: Vec<Digest>,
    /// Whether the holdout has not been uploaded yet.
    pub holdout_missing: bool,
    /// The participants that the task waits for, while it has no open round.
    pub waiting: Option<WaitingStatus>,
    /// Why the task ended, once no more rounds start.
    pub end: Option<TaskEnd>,
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskSummary {
    /// The task's id.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// Current phase.
    pub phase: TaskPhase,
    /// The current or last round.
    pub round: RoundNumber,
    /// Total number of rounds.
    pub rounds: u32,
    /// Participants enrolled.
    pub enrolled: u32,
    /// Initial budget for data.
    pub data: Amount,
    /// Initial budget for infrastructure.
    pub infrastructure: Amount,
    /// Paid for data in all rounds with a report.
    #[serde(default)]
    pub data_paid: Amount,
    /// Paid for infrastructure in all rounds with a report.
    #[serde(default)]
    pub infrastructure_paid: Amount,
}

/// A report in the list of a task's rounds. The list is not signed: the report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReportSummary {
    /// The round.
    pub round: RoundNumber,
    /// Digest of the report.
    pub report: Digest,
    /// How the round ended.
    pub outcome: RoundOutcome,
    /// Digest of the model after the round.
    pub model: Digest,
    /// Root of the claim tree after the round.
    pub root: Digest,
    /// Updates that were accepted.
    pub accepted: u32,
    /// Selected participants without an accepted update.
    pub missing: u32,
    /// Accuracy and loss of the model; absent in an abandoned round.
    pub metrics: Option<ModelMetrics>,
    /// Paid for data in the round.
    pub data: Amount,
    /// Paid for infrastructure in the round.
    pub infrastructure: Amount,
    /// Paid for data in the task so far.
    pub data_total: Amount,
    /// Paid for infrastructure in the task so far.
    pub infrastructure_total: Amount,
}

impl ReportSummary {
    /// The summary of a report.
    ///
    /// # Errors
    /// [`AmountError`] if the pay of the round exceeds every amount.
    pub fn from_report(report: &Report) -> Result<Self, AmountError> {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Ok(Self {
            round: report.scope.round,
            report: report.digest(),
            outcome: report.outcome,
            model: report.model,
            root: report.root,
            accepted: count(report.entries.len()),
            missing: count(report.missing.len()),
            metrics: report.metrics,
            data: report.data_paid()?,
            infrastructure: Amount::total(report.infrastructure.iter().map(|paid| paid.amount))?,
            data_total: report.data_total,
            infrastructure_total: report.infrastructure_total,
        })
    }
}

/// How far a task has come: the data of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskProgress {
    /// Version of the task's view.
    pub sequence: u64,
    /// Current phase.
    pub phase: TaskPhase,
    /// The current or last round.
    pub round: RoundNumber,
    /// Rounds with a report.
    pub reported: u32,
    /// Settlements that are final on the ledger.
    pub finalised: u32,
    /// Participants enrolled.
    pub enrolled: u32,
    /// Commits accepted in the current round.
    pub committed: u32,
    /// Updates accepted in the current round.
    pub revealed: u32,
}

/// Running totals with their Merkle proof, as a claim needs them. Only final settlements have
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClaimProof {
    /// Round of the last final settlement.
    pub round: RoundNumber,
    /// The root on the ledger.
    pub root: Digest,
    /// The account's running totals; zero, with an empty proof, if it has neither pay nor
    /// debits.
    pub totals: ClaimTotals,
    /// Sibling hashes.
    pub proof: Vec<Digest>,
}

/// A pledged provider's request for a blob that is not public yet; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct BlobRequest {
    /// Chain and market.
    pub market: MarketId,
    /// The task it belongs to.
    pub task: TaskId,
    /// The blob.
    pub digest: Digest,
    /// The provider's wallet.
    pub sender: Address,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
}

impl Canonical for BlobRequest {
    const DOMAIN: &'static str = "florin v1 blob request";
}

/// A provider's request for work; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct WorkRequest {
    /// Chain and market.
    pub market: MarketId,
    /// The task to which its stake is pledged.
    pub task: TaskId,
    /// The provider's wallet.
    pub provider: Address,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
}

impl Canonical for WorkRequest {
    const DOMAIN: &'static str = "florin v1 work query";
}

/// The response to a work record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkAcceptance {
    /// Units that the round's settlement will pay.
    pub units: u64,
}
