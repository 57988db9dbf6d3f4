//! Estimators that fit a simple game to what was seen, and read the values off the fit.
//!
//! All of them look at complementary pairs. When S and Sᶜ weigh the same, everything that an even
//! interaction adds to one side it adds to the other, so the fit separates: only half the
//! differences `d(S) = (v(S) − v(Sᶜ))/2` matter to the values, and only odd interactions explain
//! them. A linear fit to pairs is therefore already the fit of all interactions of two.

mod kadd;
mod kernel;
mod leverage;
#[cfg(test)]
mod plain;
mod sampled;
mod triples;
pub(crate) mod weighted;

pub use kadd::KAdd;
pub use kernel::KernelShap;
pub use leverage::LeverageShap;
pub(crate) use weighted::{Fit, Observed, linear_fit};
