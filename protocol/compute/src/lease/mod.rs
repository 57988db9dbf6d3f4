//! The lease: an order from its deposit to its settlement.

mod auditing;
mod bidding;
mod checkpoints;
mod disputing;
#[cfg(test)]
mod property_tests;
mod running;
mod settling;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, Canonical, Digest, Timestamp};
use serde::{Deserialize, Serialize};

use crate::auction::{Award, Bid};
use crate::audit::Secret;
use crate::books::{Books, ComputeAccount};
use crate::dispute::Dispute;
use crate::error::LeaseError;
use crate::order::ComputeOrder;

pub use checkpoints::Checkpoint;

/// Most bids for an order.
pub(crate) const BIDS_MAX: usize = 1_024;
/// How often silent auditors are replaced.
pub(crate) const REPLACEMENTS_MAX: u8 = 3;
/// Most auditors that stand ready for an order.
pub(crate) const POOL_MAX: usize = 1_024;

/// The phase of a lease. Each has a deadline, after which [`ComputeAction::Expire`] applies its default.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Phase {
    /// Sealed bids and auditors arrive. Default: the bids are opened, if there are enough auditors.
    Bidding,
    /// Bids are opened. Default: a bidder that has not opened its bid loses the bond.
    Revealing,
    /// The winner deposits its stake. Default: it loses its bond, and the next bid wins.
    Funding,
    /// The provider delivers segments. Default: it pays the fine, and what it has delivered is audited.
    Running,
    /// The audits are drawn. Default: the result is opened without audits.
    Delivered,
    /// The provider serves the starts of the drawn segments. Default: it loses its stake.
    Serving,
    /// The auditors compute and seal the ends. Default: silent ones lose their bonds and are replaced.
    Auditing,
    /// Leaves and ends are opened. Default: a side that has not opened loses stake or bond.
    Opening,
    /// Provider and auditor answer in turns. Default: the silent one is wrong.
    Disputing,
    /// The referee computes one step, or all that are left in the dispute of a gone provider. Default: the end of the provider
    /// counts.
    Refereeing,
    /// All amounts are owed or forfeited.
    Over,
}

impl Phase {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bidding => "bidding",
            Self::Revealing => "revealing",
            Self::Funding => "funding",
            Self::Running => "running",
            Self::Delivered => "delivered",
            Self::Serving => "serving",
            Self::Auditing => "auditing",
            Self::Opening => "opening",
            Self::Disputing => "disputing",
            Self::Refereeing => "refereeing",
            Self::Over => "over",
        }
    }
}

/// How a lease ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum LeaseOutcome {
    /// No provider took the order: the renter has its deposit back.
    Unawarded,
    /// All segments were delivered and paid.
    Settled,
    /// The provider delivered some segments, which are paid, and another lease continues after them.
    Defaulted {
        /// Segments that were delivered.
        delivered: u32,
    },
    /// The provider lost its stake over a segment.
    Slashed {
        /// The segment.
        segment: u32,
    },
}

/// An action of an account.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ComputeAction {
    /// Seals a bid, with its bond.
    SealBid(Digest),
    /// Opens a bid.
    OpenBid {
        /// The bid.
        bid: Bid,
        /// The salt of its commitment.
        salt: Digest,
    },
    /// Stands ready as an auditor, with a bond.
    JoinAudit,
    /// Deposits the winner's stake.
    Fund,
    /// Delivers the next segment.
    Deliver {
        /// Its number, from 0.
        segment: u32,
        /// The commitment to its end.
        leaf: Digest,
    },
    /// Draws the audits with a beacon. The caller of the lease accepts one alone: the first that appeared after
    /// the delivery.
    Draw(Digest),
    /// Names the state at the start of a drawn segment. The caller has its bytes, and has checked that they are a
    /// state after the steps before the segment with finite numbers; it refuses any other.
    Serve {
        /// The segment.
        segment: u32,
        /// Digest of the state.
        start: Digest,
    },
    /// Seals an auditor's end of a segment.
    SealEnd {
        /// The segment.
        segment: u32,
        /// The commitment to its end.
        sealed: Digest,
    },
    /// Opens the leaf of a drawn segment, with the salt of the leaf before it, or that of the last delivered one. The
    /// caller has the bytes of the state.
    OpenLeaf {
        /// The segment.
        segment: u32,
        /// Its end, with the salt of its leaf.
        secret: Secret,
        /// The salt of the leaf before it; anything if there is none.
        salt_before: Digest,
    },
    /// Opens an auditor's end of a segment.
    OpenEnd {
        /// The segment.
        segment: u32,
        /// The end, with its salt.
        secret: Secret,
    },
    /// Answers in the dispute: the state after the step that is asked for.
    Answer(Digest),
    /// The referee's state after the disputed step.
    Rule(Digest),
    /// Applies the default of a phase after its deadline. A coordinator records it by itself, and takes it from no other
    /// account.
    Expire,
}

