//! What passes between coordinator and participants in a round.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::Canonical;
use crate::code::Code;
use crate::id::{Address, Digest, Market, Round, TaskId};
use crate::limits::ROWS_MAX;
use crate::money::Amount;
use crate::time::Tick;

/// Where something was said: carried by every signed message of a round, so that it means nothing anywhere else.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Scope {
    /// Chain and market.
    pub market: Market,
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: Round,
}

/// A participant's wish to be asked in a task's rounds; signed by its node key. Saying it again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Enrol {
    /// Chain and market.
    pub market: Market,
    /// The task.
    pub task: TaskId,
    /// The participant's wallet.
    pub sender: Address,
    /// Not to be accepted after this moment.
    pub expires: Tick,
}

impl Canonical for Enrol {
    const DOMAIN: &'static str = "florin v1 enrol";
}

/// The coordinator's invitation to one round; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Offer {
    /// Market, task and round.
    pub scope: Scope,
    /// Digest of the model to train from.
    pub base_model: Digest,
    /// The report of the round before; the task's id in round 1. Chains a task's rounds.
    pub previous: Digest,
    /// Who is asked, ascending.
    pub cohort: Vec<Address>,
    /// When the round opened.
    pub opened: Tick,
    /// The last moment for a commit.
    pub commit_by: Tick,
    /// The last moment for an upload.
    pub reveal_by: Tick,
    /// The most that this round can pay for data.
    pub pool: Amount,
}

impl Canonical for Offer {
    const DOMAIN: &'static str = "florin v1 offer";
}

/// A promise of one particular update, made before anybody can read an upload; signed by the sender's node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Commit {
    /// Market, task and round.
    pub scope: Scope,
    /// The participant's wallet.
    pub sender: Address,
    /// Digest of the offer that is answered.
    pub offer: Digest,
    /// [`UpdateHeader::commitment`] of the update to come.
    pub commitment: Digest,
}

impl Canonical for Commit {
    const DOMAIN: &'static str = "florin v1 commit";
}

/// The digest of an [`UpdateHeader`].
pub type UpdateId = Digest;

/// What travels, signed by the sender's node key, in front of an update's safetensors bytes.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpdateHeader {
    /// Market, task and round.
    pub scope: Scope,
    /// The participant's wallet.
    pub sender: Address,
    /// Digest of the offer that is answered.
    pub offer: Digest,
    /// Digest of the model it was trained from.
    pub base_model: Digest,
    /// Rows it was trained on, as the sender declares them; 1 to [`ROWS_MAX`]. They count only as far as bonded.
    pub rows: u64,
    /// Digest of the parameter delta's bytes.
    pub update: Digest,
    /// Number of those bytes.
    pub bytes: u64,
    /// Blinds the commitment.
    pub salt: Digest,
    /// Not to be accepted after this moment.
    pub expires: Tick,
}

impl Canonical for UpdateHeader {
    const DOMAIN: &'static str = "florin v1 update";
}

impl UpdateHeader {
    /// What the sender committed to: update digest, salt and sender, hashed together.
    #[must_use]
    pub fn commitment(&self) -> Digest {
        let said = [&self.update.0[..], &self.salt.0, &self.sender.0].concat();
        Digest(blake3::derive_key("florin v1 commitment", &said))
    }

    /// Whether the declared rows are a number that may be declared at all.
    #[must_use]
    pub fn rows_allowed(&self) -> bool {
        (1..=ROWS_MAX).contains(&self.rows)
    }
}

/// The coordinator's signed proof that it took an update, given only after update and journal are on disk.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Receipt {
    /// Market, task and round.
    pub scope: Scope,
    /// Whose update.
    pub sender: Address,
    /// The header's digest.
    pub update: UpdateId,
    /// When it was taken.
    pub at: Tick,
    /// The place of its commit among those that were taken in the round, from 1: of two near-duplicates the earlier
    /// commit owns the work.
    pub order: u32,
}

impl Canonical for Receipt {
    const DOMAIN: &'static str = "florin v1 receipt";
}

/// Why somebody who was asked is not among a round's updates.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Missing {
    /// No commit came in time.
    NoCommit,
    /// A commit came, but no upload in time.
    NoReveal,
    /// The last upload was refused for this reason.
    Refused(Code),
}

/// Why a round ended without a settlement. Nobody loses a bond for it and the pool rolls over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum AbandonReason {
    /// Fewer updates than `cohort_min`.
    TooFewUpdates {
        /// How many came.
        got: u32,
        /// How many it takes.
        needed: u32,
    },
    /// The valuation failed: the updates combine to a model without a finite loss.
    ValuationFailed,
}

/// How a round ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RoundOutcome {
    /// Valued and settled.
    Settled,
    /// Given up.
    Abandoned(AbandonReason),
}
