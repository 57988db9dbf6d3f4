//! An engine for tests whose segments are small sums: the same everywhere, without libtorch.

use std::ops::ControlFlow;

use florin_learning::checkpoint::TrainingState;
use florin_learning::engine::{
    EvalError, Evaluator, RowGradient, TrainError, TrainedModel, TrainedSegment, Trainer,
    TrainingSegment, TrainingStep,
};
use florin_learning::{Dataset, Engine, ModelSpec, Reference, Training};

/// The engine; all but the segments are those of the reference.
#[derive(Debug, Default)]
pub(super) struct ToyEngine(Reference);

/// The state after the next step: the last number of the last tensor changes.
fn step(state: &TrainingState, segment: &TrainingSegment<'_>) -> TrainingState {
    let next = state.without_next_step();
    let mut bytes = next.to_bytes().unwrap();
    let at = bytes.len() - 4;
    let before = f32::from_le_bytes(bytes[at..].try_into().unwrap());
    let after = (before * 0.75 + next.step() as f32).fract() + 0.5;
    bytes[at..].copy_from_slice(&after.to_le_bytes());
    TrainingState::from_bytes(&bytes, segment.start.len(), segment.how).unwrap()
}

impl Engine for ToyEngine {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn bit_class(&self) -> Option<String> {
        Some("toy".to_owned())
    }
}

impl Trainer for ToyEngine {
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        self.0.train(model, start, data, how, seed, progress)
    }

    fn train_segment(
        &mut self,
        segment: &TrainingSegment<'_>,
        _progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedSegment, TrainError> {
        let (mut end, mut trace) = (segment.from.clone(), Vec::new());
        while end.step() < segment.to {
            end = step(&end, segment);
            trace.push(end.digest());
        }
        Ok(TrainedSegment { end, trace })
    }

    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        self.0.row_gradients(model, params, data, rows, look)
    }
}

impl Evaluator for ToyEngine {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.0.row_losses(model, params, data)
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        self.0.row_directional_derivatives(model, params, directions, data)
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        self.0.correct_predictions(model, params, data)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        self.0.gradient(model, params, data)
    }
}
