//! The cut of a graph into the parts of a pipeline.
//!
//! The time between two micro-batches of a full pipeline is that of its slowest stage. A stage is a
//! part, or the transfer across a cut, which overlaps with computing (PipeDream: Narayanan et al.,
//! SOSP 2019, section 3.1). The cut is exact. A bisection over the bits of the time finds the
//! shortest slowest stage; for each time, a dynamic program over the parts from the last to the
//! first finds the fewest bytes. The ends that a part can have are a window that moves with its
//! start, so that the program takes O(positions · parts) steps, 64 times: 5,000 nodes in 16 parts
//! take about 0.1 seconds.

use std::collections::VecDeque;
use std::ops::Range;

use thiserror::Error;

use super::PARTS_MAX;
use crate::virtual_workers::TransferCost;

/// Nodes of a graph, at most.
pub const NODES_MAX: usize = 1 << 20;
/// Positions times parts, at most: the table of the best ends has 256 MiB.
const CELLS_MAX: usize = 1 << 26;
/// Bytes of a node or of a cut, at most, such that sums over all nodes fit into 64 bits.
const BYTES_MAX: u64 = 1 << 40;
/// The bytes of a division that does not exist.
const NONE: u64 = u64::MAX;

/// The cost of a node for one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeCost {
    /// Seconds of its forward pass, on the device where they were measured.
    pub forward_seconds: f64,
    /// Seconds of its backward pass, on the same device.
    pub backward_seconds: f64,
    /// Bytes of its parameters.
    pub parameter_bytes: u64,
    /// Bytes that it saves for the backward pass of a micro-batch.
    pub saved_bytes: u64,
}

/// The memory of the ranks. Part `p` of `P` needs `parameter_factor` bytes for each byte of its
/// parameters, and its saved bytes for `P − p` micro-batches, which are in flight in the order
/// [`one_forward_one_backward`](super::one_forward_one_backward).
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimits<'a> {
    /// Bytes by part.
    pub bytes: &'a [u64],
    /// Copies of the parameters: themselves, their gradients and the state of the optimizer.
    pub parameter_factor: u32,
}

/// A graph, and the ranks for its parts. There are as many parts as entries of `slowness`.
#[derive(Debug, Clone, Copy)]
pub struct CutProblem<'a> {
    /// The nodes in the order of their execution.
    pub nodes: &'a [NodeCost],
    /// Bytes that are live in front of each node, for one micro-batch. It has one entry more than
    /// there are nodes; the first and the last are ignored.
    pub boundary_bytes: &'a [u64],
    /// Whether a part can begin at a node, with one entry more than there are nodes; the first and
    /// the last are ignored.
    pub can_cut: &'a [bool],
    /// The seconds of each part's device relative to those of the nodes' costs, above 0.
    pub slowness: &'a [f64],
    /// The link from each part but the last to the next.
    pub links: &'a [TransferCost],
    /// The memory of the ranks, if it is limited.
    pub memory: Option<MemoryLimits<'a>>,
}

/// The first part of a pipeline whose process also computes other nodes.
#[derive(Debug, Clone, Copy)]
pub struct FirstPart<'a> {
    /// Whether the part can end in front of each node, with one entry more than there are nodes.
    pub can_end: &'a [bool],
    /// Seconds of the other nodes for one micro-batch, on the device of the nodes' costs.
    pub other_seconds: f64,
}

/// A graph in parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    /// The nodes of each part: consecutive, and at least one.
    pub ranges: Vec<Range<usize>>,
    /// Seconds of the slowest stage for one micro-batch.
    pub stage_seconds: f64,
    /// Bytes of the activations across all cuts, for one micro-batch.
    pub transferred_bytes: u64,
}

/// No cut exists.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum CutError {
    /// A number is missing or out of bounds.
    #[error("{why}")]
    Invalid {
        /// The reason.
        why: String,
    },
    /// The graph has too few positions to cut at.
    #[error("{parts} parts need {} positions to cut at, but the graph has {positions}", parts - 1)]
    TooFewPositions {
        /// Positions.
        positions: usize,
        /// Parts.
        parts: usize,
    },
    /// Every cut exceeds the memory of a part.
    #[error("each cut of the graph exceeds the memory of a part")]
    TooLittleMemory,
}

/// Cuts a graph such that the slowest stage takes least. The seconds of a part are those of its
/// nodes' forward and backward passes times its slowness; a cut takes twice the seconds of its
/// transfer, for the activations and for their gradients. Among equal cuts, the one with fewer
/// transferred bytes wins, and then the one with the earlier first cut, the earlier second cut, and
/// so on. Transfers are assumed to overlap with passes; in the order
/// [`one_forward_one_backward`](super::one_forward_one_backward) they do so only in part, which
/// [`step_time`](super::step_time) predicts.
///
/// # Errors
/// [`CutError`] if a number is out of bounds, or if no cut has all parts or fits into the memory.
pub fn cut(problem: &CutProblem<'_>) -> Result<Cut, CutError> {
    best_cut(problem, None)
}

