//! Aggregation rules over deltas of equal length with integer weights.
//!
//! Every rule adds in one fixed order and gives the same bits on any machine with any number of
//! threads. In every rule an update of weight zero has no effect: the result is bit for bit that of
//! the others alone. No rule accepts a number that is not finite.

mod krum;
mod mean;
mod robust;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::parallel::cores;
use crate::params::{first_not_finite, norm};
pub use mean::MeanAccumulator;

/// Largest number of updates in one aggregation.
pub const UPDATES_MAX: usize = 1 << 20;
/// Largest number of threads in one aggregation.
pub const THREADS_MAX: usize = 64;

/// An aggregation rule in a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AggregationRule {
    /// The weighted mean (FedAvg).
    Mean,
    /// The coordinate-wise median; for an even number, the mean of the middle two.
    Median,
    /// The coordinate-wise trimmed mean: without the largest and smallest values.
    TrimmedMean {
        /// Share of updates dropped at either end, in permille, rounded down; below 500.
        trim_permille: u16,
    },
    /// The weighted mean of the `selected` updates with the smallest distances to their neighbours
    /// (multi-Krum; `selected` = 1 is Krum as published).
    Krum {
        /// Largest number of Byzantine updates. There must be at least `2·byzantine + 3` updates.
        byzantine: u32,
        /// Number of updates to select: from 1 to the number of updates minus `byzantine`.
        selected: u32,
    },
    /// The weighted mean after clipping the norm of every update to the median norm.
    NormClippedMean,
}

/// The aggregation failed.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum AggregateError {
    /// There are no updates.
    #[error("there are no updates; at least one is required")]
    Empty,
    /// There are too many updates.
    #[error("{updates} updates: must be at most {UPDATES_MAX}")]
    TooMany {
        /// Number of updates.
        updates: usize,
    },
    /// The updates have no elements.
    #[error("the updates have no numbers; at least one is required")]
    NoNumbers,
    /// An update has another length than the first.
    #[error("update {update} has {got} numbers: must be {expected}")]
    LengthsDiffer {
        /// Index of the update, from 0.
        update: usize,
        /// Length of the first update.
        expected: usize,
        /// Length of this update.
        got: usize,
    },
    /// An update contains NaN or infinity.
    #[error("update {update}, number {number}, is not finite: all numbers must be finite")]
    NotFinite {
        /// Index of the update, from 0.
        update: usize,
        /// Index of the number, from 0.
        number: usize,
    },
    /// All weights are zero.
    #[error("all weights are zero: at least one must be positive")]
    ZeroTotalWeight,
    /// A parameter of the rule is out of bounds.
    #[error("rule: {key} is {value}: must be {bounds}")]
    RuleInvalid {
        /// Name of the parameter.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The valid range.
        bounds: String,
    },
    /// There are too few updates for the rule.
    #[error("{got} updates of positive weight: the rule needs at least {needed}")]
    TooFew {
        /// Number required.
        needed: usize,
        /// Number given.
        got: usize,
    },
}

impl AggregationRule {
    /// Checks the rule's parameters against their bounds.
    pub fn check(&self) -> Result<(), AggregateError> {
        let refuse = |key, value, bounds: &str| {
            Err(AggregateError::RuleInvalid { key, value, bounds: bounds.to_owned() })
        };
        match *self {
            Self::TrimmedMean { trim_permille } if trim_permille >= 500 => {
                refuse("trim_permille", trim_permille.into(), "0 to 499")
            }
            Self::Krum { selected: 0, .. } => refuse("selected", 0, "at least 1"),
            _ => Ok(()),
        }
    }
}

/// Aggregates `(weight, delta)` pairs by `rule` on all cores.
pub fn aggregate(
    rule: AggregationRule,
    updates: &[(u64, &[f32])],
) -> Result<Vec<f32>, AggregateError> {
    aggregate_on(rule, updates, threads())
}

fn threads() -> usize {
    cores().min(THREADS_MAX)
}

