//! Selection of an engine by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checkpoint::CheckpointSettings;
use crate::engine::{BackendError, Engine};
use crate::field_products::{FieldProducts, PlainFieldProducts};
use crate::memory::MemorySettings;
use crate::ranks::Ranks;
use crate::reference::Reference;

/// Largest number of threads of an engine.
pub const THREADS_MAX: usize = 1_024;

/// The kind of engine. `FromStr` parses the output of `Display`: `auto`, `torch`, `cuda`,
/// `reference`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// libtorch on the first GPU if there is one, else libtorch on the CPU; the pure Rust engine in
    /// a build without libtorch.
    #[default]
    Auto,
    /// libtorch on the CPU.
    Torch,
    /// libtorch on the first GPU; an error without one.
    Cuda,
    /// The pure Rust engine.
    Reference,
}

/// The engine is not available.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EngineError {
    /// This build has no libtorch.
    #[error(
        "this program was built without libtorch: enable the feature `torch`, or use `reference`"
    )]
    NoTorch,
    /// The libraries of libtorch cannot be loaded.
    #[error(
        "libtorch cannot be loaded: {why}: set LD_LIBRARY_PATH to its folder `lib`, or use `reference`"
    )]
    NotLoaded {
        /// The loader's message.
        why: String,
    },
    /// libtorch found no usable GPU.
    #[error("libtorch finds no GPU: {why}")]
    NoGpu {
        /// Details of the search.
        why: String,
    },
    /// Probes test cores of the processor.
    #[error(
        "a listing offers cores of the processor, and no GPU: use the engine torch or reference"
    )]
    NoProbe,
    /// The number of threads is out of bounds.
    #[error("threads is {threads}: must be 1 to {THREADS_MAX}")]
    Threads {
        /// The number requested.
        threads: usize,
    },
    /// libtorch failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The name of an engine is unknown.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("`{given}` is not an engine: use auto, torch, cuda or reference")]
pub struct EngineNameError {
    given: String,
}

impl FromStr for EngineKind {
    type Err = EngineNameError;

    fn from_str(text: &str) -> Result<Self, EngineNameError> {
        match text {
            "auto" => Ok(Self::Auto),
            "torch" => Ok(Self::Torch),
            "cuda" => Ok(Self::Cuda),
            "reference" => Ok(Self::Reference),
            _ => Err(EngineNameError { given: text.chars().take(40).collect() }),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Torch => "torch",
            Self::Cuda => "cuda",
            Self::Reference => "reference",
        })
    }
}

/// Creates an engine of this kind. `threads` is the number of threads of a single operation; one is
/// best for small models and for many participants on one machine. The pure Rust engine uses them
/// only for directional derivatives.
pub fn engine(kind: EngineKind, threads: usize) -> Result<Box<dyn Engine>, EngineError> {
    engine_with(kind, threads, EngineOptions::default())
}

/// The parts of an engine beside its kind. The pure Rust engine uses none of it.
#[derive(Debug, Default)]
pub struct EngineOptions {
    /// The other processes of its trainings; this one is rank 0.
    pub ranks: Option<Ranks>,
    /// Where trainings by virtual workers store their state.
    pub checkpoints: Option<CheckpointSettings>,
    /// Where the tensors of steps go that are larger than the memory; `None` is the system's folder for
    /// temporary files, without news.
    pub memory: Option<MemorySettings>,
    /// The GPU, by number among those of this machine; larger numbers begin again at the first.
    pub gpu: u32,
}

/// As [`engine`], with options.
pub fn engine_with(
    kind: EngineKind,
    threads: usize,
    options: EngineOptions,
) -> Result<Box<dyn Engine>, EngineError> {
    if threads == 0 || threads > THREADS_MAX {
        return Err(EngineError::Threads { threads });
    }
    match kind {
        EngineKind::Reference => Ok(Box::new(Reference::with_threads(threads))),
        kind => torch(kind, threads, options),
    }
}

#[cfg(feature = "torch")]
fn torch(
    kind: EngineKind,
    threads: usize,
    options: EngineOptions,
) -> Result<Box<dyn Engine>, EngineError> {
    let mut engine = torch_engine(kind, threads)?.on_gpu(options.gpu);
    if let Some(settings) = options.checkpoints {
        engine = engine.with_checkpoints(settings);
    }
    if let Some(settings) = options.memory {
        engine = engine.with_memory(settings);
    }
    if let Some(ranks) = options.ranks {
        engine = engine.with_ranks(ranks);
    }
    Ok(Box::new(engine))
}

/// Makes the products of one device of a probe.
pub type MakeFieldProducts = fn() -> Box<dyn FieldProducts>;

/// Makes products on one core of the processor: by libtorch, or plain in a build without it.
///
/// # Errors
/// [`EngineError`] for a GPU, which no probe tests, and for libtorch in a build without it.
pub fn field_products(kind: EngineKind) -> Result<MakeFieldProducts, EngineError> {
    match kind {
        EngineKind::Reference => Ok(|| Box::new(PlainFieldProducts::default())),
        EngineKind::Cuda => Err(EngineError::NoProbe),
        EngineKind::Auto | EngineKind::Torch => torch_products(kind),
    }
}