impl ComputeAction {
    /// Whether an account without a part in the order may take it.
    #[must_use]
    pub const fn joins(&self) -> bool {
        matches!(self, Self::SealBid(_) | Self::JoinAudit)
    }

    /// A few words for it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SealBid(_) => "a sealed bid",
            Self::OpenBid { .. } => "opening a bid",
            Self::JoinAudit => "joining as an auditor",
            Self::Fund => "funding",
            Self::Deliver { .. } => "delivering a segment",
            Self::Draw(_) => "drawing the audits",
            Self::Serve { .. } => "serving a start",
            Self::SealEnd { .. } => "sealing an end",
            Self::OpenLeaf { .. } => "opening a leaf",
            Self::OpenEnd { .. } => "opening an end",
            Self::Answer(_) => "an answer in a dispute",
            Self::Rule(_) => "a ruling",
            Self::Expire => "an expiry",
        }
    }
}

/// The audit of a drawn segment.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct SegmentAudit {
    /// The segment.
    pub segment: u32,
    /// Auditors that are asked.
    pub asked: BTreeSet<Address>,
    /// Auditors that replace silent ones, in order.
    pub reserve: Vec<Address>,
    /// The sealed ends of auditors.
    pub sealed: BTreeMap<Address, Digest>,
    /// The opened ends of auditors.
    pub ends: BTreeMap<Address, Digest>,
    /// The provider's start, once it is served.
    pub start: Option<Digest>,
    /// The provider's end, once it is opened.
    pub end: Option<Digest>,
}

/// An order with its books. [`Lease::apply`] either performs an action or changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Lease {
    order: ComputeOrder,
    id: Digest,
    phase: Phase,
    deadline: Timestamp,
    books: Books,
    sealed: BTreeMap<Address, Digest>,
    bids: BTreeMap<Address, Bid>,
    /// Auditors with a bond.
    auditors: BTreeSet<Address>,
    award: Option<Award>,
    leaves: Vec<Digest>,
    audits: Vec<SegmentAudit>,
    /// How often silent auditors were replaced.
    replaced: u8,
    /// When the provider began and when it delivered last.
    ran: (Timestamp, Timestamp),
    /// The opened end of the last delivered segment: the result.
    result: Option<Digest>,
    dispute: Option<Dispute>,
    outcome: Option<LeaseOutcome>,
}

impl Canonical for Lease {
    const DOMAIN: &'static str = "florin v1 compute lease";
}

impl Lease {
    /// Opens an order: the renter deposits the largest price and the audits.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] with the first number that is out of range.
    pub fn open(order: ComputeOrder, now: Timestamp) -> Result<Self, LeaseError> {
        order.check()?;
        let mut books = Books::default();
        books.deposit(ComputeAccount::Escrow, order.escrow()?)?;
        Ok(Self {
            id: order.id(),
            phase: Phase::Bidding,
            deadline: now.saturating_add_ms(order.windows.bid),
            books,
            sealed: BTreeMap::new(),
            bids: BTreeMap::new(),
            auditors: BTreeSet::new(),
            award: None,
            leaves: Vec::new(),
            audits: Vec::new(),
            replaced: 0,
            ran: (now, now),
            result: None,
            dispute: None,
            outcome: None,
            order,
        })
    }

    /// The order's id.
    #[must_use]
    pub const fn id(&self) -> Digest {
        self.id
    }

