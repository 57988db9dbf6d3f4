//! The simulated seconds of a reduction, and the plan that has the least of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::actions::{ReductionAction, shared_levels};
use super::plan::ReductionPlan;
use super::simulation::simulate;
use crate::virtual_workers::{Assignment, TransferCost};

/// The share of a lower bound that rounding may add to it.
const ROUNDING: f64 = 1e-9;

/// A step of the backward pass of a rank, which goes from the last elements to the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReadyStep {
    /// The elements from this one on are there.
    pub first_element: u64,
    /// After these seconds.
    pub seconds: f64,
}

/// Times of the machines.
#[derive(Debug, Clone, Copy)]
pub struct ReductionCosts<'a> {
    /// `links[a][b]` is the link from rank `a` to rank `b`.
    pub links: &'a [Vec<TransferCost>],
    /// Seconds for the addition of one byte.
    pub add_seconds_per_byte: f64,
    /// The steps of the last backward pass of each rank: their first elements fall to 0, and their
    /// seconds do not. A rank without steps has all elements at 0 seconds.
    pub ready: &'a [Vec<ReadyStep>],
}

impl ReductionCosts<'_> {
    /// The seconds after which a rank has its own gradient of these elements.
    pub(super) fn ready(&self, rank: usize, elements: &Range<u64>) -> f64 {
        let steps = &self.ready[rank];
        let step = steps.partition_point(|step| step.first_element > elements.start);
        steps.get(step).map_or(0.0, |step| step.seconds)
    }

    fn check(&self, assignment: &Assignment) -> Result<(), ReductionError> {
        let invalid = |why: &str| Err(ReductionError::Invalid { why: why.to_owned() });
        let ranks = assignment.ranges().len();
        if self.links.len() != ranks || self.links.iter().any(|row| row.len() != ranks) {
            return invalid("there must be a link for each pair of ranks");
        }
        if self.ready.len() != ranks {
            return invalid("there must be a list of ready times for each rank");
        }
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let links = self.links.iter().flatten().flat_map(|link| [link.alpha, link.beta]);
        let steps = self.ready.iter().flatten().map(|step| step.seconds);
        if !links.chain(steps).chain([self.add_seconds_per_byte]).all(is_time) {
            return invalid("the seconds must be at least 0 and finite");
        }
        let falls = |pair: &[ReadyStep]| {
            pair[0].first_element > pair[1].first_element && pair[0].seconds <= pair[1].seconds
        };
        let ends = |steps: &Vec<ReadyStep>| steps.last().is_none_or(|step| step.first_element == 0);
        if !self.ready.iter().all(|steps| steps.windows(2).all(falls) && ends(steps)) {
            return invalid("the ready times must go from the last elements to element 0");
        }
        Ok(())
    }
}

/// The times cannot be used.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ReductionError {
    /// A number is missing or out of bounds.
    #[error("{why}")]
    Invalid {
        /// The reason.
        why: String,
    },
}

/// A plan with its simulated seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestReduction {
    /// The plan.
    pub plan: ReductionPlan,
    /// Seconds from the start of the last backward pass until the total is at rank 0.
    pub seconds: f64,
}

/// Sums that are reduced.
#[derive(Debug, Clone, Copy)]
pub struct ReducedSums<'a> {
    /// The ranks of the parts.
    pub assignment: &'a Assignment,
    /// Parts of the batch.
    pub parts: usize,
    /// Elements of a sum.
    pub elements: u64,
}

impl ReducedSums<'_> {
    fn actions(&self, plan: ReductionPlan) -> Vec<Vec<ReductionAction>> {
        plan.actions(self.assignment, self.parts, self.elements)
    }
}

/// The simulated seconds of a plan, from the start of the last backward pass until the total is at
/// rank 0. The module `simulation` states the model.
///
/// # Errors
/// [`ReductionError`] if a time is missing or out of bounds.
pub fn seconds(
    plan: ReductionPlan,
    sums: ReducedSums<'_>,
    costs: &ReductionCosts,
) -> Result<f64, ReductionError> {
    costs.check(sums.assignment)?;
    Ok(simulate(&sums.actions(plan), costs, f64::INFINITY).unwrap_or(f64::INFINITY))
}

