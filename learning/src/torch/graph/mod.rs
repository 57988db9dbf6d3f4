//! Training and evaluation of graphs, with gradients from autograd.
//!
//! Training runs as the model was exported, in `f32`. An evaluation runs in `f64` without dropout,
//! normalises by running statistics, and has derivatives by these as well.

mod loss;
mod micro_batches;
mod net;
mod parameters;
mod pipeline;
mod quote;
#[cfg(feature = "distributed")]
mod serving;
mod step_memory;
mod training;
mod virtual_training;
mod virtual_workers;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, TchError, Tensor};

use super::batches::Rows;
use super::{Torch, to_vec};
use crate::data::Dataset;
use crate::engine::{
    BackendError, EvalError, ParameterSegment, RowGradient, SegmentPoint, TrainError,
    derivatives_by_gradients, mean,
};
use crate::graph::{GraphLoss, GraphModel, RunMode};
use net::{GraphFailure, GraphNet, program};
#[cfg(feature = "distributed")]
pub(super) use serving::ServedRows;
pub(super) use training::GraphTraining;

/// libtorch has one generator of random numbers for the process: a training that may draw from it
/// holds this.
static GENERATOR: Mutex<()> = Mutex::new(());

pub(crate) fn generator() -> MutexGuard<'static, ()> {
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parameters of a piece.
const PIECE: usize = 1 << 20;

/// A graph on the engine that evaluates it.
struct Evaluation<'m> {
    engine: Torch,
    model: &'m GraphModel,
    net: GraphNet<'m>,
}

/// A graph with its parameters in an evaluation.
struct Point<'a> {
    evaluation: &'a Evaluation<'a>,
    views: Vec<Tensor>,
    parameters: usize,
}

impl Torch {
    /// An evaluation of a graph: on the CPU, if an operator could refuse a value. A GPU does not return
    /// such an error: it stops serving the process.
    fn graph_evaluation<'m>(&self, model: &'m GraphModel) -> Result<Evaluation<'m>, EvalError> {
        let program = program(model)?;
        let device = if program.refuses_values { Device::Cpu } else { self.device };
        let engine = self.alone_on(device);
        let net = GraphNet::new(model, program, device, Kind::Double)?;
        Ok(Evaluation { engine, model, net })
    }

    fn graph_rows(&self, data: &Dataset, rows: Range<usize>) -> Result<Rows, TchError> {
        let (numbers, labels) = self.rows(data, rows, Kind::Float)?;
        Ok(Rows { numbers, labels: labels.f_view([-1])? })
    }

    /// The gradient of each row alone. Buffers that training would change from other rows have none:
    /// such a model is refused.
    pub(super) fn graph_row_gradients(
        &self,
        model: &GraphModel,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        let program = program(model)?;
        if program.has_travelling_buffers() {
            return Err(crate::engine::InputError::Statistics { model: model.to_string() }.into());
        }
        let _generator = generator();
        let net = GraphNet::new(model, program, self.device, Kind::Float)?;
        let flat = self.to_tensor(params)?;
        let gradient = flat.f_zeros_like()?;
        let (views, slots) = (net.views(&flat)?, net.views(&gradient)?);
        for &row in rows {
            let rows = self.graph_rows(data, row..row + 1)?;
            let losses = net
                .gradient(&views, &rows, RunMode::Training, 1.0, &slots)
                .map_err(BackendError::from)?;
            let loss = f64::try_from(losses.f_sum(Kind::Double)?)?;
            let gradient = Vec::<f32>::try_from(gradient.f_to_device(Device::Cpu)?)?;
            look(RowGradient { loss, gradient: &gradient });
        }
        Ok(())
    }

    pub(super) fn graph_row_losses(
        &self,
        model: &GraphModel,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        Ok(evaluation.point(params)?.losses_of(data, 0..data.rows())?)
    }

    /// The first output of each row.
    pub(super) fn graph_row_outputs(
        &self,
        model: &GraphModel,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        let point = evaluation.point(params)?;
        let mut outputs = Vec::new();
        for rows in evaluation.chunks(data, 0..data.rows()) {
            let found =
                tch::no_grad(|| evaluation.net.forward(&point.views, &rows?, RunMode::Evaluation));
            let output = found.map_err(BackendError::from)?;
            outputs.extend(to_vec(&output.f_to_kind(Kind::Double)?.f_reshape([-1])?)?);
        }
        Ok(outputs)
    }

    /// By the gradient of each row: `[direction][row]`.
    pub(super) fn graph_directional_derivatives(
        &self,
        model: &GraphModel,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        let point = evaluation.point(params)?;
        derivatives_by_gradients(data.rows(), directions, |row| {
            let rows = evaluation.engine.graph_rows(data, row..row + 1)?;
            Ok(point.gradient(&rows)?.1)
        })
    }

    /// Rows whose prediction is right: the class of the largest logit, or all of a row's truth values.
    /// Other losses have no such rows.
    pub(super) fn graph_correct_predictions(
        &self,
        model: &GraphModel,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        let point = evaluation.point(params)?;
        if !matches!(model.declaration().loss, GraphLoss::CrossEntropy { .. } | GraphLoss::Binary) {
            return Ok(0);
        }
        let mut correct = 0;
        for rows in evaluation.chunks(data, 0..data.rows()) {
            correct += point.correct(&rows?)?;
        }
        Ok(correct)
    }

    /// Mean loss of all rows and its gradient.
    pub(super) fn graph_mean_gradient(
        &self,
        model: &GraphModel,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        let point = evaluation.point(params)?;
        let mut losses = Vec::with_capacity(data.rows());
        let mut sum = vec![0.0; params.len()];
        for rows in evaluation.chunks(data, 0..data.rows()) {
            let (own, part) = point.gradient(&rows?)?;
            losses.extend(own);
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let rows = data.rows() as f64;
        sum.iter_mut().for_each(|value| *value /= rows);
        Ok((mean(&losses), sum))
    }

    pub(super) fn evaluate_graph_segment(
        &self,
        model: &GraphModel,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        let evaluation = self.graph_evaluation(model)?;
        for (at, place) in places.iter().enumerate() {
            // One point at a time: its parameters are the only ones in memory.
            let point = evaluation.segment_point(way, place.t)?;
            if place.gradient {
                for (group, rows) in groups.iter().enumerate() {
                    look(group, at, &point.gradient_of(data, rows.clone())?);
                }
                continue;
            }
            // A pass over few rows takes longer for each: neighbouring groups share passes.
            let mut group = 0;
            while let Some(first) = groups.get(group) {
                let together = &groups[group..group + neighbours(&groups[group..])];
                let end = together.last().map_or(first.end, |last| last.end);
                let losses = point.losses_of(data, first.start..end)?;
                for rows in together {
                    let own = rows.start - first.start..rows.end - first.start;
                    look(group, at, &losses[own]);
                    group += 1;
                }
            }
        }
        Ok(())
    }
}

