//! The engine's operations on graphs.

use std::ops::Range;

use super::graph::{Evaluated, PlainGraph, RunOf};
use super::steps::{Segment, Stepping, TrainingBatch, take_steps};
use super::{NAME, Reference, trained};
use crate::augmentation::TrainingRows;
use crate::data::Dataset;
use crate::descent::Descent;
use crate::engine::{
    BackendError, EvalError, InputError, ParameterSegment, RowGradient, SegmentPoint, TrainError,
    TrainedModel, TrainingProgress, derivatives_by_gradients, mean, predicts_label,
};
use crate::graph::{GraphLoss, GraphModel, RunMode};
use crate::parallel::parallel_map;
use crate::training::Training;

/// A training of a graph.
pub(super) struct GraphTraining<'a> {
    pub(super) model: &'a GraphModel,
    pub(super) start: &'a [f32],
    pub(super) data: &'a Dataset,
    pub(super) how: &'a Training,
    pub(super) seed: u64,
}

impl GraphTraining<'_> {
    pub(super) fn train(&self, progress: TrainingProgress<'_>) -> Result<TrainedModel, TrainError> {
        let Self { data, how, seed, .. } = *self;
        let mut stepping = GraphStepping::new(self)?;
        let mean_loss =
            take_steps(&TrainingRows::new(data, how, seed), how, None, progress, &mut stepping)?;
        trained(stepping.params, how.steps(data.rows()), mean_loss)
    }

    /// Trains a segment. The caller has checked it.
    pub(super) fn train_segment(
        &self,
        segment: Segment<'_>,
        progress: TrainingProgress<'_>,
    ) -> Result<(), TrainError> {
        let Self { data, how, seed, .. } = *self;
        let mut stepping = GraphStepping::new(self)?;
        let carried = segment.from.tensors.get(1..).unwrap_or_default();
        stepping.params = segment.from.params().to_vec();
        stepping.descent = stepping.descent.resume(segment.from.step(), carried);
        let seen = TrainingRows::new(data, how, seed);
        take_steps(&seen, how, Some(segment), progress, &mut stepping).map(drop)
    }
}

/// A training of a graph, between two steps.
struct GraphStepping<'a> {
    graph: PlainGraph<'a, f32>,
    descent: Descent<'a>,
    params: Vec<f32>,
    data: &'a Dataset,
    seen: TrainingRows<'a>,
    seed: u64,
}

impl<'a> GraphStepping<'a> {
    fn new(training: &GraphTraining<'a>) -> Result<Self, TrainError> {
        let GraphTraining { model, start, data, how, seed } = *training;
        let graph = PlainGraph::<f32>::new(model)?;
        check(model, data.rows().min(how.batch as usize))?;
        let descent = Descent::new(start, how, how.steps(data.rows()));
        let seen = TrainingRows::new(data, how, seed);
        Ok(Self { graph, descent, params: start.to_vec(), data, seen, seed })
    }
}

impl Stepping for GraphStepping<'_> {
    fn take(&mut self, batch: TrainingBatch<'_>) -> Result<Vec<f64>, TrainError> {
        let TrainingBatch { step, epoch, rows } = batch;
        // A training has fewer steps than a stream has parts.
        let random = (self.seed, u32::try_from(step).unwrap_or(u32::MAX));
        let (changed, all) =
            (augmented(&self.seen, rows, epoch)?, (0..rows.len()).collect::<Vec<_>>());
        let (data, rows) = match &changed {
            Some(changed) => (changed, all.as_slice()),
            None => (self.data, rows),
        };
        let of = RunOf { data, rows, mode: RunMode::Training, random };
        let mut found = self.graph.gradient(&self.params, of)?;
        let share = 1.0 / rows.len() as f32;
        found.gradient.iter_mut().for_each(|slope| *slope *= share);
        descent_step(&self.graph, &mut self.descent, &mut self.params, &mut found);
        Ok(found.losses)
    }

    fn tensors(&self) -> Vec<Vec<f32>> {
        std::iter::once(self.params.clone()).chain(self.descent.carried()).collect()
    }
}

/// The rows of a batch with their changes; `None` without changes.
fn augmented(
    seen: &TrainingRows<'_>,
    rows: &[usize],
    epoch: u32,
) -> Result<Option<Dataset>, InputError> {
    if seen.augmentation.is_none() {
        return Ok(None);
    }
    let mut features = Vec::new();
    seen.gather(rows, epoch, &mut features);
    let labels = rows.iter().map(|&row| seen.data.labels()[row]).collect();
    let batch = Dataset::new(features, labels, seen.data.width(), seen.data.classes());
    batch.map(Some).map_err(|_| InputError::NoRows)
}

/// A step of the parameters. Buffers have the numbers of the run: decay and proximal term leave them.
fn descent_step(
    graph: &PlainGraph<'_, f32>,
    descent: &mut Descent<'_>,
    params: &mut [f32],
    found: &mut Evaluated<f32>,
) {
    let buffers = graph.buffers();
    let before: Vec<Vec<f32>> =
        buffers.iter().map(|range| params[range.clone()].to_vec()).collect();
    descent.step(params, &mut found.gradient);
    for (range, before) in buffers.iter().zip(&before) {
        params[range.clone()].copy_from_slice(before);
    }
    for (range, numbers) in &found.buffers {
        params[range.clone()].copy_from_slice(numbers);
    }
}

