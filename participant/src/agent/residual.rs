//! What an update in the format top_k left out, and when the next one carries it.
//!
//! Nothing is added up on disk: each round writes its own residual, once, before its update, and the
//! next round reads it. So a crash anywhere can neither count it twice nor tear it. It is carried
//! where all of this holds, and otherwise dropped, which costs accuracy and nothing else:
//!
//! * It is from the last round that moved the model. After a missed one the model has moved on without
//!   us, and what was right for an older one pulls it back.
//! * That round's update was taken: its receipt is on disk. Of an update that nobody took, the next
//!   training finds again what it left out, together with what it sent.
//!
//! A round that did not move the model (it was abandoned, or everything was kept out) is as if it had
//! not been: the next training starts from the same place and finds all of it again, but not what its
//! update carried. So that is carried once more, and stays on disk until the model moves.

use florin_protocol::{Offer, Report, Round};

use super::{Agent, AgentError};
use crate::event::Event;

impl Agent<'_, '_> {
    /// What this round's update carries of the one before.
    pub(super) fn carried(&mut self, offer: &Offer) -> Result<Option<Vec<f32>>, AgentError> {
        let Some(before) = self.moved_last(offer.scope.round)? else {
            return Ok(None);
        };
        if self.store.receipt(before)?.is_none() {
            return Ok(None);
        }
        let limit = florin_work::model_bytes(&self.spec);
        let read = match self.store.residual(before, limit) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => {
                florin_work::check_model(&self.spec, &bytes).map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(residual) => Ok(Some(residual)),
            Err(why) => {
                self.tell(&Event::ResidualLost { round: before, why });
                Ok(None)
            }
        }
    }

    /// The last round before this one that moved the model. There are no more than the task has.
    fn moved_last(&self, round: Round) -> Result<Option<Round>, AgentError> {
        let mut before = round.before();
        while let Some(round) = before {
            let Some(report) = self.store.report(round)? else {
                return Ok(None);
            };
            if report.body.model != report.body.base_model {
                return Ok(Some(round));
            }
            before = round.before();
        }
        Ok(None)
    }

    /// Forgets what no update carries any more, once `report` is read: if it moved the model, what the
    /// rounds before it left out.
    pub(super) fn forget_carried(&mut self, report: &Report) -> Result<(), AgentError> {
        if report.model == report.base_model {
            self.unmoved = self.unmoved.saturating_add(1);
            return Ok(());
        }
        let Some(before) = report.scope.round.before() else { return Ok(()) };
        self.forget_residuals(before)
    }

    /// Forgets what this round left out, and those before it back to the one that moved the model.
    pub(super) fn forget_residuals(&mut self, last: Round) -> Result<(), AgentError> {
        let unmoved = std::mem::take(&mut self.unmoved);
        for round in last.0.saturating_sub(unmoved)..=last.0 {
            self.store.forget_residual(Round(round))?;
        }
        Ok(())
    }
}
