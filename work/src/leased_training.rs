//! The training of an order for compute, segment by segment.
//!
//! Provider, auditor and referee call the same functions. Inside a class of engine and instruction set, the
//! same segment from the same state has the same end, so that a provider is audited by its bits, and another
//! one can continue after its last good segment.

use std::ops::{ControlFlow, Range};

use florin_compute::{ComputeJob, ComputeOrder};
use florin_learning::checkpoint::TrainingState;
use florin_learning::data::{canonical_bytes, from_canonical_bytes};
use florin_learning::engine::{
    Engine, TrainError, TrainedSegment, TrainingSegment, check_training,
};
use florin_learning::{Dataset, Execution, ModelSpec, Training};
use florin_protocol::{Digest, ErrorCode, ModelArchitecture, Rejection};

use crate::convert::{model_spec, training_settings};
use crate::graph::{load_declared, read_blob};

/// Bytes of a number of a row, and of its label.
const BYTES_PER_NUMBER: u64 = 4;

/// A segment of an order cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LeasedTrainingError {
    /// The engine cannot train it, or the state is none of this training.
    #[error(transparent)]
    Training(#[from] TrainError),
    /// The state is after other steps than those before the segment.
    #[error(
        "a state after {step} steps is not that of segment {segment}, which follows {from} steps"
    )]
    NoStart {
        /// The segment of the order, from 0.
        segment: u32,
        /// Steps before the state.
        step: u64,
        /// Steps before the segment.
        from: u64,
    },
    /// The state is after other steps than those of the delivered segments.
    #[error(
        "a state after {step} steps is not the result of the order, which follows {from} steps"
    )]
    NoResult {
        /// Steps before the state.
        step: u64,
        /// Steps of the delivered segments and of those before the order.
        from: u64,
    },
    /// The job is not the order's.
    #[error("the order has another job: {0}")]
    Job(String),
    /// Only the rows of another step are known.
    #[error("the rows of step {known} alone are known, and not those of step {step}")]
    Rows {
        /// The step, from 1.
        step: u64,
        /// The step whose rows are known, from 1.
        known: u64,
    },
    /// The bytes are those of another state.
    #[error("the bytes are a state with another digest: fetch them again")]
    Digest,
    /// The engine has other bits than those of the order's class.
    #[error("{engine} on this machine is not of the order's class: its bits would differ")]
    Class {
        /// The engine.
        engine: &'static str,
    },
}

/// The class of an engine on this machine, inside which equal trainings have equal bits. `None` if it has none.
#[must_use]
pub fn compute_class(engine: &dyn Engine) -> Option<Digest> {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 compute class");
    hasher.update(engine.bit_class()?.as_bytes());
    Some(Digest(*hasher.finalize().as_bytes()))
}

/// A state that starts a segment of an order.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentStart {
    segment: u32,
    state: TrainingState,
}

impl SegmentStart {
    /// The state.
    #[must_use]
    pub const fn state(&self) -> &TrainingState {
        &self.state
    }

    /// The start of the next segment, from the end of this one.
    #[must_use]
    pub fn next(&self, end: TrainingState) -> Self {
        Self { segment: self.segment.saturating_add(1), state: end }
    }
}

/// The rows of a step, ascending.
fn places_of_step(how: &Training, rows: usize, seed: u64, step: u64) -> Vec<usize> {
    let mut places = how.step_rows(rows, seed, step);
    places.sort_unstable();
    places
}

fn all_rows(job: &ComputeJob, bytes: &[u8]) -> Result<Dataset, String> {
    let rows = from_canonical_bytes(bytes).map_err(|error| error.to_string())?;
    match u64::try_from(rows.rows()) == Ok(job.row_count) {
        true => Ok(rows),
        false => {
            let (found, stated) = (rows.rows(), job.row_count);
            Err(format!("the job states {stated} rows, and its blob has {found}"))
        }
    }
}

