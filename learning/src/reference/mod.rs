//! The reference engine in pure Rust: softmax regression, MLPs, and graphs of the operators that it has,
//! on any machine, on one thread by default.
//!
//! It is the reference for the libtorch engine, and the engine of a build without libtorch.

mod graph;
mod graph_engine;
mod matrix;
mod net;
mod real;
mod steps;
mod tiles;

use std::ops::{ControlFlow, Range};

use crate::augmentation::TrainingRows;
use crate::checkpoint::TrainingState;
use crate::data::Dataset;
use crate::descent::Descent;
use crate::engine::{
    Engine, EvalError, Evaluator, InputError, ParameterSegment, RowGradient, SegmentPoint,
    TrainError, TrainedModel, TrainedSegment, Trainer, TrainingSegment, TrainingStep,
    check_evaluation, check_execution, check_groups, check_row_gradients, check_segment,
    check_training, chunks, chunks_in, mean,
};
use crate::loss::RowLoss;
use crate::model::ModelSpec;
use crate::parallel::parallel_map;
use crate::params::first_not_finite;
use crate::segment_record::SegmentRecord;
use crate::training::{Optimizer, Training};
use graph_engine::{GraphEvaluation, GraphTraining};
use net::{ActivationBatch, DirectionState, Layout};
use steps::{Segment, Stepping, TrainingBatch, take_steps};

const NAME: &str = "reference";

/// Adds the product of two square matrices to a third one, row by row.
pub(crate) fn square_product(side: usize, a: &[f32], b: &[f32], sum: &mut [f32]) {
    let size = matrix::ProductSize { rows: side, columns: side, depth: side };
    let onto = matrix::OutputMode::Accumulate;
    matrix::product(size, matrix::Strided::rows(a, side), b, onto, sum);
}

/// Number of multiplications per thread below which starting a thread for directional derivatives
/// is not worthwhile.
const PRODUCTS_PER_THREAD: usize = 1 << 19;

/// The pure Rust engine. It has no state between calls.
#[derive(Debug, Default)]
pub struct Reference {
    threads: usize,
}

impl Reference {
    /// An engine on one thread.
    pub fn new() -> Self {
        Self::with_threads(1)
    }

    /// An engine that computes directional derivatives on up to `threads` threads. Their number
    /// changes no bit.
    pub fn with_threads(threads: usize) -> Self {
        Self { threads }
    }
}

impl Engine for Reference {
    fn name(&self) -> &'static str {
        NAME
    }
}

fn layout(model: &ModelSpec) -> Result<Layout, InputError> {
    match model {
        ModelSpec::Softmax { .. } | ModelSpec::Mlp { .. } => Ok(Layout::new(&model.dense())),
        ModelSpec::Cnn { .. } | ModelSpec::Graph(_) => {
            Err(InputError::Unsupported { engine: NAME, model: model.to_string() })
        }
    }
}

impl Reference {
    /// Checks that this engine can run a model on `rows` rows at a time: a CNN has another engine, and so
    /// have graphs with operators that it lacks, and large ones.
    ///
    /// # Errors
    /// [`InputError::Unsupported`], [`InputError::Operators`], [`InputError::TooLarge`], and
    /// [`InputError::NotLoaded`] for a graph without its program.
    pub fn check_model(model: &ModelSpec, rows: usize) -> Result<(), InputError> {
        match model {
            ModelSpec::Graph(model) => graph_engine::check(model, rows),
            _ => layout(model).map(drop),
        }
    }

    /// The evaluation of a graph; `None` for another model.
    fn graph<'a>(
        &self,
        model: &'a ModelSpec,
        data: &'a Dataset,
    ) -> Result<Option<GraphEvaluation<'a>>, EvalError> {
        match model {
            ModelSpec::Graph(model) => GraphEvaluation::new(self, model, data).map(Some),
            _ => Ok(None),
        }
    }

    /// The same after a check of its inputs.
    fn checked_graph<'a>(
        &self,
        model: &'a ModelSpec,
        params: &[f64],
        data: &'a Dataset,
    ) -> Result<Option<GraphEvaluation<'a>>, EvalError> {
        if matches!(model, ModelSpec::Graph(_)) {
            check_evaluation(model, params, &[], data)?;
        }
        self.graph(model, data)
    }

    /// Number of threads for this many directions.
    fn threads_for(&self, directions: usize, rows: usize, model: &ModelSpec) -> usize {
        let products = directions.saturating_mul(rows).saturating_mul(model.parameters());
        self.threads.min(products / PRODUCTS_PER_THREAD).max(1)
    }
}

