//! Why a simulation failed.

use florin_contribution::NanoError;
use florin_learning::engine::EvalError;
use florin_protocol::{AmountError, PayError};
use florin_work::WorkError;

use crate::market::MarketError;
use crate::member_updates::MemberTrainingError;
use crate::population::PopulationError;

/// A simulation that failed.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}: {error}")]
pub struct SimulationFailed {
    /// The seed of the simulation.
    pub seed: u64,
    /// The cause.
    #[source]
    pub error: SimError,
}

/// Why the simulation of a seed failed.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The population cannot be drawn.
    #[error(transparent)]
    Population(#[from] PopulationError),
    /// The market failed.
    #[error(transparent)]
    Market(#[from] MarketError),
    /// The initial model cannot be made, or a model cannot be evaluated.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// A member's training failed.
    #[error(
        "training of a member failed: {0}; lower learning.learning_rate [SIM_INVALID_TRAINING]"
    )]
    Act(#[from] MemberTrainingError),
    /// A model cannot be evaluated.
    #[error("a model cannot be evaluated: {0} [SIM_MEASURE]")]
    Measure(#[from] EvalError),
    /// Scores drawn from the fitted curves cannot be paid.
    #[error("the surrogate failed: {0} [SIM_SURROGATE]")]
    Surrogate(#[from] SurrogateError),
}

/// Why sampled scores cannot be paid: a fault of the laboratory.
#[derive(Debug, thiserror::Error)]
pub enum SurrogateError {
    /// The pay rule returned an error.
    #[error(transparent)]
    Pay(PayError),
    /// An amount overflows.
    #[error(transparent)]
    Amount(#[from] AmountError),
    /// A score is not finite.
    #[error(transparent)]
    Score(#[from] NanoError),
}

impl From<PayError> for SurrogateError {
    fn from(error: PayError) -> Self {
        Self::Pay(error)
    }
}
