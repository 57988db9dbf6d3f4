//! The assignment of virtual workers to ranks: which rank computes which of them.
//!
//! The time of a step is that of a simulation: a rank computes its workers one after another, and each
//! addition of the tree waits for both sums, and for the transfer between their ranks. Up to
//! [`RANKS_EXACT_MAX`] ranks all orders of the ranks along the tree are compared, each divided by the
//! ranks' speeds, and the divisions of the best orders are improved by moving single workers. More ranks
//! are ordered along the shortest links.

use std::ops::Range;

use thiserror::Error;

use super::merges;

/// The largest number of ranks for which all orders are tried.
pub const RANKS_EXACT_MAX: usize = 8;
/// The orders whose divisions are improved.
const IMPROVED_ORDERS: usize = 8;
/// Ranks of an assignment, at most.
const RANKS_MAX: usize = 1_024;

/// The speed and the room of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankCost {
    /// Seconds for the gradient of one virtual worker, above 0.
    pub worker_seconds: f64,
    /// The most workers that it can compute; a rank without memory for one has 0.
    pub workers_max: u32,
}

/// A transfer between two ranks: `alpha + beta · bytes` seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransferCost {
    /// Seconds of a transfer without bytes.
    pub alpha: f64,
    /// Seconds for each byte.
    pub beta: f64,
}

impl TransferCost {
    /// Seconds for a transfer.
    #[must_use]
    pub fn seconds(self, bytes: u64) -> f64 {
        self.alpha + self.beta * bytes as f64
    }
}

/// No assignment exists.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum AssignmentError {
    /// A number is missing or out of bounds.
    #[error("{why}")]
    Invalid {
        /// The reason.
        why: String,
    },
    /// The ranks cannot hold all workers.
    #[error(
        "the ranks have room for {room} of {workers} virtual workers, and rank 0 needs room for one"
    )]
    NoRoom {
        /// Workers that fit.
        room: u64,
        /// Workers.
        workers: u32,
    },
}

/// The ranges of virtual workers of each rank. Rank 0 has worker 0: it takes the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// By rank.
    ranges: Vec<Range<u32>>,
}

impl Assignment {
    /// As even as possible, in the order of the ranks.
    #[must_use]
    pub fn even(workers: u32, ranks: u32) -> Self {
        let (workers, ranks) = (u64::from(workers), u64::from(ranks.max(1)));
        let at = |rank: u64| (rank * workers).div_ceil(ranks) as u32;
        Self { ranges: (0..ranks).map(|rank| at(rank)..at(rank + 1)).collect() }
    }

    /// Consecutive ranges of these sizes for ranks in this order.
    fn in_order(order: &[usize], sizes: &[u32]) -> Self {
        let mut ranges = vec![0..0; order.len()];
        let mut next = 0;
        for (&rank, &size) in order.iter().zip(sizes) {
            ranges[rank] = next..next + size;
            next += size;
        }
        Self { ranges }
    }

    /// Reads the ranges of each rank.
    ///
    /// # Errors
    /// [`AssignmentError::Invalid`] unless they cover `0..workers` once, and rank 0 has worker 0.
    pub fn from_ranges(ranges: Vec<Range<u32>>, workers: u32) -> Result<Self, AssignmentError> {
        let invalid = |why: String| AssignmentError::Invalid { why };
        if ranges.is_empty() || ranges.len() > RANKS_MAX {
            return Err(invalid(format!("an assignment has 1 to {RANKS_MAX} ranks")));
        }
        let mut sorted: Vec<&Range<u32>> = ranges.iter().filter(|own| !own.is_empty()).collect();
        sorted.sort_by_key(|own| own.start);
        let mut next = 0;
        for own in sorted {
            if own.start != next {
                return Err(invalid(format!(
                    "the ranges of an assignment must follow each other: worker {next} is assigned \
                     to no rank or to two"
                )));
            }
            next = own.end;
        }
        if next != workers {
            return Err(invalid(format!(
                "the assignment has {next} virtual workers, but there are {workers}"
            )));
        }
        if ranges.first().is_none_or(|own| own.start != 0 || own.is_empty()) {
            return Err(invalid("rank 0 computes worker 0, and takes the steps".to_owned()));
        }
        Ok(Self { ranges })
    }

    /// The workers of each rank.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// The parts of a batch of `parts` parts that a rank computes.
    #[must_use]
    pub fn own(&self, rank: u32, parts: usize) -> Range<usize> {
        let own = self.ranges.get(rank as usize).cloned().unwrap_or(0..0);
        (own.start as usize).min(parts)..(own.end as usize).min(parts)
    }