impl Trainer for Reference {
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
        check_execution(NAME, how)?;
        if let ModelSpec::Graph(model) = model {
            return GraphTraining { model, start, data, how, seed }.train(progress);
        }
        let mut training = DenseTraining::new(model, start, data, (how, seed))?;
        let seen = TrainingRows::new(data, how, seed);
        let mean_loss = take_steps(&seen, how, None, progress, &mut training)?;
        trained(training.descent.params, how.steps(data.rows()), mean_loss)
    }

    /// On the reference engine all models train in segments, on any machine with the same bits.
    fn train_segment(
        &mut self,
        segment: &TrainingSegment<'_>,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedSegment, TrainError> {
        let TrainingSegment { model, start, data, how, seed, from, to, is_traced } = *segment;
        check_training(model, start, data, how)?;
        check_execution(NAME, how)?;
        check_segment(segment)?;
        let mut record = SegmentRecord::new(to, is_traced);
        let own = Segment { from, record: &mut record };
        if let ModelSpec::Graph(model) = model {
            GraphTraining { model, start, data, how, seed }.train_segment(own, progress)?;
        } else {
            let mut training = DenseTraining::new(model, start, data, (how, seed))?;
            training.descent = training.descent.resume(from);
            let seen = TrainingRows::new(data, how, seed);
            take_steps(&seen, how, Some(own), progress, &mut training)?;
        }
        let at = from.step();
        record
            .into_trained()
            .ok_or_else(|| InputError::Steps { from: at, to, steps: how.steps(data.rows()) }.into())
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
        if let ModelSpec::Graph(model) = model {
            return graph_engine::row_gradients(model, params, data, rows, look);
        }
        let layout = layout(model)?;
        // One row at a time: no bit of its gradient depends on another row.
        let mut batch = ActivationBatch::new(&layout, 1, RowLoss::CrossEntropy);
        let mut gradient = vec![0.0; params.len()];
        for &row in rows {
            batch.load(std::iter::once(row), data, |value| value);
            batch.forward(&layout, params);
            gradient.fill(0.0);
            batch.backward(&layout, params, 1.0, &mut gradient);
            look(RowGradient { loss: mean(&batch.losses()), gradient: &gradient });
        }
        Ok(())
    }
}

/// The result of a training of this number of steps.
fn trained(params: Vec<f32>, steps: u64, mean_loss: f64) -> Result<TrainedModel, TrainError> {
    match first_not_finite(&params) {
        Some(_) => Err(TrainError::Diverged { step: steps }),
        None => Ok(TrainedModel { params, steps, mean_loss }),
    }
}

/// A training of a model with dense layers.
struct DenseTraining<'a> {
    layout: Layout,
    batch: ActivationBatch<f32>,
    descent: GradientDescent<'a>,
    data: &'a Dataset,
    seen: TrainingRows<'a>,
    features: Vec<f32>,
}

impl<'a> DenseTraining<'a> {
    fn new(
        model: &ModelSpec,
        start: &'a [f32],
        data: &'a Dataset,
        (how, seed): (&'a Training, u64),
    ) -> Result<Self, TrainError> {
        let layout = layout(model)?;
        let batch = ActivationBatch::new(&layout, how.batch as usize, RowLoss::CrossEntropy);
        let descent = GradientDescent::new(start, how, how.steps(data.rows()));
        let seen = TrainingRows::new(data, how, seed);
        Ok(Self { layout, batch, descent, data, seen, features: Vec::new() })
    }
}

impl Stepping for DenseTraining<'_> {
    fn take(&mut self, batch: TrainingBatch<'_>) -> Result<Vec<f64>, TrainError> {
        let TrainingBatch { epoch, rows, .. } = batch;
        self.seen.gather(rows, epoch, &mut self.features);
        self.batch.load_changed(rows, self.data, self.features.iter().copied());
        self.batch.forward(&self.layout, &self.descent.params);
        self.descent.step(&self.layout, &self.batch, rows.len());
        Ok(self.batch.losses())
    }

    fn tensors(&self) -> Vec<Vec<f32>> {
        self.descent.tensors()
    }
}

