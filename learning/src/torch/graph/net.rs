//! A graph as a function of flat parameters and rows.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::loss::{Targets, row_losses};
use crate::engine::{BackendError, InputError};
use crate::graph::{
    GraphModel, GraphProgram, InputRole, Interpreter, InterpreterError, NotObserved, Place,
    RunMode, RunObserver, drawing_nodes,
};
use crate::loss::RowLoss;
use crate::torch::ENGINE;
use crate::torch::batches::Rows;
use crate::torch::dispatch::{Argument as Given, AtenError, AtenOperator, Autocast, retain_memory};
use crate::torch::gradient_hooks::with_gradient_hooks;
use crate::training::{Precision, Training};
use crate::virtual_workers::parts;

/// A run failed.
pub(super) enum GraphFailure {
    /// An operator refused a value, such as a token beyond the vocabulary: a property of the rows and
    /// the parameters.
    Value(BackendError),
    /// Any other failure.
    Other(BackendError),
}

impl GraphFailure {
    /// Whether a device had too little memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        let (Self::Value(error) | Self::Other(error)) = self;
        ["out of memory", "can't allocate memory"].iter().any(|text| error.why.contains(text))
    }
}

impl From<GraphFailure> for BackendError {
    fn from(failure: GraphFailure) -> Self {
        match failure {
            GraphFailure::Value(error) | GraphFailure::Other(error) => error,
        }
    }
}

impl From<AtenError> for GraphFailure {
    fn from(error: AtenError) -> Self {
        Self::Other(error.into())
    }
}

impl From<BackendError> for GraphFailure {
    fn from(error: BackendError) -> Self {
        Self::Other(error)
    }
}

impl From<TchError> for GraphFailure {
    fn from(error: TchError) -> Self {
        Self::Other(error.into())
    }
}

impl From<InterpreterError> for GraphFailure {
    fn from(error: InterpreterError) -> Self {
        let text = error.to_string();
        let why = text.lines().next().unwrap_or_default().to_owned();
        let is_machine =
            ["memory", "CUDA", "cuDNN", "CUBLAS"].iter().any(|word| why.contains(word));
        let found = BackendError { engine: ENGINE, why };
        match error {
            InterpreterError::Operator { .. } if !is_machine => Self::Value(found),
            _ => Self::Other(found),
        }
    }
}

/// Receives a gradient while the backward pass computes it.
pub(super) trait GradientSink: Send {
    /// The forward pass has ended; statistics that it has changed are stored.
    fn forward_done(&mut self, losses: &Tensor) -> Result<(), TchError>;
    /// The gradient of a travelling tensor is in its slot.
    fn tensor_done(&mut self, tensor: usize) -> Result<(), TchError>;
}

/// The watchers of a step.
pub(super) struct GradientStream<'s> {
    /// Of the forward pass.
    pub(super) observer: &'s mut dyn RunObserver,
    /// Of the gradient.
    pub(super) sink: &'s mut dyn GradientSink,
}

/// Numbers of 64 bytes, to which libtorch aligns a tensor of its own.
const ALIGNMENT: usize = 16;

/// A graph with its frozen tensors on a device.
pub(super) struct GraphNet<'m> {
    model: &'m GraphModel,
    pub(super) program: &'m GraphProgram,
    pub(super) interpreter: Interpreter<'m>,
    frozen: Vec<Tensor>,
    kind: Kind,
    /// Of the products in a training.
    pub(super) precision: Precision,
    pub(super) device: Device,
    /// Whether each node draws random numbers in a training.
    pub(super) draws: Vec<bool>,
    copy: AtenOperator,
}

/// A tensor that travels, with its place among the parameters.
struct TravellingTensor<'m> {
    range: &'m Range<usize>,
    sizes: &'m [i64],
    is_buffer: bool,
    /// Its start in an aligned vector.
    aligned: usize,
}

impl TravellingTensor<'_> {
    fn aligned_range(&self) -> Range<usize> {
        self.aligned..self.aligned + self.range.len()
    }

    /// The view of a flat tensor that begins at `start`.
    fn view(&self, flat: &Tensor, start: usize) -> Result<Tensor, TchError> {
        flat.f_narrow(0, start as i64, self.range.len() as i64)?.f_view(self.sizes)
    }
}

impl Rows {
    /// The rows one by one; none if there is one row: it has no smaller parts.
    pub(in crate::torch) fn each(&self) -> impl Iterator<Item = Result<Self, TchError>> {
        let rows = if self.len() > 1 { self.len() } else { 0 };
        (0..rows).map(|row| {
            let one = |tensor: &Tensor| tensor.f_narrow(0, row as i64, 1);
            Ok(Self { numbers: one(&self.numbers)?, labels: one(&self.labels)? })
        })
    }
}

