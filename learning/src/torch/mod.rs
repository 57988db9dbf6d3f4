//! The libtorch engine: every model, on the CPU or on a GPU.
//!
//! Softmax and MLP have a hand-written gradient, with a few tensor operations per layer on flat
//! parameters; the CNN's gradient uses autograd. Directional derivatives use hand-written
//! forward-mode differentiation for all models.

mod backward;
mod batches;
mod binding;
#[cfg(feature = "distributed")]
mod c10d;
mod coalitions;
mod descent;
pub(crate) mod dispatch;
mod field_products;
mod gpu;
mod gradient_hooks;
pub(crate) mod graph;
mod memory;
mod net;
mod partial_sums;
mod peers;
#[cfg(feature = "distributed")]
pub(crate) mod ranks;
#[cfg(feature = "distributed")]
mod reduced_vector;
mod segment;
mod side_stream;
mod tape;
pub(crate) mod threads;

use std::ops::{ControlFlow, Range};

use tch::{Device, Kind, TchError, Tensor};

use crate::checkpoint::CheckpointSettings;
use crate::data::Dataset;
use crate::engine::{
    BackendError, Engine, EvalError, Evaluator, InputError, ParameterSegment, RowGradient,
    SegmentPoint, TrainError, TrainedModel, TrainedSegment, Trainer, TrainingQuote,
    TrainingSegment, TrainingStep, check_evaluation, check_execution, check_row_gradients,
    check_segment, check_training, chunks, mean, predicts_label,
};
use crate::loss::RowLoss;
use crate::memory::MemorySettings;
use crate::model::ModelSpec;
use crate::ranks::Ranks;
use crate::segment_record::SegmentRecord;
use crate::select::EngineError;
use crate::training::{Execution, Precision, Training};
use batches::{BatchRows, RESIDENT_BYTES_MAX, Rows};
pub(crate) use binding::load;
use descent::{GradientDescent, Steps};
pub use field_products::TorchFieldProducts;
pub use gpu::{LIBTORCH_VERSION, LibraryAttempt, TorchProbe, probe};
use graph::GraphTraining;
use net::{Objective, TensorNet};
use peers::Peers;

const ENGINE: &str = "torch";
const NAME_CPU: &str = "torch 2.11.0 (CPU)";
const NAME_GPU: &str = "torch 2.11.0 (CUDA)";

/// The device of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TorchDevice {
    /// The first GPU if libtorch can use one, else the CPU.
    Auto,
    /// The CPU, without a search for GPUs.
    Cpu,
    /// The first GPU; an error without one.
    Gpu,
}

/// The libtorch engine. It retains no tensors between calls.
///
/// On the CPU, the same call gives the same bits on the same machine with the same number of
/// threads. On a GPU, convolutions may differ in the last bits from run to run.
#[derive(Debug)]
pub struct Torch {
    device: Device,
    threads: i32,
    /// Largest features of a training that are copied to the device as a whole, in bytes.
    resident_bytes_max: usize,
    /// The other processes of its trainings.
    peers: Option<Box<dyn Peers>>,
    /// Where trainings by virtual workers store their state.
    checkpoints: Option<CheckpointSettings>,
    /// Where the tensors of steps go that are larger than the memory.
    memory: MemorySettings,
}

impl From<TchError> for BackendError {
    fn from(error: TchError) -> Self {
        let text = error.to_string();
        Self { engine: ENGINE, why: text.lines().next().unwrap_or_default().to_owned() }
    }
}

impl From<dispatch::AtenError> for BackendError {
    fn from(error: dispatch::AtenError) -> Self {
        Self { engine: ENGINE, why: error.to_string() }
    }
}

impl From<TchError> for TrainError {
    fn from(error: TchError) -> Self {
        Self::Backend(error.into())
    }
}

impl From<TchError> for EvalError {
    fn from(error: TchError) -> Self {
        Self::Backend(error.into())
    }
}

