//! The ends of a graph that can stay with the owner of the rows, if other processes compute the nodes
//! between them.
//!
//! 1. No raw value crosses out of the first part: see [`value_origins`].
//! 2. A parameter of the owner's parts belongs to no other part: it would have to travel, and its
//!    difference between two steps is a gradient, from which rows can be reconstructed (Zhu, Liu and Han
//!    2019). Both ends may share one. A value of parameters alone does not cross either. A buffer that no
//!    node changes is public.
//! 3. The last part has a parameter: the gradient of the graph's output shows each label.

use std::ops::Range;

use thiserror::Error;

use super::segments::Segments;
use super::value::{Graph, ValueId};
use super::value_origins::{ValueOrigin, value_origins};

/// First nodes of a last part that are tried, from the last node on.
const LAST_PARTS_MAX: usize = 512;

/// The ends of a graph.
#[derive(Debug)]
pub(crate) struct OwnerEnds {
    /// Whether a part can begin at each position.
    can_cut: Vec<bool>,
    /// Whether no raw value crosses each position.
    is_learned: Vec<bool>,
    /// Whether no value of parameters alone crosses each position.
    is_apart: Vec<bool>,
    /// The nodes that read each parameter.
    uses: Vec<Vec<usize>>,
}

/// A cut does not leave the owner what it has to.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub(crate) enum EndsError {
    /// The first part would send rows.
    #[error(
        "in front of node {node} the rows cross the cut, or values that follow from them without a \
         learned product; the first node at which the second part can begin is {first}"
    )]
    Raw {
        /// The stated node.
        node: usize,
        /// The first one that is possible.
        first: usize,
    },
    /// A parameter would have to travel.
    #[error(
        "from node {start} to {end} a parameter is read that rank 0's parts read, too, and it would have \
         to travel: let rank 0's parts have all its nodes"
    )]
    Shared {
        /// The first node between the ends.
        start: usize,
        /// The first node behind them.
        end: usize,
    },
    /// The last part has no parameter.
    #[error(
        "the last part, from node {node} on, has no parameter: the values that return show labels"
    )]
    NoParameter {
        /// Its first node.
        node: usize,
    },
    /// There is no such cut.
    #[error(
        "no cut of the graph into {parts} parts leaves its rows and labels with rank 0: rows cross all \
         positions, or parameters of both ends are used between them"
    )]
    None {
        /// Parts.
        parts: usize,
    },
}

impl OwnerEnds {
    /// The ends of a checked graph, whose inputs are rows, parameters or neither.
    pub(crate) fn new(
        graph: &Graph,
        segments: &Segments,
        is_row: &[bool],
        is_parameter: &[bool],
    ) -> Self {
        let origins = value_origins(graph, is_row, is_parameter);
        let (mut is_learned, mut is_apart) =
            (vec![true; graph.nodes.len() + 1], vec![true; graph.nodes.len() + 1]);
        for (ValueId(id), first, last) in segments.spans() {
            let positions = match origins[id as usize] {
                ValueOrigin::Raw => &mut is_learned,
                ValueOrigin::Parameter => &mut is_apart,
                ValueOrigin::Public | ValueOrigin::Learned => continue,
            };
            if let Some(crossed) = positions.get_mut(first..=last.min(graph.nodes.len())) {
                crossed.fill(false);
            }
        }
        let mut uses = vec![Vec::new(); graph.inputs.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            for ValueId(id) in node.arguments.iter().flat_map(|(_, argument)| argument.values()) {
                let id = id as usize;
                if is_parameter.get(id).copied().unwrap_or(false) && uses[id].last() != Some(&at) {
                    uses[id].push(at);
                }
            }
        }
        Self { can_cut: segments.can_cut().to_vec(), is_learned, is_apart, uses }
    }

    /// Whether the nodes behind the first part can begin at each position, if the last part begins at
    /// `last`.
    pub(crate) fn first_cuts(&self, last: usize) -> Vec<bool> {
        let mut can = vec![false; self.can_cut.len()];
        for (at, can) in can.iter_mut().enumerate().take(last).skip(1) {
            *can = self.can_cut[at] && self.is_learned[at] && self.is_apart[at];
        }
        for uses in &self.uses {
            let of_last = uses.iter().any(|&at| at >= last);
            let mut earlier = uses.iter().copied().filter(|&at| at < last);
            let Some(first) = earlier.next() else { continue };
            let end = earlier.next_back().unwrap_or(first);
            // All of them are in the first part, or none is.
            let from = if of_last { 0 } else { first + 1 };
            can[from..=end].fill(false);
        }
        can
    }

    /// The first node of the smallest last part, for a cut into `parts` parts.
    ///
    /// # Errors
    /// [`EndsError::None`].
    pub(crate) fn last_part(&self, parts: usize) -> Result<usize, EndsError> {
        let first_learned =
            (1..self.can_cut.len()).find(|&at| self.can_cut[at] && self.is_learned[at]);
        let last_use = self.uses.iter().filter_map(|uses| uses.last().copied()).max();
        let is_end = |at: &usize| self.can_cut[*at] && self.is_apart[*at];
        let positions = (1..self.can_cut.len()).rev().filter(is_end);
        let positions = positions.skip_while(|&at| last_use.is_none_or(|last| at > last));
        let positions = positions.take_while(|&at| first_learned.is_some_and(|first| at > first));
        positions
            .take(LAST_PARTS_MAX)
            .find(|&last| {
                let Some(first) = self.first_cuts(last).iter().position(|&can| can) else {
                    return false;
                };
                let between = (first + 1..last).filter(|&at| self.can_cut[at]).count();
                between + 3 >= parts
            })
            .ok_or(EndsError::None { parts })
    }

    /// Checks a cut: the nodes of all parts.
    ///
    /// # Errors
    /// [`EndsError`].
    pub(crate) fn check(&self, ranges: &[Range<usize>]) -> Result<(), EndsError> {
        let [_, second, .., last] = ranges else {
            return Err(EndsError::None { parts: ranges.len() });
        };
        let (start, end) = (second.start, last.start);
        if !self.uses.iter().flatten().any(|&at| at >= end) {
            return Err(EndsError::NoParameter { node: end });
        }
        let first_cuts = self.first_cuts(end);
        let is_apart = self.is_apart.get(end) == Some(&true);
        if is_apart && first_cuts.get(start) == Some(&true) {
            return Ok(());
        }
        if self.is_learned.get(start) == Some(&true) {
            return Err(EndsError::Shared { start, end: end - 1 });
        }
        let first = first_cuts.iter().position(|&can| can);
        let none = EndsError::None { parts: ranges.len() };
        Err(first.map_or(none, |first| EndsError::Raw { node: start, first }))
    }
}

#[cfg(test)]
#[path = "owner_ends_tests.rs"]
mod tests;
