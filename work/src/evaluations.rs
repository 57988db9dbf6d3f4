//! The evaluations of a round's valuation: losses, derivatives, metrics, and the training of the
//! public baseline. An engine computes them, a recorder also writes them down, and a replay reads them.

use std::ops::ControlFlow;

use florin_contribution::AffineSource;
use florin_learning::engine::TrainError;
use florin_learning::{Dataset, Evaluator, ModelSpec, Reference, Trainer, Training};

use crate::round::WorkError;
use crate::round_source::RoundSource;

/// A training of the public baseline.
#[derive(Clone, Copy)]
pub(crate) struct BaselineTraining<'a> {
    pub(crate) model: &'a ModelSpec,
    pub(crate) start: &'a [f32],
    pub(crate) rows: &'a Dataset,
    pub(crate) how: &'a Training,
    pub(crate) seed: u64,
}

/// The work of the public baseline. It runs on the reference engine, whose order of operations is fixed, so
/// that every machine computes the same bits.
pub(crate) trait BaselineWork {
    /// The parameters after training; `None` if it diverges.
    fn train(&mut self, training: BaselineTraining<'_>) -> Result<Option<Vec<f32>>, WorkError> {
        let BaselineTraining { model, start, rows, how, seed } = training;
        let go_on = &mut |_| ControlFlow::Continue(());
        match Reference::new().train(model, start, rows, how, seed, go_on) {
            Ok(trained) => Ok(Some(trained.params)),
            Err(TrainError::Diverged { .. }) => Ok(None),
            Err(error) => Err(WorkError::Baseline(error)),
        }
    }

    /// The bounded loss of each row.
    fn baseline_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        rows: &Dataset,
    ) -> Result<Vec<f64>, WorkError> {
        Ok(Reference::new().row_losses(model, &wide(params), rows)?)
    }
}

/// The work of the public baseline, computed here.
pub(crate) struct PlainBaseline;

impl BaselineWork for PlainBaseline {}

/// All that a round needs of an engine.
pub(crate) trait RoundEvaluations: AffineSource + BaselineWork {
    /// Number of validation rows that a model classifies correctly.
    fn correct_predictions(&mut self, params: &[f64]) -> Result<usize, WorkError>;

    /// The bounded loss of each validation row.
    fn row_losses(&mut self, params: &[f64]) -> Result<Vec<f64>, WorkError>;
}

impl BaselineWork for RoundSource<'_> {}

impl RoundEvaluations for RoundSource<'_> {
    fn correct_predictions(&mut self, params: &[f64]) -> Result<usize, WorkError> {
        Ok(self.engine.correct_predictions(self.model, params, self.holdout)?)
    }

    fn row_losses(&mut self, params: &[f64]) -> Result<Vec<f64>, WorkError> {
        Ok(self.engine.row_losses(self.model, params, self.holdout)?)
    }
}

pub(crate) fn wide(params: &[f32]) -> Vec<f64> {
    params.iter().map(|value| f64::from(*value)).collect()
}