/// A descent with the gradient of each batch.
struct GradientDescent<'a> {
    how: &'a Training,
    step: u64,
    steps: u64,
    params: Vec<f32>,
    /// The gradient and the state of the descent, if the hyperparameters need them.
    buffers: Option<(Vec<f32>, Descent<'a>)>,
}

impl<'a> GradientDescent<'a> {
    fn new(start: &'a [f32], how: &'a Training, steps: u64) -> Self {
        let held = how.fedprox.is_some_and(|pull| pull > 0.0) || how.clip_gradient.is_some();
        let has_state = how.optimizer != Optimizer::Sgd || how.momentum != 0.0;
        let plain = !has_state && how.weight_decay == 0.0 && !held;
        let buffers = || (vec![0.0; start.len()], Descent::new(start, how, steps));
        let params = start.to_vec();
        Self { how, step: 0, steps, params, buffers: (!plain).then(buffers) }
    }

    /// The same from a state of the training.
    fn resume(self, from: &TrainingState) -> Self {
        let step = from.step();
        let carried = from.tensors.get(1..).unwrap_or_default();
        let resume =
            |(gradient, descent): (_, Descent<'a>)| (gradient, descent.resume(step, carried));
        let buffers = self.buffers.map(resume);
        Self { step, params: from.params().to_vec(), buffers, ..self }
    }

    fn tensors(&self) -> Vec<Vec<f32>> {
        let carried = self.buffers.as_ref().map(|(_, descent)| descent.carried());
        std::iter::once(self.params.clone()).chain(carried.unwrap_or_default()).collect()
    }

    /// One step of [`Training`], on a batch of `rows` rows after its forward pass. In plain
    /// gradient descent each weight is updated as soon as its own gradient is known, with the same
    /// bits.
    fn step(&mut self, layout: &Layout, batch: &ActivationBatch<f32>, rows: usize) {
        self.step += 1;
        let rate = self.how.learning_rate_at(self.step, self.steps) as f32;
        let scale = 1.0 / rows as f32;
        let Some((gradient, descent)) = &mut self.buffers else {
            batch.descend(layout, &mut self.params, scale, rate);
            return;
        };
        gradient.fill(0.0);
        batch.backward(layout, &self.params, scale, gradient);
        descent.step(&mut self.params, gradient);
    }
}

impl Evaluator for Reference {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        if let Some(graph) = self.checked_graph(model, params, data)? {
            return graph.losses(params, 0..data.rows());
        }
        let mut losses = Vec::with_capacity(data.rows());
        each_chunk(model, params, data, |_, batch| losses.extend(batch.losses()))?;
        Ok(losses)
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let mut at = self.row_directional_derivatives_at(model, &[params], directions, data)?;
        Ok(at.pop().unwrap_or_default())
    }

