//! The sums of one pass over the rows: gradients by nodes and groups, and the losses at both
//! endpoints.

use super::{GRADIENT_BYTES_MAX, PathError};
use crate::engine::SegmentPoint;
use crate::mapped::{ScratchNumbers, ScratchSpace};

/// Sums over rows at places that are fixed before the first row.
pub(super) struct SegmentSums {
    nodes: Vec<(f64, f64)>,
    parameters: usize,
    /// Number of lines for groups, each the weighted sum over the nodes; 0 for a single group,
    /// whose sum follows from the nodes' gradients.
    group_lines: usize,
    /// The groups' lines, each node's gradient, and the halfway gradient if no node is there.
    lines: ScratchNumbers,
    /// By groups, at the start and at the end of the segment.
    losses: [Vec<f64>; 2],
}

/// The result after all rows.
pub(super) struct SegmentTotals {
    /// The weights of the nodes in [`SegmentSums::new`].
    pub(super) weights: Vec<f64>,
    /// Lines of gradients, of groups (if there is more than one) and of nodes.
    pub(super) gradients: ScratchNumbers,
    /// The number of numbers of these lines; others may follow.
    pub(super) length: usize,
    /// The norm of the gradient halfway.
    pub(super) halfway: f64,
    /// By groups, at both endpoints.
    pub(super) losses: [Vec<f64>; 2],
}

impl SegmentSums {
    pub(super) fn new(
        nodes: &[(f64, f64)],
        groups: usize,
        parameters: usize,
        room: &ScratchSpace,
    ) -> Result<Self, PathError> {
        let of_groups = if groups > 1 { groups } else { 0 };
        let lines = of_groups + nodes.len() + usize::from(halfway(nodes).is_none());
        if lines.saturating_mul(parameters).saturating_mul(size_of::<f64>()) > GRADIENT_BYTES_MAX {
            return Err(PathError::TooLarge { groups, parameters });
        }
        Ok(Self {
            nodes: nodes.to_vec(),
            parameters,
            group_lines: of_groups,
            lines: ScratchNumbers::zeros(lines * parameters, room).map_err(PathError::Scratch)?,
            losses: [vec![0.0; groups], vec![0.0; groups]],
        })
    }

    /// The places to evaluate: gradients first, then the losses at both endpoints.
    pub(super) fn places(&self) -> Vec<SegmentPoint> {
        let missing = halfway(&self.nodes).is_none().then_some(0.5);
        let slopes = self.nodes.iter().map(|&(t, _)| t).chain(missing);
        let slopes = slopes.map(|t| SegmentPoint { t, gradient: true });
        slopes.chain([0.0, 1.0].map(|t| SegmentPoint { t, gradient: false })).collect()
    }

    /// Adds the numbers of a block of rows of `group` at `place`.
    pub(super) fn add(&mut self, group: usize, place: usize, numbers: &[f64]) {
        let (parameters, lines) = (self.parameters, self.group_lines);
        let slopes = &mut self.lines.as_mut_slice()[lines * parameters..];
        let from = place * parameters;
        let Some(own) = slopes.get_mut(from..from + parameters) else {
            let end = usize::from(from > slopes.len());
            numbers.iter().for_each(|loss| self.losses[end][group] += loss);
            return;
        };
        own.iter_mut().zip(numbers).for_each(|(own, slope)| *own += slope);
        let start = lines * parameters + from;
        self.lines.release(&(start..start + parameters));
        if let (Some(&(_, weight)), true) = (self.nodes.get(place), lines > 0) {
            let range = group * parameters..(group + 1) * parameters;
            let own = &mut self.lines.as_mut_slice()[range.clone()];
            own.iter_mut().zip(numbers).for_each(|(own, slope)| *own += weight * slope);
            self.lines.release(&range);
        }
    }

    pub(super) fn finish(self) -> SegmentTotals {
        let at = self.group_lines + halfway(&self.nodes).unwrap_or(self.nodes.len());
        let range = at * self.parameters..(at + 1) * self.parameters;
        let halfway = length(&self.lines.as_slice()[range.clone()]);
        self.lines.release(&range);
        SegmentTotals {
            length: (self.group_lines + self.nodes.len()) * self.parameters,
            weights: self.nodes.iter().map(|&(_, weight)| weight).collect(),
            gradients: self.lines,
            halfway,
            losses: self.losses,
        }
    }
}

/// Index of the node that is halfway.
fn halfway(nodes: &[(f64, f64)]) -> Option<usize> {
    nodes.iter().position(|&(t, _)| t == 0.5)
}

/// The Euclidean norm, added in order.
fn length(values: &[f64]) -> f64 {
    let mut square = 0.0;
    for value in values {
        square += value * value;
    }
    square.sqrt()
}
