//! Sampling estimators: the published families, one file each.
//!
//! All of them stop in the same way: at the run's budget, tolerance or time limit, or when every
//! coalition is known, in which case the estimated value is computed exactly instead. All of them
//! report the standard error of their own sampling, from the variance of independent samples. Seed
//! and budget determine the result to the last bit; only a run with a time limit depends on the
//! machine.
//!
//! Components: [`EndpointValues`](endpoints::EndpointValues) contains the values of the empty and
//! the grand coalition and computes exact values after exhaustion; [`Limits`](limits::Limits)
//! decides when to stop; [`CoalitionBatch`](batch::CoalitionBatch) collects coalitions within the
//! budget; [`independent_samples::run`] is the loop of the estimators that average independent
//! samples; [`stratified_rounds::run`] is the loop of the estimators that average by strata, with
//! the moments in [`Strata`](strata::Strata).

#[cfg(feature = "comparison")]
mod antithetic;
#[cfg(feature = "comparison")]
mod banzhaf;
mod batch;
#[cfg(feature = "comparison")]
mod beta;
#[cfg(feature = "comparison")]
mod complementary;
mod endpoints;
mod gtg;
mod gtg_published;
mod independent_samples;
mod limits;
mod moments;
#[cfg(feature = "comparison")]
mod owen;
#[cfg(feature = "comparison")]
mod permutation;
mod permutation_walk;
#[cfg(feature = "comparison")]
mod strata;
#[cfg(feature = "comparison")]
mod stratified;
#[cfg(feature = "comparison")]
mod stratified_rounds;
#[cfg(feature = "comparison")]
mod truncated;

#[cfg(feature = "comparison")]
pub use antithetic::AntitheticPermutation;
#[cfg(feature = "comparison")]
pub use banzhaf::Banzhaf;
#[cfg(feature = "comparison")]
pub use beta::BetaShapley;
#[cfg(feature = "comparison")]
pub use complementary::ComplementaryContributions;
pub use gtg::Gtg;
#[cfg(feature = "comparison")]
pub use owen::Owen;
#[cfg(feature = "comparison")]
pub use permutation::Permutation;
#[cfg(feature = "comparison")]
pub use stratified::Stratified;
#[cfg(feature = "comparison")]
pub use truncated::TruncatedMonteCarlo;

/// Smallest number of coalitions per request, if the algorithm allows it.
const BATCH_COALITIONS: usize = 128;

/// Passes per player of a run without limits, unless the minimum is higher: about a hundred
/// permutations.
const PASSES_PER_PLAYER: u64 = 100;

/// Default number of passes of an estimator that needs at least `least`.
fn passes_default(players: usize, least: u64) -> u64 {
    let hundred_walks = (players as u64).saturating_mul(PASSES_PER_PLAYER).saturating_add(2);
    hundred_walks.max(least).min(endpoints::all_coalitions(players))
}
