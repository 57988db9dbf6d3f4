//! Graphs in plain Rust: the normative evaluation of models whose operators it has.
//!
//! ```text
//! Graph ── shapes ──► Run ── operators ──► Tape ── loss ──► losses and gradients
//! ```
//!
//! All sums have a fixed order and all functions come from `libm`, so that every machine computes the
//! same bits. Tensors are contiguous; a view is a copy by indices.

mod elements;
mod loss;
mod norms;
mod products;
mod run;
mod selection;
mod support;
mod tape;
mod tensor;
#[cfg(test)]
mod tests;
mod views;
mod windows;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::data::Dataset;
use crate::engine::{BackendError, InputError};
use crate::graph::shapes::{Shaped, value_shapes};
use crate::graph::{
    DataType, GraphError, GraphModel, GraphProgram, Place, ROW_BYTES_MAX, RunMode, ValueId,
    WeightTensor,
};
use crate::loss::RowLoss;
use crate::reference::real::Real;
use crate::rng::{Purpose, rng};
use loss::{Targets, row_losses};
use run::Run;
use tape::Var;
use tensor::Tensor;

pub(super) use support::missing_operators;

/// Most rows of a chunk of an evaluation.
const CHUNK_ROWS: usize = 32;
/// Most bytes of the tensors of a chunk in `f32`. A tape has several arrays of 64 bits for each of them.
const CHUNK_BYTES: u64 = 64 << 20;
/// Most bytes of the tensors of a run in `f32`: of a row in an evaluation, and of a batch in a training.
pub(super) const RUN_BYTES_MAX: u64 = 1 << 30;

/// A run failed.
#[derive(Debug)]
enum RunFailure {
    /// An operator refused a value, such as a token beyond the vocabulary: a property of the rows and
    /// the parameters.
    Value(String),
    /// The engine lacks a form of an operator, or the graph is invalid.
    Graph(String),
}

impl RunFailure {
    fn graph(why: impl Into<String>) -> Self {
        Self::Graph(why.into())
    }

    fn at_node(self, at: usize) -> Self {
        match self {
            Self::Value(why) => Self::Value(format!("node {at}: {why}")),
            Self::Graph(why) => Self::Graph(format!("node {at}: {why}")),
        }
    }
}

impl From<GraphError> for RunFailure {
    fn from(error: GraphError) -> Self {
        Self::Graph(error.why)
    }
}

impl From<RunFailure> for BackendError {
    fn from(failure: RunFailure) -> Self {
        let (RunFailure::Value(why) | RunFailure::Graph(why)) = failure;
        Self { engine: super::NAME, why }
    }
}

/// Checks the tensors of a run of `rows` rows, and returns their bytes in `f32`.
///
/// # Errors
/// [`InputError::TooLarge`] beyond [`RUN_BYTES_MAX`].
pub(super) fn check_run_bytes(program: &GraphProgram, rows: usize) -> Result<u64, InputError> {
    let bytes = support::run_bytes(&program.graph, rows).unwrap_or(u64::MAX);
    match bytes <= RUN_BYTES_MAX {
        true => Ok(bytes),
        false => {
            Err(InputError::TooLarge { engine: super::NAME, rows, bytes, most: RUN_BYTES_MAX })
        }
    }
}

/// A graph whose numbers have the type `T`.
pub(super) struct PlainGraph<'m, T> {
    model: &'m GraphModel,
    program: &'m GraphProgram,
    frozen: Vec<Frozen<T>>,
    /// The shapes of runs, by their number of rows.
    shapes: Mutex<BTreeMap<usize, Arc<Vec<Shaped>>>>,
    chunk_rows: usize,
}

/// A frozen tensor.
enum Frozen<T> {
    Real(Vec<usize>, Arc<Vec<T>>),
    Whole(Tensor),
}

/// The losses of some rows, and what follows from them.
pub(super) struct Evaluated<T> {
    /// The loss of each row.
    pub(super) losses: Vec<f64>,
    /// The gradient of their sum with respect to all parameters.
    pub(super) gradient: Vec<T>,
    /// Buffers that a training step changes: their range among the parameters, and their numbers.
    pub(super) buffers: Vec<(Range<usize>, Vec<T>)>,
}

/// The rows of a run and how it runs.
#[derive(Clone, Copy)]
pub(super) struct RunOf<'a> {
    pub(super) data: &'a Dataset,
    pub(super) rows: &'a [usize],
    pub(super) mode: RunMode,
    /// Seed and part of the stream of random numbers.
    pub(super) random: (u64, u32),
}

impl<'a> RunOf<'a> {
    /// An evaluation.
    pub(super) fn evaluation(data: &'a Dataset, rows: &'a [usize]) -> Self {
        Self { data, rows, mode: RunMode::Evaluation, random: (0, 0) }
    }
}

