//! Verifiable work: orders, results and signed records.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::id::{Address, Digest, MarketId};
use crate::message::RoundScope;
use crate::report::{ModelMetrics, PublicBaseline, UpdateEntry, Valuation};
use crate::time::Timestamp;

/// Orders a provider to value and aggregate one round. Together with the task it names every input.
/// Signed by the coordinator's node key. The same inputs give the same result on every machine.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct WorkOrder {
    /// Market, task and round.
    pub scope: RoundScope,
    /// Digest of the model that the round starts from.
    pub base_model: Digest,
    /// Digest of the round's disclosed holdout rows: of [`crate::DisclosedRows::to_bytes`].
    pub disclosed_rows: Digest,
    /// Every accepted commit: sender and commitment, ascending by sender.
    pub commits: Vec<(Address, Digest)>,
    /// The accepted updates, ascending by sender.
    pub entries: Vec<UpdateEntry>,
    /// Deadline. After it the coordinator does the work itself.
    pub due: Timestamp,
    /// Digests of the base models of the preceding rounds, the latest first, at most
    /// [`GLOBAL_DELTAS_MAX`](crate::limits::GLOBAL_DELTAS_MAX); empty in round 1. The difference of
    /// two consecutive models is a global model delta; an update that repeats one earns nothing.
    pub previous_models: Vec<Digest>,
    /// The published updates of earlier rounds that the round's updates are compared with: senders
    /// and digests, in the order of
    /// [`EarlierUpdates::reference_updates`](crate::EarlierUpdates::reference_updates). Only its
    /// original sender is paid for an update.
    pub earlier_updates: Vec<(Address, Digest)>,
    /// Digests of the disclosed rows of earlier rounds that train the public baseline, the earliest
    /// first: at most the latest [`BASELINE_ROUNDS_MAX`](crate::limits::BASELINE_ROUNDS_MAX). Empty
    /// in a task without a public baseline.
    pub earlier_rows: Vec<Digest>,
}

impl Canonical for WorkOrder {
    const DOMAIN: &'static str = "florin v1 work order";
}

/// Result of a work order.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct WorkResult {
    /// Scores of the updates.
    pub valuation: Valuation,
    /// The step of the public baseline; absent in a void round, and in a task without a public
    /// baseline.
    pub baseline: Option<PublicBaseline>,
    /// Accuracy and loss of the model.
    pub metrics: ModelMetrics,
    /// Digest of the bytes of the round's model.
    pub model: Digest,
}

/// A provider's signed result of a work order; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct WorkRecord {
    /// Chain and market.
    pub market: MarketId,
    /// Digest of the work order.
    pub order: Digest,
    /// The provider's wallet.
    pub provider: Address,
    /// The result.
    pub result: WorkResult,
}

impl Canonical for WorkRecord {
    const DOMAIN: &'static str = "florin v1 work record";
}
