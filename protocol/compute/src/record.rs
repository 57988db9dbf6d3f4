//! The record of a lease: the actions of its accounts, as their wallets signed them, in the order in which a
//! coordinator accepted them. Any account that folds the record has the lease, and with it every balance.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Blob, Canonical, Digest, MarketId, SignError, Timestamp, TypedData, TypedValue,
    VerifyError, WalletSignature, WalletSigner, verify_wallet,
};
use serde::{Deserialize, Serialize};

use crate::error::LeaseError;
use crate::job::ComputeJob;
use crate::lease::{Checkpoint, ComputeAction, Lease, LeaseOutcome, Phase};
use crate::order::ComputeOrder;

/// An action of an account on a lease. The order names chain and market; the number of the action keeps it from being
/// repeated, and each action belongs to a phase with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct LeaseAction {
    /// The order's id.
    pub order: Digest,
    /// The account.
    pub by: Address,
    /// Number of earlier actions of the account on this lease.
    pub nonce: u32,
    /// The action.
    pub action: ComputeAction,
}

impl Canonical for LeaseAction {
    const DOMAIN: &'static str = "florin v1 lease action";
}

/// An action with the signature of its account's wallet.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct SignedLeaseAction {
    /// The action.
    pub body: LeaseAction,
    /// The wallet's signature of [`LeaseAction::signing_hash`].
    pub signature: WalletSignature,
}

impl LeaseAction {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let fields = vec![
            ("order", TypedValue::Bytes32(self.order.0)),
            ("account", TypedValue::Address(self.by)),
            ("nonce", TypedValue::Uint64(self.nonce.into())),
            ("summary", TypedValue::String(self.action.name().to_owned())),
            ("action", TypedValue::Bytes32(self.digest().0)),
        ];
        TypedData { primary_type: "LeaseAction", fields }.signing_hash(market)
    }

    /// Signs the action.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(
        self,
        market: MarketId,
        wallet: &dyn WalletSigner,
    ) -> Result<SignedLeaseAction, SignError> {
        let signature = wallet.sign_typed_data(self.signing_hash(market))?;
        Ok(SignedLeaseAction { body: self, signature })
    }
}

impl SignedLeaseAction {
    /// Verifies that its account signed it for a market.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, market: MarketId) -> Result<(), VerifyError> {
        verify_wallet(self.body.signing_hash(market), &self.signature, self.body.by)
    }
}

/// An upload of a state by the provider of a lease, as its wallet signs it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct StateUpload {
    /// The order's id.
    pub order: Digest,
    /// The provider.
    pub by: Address,
    /// Digest of the state.
    pub state: Digest,
}

crate::wallet_signed::wallet_signed!(StateUpload);

impl StateUpload {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let fields = vec![
            ("order", TypedValue::Bytes32(self.order.0)),
            ("account", TypedValue::Address(self.by)),
            ("state", TypedValue::Bytes32(self.state.0)),
        ];
        TypedData { primary_type: "LeaseState", fields }.signing_hash(market)
    }
}

/// An upload of a checkpoint by the provider of a lease, as its wallet signs it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct CheckpointUpload {
    /// The order's id.
    pub order: Digest,
    /// The provider.
    pub by: Address,
    /// Digest of the state at the end of the next segment, or of the order's first state.
    pub state: Digest,
    /// The salt of the segment's leaf; anything for the first state.
    pub salt: Digest,
}

crate::wallet_signed::wallet_signed!(CheckpointUpload);

impl CheckpointUpload {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let fields = vec![
            ("order", TypedValue::Bytes32(self.order.0)),
            ("account", TypedValue::Address(self.by)),
            ("state", TypedValue::Bytes32(self.state.0)),
            ("salt", TypedValue::Bytes32(self.salt.0)),
        ];
        TypedData { primary_type: "LeaseCheckpoint", fields }.signing_hash(market)
    }
}

/// The source of a recorded action.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum RecordedAction {
    /// Of an account.
    Signed(Box<SignedLeaseAction>),
    /// The coordinator opened its beacon: the draw of the audits.
    Beacon(Digest),
    /// A deadline passed, and the default of the phase was applied.
    Expired,
    /// The coordinator started again: all of the phase that was left at the last record is left once more.
    Resumed,
    /// A deadline of the provider passed, and the coordinator used the checkpoints that it had left.
    Checkpoints(Vec<Checkpoint>),
}

/// An accepted action with its moment.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct LeaseRecord {
    /// When the coordinator accepted it.
    pub at: Timestamp,
    /// The action.
    pub action: RecordedAction,
}

/// The opening of a lease at a coordinator: the order, when its bids began, and the commitment to the beacon of its
/// audits.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct LeaseOpening {
    /// The order.
    pub order: ComputeOrder,
    /// When the coordinator opened it for bids.
    pub opened: Timestamp,
    /// [`beacon_commitment`] of a secret that the coordinator opens after the delivery.
    pub beacon: Digest,
}

/// The commitment to the beacon of an order's audits.
#[must_use]
pub fn beacon_commitment(order: Digest, beacon: Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute beacon");
    hasher.update(&order.0);
    hasher.update(&beacon.0);
    Digest(*hasher.finalize().as_bytes())
}

/// A lease that follows from its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLease {
    opening: LeaseOpening,
    lease: Lease,
    nonces: BTreeMap<Address, u32>,
    length: u32,
    last: Timestamp,
}

impl RecordedLease {
    /// The lease before its first action.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] for an invalid order.
    pub fn open(opening: LeaseOpening) -> Result<Self, LeaseError> {
        let lease = Lease::open(opening.order.clone(), opening.opened)?;
        let last = opening.opened;
        Ok(Self { opening, lease, nonces: BTreeMap::new(), length: 0, last })
    }

