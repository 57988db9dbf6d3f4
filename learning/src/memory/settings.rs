//! Settings, news and errors of steps that are larger than the memory.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

/// News of the memory of a training.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryNews {
    /// A batch is computed in parts.
    Parts {
        /// Rows of a part.
        rows: u32,
        /// Bytes that a whole batch takes.
        needed: u64,
        /// Bytes of the memory.
        limit: u64,
    },
    /// Tensors leave the memory and return.
    Plan {
        /// Rows of a step, or of a part of it.
        rows: u32,
        /// Bytes that they take without a plan.
        needed: u64,
        /// Bytes of the memory.
        limit: u64,
        /// Bytes that are written and read again.
        offloaded: u64,
        /// Bytes that are computed again.
        recomputed: u64,
        /// Predicted time of a step, as a multiple of that with all tensors in the memory.
        slow_down: f64,
    },
}

/// Bytes in a unit for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1 << 30 => write!(f, "{:.1} MiB", bytes as f64 / 1_048_576.0),
            bytes => write!(f, "{:.2} GiB", bytes as f64 / 1_073_741_824.0),
        }
    }
}

impl fmt::Display for MemoryNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Parts { rows, needed, limit } => write!(
                f,
                "a step takes {} of memory and has {}: batches are computed in parts of {rows} rows",
                Size(needed),
                Size(limit)
            ),
            Self::Plan { rows, needed, limit, offloaded, recomputed, slow_down } => write!(
                f,
                "a step on {rows} rows takes {} of memory and has {}: {} leave it and return, {} are \
                 computed again, about {slow_down:.1} times as long as without a limit",
                Size(needed),
                Size(limit),
                Size(offloaded),
                Size(recomputed)
            ),
        }
    }
}

/// A step does not fit into the memory by any plan.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error(
    "a step on {rows} rows needs {} {} at least, and has {}: use more virtual workers, or {}",
    Size(*needed),
    if *is_host { "of the host's memory, for tensors that leave the GPU," } else { "of memory" },
    Size(*limit),
    if *is_host { "a GPU with more memory" } else { "more --memory" }
)]
pub struct MemoryError {
    /// Rows of the step, or of a part of it.
    pub rows: u32,
    /// Bytes that it needs with the smallest plan.
    pub needed: u64,
    /// Bytes of the memory.
    pub limit: u64,
    /// Whether it is the memory of a GPU's host.
    pub is_host: bool,
}

impl MemoryError {
    /// The code of this error.
    pub const CODE: &str = "MEMORY_TOO_SMALL";
}

/// Where tensors go that leave the memory.
#[derive(Clone)]
pub struct MemorySettings {
    /// The folder of their file, which must not be in memory. The file has no name.
    pub folder: PathBuf,
    /// Receives news.
    pub notify: Arc<dyn Fn(&MemoryNews) + Send + Sync>,
}

impl Default for MemorySettings {
    /// The system's folder for temporary files, without news.
    fn default() -> Self {
        Self { folder: std::env::temp_dir(), notify: Arc::new(|_| {}) }
    }
}

impl fmt::Debug for MemorySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySettings").field("folder", &self.folder).finish_non_exhaustive()
    }
}
