//! Training and evaluation of graphs, with gradients from autograd.
//!
//! Training runs as the model was exported, in `f32`. An evaluation runs in `f64` without dropout,
//! normalises by running statistics, and has derivatives by these as well.

mod loss;
mod net;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Kind, TchError, Tensor};

use super::{Torch, to_vec};
use crate::data::Dataset;
use crate::engine::{
    BackendError, EvalError, ParameterSegment, RowGradient, SegmentPoint, TrainError, TrainedModel,
    Training, TrainingProgress, TrainingStep, mean,
};
use crate::graph::{GraphLoss, GraphModel, GraphProgram, RunMode};
use crate::rng::epoch_order;
use net::{GraphFailure, GraphNet, Rows, program};

/// libtorch has one generator of random numbers for the process: a training that may draw from it
/// holds this.
static GENERATOR: Mutex<()> = Mutex::new(());

pub(crate) fn generator() -> MutexGuard<'static, ()> {
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A training of a graph.
pub(super) struct GraphTraining<'a> {
    pub(super) model: &'a GraphModel,
    pub(super) start: &'a [f32],
    pub(super) data: &'a Dataset,
    pub(super) how: &'a Training,
    pub(super) seed: u64,
}

/// A model at one point of an evaluation.
struct Point<'a> {
    net: &'a GraphNet<'a>,
    views: Vec<Tensor>,
}

impl Torch {
    /// The engine that evaluates a graph: on the CPU, if an operator could refuse a value. A GPU does
    /// not return such an error: it stops serving the process.
    fn for_evaluation(&self, program: &GraphProgram) -> Self {
        let device = if program.refuses_values { Device::Cpu } else { self.device };
        Self { device, threads: self.threads }
    }

    fn graph_rows(&self, data: &Dataset, rows: Range<usize>) -> Result<Rows, TchError> {
        let (numbers, labels) = self.rows(data, rows, Kind::Float)?;
        Ok(Rows { numbers, labels: labels.f_view([-1])? })
    }

    pub(super) fn train_graph(
        &self,
        training: &GraphTraining<'_>,
        progress: TrainingProgress<'_>,
    ) -> Result<TrainedModel, TrainError> {
        let GraphTraining { model, start, data, how, seed } = *training;
        let _generator = generator();
        // Dropout and stochastic depth draw from it.
        tch::manual_seed(i64::from_le_bytes(seed.to_le_bytes()));
        let net = GraphNet::new(model, program(model)?, self.device, Kind::Float)?;
        let all = self.graph_rows(data, 0..data.rows())?;
        let mut descent = super::GradientDescent::new(&self.to_tensor(&net.align(start))?, how)?;
        let views = net.aligned_views(&descent.params)?;
        let slots = net.aligned_views(&descent.gradient)?;
        let buffers = net.aligned_buffers();
        let steps = how.steps(data.rows());
        let (mut step, mut mean_loss) = (0, 0.0);
        for epoch in 0..how.epochs {
            let order: Vec<i64> =
                epoch_order(data.rows(), seed, epoch).into_iter().map(|row| row as i64).collect();
            let order = self.to_tensor(&order)?;
            let mut sum = 0.0;
            for from in (0..data.rows()).step_by(how.batch as usize) {
                step += 1;
                let size = (data.rows() - from).min(how.batch as usize);
                let batch = order.f_narrow(0, from as i64, size as i64)?;
                let rows = Rows {
                    numbers: all.numbers.f_index_select(0, &batch)?,
                    labels: all.labels.f_index_select(0, &batch)?,
                };
                let scale = 1.0 / size as f64;
                let losses = net
                    .gradient(&views, &rows, RunMode::Training, scale, &slots)
                    .map_err(BackendError::from)?;
                let loss_sum = f64::try_from(losses.f_sum(Kind::Double)?)?;
                if !loss_sum.is_finite() {
                    return Err(TrainError::Diverged { step });
                }
                sum += loss_sum;
                // The forward pass has set the buffers; decay and proximal term leave them.
                let earlier = copies(&descent.params, &buffers)?;
                descent.step()?;
                restore(&mut descent.params, &buffers, &earlier)?;
                let loss = loss_sum / size as f64;
                if progress(TrainingStep { step, steps, loss }).is_break() {
                    return Err(TrainError::Stopped { step });
                }
            }
            mean_loss = sum / data.rows() as f64;
        }
        let aligned = Vec::<f32>::try_from(descent.params.f_to_device(Device::Cpu)?)?;
        let params = net.unalign(&aligned);
        if params.iter().any(|value| !value.is_finite()) {
            return Err(TrainError::Diverged { step });
        }
        Ok(TrainedModel { params, steps, mean_loss })
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
        let program = program(model)?;
        let own = self.for_evaluation(program);
        let net = GraphNet::new(model, program, own.device, Kind::Double)?;
        let point = Point { views: net.views(&own.to_tensor(params)?)?, net: &net };
        let mut losses = Vec::with_capacity(data.rows());
        for rows in chunks(&net, 0..data.rows()) {
            losses.extend(point.losses(&own.graph_rows(data, rows)?)?);
        }
        Ok(losses)
    }

