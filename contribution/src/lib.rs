//! Contribution valuation: Shapley-style values of an abstract cooperative game.
//!
//! Several players produce a result together; this crate estimates the contribution of each player.
//! It contains no models, networks or money: a [`Game`] is any type that evaluates `v(S)`, the
//! value of a coalition `S` of its players. The crate starts no threads and has no source of
//! randomness of its own, and it reads the clock only if a run has a time limit. The seed is an
//! argument, sums have one fixed order, and the same game gives the same bits.
//!
//! * [`Game`] and [`SmoothGame`] are the interface between an estimator and a game; [`AffineGame`]
//!   is the game of a training round.
//! * [`Estimator`] is the trait of the estimators in the table below; [`value`] runs one of them.
//! * [`value_round`] values a round of the market; [`to_nano`] is the only conversion from floats
//!   to integers.
//!
//! # A game of your own
//!
//! Three passengers share a taxi. Their single fares are 6, 12 and 42. A shared ride costs the fare
//! of the passenger who travels farthest.
//!
//! ```
//! use florin_contribution::{value, Coalition, Exact, Game, GameError, RunOptions};
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
//! let mut taxi = Taxi([6.0, 12.0, 42.0]);
//! let fares = value(&Exact, &mut taxi, &["Ada", "Bo", "Cy"], RunOptions::seeded(1))?;
//! assert_eq!(fares.scores.iter().map(|s| s.value).collect::<Vec<_>>(), [2.0, 5.0, 35.0]);
//! assert_eq!(fares.total, 42.0);
//! # Ok::<(), florin_contribution::ValuationError>(())
//! ```
//!
//! # Estimators
//!
//! One pass is one evaluation of one coalition, or one gradient; `n` is the number of players.
//! *Efficient* (the efficiency axiom) means that the values sum to `v(N) − v(∅)` for any budget;
//! for the other estimators the `gap` of the [`Valuation`] reports the difference. Every sampling
//! estimator runs until its budget, tolerance or time limit is reached, evaluates each coalition at
//! most once, and estimates its own standard error.
//!
//! | estimator | source | fewest passes | properties |
//! |---|---|---|---|
//! | `exact` [`Exact`] | Shapley 1953 | 2ⁿ, n ≤ 24 | the exact Shapley value; errors from the rows |
//! | `path` [`Path`] | Aumann and Shapley 1974 | 3 gradients + 2, any n | efficient up to quadrature error; exact on quadratic games; splitting an identity gains nothing; needs gradients |
//! | `odd` [`OddRegression`] | kernel ridge regression of the odd interactions; LeverageSHAP where they do not fit | 2n | efficient; exact on games of pairs, and with all coalitions; fewest evaluations on smooth games |
//! | `leverage-shap` [`LeverageShap`] | Musco and Witter 2025 | 2n | efficient; exact on games of pairs, and with all coalitions; assumes no smoothness |
//! | `kernel-shap` [`KernelShap`] | Lundberg and Lee 2017, Covert and Lee 2021 | 2n | as `leverage-shap`, with coalition sizes drawn by the Shapley kernel |
//! | `kadd` [`KAdd`] | Pelegrina, Duarte and Grabisch 2023 | 2n | as `leverage-shap`; nearly exact on games of triples once there are as many pairs as unknowns (order 3) |
//! | `antithetic-permutation` [`AntitheticPermutation`] | Mitchell and others 2022 | 2n | unbiased, efficient; exact on games of pairs |
//! | `permutation` [`Permutation`] | Castro, Gómez and Tejada 2009 | n + 1 | unbiased, efficient |
//! | `stratified` [`Stratified`] | Castro and others 2017 | 2 + 2n + 2n(n − 2) | not efficient; strong where marginal contributions depend on coalition size |
//! | `complementary-contributions` [`ComplementaryContributions`] | Zhang and others 2023 | 2 + 2·Σ ⌈n/j⌉, j ≤ n/2 | not efficient; each complementary pair is a sample for every player |
//! | `owen` [`Owen`] | Owen 1972, Okhrati and Lipani 2021 | 2n + 4 | unbiased, not efficient; exact on games of pairs |
//! | `truncated-monte-carlo` [`TruncatedMonteCarlo`] | Ghorbani and Zou 2019 | n + 1 | biased by its truncation tolerance, which the gap shows |
//! | `gtg-mended`, `gtg-as-published` [`Gtg`] | Liu and others 2022 | n² − n + 2 | biased by its truncation thresholds; as published also by its cache, for comparison only |
//! | `banzhaf` [`Banzhaf`] | Banzhaf 1965, Wang and Jia 2023 | 4 | unbiased for the Banzhaf value; not efficient unless normalised |
//! | `beta-shapley` [`BetaShapley`] | Kwon and Zou 2022 | n + 1 | unbiased for the Beta(α, β) value; not efficient unless α = β = 1 |
//! | `leave-one-out` [`LeaveOneOut`] | – | n + 2 | not efficient; blind to players that replace each other |
//! | `first-order` [`FirstOrder`] | DIG-FL, Wang and others 2022 | 1 gradient + 2, any n | not efficient; ignores curvature; needs gradients |
//! | [`cosine`] | CGSV, Xu and others 2021 | none, no game | directions only; splitting an identity multiplies its score |
//!
//! [`BetweenRoundTruncation`] wraps any of them with a published threshold: a round whose total
//! gain is below the threshold is not valued. [`Reputation`] smooths scores over rounds. For
//! payments, use `path` if the game has gradients, `odd` if it has none and as the cross-check of
//! `path`, and `exact` if `n` is small. The other estimators are there for comparison; those that the
//! laboratory does not need either are behind the feature `comparison`: all but `exact`, `path`,
//! `odd`, the two `gtg`, `leave-one-out` and [`cosine`].

