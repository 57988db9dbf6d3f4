//! Gradient descent on libtorch: the steps of a training, for every kind of model.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::Torch;
use super::batches::{BatchRows, Batches, Rows, with_batches};
use super::dispatch::{Argument, AtenOperator};
use crate::engine::{BackendError, TrainError, TrainedModel, TrainingProgress, TrainingStep};
use crate::rng::epoch_order;
use crate::training::{ADAM_EPSILON, AdamStep, Betas, Optimizer, Training};

/// The steps of a training.
pub(super) struct Steps<'a> {
    /// Number of rows.
    pub(super) rows: usize,
    pub(super) how: &'a Training,
    /// Seed of the order of the rows.
    pub(super) seed: u64,
    /// Steps that were done before.
    pub(super) first: u64,
}

impl<'a> Steps<'a> {
    /// All steps of a training.
    pub(super) fn all(rows: usize, how: &'a Training, seed: u64) -> Self {
        Self { rows, how, seed, first: 0 }
    }

    /// The order of the rows in an epoch.
    pub(super) fn order(&self, epoch: u32) -> Vec<usize> {
        epoch_order(self.rows, self.seed, epoch)
    }

    /// The batches that are still to come.
    pub(super) fn batches(&self) -> impl Iterator<Item = BatchPlaces> + use<> {
        let (rows, batch, first) = (self.rows, self.how.batch as usize, self.first);
        let of_epoch = move |epoch| {
            let places = (0..rows).step_by(batch).map(move |from| from..rows.min(from + batch));
            places.map(move |places| (epoch, places))
        };
        let all = (1..).zip((0..self.how.epochs).flat_map(of_epoch));
        let all = all.map(|(step, (epoch, places))| BatchPlaces { step, epoch, places });
        all.filter(move |batch| batch.step > first)
    }
}

/// The place of a batch in a training.
pub(super) struct BatchPlaces {
    /// Its step, from 1.
    pub(super) step: u64,
    pub(super) epoch: u32,
    /// The places of its rows in the epoch's order.
    pub(super) places: Range<usize>,
}

/// How far a training is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Progress {
    /// Steps that were done.
    pub(super) step: u64,
    /// Summed losses of the current epoch so far.
    pub(super) sum: f64,
    /// Mean loss of the last epoch that has ended.
    pub(super) mean_loss: f64,
}

impl Progress {
    /// After a step with this summed loss, of epochs of `steps` steps and `rows` rows.
    fn after(self, step: u64, loss_sum: f64, steps: u64, rows: usize) -> Self {
        let sum = self.sum + loss_sum;
        match step.is_multiple_of(steps) {
            true => Self { step, sum: 0.0, mean_loss: sum / rows as f64 },
            false => Self { step, sum, ..self },
        }
    }
}

/// A batch of a training.
pub(super) struct Batch {
    /// Its step, from 1.
    pub(super) step: u64,
    pub(super) rows: Rows,
}

/// Computes the gradients of the batches of a training.
pub(super) trait BatchGradients {
    /// Writes the gradient of a batch to that of the descent, and returns the summed loss of its rows.
    fn gradient(
        &mut self,
        batch: &Batch,
        descent: &mut GradientDescent<'_>,
    ) -> Result<f64, TrainError>;

    /// The descent has taken a step; with `is_over` none follows.
    fn stepped(
        &mut self,
        _descent: &GradientDescent<'_>,
        _progress: &Progress,
        _is_over: bool,
    ) -> Result<(), TrainError> {
        Ok(())
    }
}

/// By a function of the rows that writes the gradient, and returns the loss of each row.
impl<F: FnMut(&Rows) -> Result<Tensor, TrainError>> BatchGradients for F {
    fn gradient(&mut self, batch: &Batch, _: &mut GradientDescent<'_>) -> Result<f64, TrainError> {
        Ok(f64::try_from(self(&batch.rows)?.f_sum(Kind::Double)?)?)
    }
}

impl Torch {
    /// Takes all steps. The parameters of the result are those of the descent, in its layout.
    pub(super) fn descend(
        &self,
        given: &Steps<'_>,
        batch_rows: &BatchRows<'_>,
        descent: &mut GradientDescent<'_>,
        progress: TrainingProgress<'_>,
        gradients: &mut dyn BatchGradients,
    ) -> Result<TrainedModel, TrainError> {
        self.descend_from(Progress::default(), given, batch_rows, descent, progress, gradients)
    }

    /// The same from a place between two steps.
    pub(super) fn descend_from(
        &self,
        from: Progress,
        given: &Steps<'_>,
        batch_rows: &BatchRows<'_>,
        descent: &mut GradientDescent<'_>,
        progress: TrainingProgress<'_>,
        gradients: &mut dyn BatchGradients,
    ) -> Result<TrainedModel, TrainError> {
        with_batches(batch_rows, given, |batches| {
            self.descend_on(from, given, batches, descent, progress, gradients)
        })
    }