    /// The rank that computes a part.
    #[must_use]
    pub fn owner(&self, part: usize) -> u32 {
        let own = |range: &Range<u32>| (range.start as usize..range.end as usize).contains(&part);
        self.ranges.iter().position(own).unwrap_or(0) as u32
    }

    /// Simulated seconds until the sum of all workers is at rank 0. `bytes` is the size of a gradient.
    #[must_use]
    pub fn seconds(&self, costs: &[RankCost], links: &[Vec<TransferCost>], bytes: u64) -> f64 {
        let workers = self.ranges.iter().map(|own| own.end).max().unwrap_or(0) as usize;
        let mut ready = vec![0.0_f64; workers];
        for (own, cost) in self.ranges.iter().zip(costs) {
            for (done, worker) in own.clone().enumerate() {
                ready[worker as usize] = (done + 1) as f64 * cost.worker_seconds;
            }
        }
        let mut owners = vec![0; workers];
        for (rank, own) in self.ranges.iter().enumerate() {
            owners[own.start as usize..own.end as usize].fill(rank);
        }
        for merge in merges(workers) {
            let (into, from) = (owners[merge.into], owners[merge.from]);
            let sent = if into == from { 0.0 } else { links[from][into].seconds(bytes) };
            ready[merge.into] = ready[merge.into].max(ready[merge.from] + sent);
        }
        ready.first().copied().unwrap_or(0.0)
    }
}

/// Assigns workers to ranks such that a step takes least: by all orders of the ranks for at most
/// [`RANKS_EXACT_MAX`], along the shortest links beyond. `links[a][b]` is the link from rank `a` to rank
/// `b`; `bytes` is the size of a gradient.
///
/// # Errors
/// [`AssignmentError`] if a number is out of bounds, or if the ranks have too little room.
pub fn assign(
    workers: u32,
    costs: &[RankCost],
    links: &[Vec<TransferCost>],
    bytes: u64,
) -> Result<Assignment, AssignmentError> {
    check(workers, costs, links)?;
    let problem = Problem { workers, costs, links, bytes };
    let chain = problem.chain();
    if costs.len() > RANKS_EXACT_MAX {
        return Ok(problem.by_speed(&chain).assignment);
    }
    let mut found = Vec::new();
    let mut order = chain;
    permutations(&mut order, 1, &mut |order| {
        found.push((problem.by_speed(order).seconds, order.to_vec()));
    });
    found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    found.truncate(IMPROVED_ORDERS);
    let improved = found.iter().map(|(_, order)| problem.improved(order));
    let best = improved.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let none = AssignmentError::NoRoom { room: 0, workers };
    best.map(|best| best.assignment).ok_or(none)
}

fn check(
    workers: u32,
    costs: &[RankCost],
    links: &[Vec<TransferCost>],
) -> Result<(), AssignmentError> {
    let invalid = |why: &str| AssignmentError::Invalid { why: why.to_owned() };
    if costs.is_empty() || costs.len() > RANKS_MAX {
        return Err(invalid("an assignment has 1 to 1024 ranks"));
    }
    let is_square = links.len() == costs.len() && links.iter().all(|row| row.len() == costs.len());
    if !is_square {
        return Err(invalid("there must be a link for each pair of ranks"));
    }
    let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
    if !costs.iter().all(|cost| is_time(cost.worker_seconds) && cost.worker_seconds > 0.0) {
        return Err(invalid("the seconds of a worker must be above 0 and finite"));
    }
    if !links.iter().flatten().all(|link| is_time(link.alpha) && is_time(link.beta)) {
        return Err(invalid("the seconds of a link must be at least 0 and finite"));
    }
    let room: u64 = costs.iter().map(|cost| u64::from(cost.workers_max)).sum();
    if room < u64::from(workers) || costs[0].workers_max == 0 {
        return Err(AssignmentError::NoRoom { room, workers });
    }
    Ok(())
}

/// Calls `look` with every order of the items from `from` on.
fn permutations(items: &mut [usize], from: usize, look: &mut impl FnMut(&[usize])) {
    if from + 1 >= items.len() {
        look(items);
        return;
    }
    for at in from..items.len() {
        items.swap(from, at);
        permutations(items, from + 1, look);
        items.swap(from, at);
    }
}

/// An assignment with its simulated seconds.
struct Found {
    assignment: Assignment,
    seconds: f64,
}

struct Problem<'a> {
    workers: u32,
    costs: &'a [RankCost],
    links: &'a [Vec<TransferCost>],
    bytes: u64,
}