    /// The order.
    #[must_use]
    pub const fn order(&self) -> &ComputeOrder {
        &self.order
    }

    /// The phase, and its deadline.
    #[must_use]
    pub const fn phase(&self) -> (Phase, Timestamp) {
        (self.phase, self.deadline)
    }

    /// The books.
    #[must_use]
    pub const fn books(&self) -> &Books {
        &self.books
    }

    /// The award, once bids are opened.
    #[must_use]
    pub const fn award(&self) -> Option<&Award> {
        self.award.as_ref()
    }

    /// The leaves of the delivered segments.
    #[must_use]
    pub fn leaves(&self) -> &[Digest] {
        &self.leaves
    }

    /// The state that the renter bought, once it is opened.
    #[must_use]
    pub const fn result(&self) -> Option<Digest> {
        self.result
    }

    /// How it ended.
    #[must_use]
    pub const fn outcome(&self) -> Option<LeaseOutcome> {
        self.outcome
    }

    /// The dispute that goes on.
    #[must_use]
    pub const fn dispute(&self) -> Option<&Dispute> {
        self.dispute.as_ref()
    }

    /// The commitment to an account's bid.
    #[must_use]
    pub fn sealed_bid(&self, account: Address) -> Option<Digest> {
        self.sealed.get(&account).copied()
    }

    /// The opened bid of an account, while it can win.
    #[must_use]
    pub fn opened_bid(&self, account: Address) -> Option<&Bid> {
        self.bids.get(&account)
    }

    /// Whether an account stands ready as an auditor, with its bond.
    #[must_use]
    pub fn is_auditor(&self, account: Address) -> bool {
        self.auditors.contains(&account)
    }

    /// The audits of the drawn segments.
    #[must_use]
    pub fn audits(&self) -> &[SegmentAudit] {
        &self.audits
    }

    /// Number of auditors with a bond.
    #[must_use]
    pub fn auditor_count(&self) -> usize {
        self.auditors.len()
    }

    /// The drawn segments, with the auditors that are asked.
    pub fn audited(&self) -> impl Iterator<Item = (u32, &BTreeSet<Address>)> {
        self.audits.iter().map(|audit| (audit.segment, &audit.asked))
    }

    /// Prolongs the phase after an outage of the coordinator, since `last`: all that was left of it then is left again.
    /// The time of a segment does not count the outage.
    pub(crate) fn resume(&mut self, last: Timestamp, now: Timestamp) {
        if self.phase == Phase::Over {
            return;
        }
        let left = self.deadline.ms_since(last);
        self.deadline = self.deadline.max(now.saturating_add_ms(left));
        if self.phase == Phase::Running {
            let (began, ended) = self.ran;
            let outage = now.ms_since(last);
            self.ran = (
                began.saturating_add_ms(outage).min(now),
                ended.saturating_add_ms(outage).min(now),
            );
        }
    }

    /// Whether an account may have a part in the lease after the bids: a bidder, an auditor or the referee.
    #[must_use]
    pub fn has_part(&self, account: Address) -> bool {
        let is_member = self.sealed.contains_key(&account) || self.auditors.contains(&account);
        let is_asked = |audit: &SegmentAudit| {
            audit.asked.contains(&account) || audit.sealed.contains_key(&account)
        };
        is_member || account == self.order.referee || self.audits.iter().any(is_asked)
    }

