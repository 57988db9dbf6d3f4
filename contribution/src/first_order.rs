//! The first-order value: the initial rate of improvement of the game in each player's direction.

use crate::meter::EvaluationMeter;
use crate::statistics::{mean, standard_error};
use crate::{Estimate, Estimator, SmoothGame, ValuationError};

/// `φ_i = ∂v/∂x_i (0)`: in a training round, the player's share times the inner product of the
/// update with the negative gradient of the validation loss before the round (J. Wang et al.,
/// "Efficient Participant Contribution Evaluation for Horizontal and Vertical Federated Learning"
/// (DIG-FL), ICDE 2022, without its Hessian term).
///
/// It costs one gradient for any number of players, and the value of a zero update is exactly zero.
/// It ignores curvature: if all updates point in the same direction, it overvalues each of them,
/// and the valuation's gap is the amount. [`Path`](crate::Path) corrects that for two gradients
/// more. Not efficient, for comparison. The seed has no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FirstOrder;

impl<G: SmoothGame + ?Sized> Estimator<G> for FirstOrder {
    fn name(&self) -> &'static str {
        "first-order"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, _players: usize) -> u64 {
        3
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let empty_rows = meter.diagonal(game, 0.0)?;
        let grand_rows = meter.diagonal(game, 1.0)?;
        let slopes = meter.directional_derivatives(game, 0.0)?;
        Ok(Estimate {
            values: slopes.iter().map(|rows| mean(rows)).collect(),
            standard_errors: slopes.iter().map(|rows| standard_error(rows)).collect(),
            estimator_errors: Some(vec![0.0; slopes.len()]),
            total: mean(&grand_rows) - mean(&empty_rows),
            ..Estimate::default()
        })
    }
}
