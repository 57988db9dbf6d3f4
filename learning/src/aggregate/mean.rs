//! The weighted mean: of many updates at once, or as a stream.

use super::{AggregateError, UPDATES_MAX, parallel_fill, threads};
use crate::params::first_not_finite;

/// Number of coordinates per block: their sums stay in the L1 cache.
const BLOCK: usize = 4096;
/// Length below which adding an update is faster than starting a thread.
const LENGTH_FOR_THREADS: usize = 1 << 18;

/// `Σ factor·delta / total`, each coordinate summed in `f64` in the order of the updates.
///
/// The inputs need no separate check: the products of a 64-bit factor and an `f32`, and a million
/// of them added, are far below the largest `f64`. So a sum is finite exactly if all its terms are,
/// even for a factor of zero, and the updates are searched only if a sum is not finite.
pub(super) fn mean(
    updates: &[(f64, &[f32])],
    total: f64,
    threads: usize,
) -> Result<Vec<f32>, AggregateError> {
    let length = updates.first().map_or(0, |(_, delta)| delta.len());
    let mut result = vec![0.0_f32; length];
    parallel_fill(&mut result, threads, BLOCK, |start, part| {
        let mut sums = [0.0_f64; BLOCK];
        for (at, block) in part.chunks_mut(BLOCK).enumerate() {
            let from = start + at * BLOCK;
            let sums = &mut sums[..block.len()];
            sums.fill(0.0);
            add_all(sums, updates, from);
            for (mean, sum) in block.iter_mut().zip(sums) {
                *mean = (*sum / total) as f32;
            }
        }
    });
    if first_not_finite(&result).is_none() {
        return Ok(result);
    }
    let find = |(update, &(_, delta)): (usize, &(f64, &[f32]))| {
        let number = first_not_finite(delta)?;
        Some(AggregateError::NotFinite { update, number })
    };
    let error = updates.iter().enumerate().find_map(find);
    Err(error.expect("a sum of finite terms is finite, see above"))
}

/// Adds the updates' coordinates from `from` on to `sums`. Four updates share one pass over the
/// sums; each sum still adds them one by one, in order.
fn add_all(sums: &mut [f64], updates: &[(f64, &[f32])], from: usize) {
    let range = from..from + sums.len();
    let mut fours = updates.chunks_exact(4);
    for four in &mut fours {
        let [(fa, a), (fb, b), (fc, c), (fd, d)] = [four[0], four[1], four[2], four[3]];
        let (a, b) = (&a[range.clone()], &b[range.clone()]);
        let (c, d) = (&c[range.clone()], &d[range.clone()]);
        for ((((sum, &a), &b), &c), &d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let two = (*sum + fa * f64::from(a)) + fb * f64::from(b);
            *sum = (two + fc * f64::from(c)) + fd * f64::from(d);
        }
    }
    for &(factor, delta) in fours.remainder() {
        for (sum, &value) in sums.iter_mut().zip(&delta[range.clone()]) {
            *sum += factor * f64::from(value);
        }
    }
}

/// The streaming weighted mean: its memory does not grow with the number of updates. Gives the same
/// bits as [`super::aggregate`] over the same updates in order.
#[derive(Debug)]
pub struct MeanAccumulator {
    sums: Vec<f64>,
    total: u128,
    updates: usize,
    threads: usize,
}

impl MeanAccumulator {
    /// An accumulator for updates of `length` elements.
    pub fn new(length: usize) -> Self {
        let threads = if length < LENGTH_FOR_THREADS { 1 } else { threads() };
        Self { sums: vec![0.0; length], total: 0, updates: 0, threads }
    }

    /// Adds one update. An error changes nothing.
    pub fn add(&mut self, weight: u64, delta: &[f32]) -> Result<(), AggregateError> {
        let (update, expected) = (self.updates, self.sums.len());
        if update == UPDATES_MAX {
            return Err(AggregateError::TooMany { updates: update + 1 });
        }
        if delta.len() != expected {
            return Err(AggregateError::LengthsDiffer { update, expected, got: delta.len() });
        }
        if let Some(number) = first_not_finite(delta) {
            return Err(AggregateError::NotFinite { update, number });
        }
        self.updates += 1;
        self.total += u128::from(weight);
        let factor = weight as f64;
        parallel_fill(&mut self.sums, self.threads, BLOCK, |from, sums| {
            for (sum, &value) in sums.iter_mut().zip(&delta[from..]) {
                *sum += factor * f64::from(value);
            }
        });
        Ok(())
    }

    /// The mean of the updates so far.
    pub fn finish(self) -> Result<Vec<f32>, AggregateError> {
        if self.updates == 0 {
            return Err(AggregateError::Empty);
        }
        if self.sums.is_empty() {
            return Err(AggregateError::NoNumbers);
        }
        if self.total == 0 {
            return Err(AggregateError::ZeroTotalWeight);
        }
        let total = self.total as f64;
        Ok(self.sums.into_iter().map(|sum| (sum / total) as f32).collect())
    }
}
