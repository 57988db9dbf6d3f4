//! The audits of a played lease, and its disputes.

use std::collections::BTreeMap;

use florin_compute::{ComputeAction, LeaseError, Phase, Secret, end_commitment};
use florin_protocol::{Address, Digest};

use super::{AuditorConduct, LeaseGame, OrderWork, PlannedAuditor, made_up, steps_ms};

/// The first byte of made-up ends of auditors.
const MADE_UP: u8 = 2;

impl<W: OrderWork> LeaseGame<'_, W> {
    pub(super) fn audit(&mut self, beacon: Digest) -> Result<(), W::Error> {
        let renter = self.played.lease.order().renter;
        self.act(renter, &ComputeAction::Draw(beacon))?;
        let drawn: Vec<u32> = self.played.lease.audited().map(|(segment, _)| segment).collect();
        let provider = self.own.map(|own| own.bidder).unwrap_or_default();
        match self.absence() {
            Some(absence) => self.pass_deadline_of(absence)?,
            None => {
                for &segment in &drawn {
                    let start = self.start(segment);
                    self.act(provider, &ComputeAction::Serve { segment, start })?;
                }
            }
        }
        while self.phase() == Phase::Auditing {
            self.seal_ends()?;
            if self.phase() == Phase::Auditing {
                self.expire()?;
            }
        }
        if let Some(absence) = self.absence() {
            self.open_ends()?;
            if self.phase() == Phase::Opening {
                self.pass_deadline_of(absence)?;
            }
            return self.resolve();
        }
        for &segment in &drawn {
            let before = segment.checked_sub(1);
            let salt_before = before.map_or(Digest([0; 32]), |before| self.secret(before).salt);
            let secret = self.secret(segment);
            let opened = ComputeAction::OpenLeaf { segment, secret, salt_before };
            // Leaves of another order cannot be opened.
            if self.act(provider, &opened).is_err() {
                self.expire()?;
                return Ok(());
            }
        }
        self.open_result()?;
        self.open_ends()?;
        self.resolve()
    }

    fn open_ends(&mut self) -> Result<(), LeaseError> {
        for ((segment, auditor), secret) in std::mem::take(&mut self.sealed) {
            if self.phase() == Phase::Opening {
                self.act(auditor, &ComputeAction::OpenEnd { segment, secret })?;
            }
        }
        Ok(())
    }

    /// Opens the last leaf, if it is not drawn.
    pub(super) fn open_result(&mut self) -> Result<(), LeaseError> {
        let last = u32::try_from(self.ends.len()).unwrap_or(u32::MAX).checked_sub(1);
        let (Some(segment), Some(own)) = (last, self.own) else { return Ok(()) };
        if self.played.lease.result().is_some() || self.phase() != Phase::Opening {
            return Ok(());
        }
        let secret = self.secret(segment);
        let opened = ComputeAction::OpenLeaf { segment, secret, salt_before: Digest([0; 32]) };
        // A leaf of another order stays closed.
        let _ = self.act(own.bidder, &opened);
        Ok(())
    }

    /// Seals the ends of all auditors that are asked and not silent; the slowest one ends the wait.
    fn seal_ends(&mut self) -> Result<(), W::Error> {
        let lease = &self.played.lease;
        let open = lease.audits().iter().flat_map(|audit| {
            let asked = audit.asked.iter().filter(|auditor| !audit.sealed.contains_key(auditor));
            asked.map(|auditor| (audit.segment, *auditor))
        });
        let open: Vec<(u32, Address)> = open.collect();
        let (steps, window_ms) = (lease.order().steps, lease.order().windows.audit);
        let mut works = BTreeMap::<Address, u64>::new();
        let mut secrets = Vec::new();
        for (segment, account) in open {
            let Some(auditor) = self.planned(account) else { continue };
            self.played.asked.push((segment, account));
            if auditor.conduct.computes() {
                let ms = works.entry(account).or_default();
                let after = ms.saturating_add(steps_ms(auditor.step_us, steps));
                // It is late with this segment.
                if after > window_ms {
                    continue;
                }
                *ms = after;
                self.count_segment(account);
            }
            let Some(end) = self.returned(segment, auditor)? else { continue };
            let salt = made_up(segment, account.0[19]);
            secrets.push(((segment, account), Secret { end, salt }));
        }
        self.wait(works.into_values().max().unwrap_or_default());
        let id = self.played.lease.id();
        for ((segment, account), secret) in secrets {
            let sealed = end_commitment(id, account, segment, secret);
            self.act(account, &ComputeAction::SealEnd { segment, sealed })?;
            self.sealed.insert((segment, account), secret);
        }
        Ok(())
    }

    fn planned(&self, account: Address) -> Option<PlannedAuditor> {
        let planned = self.plan.auditors.iter().find(|auditor| auditor.account == account);
        let is_favoured = self.own.is_some_and(|own| self.plan.favoured.contains(&own.bidder));
        planned.map(|auditor| match (auditor.conduct, is_favoured) {
            (AuditorConduct::Colludes, true) => {
                PlannedAuditor { conduct: AuditorConduct::Copies, ..*auditor }
            }
            (AuditorConduct::Colludes, false) => {
                PlannedAuditor { conduct: AuditorConduct::Computes, ..*auditor }
            }
            _ => *auditor,
        })
    }

    /// The end that an auditor seals.
    fn returned(
        &mut self,
        segment: u32,
        auditor: PlannedAuditor,
    ) -> Result<Option<Digest>, W::Error> {
        let (start, steps) = (self.start(segment), self.played.lease.order().steps);
        Ok(match auditor.conduct {
            AuditorConduct::Silent => None,
            AuditorConduct::MakesUp => Some(made_up(segment, MADE_UP)),
            AuditorConduct::Copies => self.ends.get(segment as usize).copied(),
            AuditorConduct::Computes | AuditorConduct::Colludes => {
                Some(self.work.after(auditor.account, start, steps)?)
            }
            AuditorConduct::Accuses => {
                self.work.after(auditor.account, start, steps)?;
                Some(made_up(segment, MADE_UP))
            }
        })
    }

    /// Answers each dispute, and rules. A side without a trace states some state.
    fn resolve(&mut self) -> Result<(), W::Error> {
        while self.phase() != Phase::Over {
            let lease = &self.played.lease;
            let Some(dispute) = lease.dispute().cloned() else { return Ok(()) };
            let (referee, steps) = (lease.order().referee, dispute.differ.0);
            if self.phase() == Phase::Refereeing {
                let is_one_step = dispute.agreed.0.saturating_add(1) == steps;
                let state = match is_one_step {
                    true => self.work.step(dispute.agreed.1)?,
                    false => self.work.after(referee, self.start(dispute.segment), steps)?,
                };
                self.act(referee, &ComputeAction::Rule(state))?;
                continue;
            }
            let Some(by) = lease.answers() else { return Ok(()) };
            let absence = self.absence().filter(|_| by != dispute.auditor);
            if let Some(absence) = absence {
                self.pass_deadline_of(absence)?;
                continue;
            }
            let own = self.own.filter(|own| own.bidder == by && dispute.auditor != by);
            let middle = dispute.middle().unwrap_or_default();
            let start = self.start(dispute.segment);
            let state = match own {
                Some(own) if own.plan.fakes.contains(&dispute.segment) => {
                    self.work.claimed(start, middle)?
                }
                Some(_) => self.work.after(by, start, middle)?,
                None => match self.planned(by).is_some_and(|auditor| auditor.conduct.computes()) {
                    true => self.work.after(by, start, middle)?,
                    false => made_up(middle, MADE_UP),
                },
            };
            self.act(by, &ComputeAction::Answer(state))?;
        }
        Ok(())
    }
}

impl AuditorConduct {
    /// Whether it computes what it seals, or could seal.
    const fn computes(self) -> bool {
        matches!(self, Self::Computes | Self::Accuses)
    }
}
