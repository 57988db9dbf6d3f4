//! Late updates: a training that was not over when its round's commits ended counts in a later round,
//! by the task's rule of staleness.
//!
//! The update stays in the folder of the round that it was trained in until a later round takes it
//! over, or until it is too old. `late.json` is written before the update is moved: if a round has
//! the moved update, it also has the model from which the update was trained.

use florin_protocol::{Digest, Offer, RoundNumber, SelectionReason};
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
    /// Takes over the latest update that no earlier round received, if the offer's round accepts it
    /// and its commits are open. Only a training that goes on has one: a member that was selected
    /// anew trains from the newer model. Returns whether there is one.
    pub(super) fn take_over_late_update(&mut self, offer: &Offer) -> Result<bool, AgentError> {
        let round = offer.scope.round;
        let place = offer.cohort.binary_search(&self.me).ok();
        let reason = place.and_then(|place| offer.reasons.get(place));
        if reason != Some(&SelectionReason::Continues) {
            return Ok(false);
        }
        let Some((found_in, late, bytes)) = self.late_update(offer)? else { return Ok(false) };
        self.store.write_late(round, &late)?;
        if let Some(rows) = self.store.rows(found_in)? {
            self.store.write_rows(round, &rows)?;
        }
        self.store.write_update(round, &bytes)?;
        self.store.remove_update(found_in)?;
        Ok(true)
    }

    /// The round in whose folder the update is, its origin and its bytes. A commit that was refused
    /// leaves its update there: only a receipt shows that a round received it.
    fn late_update(
        &self,
        offer: &Offer,
    ) -> Result<Option<(RoundNumber, LateUpdate, Vec<u8>)>, AgentError> {
        let (rule, limit) = (self.spec.rounds.staleness, florin_work::update_bytes(&self.spec));
        let last = offer.scope.round.0;
        let window = (last.saturating_sub(rule.rounds).max(1)..last).rev().map(RoundNumber);
        let mut bases = Vec::new();
        for round in window.clone() {
            let Some(report) = self.store.report(round)? else { break };
            bases.push(report.body.base_model);
        }
        for (round, base_model) in window.zip(bases.iter().copied()) {
            if self.store.receipt(round)?.is_some() {
                return Ok(None);
            }
            let Some(bytes) = self.store.update(round, limit)? else { continue };
            let origin = self.store.late(round)?.unwrap_or(LateUpdate { round, base_model });
            let earlier = bases.iter().copied();
            if rule.accepts(origin.base_model, offer.base_model, earlier)
                && self.may_send_update(origin.round)
            {
                return Ok(Some((round, origin, bytes)));
            }
        }
        Ok(None)
    }

    /// Removes the updates that no later round accepts, once the report of `round` is read.
    pub(super) fn remove_spent_updates(&mut self, round: RoundNumber) -> Result<(), AgentError> {
        if self.store.receipt(round)?.is_some() {
            self.store.remove_update(round)?;
        }
        let oldest = round.0.checked_sub(self.spec.rounds.staleness.rounds);
        if let Some(oldest) = oldest.filter(|oldest| *oldest > 0) {
            self.store.remove_update(RoundNumber(oldest))?;
        }
        Ok(())
    }

    /// Removes all updates that are left when the participation ends.
    pub(super) fn remove_unsent_updates(&mut self) -> Result<(), AgentError> {
        let last = self.current.round.0.max(self.reports_read);
        let first = last.saturating_sub(self.spec.rounds.staleness.rounds).max(1);
        for round in first..=last {
            self.store.remove_update(RoundNumber(round))?;
        }
        Ok(())
    }
}
