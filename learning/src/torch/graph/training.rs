//! Training of graphs: the gradient of a batch, in parts if it is too large for the memory.

use std::collections::BTreeSet;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::generator;
use super::net::{GraphFailure, GraphNet, program};
use super::step_memory::{StepLimit, StepMemory};
use crate::data::Dataset;
use crate::engine::{BackendError, TrainError, TrainedModel, TrainingProgress};
use crate::graph::{GraphModel, NotObserved};
use crate::torch::Torch;
use crate::torch::batches::{BatchRows, Rows};
use crate::torch::descent::{GradientDescent, Steps};
use crate::torch::memory::{FREE_MEMORY_DIVISOR, available_bytes};
use crate::torch::side_stream::{free_bytes, gpu_of};
use crate::training::{Precision, Training};

/// The first factor of the loss in a training with [`Precision::F16`].
const LOSS_SCALE: f64 = 65_536.0;
/// Steps without an overflow after which the factor doubles.
const SCALE_GROWTH_STEPS: u32 = 2_000;
/// Rows from which a step is recorded, at most.
const SAMPLE_ROWS: usize = 256;
/// The share of a GPU's free memory that they take: its blocks leave gaps.
const GPU_SHARE: f64 = 0.9;

/// A training of a graph.
pub(in crate::torch) struct GraphTraining<'a> {
    pub(in crate::torch) model: &'a GraphModel,
    pub(in crate::torch) start: &'a [f32],
    pub(in crate::torch) data: &'a Dataset,
    pub(in crate::torch) how: &'a Training,
    pub(in crate::torch) seed: u64,
}

impl Torch {
    pub(in crate::torch) fn train_graph(
        &mut self,
        training: &GraphTraining<'_>,
        progress: TrainingProgress<'_>,
    ) -> Result<TrainedModel, TrainError> {
        if let Some(workers) = training.how.execution.virtual_workers {
            return self.train_graph_virtually(training, workers, None, progress);
        }
        let GraphTraining { model, start, data, how, seed } = *training;
        let _generator = generator();
        let program = program(model)?;
        let net = GraphNet::new(model, program, self.device, Kind::Float)?
            .with_precision(how.execution.precision);
        let start = self.to_tensor(&net.align(start))?;
        // The forward pass sets the buffers; decay and proximal term leave them.
        let mut descent = GradientDescent::new(&start, how)?.with_fixed(net.aligned_buffers());
        let views = net.aligned_views(&descent.params)?;
        let memory = self.admit_steps(&net, &views, data, how, 0)?;
        let mut batches = BatchGradients {
            views,
            slots: net.aligned_views(&descent.gradient)?,
            total: descent.gradient.shallow_clone(),
            part: None,
            rows_of_part: memory.rows_max,
            memory,
            scale: LossScale::new(how.execution.precision),
            net: &net,
        };
        // Dropout and stochastic depth draw from it.
        tch::manual_seed(i64::from_le_bytes(seed.to_le_bytes()));
        let steps = Steps::all(data.rows(), how, seed);
        let rows = BatchRows::new(self, data, &steps)?;
        let mut gradient = |batch: &Rows| -> Result<Tensor, TrainError> {
            Ok(batches.gradient(batch).map_err(BackendError::from)?)
        };
        let trained = self.descend(&steps, &rows, &mut descent, progress, &mut gradient)?;
        Ok(TrainedModel { params: net.unalign(&trained.params), ..trained })
    }

    /// Admits the steps of a training, or virtual workers' parts of them, to the memory. `reserved` vectors
    /// of the parameters' size are not there yet.
    pub(super) fn admit_steps<'n>(
        &self,
        net: &'n GraphNet<'n>,
        views: &[Tensor],
        data: &Dataset,
        how: &Training,
        reserved: u64,
    ) -> Result<StepMemory<'n>, TrainError> {
        let mut all_rows: BTreeSet<usize> = BTreeSet::new();
        let batches = [data.rows(), data.rows() % how.batch.max(1) as usize];
        for rows in batches.into_iter().filter(|&rows| rows > 0) {
            all_rows.extend(net.largest_batch(rows, how).iter().map(Range::len));
        }
        let rows = all_rows.last().copied().unwrap_or(0);
        let sample = self.graph_rows(data, 0..data.rows().min(SAMPLE_ROWS))?;
        let can_split = how.execution.virtual_workers.is_none() && net.can_split_batches();
        let free = self.free_memory();
        let free = free.map(|free| free.saturating_sub(reserved * net.parameter_bytes()));
        let bytes = how.execution.memory_bytes.or(free).unwrap_or(u64::MAX);
        let (free, settings) = (free.unwrap_or(0), &self.memory);
        let limit = StepLimit { rows, all_rows: &all_rows, bytes, free, can_split, settings };
        StepMemory::admit(net, views, &sample, limit)
    }

    /// The share of the host's or the GPU's free memory; `None` where it is not known.
    pub(super) fn free_memory(&self) -> Option<u64> {
        match self.device {
            Device::Cpu => available_bytes().map(|free| free / FREE_MEMORY_DIVISOR),
            device => {
                let free = gpu_of(device).and_then(|gpu| free_bytes(gpu).ok())?;
                Some((free as f64 * GPU_SHARE) as u64)
            }
        }
    }
}

