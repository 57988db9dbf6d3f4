//! The state of a training between two steps, from which it continues after a stop or a crash, or on another
//! machine.
//!
//! A file is in the format of safetensors. Its key is a digest of everything that decides the
//! training, so that a file of another training is never used.

#[cfg(feature = "torch")]
mod file;
mod state;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

#[cfg(feature = "torch")]
pub(crate) use file::Checkpoint;
pub(crate) use state::StateNumbers;
pub use state::{StateError, TrainingState};

/// News of the state of a training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointNews {
    /// A training continues from its file.
    Continues {
        /// Steps that were done.
        step: u64,
        /// All steps.
        steps: u64,
    },
    /// The state cannot be stored. The training goes on without.
    NotStored {
        /// The reason.
        why: String,
    },
}

impl fmt::Display for CheckpointNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continues { step, steps } => {
                write!(f, "the training continues after step {step} of {steps}")
            }
            Self::NotStored { why } => write!(f, "{why}; the training goes on without"),
        }
    }
}

/// Where and how often a training is stored.
#[derive(Clone)]
pub struct CheckpointSettings {
    /// The file. A training that ends removes it.
    pub file: PathBuf,
    /// The time from one file to the next.
    pub every: Duration,
    /// Receives news.
    pub notify: Arc<dyn Fn(&CheckpointNews) + Send + Sync>,
}

impl fmt::Debug for CheckpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointSettings").field("file", &self.file).finish_non_exhaustive()
    }
}