/// Calls `look` with the gradient of each row alone.
pub(super) fn row_gradients(
    model: &GraphModel,
    params: &[f32],
    data: &Dataset,
    rows: &[usize],
    look: &mut dyn FnMut(RowGradient<'_>),
) -> Result<(), TrainError> {
    let graph = PlainGraph::<f32>::new(model)?;
    if graph.has_travelling_buffers() {
        return Err(InputError::Statistics { model: model.to_string() }.into());
    }
    for row in rows {
        let rows = std::slice::from_ref(row);
        let of = RunOf { data, rows, mode: RunMode::Training, random: (0, 0) };
        let found = graph.gradient(params, of)?;
        look(RowGradient { loss: mean(&found.losses), gradient: &found.gradient });
    }
    Ok(())
}

/// An evaluation of a graph, in `f64`.
pub(super) struct GraphEvaluation<'a> {
    threads: usize,
    model: &'a GraphModel,
    data: &'a Dataset,
    graph: PlainGraph<'a, f64>,
}

impl<'a> GraphEvaluation<'a> {
    pub(super) fn new(
        engine: &Reference,
        model: &'a GraphModel,
        data: &'a Dataset,
    ) -> Result<Self, EvalError> {
        Ok(Self { threads: engine.threads, model, data, graph: PlainGraph::new(model)? })
    }

    /// The results of a function of each chunk of rows, in order.
    fn each_chunk<R: Send>(
        &self,
        rows: Range<usize>,
        function: impl Fn(&PlainGraph<'_, f64>, RunOf<'_>) -> Result<R, BackendError> + Sync,
    ) -> Result<Vec<R>, EvalError> {
        let all: Vec<usize> = rows.collect();
        let chunks: Vec<&[usize]> = all.chunks(self.graph.chunk_rows()).collect();
        let results = parallel_map(self.threads, chunks, |rows| {
            function(&self.graph, RunOf::evaluation(self.data, rows))
        });
        Ok(results.into_iter().collect::<Result<_, _>>()?)
    }

    pub(super) fn losses(&self, params: &[f64], rows: Range<usize>) -> Result<Vec<f64>, EvalError> {
        let losses = self.each_chunk(rows, |graph, of| graph.losses(params, of))?;
        Ok(losses.into_iter().flatten().collect())
    }

    pub(super) fn outputs(&self, params: &[f64]) -> Result<Vec<f64>, EvalError> {
        let rows = 0..self.data.rows();
        let outputs = self.each_chunk(rows, |graph, of| graph.outputs(params, of))?;
        Ok(outputs.into_iter().flatten().collect())
    }

    /// The losses of rows, and the gradient of their sum.
    pub(super) fn gradient(
        &self,
        params: &[f64],
        rows: Range<usize>,
    ) -> Result<(Vec<f64>, Vec<f64>), EvalError> {
        let (mut losses, mut sum) = (Vec::with_capacity(rows.len()), vec![0.0; params.len()]);
        for found in self.each_chunk(rows, |graph, of| graph.gradient(params, of))? {
            losses.extend(found.losses);
            sum.iter_mut().zip(found.gradient).for_each(|(sum, part)| *sum += part);
        }
        Ok((losses, sum))
    }

    /// By the gradient of each row: `[direction][row]`.
    pub(super) fn directional_derivatives(
        &self,
        params: &[f64],
        directions: &[&[f32]],
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        derivatives_by_gradients(self.data.rows(), directions, |row| {
            Ok(self.gradient(params, row..row + 1)?.1)
        })
    }

    /// Rows whose prediction is right: the class of the largest logit, or all of a row's truth values.
    /// Other losses have no such rows.
    pub(super) fn correct_predictions(&self, params: &[f64]) -> Result<usize, EvalError> {
        let declaration = self.model.declaration();
        if !matches!(declaration.loss, GraphLoss::CrossEntropy { .. } | GraphLoss::Binary) {
            return Ok(0);
        }
        let outputs = self.outputs(params)?;
        let each = outputs.len() / self.data.rows().max(1);
        let rows = outputs.chunks_exact(each.max(1)).enumerate();
        let is_right = |(row, output): &(usize, &[f64])| match declaration.loss {
            GraphLoss::Binary => {
                let wanted = &self.data.row(*row)[declaration.inputs..];
                output.iter().zip(wanted).all(|(found, wanted)| (*found > 0.0) == (*wanted > 0.5))
            }
            _ => predicts_label(output, self.data.labels()[*row]),
        };
        Ok(rows.filter(is_right).count())
    }

    pub(super) fn on_segment(
        &self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        for (at, place) in places.iter().enumerate() {
            // One point at a time: its parameters are the only ones in memory.
            let params = way.at(place.t);
            if let Some(index) = params.iter().position(|value| !value.is_finite()) {
                return Err(InputError::NotFinite { what: "the parameters".into(), index }.into());
            }
            for (group, rows) in groups.iter().enumerate() {
                match place.gradient {
                    true => look(group, at, &self.gradient(&params, rows.clone())?.1),
                    false => look(group, at, &self.losses(&params, rows.clone())?),
                }
            }
        }
        Ok(())
    }
}

/// Refuses a graph that this engine cannot run on `rows` rows at a time.
pub(super) fn check(model: &GraphModel, rows: usize) -> Result<(), InputError> {
    let program =
        model.program().ok_or_else(|| InputError::NotLoaded { model: model.to_string() })?;
    match super::graph::missing_operators(&program.graph) {
        operators if operators.is_empty() => super::graph::check_run_bytes(program, rows).map(drop),
        operators => Err(InputError::Operators { engine: NAME, operators }),
    }
}
