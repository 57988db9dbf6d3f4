//! The accountant: ε and δ of all steps so far, by Rényi differential privacy.
//!
//! For one step let P be the noise alone, Q the noise moved by one row, and q the probability that
//! the row is drawn. The cumulant at order α, `L(α) = ln E_P[((1 − q) + q·Q/P)^α]`, is at integer α
//!
//! ```text
//! L(α) = ln Σₖ C(α,k)·(1 − q)^(α−k)·q^k·exp(k(k − 1) / 2s²)       s: noise in multiples of the clip
//! ```
//!
//! (Mironov, Talwar, Zhang 2019, section 3.3). It also holds for the discrete Gaussian: `E_P[(Q/P)^k]`
//! is a sum over all integers that a shift by an integer leaves unchanged. Their theorem 5 makes the
//! other direction, P against the mixture, no larger: it needs only the reflection that swaps P and
//! Q, which maps integers to integers. L is convex and L(1) = 0, so the line between two integer
//! orders bounds it from above. Cumulants of steps add up, also if a step depends on earlier ones.
//!
//! At every order, `ε = (L(α) − ln(δ·α)) / (α − 1) + ln(1 − 1/α)` (Canonne, Kamath, Steinke 2020,
//! proposition 12), and the least of them holds.

use super::{MICRO, PrivacyError};

/// Largest order.
const ORDER_MAX: usize = 256;
/// Parts of the distance between two integer orders, and the order up to which it is divided.
const PARTS: usize = 16;
const PARTS_BELOW_ORDER: usize = 16;

/// δ: the probability with which the bound of ε may fail.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Delta(f64);

impl TryFrom<f64> for Delta {
    type Error = PrivacyError;
    fn try_from(given: f64) -> Result<Self, PrivacyError> {
        match given > 0.0 && given < 1.0 {
            true => Ok(Self(given)),
            false => Err(PrivacyError::Delta { given }),
        }
    }
}

impl Delta {
    /// The probability.
    pub fn value(self) -> f64 {
        self.0
    }
}

/// The steps of one training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrivateSteps {
    /// Number of rows.
    pub rows: u64,
    /// Number of rows that a step draws on average; as many as there are, if it is more.
    pub batch: u64,
    /// Number of steps.
    pub steps: u64,
    /// The noise in millionths of the clip.
    pub noise_micro: u64,
}

impl PrivateSteps {
    /// The probability that a step draws a row.
    fn rate(&self) -> f64 {
        self.batch.min(self.rows) as f64 / self.rows.max(1) as f64
    }

    /// The cumulant of one step at an integer order from 2.
    fn step_cumulant(&self, order: usize) -> f64 {
        let (rate, noise) = (self.rate(), self.noise_micro as f64 / MICRO as f64);
        let order_f = order as f64;
        let shift = |k: f64| k * (k - 1.0) / (2.0 * noise * noise);
        if rate >= 1.0 {
            return shift(order_f);
        }
        let log_choose = |k: f64| {
            libm::lgamma(order_f + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(order_f - k + 1.0)
        };
        let (log_out, log_in) = (libm::log1p(-rate), libm::log(rate));
        let term = |k: usize| {
            let k = k as f64;
            log_choose(k) + (order_f - k) * log_out + k * log_in + shift(k)
        };
        let terms: Vec<f64> = (0..=order).map(term).collect();
        let largest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = terms.iter().map(|term| libm::exp(term - largest)).sum();
        (largest + libm::log(sum)).max(0.0)
    }
}

/// The privacy loss of all steps so far.
#[derive(Debug, Clone, PartialEq)]
pub struct PrivacyLoss {
    /// The cumulant at each integer order from 1.
    cumulants: Vec<f64>,
}

impl Default for PrivacyLoss {
    fn default() -> Self {
        Self { cumulants: vec![0.0; ORDER_MAX] }
    }
}

impl PrivacyLoss {
    /// Adds the loss of further steps.
    pub fn add(&mut self, steps: &PrivateSteps) {
        for (at, cumulant) in self.cumulants.iter_mut().enumerate().skip(1) {
            *cumulant += steps.steps as f64 * steps.step_cumulant(at + 1);
        }
    }

    /// ε at this δ: 0 without steps, infinity if no finite bound is known.
    pub fn epsilon(&self, delta: Delta) -> f64 {
        if self.cumulants.iter().all(|cumulant| *cumulant == 0.0) {
            return 0.0;
        }
        let mut least = f64::INFINITY;
        for (at, pair) in self.cumulants.windows(2).enumerate() {
            let from = at + 1;
            let parts = if from < PARTS_BELOW_ORDER { PARTS } else { 1 };
            for part in 1..=parts {
                let share = part as f64 / parts as f64;
                let (order, cumulant) =
                    (from as f64 + share, pair[0] + share * (pair[1] - pair[0]));
                let tail = libm::log(delta.0) + libm::log(order);
                let epsilon = (cumulant - tail) / (order - 1.0) + libm::log1p(-1.0 / order);
                // `min` ignores a number that is not one.
                least = least.min(epsilon);
            }
        }
        least.max(0.0)
    }

    /// The bound of the cumulant at an order from 1.
    #[cfg(test)]
    pub(super) fn cumulant_at(&self, order: f64) -> f64 {
        let (from, share) = (order as usize, order.fract());
        let (low, high) = (self.cumulants[from - 1], self.cumulants[from]);
        low + share * (high - low)
    }
}
