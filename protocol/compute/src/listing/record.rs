//! The record of a listing: the provider's signed messages, the coordinator's probes, and the measured leases.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Canonical, Digest, MarketId, SignError, Timestamp, TypedData, TypedValue,
    VerifyError, WalletSignature, WalletSigner, verify_wallet,
};
use serde::{Deserialize, Serialize};

use super::{Listing, ListingTerms, PROBES_MAX};
use crate::record::OrderMoney;

/// A provider's message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum SignedMessage {
    /// A probe is computed.
    Computed {
        /// The seed of the probe.
        seed: Digest,
        /// The root of all states.
        root: Digest,
    },
    /// The provider ends the listing.
    Withdraw,
}

/// A message of a provider on its listing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ListingAction {
    /// The listing's id.
    pub listing: Digest,
    /// The provider.
    pub by: Address,
    /// The message.
    pub message: SignedMessage,
}

impl Canonical for ListingAction {
    const DOMAIN: &'static str = "florin v1 listing action";
}

/// A message with the signature of its account's wallet.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct SignedListingAction {
    /// The message.
    pub body: ListingAction,
    /// The wallet's signature of [`ListingAction::signing_hash`].
    pub signature: WalletSignature,
}

impl ListingAction {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let summary = match self.message {
            SignedMessage::Computed { .. } => "a computed probe",
            SignedMessage::Withdraw => "the end of the listing",
        };
        let fields = vec![
            ("listing", TypedValue::Bytes32(self.listing.0)),
            ("account", TypedValue::Address(self.by)),
            ("summary", TypedValue::String(summary.to_owned())),
            ("action", TypedValue::Bytes32(self.digest().0)),
        ];
        TypedData { primary_type: "ListingAction", fields }.signing_hash(market)
    }

    /// Signs the message.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(
        self,
        market: MarketId,
        wallet: &dyn WalletSigner,
    ) -> Result<SignedListingAction, SignError> {
        let signature = wallet.sign_typed_data(self.signing_hash(market))?;
        Ok(SignedListingAction { body: self, signature })
    }
}

impl SignedListingAction {
    /// Verifies that its account signed it for a market.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, market: MarketId) -> Result<(), VerifyError> {
        verify_wallet(self.body.signing_hash(market), &self.signature, self.body.by)
    }
}

/// An upload of the drawn links of a probe, as the provider's wallet signs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksUpload {
    /// The listing's id.
    pub listing: Digest,
    /// The provider.
    pub by: Address,
    /// The root of the probe.
    pub root: Digest,
}

crate::wallet_signed::wallet_signed!(LinksUpload);

impl LinksUpload {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let fields = vec![
            ("listing", TypedValue::Bytes32(self.listing.0)),
            ("account", TypedValue::Address(self.by)),
            ("root", TypedValue::Bytes32(self.root.0)),
        ];
        TypedData { primary_type: "ListingLinks", fields }.signing_hash(market)
    }
}

/// An event of a listing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ListingEvent {
    /// The coordinator opened a probe.
    Probed {
        /// The seed of its matrices, which no account could know before.
        seed: Digest,
        /// The commitment to the secret that draws the shown links.
        draw: Digest,
    },
    /// A message of the provider.
    Signed(SignedListingAction),
    /// The coordinator opened the secret of the draw.
    Drawn(Digest),
    /// The coordinator has checked the drawn links, whose bytes have this digest.
    Shown(Digest),
    /// A lease of the provider is over.
    Measured {
        /// The order.
        order: Digest,
        /// Microseconds of a step that the provider's bid predicted.
        predicted_us: u64,
        /// Microseconds that a step took.
        measured_us: u64,
    },
    /// A deadline passed.
    Expired,
    /// The coordinator started again.
    Resumed,
}

impl ListingEvent {
    /// A few words for it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Probed { .. } => "opening a probe",
            Self::Signed(_) => "a message of the provider",
            Self::Drawn(_) => "drawing links",
            Self::Shown(_) => "showing links",
            Self::Measured { .. } => "measuring a lease",
            Self::Expired => "an expiry",
            Self::Resumed => "a restart",
        }
    }
}

/// An event with its moment.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ListingRecord {
    /// When the coordinator recorded it.
    pub at: Timestamp,
    /// The event.
    pub event: ListingEvent,
}

/// The opening of a listing at a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ListingOpening {
    /// The terms.
    pub terms: ListingTerms,
    /// The coordinator's account, which is paid for the probes.
    pub coordinator: Address,
    /// When it was opened.
    pub opened: Timestamp,
}

/// A provider's request to open a listing, whose fees and stake are on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ListingRequest {
    /// The terms.
    pub terms: ListingTerms,
}

/// A coordinator's requirements of listings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ListingPolicy {
    /// The least stake for each device.
    pub stake_min: Amount,
    /// The fee for a probe.
    pub fee: Amount,
    /// The least milliseconds of a probe by its card.
    pub probe_ms_min: u64,
    /// The least life of a listing in milliseconds.
    pub life_ms_min: u64,
    /// The longest challenge window in milliseconds.
    pub challenge_ms_max: u64,
    /// The accounts that may be the referee of a listing.
    pub referees: Vec<Address>,
}

impl ListingPolicy {
    /// The most paid probes of a listing with a life: twice the expected ones, and 16. The coordinator covers their fees
    /// by a bond. The least life is that of two intervals.
    #[must_use]
    pub fn probes_max(&self, life_ms: u64) -> u32 {
        let intervals = life_ms.saturating_mul(2).checked_div(self.life_ms_min).unwrap_or(u64::MAX);
        let most = intervals.saturating_mul(2).saturating_add(16);
        u32::try_from(most).unwrap_or(u32::MAX).min(PROBES_MAX)
    }
}

/// A coordinator's view of a listing. [`ListingView::opening`] and the records have the same listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ListingView {
    /// When it was opened.
    pub opened: Timestamp,
    /// The listing.
    pub listing: Listing,
    /// How far its money has come.
    pub money: OrderMoney,
}
