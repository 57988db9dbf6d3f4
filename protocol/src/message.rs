//! Messages between coordinator and participants in a round.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::admission::Invitation;
use crate::amount::Amount;
use crate::bytes::Canonical;
use crate::eip712::{TypedData, TypedValue};
use crate::error_code::ErrorCode;
use crate::id::{Address, ChainId, Digest, MarketId, RoundNumber, TaskId};
use crate::limits::DECLARED_ROWS_MAX;
use crate::selection::SelectionReason;
use crate::signature::{
    NodeSigner, SignError, Signed, VerifyError, WalletSignature, WalletSigner, verify_wallet,
};
use crate::time::Timestamp;

/// Market, task and round of a message. Every signed message of a round includes it, so that it
/// cannot be replayed in another context.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct RoundScope {
    /// Chain and market.
    pub market: MarketId,
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
}

/// A participant's request to be selected for the rounds of a task; signed by its node key.
/// Idempotent.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct EnrolRequest {
    /// Chain and market.
    pub market: MarketId,
    /// The task.
    pub task: TaskId,
    /// The participant's wallet.
    pub sender: Address,
    /// The buyer's invitation, if the task requires one.
    pub invitation: Option<Invitation>,
    /// The participant's prediction of its time from an offer to its commit, in milliseconds; 0 for
    /// none. Only that of the first enrolment counts, until the first commit.
    pub quote_ms: u64,
    /// Rounds of this coordinator's tasks that the participant works on at a time, among the tasks in
    /// which it states a number; 0 for no limit. The last number counts.
    pub at_once: u32,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
}

impl EnrolRequest {
    /// A request without a quote for a task that requires no invitation.
    #[must_use]
    pub const fn without_invitation(
        market: MarketId,
        task: TaskId,
        sender: Address,
        expires: Timestamp,
    ) -> Self {
        Self { market, task, sender, invitation: None, quote_ms: 0, at_once: 0, expires }
    }
}

impl Canonical for EnrolRequest {
    const DOMAIN: &'static str = "florin v1 enrol";
}

/// The coordinator's offer of one round to the selected participants; signed by its node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Offer {
    /// Market, task and round.
    pub scope: RoundScope,
    /// Digest of the model to train from.
    pub base_model: Digest,
    /// Digest of the preceding round's report; the task's id in round 1. Chains the rounds of a
    /// task.
    pub previous_report: Digest,
    /// The selected participants, ascending.
    pub cohort: Vec<Address>,
    /// For each of them, why it was selected.
    pub reasons: Vec<SelectionReason>,
    /// Digest of the [`Candidates`](crate::Candidates) from which the cohort follows.
    pub candidates: Digest,
    /// Start of the round.
    pub opened: Timestamp,
    /// Deadline for commits.
    pub commit_by: Timestamp,
    /// Deadline for uploads.
    pub reveal_by: Timestamp,
    /// The most that this round can pay for data.
    pub pool: Amount,
}

impl Canonical for Offer {
    const DOMAIN: &'static str = "florin v1 offer";
}

/// A commitment to one update, made before any upload can be read; signed by the sender's node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Commit {
    /// Market, task and round.
    pub scope: RoundScope,
    /// The participant's wallet.
    pub sender: Address,
    /// Digest of the offer that it answers.
    pub offer: Digest,
    /// [`UpdateHeader::commitment`] of the update.
    pub commitment: Digest,
}

impl Canonical for Commit {
    const DOMAIN: &'static str = "florin v1 commit";
}

/// The digest of an [`UpdateHeader`].
pub type UpdateId = Digest;

/// Header of an update; it precedes the update's safetensors bytes and is signed by the sender's
/// node key.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct UpdateHeader {
    /// Market, task and round.
    pub scope: RoundScope,
    /// The participant's wallet.
    pub sender: Address,
    /// Digest of the offer that it answers.
    pub offer: Digest,
    /// Digest of the model from which the sender trained.
    pub base_model: Digest,
    /// Number of training rows, as the sender declares it; 1 to [`DECLARED_ROWS_MAX`]. Only rows that the
    /// bond covers count.
    pub rows: u64,
    /// Digest of the parameter delta's bytes.
    pub update: Digest,
    /// Number of those bytes.
    pub bytes: u64,
    /// Random salt that hides the update in the commitment.
    pub salt: Digest,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
}

impl Canonical for UpdateHeader {
    const DOMAIN: &'static str = "florin v1 update";
}

impl UpdateHeader {
    /// The commitment: update digest, salt and sender, hashed together.
    #[must_use]
    pub fn commitment(&self) -> Digest {
        let preimage = [&self.update.0[..], &self.salt.0, &self.sender.0].concat();
        Digest(blake3::derive_key("florin v1 commitment", &preimage))
    }

    /// Whether the declared number of rows is within the limits.
    #[must_use]
    pub fn has_valid_rows(&self) -> bool {
        (1..=DECLARED_ROWS_MAX).contains(&self.rows)
    }
}