    /// The lease.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The opening.
    #[must_use]
    pub const fn opening(&self) -> &LeaseOpening {
        &self.opening
    }

    /// Number of recorded actions.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// When the last action was accepted.
    #[must_use]
    pub const fn last(&self) -> Timestamp {
        self.last
    }

    /// The number of an account's next action.
    #[must_use]
    pub fn next_nonce(&self, account: Address) -> u32 {
        self.nonces.get(&account).copied().unwrap_or_default()
    }

    /// Checks that an action is of this order, is the account's next one, and is one that accounts perform.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn check_turn(&self, body: &LeaseAction) -> Result<(), LeaseError> {
        if body.order != self.lease.id() {
            return Err(LeaseError::Commitment("the order of the action"));
        }
        if body.nonce != self.next_nonce(body.by) {
            let rule = "must be the number of the account's earlier actions on this lease";
            let got = body.nonce.into();
            return Err(LeaseError::Invalid { what: "the nonce", got, rule });
        }
        match body.action {
            ComputeAction::Draw(_) | ComputeAction::Expire => {
                let role = "the coordinator, which draws audits and applies defaults";
                Err(LeaseError::Account { account: body.by, role })
            }
            _ => Ok(()),
        }
    }

    /// Performs the next action of the record, or changes nothing.
    ///
    /// # Errors
    /// [`LeaseError`] for a wrong signature, another order, a number that is not the account's next, a beacon that is
    /// not the committed one, a moment before that of the last action, and for an action that the lease refuses.
    pub fn apply(&mut self, record: &LeaseRecord) -> Result<(), LeaseError> {
        if record.at < self.last {
            return Err(LeaseError::Commitment("the order of the record's moments"));
        }
        let (id, at) = (self.lease.id(), record.at);
        match &record.action {
            RecordedAction::Signed(signed) => {
                let body = &signed.body;
                self.check_turn(body)?;
                let market = self.opening.order.market;
                signed.verify(market).map_err(|_| {
                    let role = "the account that signed the action";
                    LeaseError::Account { account: body.by, role }
                })?;
                self.lease.apply(body.by, &body.action, at)?;
                self.nonces.insert(body.by, body.nonce.saturating_add(1));
            }
            RecordedAction::Beacon(beacon) => {
                if beacon_commitment(id, *beacon) != self.opening.beacon {
                    return Err(LeaseError::Commitment("the beacon of the audits"));
                }
                self.lease.apply(self.opening.order.renter, &ComputeAction::Draw(*beacon), at)?;
            }
            RecordedAction::Resumed => self.lease.resume(self.last, at),
            RecordedAction::Expired => {
                self.lease.apply(self.opening.order.renter, &ComputeAction::Expire, at)?;
            }
            RecordedAction::Checkpoints(checkpoints) => {
                self.lease.use_checkpoints(checkpoints, at)?;
            }
        }
        self.length = self.length.saturating_add(1);
        self.last = record.at;
        Ok(())
    }
}

/// A renter's request to open an order, whose escrow is on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct OrderRequest {
    /// The order.
    pub order: ComputeOrder,
    /// Its job.
    pub job: ComputeJob,
}

/// How far the money of an order has come at its coordinator.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum OrderMoney {
    /// The deposits are locked: blobs are missing, or the lease goes on.
    Locked,
    /// The lease is over; its settlement is posted and becomes final.
    Settling,
    /// All pay and debits are final, and the renter has the rest.
    Settled,
    /// The referee cancelled the settlement: no account was paid or debited, and the renter has the escrow.
    Cancelled,
}

impl OrderMoney {
    /// Whether nothing more happens.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Settled | Self::Cancelled)
    }
}

/// A coordinator's view of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OrderView {
    /// The order's id.
    pub id: Digest,
    /// The order.
    pub order: ComputeOrder,
    /// Blobs of the job that the coordinator waits for; the bids begin when all have arrived.
    pub missing: Vec<Blob>,
    /// When the bids began; `None` before.
    pub opened: Option<Timestamp>,
    /// Why the bids never begin: the renter's escrow returns.
    pub refused: Option<String>,
    /// The commitment to the beacon of the audits.
    pub beacon: Digest,
    /// Number of recorded actions.
    pub records: u32,
    /// The phase.
    pub phase: Phase,
    /// Its deadline.
    pub deadline: Timestamp,
    /// The account that computes the order, once it is awarded.
    pub provider: Option<Address>,
    /// Segments that were delivered.
    pub delivered: u32,
    /// How the lease ended.
    pub outcome: Option<LeaseOutcome>,
    /// How far the money has come.
    pub money: OrderMoney,
}

impl OrderView {
    /// The opening of its lease, once the bids have begun.
    #[must_use]
    pub fn opening(&self) -> Option<LeaseOpening> {
        let opened = self.opened?;
        Some(LeaseOpening { order: self.order.clone(), opened, beacon: self.beacon })
    }
}

/// The orders of a coordinator that have changed since a client's last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OrderChanges {
    /// The run of the coordinator: each start has another number, of at most 48 bits.
    pub run: u64,
    /// The number of the last change of the run; the next reading continues behind it.
    pub last: u64,
    /// Whether `orders` are all remembered ones: the client forgets others.
    #[serde(rename = "whole")]
    pub is_whole: bool,
    /// The changed orders, the newest first.
    pub orders: Vec<OrderView>,
    /// Orders that the coordinator no longer remembers.
    pub forgotten: Vec<Digest>,
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(crate) mod tests;
