//! Questions that are asked together, and fit the budget together.

use std::collections::BTreeSet;

use crate::meter::Meter;
use crate::{Coalition, Game, ValuationError};

/// Coalitions to ask for at once. Those that the meter knows cost nothing, and each other one costs
/// once.
#[derive(Default)]
pub(super) struct Batch {
    coalitions: Vec<Coalition>,
    fresh: BTreeSet<Coalition>,
}

impl Batch {
    /// Takes `more` in if what is new of it fits what is left of the budget; says whether it did.
    ///
    /// Whether it fits depends on which coalitions were drawn before and never on who is in them:
    /// renaming the players changes nothing. So leaving the last sample out favours nobody.
    pub(super) fn take(&mut self, meter: &Meter<'_>, more: &[Coalition]) -> bool {
        let unknown = |one: &&Coalition| !meter.knows(one) && !self.fresh.contains(*one);
        let new: BTreeSet<Coalition> = more.iter().filter(unknown).cloned().collect();
        if (self.fresh.len() + new.len()) as u64 > meter.budget_left() {
            return false;
        }
        self.fresh.extend(new);
        self.coalitions.extend_from_slice(more);
        true
    }

    /// How many coalitions are to be asked for, known ones included.
    pub(super) fn len(&self) -> usize {
        self.coalitions.len()
    }

    /// Their worths, in the order in which they were taken.
    pub(super) fn ask<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut Meter<'_>,
    ) -> Result<Vec<f64>, ValuationError> {
        meter.values(game, &self.coalitions)
    }
}
