//! REFL's staleness rule: A. M. Abdelmoniem, A. N. Sahu, M. Canini and S. A. Fahmy, "REFL: Resource-Efficient
//! Federated Learning", EuroSys 2023. A stale update counts more if it differs more from the fresh ones.

use florin_protocol::{Rejection, UpdateEntry};
use florin_work::{ValuationInputs, decode_update_into};

/// The share of the part that follows from the difference.
const BETA: f64 = 0.35;
/// Divides the boost of a difference, as in the authors' code.
const BOOST_DIVISOR: f64 = 10.0;
/// Parts of a row: weights are whole numbers.
const PARTS: f64 = 1_000.0;

/// The entries of a round with rows by REFL's weights: `1` for a fresh update, and for one that is `τ` versions old
/// `(1 − β) / (τ + 1) + β · (1 − e^(−Λ / Λmax) / 10)`. `Λ` is the squared distance by which it moves the mean of the fresh
/// updates, relative to the square of that mean.
///
/// # Errors
/// [`Rejection`] of an update that cannot be decoded.
pub(super) fn weighted_entries(
    inputs: &ValuationInputs<'_>,
    parameters: usize,
) -> Result<Vec<UpdateEntry>, Rejection> {
    let mut deltas = Vec::with_capacity(inputs.entries.len());
    for bytes in inputs.updates.iter() {
        let mut delta = vec![0.0_f32; parameters];
        decode_update_into(inputs.spec, bytes, &mut delta)?;
        deltas.push(delta);
    }
    let staleness: Vec<u32> = inputs.entries.iter().map(|entry| entry.staleness).collect();
    let factors = factors(&deltas, &staleness);
    let limit = weight_limit(inputs);
    let weighted = inputs.entries.iter().zip(factors).map(|(entry, factor)| {
        let rows = entry.rows_counted.min(limit) as f64;
        let rows_counted = (rows * PARTS * factor).round() as u64;
        UpdateEntry { rows_counted, ..entry.clone() }
    });
    Ok(weighted.collect())
}

/// The task's limit of an update's rows: a multiple of their lower median.
fn weight_limit(inputs: &ValuationInputs<'_>) -> u64 {
    let cap = u64::from(inputs.spec.rounds.preprocessing.weight_cap);
    let rows = inputs.entries.iter().map(|entry| entry.rows_counted).filter(|rows| *rows > 0);
    let mut rows: Vec<u64> = rows.collect();
    rows.sort_unstable();
    let median = rows.get(rows.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    if cap == 0 { u64::MAX } else { median.saturating_mul(cap) }
}

fn factors(deltas: &[Vec<f32>], staleness: &[u32]) -> Vec<f64> {
    let fresh = || deltas.iter().zip(staleness).filter(|(_, stale)| **stale == 0);
    let count = fresh().count() as f64;
    let mut mean = vec![0.0_f64; deltas.first().map_or(0, Vec::len)];
    for (delta, _) in fresh() {
        mean.iter_mut().zip(delta).for_each(|(sum, own)| *sum += f64::from(*own) / count);
    }
    let norm: f64 = mean.iter().map(|own| own * own).sum();
    // Without a fresh update the differences are relative to one another alone.
    let norm = if norm > 0.0 { norm } else { 1.0 };
    // The mean with one more update is nearer to it by this part of the difference.
    let moved = |delta: &[f32]| {
        let squares = mean.iter().zip(delta).map(|(mean, own)| (f64::from(*own) - mean).powi(2));
        squares.sum::<f64>() / (count + 1.0).powi(2) / norm
    };
    let differences: Vec<f64> = deltas.iter().map(|delta| moved(delta)).collect();
    let stale = differences.iter().zip(staleness).filter(|(_, stale)| **stale > 0);
    let largest = stale.map(|(difference, _)| *difference).fold(0.0, f64::max);
    let factor = |(difference, stale): (&f64, &u32)| {
        if *stale == 0 {
            return 1.0;
        }
        let damped = (1.0 - BETA) / (f64::from(*stale) + 1.0);
        let relative = if largest > 0.0 { difference / largest } else { 0.0 };
        damped + BETA * (1.0 - (-relative).exp() / BOOST_DIVISOR)
    };
    differences.iter().zip(staleness).map(factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_update_counts_more_if_it_differs_more() {
        let deltas =
            [vec![1.0, 0.0], vec![1.0, 0.0], vec![0.0, 1.0], vec![-3.0, 0.0], vec![1.0, 0.0]];
        let found = factors(&deltas, &[0, 0, 1, 1, 3]);
        assert_eq!(found[..2], [1.0, 1.0]);
        // Squared distances of the stale ones: 2, 16 and 0.
        let expected = |staleness: f64, relative: f64| {
            0.65 / (staleness + 1.0) + 0.35 * (1.0 - (-relative).exp() / 10.0)
        };
        for (found, (staleness, relative)) in
            found[2..].iter().zip([(1.0, 2.0 / 16.0), (1.0, 1.0), (3.0, 0.0)])
        {
            assert!((found - expected(staleness, relative)).abs() < 1e-12, "{found}");
        }
    }

    #[test]
    fn a_round_without_fresh_updates_has_weights() {
        let found = factors(&[vec![1.0], vec![2.0]], &[1, 3]);
        assert!(found.iter().all(|factor| factor.is_finite() && *factor > 0.0), "{found:?}");
        assert!(found[0] > 0.0);
    }
}