    fn descend_on(
        &self,
        from: Progress,
        given: &Steps<'_>,
        mut batches: Batches<'_>,
        descent: &mut GradientDescent<'_>,
        progress: TrainingProgress<'_>,
        gradients: &mut dyn BatchGradients,
    ) -> Result<TrainedModel, TrainError> {
        let Steps { rows: rows_of_all, how, .. } = *given;
        let steps = how.steps(rows_of_all);
        let mut done = from;
        for batch in given.batches() {
            let (step, size) = (batch.step, batch.places.len());
            let rows = batches.next(self, given, batch)?;
            let loss_sum = gradients.gradient(&Batch { step, rows }, descent)?;
            if !loss_sum.is_finite() {
                return Err(TrainError::Diverged { step });
            }
            descent.step(step, steps)?;
            done = done.after(step, loss_sum, how.steps_of_epoch(rows_of_all), rows_of_all);
            let loss = loss_sum / size as f64;
            let is_stopped = progress(TrainingStep { step, steps, loss }).is_break();
            gradients.stepped(descent, &done, is_stopped || step == steps)?;
            if is_stopped {
                return Err(TrainError::Stopped { step });
            }
        }
        let params = Vec::<f32>::try_from(descent.params.f_to_device(Device::Cpu)?)?;
        if params.iter().any(|value| !value.is_finite()) {
            return Err(TrainError::Diverged { step: done.step });
        }
        Ok(TrainedModel { params, steps, mean_loss: done.mean_loss })
    }
}

/// A descent on flat parameters.
pub(super) struct GradientDescent<'a> {
    how: &'a Training,
    start: Tensor,
    pub(super) params: Tensor,
    pub(super) gradient: Tensor,
    state: OptimizerState,
    add: AddScaled,
    /// Parameters that steps leave as they are.
    fixed: Vec<Range<usize>>,
}

/// The state that an optimizer carries from step to step.
enum OptimizerState {
    Sgd { velocity: Option<Tensor> },
    Adam { betas: Betas, moments: Box<Moments> },
    AdamW { betas: Betas, moments: Box<Moments> },
}

impl OptimizerState {
    fn new(start: &Tensor, how: &Training) -> Result<Self, BackendError> {
        Ok(match how.optimizer {
            Optimizer::Sgd => {
                let velocity = (how.momentum > 0.0).then(|| start.f_zeros_like());
                Self::Sgd { velocity: velocity.transpose()? }
            }
            Optimizer::Adam(betas) => Self::Adam { betas, moments: Moments::new(start)?.into() },
            Optimizer::AdamW(betas) => Self::AdamW { betas, moments: Moments::new(start)?.into() },
        })
    }
}

impl<'a> GradientDescent<'a> {
    pub(super) fn new(start: &Tensor, how: &'a Training) -> Result<Self, BackendError> {
        let mut params = start.f_zeros_like()?;
        params.f_copy_(start)?;
        Self::on(params, start, how)
    }

    /// A descent that changes `params`, which are at `start`.
    pub(super) fn on(
        params: Tensor,
        start: &Tensor,
        how: &'a Training,
    ) -> Result<Self, BackendError> {
        let gradient = start.f_zeros_like()?;
        let state = OptimizerState::new(start, how)?;
        let (start, fixed) = (start.shallow_clone(), Vec::new());
        Ok(Self { how, start, params, gradient, state, add: AddScaled::new()?, fixed })
    }

    /// The same with a gradient that another one writes.
    pub(super) fn use_gradient(&mut self, gradient: Tensor) {
        self.gradient = gradient;
    }

    /// The tensors of the descent's state: the parameters, and what the optimizer carries.
    pub(super) fn state(&self) -> Vec<Tensor> {
        let carried = match &self.state {
            OptimizerState::Sgd { velocity } => velocity.iter().collect(),
            OptimizerState::Adam { moments, .. } | OptimizerState::AdamW { moments, .. } => {
                vec![&moments.first, &moments.second]
            }
        };
        [&self.params].into_iter().chain(carried).map(Tensor::shallow_clone).collect()
    }

    /// The same with parameters that another rule changes.
    pub(super) fn with_fixed(self, fixed: Vec<Range<usize>>) -> Self {
        Self { fixed, ..self }
    }

    /// Step `step` of `steps` of [`Training`], from the current gradient.
    fn step(&mut self, step: u64, steps: u64) -> Result<(), BackendError> {
        let part = |flat: &Tensor, range: &Range<usize>| {
            flat.f_narrow(0, range.start as i64, range.len() as i64)
        };
        let earlier = self.fixed.iter().map(|range| part(&self.params, range)?.f_detach_copy());
        let earlier = earlier.collect::<Result<Vec<Tensor>, TchError>>()?;
        self.bound_gradient()?;
        self.step_all(step, self.how.learning_rate_at(step, steps))?;
        for (range, earlier) in self.fixed.iter().zip(&earlier) {
            part(&self.params, range)?.f_copy_(earlier)?;
        }
        Ok(())
    }

