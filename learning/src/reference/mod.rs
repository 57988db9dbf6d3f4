//! The engine in plain Rust: softmax regression and MLPs, on one thread, on any machine.
//!
//! It is what the libtorch engine is held against, and what a build without libtorch uses.

mod matrix;
mod net;

use std::ops::{ControlFlow, Range};

use pulp::Arch;

use crate::data::Dataset;
use crate::engine::{
    Engine, EvalError, Evaluator, InputError, Place, Step, TrainError, Trained, Trainer, Training,
    Way, check_evaluation, check_groups, check_training, chunks, chunks_of, mean,
};
use crate::model::ModelSpec;
use crate::params::squares;
use crate::seed::epoch_order;
use net::{Batch, Layout};

const NAME: &str = "reference";

/// The plain-Rust engine. It has no state: every call stands for itself.
#[derive(Debug, Default)]
pub struct Reference;

impl Reference {
    /// A new engine.
    pub fn new() -> Self {
        Self
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
        ModelSpec::Cnn { .. } => {
            Err(InputError::Unsupported { engine: NAME, model: model.to_string() })
        }
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
        progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Trained, TrainError> {
        check_training(model, start, data, how)?;
        let layout = layout(model)?;
        let start: Vec<f32> = layout.transposed(start, |value| value);
        let mut descent = Descent::new(&start, how);
        let mut batch = Batch::new(&layout, how.batch as usize);
        let steps = how.steps(data.rows());
        let (mut step, mut mean_loss) = (0, 0.0);
        for epoch in 0..how.epochs {
            let mut losses = Vec::with_capacity(data.rows());
            for rows in epoch_order(data.rows(), seed, epoch).chunks(how.batch as usize) {
                step += 1;
                batch.load(rows.iter().copied(), data, |value| value);
                batch.forward(&layout, &descent.params);
                let row_losses = batch.losses();
                let loss = mean(&row_losses);
                if !loss.is_finite() {
                    return Err(TrainError::Diverged { step });
                }
                losses.extend(row_losses);
                descent.gradient.fill(0.0);
                batch.backward(
                    &layout,
                    &descent.params,
                    1.0 / rows.len() as f32,
                    &mut descent.gradient,
                );
                descent.step(&start);
                if progress(Step { step, steps, loss }).is_break() {
                    return Err(TrainError::Stopped { step });
                }
            }
            mean_loss = mean(&losses);
        }
        if descent.params.iter().any(|value| !value.is_finite()) {
            return Err(TrainError::Diverged { step });
        }
        Ok(Trained { params: layout.restored(&descent.params), steps, mean_loss })
    }
}

/// Stochastic gradient descent on parameters in the engine's own order.
struct Descent<'a> {
    how: &'a Training,
    params: Vec<f32>,
    gradient: Vec<f32>,
    velocity: Vec<f32>,
}

impl<'a> Descent<'a> {
    fn new(start: &[f32], how: &'a Training) -> Self {
        let zeros = vec![0.0; start.len()];
        Self { how, params: start.to_vec(), gradient: zeros.clone(), velocity: zeros }
    }

    /// One step of what [`Training`] writes down, from the gradient that lies ready.
    fn step(&mut self, start: &[f32]) {
        let Training { learning_rate, momentum, weight_decay, .. } = *self.how;
        if let Some(pull) = self.how.fedprox.filter(|&pull| pull > 0.0) {
            let pull = pull as f32;
            for ((g, &w), &w0) in self.gradient.iter_mut().zip(&self.params).zip(start) {
                *g += pull * (w - w0);
            }
        }
        if let Some(most) = self.how.clip_gradient {
            let norm = squares(&self.gradient).sqrt();
            if norm > most {
                let scale = (most / norm) as f32;
                self.gradient.iter_mut().for_each(|g| *g *= scale);
            }
        }
        let (rate, momentum, decay) = (learning_rate as f32, momentum as f32, weight_decay as f32);
        let Self { params, velocity, gradient, .. } = self;
        // Number by number: registers of any width give the same bits.
        Arch::new().dispatch(|| {
            for (w, (v, &g)) in params.iter_mut().zip(velocity.iter_mut().zip(&*gradient)) {
                *v = momentum * *v + (g + decay * *w);
                *w -= rate * *v;
            }
        });
    }
}