impl<'m> Evaluation<'m> {
    /// The graph with these parameters.
    fn point(&self, params: &[f64]) -> Result<Point<'_>, TchError> {
        let views = self.net.views(&self.engine.to_tensor(params)?)?;
        Ok(Point { evaluation: self, views, parameters: params.len() })
    }

    /// The graph with the parameters at a place of a segment, which are computed in pieces, so that they
    /// are in memory once.
    fn segment_point(&self, way: ParameterSegment<'_>, t: f64) -> Result<Point<'_>, TchError> {
        let parameters = way.base.len();
        let flat = Tensor::f_zeros([parameters as i64], (Kind::Double, self.engine.device))?;
        for from in (0..parameters).step_by(PIECE) {
            let to = parameters.min(from + PIECE);
            let (base, total) = (&way.base[from..to], &way.total[from..to]);
            let piece = self.engine.to_tensor(&ParameterSegment { base, total, ..way }.at(t))?;
            flat.f_narrow(0, from as i64, (to - from) as i64)?.f_copy_(&piece)?;
        }
        Ok(Point { evaluation: self, views: self.net.views(&flat)?, parameters })
    }

    /// The rows of a range in chunks.
    fn chunks<'a>(
        &'a self,
        data: &'a Dataset,
        rows: Range<usize>,
    ) -> impl Iterator<Item = Result<Rows, TchError>> + use<'a, 'm> {
        let (end, each) = (rows.end, self.net.program.chunk_rows);
        let chunks = rows.step_by(each).map(move |start| start..end.min(start + each));
        chunks.map(|rows| self.engine.graph_rows(data, rows))
    }
}

/// The number of groups at the front that follow each other without a gap.
fn neighbours(groups: &[Range<usize>]) -> usize {
    let gaps = groups.windows(2).position(|pair| pair[0].end != pair[1].start);
    gaps.map_or(groups.len(), |gap| gap + 1)
}