/// The plan of the least simulated seconds; of equal ones the first of the family, in which few
/// chunks precede many, and the tree precedes other rules. The search is exact: it goes through the
/// plans in the order of a lower bound, the work of their busiest port or processor, ends where the
/// bound exceeds the least seconds so far, and ends a simulation there, too.
///
/// # Errors
/// [`ReductionError`] if a time is missing or out of bounds.
pub fn best(
    sums: ReducedSums<'_>,
    costs: &ReductionCosts,
) -> Result<BestReduction, ReductionError> {
    costs.check(sums.assignment)?;
    let family = ReductionPlan::family(&shared_levels(sums.assignment, sums.parts));
    let bounds = family.into_iter().enumerate().map(|(number, plan)| {
        let bound = lower_bound(plan, sums, costs);
        (bound, number, plan)
    });
    let mut bounds: Vec<_> = bounds.collect();
    bounds.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let mut best = BestReduction { plan: ReductionPlan::FLAT, seconds: f64::INFINITY };
    let mut best_number = usize::MAX;
    for (bound, number, plan) in bounds {
        if bound > best.seconds {
            break;
        }
        let Some(seconds) = simulate(&sums.actions(plan), costs, best.seconds) else { continue };
        if seconds < best.seconds || number < best_number {
            (best, best_number) = (BestReduction { plan, seconds }, number);
        }
    }
    Ok(best)
}

