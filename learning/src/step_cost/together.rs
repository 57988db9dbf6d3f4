//! The time of a step that several devices compute together, by their cards and the link between them.

use std::ops::Range;

use thiserror::Error;

use crate::reduction::{
    ReadyStep, ReducedSums, ReductionCosts, ReductionError, ReductionPlan, best,
};
use crate::virtual_workers::{Assignment, AssignmentError, RankCost, TransferCost, assign};

/// Seconds for the addition of a byte to another one: 10 GB/s, as one core adds.
const ADD_SECONDS_PER_BYTE: f64 = 1e-10;

/// The predicted step of several devices.
#[derive(Debug, Clone, PartialEq)]
pub struct TogetherStep {
    /// Seconds of the step, without the optimizer's.
    pub seconds: f64,
    /// The virtual workers of each device.
    pub workers: Vec<Range<u32>>,
    /// The plan by which gradients are added.
    pub reduction: ReductionPlan,
    /// Seconds of it after the last backward pass.
    pub reduction_seconds: f64,
    /// Seconds until all devices have the new parameters.
    pub broadcast_seconds: f64,
}

/// A step of several devices cannot be predicted.
#[derive(Debug, Error)]
pub enum TogetherError {
    /// The workers cannot be assigned.
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    /// A time is out of bounds.
    #[error(transparent)]
    Reduction(#[from] ReductionError),
}

/// Predicts a step of `workers` virtual workers, each of which takes `worker_seconds` on a device, with a
/// gradient of `elements` numbers and equal links between all devices. The first device takes the steps.
/// The workers are assigned as `florin participate` does on ranks, their gradients are added by the fastest
/// plan, all together after the last backward pass, and the parameters return along a binomial tree. The
/// devices are thought to be apart: ranks on one machine slow each other down.
///
/// # Errors
/// [`TogetherError`] for no device, for more than the limits of an assignment, and for times that are not
/// above 0 and finite.
pub fn step_together(
    worker_seconds: &[f64],
    workers: u32,
    elements: u64,
    link: TransferCost,
) -> Result<TogetherStep, TogetherError> {
    let bytes = elements.saturating_mul(size_of::<f32>() as u64);
    let cost = |&worker_seconds: &f64| RankCost { worker_seconds, workers_max: workers };
    let costs: Vec<RankCost> = worker_seconds.iter().map(cost).collect();
    let links = vec![vec![link; costs.len()]; costs.len()];
    let assignment = assign(workers, &costs, &links, bytes)?;
    let computing: Vec<f64> = computing(&assignment, worker_seconds);
    let ready = |&seconds: &f64| vec![ReadyStep { first_element: 0, seconds }];
    let ready: Vec<Vec<ReadyStep>> = computing.iter().map(ready).collect();
    let add_seconds_per_byte = ADD_SECONDS_PER_BYTE;
    let costs = ReductionCosts { links: &links, add_seconds_per_byte, ready: &ready };
    let sums = ReducedSums { assignment: &assignment, parts: workers as usize, elements };
    let found = best(sums, &costs)?;
    let longest = computing.iter().copied().fold(0.0, f64::max);
    let hops = worker_seconds.len().next_power_of_two().ilog2();
    let broadcast_seconds = f64::from(hops) * link.seconds(bytes);
    // One device adds nothing behind its computing.
    let reduced = found.seconds.max(longest);
    Ok(TogetherStep {
        seconds: reduced + broadcast_seconds,
        workers: assignment.ranges().to_vec(),
        reduction: found.plan,
        reduction_seconds: reduced - longest,
        broadcast_seconds,
    })
}

/// Seconds in which each device computes its workers' parts.
fn computing(assignment: &Assignment, worker_seconds: &[f64]) -> Vec<f64> {
    let ranges = assignment.ranges().iter().zip(worker_seconds);
    ranges.map(|(own, seconds)| own.len() as f64 * seconds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TransferCost = TransferCost { alpha: 0.0, beta: 0.0 };

    fn step(worker_seconds: &[f64], link: TransferCost) -> TogetherStep {
        step_together(worker_seconds, 8, 1_000, link).unwrap()
    }

    #[test]
    fn devices_share_the_workers_by_their_speeds() {
        let alone = step(&[0.1], NONE);
        assert!((alone.seconds - 0.8).abs() < 1e-6 && alone.broadcast_seconds == 0.0);
        let two = step(&[0.1, 0.1], NONE);
        assert_eq!(two.workers, [0..4, 4..8]);
        assert!((two.seconds - 0.4).abs() < 1e-6, "{two:?}");
        let unequal = step(&[0.3, 0.1], NONE);
        assert_eq!(unequal.workers, [0..2, 2..8]);
        assert!((unequal.seconds - 0.6).abs() < 1e-6, "{unequal:?}");
    }

    #[test]
    fn transfers_are_those_of_a_sum_and_of_the_parameters() {
        // 4,000 bytes take 0.01 + 0.04 seconds, there and back.
        let link = TransferCost { alpha: 0.01, beta: 1e-5 };
        let two = step(&[0.1, 0.1], link);
        assert!((two.reduction_seconds - 0.05).abs() < 1e-6, "{two:?}");
        assert!((two.broadcast_seconds - 0.05).abs() < 1e-9, "{two:?}");
        assert!((two.seconds - 0.5).abs() < 1e-6, "{two:?}");
        // Three devices have two hops.
        assert!((step(&[0.1; 3], link).broadcast_seconds - 0.1).abs() < 1e-9);
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for seconds in [&[][..], &[0.0], &[0.1, f64::NAN], &[f64::INFINITY]] {
            assert!(step_together(seconds, 8, 10, NONE).is_err(), "{seconds:?}");
        }
        let link = TransferCost { alpha: -1.0, beta: 0.0 };
        assert!(step_together(&[0.1, 0.1], 8, 10, link).is_err());
    }
}
