//! Trainers: programs that train a model, and may be a model, in a sandbox.
//!
//! The program receives the rows, the parameters and the settings as files, and writes its result
//! into one file. A participant's own trainer only trains: it decides what the participant sends.
//! A trainer that is a task's model also computes its losses and, if it can, gradients, on the
//! machine of every party that values, audits or trains.

mod code;
mod job;
mod sandbox;

use std::fs::Permissions;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use thiserror::Error;

use crate::engine::{
    CommandError, EvalError, Evaluator, InputError, RowGradient, SegmentPoint, TRAINER_FAILED,
    TRAINER_OUTPUT_INVALID, TRAINER_TIMED_OUT, TrainError, Trainer, TrainingQuote,
    check_evaluation, check_training, evaluate_point_by_point,
};
use crate::{
    Dataset, Engine, ModelSpec, ParameterSegment, TrainedModel, Training, TrainingStep, mean,
};

use code::code_error;
pub use code::{CODE_BYTES_MAX, CODE_FILES_MAX, PROGRAM, TrainerCode};
pub use job::read_parameters;
use job::{Job, Losses, Verb};
use sandbox::{Outcome, Sandbox};

/// The mode of folders with rows and code.
const PRIVATE: u32 = 0o700;
/// Rows whose loss after the training is measured, at most.
const MEASURED_ROWS: usize = 1_024;
/// Parameters of the models of one run, in bytes, unless a single model has more.
const MODELS_BYTES_MAX: usize = 256 << 20;
/// Losses of one run, at most.
const LOSSES_MAX: usize = 1 << 24;

/// How trainers are run on this machine.
#[derive(Debug, Clone)]
pub struct TrainerHost {
    /// The digests of the code that is run.
    pub accepted: Vec<[u8; 32]>,
    /// Files, folders and devices that the sandbox shows besides the system's programs.
    pub binds: Vec<PathBuf>,
    /// Files and folders that no bind and no code may contain: the wallet, the state folder.
    pub secrets: Vec<PathBuf>,
    /// The folder for the files of a run.
    pub scratch: PathBuf,
    /// The longest time of a run.
    pub limit: Duration,
    /// Where the program runs.
    pub isolation: Isolation,
}

/// Where a trainer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In a sandbox of bubblewrap.
    Sandbox,
    /// As a child process with all rights of this one.
    Unsandboxed,
}

/// A trainer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TrainerError {
    /// Bubblewrap is not installed, or cannot create a sandbox here.
    #[error(
        "no sandbox for the trainer: {why}. Install bubblewrap 0.8 or later (package \
         `bubblewrap`) and allow user namespaces, or trust the code with all your files, keys and \
         network by --unsandboxed"
    )]
    SandboxMissing {
        /// The first failure.
        why: String,
    },
    /// The code is not usable.
    #[error("trainer {}: {why}", path.display())]
    Code {
        /// The folder, or a file in it.
        path: PathBuf,
        /// The problem, and what would be valid.
        why: String,
    },
    /// The code has not been accepted.
    #[error(
        "the trainer's code has the digest {digest}: read the code, then accept it by \
         --accept-trainer {digest}"
    )]
    NotAccepted {
        /// The digest of the code, in hexadecimal digits.
        digest: String,
    },
    /// The sandbox would show a secret.
    #[error(
        "the trainer would see {}: move it out of {}, or the trainer elsewhere",
        secret.display(), shown.display()
    )]
    ShowsSecret {
        /// The wallet or the state folder.
        secret: PathBuf,
        /// The folder that contains it.
        shown: PathBuf,
    },
}

impl TrainerError {
    /// The stable error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::SandboxMissing { .. } => "SANDBOX_MISSING",
            Self::Code { .. } => "INVALID_TRAINER",
            Self::NotAccepted { .. } => "TRAINER_NOT_ACCEPTED",
            Self::ShowsSecret { .. } => "TRAINER_SEES_SECRETS",
        }
    }
}