/// Seconds that a plan needs at least: all work of the busiest port or processor, since the total
/// needs every transfer and every addition. The smallest chunk stands for all: a larger one has no
/// fewer messages, and no fewer bytes for any rank.
fn lower_bound(plan: ReductionPlan, sums: ReducedSums<'_>, costs: &ReductionCosts) -> f64 {
    let chunks = u64::from(plan.chunks());
    let one = ReducedSums { elements: sums.elements / chunks, ..sums };
    let programs = one.actions(plan.with_one_chunk());
    let mut busiest = 0.0_f64;
    for (rank, program) in programs.iter().enumerate() {
        let (mut sent, mut received, mut added) = (0.0, 0.0, 0.0);
        for action in program {
            let bytes = action.bytes();
            match action {
                ReductionAction::Send(piece) => {
                    sent += costs.links[rank][piece.peer as usize].seconds(bytes);
                }
                ReductionAction::ReceiveAdd(piece) | ReductionAction::Receive(piece) => {
                    received += costs.links[piece.peer as usize][rank].beta * bytes as f64;
                }
                ReductionAction::Merge { .. } => {}
            }
            if action.is_addition() {
                added += costs.add_seconds_per_byte * bytes as f64;
            }
        }
        busiest = busiest.max(sent).max(received).max(added);
    }
    busiest * chunks as f64 * (1.0 - ROUNDING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduction::execute::ReductionRandom;
    use crate::reduction::plan::{CHUNKS_MAX, LevelRules, ReductionRule};

    const INSIDE: TransferCost = TransferCost { alpha: 5e-6, beta: 1.0 / 10e9 };
    const ACROSS: TransferCost = TransferCost { alpha: 20e-6, beta: 1.0 / 1.25e9 };
    /// Ranks of the large tests.
    const RANKS: u32 = 160;
    /// 20 GB/s.
    const ADD: f64 = 1.0 / 20e9;

    fn links(ranks: usize, link: impl Fn(usize, usize) -> TransferCost) -> Vec<Vec<TransferCost>> {
        (0..ranks).map(|a| (0..ranks).map(|b| link(a, b)).collect()).collect()
    }

    /// Machines of `size` ranks.
    fn machines(ranks: usize, size: usize) -> Vec<Vec<TransferCost>> {
        links(ranks, |a, b| if a / size == b / size { INSIDE } else { ACROSS })
    }

    fn uniform(rule: ReductionRule, chunks: u32) -> ReductionPlan {
        ReductionPlan::new(chunks, LevelRules::uniform(rule)).unwrap()
    }

    #[test]
    fn seconds_of_small_plans_are_those_by_hand() {
        let links = links(4, |_, _| TransferCost { alpha: 1.0, beta: 0.25 });
        let (assignment, ready) = (Assignment::even(4, 4), vec![Vec::new(); 4]);
        let sums = ReducedSums { assignment: &assignment, parts: 4, elements: 8 };
        let costs = ReductionCosts { links: &links, add_seconds_per_byte: 0.125, ready: &ready };
        let seconds = |plan| seconds(plan, sums, &costs).unwrap();
        // 32 bytes: 1 s of latency, 8 s in the ports, 4 s of an addition. Three vectors follow each
        // other into rank 0, and the sums of the last two are made at the end.
        assert_eq!(seconds(ReductionPlan::FLAT), 1.0 + 3.0 * 8.0 + 4.0 + 4.0);
        assert_eq!(seconds(ReductionPlan::TREE), 2.0 * (1.0 + 8.0 + 4.0));
        // Halves, quarters, and their return.
        let halving = (1.0 + 4.0 + 2.0) + (1.0 + 2.0 + 1.0) + (1.0 + 2.0) + (1.0 + 4.0);
        assert_eq!(seconds(uniform(ReductionRule::Halving, 1)), halving);
        // Two chunks: rank 2 sends its first sum at 7 s. The port of rank 0 has two chunks from
        // rank 1 until 10 s, then one from rank 2 until 14 s. Then rank 2 sends the last one.
        assert_eq!(seconds(uniform(ReductionRule::Tree, 2)), 14.0 + (1.0 + 4.0 + 2.0));
    }

    #[test]
    fn transfers_begin_during_the_backward_pass() {
        let links = links(2, |_, _| TransferCost { alpha: 0.0, beta: 1.0 });
        let assignment = Assignment::even(2, 2);
        let sums = ReducedSums { assignment: &assignment, parts: 2, elements: 8 };
        let step = |first_element, seconds| ReadyStep { first_element, seconds };
        let ready = vec![vec![step(4, 10.0), step(0, 30.0)]; 2];
        let costs = ReductionCosts { links: &links, add_seconds_per_byte: 0.0, ready: &ready };
        assert_eq!(seconds(ReductionPlan::TREE, sums, &costs), Ok(30.0 + 32.0));
        // The chunk of the last elements travels from 10 s to 26 s.
        assert_eq!(seconds(uniform(ReductionRule::Tree, 2), sums, &costs), Ok(30.0 + 16.0));
    }

    #[test]
    fn wrong_times_are_refused() {
        let assignment = Assignment::even(2, 2);
        let sums = ReducedSums { assignment: &assignment, parts: 2, elements: 8 };
        let step = |first_element, seconds| ReadyStep { first_element, seconds };
        let none = vec![Vec::new(); 2];
        let good = machines(2, 1);
        let refused =
            |links: &[Vec<TransferCost>], add_seconds_per_byte, ready: &[Vec<ReadyStep>]| {
                let costs = ReductionCosts { links, add_seconds_per_byte, ready };
                best(sums, &costs).is_err() && seconds(ReductionPlan::TREE, sums, &costs).is_err()
            };
        assert!(!refused(&good, 0.0, &none));
        assert!(refused(&machines(3, 1), 0.0, &none));
        assert!(refused(&good, 0.0, &none[1..]));
        assert!(refused(&good, f64::NAN, &none));
        assert!(refused(&links(2, |_, _| TransferCost { alpha: -1.0, ..INSIDE }), 0.0, &none));
        for steps in [vec![step(1, 1.0)], vec![step(0, f64::INFINITY)]] {
            assert!(refused(&good, 0.0, &[steps, Vec::new()]));
        }
        assert!(refused(&good, 0.0, &[vec![step(4, 2.0), step(0, 1.0)], Vec::new()]));
        assert!(refused(&good, 0.0, &[vec![step(0, 1.0), step(4, 2.0)], Vec::new()]));
    }

    #[test]
    fn the_best_plan_is_that_of_brute_force() {
        let mut random = ReductionRandom::new(0x5EED_0003);
        let mut found = std::collections::BTreeMap::new();
        for _ in 0..120 {
            let (ranks, workers) = (1 + random.below(9) as usize, 1 + random.below(24) as u32);
            let assignment = random.assignment(workers, ranks);
            let elements = 1 << random.below(20);
            let size = 1 + random.below(4) as usize;
            let links = machines(ranks, size);
            let mut steps = |_| {
                let first_element = elements / (1 + random.below(4)) + 1;
                let seconds = 1e-5 * random.below(10) as f64;
                let steps = [(first_element, seconds), (0, 1.5 * seconds)];
                let steps =
                    steps.map(|(first_element, seconds)| ReadyStep { first_element, seconds });
                steps.to_vec()
            };
            let ready: Vec<Vec<ReadyStep>> = (0..ranks).map(&mut steps).collect();
            let costs = ReductionCosts { links: &links, add_seconds_per_byte: ADD, ready: &ready };
            let sums = ReducedSums { assignment: &assignment, parts: workers as usize, elements };
            let family = ReductionPlan::family(&shared_levels(&assignment, sums.parts));
            let all = family.into_iter().map(|plan| {
                let seconds = seconds(plan, sums, &costs).unwrap();
                assert!(lower_bound(plan, sums, &costs) <= seconds, "{plan}");
                BestReduction { plan, seconds }
            });
            let least = all.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap();
            assert_eq!(best(sums, &costs), Ok(least));
            *found.entry(least.plan.to_string()).or_insert(0) += 1;
        }
        assert!(found.len() > 10, "the problems are alike: {found:?}");
    }

    #[test]
    fn the_best_plan_of_160_ranks_takes_half_of_the_flat_ones_time() {
        let assignment = Assignment::even(RANKS, RANKS);
        let ready = vec![Vec::new(); RANKS as usize];
        let ranks = RANKS as usize;
        for (name, links) in
            [("20 machines", machines(ranks, 8)), ("homogeneous", links(ranks, |_, _| ACROSS))]
        {
            let costs = ReductionCosts { links: &links, add_seconds_per_byte: ADD, ready: &ready };
            for bytes in [4_000, 1_000_000, 40_000_000, 100_000_000] {
                let sums =
                    ReducedSums { assignment: &assignment, parts: ranks, elements: bytes / 4 };
                let at = |plan| seconds(plan, sums, &costs).unwrap();
                let chunked = |rule| {
                    let counts = (0..=CHUNKS_MAX.ilog2()).map(|power| 1 << power);
                    counts.map(|chunks| at(uniform(rule, chunks))).fold(f64::INFINITY, f64::min)
                };
                let (flat, tree) = (at(ReductionPlan::FLAT), at(ReductionPlan::TREE));
                let (chunks, halving) =
                    (chunked(ReductionRule::Tree), at(uniform(ReductionRule::Halving, 1)));
                let start = std::time::Instant::now();
                let best = best(sums, &costs).unwrap();
                println!(
                    "{name}, {bytes} bytes: flat {:.3} ms, tree {:.3}, chunked tree {:.3}, halving \
                     {:.3}, best {:.3} by {} ({:.2?})",
                    flat * 1e3,
                    tree * 1e3,
                    chunks * 1e3,
                    halving * 1e3,
                    best.seconds * 1e3,
                    best.plan,
                    start.elapsed()
                );
                assert!(2.0 * best.seconds <= flat);
                assert!(best.seconds <= tree.min(chunks).min(halving));
            }
        }
    }
}