#[cfg(feature = "torch")]
fn torch_products(_: EngineKind) -> Result<MakeFieldProducts, EngineError> {
    crate::torch::load().map_err(|why| EngineError::NotLoaded { why })?;
    Ok(|| Box::new(crate::torch::TorchFieldProducts::default()))
}

#[cfg(not(feature = "torch"))]
fn torch_products(kind: EngineKind) -> Result<MakeFieldProducts, EngineError> {
    match kind {
        EngineKind::Auto => Ok(|| Box::new(PlainFieldProducts::default())),
        _ => Err(EngineError::NoTorch),
    }
}

/// Predicts the bytes of the tensors of a graph's step on `rows` rows at once, beside parameters, rows and
/// the optimizer's state, from steps on a few rows of `sample`. `None` for other models and engines, and if
/// they depend on the numbers.
///
/// # Errors
/// [`TrainError`](crate::engine::TrainError) if the engine fails.
#[cfg(feature = "torch")]
pub fn step_bytes(
    (kind, threads): (EngineKind, usize),
    model: &crate::ModelSpec,
    sample: &crate::Dataset,
    rows: u32,
) -> Result<Option<u64>, crate::engine::TrainError> {
    let engine = match kind {
        EngineKind::Reference => None,
        kind => torch_engine(kind, threads).ok(),
    };
    match (engine, model) {
        (Some(engine), crate::ModelSpec::Graph(graph)) if !model.is_trainer() => {
            engine.graph_step_bytes(graph, sample, rows)
        }
        _ => Ok(None),
    }
}

/// As [`step_bytes`], with the times of the step in smaller memories.
///
/// # Errors
/// [`TrainError`](crate::engine::TrainError) if the engine fails.
#[cfg(feature = "torch")]
pub fn step_memory(
    threads: usize,
    model: &crate::ModelSpec,
    sample: &crate::Dataset,
    rows: u32,
) -> Result<Option<crate::memory::MemoryQuote>, crate::engine::TrainError> {
    match (torch_engine(EngineKind::Torch, threads).ok(), model) {
        (Some(engine), crate::ModelSpec::Graph(graph)) if !model.is_trainer() => {
            engine.graph_step_memory(graph, sample, rows)
        }
        _ => Ok(None),
    }
}

/// Without libtorch no step is recorded.
///
/// # Errors
/// None.
#[cfg(not(feature = "torch"))]
pub fn step_memory(
    _: usize,
    _: &crate::ModelSpec,
    _: &crate::Dataset,
    _: u32,
) -> Result<Option<crate::memory::MemoryQuote>, crate::engine::TrainError> {
    Ok(None)
}

/// Without libtorch no step is recorded.
///
/// # Errors
/// None.
#[cfg(not(feature = "torch"))]
pub fn step_bytes(
    _: (EngineKind, usize),
    _: &crate::ModelSpec,
    _: &crate::Dataset,
    _: u32,
) -> Result<Option<u64>, crate::engine::TrainError> {
    Ok(None)
}

/// The libtorch engine of a kind.
#[cfg(feature = "torch")]
pub(crate) fn torch_engine(
    kind: EngineKind,
    threads: usize,
) -> Result<crate::torch::Torch, EngineError> {
    use crate::torch::{Torch, TorchDevice};
    crate::torch::load().map_err(|why| EngineError::NotLoaded { why })?;
    let processor = match kind {
        EngineKind::Auto => TorchDevice::Auto,
        EngineKind::Cuda => TorchDevice::Gpu,
        EngineKind::Torch | EngineKind::Reference => TorchDevice::Cpu,
    };
    Torch::new(processor, threads)
}

#[cfg(not(feature = "torch"))]
fn torch(kind: EngineKind, _: usize, _: EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
    match kind {
        EngineKind::Auto => Ok(Box::new(Reference::new())),
        _ => Err(EngineError::NoTorch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_names_round_trip() {
        for text in ["auto", "torch", "cuda", "reference"] {
            assert_eq!(text.parse::<EngineKind>().unwrap().to_string(), text);
        }
        let error = "gpu".parse::<EngineKind>().unwrap_err().to_string();
        assert_eq!(error, "`gpu` is not an engine: use auto, torch, cuda or reference");
    }

    #[test]
    fn every_build_has_an_engine() {
        assert_eq!(engine(EngineKind::Reference, 1).unwrap().name(), "reference");
        assert!(engine(EngineKind::Auto, 1).is_ok());
        let threads = |threads| engine(EngineKind::Reference, threads).err();
        assert_eq!(threads(0), Some(EngineError::Threads { threads: 0 }));
        #[cfg(feature = "torch")]
        assert!(engine(EngineKind::Torch, 1).unwrap().name().starts_with("torch"));
        #[cfg(not(feature = "torch"))]
        assert_eq!(engine(EngineKind::Torch, 1).err(), Some(EngineError::NoTorch));
    }
}
