//! Work that the market needs and can check: orders, results and signed records.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::id::{Address, Digest, Market};
use crate::message::Scope;
use crate::report::{Entry, Metrics, Valuation};
use crate::time::Tick;

/// "Value and aggregate this round": what a provider is asked to do, and all that it takes besides the task itself.
/// Signed by the coordinator's node key. The same inputs give the same result on anybody's machine.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkOrder {
    /// Market, task and round.
    pub scope: Scope,
    /// Digest of the model the round began with.
    pub base_model: Digest,
    /// Digest of the rows that judge the round, shown with their proofs: of [`crate::ShownRows::to_bytes`].
    pub holdout: Digest,
    /// Every commit that was taken: sender and commitment, ascending by sender.
    pub commits: Vec<(Address, Digest)>,
    /// The accepted updates, ascending by sender.
    pub entries: Vec<Entry>,
    /// After this moment the coordinator does the work itself.
    pub due: Tick,
    /// Digests of the models that the rounds before began with, the latest first, at most
    /// [`PUBLIC_STEPS_MAX`](crate::limits::PUBLIC_STEPS_MAX); none in round 1. From each to the one after it is a public
    /// step, which nobody is paid for twice.
    pub previous: Vec<Digest>,
    /// The updates of earlier rounds that everybody can read and that nobody but their sender is paid for, by
    /// [`EarlierUpdates::held_against`](crate::EarlierUpdates::held_against): senders and digests, in that order.
    pub last_updates: Vec<(Address, Digest)>,
}

impl Canonical for WorkOrder {
    const DOMAIN: &'static str = "florin v1 work order";
}

/// What the work gives.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkResult {
    /// What the updates were worth.
    pub valuation: Valuation,
    /// How good the model is.
    pub metrics: Metrics,
    /// Digest of the aggregated model's bytes.
    pub model: Digest,
}

/// A provider's claim to have done an order; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkRecord {
    /// Chain and market.
    pub market: Market,
    /// Digest of the order.
    pub order: Digest,
    /// The provider's wallet.
    pub provider: Address,
    /// What came out.
    pub result: WorkResult,
}

impl Canonical for WorkRecord {
    const DOMAIN: &'static str = "florin v1 work record";
}
