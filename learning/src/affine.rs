//! The loss of a round's models as a function of the updates' coefficients: the source of the
//! valuation game.

use pulp::Arch;

use crate::data::Dataset;
use crate::engine::{Engine, EvalError, InputError, mean};
use crate::model::ModelSpec;
use crate::params::norm;
use crate::rng::{Purpose, below, rng};

/// Number of parameters in one cached block while all updates are added.
const BLOCK: usize = 1_024;

/// Random directions whose derivatives give a null standard deviation without a gradient.
pub const DIRECTION_PAIRS: u32 = 8;
/// Points that are evaluated in one call, in bytes, unless a single pair has more.
const POINTS_BYTES_MAX: usize = 256 << 20;

/// The models `base + Σ cᵢ·deltaᵢ`, evaluated on a holdout. A coalition is a coefficient vector of
/// its members' shares and zeros; a path between two coalitions is a line segment of coefficient
/// vectors.
pub struct AffineLoss<'a> {
    model: &'a ModelSpec,
    base: &'a [f32],
    deltas: &'a [&'a [f32]],
    holdout: &'a Dataset,
    engine: &'a mut dyn Engine,
}

impl<'a> AffineLoss<'a> {
    /// Creates the source; vectors of another length than the model's are refused.
    pub fn new(
        model: &'a ModelSpec,
        base: &'a [f32],
        deltas: &'a [&'a [f32]],
        holdout: &'a Dataset,
        engine: &'a mut dyn Engine,
    ) -> Result<Self, EvalError> {
        model.check().map_err(InputError::Model)?;
        let expected = model.parameters();
        let length = |what: String, got| match got == expected {
            true => Ok(()),
            false => Err(InputError::Length { what, expected, got }),
        };
        length("the base".into(), base.len())?;
        for (at, delta) in deltas.iter().enumerate() {
            length(format!("delta {at}"), delta.len())?;
        }
        Ok(Self { model, base, deltas, holdout, engine })
    }

    /// Number of updates, which is the number of coefficients.
    pub fn players(&self) -> usize {
        self.deltas.len()
    }

    /// The loss of each row of the holdout under `base + Σ cᵢ·deltaᵢ`, in nats.
    pub fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, EvalError> {
        let params = self.combined(coefficients)?;
        self.engine.row_losses(self.model, &params, self.holdout)
    }

    /// The losses at several points, `[point][row]`.
    pub fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, EvalError> {
        let at_a_time = (POINTS_BYTES_MAX / (8 * self.base.len()).max(1)).max(1);
        let mut all = Vec::with_capacity(points.len());
        for points in points.chunks(at_a_time) {
            let params =
                points.iter().map(|at| self.combined(at)).collect::<Result<Vec<_>, _>>()?;
            let params: Vec<&[f64]> = params.iter().map(Vec::as_slice).collect();
            all.extend(self.engine.row_losses_at(self.model, &params, self.holdout)?);
        }
        Ok(all)
    }

    /// The derivative of each row's loss with respect to each coefficient at this point:
    /// `[player][row]`, in nats.
    pub fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let params = self.combined(coefficients)?;
        self.engine.row_directional_derivatives(self.model, &params, self.deltas, self.holdout)
    }

    /// The derivatives of these players at several points: `[point][player][row]`, with the same
    /// bits as [`directional_derivatives`](Self::slopes) at each of them.
    ///
    /// # Panics
    /// If a player is out of range.
    pub fn derivatives_at(
        &mut self,
        players: &[usize],
        places: &[Vec<f64>],
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        let all = places.iter().map(|at| self.combined(at)).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
        let directions: Vec<&[f32]> = players.iter().map(|player| self.deltas[*player]).collect();
        self.engine.row_directional_derivatives_at(self.model, &all, &directions, self.holdout)
    }

    /// The derivatives of one player: `[row]`, with the same bits as [`directional_derivatives`](Self::slopes).
    ///
    /// # Panics
    /// If the player is out of range.
    pub fn derivatives_of_player(
        &mut self,
        player: usize,
        coefficients: &[f64],
    ) -> Result<Vec<f64>, EvalError> {
        let params = self.combined(coefficients)?;
        let only = [self.deltas[player]];
        let slopes =
            self.engine.row_directional_derivatives(self.model, &params, &only, self.holdout)?;
        Ok(slopes.into_iter().flatten().collect())
    }

    /// The null standard deviation of each update at this point: the standard deviation of the mean
    /// loss's directional derivative over random directions of the update's length, `‖deltaᵢ‖·‖∇
    /// mean loss‖ / √d` with `d` parameters, in nats.
    pub fn random_direction_std(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, EvalError> {
        let params = self.combined(coefficients)?;
        let (_, gradient) = self.engine.gradient(self.model, &params, self.holdout)?;
        Ok(random_direction_stds(&gradient, self.deltas))
    }

    /// The null standard deviation of each update for a model without a gradient: the derivatives
    /// along [`DIRECTION_PAIRS`] random directions are central differences, at the root of the sum of the
    /// squared lengths of the moves. The directions have random signs, drawn from `seed`, so that the expected
    /// square of a derivative is that of a random direction, `‖∇ mean loss‖² / d`.
    pub fn sampled_direction_std(
        &mut self,
        coefficients: &[f64],
        seed: u64,
    ) -> Result<Vec<f64>, EvalError> {
        let middle = self.combined(coefficients)?;
        // Not the length of their sum: updates that cancel have errors, too.
        let mut square = 0.0;
        for (coefficient, delta) in coefficients.iter().zip(self.deltas) {
            let length = coefficient * norm(delta);
            square += length * length;
        }
        let distance = square.sqrt();
        if distance == 0.0 {
            return Ok(vec![0.0; self.deltas.len()]);
        }
        let step = distance / (middle.len() as f64).sqrt();
        let pair = |number: u32| {
            let signs = &mut rng(seed, Purpose::Directions, number);
            let (mut ahead, mut behind) = (middle.clone(), middle.clone());
            for (ahead, behind) in ahead.iter_mut().zip(&mut behind) {
                let step = if below(signs, 2) == 0 { step } else { -step };
                *ahead += step;
                *behind -= step;
            }
            [ahead, behind]
        };
        let pairs: Vec<u32> = (0..DIRECTION_PAIRS).collect();
        let at_a_time = (POINTS_BYTES_MAX / (2 * size_of_val(middle.as_slice()))).max(1);
        let mut square = 0.0;
        for pairs in pairs.chunks(at_a_time) {
            let points: Vec<Vec<f64>> = pairs.iter().flat_map(|number| pair(*number)).collect();
            let points: Vec<&[f64]> = points.iter().map(Vec::as_slice).collect();
            let found = self.engine.row_losses_at(self.model, &points, self.holdout)?;
            for [ahead, behind] in found.as_chunks::<2>().0 {
                let slope = (mean(ahead) - mean(behind)) / (2.0 * distance);
                square += slope * slope;
            }
        }
        let typical = (square / f64::from(DIRECTION_PAIRS)).sqrt();
        Ok(self.deltas.iter().map(|delta| norm(delta) * typical).collect())
    }

    /// Number of rows of the holdout that the model at this point classifies correctly.
    pub fn correct_predictions(&mut self, coefficients: &[f64]) -> Result<usize, EvalError> {
        let params = self.combined(coefficients)?;
        self.engine.correct_predictions(self.model, &params, self.holdout)
    }

    /// `base + Σ cᵢ·deltaᵢ` in `f64`, added in the order of the updates: the same bits on every
    /// machine. An update with a coefficient of zero is skipped, even if it contains NaN.
    pub fn combined(&self, coefficients: &[f64]) -> Result<Vec<f64>, EvalError> {
        let (expected, got) = (self.deltas.len(), coefficients.len());
        if got != expected {
            let what = format!("{got} coefficients for {expected} updates");
            return Err(InputError::Length { what, expected, got }.into());
        }
        let mut params: Vec<f64> = self.base.iter().map(|&value| value.into()).collect();
        let moved: Vec<(f64, &[f32])> =
            coefficients.iter().copied().zip(self.deltas.iter().copied()).collect();
        Arch::new().dispatch(|| {
            for (block, params) in params.chunks_mut(BLOCK).enumerate() {
                let from = block * BLOCK;
                for (coefficient, delta) in moved.iter().filter(|(own, _)| *own != 0.0) {
                    for (param, &step) in params.iter_mut().zip(&delta[from..]) {
                        *param += coefficient * f64::from(step);
                    }
                }
            }
        });
        Ok(params)
    }
}