/// As [`aggregate`], on `threads` threads (0 counts as 1). The number of threads changes no bit.
pub fn aggregate_on(
    rule: AggregationRule,
    updates: &[(u64, &[f32])],
    threads: usize,
) -> Result<Vec<f32>, AggregateError> {
    rule.check()?;
    check(updates)?;
    let threads = threads.clamp(1, THREADS_MAX);
    // The mean detects numbers that are not finite on its own.
    if rule != AggregationRule::Mean {
        check_finite(updates, threads)?;
    }
    let counted: Vec<(u64, &[f32])> =
        updates.iter().copied().filter(|&(weight, _)| weight > 0).collect();
    match rule {
        AggregationRule::Mean => mean::mean(&weighted(updates), total_weight(updates), threads),
        AggregationRule::Median => Ok(robust::median(&deltas(&counted), threads)),
        AggregationRule::TrimmedMean { trim_permille } => {
            let trim = counted.len() * usize::from(trim_permille) / 1000;
            Ok(robust::trimmed_mean(&deltas(&counted), trim, threads))
        }
        AggregationRule::Krum { byzantine, selected } => {
            let indices =
                krum::select(&deltas(&counted), byzantine as usize, selected as usize, threads)?;
            let chosen: Vec<(u64, &[f32])> = indices.into_iter().map(|at| counted[at]).collect();
            aggregate_on(AggregationRule::Mean, &chosen, threads)
        }
        AggregationRule::NormClippedMean => {
            mean::mean(&clipped(&counted, threads), total_weight(&counted), threads)
        }
    }
}

fn deltas<'a>(updates: &[(u64, &'a [f32])]) -> Vec<&'a [f32]> {
    updates.iter().map(|&(_, delta)| delta).collect()
}

fn total_weight(updates: &[(u64, &[f32])]) -> f64 {
    // The sum of 2^20 weights of 64 bits fits; the one conversion rounds in the same way on
    // every machine.
    updates.iter().map(|&(weight, _)| u128::from(weight)).sum::<u128>() as f64
}

fn weighted<'a>(updates: &[(u64, &'a [f32])]) -> Vec<(f64, &'a [f32])> {
    updates.iter().map(|&(weight, delta)| (weight as f64, delta)).collect()
}

fn check_finite(updates: &[(u64, &[f32])], threads: usize) -> Result<(), AggregateError> {
    let bad = map_updates(updates, threads, first_not_finite);
    match bad.iter().enumerate().find_map(|(update, bad)| Some((update, (*bad)?))) {
        Some((update, number)) => Err(AggregateError::NotFinite { update, number }),
        None => Ok(()),
    }
}

/// The checks that do not read the numbers.
fn check(updates: &[(u64, &[f32])]) -> Result<(), AggregateError> {
    let Some((_, first)) = updates.first() else { return Err(AggregateError::Empty) };
    if updates.len() > UPDATES_MAX {
        return Err(AggregateError::TooMany { updates: updates.len() });
    }
    if first.is_empty() {
        return Err(AggregateError::NoNumbers);
    }
    let expected = first.len();
    if let Some(update) = updates.iter().position(|(_, delta)| delta.len() != expected) {
        let got = updates[update].1.len();
        return Err(AggregateError::LengthsDiffer { update, expected, got });
    }
    if updates.iter().all(|&(weight, _)| weight == 0) {
        return Err(AggregateError::ZeroTotalWeight);
    }
    Ok(())
}

/// Applies `look` to each update, with results in order.
fn map_updates<T: Send + Default + Clone>(
    updates: &[(u64, &[f32])],
    threads: usize,
    look: impl Fn(&[f32]) -> T + Sync,
) -> Vec<T> {
    let mut found = vec![T::default(); updates.len()];
    parallel_fill(&mut found, threads, 1, |from, part| {
        for (found, (_, delta)) in part.iter_mut().zip(&updates[from..]) {
            *found = look(delta);
        }
    });
    found
}

/// The weights, scaled such that every update is clipped to the median norm.
fn clipped<'a>(updates: &[(u64, &'a [f32])], threads: usize) -> Vec<(f64, &'a [f32])> {
    let norms = map_updates(updates, threads, norm);
    let mut sorted = norms.clone();
    let median = robust::median_of(&mut sorted);
    let shrink = |norm: f64| if norm > median { median / norm } else { 1.0 };
    let weighted = updates.iter().zip(norms);
    weighted.map(|(&(weight, delta), norm)| (weight as f64 * shrink(norm), delta)).collect()
}

/// Splits `result` into one piece per thread and calls `fill(from, piece)` for each.
fn parallel_fill<T: Send>(
    result: &mut [T],
    threads: usize,
    granule: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
) {
    let piece = result.len().div_ceil(threads).next_multiple_of(granule);
    if result.len() <= piece {
        return fill(0, result);
    }
    std::thread::scope(|scope| {
        let mut parts = result.chunks_mut(piece).enumerate();
        // The calling thread processes one part, since it would only wait.
        let own = parts.next();
        for (at, part) in parts {
            let fill = &fill;
            scope.spawn(move || fill(at * piece, part));
        }
        if let Some((_, part)) = own {
            fill(0, part);
        }
    });
}

#[cfg(test)]
mod tests;