/// The coordinator's signed proof that it accepted an update. It sends a receipt only after update
/// and journal are on disk.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct UpdateReceipt {
    /// Market, task and round.
    pub scope: RoundScope,
    /// The sender of the update.
    pub sender: Address,
    /// The header's digest.
    pub update: UpdateId,
    /// When the coordinator accepted it.
    pub at: Timestamp,
    /// Position of its commit among the accepted commits of the round, from 1: of two
    /// near-duplicates only the earlier commit is paid.
    pub commit_position: u32,
}

impl Canonical for UpdateReceipt {
    const DOMAIN: &'static str = "florin v1 receipt";
}

impl UpdateReceipt {
    /// The part of the receipt that a ledger verifies.
    #[must_use]
    pub const fn for_ledger(&self) -> LedgerReceipt {
        let RoundScope { task, round, .. } = self.scope;
        LedgerReceipt { task, round, sender: self.sender, update: self.update }
    }
}

/// The part of a receipt that a ledger verifies. The coordinator signs it with its wallet, so that a
/// contract can recover the signer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct LedgerReceipt {
    /// The task, whose id depends on its market.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The sender of the update.
    pub sender: Address,
    /// The header's digest.
    pub update: UpdateId,
}

impl LedgerReceipt {
    /// The EIP-712 hash that the coordinator's wallet signs, in the domain of the chain:
    /// `Receipt(bytes32 task,uint64 round,address sender,bytes32 update)`.
    #[must_use]
    pub fn signing_hash(&self, chain: ChainId) -> [u8; 32] {
        let fields = vec![
            ("task", TypedValue::Bytes32(self.task.0)),
            ("round", TypedValue::Uint64(self.round.0.into())),
            ("sender", TypedValue::Address(self.sender)),
            ("update", TypedValue::Bytes32(self.update.0)),
        ];
        TypedData { primary_type: "Receipt", fields }.signing_hash_on_chain(chain)
    }
}

/// The answer to an upload: the receipt, signed by the coordinator's node key, and the signature of
/// its wallet for the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UploadReceipt {
    /// Signed by the node key.
    pub receipt: Signed<UpdateReceipt>,
    /// The wallet's signature of [`LedgerReceipt::signing_hash`].
    pub wallet_signature: WalletSignature,
}

impl UploadReceipt {
    /// Signs a receipt with the coordinator's two keys.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(
        receipt: UpdateReceipt,
        node: &NodeSigner,
        wallet: &dyn WalletSigner,
    ) -> Result<Self, SignError> {
        let hash = receipt.for_ledger().signing_hash(receipt.scope.market.chain);
        Ok(Self { wallet_signature: wallet.sign_typed_data(hash)?, receipt: node.sign(receipt) })
    }

    /// Verifies the wallet's signature. The caller verifies the node key's.
    ///
    /// # Errors
    /// [`VerifyError`] for another signer than `coordinator`.
    pub fn verify_wallet(&self, coordinator: Address) -> Result<(), VerifyError> {
        let UpdateReceipt { scope, .. } = &self.receipt.body;
        let hash = self.receipt.body.for_ledger().signing_hash(scope.market.chain);
        verify_wallet(hash, &self.wallet_signature, coordinator)
    }
}

/// Why a selected participant has no accepted update in a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum MissingReason {
    /// It sent no commit before the deadline.
    NoCommit,
    /// It sent a commit, but no upload before the deadline.
    NoReveal,
    /// The coordinator rejected its last upload with this code.
    Rejected(ErrorCode),
}

/// Why a round was not valued. No bond is debited and the pool rolls over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum AbandonReason {
    /// Fewer updates than `cohort_min`.
    TooFewUpdates {
        /// Number of accepted updates.
        got: u32,
        /// Number of updates required.
        needed: u32,
    },
    /// The valuation failed: the aggregated model has no finite loss.
    ValuationFailed,
    /// The task ended before this round: no participant was asked. The report pays what earlier
    /// rounds withheld.
    TaskEnded,
}

/// Why a valued round is void: the model stays, and no score is paid or debited.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum VoidReason {
    /// The scores of a stage do not explain its improvement: they are not added to any sum either.
    Unresolved,
    /// No update remains, or those that remain have no weight.
    NoUpdateRemains,
    /// Excluded updates have more than half of the weight.
    MajorityExcluded,
    /// The aggregated model is not better than the base model.
    NoImprovement,
}

/// Outcome of a round.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum RoundOutcome {
    /// Valued and settled.
    Settled,
    /// Valued, but void.
    Void(VoidReason),
    /// Abandoned.
    Abandoned(AbandonReason),
}

impl RoundOutcome {
    /// Whether the round was valued, so that its report has scores.
    #[must_use]
    pub const fn is_valued(&self) -> bool {
        matches!(self, Self::Settled | Self::Void(_))
    }
}
