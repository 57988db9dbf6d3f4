//! The norm to which a cohort's updates are brought: the median of their own, so that length earns nothing.

use florin_protocol::Micro;

/// A shorter update is lengthened at most so many times. Honest ones of one cohort lie closer together; what is much
/// shorter hardly moved, and its direction is not worth as much trust.
const LENGTHENED_MAX: f64 = 2.0;

/// The lower median of norms weighted by counted rows: the smallest norm such that at least half of the rows stand
/// behind it or a shorter one. Weighted, because identities are cheap and bonded rows are not; zeros are left out, so
/// that idle members do not drag it down. `None` if nobody with a row moved.
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

/// By what an update of this norm is multiplied to be as long as the median, in whole millionths, rounded down; at most
/// 2. One that did not move stays as it is.
#[must_use]
pub fn clip_factor(median: f64, norm: f64) -> Micro {
    if norm <= 0.0 {
        return Micro::ONE;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to two million, and rounding down is meant"
    )]
    let micro = ((median / norm).min(LENGTHENED_MAX) * 1e6).floor() as u64;
    Micro(micro)
}

/// Multiplies every number by the factor, in `f64`, and rounds once.
pub fn rescale(delta: &mut [f32], factor: Micro) {
    #[expect(clippy::cast_precision_loss, reason = "at most two million")]
    let factor = factor.0 as f64 / 1e6;
    for value in delta {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
        let scaled = (f64::from(*value) * factor) as f32;
        *value = scaled;
    }
}
