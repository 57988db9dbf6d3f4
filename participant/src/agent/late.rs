//! Late updates: a training that was not over when its round's commits ended counts in a later round,
//! by the task's rule of staleness.
//!
//! The update stays in the folder of the round that it was trained in until a later round takes it
//! over, or until it is too old. `late.json` is written before the update is moved: if a round has
//! the moved update, it also has the model from which the update was trained.

use florin_protocol::{Digest, Offer, RoundNumber, blob_digest};
use serde::{Deserialize, Serialize};

use super::{Agent, AgentError};

/// The origin of an update that was trained in an earlier round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LateUpdate {
    /// The round that it was trained in.
    pub(super) round: RoundNumber,
    /// The base model of that round.
    pub(super) base_model: Digest,
}

impl Agent<'_, '_> {
    /// Takes over the latest update that no earlier round received, if the offer's round accepts it.
    pub(super) fn take_over_late_update(&mut self, offer: &Offer) -> Result<(), AgentError> {
        let round = offer.scope.round;
        let Some((found_in, late, bytes)) = self.late_update(offer)? else { return Ok(()) };
        self.store.write_late(round, &late)?;
        self.store.write_update(round, &bytes)?;
        self.store.remove_update(found_in)?;
        Ok(())
    }

    /// The round in whose folder the update is, its origin and its bytes.
    fn late_update(
        &self,
        offer: &Offer,
    ) -> Result<Option<(RoundNumber, LateUpdate, Vec<u8>)>, AgentError> {
        let (rule, limit) = (self.spec.rounds.staleness, florin_work::update_bytes(&self.spec));
        let last = offer.scope.round.0;
        let mut bases = Vec::new();
        let mut sent = Vec::new();
        for number in (last.saturating_sub(rule.rounds).max(1)..last).rev() {
            let round = RoundNumber(number);
            let Some(report) = self.store.report(round)? else { return Ok(None) };
            bases.push(report.body.base_model);
            let scope = offer.scope;
            let signed = self.guard.signed_update_for(scope.market, scope.task, round);
            sent.extend(signed.map(|signed| signed.header.body.update));
            let Some(bytes) = self.store.update(round, limit)? else { continue };
            let origin = match self.store.late(round)? {
                Some(late) => late,
                None => LateUpdate { round, base_model: report.body.base_model },
            };
            let is_unsent = !sent.contains(&blob_digest(&bytes));
            let counts = rule.staleness(origin.base_model, offer.base_model, bases.iter().copied());
            if is_unsent && counts.is_some() && self.may_send_update(origin.round) {
                return Ok(Some((round, origin, bytes)));
            }
        }
        Ok(None)
    }

    /// Removes the updates that no later round accepts, once the report of `round` is read.
    pub(super) fn remove_spent_updates(&mut self, round: RoundNumber) -> Result<(), AgentError> {
        let (market, task) = (self.spec.market, self.config.task);
        if self.guard.signed_update_for(market, task, round).is_some() {
            self.store.remove_update(round)?;
        }
        let oldest = round.0.checked_sub(self.spec.rounds.staleness.rounds);
        if let Some(oldest) = oldest.filter(|oldest| *oldest > 0) {
            self.store.remove_update(RoundNumber(oldest))?;
        }
        Ok(())
    }
}
