//! What the coordinator's HTTP interface says beyond the signed messages: views, lists and small requests, as JSON.
//! `docs/protocol.md` lists the routes.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::id::{Address, Digest, Market, NodeKey, Round, TaskId};
use crate::merkle::Totals;
use crate::message::Offer;
use crate::money::Amount;
use crate::sign::Signed;
use crate::task::TaskSpec;
use crate::time::Tick;

/// Who runs this market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MarketInfo {
    /// The program's version.
    pub version: String,
    /// Chain and genesis.
    pub market: Market,
    /// The coordinator's account.
    pub coordinator: Address,
    /// What it signs offers, receipts, orders and reports with.
    pub node_key: NodeKey,
    /// Which ledger keeps the money, and where it is found.
    pub ledger: LedgerInfo,
    /// The coordinator's clock.
    pub now: Tick,
}

/// Which ledger keeps a market's money, and where it is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LedgerInfo {
    /// The coordinator's own chain: it answers `POST /v1/ledger`.
    Embedded,
    /// Contracts on the market's chain, which everybody asks for themselves.
    Ethereum(EthereumInfo),
}

/// Where a market's contracts are. Its genesis is the digest of chain and addresses, so that nobody can name others for
/// the same market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EthereumInfo {
    /// The ERC-20 that everything is counted in.
    pub token: Address,
    /// Escrow, bonds, stakes, settlements.
    pub market: Address,
    /// Node keys of wallets.
    pub registry: Address,
    /// The block that holds the deployment: nothing of the market is older.
    pub block: u64,
    /// A node that the coordinator suggests to those who have none of their own.
    pub rpc: Option<String>,
}

/// How far an upload has come: its sender goes on with byte `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UploadState {
    /// Bytes that the coordinator has.
    pub offset: u64,
    /// All its bytes.
    pub bytes: u64,
}

/// Where a task is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Phase {
    /// Published and funded; its base model or holdout has not been uploaded yet.
    AwaitingBlobs,
    /// Waiting for participants.
    Enrolling,
    /// An offer is out: participants train and commit.
    Committing,
    /// Commits are closed: updates are uploaded.
    Revealing,
    /// Updates are being valued and aggregated.
    Valuing,
    /// The settlement is on its way to the ledger.
    Settling,
    /// Every round is settled; the task is being closed.
    Closing,
    /// Closed and refunded.
    Done,
}

/// A task as anybody may see it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Grows with every change of this view; ask for the next with `?after=`.
    pub sequence: u64,
    /// The coordinator's clock.
    pub now: Tick,
    /// The task's id.
    pub id: TaskId,
    /// The task.
    pub spec: TaskSpec,
    /// Where it is.
    pub phase: Phase,
    /// The round that is running, or the last one.
    pub round: Round,
    /// Rounds with a report.
    pub reported: u32,
    /// Settlements that are final on the ledger.
    pub finalised: u32,
    /// Participants enrolled.
    pub enrolled: u32,
    /// Commits taken in the running round.
    pub committed: u32,
    /// Updates taken in the running round.
    pub revealed: u32,
    /// The running round's offer.
    pub offer: Option<Signed<Offer>>,
    /// The newest model.
    pub model: Digest,
    /// Blobs the coordinator still waits for.
    pub wanted: Vec<Digest>,
    /// Whether it still waits for the holdout.
    pub holdout_wanted: bool,
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskSummary {
    /// The task's id.
    pub id: TaskId,
    /// Its name.
    pub name: String,
    /// Where it is.
    pub phase: Phase,
    /// The running or last round.
    pub round: Round,
    /// How many there will be.
    pub rounds: u32,
    /// Participants enrolled.
    pub enrolled: u32,
    /// The data pool it began with.
    pub data: Amount,
    /// The infrastructure pool it began with.
    pub infrastructure: Amount,
}

/// Running totals and their proof: what a claim needs. Only final settlements have one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClaimProof {
    /// The last final round.
    pub round: Round,
    /// The root on the ledger.
    pub root: Digest,
    /// The account's running totals; zero, with an empty proof, if it was neither paid nor debited.
    pub totals: Totals,
    /// Sibling hashes.
    pub proof: Vec<Digest>,
}

/// A pledged provider's request for a blob that is not public yet; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BlobRequest {
    /// Chain and market.
    pub market: Market,
    /// The task it belongs to.
    pub task: TaskId,
    /// The blob.
    pub digest: Digest,
    /// The provider's wallet.
    pub sender: Address,
    /// Not to be honoured after this moment.
    pub expires: Tick,
}

impl Canonical for BlobRequest {
    const DOMAIN: &'static str = "florin v1 blob request";
}

/// A provider's question for work; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkQuery {
    /// Chain and market.
    pub market: Market,
    /// The task it has pledged its stake to.
    pub task: TaskId,
    /// The provider's wallet.
    pub provider: Address,
    /// Not to be honoured after this moment.
    pub expires: Tick,
}

impl Canonical for WorkQuery {
    const DOMAIN: &'static str = "florin v1 work query";
}

/// What became of a work record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkVerdict {
    /// Units that will be paid with the round's settlement.
    pub units: u64,
}
