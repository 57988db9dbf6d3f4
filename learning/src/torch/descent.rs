//! Stochastic gradient descent on libtorch: the steps of a training, for every kind of model.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::Torch;
use crate::engine::{TrainError, TrainedModel, Training, TrainingProgress, TrainingStep};
use crate::rng::epoch_order;

/// The steps of a training.
pub(super) struct Steps<'a> {
    /// Number of rows.
    pub(super) rows: usize,
    pub(super) how: &'a Training,
    /// Seed of the order of the rows.
    pub(super) seed: u64,
}

/// Writes the gradient of a batch, whose rows have the given indices and number, and returns the loss of
/// each row.
type BatchGradient<'a> = &'a mut dyn FnMut(&Tensor, usize) -> Result<Tensor, TrainError>;

impl Torch {
    /// Takes all steps. The parameters of the result are those of the descent, in its layout.
    pub(super) fn descend(
        &self,
        steps: &Steps<'_>,
        descent: &mut GradientDescent<'_>,
        progress: TrainingProgress<'_>,
        gradient: BatchGradient<'_>,
    ) -> Result<TrainedModel, TrainError> {
        let Steps { rows, how, seed } = *steps;
        let steps = how.steps(rows);
        let (mut step, mut mean_loss) = (0, 0.0);
        for epoch in 0..how.epochs {
            let order: Vec<i64> =
                epoch_order(rows, seed, epoch).into_iter().map(|row| row as i64).collect();
            let order = self.to_tensor(&order)?;
            let mut sum = 0.0;
            for from in (0..rows).step_by(how.batch as usize) {
                step += 1;
                let size = (rows - from).min(how.batch as usize);
                let batch = order.f_narrow(0, from as i64, size as i64)?;
                let losses = gradient(&batch, size)?;
                let loss_sum = f64::try_from(losses.f_sum(Kind::Double)?)?;
                if !loss_sum.is_finite() {
                    return Err(TrainError::Diverged { step });
                }
                sum += loss_sum;
                descent.step()?;
                let loss = loss_sum / size as f64;
                if progress(TrainingStep { step, steps, loss }).is_break() {
                    return Err(TrainError::Stopped { step });
                }
            }
            mean_loss = sum / rows as f64;
        }
        let params = Vec::<f32>::try_from(descent.params.f_to_device(Device::Cpu)?)?;
        if params.iter().any(|value| !value.is_finite()) {
            return Err(TrainError::Diverged { step });
        }
        Ok(TrainedModel { params, steps, mean_loss })
    }
}

/// Stochastic gradient descent on flat parameters.
pub(super) struct GradientDescent<'a> {
    how: &'a Training,
    start: Tensor,
    pub(super) params: Tensor,
    pub(super) gradient: Tensor,
    velocity: Tensor,
    /// Parameters that steps leave as they are.
    fixed: Vec<Range<usize>>,
}

impl<'a> GradientDescent<'a> {
    pub(super) fn new(start: &Tensor, how: &'a Training) -> Result<Self, TchError> {
        let mut params = start.f_zeros_like()?;
        params.f_copy_(start)?;
        let (gradient, velocity) = (start.f_zeros_like()?, start.f_zeros_like()?);
        let (start, fixed) = (start.shallow_clone(), Vec::new());
        Ok(Self { how, start, params, gradient, velocity, fixed })
    }

    /// The same with parameters that another rule changes.
    pub(super) fn with_fixed(self, fixed: Vec<Range<usize>>) -> Self {
        Self { fixed, ..self }
    }

    /// One step of [`Training`], from the current gradient.
    fn step(&mut self) -> Result<(), TchError> {
        let part = |flat: &Tensor, range: &Range<usize>| {
            flat.f_narrow(0, range.start as i64, range.len() as i64)
        };
        let earlier = self.fixed.iter().map(|range| part(&self.params, range)?.f_detach_copy());
        let earlier = earlier.collect::<Result<Vec<Tensor>, TchError>>()?;
        self.step_all()?;
        for (range, earlier) in self.fixed.iter().zip(&earlier) {
            part(&self.params, range)?.f_copy_(earlier)?;
        }
        Ok(())
    }

    fn step_all(&mut self) -> Result<(), TchError> {
        let Training { learning_rate, momentum, weight_decay, .. } = *self.how;
        if let Some(pull) = self.how.fedprox.filter(|&pull| pull > 0.0) {
            let away = self.params.f_sub(&self.start)?.f_mul_scalar(pull)?;
            let _ = self.gradient.f_add_(&away)?;
        }
        if let Some(most) = self.how.clip_gradient {
            let squares = self.gradient.f_to_kind(Kind::Double)?.f_square()?;
            let norm = f64::try_from(squares.f_sum(Kind::Double)?)?.sqrt();
            if norm > most {
                let _ = self.gradient.f_mul_scalar_(most / norm)?;
            }
        }
        if weight_decay > 0.0 {
            let _ = self.gradient.f_add_(&self.params.f_mul_scalar(weight_decay)?)?;
        }
        let velocity = if momentum > 0.0 {
            let _ = self.velocity.f_mul_scalar_(momentum)?;
            let _ = self.velocity.f_add_(&self.gradient)?;
            &self.velocity
        } else {
            &self.gradient
        };
        let _ = self.params.f_sub_(&velocity.f_mul_scalar(learning_rate)?)?;
        Ok(())
    }
}