impl Torch {
    /// An engine whose single operations use up to `threads` threads. If a GPU is wanted, create
    /// that engine before any other: libtorch searches for GPUs once.
    pub fn new(processor: TorchDevice, threads: usize) -> Result<Self, EngineError> {
        let device = match processor {
            TorchDevice::Cpu => Device::Cpu,
            TorchDevice::Auto if probe().gpus == 0 => Device::Cpu,
            TorchDevice::Gpu if probe().gpus == 0 => {
                return Err(EngineError::NoGpu { why: probe().to_string() });
            }
            TorchDevice::Auto | TorchDevice::Gpu => Device::Cuda(0),
        };
        let threads = i32::try_from(threads)
            .ok()
            .filter(|&threads| threads > 0)
            .ok_or(EngineError::Threads { threads })?;
        Ok(Self::on(device, threads))
    }

    fn on(device: Device, threads: i32) -> Self {
        let resident_bytes_max = RESIDENT_BYTES_MAX;
        let memory = MemorySettings::default();
        Self { device, threads, resident_bytes_max, peers: None, checkpoints: None, memory }
    }

    /// The same engine on a device, without other processes.
    fn alone_on(&self, device: Device) -> Self {
        Self { resident_bytes_max: self.resident_bytes_max, ..Self::on(device, self.threads) }
    }

    /// The same engine on another GPU, if it is on one: the number counts from 0, and begins again after
    /// the last one.
    #[must_use]
    pub fn on_gpu(self, number: u32) -> Self {
        let device = match (self.device, probe().gpus) {
            (Device::Cuda(_), gpus @ 1..) => Device::Cuda(number as usize % gpus),
            (device, _) => device,
        };
        Self { device, ..self }
    }

    /// The same engine, which stores the state of trainings by virtual workers.
    #[must_use]
    pub fn with_checkpoints(self, settings: CheckpointSettings) -> Self {
        Self { checkpoints: Some(settings), ..self }
    }

    /// The same engine with a place for the tensors of steps that are larger than the memory.
    #[must_use]
    pub fn with_memory(self, settings: MemorySettings) -> Self {
        Self { memory: settings, ..self }
    }

    /// The same engine, whose trainings by virtual workers the other ranks compute too. This process is
    /// rank 0.
    #[must_use]
    #[cfg(feature = "distributed")]
    pub fn with_ranks(self, ranks: Ranks) -> Self {
        Self { peers: Some(Box::new(ranks)), ..self }
    }

    /// There are no ranks in this build.
    #[must_use]
    #[cfg(not(feature = "distributed"))]
    pub fn with_ranks(self, ranks: Ranks) -> Self {
        match ranks {}
    }

    /// Sets the number of threads of the calling thread: an engine may move to another.
    fn set_threads(&self) {
        threads::set_threads(self.threads);
    }

    fn to_tensor<T: tch::kind::Element>(&self, numbers: &[T]) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(numbers)?.f_to_device(self.device)
    }

    /// Rows `from..to` of the data: features of type `kind`, labels as a column.
    fn rows(
        &self,
        data: &Dataset,
        rows: std::ops::Range<usize>,
        kind: Kind,
    ) -> Result<(Tensor, Tensor), TchError> {
        let width = data.width();
        let features = &data.features()[rows.start * width..rows.end * width];
        let labels: Vec<i64> = data.labels()[rows].iter().map(|&label| label.into()).collect();
        let features = self.to_tensor(features)?.f_to_kind(kind)?.f_view([-1, width as i64])?;
        Ok((features, self.to_tensor(&labels)?.f_view([-1, 1])?))
    }

    /// Runs the forward pass of the rows in `f64`, a chunk at a time, and calls `look` with each
    /// chunk.
    fn each_chunk(
        &self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
        mut look: impl FnMut(Chunk<'_>) -> Result<(), TchError>,
    ) -> Result<(), EvalError> {
        check_evaluation(model, params, &[], data)?;
        self.set_threads();
        let flat = self.to_tensor(params)?;
        let net = TensorNet::new(model, &flat)?;
        for rows in chunks(data.rows()) {
            let (features, labels) = self.rows(data, rows.clone(), Kind::Double)?;
            look(Chunk { net: &net, rows, features, labels })?;
        }
        Ok(())
    }
}

struct Chunk<'a> {
    net: &'a TensorNet,
    rows: std::ops::Range<usize>,
    features: Tensor,
    labels: Tensor,
}