impl Evaluator for Reference {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        let mut losses = Vec::with_capacity(data.rows());
        each_chunk(model, params, data, |_, _, batch| losses.extend(batch.losses()))?;
        Ok(losses)
    }

    fn row_slopes(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let mut at = self.row_slopes_at(model, &[params], directions, data)?;
        Ok(at.pop().unwrap_or_default())
    }

    fn row_slopes_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        for params in params {
            check_evaluation(model, params, directions, data)?;
        }
        let layout = layout(model)?;
        let all: Vec<Vec<f64>> =
            params.iter().map(|params| layout.transposed(params, |value| value)).collect();
        let mut slopes =
            vec![vec![Vec::with_capacity(data.rows()); directions.len()]; params.len()];
        let room = data.rows().min(crate::engine::EVAL_CHUNK_ROWS);
        let mut batches: Vec<Batch<f64>> = all.iter().map(|_| Batch::new(&layout, room)).collect();
        let mut first = Vec::new();
        for rows in chunks(data.rows()) {
            for (batch, params) in batches.iter_mut().zip(&all) {
                batch.load(rows.clone(), data, f64::from);
                batch.forward(&layout, params);
            }
            for (at, direction) in directions.iter().enumerate() {
                // Anew for each chunk: as dear as one row, and only one direction is in memory.
                let direction = layout.transposed(direction, f64::from);
                if let Some(batch) = batches.first() {
                    batch.first_moved(&layout, &direction, &mut first);
                }
                for ((batch, params), slopes) in batches.iter().zip(&all).zip(&mut slopes) {
                    slopes[at].extend(batch.slopes(&layout, params, &direction, &first));
                }
            }
        }
        Ok(slopes)
    }

    fn correct(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        let mut correct = 0;
        each_chunk(model, params, data, |_, _, batch| correct += batch.correct())?;
        Ok(correct)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        let mut losses = Vec::with_capacity(data.rows());
        let mut sum = vec![0.0; params.len()];
        each_chunk(model, params, data, |layout, params, batch| {
            losses.extend(batch.losses());
            batch.backward(layout, params, 1.0, &mut sum);
        })?;
        let rows = data.rows() as f64;
        sum.iter_mut().for_each(|value| *value /= rows);
        Ok((mean(&losses), layout(model)?.restored(&sum)))
    }

    fn measure_along(
        &mut self,
        way: Way<'_>,
        places: &[Place],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        way.check()?;
        check_groups(data, groups)?;
        let layout = layout(way.model)?;
        let mut models = Vec::with_capacity(places.len());
        for place in places {
            let params = way.at(place.t);
            check_evaluation(way.model, &params, &[], data)?;
            models.push(layout.transposed(&params, |value| value));
        }
        let mut batch = Batch::new(&layout, data.rows().min(crate::engine::EVAL_CHUNK_ROWS));
        let mut sum = vec![0.0; way.base.len()];
        for (group, rows) in groups.iter().enumerate() {
            for (at, (place, params)) in places.iter().zip(&models).enumerate() {
                let mut losses = Vec::with_capacity(rows.len());
                sum.fill(0.0);
                for rows in chunks_of(rows.clone()) {
                    batch.load(rows, data, f64::from);
                    batch.forward(&layout, params);
                    match place.gradient {
                        true => batch.backward(&layout, params, 1.0, &mut sum),
                        false => losses.extend(batch.losses()),
                    }
                }
                match place.gradient {
                    true => look(group, at, &layout.restored(&sum)),
                    false => look(group, at, &losses),
                }
            }
        }
        Ok(())
    }
}

/// Runs the rows forward, a chunk at a time, and shows each chunk to `look`, with the parameters in
/// the engine's own order.
fn each_chunk(
    model: &ModelSpec,
    params: &[f64],
    data: &Dataset,
    mut look: impl FnMut(&Layout, &[f64], &mut Batch<f64>),
) -> Result<(), EvalError> {
    check_evaluation(model, params, &[], data)?;
    let layout = layout(model)?;
    let params = layout.transposed(params, |value| value);
    let mut batch = Batch::new(&layout, data.rows().min(crate::engine::EVAL_CHUNK_ROWS));
    for rows in chunks(data.rows()) {
        batch.load(rows, data, f64::from);
        batch.forward(&layout, &params);
        look(&layout, &params, &mut batch);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