impl Point<'_> {
    /// The losses of a range of rows, in chunks.
    fn losses_of(&self, data: &Dataset, rows: Range<usize>) -> Result<Vec<f64>, BackendError> {
        let mut losses = Vec::with_capacity(rows.len());
        for rows in self.evaluation.chunks(data, rows) {
            losses.extend(self.losses(&rows?)?);
        }
        Ok(losses)
    }

    /// The gradient of the summed losses of a range of rows, in chunks.
    fn gradient_of(&self, data: &Dataset, rows: Range<usize>) -> Result<Vec<f64>, BackendError> {
        let mut sum = Vec::new();
        for rows in self.evaluation.chunks(data, rows) {
            let (_, part) = self.gradient(&rows?)?;
            match sum.is_empty() {
                true => sum = part,
                false => sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part),
            }
        }
        Ok(sum)
    }

    /// The losses of rows, and the gradient of their sum. An element that is not a number becomes 0, and
    /// a row of which an operator refuses a value has the largest loss and no gradient.
    fn gradient(&self, rows: &Rows) -> Result<(Vec<f64>, Vec<f64>), BackendError> {
        let Evaluation { engine, net, .. } = self.evaluation;
        let mut numbers = Vec::new();
        let found = match engine.device {
            Device::Cpu => {
                numbers.resize(self.parameters, 0.0);
                net.gradient_of_evaluation(&self.views, rows, &mut numbers)
            }
            _ => self.device_gradient(rows, &mut numbers),
        };
        let Some(losses) = accepted(found)? else {
            let (mut losses, mut sum) = (Vec::new(), vec![0.0; self.parameters]);
            for row in rows.each() {
                let (own, part) = self.gradient(&row?)?;
                losses.extend(own);
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
            if rows.len() == 1 {
                losses = vec![net.largest_loss()];
            }
            return Ok((losses, sum));
        };
        Ok((to_vec(&losses)?, numbers))
    }

    /// The same on a device with a memory of its own, which is left by one copy.
    fn device_gradient(&self, rows: &Rows, numbers: &mut Vec<f64>) -> Result<Tensor, GraphFailure> {
        let Evaluation { engine, net, .. } = self.evaluation;
        let part = Tensor::f_zeros(self.parameters as i64, (Kind::Double, engine.device))?;
        let slots = net.views(&part)?;
        let losses = net.gradient(&self.views, rows, RunMode::Evaluation, 1.0, &slots)?;
        *numbers = to_vec(&part.f_nan_to_num(0.0, 0.0, 0.0)?)?;
        Ok(losses)
    }

    /// The losses of rows; the largest for a row of which an operator refuses a value.
    fn losses(&self, rows: &Rows) -> Result<Vec<f64>, BackendError> {
        let net = &self.evaluation.net;
        let found = tch::no_grad(|| net.losses(&self.views, rows, RunMode::Evaluation));
        if let Some(losses) = accepted(found)? {
            return Ok(to_vec(&losses)?);
        }
        if rows.len() == 1 {
            return Ok(vec![net.largest_loss()]);
        }
        let mut losses = Vec::with_capacity(rows.len());
        for row in rows.each() {
            losses.extend(self.losses(&row?)?);
        }
        Ok(losses)
    }

    /// The number of right predictions; a row of which an operator refuses a value has none.
    fn correct(&self, rows: &Rows) -> Result<usize, BackendError> {
        let Evaluation { net, model, .. } = self.evaluation;
        let found = tch::no_grad(|| net.forward(&self.views, rows, RunMode::Evaluation));
        if let Some(output) = accepted(found)? {
            return Ok(count_correct(model, &output, rows)?);
        }
        let mut correct = 0;
        for row in rows.each() {
            correct += self.correct(&row?)?;
        }
        Ok(correct)
    }
}

/// The result of a run; `None` if an operator refused a value.
fn accepted(found: Result<Tensor, GraphFailure>) -> Result<Option<Tensor>, BackendError> {
    match found {
        Ok(tensor) => Ok(Some(tensor)),
        Err(GraphFailure::Value(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// Rows whose largest output is the label, or whose truth values are all right.
fn count_correct(model: &GraphModel, output: &Tensor, rows: &Rows) -> Result<usize, TchError> {
    let declaration = model.declaration();
    let right = match declaration.loss {
        GraphLoss::Binary => {
            let (from, size) = (declaration.inputs as i64, declaration.targets as i64);
            let wanted = rows.numbers.f_narrow(1, from, size)?.f_gt(0.5)?;
            let found = output.f_view_as(&wanted)?.f_gt(0.0)?;
            found.f_eq_tensor(&wanted)?.f_all_dim(1, false)?
        }
        _ => output.f_argmax(-1, false)?.f_eq_tensor(&rows.labels)?,
    };
    Ok(i64::try_from(right.f_sum(Kind::Int64)?)? as usize)
}

#[cfg(test)]
mod archive_tests;
#[cfg(test)]
mod plain_tests;
#[cfg(test)]
mod segment_tests;
#[cfg(test)]
pub(crate) mod tests;