    fn row_directional_derivatives_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        for (at, params) in params.iter().enumerate() {
            // All models have the same directions, so check them once.
            check_evaluation(model, params, if at == 0 { directions } else { &[] }, data)?;
        }
        if let Some(graph) = self.graph(model, data)? {
            let at = |params: &&[f64]| graph.directional_derivatives(params, directions);
            return params.iter().map(at).collect();
        }
        let layout = layout(model)?;
        let room = data.rows().min(crate::engine::EVAL_CHUNK_ROWS);
        let mut batches: Vec<ActivationBatch<f64>> =
            params.iter().map(|_| ActivationBatch::new(&layout, room, RowLoss::Bounded)).collect();
        let each = directions.len().div_ceil(self.threads_for(directions.len(), room, model));
        let mut slopes =
            vec![vec![Vec::with_capacity(data.rows()); directions.len()]; params.len()];
        for rows in chunks(data.rows()) {
            for (batch, params) in batches.iter_mut().zip(params) {
                batch.load(rows.clone(), data, f64::from);
                batch.forward(&layout, params);
            }
            let pulls: Vec<Vec<f64>> =
                batches.iter().map(|batch| batch.logit_gradient_lines(&layout)).collect();
            let tasks: Vec<&[&[f32]]> = directions.chunks(each.max(1)).collect();
            let found = parallel_map(self.threads, tasks, |directions| {
                directional_derivatives(&layout, params, &batches, &pulls, directions)
            });
            for (at, of_models) in found.into_iter().flatten().enumerate() {
                for (slopes, rows) in slopes.iter_mut().zip(of_models) {
                    slopes[at].extend(rows);
                }
            }
        }
        Ok(slopes)
    }

    fn row_outputs(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        if let Some(graph) = self.checked_graph(model, params, data)? {
            return graph.outputs(params);
        }
        let mut outputs = Vec::with_capacity(data.rows() * model.classes());
        each_chunk(model, params, data, |_, batch| outputs.extend_from_slice(batch.logits()))?;
        Ok(outputs)
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        if let Some(graph) = self.checked_graph(model, params, data)? {
            return graph.correct_predictions(params);
        }
        let mut correct = 0;
        each_chunk(model, params, data, |_, batch| correct += batch.correct_predictions())?;
        Ok(correct)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        if let Some(graph) = self.checked_graph(model, params, data)? {
            let (losses, mut sum) = graph.gradient(params, 0..data.rows())?;
            sum.iter_mut().for_each(|value| *value /= data.rows() as f64);
            return Ok((mean(&losses), sum));
        }
        let mut losses = Vec::with_capacity(data.rows());
        let mut sum = vec![0.0; params.len()];
        each_chunk(model, params, data, |layout, batch| {
            losses.extend(batch.losses());
            batch.backward(layout, params, 1.0, &mut sum);
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
        way.check()?;
        check_groups(data, groups)?;
        if let Some(graph) = self.graph(way.model, data)? {
            return graph.on_segment(way, places, groups, look);
        }
        let layout = layout(way.model)?;
        let mut models = Vec::with_capacity(places.len());
        for place in places {
            let params = way.at(place.t);
            check_evaluation(way.model, &params, &[], data)?;
            models.push(params);
        }
        let room = data.rows().min(crate::engine::EVAL_CHUNK_ROWS);
        let mut batch = ActivationBatch::new(&layout, room, RowLoss::Bounded);
        let mut sum = vec![0.0; way.base.len()];
        for (group, rows) in groups.iter().enumerate() {
            for (at, (place, params)) in places.iter().zip(&models).enumerate() {
                let mut losses = Vec::with_capacity(rows.len());
                sum.fill(0.0);
                for rows in chunks_in(rows.clone()) {
                    batch.load(rows, data, f64::from);
                    batch.forward(&layout, params);
                    match place.gradient {
                        true => batch.backward(&layout, params, 1.0, &mut sum),
                        false => losses.extend(batch.losses()),
                    }
                }
                match place.gradient {
                    true => look(group, at, &sum),
                    false => look(group, at, &losses),
                }
            }
        }
        Ok(())
    }
}

/// The derivatives of each row's loss, by direction and model, after the forward pass of the rows
/// through all models.
fn directional_derivatives(
    layout: &Layout,
    params: &[&[f64]],
    batches: &[ActivationBatch<f64>],
    pulls: &[Vec<f64>],
    directions: &[&[f32]],
) -> Vec<Vec<Vec<f64>>> {
    let Some(any) = batches.first() else { return vec![Vec::new(); directions.len()] };
    let mut along = DirectionState::new();
    let of_direction = |direction: &&[f32]| {
        // Recreated for each chunk of rows: it costs as much as one row, and only one direction
        // is in memory.
        along.set_direction(layout, direction.iter().map(|&value| f64::from(value)), any);
        let of_models = batches.iter().zip(params).zip(pulls);
        of_models
            .map(|((batch, params), pulls)| {
                batch.directional_derivatives(layout, params, pulls, &mut along)
            })
            .collect()
    };
    directions.iter().map(of_direction).collect()
}

/// Runs the forward pass of the rows, a chunk at a time, and calls `look` with each chunk.
fn each_chunk(
    model: &ModelSpec,
    params: &[f64],
    data: &Dataset,
    mut look: impl FnMut(&Layout, &mut ActivationBatch<f64>),
) -> Result<(), EvalError> {
    check_evaluation(model, params, &[], data)?;
    let layout = layout(model)?;
    let room = data.rows().min(crate::engine::EVAL_CHUNK_ROWS);
    let mut batch = ActivationBatch::new(&layout, room, RowLoss::Bounded);
    for rows in chunks(data.rows()) {
        batch.load(rows, data, f64::from);
        batch.forward(&layout, params);
        look(&layout, &mut batch);
    }
    Ok(())
}

#[cfg(test)]
mod segment_tests;
#[cfg(test)]
mod tests;
