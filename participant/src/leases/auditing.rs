//! The auditor of drawn segments, the two sides of a dispute, and the referee.

use florin_compute::{ComputeAction, DataClass, Phase, end_commitment};
use florin_protocol::Digest;
use florin_work::{JobRows, LeasedTraining};

use super::LeaseDaemon;
use super::decide::DisputedStep;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::{FollowedOrder, OrderVisit};
use crate::client::ClientError;

/// The state after a step of a trace, from 1. Behind its end the last state stays.
fn state_after(trace: &[Digest], step: u32) -> Option<Digest> {
    let at = usize::try_from(step).ok()?.checked_sub(1)?;
    trace.get(at).or(trace.last()).copied()
}

impl LeaseDaemon<'_, '_> {
    /// Prepares for a step that may be due soon: loads the training of an auditor or a referee, and
    /// computes the trace of a provider.
    pub(super) fn prepare(
        &mut self,
        order: &mut FollowedOrder,
    ) -> Result<OrderVisit, LeaseServeError> {
        let lease = order.lease()?.lease();
        let may_be_asked = match lease.phase().0 {
            Phase::Serving => lease.is_auditor(self.me),
            Phase::Disputing => order.roles.referees && lease.order().referee == self.me,
            _ => false,
        };
        let may_read = lease.may_read_rows(self.me);
        if may_be_asked && may_read && (order.training.is_none() || order.is_stand_in) {
            self.load(order)?;
            return Ok(OrderVisit::Acted);
        }
        self.prepare_trace(order)
    }

    /// Computes a drawn segment from the start that was served, and seals its end.
    pub(super) fn seal_end(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
        start: Digest,
    ) -> Result<OrderVisit, LeaseServeError> {
        let trace = self.trace(order, segment, start)?;
        let end = trace.last().copied().unwrap_or(start);
        let id = order.view.id;
        let sealed = end_commitment(id, self.me, segment, self.secrets.end(id, segment, end));
        self.act(order, ComputeAction::SealEnd { segment, sealed })?;
        self.summary.audits = self.summary.audits.saturating_add(1);
        self.emit(&LeaseEvent::AuditSealed { order: id, segment });
        Ok(OrderVisit::Acted)
    }

    /// Opens the sealed end of a segment.
    pub(super) fn open_end(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
        start: Digest,
    ) -> Result<OrderVisit, LeaseServeError> {
        let trace = self.trace(order, segment, start)?;
        let end = trace.last().copied().unwrap_or(start);
        let secret = self.secrets.end(order.view.id, segment, end);
        self.act(order, ComputeAction::OpenEnd { segment, secret })?;
        self.emit(&LeaseEvent::AuditOpened { order: order.view.id, segment });
        Ok(OrderVisit::Acted)
    }

    /// Answers in a dispute with the own state after a step.
    pub(super) fn answer(
        &mut self,
        order: &mut FollowedOrder,
        disputed: DisputedStep,
    ) -> Result<OrderVisit, LeaseServeError> {
        let DisputedStep { segment, start, step } = disputed;
        let trace = self.trace(order, segment, start)?;
        let state = state_after(&trace, step).unwrap_or(start);
        self.act(order, ComputeAction::Answer(state))?;
        self.emit(&LeaseEvent::DisputeAnswered { order: order.view.id, segment, step });
        Ok(OrderVisit::Acted)
    }

    /// Computes a disputed step as the referee, from the start of its segment, and rules.
    pub(super) fn rule(
        &mut self,
        order: &mut FollowedOrder,
        disputed: DisputedStep,
    ) -> Result<OrderVisit, LeaseServeError> {
        let DisputedStep { segment, start, step } = disputed;
        self.turn.is_over = true;
        let state = match order.view.order.data_class {
            DataClass::Private => self.state_from_disputed_rows(order)?,
            DataClass::Public | DataClass::Buyer => {
                self.load(order)?;
                let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
                let bytes = self.state_bytes(&order.view.order, start)?;
                let start = training.start(segment, start, &bytes)?;
                Digest(training.state_in_segment(self.context.engine, &start, step)?.digest())
            }
        };
        self.act(order, ComputeAction::Rule(state))?;
        self.summary.rulings = self.summary.rulings.saturating_add(1);
        self.emit(&LeaseEvent::Ruled { order: order.view.id, segment, step });
        Ok(OrderVisit::Acted)
    }
}

impl LeaseDaemon<'_, '_> {
    /// The state after the disputed step of private rows, from the rows of that step and the state before it.
    fn state_from_disputed_rows(
        &mut self,
        order: &FollowedOrder,
    ) -> Result<Digest, LeaseServeError> {
        let (client, wallet) = (self.context.client, self.context.wallet);
        let offered = &order.view.order;
        let dispute = order.lease()?.lease().dispute().ok_or(LeaseServeError::NoLease)?;
        let (before, agreed) = dispute.agreed;
        let step = offered.steps_before(dispute.segment).saturating_add(before.into());
        let bytes = self.state_bytes(offered, agreed)?;
        let job = client.order_job(order.view.id, offered.job)?;
        let batch = client.disputed_rows(offered, job.rows, wallet)?;
        let rows = JobRows::OfStep(step.saturating_add(1), &batch);
        let read = |digest, limit| client.order_blob(offered, digest, limit, wallet);
        let training = LeasedTraining::load_with::<ClientError>(offered, &job, rows, read)?;
        let place = (dispute.segment, before);
        Ok(training.ruling(self.context.engine, place, agreed, &bytes)?)
    }

    /// Uploads the state before the disputed step of private rows: the referee gets the rows of that step alone.
    pub(super) fn show_agreed(
        &mut self,
        order: &mut FollowedOrder,
        disputed: DisputedStep,
    ) -> Result<OrderVisit, LeaseServeError> {
        let DisputedStep { segment, start, step } = disputed;
        let dispute = order.lease()?.lease().dispute().ok_or(LeaseServeError::NoLease)?;
        let agreed = dispute.agreed.1;
        if order.shown == Some(agreed) {
            return Ok(OrderVisit::Idle);
        }
        self.turn.is_over = true;
        self.load(order)?;
        let bytes = self.state_bytes(&order.view.order, start)?;
        let training = order.training.as_ref().ok_or(LeaseServeError::NoLease)?;
        let start = training.start(segment, start, &bytes)?;
        let state = training.state_in_segment(self.context.engine, &start, step)?;
        self.send_state(order, agreed, &state.to_bytes()?)?;
        order.shown = Some(agreed);
        self.emit(&LeaseEvent::StepShown { order: order.view.id, segment, step });
        Ok(OrderVisit::Acted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_after_a_step_is_that_of_the_trace() {
        let trace = [Digest([1; 32]), Digest([2; 32])];
        assert_eq!(state_after(&trace, 0), None);
        assert_eq!(state_after(&trace, 1), Some(trace[0]));
        assert_eq!(state_after(&trace, 2), Some(trace[1]));
        assert_eq!(state_after(&trace, 3), Some(trace[1]));
        assert_eq!(state_after(&[], 1), None);
    }
}
