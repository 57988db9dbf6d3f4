//! An engine that counts trainings, fails and spoils them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use florin_learning::engine::{BackendError, EvalError, TrainError, TrainingQuote};
use florin_learning::{
    Dataset, Engine, EngineKind, Evaluator, ModelSpec, RowGradient, TrainedModel, Trainer,
    Training, TrainingStep as TrainStep, engine,
};

/// The reference engine with a counter of finished trainings.
pub(super) struct CountingEngine {
    inner: Box<dyn Engine>,
    pub(super) trained: u32,
    pub(super) fails: bool,
    /// The quote of a training.
    pub(super) quoted: Option<TrainingQuote>,
    /// A change of the parameters that the next trainings return.
    pub(super) spoils: Option<fn(f32) -> f32>,
    /// If set, the next training fails and resets the flag.
    pub(super) fails_next: Arc<AtomicBool>,
}

impl CountingEngine {
    pub(super) fn new() -> Self {
        Self {
            inner: engine(EngineKind::Reference, 1).unwrap(),
            trained: 0,
            fails: false,
            quoted: None,
            spoils: None,
            fails_next: Arc::default(),
        }
    }
}

impl Trainer for CountingEngine {
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        if self.fails || self.fails_next.swap(false, Ordering::SeqCst) {
            return Err(TrainError::Diverged { step: 1 });
        }
        let mut trained = self.inner.train(model, start, data, how, seed, progress)?;
        self.trained += 1;
        if let Some(spoil) = self.spoils {
            trained.params.iter_mut().for_each(|value| *value = spoil(*value));
        }
        Ok(trained)
    }

    fn quote(
        &mut self,
        _: &ModelSpec,
        _: &Dataset,
        _: &Training,
    ) -> Result<Option<TrainingQuote>, TrainError> {
        Ok(self.quoted)
    }

    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        self.inner.row_gradients(model, params, data, rows, look)
    }
}

impl Evaluator for CountingEngine {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.inner.row_losses(model, params, data)
    }
    fn row_directional_derivatives(
        &mut self,
        _: &ModelSpec,
        _: &[f64],
        _: &[&[f32]],
        _: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        Err(unsupported())
    }
    fn correct_predictions(
        &mut self,
        _: &ModelSpec,
        _: &[f64],
        _: &Dataset,
    ) -> Result<usize, EvalError> {
        Err(unsupported())
    }
    fn gradient(
        &mut self,
        _: &ModelSpec,
        _: &[f64],
        _: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        Err(unsupported())
    }
}

fn unsupported() -> EvalError {
    BackendError { engine: "counting", why: "an agent does not value rounds".to_owned() }.into()
}

impl Engine for CountingEngine {
    fn name(&self) -> &'static str {
        "counting"
    }
}
