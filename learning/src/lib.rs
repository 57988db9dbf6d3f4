//! Data, models, local training, evaluation and aggregation rules.
//!
//! The crate defines models and their training. It contains no money, rounds, networking or
//! signatures. It reads a clock for the time limit of a trainer, the speed of ranks and the age of a
//! checkpoint alone; the randomness of every result derives from a seed of the caller.
//!
//! * [`data`]: labelled rows, from files or embedded; [`partition`]: their distribution over
//!   owners.
//! * [`model`], [`params`], [`tensors`]: model specifications, parameters and their encoding;
//!   [`wire`]: the wire formats of updates.
//! * [`engine`]: the traits [`Trainer`] and [`Evaluator`]; [`reference`] and (feature `torch`)
//!   `torch` are the two engines that implement them; [`select`] creates one.
//! * [`trainer`]: programs in a sandbox that train, and may be a model.
//! * [`training`]: hyperparameters of a training, its optimizer and schedule; [`augmentation`]: random
//!   changes of its images.
//! * [`virtual_workers`]: the parts of a batch and the tree of their gradients, on any devices;
//!   [`ranks`]: the processes that do; [`checkpoint`]: the state of a training on disk.
//! * [`pipeline`]: the cut of a graph into parts on several ranks, and the order of their passes.
//! * [`memory`]: the memory of a training step, and plans for steps that are larger than it.
//! * [`step_cost`]: the work of a training step, and its time by a device's card.
//! * [`metrics`]: accuracy, F1, AUROC, RMSE, R² and perplexity of predictions.
//! * [`privacy`]: training with clipped row gradients and noise, and the accountant of its privacy
//!   loss.
//! * [`mapped`]: memory-mapped files, for reading and as scratch space.
//! * [`aggregate`]: aggregation of updates. [`affine`]: a round's models as a function of
//!   coefficients, for valuation; [`coalitions`]: fast evaluation of very many of those models;
//!   [`path`]: the path integral of the loss for very many updates.
//!
//! ```no_run,standalone_crate
//! use std::ops::ControlFlow;
//! use florin_learning::data::{DataSource, load};
//! use florin_learning::{Evaluator, ModelSpec, Reference, Trainer, Training};
//!
//! let digits = load(&DataSource::Digits)?;
//! let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
//! let how = Training { momentum: 0.9, ..Training::sgd(3, 32, 0.1) };
//! let mut engine = Reference::new();
//! let start = model.init(1).into_vec();
//! let learn = digits.slice(0..1500)?;
//! let trained =
//!     engine.train(&model, &start, &learn, &how, 7, &mut |_| ControlFlow::Continue(()))?;
//! let params: Vec<f64> = trained.params.iter().map(|&value| value.into()).collect();
//! let test = digits.slice(1500..1797)?;
//! assert!(engine.correct_predictions(&model, &params, &test)? > 250);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod affine;
pub mod aggregate;
pub mod augmentation;
pub mod checkpoint;
pub mod coalitions;
pub mod data;
mod descent;
mod dot_lanes;
pub mod energy;
pub mod engine;
pub mod field_products;
mod gram;
pub mod graph;
mod loss;
pub mod mapped;
pub mod memory;
pub mod metrics;
pub mod model;
mod parallel;
pub mod params;
pub mod partition;
pub mod path;
pub mod pipeline;
pub mod privacy;
pub mod ranks;
pub mod reduction;
pub mod reference;
mod rng;
mod segment_record;
pub mod select;
pub mod step_cost;
pub mod tensors;
mod tile_kernel;
pub mod timing;
#[cfg(feature = "torch")]
pub mod torch;
pub mod trainer;
pub mod training;
pub mod virtual_workers;
pub mod wire;

pub use affine::AffineLoss;
pub use aggregate::{AggregateError, AggregationRule, MeanAccumulator, aggregate, aggregate_on};
pub use augmentation::Augmentation;
pub use coalitions::{CoalitionMasks, Coalitions, Updates};
pub use data::{DataSource, Dataset, RowChunks, RowEncoder, Table};
pub use engine::{
    Engine, Evaluator, ParameterSegment, RowGradient, SegmentPoint, TrainedModel, Trainer,
    TrainingStep, mean,
};
pub use gram::gram_matrix;
pub use loss::BoundedLoss;
pub use mapped::{RowMatrix, ScratchSpace};
pub use model::{ModelSpec, TensorSpec};
pub use parallel::{cores, parallel_map};
pub use params::Params;
pub use partition::{PartitionScheme, SplitPart, partition, split};
pub use path::{PathGradient, PathValue};
pub use reference::Reference;
pub use select::{EngineKind, engine};
pub use training::{Betas, Execution, Optimizer, Precision, Schedule, TaskPart, Training};