impl Engine for Torch {
    fn name(&self) -> &'static str {
        if self.device == Device::Cpu { NAME_CPU } else { NAME_GPU }
    }

    #[cfg(feature = "distributed")]
    fn bit_class(&self) -> Option<String> {
        let is_cpu = self.device == Device::Cpu;
        is_cpu
            .then(|| format!("{NAME_CPU}, {}, {}", std::env::consts::ARCH, c10d::cpu_capability()))
    }
}

impl Trainer for Torch {
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        check_training(model, start, data, how)?;
        self.set_threads();
        if let ModelSpec::Graph(model) = model {
            let training = GraphTraining { model, start, data, how, seed };
            return self.train_graph(&training, progress);
        }
        check_execution(ENGINE, how)?;
        let mut descent = GradientDescent::new(&self.to_tensor(start)?, how)?;
        let net = TensorNet::new(model, &descent.params)?;
        let slots = TensorNet::new(model, &descent.gradient)?;
        let steps = Steps::all(data.rows(), how, seed);
        let rows = BatchRows::new(self, data, &steps)?;
        let mut gradient = |batch: &Rows| -> Result<Tensor, TrainError> {
            let (labels, objective) =
                (batch.labels.f_view([-1, 1])?, Objective::training(batch.len()));
            Ok(net.gradient(&batch.numbers, &labels, objective, &slots)?)
        };
        self.descend(&steps, &rows, &mut descent, progress, &mut gradient)
    }

    fn train_segment(
        &mut self,
        segment: &TrainingSegment<'_>,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedSegment, TrainError> {
        let TrainingSegment { model, start, data, how, seed, from, to, is_traced } = *segment;
        check_training(model, start, data, how)?;
        let Execution { precision, virtual_workers, .. } = how.execution;
        let (ModelSpec::Graph(model), Some(workers)) = (model, virtual_workers) else {
            return Err(InputError::Segments { engine: ENGINE }.into());
        };
        if precision != Precision::F32 {
            return Err(InputError::Precision { engine: ENGINE, precision }.into());
        }
        check_segment(segment)?;
        let training = GraphTraining { model, start, data, how, seed };
        let mut record = SegmentRecord::new(to, is_traced);
        let mut until_end = |step: TrainingStep| match progress(step) {
            ControlFlow::Continue(()) if step.step == to => ControlFlow::Break(()),
            next => next,
        };
        let segment = Some((from, &mut record));
        let trained = self.train_graph_virtually(&training, workers, segment, &mut until_end);
        match (trained, record.into_trained()) {
            (Ok(_) | Err(TrainError::Stopped { .. }), Some(segment)) => Ok(segment),
            (Err(error), _) => Err(error),
            (Ok(_), None) => {
                Err(InputError::Steps { from: from.step(), to, steps: how.steps(data.rows()) }
                    .into())
            }
        }
    }

    fn quote(
        &mut self,
        model: &ModelSpec,
        data: &Dataset,
        how: &Training,
    ) -> Result<Option<TrainingQuote>, TrainError> {
        let ModelSpec::Graph(graph) = model else { return Ok(None) };
        check_training(model, &vec![0.0; model.parameters()], data, how)?;
        self.set_threads();
        self.quote_graph(graph, data, how).map(Some)
    }

    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        check_row_gradients(model, params, data, rows)?;
        self.set_threads();
        if let ModelSpec::Graph(model) = model {
            return self.graph_row_gradients(model, params, data, rows, look);
        }
        let flat = self.to_tensor(params)?;
        let slots_flat = flat.f_zeros_like()?;
        let (net, slots) = (TensorNet::new(model, &flat)?, TensorNet::new(model, &slots_flat)?);
        for &row in rows {
            // One row at a time: no bit of its gradient depends on another row.
            let (features, labels) = self.rows(data, row..row + 1, Kind::Float)?;
            let losses = net.gradient(&features, &labels, Objective::training(1), &slots)?;
            let loss = f64::try_from(losses.f_sum(Kind::Double)?)?;
            let gradient = Vec::<f32>::try_from(slots_flat.f_to_device(Device::Cpu)?)?;
            look(RowGradient { loss, gradient: &gradient });
        }
        Ok(())
    }
}

