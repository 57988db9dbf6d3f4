//! A lease as its market sees it: its verified record, with bids, award, agreed price and time at work.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::{Address, Amount, Timestamp};
use serde::{Deserialize, Serialize};

use crate::auction::Bid;
use crate::books::ComputeAccount;
use crate::error::LeaseError;
use crate::lease::{ComputeAction, Lease, LeaseOutcome};
use crate::record::{LeaseOpening, LeaseRecord, OrderMoney, RecordedAction, RecordedLease};

/// The largest number that every reader of JSON has exactly: 2⁵³ − 1.
const JSON_NUMBER_MAX: u64 = (1 << 53) - 1;
/// Microseconds of an hour.
const HOUR_US: u128 = 3_600_000_000;

/// The price of a useful device-hour, rounded down; `None` for no time.
pub(crate) fn per_hour(price: Amount, useful_us: u128) -> Option<Amount> {
    price.mul_div_down(HOUR_US, useful_us).ok()
}

/// The award of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwardFacts {
    /// The account that computes the order.
    pub provider: Address,
    /// When it was awarded.
    pub at: Timestamp,
    /// The agreed price of the order.
    pub price: Amount,
    /// The useful device time that it buys, in microseconds; at most 2⁵³ − 1.
    pub useful_us: u64,
    /// The price of a useful device-hour, rounded down.
    pub per_hour: Option<Amount>,
    /// Pay of the provider so far.
    pub earned: Amount,
    /// Segments that were delivered.
    pub delivered: u32,
    /// From the stake of the provider to its last delivery.
    pub ran: Option<(Timestamp, Timestamp)>,
}

/// The facts that a market learns from the record of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseFacts {
    /// When the bids began.
    pub opened: Timestamp,
    /// The moment of the last record.
    pub last: Timestamp,
    /// The award.
    pub award: Option<AwardFacts>,
    /// Bidders that lost a deposit. A bidder that won and did not fund its lease is one.
    pub lost: Vec<(Address, Amount)>,
    /// Segments whose audit was drawn.
    pub audited: u32,
    /// How the lease ended.
    pub outcome: Option<LeaseOutcome>,
    /// Whether the referee cancelled the settlement: no account is paid or debited.
    pub cancelled: bool,
}

impl LeaseFacts {
    /// The facts with the state of the settlement.
    #[must_use]
    pub fn settled_as(self, money: OrderMoney) -> Self {
        Self { cancelled: money == OrderMoney::Cancelled, ..self }
    }
}

/// A lease that follows from its record, with what its market learns from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedLease {
    recorded: RecordedLease,
    bidders: BTreeSet<Address>,
    bids: BTreeMap<Address, Bid>,
    awarded: Option<Timestamp>,
    ran: Option<(Timestamp, Timestamp)>,
}

impl ObservedLease {
    /// The lease before its first action.
    ///
    /// # Errors
    /// [`LeaseError`] for an invalid order.
    pub fn open(opening: LeaseOpening) -> Result<Self, LeaseError> {
        Ok(Self {
            recorded: RecordedLease::open(opening)?,
            bidders: BTreeSet::new(),
            bids: BTreeMap::new(),
            awarded: None,
            ran: None,
        })
    }

    /// Performs the next action of the record, whose signature and rules are checked, or changes nothing.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn push(&mut self, record: &LeaseRecord) -> Result<(), LeaseError> {
        let provider = |lease: &Lease| lease.award().map(|award| award.provider);
        let before = provider(self.lease());
        self.recorded.apply(record)?;
        let after = provider(self.lease());
        if after != before {
            self.awarded = after.map(|_| record.at);
        }
        if let RecordedAction::Signed(signed) = &record.action {
            let by = signed.body.by;
            match &signed.body.action {
                ComputeAction::SealBid(_) => drop(self.bidders.insert(by)),
                ComputeAction::OpenBid { bid, .. } => drop(self.bids.insert(by, bid.clone())),
                ComputeAction::Fund => self.ran = Some((record.at, record.at)),
                ComputeAction::Deliver { .. } => {
                    self.ran = self.ran.map(|(from, _)| (from, record.at));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The lease.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        self.recorded.lease()
    }

    /// The folded record.
    #[must_use]
    pub const fn recorded(&self) -> &RecordedLease {
        &self.recorded
    }

    /// Accounts that sealed a bid.
    #[must_use]
    pub const fn bidders(&self) -> &BTreeSet<Address> {
        &self.bidders
    }

    /// The opened bid of an account.
    #[must_use]
    pub fn bid(&self, account: Address) -> Option<&Bid> {
        self.bids.get(&account)
    }

    /// From the stake of the provider to its last delivery.
    #[must_use]
    pub const fn ran(&self) -> Option<(Timestamp, Timestamp)> {
        self.ran
    }

    /// Segments that were delivered.
    #[must_use]
    pub fn delivered(&self) -> u32 {
        u32::try_from(self.lease().leaves().len()).unwrap_or(u32::MAX)
    }

    /// The facts that the market learns from the lease.
    #[must_use]
    pub fn facts(&self) -> LeaseFacts {
        let lease = self.lease();
        let books = lease.books();
        let loss = |account: &Address| {
            let lost = books.balance(ComputeAccount::Forfeited(*account));
            (!lost.is_zero()).then_some((*account, lost))
        };
        LeaseFacts {
            opened: self.recorded.opening().opened,
            last: self.recorded.last(),
            award: self.award(),
            lost: self.bidders.iter().filter_map(loss).collect(),
            audited: u32::try_from(lease.audited().count()).unwrap_or(u32::MAX),
            outcome: lease.outcome(),
            cancelled: false,
        }
    }

    /// The award; `None` before it.
    #[must_use]
    pub fn award(&self) -> Option<AwardFacts> {
        let (lease, order) = (self.lease(), self.lease().order());
        let award = lease.award()?;
        let bid = self.bid(award.provider)?;
        let steps = u128::from(order.segments).saturating_mul(order.steps.into());
        let useful_us = steps.saturating_mul(bid.times.useful_us().into());
        let price = award.price(order, award.step_us);
        Some(AwardFacts {
            provider: award.provider,
            at: self.awarded?,
            price,
            useful_us: u64::try_from(useful_us).unwrap_or(u64::MAX).min(JSON_NUMBER_MAX),
            per_hour: per_hour(price, useful_us),
            earned: lease.books().balance(ComputeAccount::Owed(award.provider)),
            delivered: self.delivered(),
            ran: self.ran,
        })
    }
}
