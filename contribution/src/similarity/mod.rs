//! Scores from comparisons of updates with each other. They need no game and no evaluations.

mod cosine;
#[cfg(feature = "comparison")]
mod reputation;

pub use cosine::{CosineError, Directions, cosine};
#[cfg(feature = "comparison")]
pub use reputation::{Reputation, ReputationError};
