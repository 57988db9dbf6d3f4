//! Rescaling of a cohort's updates to their median norm, so that a larger norm earns no extra.

use florin_learning::params::norm;
use florin_protocol::Micro;

/// Largest factor by which an update is scaled up. The norms of honest updates in a cohort are
/// closer together; a much smaller update hardly moved, and its direction is less reliable.
const SCALE_UP_MAX: f64 = 2.0;

/// The norm and the rows of each update.
#[must_use]
pub fn norms(deltas: &[&[f32]], rows: &[u64]) -> Vec<(f64, u64)> {
    deltas.iter().zip(rows).map(|(delta, rows)| (norm(delta), *rows)).collect()
}

/// The lower weighted median of norms, weighted by counted rows: the smallest norm such that at
/// least half of the rows belong to it or a smaller one. Rows are bonded and identities are cheap,
/// so rows are the weights. Zero norms are ignored, so that idle members do not lower the median.
/// `None` if no member with rows has a nonzero norm.
#[must_use]
pub fn median_norm(norms: &[(f64, u64)]) -> Option<f64> {
    let mut moved: Vec<(f64, u64)> =
        norms.iter().copied().filter(|&(norm, rows)| norm > 0.0 && rows > 0).collect();
    moved.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: u128 = moved.iter().map(|(_, rows)| u128::from(*rows)).sum();
    let mut sum = 0;
    let reached = moved.iter().find(|(_, rows)| {
        sum += u128::from(*rows);
        2 * sum >= total
    });
    reached.map(|(norm, _)| *norm)
}

/// The factor that rescales a norm to the median, in whole millionths, rounded down; at most 2. One
/// for a norm of zero.
#[must_use]
pub fn norm_factor(median: f64, norm: f64) -> Micro {
    if norm <= 0.0 {
        return Micro::ONE;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to two million, and rounding down is meant"
    )]
    let micro = ((median / norm).min(SCALE_UP_MAX) * 1e6).floor() as u64;
    Micro(micro)
}

/// Multiplies every number by the factor in `f64`, and rounds once.
pub fn rescale(delta: &mut [f32], factor: Micro) {
    #[expect(clippy::cast_precision_loss, reason = "at most two million")]
    let factor = factor.0 as f64 / 1e6;
    for value in delta {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
        let scaled = (f64::from(*value) * factor) as f32;
        *value = scaled;
    }
}
