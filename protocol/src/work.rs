//! Work that the market needs and can check: orders, results and signed records.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::id::{Address, Digest, Market};
use crate::limits::LAST_UPDATES_BYTES_MAX;
use crate::message::Scope;
use crate::report::{Entry, Metrics, Report, Valuation};
use crate::task::{Protection, Repeats};
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
    /// The updates of the round before, by [`last_updates`]: their senders and digests, ascending by sender. Everybody
    /// can read them, so that nobody is paid for those of others.
    pub last_updates: Vec<(Address, Digest)>,
}

/// The updates that a round's are held against because everybody could read them when it began: those of the round
/// before, whatever it came to, but for what was set aside there: else whoever sends a member's old update once more
/// would have that member's next one held against it. None in round 1, where the task pays for repeats, and where all
/// of them, decoded, would have more than [`LAST_UPDATES_BYTES_MAX`] bytes; `model_bytes` is the length of one.
#[must_use]
pub fn last_updates(
    rules: Protection,
    before: Option<&Report>,
    model_bytes: u64,
) -> Vec<(Address, Digest)> {
    let entries = before.map_or(&[][..], |report| &report.entries);
    let bytes = u64::try_from(entries.len()).map_or(u64::MAX, |n| model_bytes.saturating_mul(n));
    if rules.repeats == Repeats::Counted || bytes > LAST_UPDATES_BYTES_MAX {
        return Vec::new();
    }
    let valuation = before.and_then(|report| report.valuation.as_ref());
    let scores = valuation.map_or(&[][..], |valuation| &valuation.scores);
    let repeating: BTreeSet<Address> = scores
        .iter()
        .filter(|score| score.treatment.repeats.is_some())
        .map(|score| score.account)
        .collect();
    let own_work = entries.iter().filter(|entry| !repeating.contains(&entry.sender));
    own_work.map(|entry| (entry.sender, entry.update)).collect()
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
