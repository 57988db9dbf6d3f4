//! The training of an order for compute, segment by segment.
//!
//! Provider, auditor and referee call the same functions. Inside a class of engine and instruction set, the
//! same segment from the same state has the same end, so that a provider is audited by its bits, and another
//! one can continue after its last good segment.

use std::ops::{ControlFlow, Range};

use florin_compute::{ComputeJob, ComputeOrder};
use florin_learning::checkpoint::{StateError, TrainingState};
use florin_learning::data::from_canonical_bytes;
use florin_learning::engine::{TrainError, TrainingSegment};
use florin_learning::{Dataset, Execution, ModelSpec, Trainer, Training};
use florin_protocol::{Digest, ErrorCode, Rejection};

use crate::convert::training_settings;
use crate::graph::{load_declared, read_blob};

/// A segment of an order cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LeasedTrainingError {
    /// The engine cannot train it, or the state is none of this training.
    #[error(transparent)]
    Training(#[from] TrainError),
    /// The state is not the start of a segment of the order.
    #[error(
        "a state after step {step} is not the start of a segment of {steps} steps, of {total} in all: \
         ask for another one"
    )]
    NoStart {
        /// Steps before the state.
        step: u64,
        /// Steps of a segment.
        steps: u32,
        /// Steps of the training.
        total: u64,
    },
}

/// The settings of a job for an engine.
fn settings(job: &ComputeJob) -> Training {
    let execution =
        Execution { virtual_workers: Some(job.virtual_workers), ..Execution::default() };
    Training { execution, ..training_settings(&job.training) }
}

/// The state before the first step of a job, from its initial parameters. Its digest is the start of an order.
#[must_use]
pub fn initial_state(job: &ComputeJob, parameters: &[f32]) -> TrainingState {
    TrainingState::initial(parameters, &settings(job))
}

/// The training of an order, with its model and its rows.
#[derive(Debug, Clone)]
pub struct LeasedTraining {
    model: ModelSpec,
    start: Vec<f32>,
    rows: Dataset,
    how: Training,
    seed: u64,
    /// Steps of a segment; the last one may have fewer.
    steps: u32,
    total: u64,
}

impl LeasedTraining {
    /// Loads the job of an order from its blobs, which `read` returns by digest and length.
    ///
    /// # Errors
    /// Those of `read`, and a [`Rejection`] for a job that is not the order's, for a blob with another digest,
    /// and for one that does not fit the job.
    pub fn load<E: From<Rejection>>(
        order: &ComputeOrder,
        job: &ComputeJob,
        mut read: impl FnMut(Digest, u64) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let invalid = |what: String| E::from(Rejection::new(ErrorCode::InvalidTask, what));
        job.check().map_err(|error| invalid(error.to_string()))?;
        order.check_job(job).map_err(|error| invalid(error.to_string()))?;
        let graph = load_declared(&job.graph, &mut read)?;
        let model = ModelSpec::Graph(Box::new(graph));
        let start = florin_learning::tensors::decode(&model, &read_blob(job.start, &mut read)?)
            .map_err(|error| invalid(format!("the initial parameters of the job: {error}")))?;
        let rows = from_canonical_bytes(&read_blob(job.rows, &mut read)?)
            .map_err(|error| invalid(format!("the rows of the job: {error}")))?;
        if u64::try_from(rows.rows()) != Ok(job.row_count) {
            let (found, stated) = (rows.rows(), job.row_count);
            return Err(invalid(format!("the job states {stated} rows, and its blob has {found}")));
        }
        let how = settings(job);
        let (seed, steps, total) = (job.seed, order.steps.max(1), job.steps());
        let training = Self { model, start, rows, how, seed, steps, total };
        let is_own = Digest(training.initial().digest()) == order.start;
        match is_own || order.first_segment > 0 {
            true => Ok(training),
            false => Err(invalid("the order starts from other initial parameters".to_owned())),
        }
    }

    /// The state before the first step, whose digest is the start of an order that continues no other one.
    #[must_use]
    pub fn initial(&self) -> TrainingState {
        TrainingState::initial(&self.start, &self.how)
    }

    /// A state of this training from its bytes.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn state(&self, bytes: &[u8]) -> Result<TrainingState, StateError> {
        TrainingState::from_bytes(bytes, self.start.len(), &self.how)
    }

    /// The steps of the segment that starts at a state, counted from 0.
    fn segment_from(&self, from: &TrainingState) -> Result<Range<u64>, LeasedTrainingError> {
        let (step, steps, total) = (from.step(), self.steps, self.total);
        let is_start = step < total && step.is_multiple_of(steps.into());
        match is_start {
            true => Ok(step..step.saturating_add(steps.into()).min(total)),
            false => Err(LeasedTrainingError::NoStart { step, steps, total }),
        }
    }

    /// The state at the end of the segment that starts at `from`.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn end_of_segment(
        &self,
        engine: &mut dyn Trainer,
        from: &TrainingState,
    ) -> Result<TrainingState, LeasedTrainingError> {
        let to = self.segment_from(from)?.end;
        Ok(self.train(engine, from, to, false)?.0)
    }

    /// The digests of the states after each step of the segment that starts at `from`. The last digest is
    /// repeated if the segment has fewer steps than others.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn trace_of_segment(
        &self,
        engine: &mut dyn Trainer,
        from: &TrainingState,
    ) -> Result<Vec<Digest>, LeasedTrainingError> {
        let to = self.segment_from(from)?.end;
        let (end, mut trace) = self.train(engine, from, to, true)?;
        let steps = usize::try_from(self.steps).unwrap_or(usize::MAX);
        trace.resize(steps, Digest(end.digest()));
        Ok(trace)
    }

    /// The state after some steps of the segment that starts at `from`; at most its end.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn state_in_segment(
        &self,
        engine: &mut dyn Trainer,
        from: &TrainingState,
        steps: u32,
    ) -> Result<TrainingState, LeasedTrainingError> {
        let segment = self.segment_from(from)?;
        let to = segment.start.saturating_add(steps.into()).min(segment.end);
        match to == segment.start {
            true => Ok(from.clone()),
            false => Ok(self.train(engine, from, to, false)?.0),
        }
    }

    /// The state after one step from any state: what a referee computes. After the last step of the training
    /// the state stays as it is.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn step(
        &self,
        engine: &mut dyn Trainer,
        from: &TrainingState,
    ) -> Result<TrainingState, LeasedTrainingError> {
        match from.step() < self.total {
            true => Ok(self.train(engine, from, from.step().saturating_add(1), false)?.0),
            false => Ok(from.clone()),
        }
    }

    fn train(
        &self,
        engine: &mut dyn Trainer,
        from: &TrainingState,
        to: u64,
        is_traced: bool,
    ) -> Result<(TrainingState, Vec<Digest>), LeasedTrainingError> {
        let segment = TrainingSegment {
            model: &self.model,
            start: &self.start,
            data: &self.rows,
            how: &self.how,
            seed: self.seed,
            from,
            to,
            is_traced,
        };
        let trained = engine.train_segment(&segment, &mut |_| ControlFlow::Continue(()))?;
        Ok((trained.end, trained.trace.into_iter().map(Digest).collect()))
    }
}