impl From<TrainerError> for CommandError {
    fn from(error: TrainerError) -> Self {
        Self { code: error.code(), why: error.to_string() }
    }
}

impl TrainerHost {
    /// Refuses code that has not been accepted.
    ///
    /// # Errors
    /// [`TrainerError::NotAccepted`].
    pub fn check_accepted(&self, digest: &[u8; 32]) -> Result<(), TrainerError> {
        match self.accepted.contains(digest) {
            true => Ok(()),
            false => {
                let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(TrainerError::NotAccepted { digest })
            }
        }
    }

    /// Checks that a sandbox can be created, before anything depends on it.
    ///
    /// # Errors
    /// [`TrainerError::SandboxMissing`], or a bind that shows a secret.
    pub fn check_sandbox(&self) -> Result<(), TrainerError> {
        Sandbox::new(self, Path::new("/")).map(drop)
    }

    /// Writes the code into a folder of its own, so that no later change of it is run.
    fn prepare(&self, code: &TrainerCode) -> Result<ReadyTrainer, TrainerError> {
        let digest = code.digest();
        self.check_accepted(&digest)?;
        let unwritten = |error: std::io::Error| code_error(&self.scratch, &error.to_string());
        std::fs::create_dir_all(&self.scratch).map_err(unwritten)?;
        let builder = &mut tempfile::Builder::new();
        builder.prefix("trainer-").permissions(Permissions::from_mode(PRIVATE));
        let folder = builder.tempdir_in(&self.scratch).map_err(unwritten)?;
        code.write_to(folder.path()).map_err(unwritten)?;
        let sandbox = Sandbox::new(self, folder.path())?;
        Ok(ReadyTrainer { digest, sandbox, _folder: folder })
    }
}

/// A trainer that can be run.
struct ReadyTrainer {
    digest: [u8; 32],
    sandbox: Sandbox,
    /// Holds the code, and is removed at the end.
    _folder: TempDir,
}

/// An engine that runs trainers: all of a model that is one, and the training of other models if the
/// participant has a trainer of its own. All else is another engine's.
pub struct TrainerEngine {
    inner: Box<dyn Engine>,
    host: TrainerHost,
    own: Option<ReadyTrainer>,
    /// The trainer of the last model.
    of_model: Option<ReadyTrainer>,
}

impl TrainerEngine {
    /// An engine that runs the trainers of models.
    pub fn new(host: TrainerHost, inner: Box<dyn Engine>) -> Self {
        Self { inner, host, own: None, of_model: None }
    }

    /// The same with a participant's own trainer in a folder, which trains every model.
    ///
    /// # Errors
    /// [`TrainerError`] if the code is unusable or not accepted, if it contains a secret, or if there is
    /// no sandbox.
    pub fn with_own(mut self, folder: &Path) -> Result<Self, TrainerError> {
        let code = TrainerCode::read(folder)?;
        self.host.check_accepted(&code.digest())?;
        if self.host.isolation == Isolation::Sandbox {
            sandbox::check_folder(&self.host.secrets, folder)?;
        }
        self.own = Some(self.host.prepare(&code)?);
        Ok(self)
    }

    /// The trainer of a model that is one.
    fn of_model(&mut self, model: &ModelSpec) -> Result<&ReadyTrainer, EvalError> {
        let ModelSpec::Graph(graph) = model else {
            return Err(InputError::NotLoaded { model: model.to_string() }.into());
        };
        let digest = graph.declaration().digest;
        if self.of_model.as_ref().is_none_or(|ready| ready.digest != digest) {
            let missing = || InputError::NotLoaded { model: model.to_string() };
            let code = graph.code().ok_or_else(missing)?;
            self.of_model = None;
            self.of_model = Some(self.host.prepare(code).map_err(CommandError::from)?);
        }
        let missing = || InputError::NotLoaded { model: model.to_string() };
        Ok(self.of_model.as_ref().ok_or_else(missing)?)
    }

