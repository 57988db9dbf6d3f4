//! What an update is worth: Shapley-style values over an abstract game.
//!
//! The crate owns the question "several players made something together; what did each add?" It
//! knows nothing of models, networks or money: a game is anything that can say what a coalition of
//! its players is worth. It has no threads and no randomness of its own, and looks at a clock only
//! where a run asks for a limit of time; a seed comes in as an argument, sums run in one fixed
//! order, and the same game gives the same bits.
//!
//! * [`Game`] and [`SmoothGame`] are what an estimator needs to know; [`AffineGame`] is the game of
//!   a training round.
//! * [`Estimator`] is what the ladder below is made of; [`value`] runs one.
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
//!
//! # The ladder
//!
//! A pass is one evaluation of one coalition, or one gradient; n players. *Efficient* says that the
//! values sum to `v(N) − v(∅)` whatever the budget; elsewhere the valuation's gap tells what is
//! missing. Everything that samples goes on until its budget, tolerance or time ends, asks for no
//! coalition twice, and estimates its own error.
//!
//! | estimator | after | fewest passes | what holds |
//! |---|---|---|---|
//! | `exact` [`Exact`] | Shapley 1953 | 2ⁿ, n ≤ 24 | the Shapley value itself; errors over rows |
//! | `path` [`Path`] | Aumann and Shapley 1974 | 3 gradients + 2, any n | efficient up to quadrature; exact on quadratic games; splitting gains nothing; needs gradients |
//! | `odd` [`Odd`] | odd interactions by kernel ridge, LeverageSHAP where they do not fit | 2n | efficient; exact on games of pairs, and with all coalitions; fewest evaluations on smooth games |
//! | `leverage-shap` [`LeverageShap`] | Musco and Witter 2025 | 2n | efficient; exact on games of pairs, and with all coalitions; no smoothness assumed |
//! | `kernel-shap` [`KernelShap`] | Lundberg and Lee 2017, Covert and Lee 2021 | 2n | the same, sizes by the kernel |
//! | `kadd` [`KAdd`] | Pelegrina, Duarte and Grabisch 2023 | 2n | the same, and nearly exact on games of triples from as many pairs as unknowns on (order 3) |
//! | `antithetic-permutation` [`AntitheticPermutation`] | Mitchell and others 2022 | 2n | unbiased, efficient; exact on games of pairs |
//! | `permutation` [`Permutation`] | Castro, Gómez and Tejada 2009 | n + 1 | unbiased, efficient |
//! | `stratified` [`Stratified`] | Castro and others 2017 | 2 + 2n + 2n(n − 2) | not efficient; strong where size decides |
//! | `complementary-contributions` [`ComplementaryContributions`] | Zhang and others 2023 | 2 + 2·Σ ⌈n/j⌉, j ≤ n/2 | not efficient; each pair serves all players |
//! | `owen` [`Owen`] | Owen 1972, Okhrati and Lipani 2021 | 2n + 4 | unbiased, not efficient; exact on games of pairs |
//! | `truncated-monte-carlo` [`TruncatedMonteCarlo`] | Ghorbani and Zou 2019 | n + 1 | biased by its tolerance, which the gap shows |
//! | `gtg-mended`, `gtg-as-published` [`Gtg`] | Liu and others 2022 | n² − n + 2 | biased by its thresholds; as published also by its cache, for comparison only |
//! | `banzhaf` [`Banzhaf`] | Banzhaf 1965, Wang and Jia 2023 | 4 | unbiased for another value; not efficient unless normalised |
//! | `beta-shapley` [`BetaShapley`] | Kwon and Zou 2022 | n + 1 | unbiased for another value; not efficient unless α = β = 1 |
//! | `leave-one-out` [`LeaveOneOut`] | – | n + 2 | not efficient; blind to players who replace each other |
//! | `first-order` [`FirstOrder`] | DIG-FL, Wang and others 2022 | 1 gradient + 2, any n | not efficient; sees no curvature; needs gradients |
//! | [`cosine`] | CGSV, Xu and others 2021 | none, no game | directions only; splitting multiplies it |
//!
//! [`TruncatedBetweenRounds`] puts any of them behind a published threshold below which a round is
//! not valued, and [`Reputation`] smooths scores over rounds. For money: `path` where there are
//! gradients, `odd` where there are none and as the check of the other, `exact` where n is small.
//! The rest is there to be compared with.

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
mod odd;
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
pub use game::{Along, Game, GameError, SmoothGame};
pub use leave_one_out::LeaveOneOut;
pub use meter::{Meter, PASSES_MAX};
pub use nano::{NANO_PER_NAT, NanoError, to_nano};
pub use odd::Odd;
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