/// As [`cut`] with a first part that ends at some positions alone, and whose process also computes other
/// nodes.
///
/// # Errors
/// As [`cut`].
pub fn cut_with_first_part(
    problem: &CutProblem<'_>,
    first: &FirstPart<'_>,
) -> Result<Cut, CutError> {
    if first.can_end.len() != problem.can_cut.len() {
        return Err(invalid("the first part must have an entry for each position"));
    }
    if !(first.other_seconds.is_finite() && first.other_seconds >= 0.0) {
        return Err(invalid("the other seconds of the first part must be at least 0 and finite"));
    }
    best_cut(problem, Some(first))
}

fn best_cut(problem: &CutProblem<'_>, first: Option<&FirstPart<'_>>) -> Result<Cut, CutError> {
    check(problem)?;
    let table = CutTable::new(problem, first);
    let (positions, parts) = (table.at.len(), problem.slowness.len());
    if positions < parts + 1 {
        return Err(CutError::TooFewPositions { positions: positions - 2, parts });
    }
    if positions.saturating_mul(parts) > CELLS_MAX {
        return Err(invalid(format!(
            "{positions} positions in {parts} parts exceed the limit of {CELLS_MAX}"
        )));
    }
    if table.fewest_bytes(f64::INFINITY, None).is_none() {
        return Err(match problem.memory {
            Some(_) => CutError::TooLittleMemory,
            None => invalid("the first part can end at no position"),
        });
    }
    // The order of the floats from 0 on is that of their bits.
    let (mut least, mut most) = (0.0_f64.to_bits(), f64::INFINITY.to_bits());
    while least < most {
        let middle = least + (most - least) / 2;
        match table.fewest_bytes(f64::from_bits(middle), None) {
            Some(_) => most = middle,
            None => least = middle + 1,
        }
    }
    let stage_seconds = f64::from_bits(least);
    let mut ends = vec![0; positions * parts];
    let bytes = table.fewest_bytes(stage_seconds, Some(&mut ends));
    let transferred_bytes = bytes.ok_or(CutError::TooLittleMemory)?;
    Ok(Cut { ranges: table.ranges(&ends), stage_seconds, transferred_bytes })
}

fn invalid(why: impl Into<String>) -> CutError {
    CutError::Invalid { why: why.into() }
}

fn check(problem: &CutProblem<'_>) -> Result<(), CutError> {
    let (nodes, parts) = (problem.nodes.len(), problem.slowness.len());
    if nodes == 0 || nodes > NODES_MAX {
        return Err(invalid(format!("a graph has 1 to {NODES_MAX} nodes")));
    }
    if parts == 0 || parts > PARTS_MAX as usize {
        return Err(invalid(format!("a pipeline has 1 to {PARTS_MAX} parts")));
    }
    if problem.boundary_bytes.len() != nodes + 1 || problem.can_cut.len() != nodes + 1 {
        return Err(invalid("there must be a position in front of each node, and one at the end"));
    }
    if problem.links.len() + 1 != parts {
        return Err(invalid("there must be a link between each two consecutive parts"));
    }
    if problem.memory.is_some_and(|memory| memory.bytes.len() != parts) {
        return Err(invalid("there must be a memory limit for each part"));
    }
    let bytes = problem.nodes.iter().flat_map(|node| [node.parameter_bytes, node.saved_bytes]);
    if bytes.chain(problem.boundary_bytes[1..nodes].iter().copied()).any(|bytes| bytes > BYTES_MAX)
    {
        return Err(invalid(format!("a node or a cut has at most {BYTES_MAX} bytes")));
    }
    let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
    let passes =
        problem.nodes.iter().flat_map(|node| [node.forward_seconds, node.backward_seconds]);
    let all: f64 = passes.clone().sum();
    if !passes.clone().all(is_time) {
        return Err(invalid("the seconds of a node must be at least 0 and finite"));
    }
    if !problem.slowness.iter().all(|&slow| slow > 0.0 && is_time(slow) && is_time(slow * all)) {
        return Err(invalid("the slowness must be above 0, and the seconds of a part finite"));
    }
    let is_link = |link: &TransferCost| is_time(link.alpha) && is_time(link.beta);
    let longest = |link: &TransferCost| 2.0 * link.seconds(BYTES_MAX);
    if !problem.links.iter().all(|link| is_link(link) && is_time(longest(link))) {
        return Err(invalid("the seconds of a link must be at least 0 and finite"));
    }
    Ok(())
}

