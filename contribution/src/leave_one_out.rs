//! The leave-one-out value.

use crate::meter::EvaluationMeter;
use crate::statistics::{mean, standard_error};
use crate::{Coalition, Estimate, Estimator, Game, ValuationError};

/// `φ_i = v(N) − v(N∖i)`: cheap, but blind to players that can replace each other: both get
/// nothing. Not efficient: the gap is often large. For comparison, never for payment. The seed has
/// no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaveOneOut;

impl<G: Game + ?Sized> Estimator<G> for LeaveOneOut {
    fn name(&self) -> &'static str {
        "leave-one-out"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, players: usize) -> u64 {
        (players as u64).saturating_add(2)
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let grand = Coalition::full(game.players());
        let nothing = meter.value_rows(game, &Coalition::empty(game.players()))?;
        let all = meter.value_rows(game, &grand)?;
        let mut values = Vec::with_capacity(game.players());
        let mut errors = Vec::with_capacity(game.players());
        for player in 0..game.players() {
            let rest = meter.value_rows(game, &grand.without(player))?;
            let lost: Vec<f64> =
                all.iter().zip(&rest).map(|(with, without)| with - without).collect();
            values.push(mean(&lost));
            errors.push(standard_error(&lost));
        }
        Ok(Estimate {
            values,
            standard_errors: errors.into_iter().collect(),
            estimator_errors: Some(vec![0.0; game.players()]),
            total: mean(&all) - mean(&nothing),
            ..Estimate::default()
        })
    }
}
