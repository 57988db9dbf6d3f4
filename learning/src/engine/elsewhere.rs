//! An engine whose trainings another machine performs. All else is another engine's.

use std::ops::{ControlFlow, Range};

use super::{
    Engine, EvalError, Evaluator, ParameterSegment, RowGradient, SegmentPoint, TrainError,
    TrainedModel, TrainedSegment, Trainer, TrainingSegment, TrainingStep, check_training,
};
use crate::data::Dataset;
use crate::model::ModelSpec;
use crate::training::Training;

/// A training that another machine performs.
#[derive(Debug, Clone, Copy)]
pub struct RemoteTraining<'a> {
    /// The initial parameters.
    pub start: &'a [f32],
    /// The rows.
    pub data: &'a Dataset,
    /// The settings.
    pub how: &'a Training,
    /// The seed.
    pub seed: u64,
}

/// Performs trainings elsewhere.
pub trait RemoteTrainer: Send {
    /// Performs a training. It ends early with [`TrainError::Stopped`] once `goes_on` returns false.
    ///
    /// # Errors
    /// [`TrainError`]; [`TrainError::Command`] with a stable code for a failure of the other machine.
    fn train(
        &mut self,
        training: &RemoteTraining<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<TrainedModel, TrainError>;
}

/// The engine.
pub struct ElsewhereEngine<'a> {
    inner: Box<dyn Engine>,
    trainer: Box<dyn RemoteTrainer + 'a>,
}

impl<'a> ElsewhereEngine<'a> {
    /// An engine that evaluates by `inner` and trains by `trainer`.
    #[must_use]
    pub fn new(inner: Box<dyn Engine>, trainer: Box<dyn RemoteTrainer + 'a>) -> Self {
        Self { inner, trainer }
    }
}

impl Engine for ElsewhereEngine<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn bit_class(&self) -> Option<String> {
        self.inner.bit_class()
    }
}

impl Trainer for ElsewhereEngine<'_> {
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
        let steps = how.steps(data.rows());
        let mut goes_on = || progress(TrainingStep { step: 0, steps, loss: 0.0 }).is_continue();
        self.trainer.train(&RemoteTraining { start, data, how, seed }, &mut goes_on)
    }

    fn train_segment(
        &mut self,
        segment: &TrainingSegment<'_>,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedSegment, TrainError> {
        self.inner.train_segment(segment, progress)
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

impl Evaluator for ElsewhereEngine<'_> {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.inner.row_losses(model, params, data)
    }

    fn row_losses_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        self.inner.row_losses_at(model, params, data)
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        self.inner.row_directional_derivatives(model, params, directions, data)
    }

    fn row_directional_derivatives_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        self.inner.row_directional_derivatives_at(model, params, directions, data)
    }

    fn row_outputs(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.inner.row_outputs(model, params, data)
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        self.inner.correct_predictions(model, params, data)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        self.inner.gradient(model, params, data)
    }

    fn evaluate_on_segment(
        &mut self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        self.inner.evaluate_on_segment(way, places, data, groups, look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Reference;

    struct Adds(f32);

    impl RemoteTrainer for Adds {
        fn train(
            &mut self,
            training: &RemoteTraining<'_>,
            goes_on: &mut dyn FnMut() -> bool,
        ) -> Result<TrainedModel, TrainError> {
            if !goes_on() {
                return Err(TrainError::Stopped { step: 0 });
            }
            let params = training.start.iter().map(|number| number + self.0).collect();
            Ok(TrainedModel { params, steps: 1, mean_loss: training.seed as f64 })
        }
    }

    #[test]
    fn trainings_are_elsewhere_and_evaluations_are_not() {
        let model = ModelSpec::Softmax { inputs: 2, classes: 2 };
        let rows = Dataset::new(vec![1.0, 0.0, 0.0, 1.0], vec![0, 1], 2, 2).unwrap();
        let how = Training::sgd(1, 2, 0.1);
        let start = vec![0.5; model.parameters()];
        let inner = Box::new(Reference::new());
        let mut engine = ElsewhereEngine::new(inner, Box::new(Adds(2.0)));
        let mut train = |flow| engine.train(&model, &start, &rows, &how, 7, &mut |_| flow);
        let trained = train(ControlFlow::Continue(())).unwrap();
        assert_eq!((trained.params[0], trained.mean_loss), (2.5, 7.0));
        let stopped = train(ControlFlow::Break(()));
        assert_eq!(stopped, Err(TrainError::Stopped { step: 0 }));
        let params = vec![0.0; model.parameters()];
        let losses = engine.row_losses(&model, &params, &rows).unwrap();
        assert_eq!(losses, Reference::new().row_losses(&model, &params, &rows).unwrap());
        // The time of a training on this device does not predict that on another one.
        assert_eq!(engine.quote(&model, &rows, &how), Ok(None));
        let short = engine.train(&model, &[], &rows, &how, 7, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(short, Err(TrainError::Input(_))));
    }
}
