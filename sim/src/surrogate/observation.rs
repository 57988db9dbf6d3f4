//! An observed update, as the fit of the score model uses it.

use super::small_simulations::ObservedUpdate;

/// One observed update: its score and error, divided by its weight, and the decrease of the loss in
/// its round.
pub(super) struct Observation {
    /// Simulation and member.
    pub(super) member: (usize, usize),
    /// Simulation and round.
    pub(super) round: (usize, usize),
    /// Its weight in the aggregate.
    pub(super) weight: f64,
    pub(super) score: f64,
    /// Its standard error, divided by its weight.
    pub(super) error: f64,
    /// Decrease of the loss in a round at that stage.
    pub(super) gain: f64,
    pub(super) rows: f64,
}

impl Observation {
    pub(super) fn of(update: &ObservedUpdate, round: (usize, usize), gain: f64) -> Self {
        let share = update.share;
        Self {
            member: (round.0, update.member),
            round,
            weight: share,
            score: update.score / share,
            error: update.error / share,
            gain,
            rows: update.rows.max(1.0),
        }
    }
}
