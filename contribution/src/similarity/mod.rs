//! Scores from comparisons of updates with each other. They need no game and no evaluations.

mod cosine;
mod reputation;

pub use cosine::{CosineError, Directions, cosine};
pub use reputation::{Reputation, ReputationError};
