//! Regression estimators: they fit a simple game to observed values and read the Shapley values off
//! the fit.
//!
//! All of them observe complementary pairs. If S and Sᶜ have the same weight, an even interaction
//! contributes equally to both sides, so the fit separates: only half the differences `d(S) = (v(S)
//! − v(Sᶜ))/2` affect the values, and only odd interactions explain them. A linear fit to pairs is
//! therefore already the fit of all interactions of two players.

#[cfg(feature = "comparison")]
mod kadd;
#[cfg(feature = "comparison")]
mod kernel_shap;
#[cfg(feature = "comparison")]
mod leverage_shap;
#[cfg(test)]
mod reference_fit;
#[cfg(feature = "comparison")]
mod sampled;
#[cfg(feature = "comparison")]
mod triples;
pub(crate) mod weighted;

#[cfg(feature = "comparison")]
pub use kadd::KAdd;
#[cfg(feature = "comparison")]
pub use kernel_shap::KernelShap;
#[cfg(feature = "comparison")]
pub use leverage_shap::LeverageShap;
pub(crate) use weighted::{Fit, ObservedPairs, linear_fit};