impl<'m, T: Real> PlainGraph<'m, T> {
    /// # Errors
    /// [`InputError`] for a graph that is not loaded, or with operators that this engine lacks.
    pub(super) fn new(model: &'m GraphModel) -> Result<Self, InputError> {
        let missing = || InputError::NotLoaded { model: model.to_string() };
        let program = model.program().ok_or_else(missing)?;
        let operators = missing_operators(&program.graph);
        if !operators.is_empty() {
            return Err(InputError::Operators { engine: super::NAME, operators });
        }
        let row_bytes = check_run_bytes(program, 1)?;
        let chunk_rows = usize::try_from(CHUNK_BYTES / row_bytes.max(1)).unwrap_or(CHUNK_ROWS);
        let frozen = program.frozen.iter().map(Frozen::new).collect();
        let chunk_rows = chunk_rows.clamp(1, CHUNK_ROWS);
        let shapes = Mutex::new(BTreeMap::new());
        Ok(Self { model, program, frozen, shapes, chunk_rows })
    }

    /// Rows of a chunk of an evaluation: the same on every machine.
    pub(super) fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// Whether training changes travelling numbers without a gradient.
    pub(super) fn has_travelling_buffers(&self) -> bool {
        self.program.has_travelling_buffers()
    }

    /// The ranges of the parameters that are buffers.
    pub(super) fn buffers(&self) -> Vec<Range<usize>> {
        let ranges = self.program.places.iter().filter_map(|place| match place {
            Place::Travels { range, is_buffer: true, .. } => Some(range.clone()),
            _ => None,
        });
        ranges.collect()
    }

    /// The first output for some rows.
    pub(super) fn outputs(&self, params: &[T], of: RunOf<'_>) -> Result<Vec<T>, BackendError> {
        let shapes = self.shapes(of.rows.len())?;
        let (run, output, _) = self.forward(&shapes, params, of, false)?;
        let numbers = match &output.elements {
            tensor::Elements::Real(var) => run.tape.numbers(*var),
            tensor::Elements::Whole(_) => Arc::new(Vec::new()),
        };
        Ok(numbers.to_vec())
    }

    /// The losses of rows; of the bounded loss the largest for a row of which an operator refuses a
    /// value.
    pub(super) fn losses(&self, params: &[T], of: RunOf<'_>) -> Result<Vec<f64>, BackendError> {
        Ok(self.evaluate(params, of, false)?.losses)
    }

    /// The losses of rows, and the gradient of their sum. In an evaluation an element that is not a
    /// number becomes 0, and a row of which an operator refuses a value has no gradient.
    pub(super) fn gradient(
        &self,
        params: &[T],
        of: RunOf<'_>,
    ) -> Result<Evaluated<T>, BackendError> {
        self.evaluate(params, of, true)
    }

    fn evaluate(
        &self,
        params: &[T],
        of: RunOf<'_>,
        with_gradient: bool,
    ) -> Result<Evaluated<T>, BackendError> {
        let shapes = self.shapes(of.rows.len())?;
        match self.run(&shapes, params, of, with_gradient) {
            Err(RunFailure::Value(_)) if of.mode == RunMode::Evaluation => {}
            found => return Ok(found?),
        }
        let mut all = Evaluated {
            losses: Vec::with_capacity(of.rows.len()),
            gradient: vec![T::ZERO; if with_gradient { params.len() } else { 0 }],
            buffers: Vec::new(),
        };
        if of.rows.len() == 1 {
            let declaration = self.model.declaration();
            all.losses.push(declaration.loss.largest(declaration.outputs));
            return Ok(all);
        }
        for row in of.rows {
            let rows = std::slice::from_ref(row);
            let own = self.evaluate(params, RunOf { rows, ..of }, with_gradient)?;
            all.losses.extend(own.losses);
            all.gradient.iter_mut().zip(own.gradient).for_each(|(sum, part)| *sum += part);
        }
        Ok(all)
    }

