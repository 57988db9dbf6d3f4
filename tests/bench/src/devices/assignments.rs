//! Assignments of workers to ranks beside the best ones by trying all.

use florin_learning::virtual_workers::{Assignment, RankCost, TransferCost, assign};

use crate::Measurement;

/// Problems of each number of ranks.
const PROBLEMS: u64 = 12;
/// Ranks of which two problems are tried: each has millions of assignments.
const MANY: std::ops::RangeInclusive<usize> = 7..=8;
const WORKERS: u32 = 10;
/// Bytes of a gradient.
const BYTES: u64 = 40_000_000;
/// Largest time as a multiple of the best one.
const BAR: f64 = 1.05;
const SEED: u64 = 21;

/// ProblemNumbers of a linear congruential generator (Knuth's MMIX), from 0 to 1.
struct ProblemNumbers(u64);

impl ProblemNumbers {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks of two machines with speeds that differ by up to three.
fn problem(numbers: &mut ProblemNumbers, ranks: usize) -> (Vec<RankCost>, Vec<Vec<TransferCost>>) {
    let costs = (0..ranks)
        .map(|_| RankCost { worker_seconds: 0.1 + 0.2 * numbers.next(), workers_max: WORKERS })
        .collect();
    let machines: Vec<bool> = (0..ranks).map(|_| numbers.next() < 0.5).collect();
    let link = |a: usize, b: usize| match machines[a] == machines[b] {
        true => TransferCost { alpha: 2e-5, beta: 3e-10 },
        false => TransferCost { alpha: 2e-4, beta: 8e-9 },
    };
    let links = (0..ranks).map(|a| (0..ranks).map(|b| link(a, b)).collect()).collect();
    (costs, links)
}

/// The least seconds of all orders of the ranks after rank 0, and all numbers of workers, from a known time
/// on: no rank may compute longer.
fn best(costs: &[RankCost], links: &[Vec<TransferCost>], known: f64) -> f64 {
    struct Search<'a> {
        costs: &'a [RankCost],
        links: &'a [Vec<TransferCost>],
        order: Vec<usize>,
        sizes: Vec<u32>,
        least: f64,
    }
    impl Search<'_> {
        fn go(&mut self, left: u32) {
            if self.order.len() == self.costs.len() {
                if left > 0 {
                    return;
                }
                let (mut ranges, mut next) = (vec![0..0; self.order.len()], 0);
                for (&rank, &size) in self.order.iter().zip(&self.sizes) {
                    ranges[rank] = next..next + size;
                    next += size;
                }
                if let Ok(found) = Assignment::from_ranges(ranges, WORKERS) {
                    self.least = self.least.min(found.seconds(self.costs, self.links, BYTES));
                }
                return;
            }
            for rank in 0..self.costs.len() {
                let is_first = self.order.is_empty();
                if self.order.contains(&rank) || is_first && rank > 0 {
                    continue;
                }
                self.order.push(rank);
                for size in u32::from(is_first)..=left {
                    if f64::from(size) * self.costs[rank].worker_seconds > self.least {
                        break;
                    }
                    self.sizes.push(size);
                    self.go(left - size);
                    self.sizes.pop();
                }
                self.order.pop();
            }
        }
    }
    let (order, sizes) = (Vec::new(), Vec::new());
    let mut search = Search { costs, links, order, sizes, least: known };
    search.go(WORKERS);
    search.least
}

pub(super) fn run() -> Vec<Measurement> {
    let mut numbers = ProblemNumbers(SEED);
    let rows = [2, 3, 4, 5, 6, 7, 8].map(|ranks| {
        let mut worst = 1.0_f64;
        let problems = if MANY.contains(&ranks) { 2 } else { PROBLEMS };
        for _ in 0..problems {
            let (costs, links) = problem(&mut numbers, ranks);
            let found = assign(WORKERS, &costs, &links, BYTES);
            let seconds = found.map_or(f64::INFINITY, |found| found.seconds(&costs, &links, BYTES));
            worst = worst.max(seconds / best(&costs, &links, seconds));
        }
        let name = format!("assignment to {ranks} ranks: worst of {problems} to the best of all");
        Measurement::at_most(name, worst, "x", BAR)
    });
    rows.into()
}
