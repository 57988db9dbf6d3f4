//! The executor itself: it computes the work of its folder and needs neither the wallet nor the market.

use std::path::Path;
use std::time::Instant;

use florin_learning::checkpoint::StateError;
use florin_learning::{Dataset, Engine, ModelSpec};
use florin_protocol::{Digest, Rejection};
use florin_work::{JobRows, LeasedTraining, LeasedTrainingError, SegmentStart};

use super::work::{ExecutorResult, ExecutorWork, VERSION, WorkFolder, WorkKind};
use crate::atomic_file::FileError;
use crate::leases::measuring::{MeasuredSteps, measure_step};

/// An executor cannot compute its work.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The folder has no work.
    #[error("{0} has no file work.json: florin provide --orders starts executors itself")]
    NoWork(String),
    /// The daemon is of another version.
    #[error(
        "the daemon is of version {daemon}, and this executor of {own}: install one version on all nodes"
    )]
    Version {
        /// The daemon's version.
        daemon: String,
        /// The version of this program.
        own: &'static str,
    },
    /// A file of the folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The job.
    #[error(transparent)]
    Job(#[from] Rejection),
    /// The training.
    #[error(transparent)]
    Training(#[from] LeasedTrainingError),
    /// The bytes of a state.
    #[error(transparent)]
    State(#[from] StateError),
}

impl ExecuteError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoWork(_) => "NO_EXECUTOR_WORK",
            Self::Version { .. } => "EXECUTOR_VERSION",
            Self::File(error) => error.code(),
            Self::Job(_) => "INVALID_JOB",
            Self::Training(_) => "SEGMENT_FAILED",
            Self::State(_) => "INVALID_STATE",
        }
    }
}

/// The loaded work of an executor.
#[derive(Debug)]
pub struct LoadedWork {
    folder: WorkFolder,
    work: ExecutorWork,
    training: LeasedTraining,
}

impl LoadedWork {
    /// Loads the work of a folder.
    ///
    /// # Errors
    /// [`ExecuteError`].
    pub fn load(folder: &Path) -> Result<Self, ExecuteError> {
        let folder = WorkFolder::new(folder.to_owned());
        let missing = || ExecuteError::NoWork(folder.path().display().to_string());
        let work = folder.work()?.ok_or_else(missing)?;
        if work.version != VERSION {
            return Err(ExecuteError::Version { daemon: work.version, own: VERSION });
        }
        let rows = match work.kind {
            WorkKind::Measure => JobRows::StandIn,
            WorkKind::Segments => JobRows::All,
        };
        let read = |digest, limit| Ok::<_, ExecuteError>(folder.blob(digest, limit)?);
        let training = LeasedTraining::load_with(&work.order, &work.job, rows, read)?;
        Ok(Self { folder, work, training })
    }

    /// The order.
    #[must_use]
    pub fn order(&self) -> Digest {
        self.work.order.id()
    }

    /// The model and the rows: what further ranks of the training need.
    #[must_use]
    pub const fn model_and_rows(&self) -> (&ModelSpec, &Dataset) {
        (self.training.model(), self.training.rows())
    }

    /// Virtual workers of the job.
    #[must_use]
    pub const fn virtual_workers(&self) -> u32 {
        self.work.job.virtual_workers
    }

    /// A random text by which the ranks find each other.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.work.token
    }

    /// The seed of the job.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.work.job.seed
    }

    /// Computes the work on a number of devices, and writes each state as it is reached. Ends behind a segment once
    /// `is_stopped` returns true. The result, or the error, is written too.
    ///
    /// # Errors
    /// [`ExecuteError`].
    pub fn execute(
        &self,
        engine: &mut dyn Engine,
        devices: u32,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), ExecuteError> {
        let computed = match self.work.kind {
            WorkKind::Measure => self.measure(engine).map(Some),
            WorkKind::Segments => self.segments(engine, devices, is_stopped).map(|()| None),
        };
        if self.folder.path().is_dir() {
            write_result(&self.folder, &computed)?;
        }
        computed.map(drop)
    }

    fn measure(&self, engine: &mut dyn Engine) -> Result<u64, ExecuteError> {
        let measured = MeasuredSteps {
            step_us_max: self.work.order.step_us_max,
            steps_max: self.work.order.steps,
            is_first: true,
        };
        Ok(measure_step(&self.training, engine, &self.training.first(), measured)?)
    }

    fn segments(
        &self,
        engine: &mut dyn Engine,
        devices: u32,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), ExecuteError> {
        let order = &self.work.order;
        let (mut segment, mut start) = self.last_start()?;
        while segment < order.segments && !is_stopped() && !self.folder.is_asked_to_stop() {
            let began = Instant::now();
            let steps = order.steps_before(segment.saturating_add(1)).min(self.work.job.steps());
            let steps = steps.saturating_sub(start.state().step()).max(1);
            let end = self.training.end_of_segment(engine, &start)?;
            let us = began.elapsed().as_micros().div_ceil(steps.into());
            segment = segment.saturating_add(1);
            let bytes = end.to_bytes()?;
            if !self.folder.path().is_dir() {
                return Err(ExecuteError::NoWork(self.folder.path().display().to_string()));
            }
            self.folder.states().write_state(segment, Digest(end.digest()), &bytes)?;
            self.folder.add_time(devices, u64::try_from(us).unwrap_or(u64::MAX).max(1))?;
            start = start.next(end);
        }
        Ok(())
    }

    /// The last state in the folder, with its segment.
    fn last_start(&self) -> Result<(u32, SegmentStart), ExecuteError> {
        let states = self.folder.states().states()?;
        let Some((segment, stored)) = states.into_iter().next_back() else {
            return Ok((0, self.training.first()));
        };
        Ok((segment, self.training.start(segment, stored.digest, &stored.read()?)?))
    }
}

/// Writes the result of a work that could not be loaded.
///
/// # Errors
/// [`FileError`] if the folder cannot be written.
pub fn write_failure(folder: &Path, error: &ExecuteError) -> Result<(), FileError> {
    let error = Some((error.code().to_owned(), error.to_string()));
    WorkFolder::new(folder.to_owned()).write_result(&ExecutorResult { step_us: None, error })
}

fn write_result(
    folder: &WorkFolder,
    computed: &Result<Option<u64>, ExecuteError>,
) -> Result<(), FileError> {
    match computed {
        Ok(step_us) => folder.write_result(&ExecutorResult { step_us: *step_us, error: None }),
        Err(error) => write_failure(folder.path(), error),
    }
}