    /// Performs an action of an account, or changes nothing.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn apply(
        &mut self,
        by: Address,
        action: &ComputeAction,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        *self = self.after(by, action, now)?;
        Ok(())
    }

    /// The bond that an account needs in the order after an action of its own.
    ///
    /// # Errors
    /// [`LeaseError`] for an action that the lease refuses.
    pub fn bond_needed_after(
        &self,
        by: Address,
        action: &ComputeAction,
        now: Timestamp,
    ) -> Result<Amount, LeaseError> {
        Ok(self.after(by, action, now)?.books.bond_needed(by)?)
    }

    /// The lease after an action.
    fn after(
        &self,
        by: Address,
        action: &ComputeAction,
        now: Timestamp,
    ) -> Result<Self, LeaseError> {
        if self.phase == Phase::Over {
            return Err(self.wrong_phase(action));
        }
        match (action, now > self.deadline) {
            (ComputeAction::Expire, false) => return Err(LeaseError::Early(self.deadline)),
            (ComputeAction::Expire, true) | (_, false) => {}
            (_, true) => return Err(LeaseError::Late(self.deadline)),
        }
        let mut next = self.clone();
        next.perform(by, action, now)?;
        Ok(next)
    }

    fn perform(
        &mut self,
        by: Address,
        action: &ComputeAction,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        match (self.phase, action) {
            (Phase::Bidding, ComputeAction::SealBid(commitment)) => self.seal_bid(by, *commitment),
            (Phase::Bidding, ComputeAction::Expire) => self.end_bidding(now),
            (Phase::Revealing, ComputeAction::OpenBid { bid, salt }) => {
                self.open_bid(by, bid, *salt, now)
            }
            (Phase::Revealing, ComputeAction::Expire) => self.end_revealing(now),
            (Phase::Bidding, ComputeAction::JoinAudit) => self.join_audit(by),
            (Phase::Funding, ComputeAction::Fund) => self.fund(by, now),
            (Phase::Funding, ComputeAction::Expire) => self.end_funding(now),
            (Phase::Running, ComputeAction::Deliver { segment, leaf }) => {
                self.deliver(by, *segment, *leaf, now)
            }
            (Phase::Running, ComputeAction::Expire) => self.end_running(now),
            (Phase::Delivered, ComputeAction::Draw(beacon)) => self.draw(*beacon, now),
            (Phase::Delivered, ComputeAction::Expire) => {
                self.enter(Phase::Opening, now, self.order.windows.audit);
                Ok(())
            }
            (Phase::Serving, ComputeAction::Serve { segment, start }) => {
                self.serve(by, *segment, *start, now)
            }
            (Phase::Serving, ComputeAction::Expire) => self.end_serving(),
            (Phase::Auditing, ComputeAction::SealEnd { segment, sealed }) => {
                self.seal_end(by, *segment, *sealed, now)
            }
            (Phase::Auditing, ComputeAction::Expire) => self.end_auditing(now),
            (Phase::Opening, ComputeAction::OpenLeaf { segment, secret, salt_before: salt }) => {
                self.open_leaf(by, *segment, *secret, *salt, now)
            }
            (Phase::Opening, ComputeAction::OpenEnd { segment, secret }) => {
                self.open_end(by, *segment, *secret, now)
            }
            (Phase::Opening, ComputeAction::Expire) => self.end_opening(now),
            (Phase::Disputing, ComputeAction::Answer(state)) => self.answer(by, *state, now),
            (Phase::Disputing, ComputeAction::Expire) => self.end_disputing(now),
            (Phase::Refereeing, ComputeAction::Rule(after)) => self.rule(by, *after, now),
            (Phase::Refereeing, ComputeAction::Expire) => self.end_refereeing(now),
            _ => Err(self.wrong_phase(action)),
        }
    }

    fn wrong_phase(&self, action: &ComputeAction) -> LeaseError {
        LeaseError::Phase { phase: self.phase.name(), action: action.name() }
    }

    fn enter(&mut self, phase: Phase, now: Timestamp, window: u64) {
        self.phase = phase;
        self.deadline = now.saturating_add_ms(window);
    }

    /// The account that the order was awarded to.
    fn provider(&self) -> Option<Address> {
        self.award.as_ref().map(|award| award.provider)
    }

    fn require_provider(&self, by: Address) -> Result<(), LeaseError> {
        match self.provider() == Some(by) {
            true => Ok(()),
            false => Err(LeaseError::Account { account: by, role: "the provider of this lease" }),
        }
    }

    /// Takes the bond of an auditor.
    fn forfeit_audit_bond(&mut self, auditor: Address) -> Result<(), LeaseError> {
        self.auditors.remove(&auditor);
        let from = ComputeAccount::AuditBond(auditor);
        Ok(self.books.transfer_all(from, ComputeAccount::Forfeited(auditor))?)
    }

    fn fee(&self) -> Amount {
        self.order.audit.fee
    }
}