    /// The shapes of a run of this many rows.
    fn shapes(&self, rows: usize) -> Result<Arc<Vec<Shaped>>, BackendError> {
        let mut known = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shapes) = known.get(&rows) {
            return Ok(Arc::clone(shapes));
        }
        let bytes = ROW_BYTES_MAX.saturating_mul(rows as u64);
        let shapes = value_shapes(&self.program.graph, &[rows as u64], bytes);
        let shapes = Arc::new(shapes.map_err(RunFailure::from)?);
        known.insert(rows, Arc::clone(&shapes));
        Ok(shapes)
    }

    fn run(
        &self,
        shapes: &[Shaped],
        params: &[T],
        of: RunOf<'_>,
        with_gradient: bool,
    ) -> Result<Evaluated<T>, RunFailure> {
        let form = match of.mode {
            RunMode::Training => RowLoss::CrossEntropy,
            RunMode::Evaluation => RowLoss::Bounded,
        };
        let (mut run, output, leaves) = self.forward(shapes, params, of, with_gradient)?;
        let loss = self.model.declaration().loss;
        let losses = row_losses(&mut run, loss, form, &output, &self.targets(of))?;
        let numbers = run.tape.numbers(losses);
        let mut evaluated = Evaluated {
            losses: numbers.iter().map(|loss| loss.to_f64()).collect(),
            gradient: Vec::new(),
            buffers: self.changed_buffers(&run),
        };
        if with_gradient {
            let wanted: Vec<Var> = leaves.iter().map(|(var, _)| *var).collect();
            let found = run.tape.gradients(losses, vec![T::ONE; numbers.len()], &wanted);
            evaluated.gradient = vec![T::ZERO; params.len()];
            for ((_, range), gradient) in leaves.into_iter().zip(found) {
                let Some(gradient) = gradient else { continue };
                let own = evaluated.gradient[range].iter_mut().zip(gradient);
                own.for_each(|(own, slope)| *own = finite(slope, of.mode));
            }
        }
        Ok(evaluated)
    }

    /// Runs the graph. Returns the first output, and the travelling tensors with their ranges.
    #[expect(clippy::type_complexity, reason = "the parts of one run")]
    fn forward<'s>(
        &self,
        shapes: &'s [Shaped],
        params: &[T],
        of: RunOf<'_>,
        with_gradient: bool,
    ) -> Result<(Run<'s, T>, Tensor, Vec<(Var, Range<usize>)>), RunFailure> {
        let (seed, part) = of.random;
        let mut run = Run::new(shapes, of.mode, rng(seed, Purpose::Dropout, part));
        run.has_frozen_statistics = self.program.has_frozen_statistics;
        let mut leaves = Vec::new();
        for (at, place) in self.program.places.iter().enumerate() {
            let tensor = match place {
                Place::Travels { range, sizes, is_buffer } => {
                    // A training has no derivatives by statistics.
                    let is_active = with_gradient && !(*is_buffer && of.mode == RunMode::Training);
                    let var = run.tape.leaf(params[range.clone()].to_vec(), is_active);
                    leaves.push((var, range.clone()));
                    Tensor::real(sizes.iter().map(|&size| size as usize).collect(), var)
                }
                Place::Frozen(at) => match &self.frozen[*at] {
                    Frozen::Real(sizes, numbers) => {
                        Tensor::real(sizes.clone(), run.tape.shared(Arc::clone(numbers), false))
                    }
                    Frozen::Whole(tensor) => tensor.clone(),
                },
                Place::Row { range, sizes } => {
                    let data_type = self.program.graph.inputs[at].tensor.data_type;
                    row_tensor(&mut run, of, range, sizes, data_type)
                }
            };
            run.set(ValueId(at as u32), tensor);
        }
        let output = run.finish(&self.program.graph)?;
        Ok((run, output, leaves))
    }

    fn targets(&self, of: RunOf<'_>) -> Targets {
        let declaration = self.model.declaration();
        let behind = declaration.inputs..declaration.inputs + declaration.targets;
        let tokens = self.program.first_row_input();
        let part = |range: &Range<usize>| {
            let rows = of.rows.iter().flat_map(|&row| &of.data.row(row)[range.clone()]);
            rows.copied().collect()
        };
        Targets {
            labels: of.rows.iter().map(|&row| of.data.labels()[row].into()).collect(),
            numbers: part(&behind),
            tokens: part(&tokens),
        }
    }

    fn changed_buffers(&self, run: &Run<'_, T>) -> Vec<(Range<usize>, Vec<T>)> {
        let changed = run.changed.iter().filter_map(|(ValueId(id), numbers)| {
            match self.program.places.get(*id as usize) {
                Some(Place::Travels { range, is_buffer: true, .. }) => {
                    Some((range.clone(), numbers.clone()))
                }
                _ => None,
            }
        });
        changed.collect()
    }
}

/// The slope; in an evaluation 0 instead of one that is not a finite number.
fn finite<T: Real>(slope: T, mode: RunMode) -> T {
    match mode == RunMode::Evaluation && !slope.to_f64().is_finite() {
        true => T::ZERO,
        false => slope,
    }
}

/// The numbers of rows that an input takes.
fn row_tensor<T: Real>(
    run: &mut Run<'_, T>,
    of: RunOf<'_>,
    range: &Range<usize>,
    sizes: &[i64],
    data_type: DataType,
) -> Tensor {
    let own = sizes.iter().map(|&size| size as usize);
    let sizes: Vec<usize> = std::iter::once(of.rows.len()).chain(own).collect();
    let numbers = of.rows.iter().flat_map(|&row| &of.data.row(row)[range.clone()]);
    if data_type.is_float() {
        let numbers = numbers.map(|&x| T::from_f64(x.into())).collect();
        return Tensor::real(sizes, run.tape.leaf(numbers, false));
    }
    let whole = |&x: &f32| match data_type {
        DataType::Bool => i64::from(x != 0.0),
        _ => x as i64,
    };
    Tensor::whole(sizes, numbers.map(whole).collect())
}

impl<T: Real> Frozen<T> {
    fn new(tensor: &WeightTensor) -> Self {
        let sizes = tensor.sizes.iter().map(|&size| size as usize).collect();
        match tensor.real_numbers() {
            Some(numbers) => {
                Self::Real(sizes, Arc::new(numbers.into_iter().map(T::from_f64).collect()))
            }
            None => Self::Whole(Tensor::whole(sizes, tensor.whole_numbers())),
        }
    }
}
