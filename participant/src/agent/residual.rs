//! Error feedback for the format top_k: the residual that an update omits, and when the next update
//! adds it.
//!
//! No sum accumulates on disk: each round writes its own residual once, before its update, and the
//! next round reads it. So no crash can count a residual twice or tear it. A round adds the
//! residual of an earlier round if both conditions hold. Otherwise the agent drops it, which costs
//! accuracy and nothing else:
//!
//! * It is from the last round that changed the model. After a missed round the model has changed
//!   without this participant, and a residual of an older model would pull it back.
//!
//! * The coordinator accepted that round's update: its receipt is on disk. If an update was not
//!   accepted, the next training finds both its content and its residual again.
//!
//! A round that did not change the model (it was abandoned, or every update was excluded) is
//! ignored: the next training starts from the same model and finds the whole update again, except
//! for the residual that the update had added. So that residual is added once more, and stays on
//! disk until the model changes.

use florin_protocol::{Offer, Report, RoundNumber};

use super::{Agent, AgentError};
use crate::event::ParticipantEvent;

impl Agent<'_, '_> {
    /// The residual that this round's update adds.
    pub(super) fn residual_to_add(
        &mut self,
        offer: &Offer,
    ) -> Result<Option<Vec<f32>>, AgentError> {
        let Some(before) = self.last_round_with_model_change(offer.scope.round)? else {
            return Ok(None);
        };
        if self.store.receipt(before)?.is_none() {
            return Ok(None);
        }
        let limit = florin_work::model_bytes(&self.spec);
        let read = match self.store.residual(before, limit) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => {
                florin_work::decode_model(&self.spec, &bytes).map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(residual) => Ok(Some(residual)),
            Err(why) => {
                self.emit(&ParticipantEvent::ResidualUnreadable { round: before, why });
                Ok(None)
            }
        }
    }

    /// The last round before this one that changed the model. The search is bounded by the task's
    /// number of rounds.
    fn last_round_with_model_change(
        &self,
        round: RoundNumber,
    ) -> Result<Option<RoundNumber>, AgentError> {
        let mut before = round.previous();
        while let Some(round) = before {
            let Some(report) = self.store.report(round)? else {
                return Ok(None);
            };
            if report.body.model != report.body.base_model {
                return Ok(Some(round));
            }
            before = round.previous();
        }
        Ok(None)
    }

    /// Removes residuals that no update adds any more, once `report` is read: if it changed the
    /// model, those of the rounds before it.
    pub(super) fn remove_spent_residuals(&mut self, report: &Report) -> Result<(), AgentError> {
        if report.model == report.base_model {
            self.unchanged_rounds = self.unchanged_rounds.saturating_add(1);
            return Ok(());
        }
        let Some(before) = report.scope.round.previous() else { return Ok(()) };
        self.remove_residuals(before)
    }

    /// Removes this round's residual, and those before it back to the last round that changed the
    /// model.
    pub(super) fn remove_residuals(&mut self, last: RoundNumber) -> Result<(), AgentError> {
        let unmoved = std::mem::take(&mut self.unchanged_rounds);
        for round in last.0.saturating_sub(unmoved)..=last.0 {
            self.store.remove_residual(RoundNumber(round))?;
        }
        Ok(())
    }
}
