//! Data, models, local training, evaluation and aggregation rules.
//!
//! This crate owns what a model is and how it learns. It knows nothing of money, rounds, networks
//! or signatures, and reads no clock; all randomness comes from a seed that the caller names.
//!
//! * [`data`]: labelled rows, from files or from inside the program; [`partition`]: who owns which.
//! * [`model`], [`params`], [`tensors`]: what a task declares, its parameters, their bytes; [`wire`]:
//!   the formats in which updates travel.
//! * [`engine`]: the traits [`Trainer`] and [`Evaluator`]; [`reference`] and, with the feature
//!   `torch`, `torch` are the two engines behind them; [`select`] picks one.
//! * [`mapped`]: files read, and rows filled, as if they lay in memory.
//! * [`aggregate`]: many updates into one. [`affine`]: a round's models as a function of
//!   coefficients, which is what valuation asks for; [`coalitions`]: very many of those models,
//!   fast; [`path`]: what each of very many updates does to the loss.
//!
//! ```no_run,standalone_crate
//! use std::ops::ControlFlow;
//! use florin_learning::data::{DataSource, load};
//! use florin_learning::{Evaluator, ModelSpec, Reference, Trainer, Training};
//!
//! let digits = load(&DataSource::Digits)?;
//! let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
//! let how = Training {
//!     epochs: 3,
//!     batch: 32,
//!     learning_rate: 0.1,
//!     momentum: 0.9,
//!     weight_decay: 0.0,
//!     clip_gradient: None,
//!     fedprox: None,
//! };
//! let mut engine = Reference::new();
//! let start = model.init(1).into_vec();
//! let learn = digits.slice(0..1500)?;
//! let trained =
//!     engine.train(&model, &start, &learn, &how, 7, &mut |_| ControlFlow::Continue(()))?;
//! let params: Vec<f64> = trained.params.iter().map(|&value| value.into()).collect();
//! let test = digits.slice(1500..1797)?;
//! assert!(engine.correct(&model, &params, &test)? > 250);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod affine;
pub mod aggregate;
pub mod coalitions;
pub mod data;
pub mod engine;
mod lanes;
pub mod mapped;
pub mod measure;
pub mod model;
mod pairs;
mod parallel;
pub mod params;
pub mod partition;
pub mod path;
mod products;
pub mod reference;
mod seed;
pub mod select;
pub mod tensors;
#[cfg(feature = "torch")]
pub mod torch;
pub mod wire;

pub use affine::AffineLoss;
pub use aggregate::{AggregateError, MeanAccumulator, Rule, aggregate, aggregate_on};
pub use coalitions::{Coalitions, Masks, Updates};
pub use data::{DataSource, Dataset, RowChunks};
pub use engine::{Engine, Evaluator, Place, Step, Trained, Trainer, Training, Way, mean};
pub use mapped::{Room, Rows};
pub use model::{ModelSpec, TensorSpec};
pub use parallel::cores;
pub use params::Params;
pub use partition::{Part, Partition, partition, split};
pub use path::{PathGradient, PathValue};
pub use products::products;
pub use reference::Reference;
pub use select::{EngineKind, engine};