/// The positions of a graph, with sums over the nodes in front of each.
struct CutTable<'a> {
    problem: &'a CutProblem<'a>,
    first: Option<&'a FirstPart<'a>>,
    /// Nodes in front of each position: 0, the positions to cut at, and all nodes.
    at: Vec<usize>,
    seconds: Vec<f64>,
    parameter_bytes: Vec<u64>,
    saved_bytes: Vec<u64>,
}

impl<'a> CutTable<'a> {
    fn new(problem: &'a CutProblem<'a>, first: Option<&'a FirstPart<'a>>) -> Self {
        let nodes = problem.nodes.len();
        let inner = (1..nodes).filter(|&node| problem.can_cut[node]);
        let at: Vec<usize> = [0].into_iter().chain(inner).chain([nodes]).collect();
        let (mut seconds, mut parameter_bytes, mut saved_bytes) = (vec![0.0], vec![0], vec![0]);
        let mut sums = (0.0, 0, 0);
        for pair in at.windows(2) {
            for node in &problem.nodes[pair[0]..pair[1]] {
                sums.0 += node.forward_seconds + node.backward_seconds;
                sums.1 += node.parameter_bytes;
                sums.2 += node.saved_bytes;
            }
            seconds.push(sums.0);
            parameter_bytes.push(sums.1);
            saved_bytes.push(sums.2);
        }
        Self { problem, first, at, seconds, parameter_bytes, saved_bytes }
    }

    /// Whether a part between two positions fits into a time and into its memory. If it does, so
    /// does a part of fewer nodes: rounded differences of growing sums grow.
    fn fits(&self, part: usize, start: usize, end: usize, most_seconds: f64) -> bool {
        let other = self.first.filter(|_| part == 0).map_or(0.0, |first| first.other_seconds);
        let own = self.seconds[end] - self.seconds[start] + other;
        let seconds = own * self.problem.slowness[part];
        let fits_memory = self.problem.memory.is_none_or(|memory| {
            let in_flight = (self.problem.slowness.len() - part) as u128;
            let parameters = u128::from(self.parameter_bytes[end] - self.parameter_bytes[start]);
            let saved = u128::from(self.saved_bytes[end] - self.saved_bytes[start]);
            let needed = parameters * u128::from(memory.parameter_factor) + saved * in_flight;
            needed <= u128::from(memory.bytes[part])
        });
        seconds <= most_seconds && fits_memory
    }

    /// The fewest bytes of a cut whose stages take at most `most_seconds`, or `None` if there is no
    /// such cut. Writes the best end of each part for each start to `ends`, by part.
    fn fewest_bytes(&self, most_seconds: f64, mut ends: Option<&mut [u32]>) -> Option<u64> {
        let (parts, last) = (self.problem.slowness.len(), self.at.len() - 1);
        // The fewest bytes of the parts that follow, by the position where they start.
        let mut following = vec![NONE; last + 1];
        following[last] = 0;
        for part in (0..parts).rev() {
            if let Some(link) = self.problem.links.get(part) {
                for (bytes, &at) in following.iter_mut().zip(&self.at) {
                    let own = self.problem.boundary_bytes[at];
                    let is_short = 2.0 * link.seconds(own) <= most_seconds;
                    *bytes = if is_short && *bytes != NONE { *bytes + own } else { NONE };
                }
            }
            if let Some(first) = self.first.filter(|_| part == 0) {
                for (bytes, &at) in following.iter_mut().zip(&self.at) {
                    *bytes = if first.can_end[at] { *bytes } else { NONE };
                }
            }
            let mut fewest = vec![NONE; last + 1];
            // The ends that can be best for this start or an earlier one, from fewer bytes to more.
            let mut best: VecDeque<usize> = VecDeque::new();
            let mut furthest = last;
            for start in (0..last).rev() {
                while furthest > start && !self.fits(part, start, furthest, most_seconds) {
                    furthest -= 1;
                }
                let nearest = start + 1;
                while best.back().is_some_and(|&end| following[end] >= following[nearest]) {
                    best.pop_back();
                }
                best.push_back(nearest);
                while best.front().is_some_and(|&end| end > furthest) {
                    best.pop_front();
                }
                let Some(&end) = best.front() else { continue };
                fewest[start] = following[end];
                if let Some(ends) = &mut ends {
                    ends[part * (last + 1) + start] = end as u32;
                }
            }
            following = fewest;
        }
        Some(following[0]).filter(|&bytes| bytes != NONE)
    }

    /// The nodes of each part, from the best ends by part and start.
    fn ranges(&self, ends: &[u32]) -> Vec<Range<usize>> {
        let mut start = 0;
        let ends = ends.chunks(self.at.len()).map(|ends| {
            let end = ends[start] as usize;
            let range = self.at[start]..self.at[end];
            start = end;
            range
        });
        ends.collect()
    }
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
