//! Ends that differ: one dispute after the other, until the provider is wrong or none is left.

use florin_protocol::{Address, Digest, Timestamp};

use super::{Lease, Phase};
use crate::data_class::DataClass;
use crate::dispute::{Dispute, Party};
use crate::error::LeaseError;

impl Lease {
    /// Begins the next dispute, or pays if there is none.
    pub(super) fn judge_next(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        self.dispute = self.next_dispute();
        match self.dispute.is_some() {
            true => {
                self.wait_for_answer(now);
                Ok(())
            }
            false => self.pay(),
        }
    }

    /// The first end of an auditor that differs from the provider's. An auditor that lost its bond elsewhere may
    /// still be right.
    fn next_dispute(&self) -> Option<Dispute> {
        self.audits.iter().find_map(|audit| {
            let (start, end) = (audit.start?, audit.end?);
            let (auditor, theirs) = audit.ends.iter().find(|(_, theirs)| **theirs != end)?;
            Some(Dispute {
                segment: audit.segment,
                auditor: *auditor,
                agreed: (0, start),
                differ: (self.order.steps, end, *theirs),
                stated: None,
            })
        })
    }

    fn wait_for_answer(&mut self, now: Timestamp) {
        let is_left = self.dispute.as_ref().is_some_and(|dispute| dispute.next().is_some());
        let answer = self.order.windows.answer;
        match is_left {
            true => self.enter(Phase::Disputing, now, answer),
            false => self.wait_for_ruling(now),
        }
    }

    /// The referee rules on the state after the first step that differs.
    pub(super) fn wait_for_ruling(&mut self, now: Timestamp) {
        let windows = self.order.ruling_windows();
        self.enter(Phase::Refereeing, now, self.order.windows.answer.saturating_mul(windows));
    }

    /// The account whose answer the dispute waits for.
    #[must_use]
    pub fn answers(&self) -> Option<Address> {
        let dispute = self.dispute.as_ref()?;
        match dispute.next()? {
            Party::Provider => self.provider(),
            Party::Auditor => Some(dispute.auditor),
        }
    }

    pub(super) fn answer(
        &mut self,
        by: Address,
        state: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        if self.answers() != Some(by) {
            let role = "the side whose answer is due";
            return Err(LeaseError::Account { account: by, role });
        }
        if let Some(dispute) = &mut self.dispute {
            dispute.answer(state);
        }
        self.wait_for_answer(now);
        Ok(())
    }

    pub(super) fn end_disputing(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let Some(dispute) = self.dispute.clone() else { return Ok(()) };
        match dispute.next() {
            // Silence proves no auditor right.
            Some(Party::Provider) => self.slash_provider(dispute.segment, None),
            _ => self.reject_auditor(&dispute, now),
        }
    }

    /// The auditor was wrong: its end no longer counts.
    fn reject_auditor(&mut self, dispute: &Dispute, now: Timestamp) -> Result<(), LeaseError> {
        self.forfeit_audit_bond(dispute.auditor)?;
        for audit in self.audits.iter_mut().filter(|audit| audit.segment == dispute.segment) {
            audit.ends.remove(&dispute.auditor);
        }
        self.judge_next(now)
    }

    pub(super) fn rule(
        &mut self,
        by: Address,
        after: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        if by != self.order.referee {
            return Err(LeaseError::Account { account: by, role: "the order's referee" });
        }
        let Some(dispute) = self.dispute.clone() else { return Ok(()) };
        let (_, of_provider, of_auditor) = dispute.differ;
        if after == of_provider {
            return self.reject_auditor(&dispute, now);
        }
        if after != of_auditor {
            self.forfeit_audit_bond(dispute.auditor)?;
            return self.slash_provider(dispute.segment, None);
        }
        self.slash_provider(dispute.segment, Some(dispute.auditor))
    }

    /// Without a ruling the end of the provider counts: the renter chose the referee. The auditor has its bond and
    /// its fee, unless it is the renter.
    pub(super) fn end_refereeing(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let Some(dispute) = self.dispute.clone() else { return Ok(()) };
        if self.order.data_class == DataClass::Private {
            return self.reject_auditor(&dispute, now);
        }
        for audit in self.audits.iter_mut().filter(|audit| audit.segment == dispute.segment) {
            if let (Some(own), Some(end)) = (audit.end, audit.ends.get_mut(&dispute.auditor)) {
                *end = own;
            }
        }
        self.judge_next(now)
    }
}
