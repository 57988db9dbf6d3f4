//! A participant's own trainer: a program that trains in place of the engine, in a sandbox.
//!
//! The program receives the rows, the parameters and the settings as files, and writes the trained
//! parameters. It is code that the participant chose, so it decides only what the participant sends:
//! evaluation, valuation and audit stay with the engine.

mod code;
mod job;
mod sandbox;

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::time::Duration;

use florin_learning::engine::{
    BackendError, EvalError, Evaluator, RowGradient, SegmentPoint, TrainError, Trainer,
};
use florin_learning::{
    Dataset, Engine, ModelSpec, ParameterSegment, TrainedModel, Training, TrainingStep, mean,
};
use florin_protocol::Digest;
use thiserror::Error;

pub use code::{CODE_BYTES_MAX, CODE_FILES_MAX, PROGRAM, code_digest};
use job::Job;
use sandbox::{Outcome, Sandbox};

/// Rows whose loss after the training is measured, at most.
const MEASURED_ROWS: usize = 1_024;

/// Settings of a trainer.
#[derive(Debug, Clone)]
pub struct TrainerConfig {
    /// The folder with the code; its file [`PROGRAM`] is run.
    pub code: PathBuf,
    /// The digest of the code that the participant has accepted.
    pub accepted: Option<Digest>,
    /// Files, folders and devices that the sandbox shows besides the system's programs.
    pub binds: Vec<PathBuf>,
    /// Files and folders that no bind and no code may contain: the wallet, the state folder.
    pub secrets: Vec<PathBuf>,
    /// The folder for the files of a training.
    pub scratch: PathBuf,
    /// The longest time of a training.
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
#[derive(Debug, Error)]
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
    /// The folder of the code is not usable.
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
        /// The digest of the code.
        digest: Digest,
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

/// An engine whose training is a program; all else is another engine's.
pub struct CommandEngine {
    inner: Box<dyn Engine>,
    sandbox: Sandbox,
    scratch: PathBuf,
    limit: Duration,
}

impl CommandEngine {
    /// An engine that trains with the program of `config` and evaluates with `inner`.
    ///
    /// # Errors
    /// [`TrainerError`] if the code is unusable or not accepted, if the sandbox would show a secret, or
    /// if there is no sandbox.
    pub fn new(config: &TrainerConfig, inner: Box<dyn Engine>) -> Result<Self, TrainerError> {
        let digest = code_digest(&config.code)?;
        if config.accepted != Some(digest) {
            return Err(TrainerError::NotAccepted { digest });
        }
        let sandbox = Sandbox::new(config)?;
        Ok(Self { inner, sandbox, scratch: config.scratch.clone(), limit: config.limit })
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
        let some = data.subset(&rows).map_err(|error| failed(&error.to_string()))?;
        let params: Vec<f64> = params.iter().map(|value| f64::from(*value)).collect();
        match self.inner.row_losses(model, &params, &some) {
            Ok(losses) => Ok(mean(&losses)),
            Err(EvalError::Input(error)) => Err(error.into()),
            Err(EvalError::Backend(error)) => Err(error.into()),
        }
    }
}

/// A failure of this machine that is not the program's.
fn failed(why: &str) -> TrainError {
    TrainError::Backend(BackendError { engine: "trainer", why: why.to_owned() })
}

impl Engine for CommandEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl Trainer for CommandEngine {
    fn train(
        &mut self,
        model: &ModelSpec,
        start: &[f32],
        data: &Dataset,
        how: &Training,
        seed: u64,
        progress: &mut dyn FnMut(TrainingStep) -> ControlFlow<()>,
    ) -> Result<TrainedModel, TrainError> {
        model.check().map_err(florin_learning::engine::InputError::from)?;
        how.check()?;
        let job = Job { model, start, data, how, seed };
        let steps = how.steps(data.rows());
        let folder = job.write(&self.scratch).map_err(|error| failed(&error.to_string()))?;
        let mut go_on = || progress(TrainingStep { step: 0, steps, loss: 0.0 });
        let outcome = self
            .sandbox
            .run(folder.path(), job.output_bytes_max(), self.limit, &mut go_on)
            .map_err(|error| failed(&error.to_string()))?;
        let (code, why) = match outcome {
            Outcome::Stopped => return Err(TrainError::Stopped { step: 0 }),
            Outcome::TimedOut => {
                let seconds = self.limit.as_secs();
                let why = format!(
                    "the trainer ran for more than {seconds} s and was stopped: train less, or \
                     raise --trainer-limit"
                );
                ("TRAINER_TIMED_OUT", why)
            }
            Outcome::Failed { status, log } => {
                ("TRAINER_FAILED", format!("the trainer ended with {status}: {log}"))
            }
            Outcome::Done => match job.read(folder.path()) {
                Ok(params) => {
                    let mean_loss = self.measure(model, &params, data)?;
                    return Ok(TrainedModel { params, steps, mean_loss });
                }
                Err(why) => {
                    ("TRAINER_OUTPUT_INVALID", format!("the trainer's {}: {why}", job::OUTPUT))
                }
            },
        };
        Err(TrainError::Command { code, why })
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

impl Evaluator for CommandEngine {
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
mod tests;
