//! What an update in the format top_k left out, and when the next one carries it.
//!
//! Nothing is added up on disk: each round writes its own residual, once, before its update, and the
//! next round reads it. So a crash anywhere can neither count it twice nor tear it. It is carried
//! where all of this holds, and otherwise dropped, which costs accuracy and nothing else:
//!
//! * It is from the round just before. After a missed round the model has moved on without us, and
//!   what was right for an older one pulls it back.
//! * That round's update was taken: its receipt is on disk. Of an update that nobody took, the next
//!   training finds again what it left out, together with what it sent.
//! * The model has moved since. If it has not (the round was abandoned, or everything was kept out),
//!   the next training starts from the same place and finds all of it again.

use florin_protocol::{Offer, Round};

use super::{Agent, AgentError};
use crate::event::Event;

impl Agent<'_, '_> {
    /// What this round's update carries of the one before.
    pub(super) fn carried(&mut self, offer: &Offer) -> Result<Option<Vec<f32>>, AgentError> {
        let Some(before) = offer.scope.round.before() else {
            return Ok(None);
        };
        if !self.was_taken_and_moved_the_model(before, offer)? {
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

    fn was_taken_and_moved_the_model(
        &self,
        before: Round,
        offer: &Offer,
    ) -> Result<bool, AgentError> {
        if self.store.receipt(before)?.is_none() {
            return Ok(false);
        }
        let signed = self.guard.update_of(self.spec.market, self.config.task, before);
        Ok(signed.is_some_and(|signed| signed.header.body.base_model != offer.base_model))
    }
}
