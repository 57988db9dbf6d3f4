//! The bounded loss and correct predictions of a tile of rows, from its logits.
//!
//! The exponential and the logarithm are implemented here, with additions, multiplications and
//! divisions only: the system's versions differ between machines in their last bits, and compilers
//! do not vectorise them.

use super::layout::TILE_ROWS;
use crate::loss::BoundedLoss;

/// One number for each row of a tile.
pub(super) type PerRow<T> = [T; TILE_ROWS];

/// Below this, the exponential is practically zero, and still a normal number.
const EXP_LEAST: f32 = -87.0;
/// 1.5·2²³: the sum of this and a number of moderate size has the nearest integer in its last bits.
const WHOLE: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has so few bits that its products with exponents are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// 1/k! for k = 7 to 2.
const INVERSE_FACTORIALS: [f32; 6] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// e to the power of `x` for `x` from −87 to 0, with a relative error below 2⁻²³; smaller `x` count
/// as −87.
///
/// `x = n·ln 2 + r` with integer `n` and `|r| ≤ ½·ln 2`; the power of `r` is its Taylor polynomial.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x < EXP_LEAST { EXP_LEAST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut power = INVERSE_FACTORIALS[0];
    for &factor in &INVERSE_FACTORIALS[1..] {
        power = power * r + factor;
    }
    let power = (power * r) * r + r + 1.0;
    // The last bits of `shifted` are n in two's complement: shift them to the exponent.
    let two_to_n = (shifted.to_bits() << 23).wrapping_add(127 << 23);
    power * f32::from_bits(two_to_n)
}

/// 2/k for k = 13, 11, … 3.
const ATANH: [f64; 6] = [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0];

/// Natural logarithm of a finite number of at least 1, with an error of about 1e-12.
///
/// `x = 2ᵉ·m` with `m` from ½·√2 to √2, and `ln m = 2·atanh((m − 1)/(m + 1))` by its series.
#[inline(always)]
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    let bits = x.to_bits();
    let high = bits & MANTISSA > std::f64::consts::SQRT_2.to_bits() & MANTISSA;
    let exponent = (bits >> 52) as i64 - 1023 + i64::from(high);
    let m = f64::from_bits((bits & MANTISSA) | ONE);
    let m = if high { 0.5 * m } else { m };
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    let mut series = ATANH[0];
    for &factor in &ATANH[1..] {
        series = series * square + factor;
    }
    let logarithm = (series * square) * z + 2.0 * z + exponent as f64 * std::f64::consts::LN_2;
    if x.is_finite() { logarithm } else { f64::NAN }
}

/// The bounded loss of each row of a tile, in nats; NaN if a logit is not finite.
#[inline(always)]
pub(super) fn losses(logits: &[f32], labels: &PerRow<u32>) -> PerRow<f64> {
    let mut largest = [f32::NEG_INFINITY; TILE_ROWS];
    for line in logits.chunks_exact(TILE_ROWS) {
        for (largest, &logit) in largest.iter_mut().zip(line) {
            *largest = if logit > *largest { logit } else { *largest };
        }
    }
    let mut totals = [0.0_f32; TILE_ROWS];
    for line in logits.chunks_exact(TILE_ROWS) {
        for ((total, &largest), &logit) in totals.iter_mut().zip(&largest).zip(line) {
            *total += exp(logit - largest);
        }
    }
    let mut weights = [0.0_f32; TILE_ROWS];
    for (row, (weight, &label)) in weights.iter_mut().zip(labels).enumerate() {
        *weight = exp(logits[label as usize * TILE_ROWS + row] - largest[row]);
    }
    let floor = BoundedLoss::new(logits.len() / TILE_ROWS).floor();
    let mut losses = [0.0; TILE_ROWS];
    for ((loss, &total), &weight) in losses.iter_mut().zip(&totals).zip(&weights) {
        let share = f64::from(weight) / f64::from(total);
        // The argument is at least 1: the logarithm has no other domain.
        *loss = ln(1.0 / ((1.0 - floor) * share + floor));
    }
    losses
}

/// Whether each row of a tile has its first largest logit at its label, as 0 or 1; NaN if a logit
/// is not finite.
#[inline(always)]
pub(super) fn correct_predictions(logits: &[f32], labels: &PerRow<u32>) -> PerRow<f64> {
    let mut own = [0.0_f32; TILE_ROWS];
    for (row, (own, &label)) in own.iter_mut().zip(labels).enumerate() {
        *own = logits[label as usize * TILE_ROWS + row];
    }
    let mut hits = [1.0; TILE_ROWS];
    for (class, line) in logits.chunks_exact(TILE_ROWS).enumerate() {
        for (row, &logit) in line.iter().enumerate() {
            let before = class < labels[row] as usize;
            let beaten = if before { logit < own[row] } else { logit <= own[row] };
            let known = logit.is_finite();
            let hit = if beaten { hits[row] } else { 0.0 };
            hits[row] = if known && !f64::is_nan(hits[row]) { hit } else { f64::NAN };
        }
    }
    hits
}

/// Number of lanes of a sum over rows: row r belongs to lane r mod 8, and the lanes are added in
/// order.
const SUM_LANES: usize = 8;

/// The sum of the first `rows` rows.
#[inline(always)]
pub(super) fn total(values: &PerRow<f64>, rows: usize) -> f64 {
    let mut lanes = [0.0; SUM_LANES];
    for (at, values) in values.chunks_exact(SUM_LANES).enumerate() {
        for (lane, (sum, &value)) in lanes.iter_mut().zip(values).enumerate() {
            *sum += if at * SUM_LANES + lane < rows { value } else { 0.0 };
        }
    }
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_accurate_to_the_last_bits() {
        for step in 0..=870_000 {
            let x = -(step as f32) / 10_000.0;
            let right = f64::from(x).exp();
            let off = (f64::from(exp(x)) - right).abs() / right;
            assert!(off < 1.2e-7, "exp({x}): {off}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(-1e30) > 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn the_logarithm_is_accurate_to_1e_12() {
        for step in 0..200_000 {
            let x = 1.0 + f64::from(step) * f64::from(step) / 1e5;
            let off = (ln(x) - x.ln()).abs();
            assert!(off < 1e-12 * x.ln().max(1.0), "ln({x}): {off}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(f64::NAN).is_nan() && ln(f64::INFINITY).is_nan());
    }

    #[test]
    fn equal_logits_predict_the_first_class_and_nan_is_propagated() {
        let mut logits = vec![0.0; 3 * TILE_ROWS];
        let mut labels = [0; TILE_ROWS];
        labels[1] = 1;
        logits[TILE_ROWS + 2] = 1.0;
        logits[3] = f32::NAN;
        logits[2 * TILE_ROWS + 4] = f32::INFINITY;
        let hits = correct_predictions(&logits, &labels);
        assert_eq!(hits[..3], [1.0, 0.0, 0.0]);
        assert!(hits[3].is_nan() && hits[4].is_nan());
        let losses = losses(&logits, &labels);
        let uniform = crate::BoundedLoss::new(3).of_cross_entropy(3.0_f64.ln()).0;
        assert!((losses[0] - uniform).abs() < 1e-7);
        assert!(losses[3].is_nan() && losses[4].is_nan());
        assert_eq!(total(&[1.0; TILE_ROWS], 13), 13.0);
    }
}
