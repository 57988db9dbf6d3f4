//! A batch of coalitions that fits the budget as a whole.

use std::collections::BTreeSet;

use crate::meter::EvaluationMeter;
use crate::{Coalition, Game, ValuationError};

/// Coalitions to evaluate together. Those that the meter has already counted are free, and each
/// other distinct one costs one pass.
#[derive(Default)]
pub(super) struct CoalitionBatch {
    coalitions: Vec<Coalition>,
    new_coalitions: BTreeSet<Coalition>,
}

impl CoalitionBatch {
    /// Adds `more` if its new coalitions fit the remaining budget; returns whether they did.
    ///
    /// The decision depends on which coalitions were drawn before, and never on which players they
    /// contain: it is invariant under renaming the players. So dropping the last sample introduces
    /// no bias.
    pub(super) fn try_add(&mut self, meter: &EvaluationMeter<'_>, more: &[Coalition]) -> bool {
        let unknown =
            |one: &&Coalition| !meter.has_used(one) && !self.new_coalitions.contains(*one);
        let new: BTreeSet<Coalition> = more.iter().filter(unknown).cloned().collect();
        if (self.new_coalitions.len() + new.len()) as u64 > meter.budget_left() {
            return false;
        }
        self.new_coalitions.extend(new);
        self.coalitions.extend_from_slice(more);
        true
    }

    /// Number of coalitions in the batch, including those already known.
    pub(super) fn len(&self) -> usize {
        self.coalitions.len()
    }

    /// The values of the coalitions, in the order of addition.
    pub(super) fn evaluate<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Vec<f64>, ValuationError> {
        meter.values(game, &self.coalitions)
    }
}
