//! The audits: starts are served, ends are sealed, and both sides open.

use std::collections::BTreeSet;

use florin_protocol::{Address, Digest, Timestamp};

use super::{Lease, Phase, REPLACEMENTS_MAX, SegmentAudit};
use crate::audit::{Secret, end_commitment, segment_leaf};
use crate::error::LeaseError;

impl Lease {
    fn audit_mut(&mut self, segment: u32) -> Result<&mut SegmentAudit, LeaseError> {
        self.audits.iter_mut().find(|audit| audit.segment == segment).ok_or(LeaseError::Invalid {
            what: "the segment",
            got: segment.into(),
            rule: "must be one of the drawn ones",
        })
    }

    pub(super) fn serve(
        &mut self,
        by: Address,
        segment: u32,
        start: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        self.require_provider(by)?;
        let first = self.order.start;
        let audit = self.audit_mut(segment)?;
        if audit.start.is_some() {
            return Err(LeaseError::Repeated { account: by, done: "served this start" });
        }
        if segment == 0 && start != first {
            return Err(LeaseError::Commitment("the start of the first segment"));
        }
        audit.start = Some(start);
        if self.audits.iter().all(|audit| audit.start.is_some()) {
            self.enter(Phase::Auditing, now, self.order.windows.audit);
        }
        Ok(())
    }

    /// A start that is not served is a wrong one.
    pub(super) fn end_serving(&mut self) -> Result<(), LeaseError> {
        match self.audits.iter().find(|audit| audit.start.is_none()) {
            Some(audit) => self.slash_provider(audit.segment, None),
            None => Ok(()),
        }
    }

    pub(super) fn seal_end(
        &mut self,
        by: Address,
        segment: u32,
        sealed: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        let audit = self.audit_mut(segment)?;
        if !audit.asked.contains(&by) {
            return Err(LeaseError::Account { account: by, role: "an auditor of this segment" });
        }
        if audit.sealed.contains_key(&by) {
            return Err(LeaseError::Repeated { account: by, done: "sealed this end" });
        }
        audit.sealed.insert(by, sealed);
        if self.audits.iter().all(|audit| audit.sealed.len() == audit.asked.len()) {
            self.enter(Phase::Opening, now, self.order.windows.audit);
        }
        Ok(())
    }

    pub(super) fn end_auditing(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let mut silent = BTreeSet::new();
        for audit in &self.audits {
            silent.extend(audit.asked.iter().filter(|who| !audit.sealed.contains_key(who)));
        }
        for &auditor in &silent {
            self.forfeit_audit_bond(auditor)?;
        }
        let can_replace = self.replaced < REPLACEMENTS_MAX;
        self.replaced = self.replaced.saturating_add(1);
        let auditors = &self.auditors;
        let mut is_complete = true;
        for audit in &mut self.audits {
            let missing = audit.asked.len().saturating_sub(audit.sealed.len());
            audit.asked.retain(|who| audit.sealed.contains_key(who));
            if can_replace {
                audit.reserve.retain(|who| auditors.contains(who));
                let next = audit.reserve.drain(..missing.min(audit.reserve.len()));
                audit.asked.extend(next);
            }
            is_complete &= audit.asked.len() == audit.sealed.len();
        }
        let phase = if is_complete { Phase::Opening } else { Phase::Auditing };
        self.enter(phase, now, self.order.windows.audit);
        Ok(())
    }

    pub(super) fn open_leaf(
        &mut self,
        by: Address,
        segment: u32,
        secret: Secret,
        salt_before: Digest,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        self.require_provider(by)?;
        let id = self.id;
        let leaf = |segment: u32| {
            usize::try_from(segment).ok().and_then(|at| self.leaves.get(at)).copied()
        };
        let (own, before) = (leaf(segment), segment.checked_sub(1).and_then(leaf));
        let is_last = segment.checked_add(1) == Some(self.delivered());
        let is_drawn = self.audits.iter().any(|audit| audit.segment == segment);
        let is_right = own == Some(segment_leaf(id, by, segment, secret));
        if is_last && !is_drawn && self.result.is_none() {
            if !is_right {
                return Err(LeaseError::Commitment("the leaf of the segment"));
            }
            self.result = Some(secret.end);
            return self.judge_if_open(now);
        }
        let audit = self.audit_mut(segment)?;
        if audit.end.is_some() {
            return Err(LeaseError::Repeated { account: by, done: "opened this leaf" });
        }
        if !is_right {
            return Err(LeaseError::Commitment("the leaf of the segment"));
        }
        // The start that the auditors were served is the end of the segment before.
        if let (Some(before), Some(start)) = (before, audit.start) {
            let secret = Secret { end: start, salt: salt_before };
            if before != segment_leaf(id, by, segment.saturating_sub(1), secret) {
                return Err(LeaseError::Commitment("the leaf before the segment"));
            }
        }
        audit.end = Some(secret.end);
        if is_last {
            self.result = Some(secret.end);
        }
        self.judge_if_open(now)
    }

    pub(super) fn open_end(
        &mut self,
        by: Address,
        segment: u32,
        secret: Secret,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        let id = self.id;
        let audit = self.audit_mut(segment)?;
        let Some(sealed) = audit.sealed.get(&by) else {
            return Err(LeaseError::Account { account: by, role: "an auditor of this segment" });
        };
        if audit.ends.contains_key(&by) {
            return Err(LeaseError::Repeated { account: by, done: "opened this end" });
        }
        if end_commitment(id, by, segment, secret) != *sealed {
            return Err(LeaseError::Commitment("the end of the segment"));
        }
        audit.ends.insert(by, secret.end);
        self.judge_if_open(now)
    }

    fn judge_if_open(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        let is_open =
            |audit: &SegmentAudit| audit.end.is_some() && audit.ends.len() == audit.sealed.len();
        match self.result.is_some() && self.audits.iter().all(is_open) {
            true => self.judge_next(now),
            false => Ok(()),
        }
    }

    pub(super) fn end_opening(&mut self, now: Timestamp) -> Result<(), LeaseError> {
        if let Some(closed) = self.audits.iter().find(|audit| audit.end.is_none()) {
            return self.slash_provider(closed.segment, None);
        }
        if self.result.is_none() {
            return self.slash_provider(self.delivered().saturating_sub(1), None);
        }
        let mut silent = BTreeSet::new();
        for audit in &self.audits {
            silent.extend(audit.sealed.keys().filter(|who| !audit.ends.contains_key(who)));
        }
        for auditor in silent {
            self.forfeit_audit_bond(auditor)?;
        }
        self.judge_next(now)
    }
}
