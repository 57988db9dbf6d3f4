//! Differentially private training: the gradient of each row is clipped, and each step adds Gaussian
//! noise (DP-SGD, Abadi et al. 2016).
//!
//! The unit is one row of the participant. With ε and δ of the [accountant](PrivacyLoss), for every
//! set O of sequences of updates: `P(O with the row) ≤ exp(ε)·P(O without the row) + δ`, and the
//! same in the other direction. "Without the row" means that the row contributes nothing: the number
//! of rows is public. Equal rows, or several rows about one person, count as several.
//!
//! The proof needs exact arithmetic, not real numbers: with noise in floating point the low bits of
//! a sum reveal the sum (Mironov 2012). So a step works in whole units of `clip · 2⁻²⁰`:
//!
//! 1. Each row is drawn with probability `q = batch / rows`, independently of the others.
//! 2. The gradient of a drawn row becomes integers, rounded towards zero, with a norm of at most
//!    2²⁰ units; integer arithmetic checks that. A gradient that is not finite becomes zero.
//! 3. The integers are added, and each sum receives discrete Gaussian noise, drawn exactly.
//! 4. The result, divided by the batch, is the gradient of the step. All later computation, of this
//!    step and of others, sees the rows only through such gradients, and cannot raise ε.
//!
//! Nothing else may depend on the rows: neither the number of steps nor whether an update is sent.

mod accountant;
mod discrete_gaussian;
mod training;

pub use accountant::{Delta, PrivacyLoss, PrivateSteps};
use thiserror::Error;
pub use training::{PrivateTraining, train_privately};

/// Units of the largest norm of a row's gradient.
pub(crate) const UNITS_PER_CLIP: u64 = 1 << 20;
/// Millionths in one.
const MICRO: u64 = 1_000_000;
/// Largest norm to clip a row's gradient to, in millionths.
pub const CLIP_MICRO_MAX: u64 = 1_000_000 * MICRO;
/// Least noise, in millionths of the clip: with less, one step has an ε above 50.
pub const NOISE_MICRO_MIN: u64 = MICRO / 10;
/// Most noise, in millionths of the clip: with more, an update has no information.
pub const NOISE_MICRO_MAX: u64 = 1_000 * MICRO;

/// Clip and noise as a user sets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClipAndNoise {
    /// Largest norm of a row's gradient, in millionths.
    pub clip_micro: u64,
    /// Standard deviation of the noise on each sum, in millionths of the clip.
    pub noise_micro: u64,
}

/// Clip and noise within their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPrivacy(ClipAndNoise);

/// A setting of the private training is out of bounds.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum PrivacyError {
    /// The clip is zero or too large.
    #[error("the clip must be above 0 and at most 1000000")]
    Clip,
    /// The noise is too small or too large.
    #[error(
        "the noise must be from 0.1 to 1000 times the clip: less gives no protection, and more \
         leaves no information"
    )]
    Noise,
    /// δ is no probability that can be used.
    #[error("delta is {given}: must be above 0 and below 1")]
    Delta {
        /// The given value.
        given: f64,
    },
}

impl TryFrom<ClipAndNoise> for RowPrivacy {
    type Error = PrivacyError;
    fn try_from(wanted: ClipAndNoise) -> Result<Self, PrivacyError> {
        if !(1..=CLIP_MICRO_MAX).contains(&wanted.clip_micro) {
            return Err(PrivacyError::Clip);
        }
        if !(NOISE_MICRO_MIN..=NOISE_MICRO_MAX).contains(&wanted.noise_micro) {
            return Err(PrivacyError::Noise);
        }
        Ok(Self(wanted))
    }
}

impl RowPrivacy {
    /// The settings.
    pub fn settings(self) -> ClipAndNoise {
        self.0
    }

    /// The largest norm of a row's gradient.
    fn clip(self) -> f64 {
        self.0.clip_micro as f64 / MICRO as f64
    }

    /// Standard deviation of the noise in units, rounded up.
    fn noise_units(self) -> u64 {
        (self.0.noise_micro * UNITS_PER_CLIP).div_ceil(MICRO)
    }
}

#[cfg(test)]
mod tests;
