//! The delivery of segments, and the draw of the audits.

use florin_protocol::{Address, Digest, Timestamp};

use super::{Lease, Phase, REPLACEMENTS_MAX, SegmentAudit};
use crate::audit::{AuditDraw, draw_auditors, draw_audits};
use crate::books::ComputeAccount;
use crate::error::LeaseError;

impl Lease {
    /// Begins a segment, with a deadline that follows from the winner's own card.
    pub(super) fn enter_segment(&mut self, now: Timestamp) {
        let step_us = self.award.as_ref().map_or(0, |award| award.step_us);
        self.enter(Phase::Running, now, self.order.segment_ms(step_us));
    }

    /// The measured microseconds of a step, without the window of each segment for transfers.
    #[must_use]
    pub fn measured_us(&self) -> u64 {
        self.measured_us_without(0)
    }

    /// The measured microseconds of a step, without some milliseconds of each segment besides its window for transfers.
    #[must_use]
    pub fn measured_us_without(&self, segment_ms: u64) -> u64 {
        let (began, ended) = self.ran;
        let delivered = u64::from(self.delivered());
        let without = self.order.windows.segment.saturating_add(segment_ms);
        let transfers = without.saturating_mul(delivered);
        let ms = ended.ms_since(began).saturating_sub(transfers);
        let steps = delivered.saturating_mul(self.order.steps.into());
        ms.saturating_mul(1_000).checked_div(steps).unwrap_or_default()
    }

    /// Segments that were delivered.
    pub(super) fn delivered(&self) -> u32 {
        u32::try_from(self.leaves.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn deliver(
        &mut self,
        by: Address,
        segment: u32,
        leaf: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        self.require_provider(by)?;
        if segment != self.delivered() {
            let (got, rule) = (segment.into(), "must be the next one: they are delivered in order");
            return Err(LeaseError::Invalid { what: "the segment", got, rule });
        }
        self.leaves.push(leaf);
        self.ran.1 = now;
        match self.delivered() == self.order.segments {
            true => self.enter(Phase::Delivered, now, self.order.windows.draw),
            false => self.enter_segment(now),
        }
        Ok(())
    }

    pub(super) fn end_running(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        if let Some(provider) = self.provider() {
            let fine = self.order.deposits.default_fine;
            let from = ComputeAccount::Stake(provider);
            self.books.transfer_at_most(from, ComputeAccount::Forfeited(provider), fine)?;
        }
        if self.leaves.is_empty() {
            return self.pay();
        }
        self.enter(Phase::Delivered, now, self.order.windows.draw);
        Ok(())
    }

    pub(super) fn draw(&mut self, beacon: Digest, now: Timestamp) -> Result<(), LeaseError> {
        let draw = AuditDraw { order: self.id, leaves: &self.leaves, beacon };
        let wanted = usize::try_from(self.order.audit.auditors).unwrap_or(usize::MAX);
        let segments = draw_audits(&draw, self.order.audited(self.delivered()));
        let seed = draw.seed();
        let audit = |segment| {
            let mut asked = draw_auditors(seed, segment, self.auditors.iter().copied());
            let mut reserve = asked.split_off(wanted.min(asked.len()));
            reserve.truncate(wanted.saturating_mul(REPLACEMENTS_MAX.into()));
            SegmentAudit {
                segment,
                asked: asked.into_iter().collect(),
                reserve,
                sealed: Default::default(),
                ends: Default::default(),
                start: None,
                end: None,
            }
        };
        self.audits = segments.into_iter().map(audit).collect();
        self.enter(Phase::Serving, now, self.order.windows.audit);
        Ok(())
    }
}
