//! Scores that compare updates with each other and need no game: nothing is evaluated.

mod cosine;
mod reputation;

pub use cosine::{CosineError, Directions, cosine};
pub use reputation::{Reputation, ReputationError};
