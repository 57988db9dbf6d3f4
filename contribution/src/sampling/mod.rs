//! Estimators that ask for coalitions at random: the published families, one file each.
//!
//! All of them end the same way: at the run's budget, tolerance or time, or when every coalition is
//! known, and then the value they estimate is computed exactly instead. All of them report the
//! standard error of their own sampling, from the spread of samples that are independent of each
//! other. A seed and a budget fix their result to the last bit; a run that is limited by time is the
//! only one that depends on the machine.
//!
//! What the machinery is made of: [`Ends`](ends::Ends) knows what nobody and everybody is worth and
//! what exhaustion gives, [`Limits`](limits::Limits) says when to stop, [`Batch`](batch::Batch)
//! keeps a set of questions within the budget, [`carry_out`](samples::carry_out) is the loop of all
//! who average independent samples, [`rounds::carry_out`] the loop of
//! those who average by strata, whose books [`Strata`](strata::Strata) keeps.

mod antithetic;
mod banzhaf;
mod batch;
mod beta;
mod complementary;
mod ends;
mod gtg;
mod gtg_published;
mod limits;
mod owen;
mod permutation;
mod rounds;
mod samples;
mod strata;
mod stratified;
mod tally;
mod truncated;
mod walk;

pub use antithetic::AntitheticPermutation;
pub use banzhaf::Banzhaf;
pub use beta::BetaShapley;
pub use complementary::ComplementaryContributions;
pub use gtg::Gtg;
pub use owen::Owen;
pub use permutation::Permutation;
pub use stratified::Stratified;
pub use truncated::TruncatedMonteCarlo;

/// Coalitions that are asked for together, at least, where the algorithm allows.
const BATCH_COALITIONS: usize = 128;

/// Passes per player after which a run without limits ends, where the least is not above it: about
/// a hundred permutations.
const PASSES_PER_PLAYER: u64 = 100;

/// Passes after which an estimator that needs at least `least` ends by default.
fn passes_default(players: usize, least: u64) -> u64 {
    let hundred_walks = (players as u64).saturating_mul(PASSES_PER_PLAYER).saturating_add(2);
    hundred_walks.max(least).min(ends::all_coalitions(players))
}
