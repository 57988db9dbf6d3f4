//! The end of a lease: who is owed what.

use florin_protocol::Address;

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
            let (from, to) = (ComputeAccount::Stake(provider), ComputeAccount::Returned(provider));
            self.books.transfer_all(from, to)?;
        }
        self.pay_audits()?;
        self.close(match delivered == self.order.segments {
            true => LeaseOutcome::Settled,
            false => LeaseOutcome::Defaulted { delivered },
        })
    }

    /// Pays each opened end of an auditor that has its bond.
    pub(super) fn pay_audits(&mut self) -> Result<(), LeaseError> {
        let fee = self.fee();
        let audited = self.audits.iter().flat_map(|audit| audit.ends.keys()).copied();
        for auditor in audited.collect::<Vec<_>>() {
            if self.is_auditor(auditor) {
                let owed = ComputeAccount::Owed(auditor);
                self.books.transfer(ComputeAccount::Escrow, owed, fee)?;
            }
        }
        Ok(())
    }

    /// Takes the provider's stake over a segment. The order is not paid; the renter pays the audits, and the
    /// bounty of an auditor that a ruling found right. No account gains by a stake.
    pub(super) fn slash_provider(
        &mut self,
        segment: u32,
        accuser: Option<Address>,
    ) -> Result<(), LeaseError> {
        self.pay_audits()?;
        if let Some(accuser) = accuser {
            let owed = ComputeAccount::Owed(accuser);
            self.books.transfer(ComputeAccount::Escrow, owed, self.order.bounty())?;
        }
        if let Some(provider) = self.provider() {
            let (from, to) = (ComputeAccount::Stake(provider), ComputeAccount::Forfeited(provider));
            self.books.transfer_all(from, to)?;
        }
        self.close(LeaseOutcome::Slashed { segment })
    }

    /// Returns what is left to its owners.
    pub(super) fn close(&mut self, outcome: LeaseOutcome) -> Result<(), LeaseError> {
        for auditor in std::mem::take(&mut self.auditors) {
            let from = ComputeAccount::AuditBond(auditor);
            self.books.transfer_all(from, ComputeAccount::Returned(auditor))?;
        }
        let renter = ComputeAccount::Returned(self.order.renter);
        self.books.transfer_all(ComputeAccount::Escrow, renter)?;
        (self.dispute, self.outcome, self.phase) = (None, Some(outcome), Phase::Over);
        Ok(())
    }
}
