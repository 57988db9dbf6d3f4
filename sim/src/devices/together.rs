//! The step of several devices as one member, fast enough for many thousands of members.
//!
//! The seconds of a division are the production's ([`Assignment::seconds`], and a broadcast along a
//! binomial tree as in `step_together`). The search is bounded: the devices are in the order of their
//! speeds, and a faster device has no fewer workers. The best division of this family is found
//! exactly, so that a faster device never makes a step longer.

use std::ops::Range;

use florin_learning::virtual_workers::{Assignment, RankCost, TransferCost};

/// The link between the devices of a member, and the gradient that crosses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientTransfer {
    /// The link.
    pub(super) link: TransferCost,
    /// Bytes of the gradient.
    pub(super) bytes: u64,
}

/// The fastest step of some devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DividedStep {
    /// Its seconds.
    pub(super) seconds: f64,
    /// How many devices have a worker.
    pub(super) devices: u32,
    /// Seconds in which they compute, of all of them together.
    pub(super) computing_seconds: f64,
}

/// The fastest step of `workers` virtual workers on devices with these seconds of a worker, the
/// fastest first. A device without a worker takes no part. `None` without devices.
pub(super) fn fastest_step(
    seconds: &[f64],
    workers: u32,
    transfer: GradientTransfer,
) -> Option<DividedStep> {
    let first = *seconds.first()?;
    let seconds_alone = f64::from(workers) * first;
    let alone =
        DividedStep { seconds: seconds_alone, devices: 1, computing_seconds: seconds_alone };
    let hop = transfer.link.seconds(transfer.bytes);
    // The others' parts come from at least one hop away, and the parameters return.
    if seconds.len() == 1 || first + 2.0 * hop >= alone.seconds {
        return Some(alone);
    }
    let cost = |&worker_seconds: &f64| RankCost { worker_seconds, workers_max: workers };
    let costs: Vec<RankCost> = seconds.iter().map(cost).collect();
    let links = vec![vec![transfer.link; costs.len()]; costs.len()];
    let bytes = transfer.bytes;
    let division = Vec::with_capacity(seconds.len());
    let mut search =
        DivisionSearch { costs: &costs, links: &links, bytes, hop, division, best: alone };
    search.try_greedy(workers);
    search.extend(workers, workers, 0.0);
    Some(search.best)
}

/// The search of the best division.
struct DivisionSearch<'a> {
    costs: &'a [RankCost],
    links: &'a [Vec<TransferCost>],
    bytes: u64,
    /// Seconds of the gradient on a link.
    hop: f64,
    /// Workers of the devices so far.
    division: Vec<u32>,
    /// The fastest step so far.
    best: DividedStep,
}

impl DivisionSearch<'_> {
    /// One worker after another to the device that would end first: a good division to begin with.
    fn try_greedy(&mut self, workers: u32) {
        let mut division = vec![0_u32; self.costs.len()];
        division[0] = 1;
        for _ in 1..workers {
            let end = |at: usize| f64::from(division[at] + 1) * self.costs[at].worker_seconds;
            let first = (0..division.len()).min_by(|&a, &b| end(a).total_cmp(&end(b)));
            division[first.unwrap_or(0)] += 1;
        }
        division.retain(|own| *own > 0);
        self.division = division;
        self.evaluate();
        self.division.clear();
    }

    /// Tries all ways to give `left` workers to the next devices, at most `most` to each. `longest`
    /// is a lower bound of the seconds until the sum of the devices so far is at the first one.
    fn extend(&mut self, left: u32, most: u32, longest: f64) {
        if left == 0 {
            return self.evaluate();
        }
        let at = self.division.len();
        let devices = (self.costs.len() - at) as u32;
        if devices == 0 {
            return;
        }
        let (seconds, hop) = (self.costs[at].worker_seconds, if at == 0 { 0.0 } else { self.hop });
        for own in left.div_ceil(devices)..=most.min(left) {
            let longest = longest.max(f64::from(own) * seconds + hop);
            if longest + self.broadcast(at + 1) >= self.best.seconds {
                break;
            }
            self.division.push(own);
            self.extend(left - own, own, longest);
            self.division.pop();
        }
    }

    /// Seconds until `devices` devices have the new parameters.
    fn broadcast(&self, devices: usize) -> f64 {
        f64::from(devices.next_power_of_two().ilog2()) * self.hop
    }

    fn evaluate(&mut self) {
        let mut next = 0;
        let ranges = self.division.iter().map(|own| {
            let start = next;
            next += own;
            start..next
        });
        let ranges: Vec<Range<u32>> = ranges.collect();
        let assignment = Assignment::from_ranges(ranges, next)
            .expect("a division has consecutive ranges, and the first device has a worker");
        let reduced = assignment.seconds(self.costs, self.links, self.bytes);
        let seconds = reduced + self.broadcast(self.division.len());
        if seconds < self.best.seconds {
            let computing = self.division.iter().zip(self.costs);
            let computing = computing.map(|(own, cost)| f64::from(*own) * cost.worker_seconds);
            let (devices, computing_seconds) = (self.division.len() as u32, computing.sum());
            self.best = DividedStep { seconds, devices, computing_seconds };
        }
    }
}