/// Rows of zeros in the shape of the job's. The length of its blob bounds their number.
fn stand_in_rows(job: &ComputeJob, model: &ModelSpec) -> Result<Dataset, String> {
    let width = model.inputs();
    let numbers = u64::try_from(width).unwrap_or(u64::MAX).saturating_add(1);
    let bytes = job.row_count.saturating_mul(numbers).saturating_mul(BYTES_PER_NUMBER);
    if bytes > job.rows.bytes {
        let (stated, length) = (job.row_count, job.rows.bytes);
        return Err(format!("{stated} rows of {width} features do not fit into {length} bytes"));
    }
    let rows = usize::try_from(job.row_count).unwrap_or(usize::MAX);
    Dataset::zeros(rows, width, model.classes()).map_err(|error| error.to_string())
}

/// The rows of a step at their places, with zeros elsewhere.
fn padded_rows(job: &ComputeJob, step: u64, bytes: &[u8]) -> Result<Dataset, String> {
    let batch = from_canonical_bytes(bytes).map_err(|error| error.to_string())?;
    let rows = usize::try_from(job.row_count).unwrap_or(usize::MAX);
    let places = places_of_step(&settings(job), rows, job.seed, step);
    batch.padded(rows, &places).map_err(|error| error.to_string())
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

/// A state of a job, after any of its steps, from its bytes. It needs neither the graph nor the rows.
///
/// # Errors
/// [`LeasedTrainingError::Digest`], and those of bytes that are no state.
pub fn job_state(
    job: &ComputeJob,
    digest: Digest,
    bytes: &[u8],
) -> Result<TrainingState, LeasedTrainingError> {
    let model = model_spec(&ModelArchitecture::Graph(job.graph.clone()));
    decode_state((digest, bytes), model.parameters(), &settings(job))
}

fn decode_state(
    (digest, bytes): (Digest, &[u8]),
    parameters: usize,
    how: &Training,
) -> Result<TrainingState, LeasedTrainingError> {
    let state = TrainingState::from_bytes(bytes, parameters, how).map_err(TrainError::from)?;
    match Digest(state.digest()) == digest {
        true => Ok(state),
        false => Err(LeasedTrainingError::Digest),
    }
}

/// The state after the delivered segments of an order, from its bytes: the result that its renter bought.
/// It needs neither the graph nor the rows.
///
/// # Errors
/// [`LeasedTrainingError::Job`] for a job of another order, [`LeasedTrainingError::NoResult`] for a state after
/// other steps, [`LeasedTrainingError::Digest`], and those of bytes that are no state.
pub fn delivered_state(
    order: &ComputeOrder,
    job: &ComputeJob,
    delivered: u32,
    (digest, bytes): (Digest, &[u8]),
) -> Result<TrainingState, LeasedTrainingError> {
    order.check_job(job).map_err(|error| LeasedTrainingError::Job(error.to_string()))?;
    let state = job_state(job, digest, bytes)?;
    let from = order.steps_before(delivered).min(job.steps());
    match state.step() {
        step if step == from => Ok(state),
        step => Err(LeasedTrainingError::NoResult { step, from }),
    }
}

/// The rows of an order's job, as far as an account has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRows<'a> {
    /// All of them: the job's blob.
    All,
    /// None. The training has rows of zeros, by which a step is measured before the rows may be read.
    StandIn,
    /// Those of a step, from 1: [`LeasedTraining::step_rows`].
    OfStep(u64, &'a [u8]),
}

/// The training of an order, with its model and its rows.
#[derive(Debug, Clone)]
pub struct LeasedTraining {
    /// The only step whose rows are known.
    known_step: Option<u64>,
    model: ModelSpec,
    start: Vec<f32>,
    rows: Dataset,
    how: Training,
    seed: u64,
    /// The order. The last segment may have fewer steps than the others.
    order: ComputeOrder,
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
        read: impl FnMut(Digest, u64) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        Self::load_with(order, job, JobRows::All, read)
    }

    /// As [`Self::load`], with the rows that an account has.
    ///
    /// # Errors
    /// Those of [`Self::load`], and a [`Rejection`] for rows that are not those of the step.
    pub fn load_with<E: From<Rejection>>(
        order: &ComputeOrder,
        job: &ComputeJob,
        given: JobRows<'_>,
        mut read: impl FnMut(Digest, u64) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let invalid = |what: String| E::from(Rejection::new(ErrorCode::InvalidTask, what));
        job.check().map_err(|error| invalid(error.to_string()))?;
        order.check_job(job).map_err(|error| invalid(error.to_string()))?;
        let graph = load_declared(&job.graph, &mut read)?;
        let model = ModelSpec::Graph(Box::new(graph));
        let start = florin_learning::tensors::decode(&model, &read_blob(job.start, &mut read)?)
            .map_err(|error| invalid(format!("the initial parameters of the job: {error}")))?;
        let rows = match given {
            JobRows::All => all_rows(job, &read_blob(job.rows, &mut read)?),
            JobRows::StandIn => stand_in_rows(job, &model),
            JobRows::OfStep(step, bytes) => padded_rows(job, step, bytes),
        };
        let rows = rows.map_err(|why| invalid(format!("the rows of the job: {why}")))?;
        let known_step = match given {
            JobRows::OfStep(step, _) => Some(step),
            JobRows::All | JobRows::StandIn => None,
        };
        let how = settings(job);
        check_training(&model, &start, &rows, &how).map_err(|error| invalid(error.to_string()))?;
        let (seed, total) = (job.seed, job.steps());
        // As `check_job` counts the segments.
        let order = ComputeOrder { steps: order.steps.max(1), ..order.clone() };
        let is_continued = order.first_segment > 0;
        // A measurement needs no result of an earlier order, which only its accounts may read.
        let first_segment = if given == JobRows::StandIn { 0 } else { order.first_segment };
        let order = ComputeOrder { first_segment, ..order };
        let training = Self { known_step, model, start, rows, how, seed, order, total };
        let order = &training.order;
        let is_own = Digest(training.initial().digest()) == order.start;
        match is_own || is_continued {
            true => Ok(training),
            false => Err(invalid("the order starts from other initial parameters".to_owned())),
        }
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &ModelSpec {
        &self.model
    }

    /// The rows, or those of zeros that stand in for them.
    #[must_use]
    pub const fn rows(&self) -> &Dataset {
        &self.rows
    }

    /// The state before the first step, whose digest is the start of an order that continues no other one.
    #[must_use]
    pub fn initial(&self) -> TrainingState {
        TrainingState::initial(&self.start, &self.how)
    }

    /// The state at the start of a segment of the order, from its bytes: what a provider continues from, and what
    /// auditors are served. Bytes that are refused here are no start.
    ///
    /// # Errors
    /// [`LeasedTrainingError::NoStart`] if the state is after other steps or the segment is none of the order,
    /// [`LeasedTrainingError::Digest`], and [`StateError`] for bytes that are no state.
    pub fn start(
        &self,
        segment: u32,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<SegmentStart, LeasedTrainingError> {
        let start = SegmentStart { segment, state: self.state(digest, bytes)? };
        self.steps_of(&start).map(|_| start)
    }

    /// The first segment of an order that continues no other one.
    #[must_use]
    pub fn first(&self) -> SegmentStart {
        SegmentStart { segment: 0, state: self.initial() }
    }

    /// The rows of a step, from 1, as a canonical data set, in ascending order: what a referee needs of rows that it
    /// may not read.
    #[must_use]
    pub fn step_rows(&self, step: u64) -> Vec<u8> {
        let places = places_of_step(&self.how, self.rows.rows(), self.seed, step);
        let batch = self.rows.subset(&places);
        batch.map(|batch| canonical_bytes(&batch)).unwrap_or_default()
    }

    /// A state of the training, after any of its steps, from its bytes.
    ///
    /// # Errors
    /// [`LeasedTrainingError::Digest`], and [`StateError`](florin_learning::checkpoint::StateError)
    /// for bytes that are no state.
    pub fn state(
        &self,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<TrainingState, LeasedTrainingError> {
        decode_state((digest, bytes), self.start.len(), &self.how)
    }

    /// The steps of a segment, from the first step of the training.
    fn steps_of(&self, start: &SegmentStart) -> Result<Range<u64>, LeasedTrainingError> {
        let SegmentStart { segment, state } = start;
        let from = self.order.steps_before(*segment);
        match *segment < self.order.segments && from < self.total && state.step() == from {
            true => Ok(from..from.saturating_add(self.order.steps.into()).min(self.total)),
            false => {
                Err(LeasedTrainingError::NoStart { segment: *segment, step: state.step(), from })
            }
        }
    }

    /// The state at the end of a segment.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn end_of_segment(
        &self,
        engine: &mut dyn Engine,
        start: &SegmentStart,
    ) -> Result<TrainingState, LeasedTrainingError> {
        self.state_in_segment(engine, start, self.order.steps)
    }

    /// The digests of the states after each step of a segment. The last digest is repeated if the segment has
    /// fewer steps than others.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn trace_of_segment(
        &self,
        engine: &mut dyn Engine,
        start: &SegmentStart,
    ) -> Result<Vec<Digest>, LeasedTrainingError> {
        let to = self.steps_of(start)?.end;
        let (end, mut trace) = self.train(engine, &start.state, to, true)?;
        let steps = usize::try_from(self.order.steps).unwrap_or(usize::MAX);
        trace.resize(steps, Digest(end.digest()));
        Ok(trace)
    }

    /// The state after some steps of a segment; at most its end.
    ///
    /// # Errors
    /// [`LeasedTrainingError`].
    pub fn state_in_segment(
        &self,
        engine: &mut dyn Engine,
        start: &SegmentStart,
        steps: u32,
    ) -> Result<TrainingState, LeasedTrainingError> {
        let segment = self.steps_of(start)?;
        let to = segment.start.saturating_add(steps.into()).min(segment.end);
        Ok(self.train(engine, &start.state, to, false)?.0)
    }

    /// The state after the step that a dispute ends with: what a referee computes. `before` steps of the segment
    /// lead to the state on which both sides agree, whose bytes a side has served. Behind the last step of the
    /// training the state stays as it is.
    ///
    /// # Errors
    /// [`LeasedTrainingError::NoStart`] if the state is after other steps, and as for [`Self::start`].
    pub fn ruling(
        &self,
        engine: &mut dyn Engine,
        (segment, before): (u32, u32),
        digest: Digest,
        bytes: &[u8],
    ) -> Result<Digest, LeasedTrainingError> {
        let state = self.state(digest, bytes)?;
        let from = self.order.steps_before(segment).saturating_add(before.into()).min(self.total);
        if state.step() != from || segment >= self.order.segments {
            return Err(LeasedTrainingError::NoStart { segment, step: state.step(), from });
        }
        let to = from.saturating_add(1).min(self.total);
        Ok(Digest(self.train(engine, &state, to, false)?.0.digest()))
    }

    /// Trains the steps up to `to`. A step that diverges is left out, so that every segment has an end.
    fn train(
        &self,
        engine: &mut dyn Engine,
        from: &TrainingState,
        to: u64,
        is_traced: bool,
    ) -> Result<(TrainingState, Vec<Digest>), LeasedTrainingError> {
        if compute_class(engine) != Some(self.order.class) {
            return Err(LeasedTrainingError::Class { engine: engine.name() });
        }
        let next = from.step().saturating_add(1);
        if let Some(known) = self.known_step.filter(|known| (*known, *known) != (next, to))
            && from.step() < to
        {
            return Err(LeasedTrainingError::Rows { step: next, known });
        }
        let (mut state, mut trace) = (from.clone(), Vec::new());
        while state.step() < to {
            let diverged = match self.train_segment(engine, &state, to, is_traced) {
                Ok(trained) => {
                    trace.extend(trained.trace.into_iter().map(Digest));
                    state = trained.end;
                    continue;
                }
                Err(TrainError::Diverged { step }) => step,
                Err(error) => return Err(error.into()),
            };
            let before = diverged.saturating_sub(1);
            if before > state.step() {
                let trained = self.train_segment(engine, &state, before, is_traced)?;
                trace.extend(trained.trace.into_iter().map(Digest));
                state = trained.end;
            }
            state = state.without_next_step();
            if is_traced {
                trace.push(Digest(state.digest()));
            }
        }
        Ok((state, trace))
    }

    fn train_segment(
        &self,
        engine: &mut dyn Engine,
        from: &TrainingState,
        to: u64,
        is_traced: bool,
    ) -> Result<TrainedSegment, TrainError> {
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
        engine.train_segment(&segment, &mut |_| ControlFlow::Continue(()))
    }
}
