//! The errors of engines.

use thiserror::Error;

use crate::checkpoint::StateError;
use crate::memory::MemoryError;
use crate::model::ModelError;
use crate::ranks::RankError;
use crate::training::{Precision, TrainingError};

/// A training failed.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum TrainError {
    /// The model, the data and the initial parameters do not match.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A hyperparameter is out of bounds.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// A state is not one of this training.
    #[error(transparent)]
    State(#[from] StateError),
    /// The loss or a parameter is no longer finite.
    #[error("training diverged at step {step}: lower the learning rate or clip the gradient")]
    Diverged {
        /// The step, from 1.
        step: u64,
    },
    /// The progress callback stopped the training.
    #[error("training was stopped after step {step}")]
    Stopped {
        /// Number of steps done.
        step: u64,
    },
    /// A trainer failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Another process of the training failed.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// A step does not fit into the memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The engine failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// An evaluation failed.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum EvalError {
    /// The model, the parameters, the data or the directions do not match.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A trainer failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The engine failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<EvalError> for TrainError {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Input(error) => error.into(),
            EvalError::Command(error) => error.into(),
            EvalError::Backend(error) => error.into(),
        }
    }
}

/// A trainer cannot be run, or failed.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{why}")]
pub struct CommandError {
    /// The stable error code.
    pub code: &'static str,
    /// The reason, with the program's own messages.
    pub why: String,
}

impl CommandError {
    /// Whether this machine does not run the trainer: it has not run at all.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self.code, TRAINER_FAILED | TRAINER_TIMED_OUT | TRAINER_OUTPUT_INVALID)
    }
}

/// The codes of trainers that ran.
pub(crate) const TRAINER_FAILED: &str = "TRAINER_FAILED";
pub(crate) const TRAINER_TIMED_OUT: &str = "TRAINER_TIMED_OUT";
pub(crate) const TRAINER_OUTPUT_INVALID: &str = "TRAINER_OUTPUT_INVALID";

/// Invalid input of an engine.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum InputError {
    /// The model is invalid, or the data does not fit it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine does not support this kind of model.
    #[error("the {engine} engine does not support {model}; build with the feature `torch`")]
    Unsupported {
        /// The engine's name.
        engine: &'static str,
        /// The model as text.
        model: String,
    },
    /// The engine lacks operators of a graph.
    #[error("the {engine} engine has no {}; libtorch has (--engine torch)", operators.join(", "))]
    Operators {
        /// The engine's name.
        engine: &'static str,
        /// The operators.
        operators: Vec<String>,
    },
    /// The tensors of a graph exceed the memory of an engine.
    #[error(
        "the tensors of {rows} rows have {bytes} bytes, and the {engine} engine has at most {most}: \
         use smaller batches, or libtorch (--engine torch)"
    )]
    TooLarge {
        /// The engine's name.
        engine: &'static str,
        /// Number of rows.
        rows: usize,
        /// Bytes in `f32`.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A graph without its program.
    #[error("the model {model} is not loaded: fetch the task's graph and its frozen weights")]
    NotLoaded {
        /// The model as text.
        model: String,
    },
    /// The gradient of a row depends on other rows.
    #[error(
        "the model {model} trains statistics of its batches, which belong to no row: publish the \
         task with buffers = \"freeze\""
    )]
    Statistics {
        /// The model as text.
        model: String,
    },
    /// Only graphs on libtorch train in less than 32 bits.
    #[error(
        "the {engine} engine trains this model in f32 only: leave out the precision {precision}"
    )]
    Precision {
        /// The engine's name.
        engine: &'static str,
        /// The precision asked for.
        precision: Precision,
    },
    /// Only graphs on libtorch train by virtual workers.
    #[error(
        "the {engine} engine trains this model without virtual workers: leave out --virtual-workers \
         and start one process"
    )]
    VirtualWorkers {
        /// The engine's name.
        engine: &'static str,
    },
    /// Only graphs on libtorch train a segment.
    #[error(
        "the {engine} engine trains no segments of this model: export it as a graph, train it with \
         virtual workers, and use libtorch (--engine torch)"
    )]
    Segments {
        /// The engine's name.
        engine: &'static str,
    },
    /// A segment is no part of its training.
    #[error("a segment from step {from} to {to} is no part of a training of {steps} steps")]
    Steps {
        /// Steps before the segment.
        from: u64,
        /// The last step of the segment.
        to: u64,
        /// Steps of the training.
        steps: u64,
    },
    /// The engine does not return the outputs of a model.
    #[error("this engine returns losses, not predictions: choose another one by --engine")]
    NoOutputs,
    /// A trainer has no gradients of single rows.
    #[error("a model that is a trainer has no gradients of rows: train without --clip and --noise")]
    NoRowGradients,
    /// The data has no rows.
    #[error("the data has no rows; at least one is required")]
    NoRows,
    /// A group exceeds the rows of the data.
    #[error("a group ends before row {end}, but the data has {rows} rows")]
    Group {
        /// End of the group, exclusive.
        end: usize,
        /// Number of rows of the data.
        rows: usize,
    },
    /// A vector has the wrong length.
    #[error("{what}: {got} numbers; the model has {expected} parameters")]
    Length {
        /// The parameters, or the index of the direction.
        what: String,
        /// Number of the model's parameters.
        expected: usize,
        /// Length of the vector.
        got: usize,
    },
    /// A vector contains NaN or infinity.
    #[error("{what}: number {index} is not finite")]
    NotFinite {
        /// The parameters, or the index of the direction.
        what: String,
        /// Index of the element, from 0.
        index: usize,
    },
}

/// A failure inside an engine, with the engine's own message.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("the {engine} engine failed: {why}")]
pub struct BackendError {
    /// The engine's name.
    pub engine: &'static str,
    /// The first line of its message.
    pub why: String,
}
