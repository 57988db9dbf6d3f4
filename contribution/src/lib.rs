//! What an update is worth: Shapley-style values over an abstract game.
//!
//! The crate owns the question "several players made something together; what did each add?" It
//! knows nothing of models, networks or money: a game is anything that can say what a coalition of
//! its players is worth. It has no threads and no randomness of its own, and looks at a clock only where a
//! run asks for a limit of time; a seed comes in
//! as an argument, sums run in one fixed order, and the same game gives the same bits.
//!
//! * [`Game`] and [`SmoothGame`] are what an estimator needs to know; [`AffineGame`] is the game of
//!   a training round.
//! * [`Estimator`] is the seam of the ladder: [`Exact`], [`LeaveOneOut`] and [`Path`] stand on it;
//!   [`value`] runs one.
//! * [`value_round`] is what a market round does with them, and [`to_nano`] the one door from its
//!   floats to integers.
//!
//! # Somebody's own game
//!
//! Three neighbours share a taxi. Riding alone costs 6, 12 and 42; together the ride costs what the
//! farthest pays.
//!
//! ```
//! use florin_contribution::{value, Coalition, Exact, Game, GameError, Run};
//!
//! struct Taxi([f64; 3]);
//!
//! impl Game for Taxi {
//!     fn players(&self) -> usize {
//!         3
//!     }
//!     fn value(&mut self, coalition: &Coalition) -> Result<f64, GameError> {
//!         Ok(coalition.players().map(|player| self.0[player]).fold(0.0, f64::max))
//!     }
//! }
//!
//! let fares = value(&Exact, &mut Taxi([6.0, 12.0, 42.0]), &["Ada", "Bo", "Cy"], Run::seeded(1))?;
//! assert_eq!(fares.scores.iter().map(|s| s.value).collect::<Vec<_>>(), [2.0, 5.0, 35.0]);
//! assert_eq!(fares.total, 42.0);
//! # Ok::<(), florin_contribution::ValuationError>(())
//! ```

mod affine;
mod cache;
mod check;
mod coalition;
mod draw;
mod estimator;
mod exact;
mod first_order;
mod game;
pub mod games;
mod leave_one_out;
mod linear;
mod meter;
mod nano;
mod pairs;
mod path;
mod quadrature;
mod regression;
mod round;
mod run;
mod sampling;
mod similarity;
mod statistics;
mod truncated_rounds;

pub use affine::{AffineError, AffineGame, AffineSource, Closures, FixedWeights};
pub use cache::{CACHED_NUMBERS_MAX, Cache};
pub use check::{CheckRules, Recorded, RoundCheck, check_round, recheck};
pub use coalition::Coalition;
pub use draw::Draw;
pub use estimator::{Estimate, Estimator, NodeSlopes, Score, Valuation, ValuationError, value};
pub use exact::Exact;
pub use first_order::FirstOrder;
pub use game::{Game, GameError, SmoothGame};
pub use leave_one_out::LeaveOneOut;
pub use meter::{Meter, PASSES_MAX};
pub use nano::{NANO_PER_NAT, NanoError, to_nano};
pub use path::Path;
pub use quadrature::MAX_NODES;
pub use regression::{KAdd, KernelShap, LeverageShap};
pub use round::{
    RoundError, RoundRules, RoundScore, RoundValuation, Z_MICRO_PER_UNIT, is_negative_beyond_error,
    value_members, value_round,
};
pub use run::{Progress, Run};
pub use sampling::{
    AntitheticPermutation, Banzhaf, BetaShapley, ComplementaryContributions, Gtg, Owen,
    Permutation, Stratified, TruncatedMonteCarlo,
};
pub use similarity::{CosineError, Directions, Reputation, ReputationError, cosine};
pub use truncated_rounds::{TruncatedBetweenRounds, worth_looking};