    /// Adds the proximal term to the gradient, and clips it.
    fn bound_gradient(&mut self) -> Result<(), TchError> {
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
        Ok(())
    }

    fn step_all(&mut self, step: u64, rate: f64) -> Result<(), BackendError> {
        let decay = self.how.weight_decay;
        if decay > 0.0 && !matches!(self.state, OptimizerState::AdamW { .. }) {
            self.add.call(&self.gradient, &self.params, decay)?;
        }
        match &mut self.state {
            OptimizerState::Sgd { velocity } => {
                let way = match velocity {
                    Some(velocity) => {
                        let _ = velocity.f_mul_scalar_(self.how.momentum)?;
                        let _ = velocity.f_add_(&self.gradient)?;
                        &*velocity
                    }
                    None => &self.gradient,
                };
                self.add.call(&self.params, way, -rate)
            }
            OptimizerState::Adam { betas, moments } => {
                let numbers = AdamStep::new(*betas, rate, step);
                moments.step(&mut self.params, &self.gradient, &numbers)
            }
            OptimizerState::AdamW { betas, moments } => {
                if decay > 0.0 {
                    let _ = self.params.f_mul_scalar_(1.0 - rate * decay)?;
                }
                let numbers = AdamStep::new(*betas, rate, step);
                moments.step(&mut self.params, &self.gradient, &numbers)
            }
        }
    }
}

/// Adds a multiple of a tensor to another one, in place, with one rounding as in PyTorch's own steps.
struct AddScaled(AtenOperator);

impl AddScaled {
    fn new() -> Result<Self, BackendError> {
        Ok(Self(AtenOperator::find("aten::add_", "Tensor")?))
    }

    fn call(&self, to: &Tensor, tensor: &Tensor, factor: f64) -> Result<(), BackendError> {
        let (to, tensor) = (Argument::Tensor(to), Argument::Tensor(tensor));
        self.0.call(&[(None, to), (None, tensor), (Some("alpha"), Argument::Float(factor))])?;
        Ok(())
    }
}

/// Adam's moments, and the operators of PyTorch's own step: its bits are the same.
struct Moments {
    first: Tensor,
    second: Tensor,
    lerp: AtenOperator,
    addcmul: AtenOperator,
    addcdiv: AtenOperator,
}

impl Moments {
    fn new(start: &Tensor) -> Result<Self, BackendError> {
        Ok(Self {
            first: start.f_zeros_like()?,
            second: start.f_zeros_like()?,
            lerp: AtenOperator::find("aten::lerp_", "Scalar")?,
            addcmul: AtenOperator::find("aten::addcmul_", "")?,
            addcdiv: AtenOperator::find("aten::addcdiv_", "")?,
        })
    }

    fn step(
        &mut self,
        params: &mut Tensor,
        gradient: &Tensor,
        numbers: &AdamStep,
    ) -> Result<(), BackendError> {
        let call = |operator: &AtenOperator, arguments: &[(Option<&str>, Argument<'_>)]| {
            operator.call(arguments).map(drop)
        };
        use Argument::{Float, Tensor as Given};
        let slope = (None, Given(gradient));
        call(&self.lerp, &[(None, Given(&self.first)), slope, (None, Float(numbers.first))])?;
        let _ = self.second.f_mul_scalar_(numbers.retained)?;
        let second = (None, Given(&self.second));
        call(&self.addcmul, &[second, slope, slope, (Some("value"), Float(numbers.second))])?;
        let below = self.second.f_sqrt()?.f_div_scalar(numbers.bias_root)?;
        let below = below.f_add_scalar(ADAM_EPSILON)?;
        let rate = (Some("value"), Float(-numbers.rate));
        let above = (None, Given(&self.first));
        call(&self.addcdiv, &[(None, Given(params)), above, (None, Given(&below)), rate])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_carries_as_many_tensors_as_it_states() {
        let betas = Betas { beta1: 0.9, beta2: 0.999 };
        let sgd = Training::sgd(1, 1, 0.1);
        let start = Tensor::zeros([3], (Kind::Float, Device::Cpu));
        for how in [
            sgd.clone(),
            Training { momentum: 0.9, ..sgd.clone() },
            Training { optimizer: Optimizer::Adam(betas), ..sgd.clone() },
            Training { optimizer: Optimizer::AdamW(betas), ..sgd },
        ] {
            let state = GradientDescent::new(&start, &how).unwrap().state();
            assert_eq!(state.len() as u64, 1 + how.state_tensors(), "{how:?}");
            assert!(state.iter().all(|tensor| tensor.numel() == 3));
        }
    }
}