/// The loaded graph of a model.
pub(super) fn program(model: &GraphModel) -> Result<&GraphProgram, InputError> {
    let missing = || InputError::NotLoaded { model: model.to_string() };
    model.program().ok_or_else(missing)
}

impl<'m> GraphNet<'m> {
    /// The graph in `kind`: as it was exported in `f32`, or with all real numbers in `f64`.
    pub(super) fn new(
        model: &'m GraphModel,
        program: &'m GraphProgram,
        device: Device,
        kind: Kind,
    ) -> Result<Self, BackendError> {
        retain_memory();
        let name = match device {
            Device::Cuda(number) => format!("cuda:{number}"),
            _ => "cpu".to_owned(),
        };
        let mut interpreter =
            Interpreter::new(&program.graph, &name).map_err(GraphFailure::from)?;
        if kind == Kind::Double {
            interpreter = interpreter.in_double();
        }
        if program.has_frozen_statistics {
            interpreter = interpreter.with_frozen_statistics();
        }
        let frozen = program.frozen.iter().map(|tensor| {
            let tensor = tensor.to_tensor()?.f_to_device(device)?;
            match kind == Kind::Double && tensor.is_floating_point() {
                true => tensor.f_to_kind(Kind::Double),
                false => Ok(tensor),
            }
        });
        let frozen = frozen.collect::<Result<_, TchError>>()?;
        let copy = AtenOperator::find("aten::_foreach_copy_", "")?;
        let (precision, draws) = (Precision::F32, drawing_nodes(&program.graph));
        Ok(Self { model, program, interpreter, frozen, kind, precision, device, draws, copy })
    }

    /// The same with products in another precision in a training.
    pub(super) fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Whether the gradient of a batch is the sum of those of its parts: no row of a training depends on
    /// another one.
    pub(super) fn can_split_batches(&self) -> bool {
        !self.interpreter.trains_by_batch_statistics()
    }

    /// The rows of each worker's part of a batch of `size` rows. Statistics of a batch need two rows.
    pub(super) fn parts(&self, size: usize, workers: u32) -> Vec<Range<usize>> {
        parts(size, workers, if self.can_split_batches() { 1 } else { 2 })
    }

    /// The parts of a training's largest batch: one for each virtual worker, or the batch.
    pub(super) fn largest_batch(&self, rows: usize, how: &Training) -> Vec<Range<usize>> {
        self.parts(rows.min(how.batch as usize), how.execution.virtual_workers.unwrap_or(1))
    }

    /// The largest bounded loss of a row.
    pub(super) fn largest_loss(&self) -> f64 {
        let declaration = self.model.declaration();
        declaration.loss.largest(declaration.outputs)
    }

    /// The travelling tensors as views of `flat`, in the order of the graph's inputs.
    pub(super) fn views(&self, flat: &Tensor) -> Result<Vec<Tensor>, TchError> {
        self.travelling().map(|tensor| tensor.view(flat, tensor.range.start)).collect()
    }

    /// The same of an aligned `flat`.
    pub(super) fn aligned_views(&self, flat: &Tensor) -> Result<Vec<Tensor>, TchError> {
        self.travelling().map(|tensor| tensor.view(flat, tensor.aligned)).collect()
    }

    /// The numbers with each tensor at a multiple of [`ALIGNMENT`], and zeros between them: kernels are
    /// slower on tensors that begin anywhere.
    pub(super) fn align(&self, numbers: &[f32]) -> Vec<f32> {
        let mut aligned = vec![0.0; self.aligned_length()];
        for tensor in self.travelling() {
            aligned[tensor.aligned_range()].copy_from_slice(&numbers[tensor.range.clone()]);
        }
        aligned
    }

    /// Bytes of the tensors that travel.
    pub(super) fn parameter_bytes(&self) -> u64 {
        (self.aligned_length() * size_of::<f32>()) as u64
    }

    /// The length of an aligned vector.
    pub(super) fn aligned_length(&self) -> usize {
        let length = self.travelling().last().map_or(0, |last| last.aligned_range().end);
        length.next_multiple_of(ALIGNMENT)
    }

    /// The numbers of an aligned vector.
    pub(super) fn unalign(&self, aligned: &[f32]) -> Vec<f32> {
        let length = self.travelling().map(|tensor| tensor.range.end).max().unwrap_or(0);
        let mut numbers = vec![0.0; length];
        for tensor in self.travelling() {
            numbers[tensor.range.clone()].copy_from_slice(&aligned[tensor.aligned_range()]);
        }
        numbers
    }