    /// Runs one verb of a model's trainer, and reads its output.
    fn run<T>(
        &mut self,
        job: Job<'_>,
        read: impl FnOnce(&Job<'_>, &Path) -> Result<T, String>,
    ) -> Result<T, EvalError> {
        let (scratch, limit) = (self.host.scratch.clone(), self.host.limit);
        let ready = self.of_model(job.model)?;
        let folder = job.write(&scratch).map_err(|error| failed(&error))?;
        let mut go_on = || ControlFlow::Continue(());
        run_verb(ready, &job, &folder, limit, &mut go_on)?
            .map_err(|_| failed(&"the trainer was stopped"))?;
        read(&job, folder.path()).map_err(|why| invalid_output(job.verb, &why).into())
    }

    /// The bounded losses of each row at each model, and whether predictions are right.
    fn losses(
        &mut self,
        model: &ModelSpec,
        models: &[&[f64]],
        data: &Dataset,
    ) -> Result<Losses, EvalError> {
        for params in models {
            check_evaluation(model, params, &[], data)?;
        }
        let bytes = model.parameters().saturating_mul(size_of::<f64>()).max(1);
        let most = (MODELS_BYTES_MAX / bytes).min(LOSSES_MAX / data.rows().max(1)).max(1);
        let mut all = Losses { losses: Vec::new(), correct: Vec::new() };
        for models in models.chunks(most) {
            let job = Job { model, data, verb: Verb::Losses { models } };
            let found = self.run(job, |job, folder| job.read_losses(folder, models.len()))?;
            all.losses.extend(found.losses);
            all.correct.extend(found.correct);
        }
        Ok(all)
    }

    /// The bounded losses of each row at each model.
    fn bounded_losses(
        &mut self,
        model: &ModelSpec,
        models: &[&[f64]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        let found = self.losses(model, models, data)?.losses;
        let bound = |losses: Vec<f64>| losses.into_iter().map(|loss| model.bound(loss).0).collect();
        Ok(found.into_iter().map(bound).collect())
    }

    /// The mean loss of some of the rows, for display.
    fn measure(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
    ) -> Result<f64, TrainError> {
        let rows: Vec<usize> =
            (0..data.rows()).step_by(data.rows().div_ceil(MEASURED_ROWS).max(1)).collect();
        let some = data.subset(&rows).map_err(|error| failed(&error))?;
        let params: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        Ok(mean(&self.row_losses(model, &params, &some)?))
    }
}

/// Runs one verb in `folder`. The inner error is a stop on request.
fn run_verb(
    ready: &ReadyTrainer,
    job: &Job<'_>,
    folder: &TempDir,
    limit: Duration,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Result<(), Stopped>, EvalError> {
    let outcome = ready
        .sandbox
        .run(folder.path(), job.verb, job.output_bytes_max(), limit, go_on)
        .map_err(|error| failed(&error))?;
    let (code, why) = match outcome {
        Outcome::Done => return Ok(Ok(())),
        Outcome::Stopped => return Ok(Err(Stopped)),
        Outcome::TimedOut => {
            let seconds = limit.as_secs();
            let why = format!(
                "the trainer ran for more than {seconds} s and was stopped: train less, or raise \
                 --trainer-limit"
            );
            (TRAINER_TIMED_OUT, why)
        }
        Outcome::NoSandbox { log } => return Err(failed(&log).into()),
        Outcome::Failed { status, log } => {
            (TRAINER_FAILED, format!("the trainer ended with {status}: {log}"))
        }
    };
    Err(CommandError { code, why }.into())
}

/// A run was stopped on request.
struct Stopped;

fn invalid_output(verb: Verb<'_>, why: &str) -> CommandError {
    let why = format!("the trainer's {}: {why}", verb.output());
    CommandError { code: TRAINER_OUTPUT_INVALID, why }
}

/// A failure of this machine that is not the program's.
fn failed(why: &impl ToString) -> CommandError {
    let why = format!("the trainer cannot be run here: {}", why.to_string());
    CommandError { code: "TRAINER_UNAVAILABLE", why }
}

impl Engine for TrainerEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl Trainer for TrainerEngine {
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        if self.own.is_none() && !model.is_trainer() {
            return self.inner.train(model, start, data, how, seed, progress);
        }
        check_training(model, start, data, how)?;
        let job = Job { model, data, verb: Verb::Train { start, how, seed } };
        let steps = how.steps(data.rows());
        let folder = job.write(&self.host.scratch).map_err(|error| failed(&error))?;
        let limit = self.host.limit;
        let ready = match &self.own {
            Some(own) => own,
            None => self.of_model(model)?,
        };
        let mut go_on = || progress(TrainingStep { step: 0, steps, loss: 0.0 });
        if run_verb(ready, &job, &folder, limit, &mut go_on)?.is_err() {
            return Err(TrainError::Stopped { step: 0 });
        }
        let read = job.read_update(folder.path());
        let params = read.map_err(|why| invalid_output(job.verb, &why))?;
        let mean_loss = self.measure(model, &params, data)?;
        Ok(TrainedModel { params, steps, mean_loss })
    }

    fn quote(
        &mut self,
        model: &ModelSpec,
        data: &Dataset,
        how: &Training,
    ) -> Result<Option<TrainingQuote>, TrainError> {
        match self.own.is_some() || model.is_trainer() {
            true => Ok(None),
            false => self.inner.quote(model, data, how),
        }
    }

    fn row_gradients(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        data: &Dataset,
        rows: &[usize],
        look: &mut dyn FnMut(RowGradient<'_>),
    ) -> Result<(), TrainError> {
        match model.is_trainer() {
            true => Err(InputError::NoRowGradients.into()),
            false => self.inner.row_gradients(model, params, data, rows, look),
        }
    }
}

impl Evaluator for TrainerEngine {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        match model.is_trainer() {
            true => Ok(self.bounded_losses(model, &[params], data)?.concat()),
            false => self.inner.row_losses(model, params, data),
        }
    }

    fn row_losses_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        match model.is_trainer() {
            true => self.bounded_losses(model, params, data),
            false => self.inner.row_losses_at(model, params, data),
        }
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        match model.is_trainer() {
            true => Err(InputError::NoRowGradients.into()),
            false => self.inner.row_directional_derivatives(model, params, directions, data),
        }
    }

    fn row_directional_derivatives_at(
        &mut self,
        model: &ModelSpec,
        params: &[&[f64]],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<Vec<f64>>>, EvalError> {
        match model.is_trainer() {
            true => Err(InputError::NoRowGradients.into()),
            false => self.inner.row_directional_derivatives_at(model, params, directions, data),
        }
    }

    fn row_outputs(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        match model.is_trainer() {
            true => Err(InputError::NoOutputs.into()),
            false => self.inner.row_outputs(model, params, data),
        }
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        if !model.is_trainer() {
            return self.inner.correct_predictions(model, params, data);
        }
        if model.classes() == 1 {
            return Ok(0);
        }
        let found = self.losses(model, &[params], data)?.correct;
        Ok(found.concat().into_iter().filter(|right| *right).count())
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        if !model.is_trainer() {
            return self.inner.gradient(model, params, data);
        }
        let found = self.losses(model, &[params], data)?.losses.concat();
        let bounded: Vec<(f64, f64)> = found.into_iter().map(|loss| model.bound(loss)).collect();
        let rows = data.rows() as f64;
        let weights: Vec<f64> = bounded.iter().map(|(_, slope)| slope / rows).collect();
        let job = Job { model, data, verb: Verb::Gradient { params, weights: &weights } };
        let gradient = self.run(job, |job, folder| job.read_gradient(folder))?;
        let losses: Vec<f64> = bounded.into_iter().map(|(loss, _)| loss).collect();
        Ok((mean(&losses), gradient))
    }

    fn evaluate_on_segment(
        &mut self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        match way.model.is_trainer() {
            true => evaluate_point_by_point(self, way, places, data, groups, look),
            false => self.inner.evaluate_on_segment(way, places, data, groups, look),
        }
    }
}

#[cfg(test)]
mod tests;