impl Problem<'_> {
    fn found(&self, order: &[usize], sizes: &[u32]) -> Found {
        let assignment = Assignment::in_order(order, sizes);
        let seconds = assignment.seconds(self.costs, self.links, self.bytes);
        Found { assignment, seconds }
    }

    /// The ranks from rank 0 on, each followed by the one with the shortest link, and among equal links
    /// by the fastest one.
    fn chain(&self) -> Vec<usize> {
        let mut order = vec![0];
        let mut left: Vec<usize> = (1..self.costs.len()).collect();
        while let Some(&last) = order.last() {
            let key = |&rank: &usize| {
                (self.links[last][rank].seconds(self.bytes), self.costs[rank].worker_seconds)
            };
            let nearest = left.iter().enumerate().min_by(|(_, a), (_, b)| {
                let ((link_a, own_a), (link_b, own_b)) = (key(a), key(b));
                link_a.total_cmp(&link_b).then(own_a.total_cmp(&own_b))
            });
            let Some((at, _)) = nearest else { break };
            order.push(left.remove(at));
        }
        order
    }

    fn by_speed(&self, order: &[usize]) -> Found {
        self.found(order, &self.sizes(order))
    }

    /// The division by speed, improved by moving one worker at a time.
    fn improved(&self, order: &[usize]) -> Found {
        let mut sizes = self.sizes(order);
        let mut best = self.found(order, &sizes);
        let mut improves = true;
        while improves {
            improves = false;
            for giver in 0..order.len() {
                for taker in 0..order.len() {
                    let (least, room) =
                        (u32::from(giver == 0), self.costs[order[taker]].workers_max);
                    if giver == taker || sizes[giver] <= least || sizes[taker] >= room {
                        continue;
                    }
                    sizes[giver] -= 1;
                    sizes[taker] += 1;
                    let other = self.found(order, &sizes);
                    if other.seconds < best.seconds {
                        (best, improves) = (other, true);
                    } else {
                        sizes[giver] += 1;
                        sizes[taker] -= 1;
                    }
                }
            }
        }
        best
    }

    /// One worker after another to the rank that would end first.
    fn sizes(&self, order: &[usize]) -> Vec<u32> {
        let mut sizes = vec![0_u32; order.len()];
        sizes[0] = 1;
        for _ in 1..self.workers {
            let end = |at: usize| f64::from(sizes[at] + 1) * self.costs[order[at]].worker_seconds;
            let free = (0..order.len()).filter(|&at| sizes[at] < self.costs[order[at]].workers_max);
            if let Some(first) = free.min_by(|&a, &b| end(a).total_cmp(&end(b))) {
                sizes[first] += 1;
            }
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;

    use super::*;
    use crate::rng::{Purpose, below, rng, uniform};

    fn cost(worker_seconds: f64) -> RankCost {
        RankCost { worker_seconds, workers_max: u32::MAX }
    }

    fn flat(ranks: usize, link: TransferCost) -> Vec<Vec<TransferCost>> {
        vec![vec![link; ranks]; ranks]
    }

    const FREE: TransferCost = TransferCost { alpha: 0.0, beta: 0.0 };

    #[test]
    fn an_even_assignment_covers_all_workers() {
        let even = Assignment::even(8, 3);
        assert_eq!(even.ranges(), [0..3, 3..6, 6..8]);
        assert_eq!(even.own(1, 4), 3..4, "a short batch has fewer parts");
        assert_eq!(even.own(2, 4), 4..4);
        assert_eq!((even.owner(2), even.owner(3), even.owner(7)), (0, 1, 2));
        assert_eq!(Assignment::even(2, 4).ranges(), [0..1, 1..1, 1..2, 2..2]);
    }

    #[test]
    fn a_device_of_twice_the_speed_gets_twice_the_workers() {
        let costs = [cost(1.0), cost(2.0)];
        let found = assign(9, &costs, &flat(2, FREE), 0).unwrap();
        assert_eq!(found.ranges().iter().map(ExactSizeIterator::len).collect::<Vec<_>>(), [6, 3]);
        let naive = Assignment::even(9, 2).seconds(&costs, &flat(2, FREE), 0);
        assert_eq!((found.seconds(&costs, &flat(2, FREE), 0), naive), (6.0, 8.0));
    }

    #[test]
    fn a_slow_link_is_used_once_in_a_step() {
        // Ranks 0 and 2 are on one machine, 1 and 3 on another.
        let link = |a: usize, b: usize| match a % 2 == b % 2 {
            true => TransferCost { alpha: 0.0, beta: 1e-9 },
            false => TransferCost { alpha: 0.0, beta: 1e-6 },
        };
        let links: Vec<Vec<TransferCost>> =
            (0..4).map(|a| (0..4).map(|b| link(a, b)).collect()).collect();
        let found = assign(4, &[cost(1.0); 4], &links, 1_000_000).unwrap();
        let owners: Vec<u32> = (0..4).map(|part| found.owner(part)).collect();
        assert_eq!(owners[0] % 2, owners[1] % 2, "{owners:?}");
        assert_eq!(owners[2] % 2, owners[3] % 2, "{owners:?}");
        let even = Assignment::even(4, 4).seconds(&[cost(1.0); 4], &links, 1_000_000);
        assert!(found.seconds(&[cost(1.0); 4], &links, 1_000_000) <= even);
    }

    #[test]
    fn wrong_problems_are_refused() {
        let full = RankCost { worker_seconds: 1.0, workers_max: 1 };
        assert_eq!(
            assign(3, &[full; 2], &flat(2, FREE), 0),
            Err(AssignmentError::NoRoom { room: 2, workers: 3 })
        );
        for (costs, links) in [
            (vec![], vec![]),
            (vec![cost(0.0)], flat(1, FREE)),
            (vec![cost(f64::NAN)], flat(1, FREE)),
            (vec![cost(1.0)], flat(2, FREE)),
            (vec![cost(1.0)], flat(1, TransferCost { alpha: -1.0, beta: 0.0 })),
        ] {
            let refused = assign(1, &costs, &links, 0);
            assert!(matches!(refused, Err(AssignmentError::Invalid { .. })), "{refused:?}");
        }
        let wrong: [&[Range<u32>]; 6] =
            [&[0..2, 3..4], &[0..2, 1..4], &[1..2, 2..4], &[0..2, 2..3], &[], &[2..4, 0..2]];
        for ranges in wrong {
            assert!(Assignment::from_ranges(ranges.to_vec(), 4).is_err());
        }
        assert!(Assignment::from_ranges(vec![0..2, 2..2, 3..4, 2..3], 4).is_ok());
    }

    /// A random problem with ranks in two groups.
    fn problem(random: &mut ChaCha20Rng, ranks: usize) -> (Vec<RankCost>, Vec<Vec<TransferCost>>) {
        let costs = (0..ranks).map(|_| cost(0.5 + uniform(random))).collect();
        let groups: Vec<u64> = (0..ranks).map(|_| below(random, 2)).collect();
        let link = |a: usize, b: usize| match groups[a] == groups[b] {
            true => TransferCost { alpha: 1e-5, beta: 1e-10 },
            false => TransferCost { alpha: 1e-4, beta: 1e-8 },
        };
        let links = (0..ranks).map(|a| (0..ranks).map(|b| link(a, b)).collect()).collect();
        (costs, links)
    }

    /// The least seconds of all orders and all divisions.
    fn brute_force(
        workers: u32,
        costs: &[RankCost],
        links: &[Vec<TransferCost>],
        bytes: u64,
    ) -> f64 {
        fn divisions(left: u32, sizes: &mut Vec<u32>, ranks: usize, look: &mut dyn FnMut(&[u32])) {
            if sizes.len() + 1 == ranks {
                sizes.push(left);
                look(sizes);
                sizes.pop();
                return;
            }
            for size in u32::from(sizes.is_empty())..=left {
                sizes.push(size);
                divisions(left - size, sizes, ranks, look);
                sizes.pop();
            }
        }
        let mut least = f64::INFINITY;
        let mut order: Vec<usize> = (0..costs.len()).collect();
        permutations(&mut order, 1, &mut |order| {
            divisions(workers, &mut Vec::new(), order.len(), &mut |sizes| {
                let found = Assignment::in_order(order, sizes).seconds(costs, links, bytes);
                least = least.min(found);
            });
        });
        least
    }

    #[test]
    fn assignments_are_within_five_percent_of_brute_force() {
        let seed = 21;
        println!("seed {seed}");
        let mut random = rng(seed, Purpose::Directions, 0);
        let mut worst = 1.0_f64;
        for ranks in [2, 3, 4] {
            for _ in 0..6 {
                let (costs, links) = problem(&mut random, ranks);
                let found = assign(8, &costs, &links, 40_000_000).unwrap();
                let seconds = found.seconds(&costs, &links, 40_000_000);
                worst = worst.max(seconds / brute_force(8, &costs, &links, 40_000_000));
            }
        }
        println!("largest ratio to brute force: {worst:.4}");
        assert!(worst <= 1.05, "{worst}");
    }

    #[test]
    fn many_ranks_are_assigned_along_short_links() {
        let mut random = rng(22, Purpose::Directions, 0);
        let (costs, links) = problem(&mut random, 12);
        let found = assign(24, &costs, &links, 40_000_000).unwrap();
        let even = Assignment::even(24, 12).seconds(&costs, &links, 40_000_000);
        assert!(found.seconds(&costs, &links, 40_000_000) < even);
    }
}