    /// The ranges of the buffers in an aligned vector.
    pub(super) fn aligned_buffers(&self) -> Vec<Range<usize>> {
        let buffers = self.travelling().filter(|tensor| tensor.is_buffer);
        buffers.map(|tensor| tensor.aligned_range()).collect()
    }

    /// The number of each travelling tensor, with its range in an aligned vector, and whether it is a
    /// buffer.
    pub(super) fn aligned_places(&self) -> impl Iterator<Item = (usize, Range<usize>, bool)> {
        let tensors = self.travelling().enumerate();
        tensors.map(|(at, tensor)| (at, tensor.aligned_range(), tensor.is_buffer))
    }

    /// The range of each travelling tensor in an aligned vector, with the zeros behind it.
    pub(super) fn aligned_ranges(&self) -> Vec<Range<usize>> {
        let ranges = self.travelling().map(|tensor| tensor.aligned_range());
        ranges.map(|range| range.start..range.end.next_multiple_of(ALIGNMENT)).collect()
    }

    /// Whether a travelling tensor is a buffer.
    pub(super) fn is_buffer(&self, travelling: usize) -> bool {
        self.travelling().nth(travelling).is_some_and(|tensor| tensor.is_buffer)
    }

    /// Those of the views that are buffers.
    pub(super) fn buffers_of<'v>(
        &'v self,
        views: &'v [Tensor],
    ) -> impl Iterator<Item = &'v Tensor> {
        let pairs = views.iter().zip(self.travelling());
        pairs.filter(|(_, tensor)| tensor.is_buffer).map(|(view, _)| view)
    }

    fn travelling(&self) -> impl Iterator<Item = TravellingTensor<'_>> {
        let mut next = 0;
        self.program.places.iter().filter_map(move |place| match place {
            Place::Travels { range, sizes, is_buffer } => {
                let aligned = next;
                next = (aligned + range.len()).next_multiple_of(ALIGNMENT);
                Some(TravellingTensor { range, sizes, is_buffer: *is_buffer, aligned })
            }
            _ => None,
        })
    }

    /// The tensors of a run with gradients tracked: views of all tensors, or of parameters alone and
    /// copies of buffers, which a training changes in place.
    pub(super) fn leaves(
        &self,
        views: &[Tensor],
        with_buffers: bool,
    ) -> Result<Vec<Tensor>, TchError> {
        let leaf = |(view, tensor): (&Tensor, TravellingTensor<'_>)| match tensor.is_buffer
            && !with_buffers
        {
            true => view.f_detach_copy(),
            false => view.f_detach()?.f_set_requires_grad(true),
        };
        views.iter().zip(self.travelling()).map(leaf).collect()
    }

    /// The first output of the graph for some rows.
    pub(super) fn forward(
        &self,
        travelling: &[Tensor],
        rows: &Rows,
        mode: RunMode,
    ) -> Result<Tensor, GraphFailure> {
        self.observed_forward(travelling, rows, mode, &mut NotObserved)
    }

    fn observed_forward(
        &self,
        travelling: &[Tensor],
        rows: &Rows,
        mode: RunMode,
        observer: &mut dyn RunObserver,
    ) -> Result<Tensor, GraphFailure> {
        let mut travelling = travelling.iter();
        let mut inputs = Vec::with_capacity(self.program.places.len());
        for (number, place) in self.program.places.iter().enumerate() {
            inputs.push(match place {
                Place::Travels { .. } => travelling.next().map(Tensor::shallow_clone),
                _ => self.fixed_input(number, rows, mode)?,
            });
        }
        let inputs: Vec<Tensor> = inputs.into_iter().flatten().collect();
        let precision = if mode == RunMode::Training { self.precision } else { Precision::F32 };
        let autocast = Autocast::start(precision, self.device != Device::Cpu);
        let outputs = self.interpreter.run_observed(&inputs, mode, observer)?;
        drop(autocast);
        let why = || BackendError { engine: ENGINE, why: "the graph has no output".to_owned() };
        Ok(outputs.into_iter().next().ok_or_else(why)?)
    }

    /// An input of the graph that does not travel: a frozen tensor, or numbers of rows.
    pub(super) fn fixed_input(
        &self,
        number: usize,
        rows: &Rows,
        mode: RunMode,
    ) -> Result<Option<Tensor>, TchError> {
        let mut places = self.program.places.iter().zip(&self.program.graph.inputs);
        let Some((place, input)) = places.nth(number) else { return Ok(None) };
        match place {
            Place::Travels { .. } => Ok(None),
            // Training changes statistics in place: of the step, not of the model.
            Place::Frozen(at)
                if mode == RunMode::Training && matches!(input.role, InputRole::Buffer(_)) =>
            {
                self.frozen.get(*at).map(Tensor::f_detach_copy).transpose()
            }
            Place::Frozen(at) => Ok(self.frozen.get(*at).map(Tensor::shallow_clone)),
            Place::Row { range, sizes } => {
                let own = rows.numbers.f_narrow(1, range.start as i64, range.len() as i64)?;
                let sizes: Vec<i64> = [-1].into_iter().chain(sizes.iter().copied()).collect();
                let kind = self.kind_of(input.tensor.data_type);
                Ok(Some(own.f_reshape(sizes.as_slice())?.f_to_kind(kind)?))
            }
        }
    }

    fn kind_of(&self, data_type: crate::graph::DataType) -> Kind {
        match data_type.is_float() && self.kind == Kind::Double {
            true => Kind::Double,
            false => data_type.kind(),
        }
    }

    /// The loss of each row.
    pub(super) fn losses(
        &self,
        travelling: &[Tensor],
        rows: &Rows,
        mode: RunMode,
    ) -> Result<Tensor, GraphFailure> {
        self.observed_losses(travelling, rows, mode, &mut NotObserved)
    }

    fn observed_losses(
        &self,
        travelling: &[Tensor],
        rows: &Rows,
        mode: RunMode,
        observer: &mut dyn RunObserver,
    ) -> Result<Tensor, GraphFailure> {
        let output = self.observed_forward(travelling, rows, mode, observer)?;
        Ok(self.losses_of_output(&output, rows, mode)?)
    }

    /// The loss of each row, from the graph's output.
    pub(super) fn losses_of_output(
        &self,
        output: &Tensor,
        rows: &Rows,
        mode: RunMode,
    ) -> Result<Tensor, TchError> {
        let output = output.f_to_kind(self.kind)?;
        let declaration = self.model.declaration();
        let tokens = self.program.first_row_input();
        let columns = |from: usize, size: usize| {
            rows.numbers.f_narrow(1, from as i64, size as i64)?.f_to_kind(self.kind)
        };
        let targets = Targets {
            labels: &rows.labels,
            numbers: &columns(declaration.inputs, declaration.targets)?,
            tokens: &columns(tokens.start, tokens.len())?,
        };
        let form = match mode {
            RunMode::Training => RowLoss::CrossEntropy,
            RunMode::Evaluation => RowLoss::Bounded,
        };
        row_losses(declaration.loss, form, &output, &targets)
    }

    /// Writes the gradient of `scale` times the summed losses of rows to the views of a flat gradient;
    /// returns the losses.
    pub(super) fn gradient(
        &self,
        views: &[Tensor],
        rows: &Rows,
        mode: RunMode,
        scale: f64,
        slots: &[Tensor],
    ) -> Result<Tensor, GraphFailure> {
        self.observed_gradient(views, rows, mode, scale, slots, &mut NotObserved)
    }

    /// The same with an observer.
    pub(super) fn observed_gradient(
        &self,
        views: &[Tensor],
        rows: &Rows,
        mode: RunMode,
        scale: f64,
        slots: &[Tensor],
        observer: &mut dyn RunObserver,
    ) -> Result<Tensor, GraphFailure> {
        let leaves = self.leaves(views, mode == RunMode::Evaluation)?;
        let losses = self.observed_losses(&leaves, rows, mode, observer)?;
        let total = losses.f_sum(None::<Kind>)?.f_mul_scalar(scale)?;
        observer.end_forward()?;
        let gradients = self.gradients(&total, &leaves)?;
        if mode == RunMode::Training {
            self.store_buffers(&leaves, views)?;
        }
        let (mut targets, mut sources) = (Vec::new(), Vec::new());
        for (slot, gradient) in slots.iter().zip(&gradients) {
            match gradient {
                Some(gradient) => {
                    targets.push(Some(slot));
                    sources.push(Some(gradient));
                }
                None => {
                    let _ = slot.shallow_clone().f_zero_()?;
                }
            }
        }
        if !targets.is_empty() {
            // One kernel for all tensors.
            let both = [(None, Given::Tensors(&targets)), (None, Given::Tensors(&sources))];
            self.copy.call(&both)?;
        }
        Ok(losses.f_detach()?)
    }

    /// As [`gradient`](Self::gradient) in a training; each tensor is written to its slot as soon as the
    /// backward pass has its gradient.
    pub(super) fn streamed_gradient(
        &self,
        views: &[Tensor],
        rows: &Rows,
        scale: f64,
        slots: &[Tensor],
        stream: GradientStream<'_>,
    ) -> Result<Tensor, GraphFailure> {
        let GradientStream { observer, sink } = stream;
        let leaves = self.leaves(views, false)?;
        let losses = self.observed_losses(&leaves, rows, RunMode::Training, observer)?;
        let total = losses.f_sum(None::<Kind>)?.f_mul_scalar(scale)?;
        observer.end_forward()?;
        let losses = losses.f_detach()?;
        self.store_buffers(&leaves, views)?;
        let is_open = |leaf: &Tensor| leaf.requires_grad() && total.requires_grad();
        let mut open: Vec<bool> = leaves.iter().map(is_open).collect();
        for (slot, _) in slots.iter().zip(&open).filter(|(_, is_open)| !**is_open) {
            let _ = slot.shallow_clone().f_zero_()?;
        }
        sink.forward_done(&losses)?;
        for tensor in (0..slots.len()).filter(|&tensor| !open[tensor]) {
            sink.tensor_done(tensor)?;
        }
        if open.contains(&true) {
            let own: Vec<Tensor> = slots.iter().map(Tensor::shallow_clone).collect();
            let (open, sink) = (&mut open, &mut *sink);
            let mut receive = move |tensor: usize, gradient: &Tensor| {
                let _guard = tch::no_grad_guard();
                own[tensor].shallow_clone().f_copy_(gradient)?;
                open[tensor] = false;
                sink.tensor_done(tensor)
            };
            let pass = || -> Result<(), GraphFailure> { Ok(total.f_backward()?) };
            with_gradient_hooks(&leaves, &mut receive, pass)?;
        }
        for tensor in (0..slots.len()).filter(|&tensor| open[tensor]) {
            let _ = slots[tensor].shallow_clone().f_zero_()?;
            sink.tensor_done(tensor)?;
        }
        Ok(losses)
    }

    /// The number of the graph's input for each travelling tensor.
    pub(super) fn travelling_inputs(&self) -> impl Iterator<Item = usize> {
        let places = self.program.places.iter().enumerate();
        let travels = places.filter(|(_, place)| matches!(place, Place::Travels { .. }));
        travels.map(|(input, _)| input)
    }

    /// Writes the gradient of the summed losses of rows in an evaluation, tensor by tensor, so that it is
    /// in memory once; returns the losses. An element that is not a number becomes 0, and what has no
    /// gradient stays as it is.
    pub(super) fn gradient_of_evaluation(
        &self,
        views: &[Tensor],
        rows: &Rows,
        numbers: &mut [f64],
    ) -> Result<Tensor, GraphFailure> {
        let leaves = self.leaves(views, true)?;
        let losses = self.losses(&leaves, rows, RunMode::Evaluation)?;
        let total = losses.f_sum(None::<Kind>)?;
        let losses = losses.f_detach()?;
        if total.requires_grad() {
            total.f_backward()?;
        }
        drop(total);
        // A leaf ends with its gradient.
        for (leaf, tensor) in leaves.into_iter().zip(self.travelling()) {
            let mut gradient = leaf.f_grad()?;
            if gradient.defined() {
                let _ = gradient.f_nan_to_num_(0.0, 0.0, 0.0)?;
                let own = &mut numbers[tensor.range.clone()];
                let length = own.len();
                gradient.f_contiguous()?.f_copy_data(own, length)?;
            }
        }
        Ok(losses)
    }

    /// Stores the statistics that a run has changed, unseen by a backward pass that follows: parameters
    /// that it has saved share the memory of the views.
    fn store_buffers(&self, leaves: &[Tensor], views: &[Tensor]) -> Result<(), TchError> {
        for ((leaf, view), tensor) in leaves.iter().zip(views).zip(self.travelling()) {
            if tensor.is_buffer {
                view.f_data()?.f_copy_(leaf)?;
            }
        }
        Ok(())
    }

    /// The gradient of a scalar for each leaf; `None` if it does not depend on it.
    fn gradients(
        &self,
        total: &Tensor,
        leaves: &[Tensor],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        if !total.requires_grad() {
            return Ok(leaves.iter().map(|_| None).collect());
        }
        total.f_backward()?;
        let gradient = |leaf: &Tensor| {
            if !leaf.requires_grad() {
                return Ok(None);
            }
            let gradient = leaf.f_grad()?;
            Ok(gradient.defined().then_some(gradient))
        };
        leaves.iter().map(gradient).collect()
    }
}