mod affine;
#[cfg(feature = "comparison")]
mod between_round_truncation;
mod cache;
mod coalition;
mod complementary_pairs;
mod cross_check;
mod estimator;
mod exact;
#[cfg(feature = "comparison")]
mod first_order;
mod game;
pub mod games;
mod gap_rules;
mod leave_one_out;
mod linear;
mod meter;
mod nano;
mod odd_regression;
mod path;
mod quadrature;
mod regression;
mod rng;
mod round;
mod row_permutations;
mod run;
mod sampling;
mod similarity;
mod statistics;

pub use affine::{AffineError, AffineGame, AffineSource, ClosureSource, FixedWeights};
#[cfg(feature = "comparison")]
pub use between_round_truncation::{BetweenRoundTruncation, exceeds_threshold};
pub use cache::{CACHED_NUMBERS_MAX, ValueCache};
pub use coalition::Coalition;
pub use cross_check::{
    CrossCheckOptions, CrossCheckResult, RecordedGame, cross_check_round, scores_from_table,
};
pub use estimator::{
    Estimate, Estimator, NodeDerivatives, Score, Valuation, ValuationError, value,
};
pub use exact::Exact;
#[cfg(feature = "comparison")]
pub use first_order::FirstOrder;
pub use game::{Game, GameError, PathIntegral, SmoothGame};
pub use gap_rules::{
    ENUMERATED_PLAYERS_MAX, PERMUTATION_PAIRS, PERMUTED_PLAYERS_MAX, StageEstimator,
    stage_estimators,
};
pub use leave_one_out::LeaveOneOut;
pub use meter::{EvaluationMeter, PASSES_MAX};
pub use nano::{NANO_PER_NAT, NanoError, to_nano};
pub use odd_regression::OddRegression;
pub use path::Path;
pub use quadrature::MAX_NODES;
#[cfg(feature = "comparison")]
pub use regression::{KAdd, KernelShap, LeverageShap};
pub use rng::SeededRng;
pub use round::{
    RoundError, RoundRules, RoundScore, RoundValuation, StageRecord, Z_MICRO_PER_UNIT,
    is_negative_beyond_error, value_members, value_round, value_round_confirmed,
};
pub use run::{RunOptions, ValuationProgress};
pub use sampling::Gtg;
#[cfg(feature = "comparison")]
pub use sampling::{
    AntitheticPermutation, Banzhaf, BetaShapley, ComplementaryContributions, Owen, Permutation,
    Stratified, TruncatedMonteCarlo,
};
pub use similarity::{CosineError, Directions, cosine};
#[cfg(feature = "comparison")]
pub use similarity::{Reputation, ReputationError};
