//! The accounts that may read the rows of an order, and the states that are trained on them.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Digest, MarketId, Timestamp, TypedData, TypedValue};
use serde::{Deserialize, Serialize};

use crate::lease::{Lease, Phase, SegmentAudit};

/// The longest life of a [`LeaseRead`], in milliseconds: ten minutes.
pub const LEASE_READ_MS_MAX: u64 = 600_000;

/// The accounts that may read the rows of an order and the states that are trained on them, and so may audit it. Graph and
/// initial parameters are public in each class: bidders measure a step with them.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum DataClass {
    /// All accounts.
    Public,
    /// Renter, provider and drawn auditors; the referee in a dispute.
    Buyer,
    /// Renter and provider. The renter audits; the referee of a dispute gets the rows of one step.
    Private,
}

impl DataClass {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Buyer => "buyer",
            Self::Private => "private",
        }
    }

    /// The class of a name; `None` if there is no such class.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Public, Self::Buyer, Self::Private].into_iter().find(|class| class.name() == name)
    }
}

impl Lease {
    /// Whether an account may read all rows of the order. A provider may from its stake on: a bond of a bid buys no
    /// rows. After the lease only its renter may.
    #[must_use]
    pub fn may_read_rows(&self, account: Address) -> bool {
        let order = self.order();
        let is_disputed = matches!(self.phase().0, Phase::Disputing | Phase::Refereeing);
        match order.data_class {
            DataClass::Public => true,
            _ if account == order.renter || self.is_computed_by(account) => true,
            DataClass::Buyer => {
                let is_asked = self.is_open() && self.audits().iter().any(is_asked(account));
                is_asked || (is_disputed && account == order.referee)
            }
            DataClass::Private => false,
        }
    }

    /// Whether an account may read a state of the training. Auditors read the starts of their segments, and the referee
    /// the start of the disputed one; in the class [`DataClass::Private`] only the state before the disputed step.
    #[must_use]
    pub fn may_read_state(&self, account: Address, state: Digest) -> bool {
        let order = self.order();
        match order.data_class {
            DataClass::Public => return true,
            _ if account == order.renter || self.is_computed_by(account) => return true,
            _ if !self.is_open() => return false,
            DataClass::Buyer | DataClass::Private => {}
        }
        let is_start = |audit: &SegmentAudit| audit.start == Some(state);
        let starts = || self.audits().iter().filter(|audit| is_start(audit));
        let disputed = self.dispute().filter(|_| account == order.referee);
        match order.data_class {
            DataClass::Private => {
                let agreed = disputed.filter(|_| self.phase().0 == Phase::Refereeing);
                agreed.is_some_and(|dispute| dispute.agreed.1 == state)
            }
            _ => {
                let is_disputed = disputed
                    .is_some_and(|dispute| starts().any(|audit| audit.segment == dispute.segment));
                is_disputed || starts().any(is_asked(account))
            }
        }
    }

    /// Whether an account may read the rows of the disputed step.
    #[must_use]
    pub fn may_read_batch(&self, account: Address) -> bool {
        let order = self.order();
        let is_ruled = self.phase().0 == Phase::Refereeing && account == order.referee;
        is_ruled && order.data_class == DataClass::Private
    }

    fn is_open(&self) -> bool {
        self.phase().0 != Phase::Over
    }

    /// Whether an account has the stake of this lease in it, and the lease goes on.
    fn is_computed_by(&self, account: Address) -> bool {
        let is_funded = !matches!(
            self.phase().0,
            Phase::Bidding | Phase::Revealing | Phase::Funding | Phase::Over
        );
        is_funded && self.award().is_some_and(|award| award.provider == account)
    }
}

fn is_asked(account: Address) -> impl Fn(&SegmentAudit) -> bool {
    move |audit| audit.asked.contains(&account) || audit.sealed.contains_key(&account)
}

/// A request to read rows or a state of an order that is not public, as the reader's wallet signs it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct LeaseRead {
    /// The order's id.
    pub order: Digest,
    /// The reader.
    pub by: Address,
    /// Digest of the rows or of the state; that of the rows for those of a disputed step.
    pub digest: Digest,
    /// Until when the coordinator answers it, by the coordinator's time: at most [`LEASE_READ_MS_MAX`] ahead.
    pub expires: Timestamp,
}

crate::wallet_signed::wallet_signed!(LeaseRead);

impl LeaseRead {
    /// The EIP-712 hash to sign.
    #[must_use]
    pub fn signing_hash(&self, market: MarketId) -> [u8; 32] {
        let fields = vec![
            ("order", TypedValue::Bytes32(self.order.0)),
            ("account", TypedValue::Address(self.by)),
            ("data", TypedValue::Bytes32(self.digest.0)),
            ("expires", TypedValue::Uint64(self.expires.0)),
        ];
        TypedData { primary_type: "LeaseRead", fields }.signing_hash(market)
    }

    /// Whether a coordinator answers it at a moment.
    #[must_use]
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.expires >= now && self.expires.ms_since(now) <= LEASE_READ_MS_MAX
    }
}
