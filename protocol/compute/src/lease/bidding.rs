//! Bids, the award and its funding.

use florin_protocol::{Address, Digest, Timestamp};

use super::{BIDS_MAX, Lease, LeaseOutcome, POOL_MAX, Phase};
use crate::auction::{Bid, award, bid_commitment};
use crate::books::ComputeAccount;
use crate::data_class::DataClass;
use crate::error::LeaseError;

impl Lease {
    pub(super) fn seal_bid(&mut self, by: Address, commitment: Digest) -> Result<(), LeaseError> {
        if self.sealed.contains_key(&by) {
            return Err(LeaseError::Repeated { account: by, done: "sealed a bid" });
        }
        if by == self.order.renter || by == self.order.referee || self.auditors.contains(&by) {
            let role = "independent: renter, referee and auditors do not bid";
            return Err(LeaseError::Account { account: by, role });
        }
        if self.sealed.len() >= BIDS_MAX {
            return Err(LeaseError::Limit { what: "bids for an order", max: BIDS_MAX });
        }
        self.books.deposit(ComputeAccount::BidBond(by), self.order.deposits.bid_bond)?;
        self.sealed.insert(by, commitment);
        Ok(())
    }

    pub(super) fn join_audit(&mut self, by: Address) -> Result<(), LeaseError> {
        if self.auditors.contains(&by) {
            return Err(LeaseError::Repeated { account: by, done: "joined as an auditor" });
        }
        if let Some(role) = self.refuse_auditor(by) {
            return Err(LeaseError::Account { account: by, role });
        }
        if self.auditors.len() >= POOL_MAX {
            return Err(LeaseError::Limit { what: "auditors for an order", max: POOL_MAX });
        }
        self.books.deposit(ComputeAccount::AuditBond(by), self.order.deposits.audit_bond)?;
        self.auditors.insert(by);
        Ok(())
    }

    /// The role that an account lacks to audit; `None` if it may.
    fn refuse_auditor(&self, by: Address) -> Option<&'static str> {
        let is_renter = by == self.order.renter;
        if self.order.data_class == DataClass::Private {
            return (!is_renter).then_some("the renter, who alone audits an order on private rows");
        }
        (is_renter || by == self.order.referee || self.sealed.contains_key(&by))
            .then_some("independent: renter, referee and bidders do not audit")
    }

    pub(super) fn end_bidding(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        if self.sealed.is_empty() || !self.has_auditors() {
            return self.end_unawarded();
        }
        self.enter(Phase::Revealing, now, self.order.windows.reveal);
        Ok(())
    }

    pub(super) fn open_bid(
        &mut self,
        by: Address,
        bid: &Bid,
        salt: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        let Some(sealed) = self.sealed.get(&by) else {
            return Err(LeaseError::Account { account: by, role: "a bidder of this order" });
        };
        if self.bids.contains_key(&by) {
            return Err(LeaseError::Repeated { account: by, done: "opened its bid" });
        }
        if bid_commitment(self.id, by, bid, salt) != *sealed {
            return Err(LeaseError::Commitment("the bid"));
        }
        bid.check()?;
        self.bids.insert(by, bid.clone());
        match self.bids.len() == self.sealed.len() {
            true => self.end_revealing(now),
            false => Ok(()),
        }
    }

    pub(super) fn end_revealing(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let silent = self.sealed.keys().filter(|bidder| !self.bids.contains_key(bidder));
        for bidder in silent.copied().collect::<Vec<_>>() {
            let from = ComputeAccount::BidBond(bidder);
            self.books.transfer_all(from, ComputeAccount::Forfeited(bidder))?;
        }
        // Bids that cannot win only take the places of others.
        let order = &self.order;
        let vain = self.bids.iter().filter(|(_, bid)| !bid.can_win(order));
        for bidder in vain.map(|(bidder, _)| *bidder).collect::<Vec<_>>() {
            self.bids.remove(&bidder);
            let from = ComputeAccount::BidBond(bidder);
            self.books.transfer_all(from, ComputeAccount::Forfeited(bidder))?;
        }
        self.award_next(now)
    }

    /// Awards the order to the best bid that is left.
    fn award_next(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        self.award = award(&self.order, &self.bids);
        if self.award.is_none() {
            return self.end_unawarded();
        }
        self.enter(Phase::Funding, now, self.order.windows.fund);
        Ok(())
    }

    fn has_auditors(&self) -> bool {
        let wanted = usize::try_from(self.order.audit.auditors).unwrap_or(usize::MAX);
        self.auditors.len() >= wanted
    }

    pub(super) fn fund(&mut self, by: Address, now: Timestamp) -> Result<(), LeaseError> {
        self.require_provider(by)?;
        self.books.deposit(ComputeAccount::Stake(by), self.order.deposits.stake)?;
        self.return_bid_bonds()?;
        self.ran = (now, now);
        self.enter_segment(now);
        Ok(())
    }

    /// Returns the bonds of the bids that are left.
    pub(super) fn return_bid_bonds(&mut self) -> Result<(), LeaseError> {
        for bidder in self.sealed.keys() {
            let (from, to) = (ComputeAccount::BidBond(*bidder), ComputeAccount::Returned(*bidder));
            self.books.transfer_all(from, to)?;
        }
        Ok(())
    }

    pub(super) fn end_funding(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let Some(winner) = self.provider() else { return self.end_unawarded() };
        let (from, to) = (ComputeAccount::BidBond(winner), ComputeAccount::Forfeited(winner));
        self.books.transfer_all(from, to)?;
        self.bids.remove(&winner);
        self.award_next(now)
    }

    fn end_unawarded(&mut self) -> Result<(), LeaseError> {
        self.award = None;
        self.return_bid_bonds()?;
        self.close(LeaseOutcome::Unawarded)
    }
}