impl Evaluator for Torch {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        if let ModelSpec::Graph(graph) = model {
            check_evaluation(model, params, &[], data)?;
            self.set_threads();
            return self.graph_row_losses(graph, params, data);
        }
        let mut losses = Vec::with_capacity(data.rows());
        self.each_chunk(model, params, data, |chunk| {
            let logits = chunk.net.forward(&chunk.features)?.logits;
            losses.extend(to_vec(&net::losses(&logits, &chunk.labels, RowLoss::Bounded)?)?);
            Ok(())
        })?;
        Ok(losses)
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        check_evaluation(model, params, directions, data)?;
        if let ModelSpec::Graph(graph) = model {
            self.set_threads();
            return self.graph_directional_derivatives(graph, params, directions, data);
        }
        let mut slopes = vec![Vec::with_capacity(data.rows()); directions.len()];
        self.each_chunk(model, params, data, |chunk| {
            let tape = chunk.net.forward(&chunk.features)?;
            let pulls = net::logit_gradients(&tape.logits, &chunk.labels)?;
            for (slopes, direction) in slopes.iter_mut().zip(directions) {
                // Recreated for each chunk: it costs as much as one row, and only one direction
                // is in memory.
                let direction = self.to_tensor(direction)?.f_to_kind(Kind::Double)?;
                let moving =
                    chunk.net.directional_derivative(&TensorNet::new(model, &direction)?, &tape)?;
                let rows = pulls.f_mul(&moving)?.f_sum_dim_intlist([1].as_slice(), false, None)?;
                slopes.extend(to_vec(&rows)?);
            }
            Ok(())
        })?;
        Ok(slopes)
    }

    fn row_outputs(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        if let ModelSpec::Graph(graph) = model {
            check_evaluation(model, params, &[], data)?;
            self.set_threads();
            return self.graph_row_outputs(graph, params, data);
        }
        let mut outputs = Vec::with_capacity(data.rows() * model.classes());
        self.each_chunk(model, params, data, |chunk| {
            outputs.extend(to_vec(&chunk.net.forward(&chunk.features)?.logits.f_view([-1])?)?);
            Ok(())
        })?;
        Ok(outputs)
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        if let ModelSpec::Graph(graph) = model {
            check_evaluation(model, params, &[], data)?;
            self.set_threads();
            return self.graph_correct_predictions(graph, params, data);
        }
        let mut correct = 0;
        self.each_chunk(model, params, data, |chunk| {
            let logits = to_vec(&chunk.net.forward(&chunk.features)?.logits.f_view([-1])?)?;
            let rows = logits.chunks_exact(model.classes()).zip(&data.labels()[chunk.rows]);
            correct += rows.filter(|&(logits, &label)| predicts_label(logits, label)).count();
            Ok(())
        })?;
        Ok(correct)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        if let ModelSpec::Graph(graph) = model {
            check_evaluation(model, params, &[], data)?;
            self.set_threads();
            return self.graph_mean_gradient(graph, params, data);
        }
        let mut losses = Vec::with_capacity(data.rows());
        let mut sum = vec![0.0; params.len()];
        self.each_chunk(model, params, data, |chunk| {
            let part = Tensor::f_zeros(params.len() as i64, (Kind::Double, self.device))?;
            let slots = TensorNet::new(model, &part)?;
            let (net, objective) = (chunk.net, Objective::EVALUATION);
            let chunk_losses = net.gradient(&chunk.features, &chunk.labels, objective, &slots)?;
            losses.extend(to_vec(&chunk_losses)?);
            sum.iter_mut().zip(to_vec(&part)?).for_each(|(sum, part)| *sum += part);
            Ok(())
        })?;
        let rows = data.rows() as f64;
        sum.iter_mut().for_each(|value| *value /= rows);
        Ok((mean(&losses), sum))
    }

    fn evaluate_on_segment(
        &mut self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        self.evaluate_segment(way, places, data, groups, look)
    }
}

fn to_vec(tensor: &Tensor) -> Result<Vec<f64>, TchError> {
    Vec::<f64>::try_from(tensor.f_to_device(Device::Cpu)?.f_contiguous()?)
}

#[cfg(test)]
mod tests;