/// The null standard deviation of each update from the gradient of the mean loss: see
/// [`AffineLoss::random_direction_std`].
pub fn random_direction_stds(gradient: &[f64], deltas: &[&[f32]]) -> Vec<f64> {
    let mut square = 0.0;
    for slope in gradient {
        square += slope * slope;
    }
    let typical = (square / gradient.len() as f64).sqrt();
    deltas.iter().map(|delta| norm(delta) * typical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataSource, load};
    use crate::engine::mean;
    use crate::reference::Reference;

    #[test]
    fn losses_and_derivatives_are_those_of_the_combined_model() {
        let holdout = load(&DataSource::Digits).unwrap().slice(0..64).unwrap();
        let model = ModelSpec::Mlp { inputs: 64, hidden: vec![6], classes: 10 };
        let (base, one, two) = (model.init(1), model.init(2), model.init(3));
        let deltas = [one.as_slice(), two.as_slice()];
        let mut engine = Reference::new();
        let mut affine =
            AffineLoss::new(&model, base.as_slice(), &deltas, &holdout, &mut engine).unwrap();
        assert_eq!(affine.players(), 2);
        let at = affine.losses(&[0.25, 0.5]).unwrap();
        let slopes = affine.directional_derivatives(&[0.25, 0.5]).unwrap();
        let ahead = affine.losses(&[0.25, 0.5 + 1e-6]).unwrap();
        for row in 0..64 {
            let difference = (ahead[row] - at[row]) / 1e-6;
            assert!((difference - slopes[1][row]).abs() < 1e-3, "row {row}");
        }
        assert_ne!(mean(&slopes[0]), mean(&slopes[1]));
        assert_eq!(affine.derivatives_of_player(1, &[0.25, 0.5]).unwrap(), slopes[1]);
        assert!(affine.correct_predictions(&[0.0, 0.0]).unwrap() <= 64);
        assert!(affine.losses(&[1.0]).is_err());

        let by_hand: Vec<f64> = (0..model.parameters())
            .map(|i| {
                let [base, one, two] = [&base, &one, &two].map(|p| f64::from(p.as_slice()[i]));
                (base + 0.25 * one) + 0.5 * two
            })
            .collect();
        use crate::engine::Evaluator;
        assert_eq!(at, Reference::new().row_losses(&model, &by_hand, &holdout).unwrap());
    }

    #[test]
    fn null_standard_deviation_matches_the_gradient_norm() {
        // The gradient at zero is (−0.15, 0.15, 0, 0), as computed for the reference engine, with
        // norm 0.15·√2; the root mean square of its projection on a random direction in 4 dimensions
        // half of that.
        let holdout = Dataset::new(vec![2.0, 1.0], vec![0, 1], 1, 2).unwrap();
        let model = ModelSpec::Softmax { inputs: 1, classes: 2 };
        let deltas: [&[f32]; 2] = [&[0.0; 4], &[3.0, 0.0, 0.0, -4.0]];
        let mut engine = Reference::new();
        let mut affine =
            AffineLoss::new(&model, &[0.0; 4], &deltas, &holdout, &mut engine).unwrap();
        let chance = affine.random_direction_std(&[0.0, 0.0]).unwrap();
        assert_eq!(chance[0], 0.0);
        assert!((chance[1] - 5.0 * 0.15 * 2.0_f64.sqrt() / 2.0).abs() < 1e-15, "{chance:?}");
    }

    #[test]
    fn random_directions_give_the_null_standard_deviation_without_a_gradient() {
        let holdout = load(&DataSource::Digits).unwrap().slice(0..64).unwrap();
        let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
        let base = model.init(1);
        // A short move, on which the loss is almost linear.
        let step = |seed| model.init(seed).as_slice().iter().map(|x| x * 1e-3).collect::<Vec<_>>();
        let (one, two) = (step(2), step(3).iter().map(|x| x * 2.0).collect::<Vec<_>>());
        let deltas = [one.as_slice(), &two, &[0.0; 650]];
        let mut engine = Reference::new();
        let mut affine =
            AffineLoss::new(&model, base.as_slice(), &deltas, &holdout, &mut engine).unwrap();
        let at = [0.25, 0.25, 0.5];
        let exact = affine.random_direction_std(&at).unwrap();
        let mut squares = 0.0;
        const SEEDS: u64 = 40;
        for seed in 0..SEEDS {
            let sampled = affine.sampled_direction_std(&at, seed).unwrap();
            let ratio = sampled[0] / exact[0];
            assert!((0.3..2.0).contains(&ratio), "seed {seed}: {ratio}");
            assert!((sampled[1] / sampled[0] - exact[1] / exact[0]).abs() < 1e-9, "seed {seed}");
            assert_eq!(sampled[2], 0.0, "a zero update has no error");
            squares += ratio * ratio / SEEDS as f64;
        }
        // The mean of the squares is exact: 320 directions are within 3 · √(2 / 320) of it.
        assert!((squares - 1.0).abs() < 0.24, "{squares}");
        assert_eq!(affine.sampled_direction_std(&[0.0; 3], 1).unwrap(), [0.0; 3]);
    }

    #[test]
    fn an_update_outside_the_coalition_has_no_effect() {
        let holdout = load(&DataSource::Digits).unwrap().slice(0..8).unwrap();
        let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
        let (base, one) = (model.init(1), model.init(2));
        let wild = vec![f32::NAN; model.parameters()];
        let mut engine = Reference::new();
        let deltas = [one.as_slice(), &wild];
        let mut both =
            AffineLoss::new(&model, base.as_slice(), &deltas, &holdout, &mut engine).unwrap();
        let with = both.losses(&[0.5, 0.0]).unwrap();
        let deltas = [one.as_slice()];
        let mut alone =
            AffineLoss::new(&model, base.as_slice(), &deltas, &holdout, &mut engine).unwrap();
        assert_eq!(with, alone.losses(&[0.5]).unwrap());
    }
}