/// Computes the gradients of batches.
struct BatchGradients<'a> {
    net: &'a GraphNet<'a>,
    views: Vec<Tensor>,
    /// The gradient of the batch, and its views.
    total: Tensor,
    slots: Vec<Tensor>,
    /// The gradient of a part of a batch, and its views.
    part: Option<(Tensor, Vec<Tensor>)>,
    /// Most rows of a part.
    rows_of_part: usize,
    memory: StepMemory<'a>,
    scale: Option<LossScale>,
}

impl BatchGradients<'_> {
    /// Writes the gradient of the mean loss of a batch; returns the loss of each row. A batch that does
    /// not fit into memory is computed in smaller parts, and one whose scaled gradient overflows again
    /// with a smaller scale.
    fn gradient(&mut self, batch: &Rows) -> Result<Tensor, GraphFailure> {
        let size = batch.len();
        loop {
            let scale = self.scale.as_ref().map_or(1.0, |scale| scale.factor);
            let losses = match self.scaled_gradient(batch, scale) {
                Err(failure)
                    if failure.is_out_of_memory()
                        && self.net.can_split_batches()
                        && self.rows_of_part.min(size) > 1 =>
                {
                    self.rows_of_part = self.rows_of_part.min(size) / 2;
                    continue;
                }
                found => found?,
            };
            let Some(loss_scale) = &mut self.scale else { return Ok(losses) };
            let _ = self.total.f_mul_scalar_(1.0 / scale)?;
            let is_finite = bool::try_from(self.total.f_isfinite()?.f_all()?)?;
            if loss_scale.accepts(is_finite) {
                return Ok(losses);
            }
        }
    }

    /// The gradient of the mean loss times `scale`.
    fn scaled_gradient(&mut self, batch: &Rows, scale: f64) -> Result<Tensor, GraphFailure> {
        let size = batch.len();
        let (net, share) = (self.net, scale / size as f64);
        if size <= self.rows_of_part {
            return self.memory.gradient(
                net,
                &self.views,
                batch,
                share,
                &self.slots,
                &mut NotObserved,
            );
        }
        let (part, slots) = match &self.part {
            Some(part) => part,
            None => {
                let part = self.total.f_zeros_like()?;
                let slots = net.aligned_views(&part)?;
                &*self.part.insert((part, slots))
            }
        };
        let _ = self.total.f_zero_()?;
        let mut losses = Vec::with_capacity(size.div_ceil(self.rows_of_part));
        for from in (0..size).step_by(self.rows_of_part) {
            let rows = (size - from).min(self.rows_of_part);
            let rows = batch.part(from, rows)?;
            losses.push(self.memory.gradient(
                net,
                &self.views,
                &rows,
                share,
                slots,
                &mut NotObserved,
            )?);
            let _ = self.total.f_add_(part)?;
        }
        Ok(Tensor::f_cat(&losses, 0)?)
    }
}

/// The factor of the loss, so that small gradients are above the smallest number of 16 bits
/// (Micikevicius et al. 2018).
pub(super) struct LossScale {
    pub(super) factor: f64,
    /// Steps since the last change.
    steps: u32,
}

impl LossScale {
    pub(super) fn new(precision: Precision) -> Option<Self> {
        (precision == Precision::F16).then_some(Self { factor: LOSS_SCALE, steps: 0 })
    }

    /// The state as bits.
    pub(super) fn bits(&self) -> (u64, u32) {
        (self.factor.to_bits(), self.steps)
    }

    /// The reverse.
    pub(super) fn from_bits((factor, steps): (u64, u32)) -> Self {
        Self { factor: f64::from_bits(factor), steps }
    }

    /// Whether the gradient is used; otherwise it is computed again with half the factor. Without a
    /// factor an overflow belongs to the model: the training has diverged.
    pub(super) fn accepts(&mut self, is_finite: bool) -> bool {
        self.steps += 1;
        if !is_finite && self.factor > 1.0 {
            (self.factor, self.steps) = (self.factor / 2.0, 0);
            return false;
        }
        if self.steps >= SCALE_GROWTH_STEPS {
            (self.factor, self.steps) = (self.factor * 2.0, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_scale_halves_after_an_overflow_and_doubles_after_many_steps() {
        assert!(LossScale::new(Precision::Bf16).is_none());
        let mut scale = LossScale::new(Precision::F16).unwrap();
        assert!(!scale.accepts(false));
        assert_eq!(scale.factor, LOSS_SCALE / 2.0);
        assert!((0..SCALE_GROWTH_STEPS).all(|_| scale.accepts(true)));
        assert_eq!(scale.factor, LOSS_SCALE);
        while scale.factor > 1.0 {
            assert!(!scale.accepts(false));
        }
        assert!(scale.accepts(false), "an overflow of the model itself");
    }
}
