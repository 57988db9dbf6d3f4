//! The end of a lease: who is owed what.

use florin_protocol::{Address, Amount};

use super::{Lease, LeaseOutcome, Phase};
use crate::books::ComputeAccount;
use crate::error::LeaseError;

impl Lease {
    /// Pays the delivered segments, and returns the stake.
    pub(super) fn pay(&mut self) -> Result<(), LeaseError> {
        let delivered = self.delivered();
        if let Some(award) = &self.award {
            let (provider, segments) = (award.provider, self.order.segments);
            let price = award.price(&self.order, self.measured_us());
            let pay = price.mul_div_down(delivered.into(), segments.into())?;
            let owed = ComputeAccount::Owed(provider);
            self.books.transfer(ComputeAccount::Escrow, owed, pay)?;
            self.books.transfer_all(ComputeAccount::Stake(provider), owed)?;
        }
        self.pay_audits()?;
        self.close(match delivered == self.order.segments {
            true => LeaseOutcome::Settled,
            false => LeaseOutcome::Defaulted { delivered },
        })
    }

    /// Pays each opened end of an auditor that has its bond. Returns the sum.
    pub(super) fn pay_audits(&mut self) -> Result<Amount, LeaseError> {
        let fee = self.fee();
        let mut sum = Amount::ZERO;
        let audited = self.audits.iter().flat_map(|audit| audit.ends.keys()).copied();
        for auditor in audited.collect::<Vec<_>>() {
            if self.has_bond(auditor) {
                let owed = ComputeAccount::Owed(auditor);
                self.books.transfer(ComputeAccount::Escrow, owed, fee)?;
                sum = sum.plus(fee)?;
            }
        }
        Ok(sum)
    }

    /// Takes the provider's stake over a segment. The order is not paid; the renter gets the cost of the audits
    /// from the stake, and an auditor that a ruling found right the bounty.
    pub(super) fn slash_provider(
        &mut self,
        segment: u32,
        accuser: Option<Address>,
    ) -> Result<(), LeaseError> {
        let audits = self.pay_audits()?;
        if let Some(provider) = self.provider() {
            let stake = ComputeAccount::Stake(provider);
            let renter = ComputeAccount::Owed(self.order.renter);
            self.books.transfer_at_most(stake, renter, audits)?;
            if let Some(accuser) = accuser {
                let bounty = self.order.bounty();
                self.books.transfer_at_most(stake, ComputeAccount::Owed(accuser), bounty)?;
            }
            self.books.transfer_all(stake, ComputeAccount::Treasury)?;
        }
        self.close(LeaseOutcome::Slashed { segment })
    }

    /// Returns what is left to its owners.
    pub(super) fn close(&mut self, outcome: LeaseOutcome) -> Result<(), LeaseError> {
        for auditor in std::mem::take(&mut self.auditors) {
            let from = ComputeAccount::AuditBond(auditor);
            self.books.transfer_all(from, ComputeAccount::Owed(auditor))?;
        }
        let renter = ComputeAccount::Owed(self.order.renter);
        self.books.transfer_all(ComputeAccount::Escrow, renter)?;
        (self.dispute, self.outcome, self.phase) = (None, Some(outcome), Phase::Over);
        Ok(())
    }
}