    /// By the gradient of each row: `[direction][row]`.
    pub(super) fn graph_directional_derivatives(
        &self,
        model: &GraphModel,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let program = program(model)?;
        let own = self.for_evaluation(program);
        let net = GraphNet::new(model, program, own.device, Kind::Double)?;
        let point = Point { views: net.views(&own.to_tensor(params)?)?, net: &net };
        let mut slopes = vec![Vec::with_capacity(data.rows()); directions.len()];
        for row in 0..data.rows() {
            let rows = own.graph_rows(data, row..row + 1)?;
            let gradient = own.graph_gradient(&point, params.len(), &rows)?.1;
            for (slopes, direction) in slopes.iter_mut().zip(directions) {
                let products = gradient.iter().zip(*direction);
                slopes.push(products.map(|(slope, step)| slope * f64::from(*step)).sum());
            }
        }
        Ok(slopes)
    }

    /// Rows whose prediction is right: the class of the largest logit, or all of a row's truth values.
    /// Other losses have no such rows.
    pub(super) fn graph_correct_predictions(
        &self,
        model: &GraphModel,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        let program = program(model)?;
        let own = self.for_evaluation(program);
        let net = GraphNet::new(model, program, own.device, Kind::Double)?;
        let point = Point { views: net.views(&own.to_tensor(params)?)?, net: &net };
        if !matches!(model.declaration().loss, GraphLoss::CrossEntropy { .. } | GraphLoss::Binary) {
            return Ok(0);
        }
        let mut correct = 0;
        for rows in chunks(&net, 0..data.rows()) {
            let rows = own.graph_rows(data, rows)?;
            if let Some(output) = point.output(&rows)? {
                correct += count_correct(model, &output, &rows)?;
                continue;
            }
            for row in 0..rows.len() {
                let row = rows.row(row)?;
                if let Some(output) = point.output(&row)? {
                    correct += count_correct(model, &output, &row)?;
                }
            }
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
        let program = program(model)?;
        let own = self.for_evaluation(program);
        let net = GraphNet::new(model, program, own.device, Kind::Double)?;
        let point = Point { views: net.views(&own.to_tensor(params)?)?, net: &net };
        let mut losses = Vec::with_capacity(data.rows());
        let mut sum = vec![0.0; params.len()];
        for rows in chunks(&net, 0..data.rows()) {
            let rows = own.graph_rows(data, rows)?;
            let (own, part) = own.graph_gradient(&point, params.len(), &rows)?;
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
        let program = program(model)?;
        let own = self.for_evaluation(program);
        let net = GraphNet::new(model, program, own.device, Kind::Double)?;
        let parameters = way.base.len();
        for (at, place) in places.iter().enumerate() {
            // One point at a time: its parameters are the only ones in memory.
            let point = Point { views: net.views(&own.to_tensor(&way.at(place.t))?)?, net: &net };
            for (group, rows) in groups.iter().enumerate() {
                let mut numbers = Vec::new();
                for rows in chunks(&net, rows.clone()) {
                    let rows = own.graph_rows(data, rows)?;
                    if place.gradient {
                        let (_, part) = own.graph_gradient(&point, parameters, &rows)?;
                        match numbers.is_empty() {
                            true => numbers = part,
                            false => {
                                numbers.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                            }
                        }
                    } else {
                        numbers.extend(point.losses(&rows)?);
                    }
                }
                look(group, at, &numbers);
            }
        }
        Ok(())
    }

    /// The losses of rows, and the gradient of their sum. An element that is not a number becomes 0, and
    /// a row of which an operator refuses a value has the largest loss and no gradient.
    fn graph_gradient(
        &self,
        point: &Point<'_>,
        parameters: usize,
        rows: &Rows,
    ) -> Result<(Vec<f64>, Vec<f64>), BackendError> {
        let part = Tensor::f_zeros(parameters as i64, (Kind::Double, self.device))?;
        let slots = point.net.views(&part)?;
        match point.net.gradient(&point.views, rows, RunMode::Evaluation, 1.0, &slots) {
            Ok(losses) => Ok((to_vec(&losses)?, to_vec(&part.f_nan_to_num(0.0, 0.0, 0.0)?)?)),
            Err(GraphFailure::Value(_)) if rows.len() == 1 => {
                Ok((vec![point.net.largest_loss()], vec![0.0; parameters]))
            }
            Err(GraphFailure::Value(_)) => {
                let (mut losses, mut sum) = (Vec::new(), vec![0.0; parameters]);
                for row in 0..rows.len() {
                    let (own, part) = self.graph_gradient(point, parameters, &rows.row(row)?)?;
                    losses.extend(own);
                    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                }
                Ok((losses, sum))
            }
            Err(failure) => Err(failure.into()),
        }
    }
}

impl Point<'_> {
    /// The losses of rows; the largest for a row of which an operator refuses a value.
    fn losses(&self, rows: &Rows) -> Result<Vec<f64>, BackendError> {
        match tch::no_grad(|| self.net.losses(&self.views, rows, RunMode::Evaluation)) {
            Ok(losses) => Ok(to_vec(&losses)?),
            Err(GraphFailure::Value(_)) if rows.len() == 1 => Ok(vec![self.net.largest_loss()]),
            Err(GraphFailure::Value(_)) => {
                let mut losses = Vec::with_capacity(rows.len());
                for row in 0..rows.len() {
                    losses.extend(self.losses(&rows.row(row)?)?);
                }
                Ok(losses)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// The output of rows; `None` if an operator refuses a value of them.
    fn output(&self, rows: &Rows) -> Result<Option<Tensor>, BackendError> {
        match tch::no_grad(|| self.net.forward(&self.views, rows, RunMode::Evaluation)) {
            Ok(output) => Ok(Some(output)),
            Err(GraphFailure::Value(_)) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
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

/// The chunks of a range of rows.
fn chunks(net: &GraphNet<'_>, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (end, each) = (rows.end, net.program.chunk_rows);
    rows.step_by(each).map(move |start| start..end.min(start + each))
}

fn copies(flat: &Tensor, ranges: &[Range<usize>]) -> Result<Vec<Tensor>, TchError> {
    let copy = |range: &Range<usize>| {
        flat.f_narrow(0, range.start as i64, range.len() as i64)?.f_detach_copy()
    };
    ranges.iter().map(copy).collect()
}

fn restore(flat: &mut Tensor, ranges: &[Range<usize>], earlier: &[Tensor]) -> Result<(), TchError> {
    for (range, earlier) in ranges.iter().zip(earlier) {
        flat.f_narrow(0, range.start as i64, range.len() as i64)?.f_copy_(earlier)?;
    }
    Ok(())
}

#[cfg(test)]
mod archive_tests;
#[cfg(test)]
mod tests;
