//! The path values (Aumann–Shapley values) of the updates of a large cohort: shared gradients, one
//! pass over the updates.
//!
//! On the segment `base + t·total`, with `total = Σ pᵢ·Δᵢ`, an update reduces the mean loss by
//!
//! ```text
//! φᵢ = −pᵢ · ⟨Δᵢ, Σₖ ωₖ ∇ mean loss(base + tₖ·total)⟩
//! ```
//!
//! (R. J. Aumann and L. S. Shapley, *Values of Non-Atomic Games*, 1974, with a quadrature of the
//! integral). The gradients do not depend on individual updates, so any number of updates costs one
//! gradient per node of the quadrature, and one pass over the updates. For the standard error of a
//! value, the rows are divided in order into groups whose sizes differ by at most one. Each group
//! has its own gradient and value; the mean over the groups is the value.

mod dots;
mod groups;
mod sums;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::ops::Range;

use thiserror::Error;

use crate::data::{ChunkError, RowChunks};
use crate::engine::{EvalError, Evaluator, InputError, ParameterSegment};
use crate::mapped::{ScratchNumbers, ScratchSpace, UNLIMITED_MEMORY};
use crate::params::first_not_finite;
use dots::{UpdateProducts, dot_products, updates_per_batch};
use groups::RowGroups;
pub use groups::{group_means, group_rows};
use sums::{SegmentSums, SegmentTotals};

/// Largest number of groups of rows.
pub const GROUPS_MAX: usize = 4_096;
/// Largest total size of the gradients in bytes.
pub const GRADIENT_BYTES_MAX: usize = 64 << 30;

/// The path values cannot be computed.
#[derive(Debug, Error)]
pub enum PathError {
    /// The engine failed or rejected its input.
    #[error(transparent)]
    Evaluation(#[from] EvalError),
    /// The rows could not be read.
    #[error(transparent)]
    Rows(#[from] ChunkError),
    /// The source returned another number of rows than announced.
    #[error("the holdout returned {got} rows, but announced {expected}")]
    RowCount {
        /// Number of rows announced.
        expected: usize,
        /// Number of rows returned.
        got: usize,
    },
    /// The number of groups is out of bounds.
    #[error(
        "{groups} groups of {rows} rows: must be 1 to {GROUPS_MAX} and at most the number of rows"
    )]
    Groups {
        /// Number of groups requested.
        groups: usize,
        /// Number of rows.
        rows: usize,
    },
    /// The gradients exceed the limit of memory.
    #[error(
        "{groups} groups of {parameters} parameters: gradients may take {GRADIENT_BYTES_MAX} bytes"
    )]
    TooLarge {
        /// Number of groups requested.
        groups: usize,
        /// Number of the model's parameters.
        parameters: usize,
    },
    /// A node of the quadrature is invalid.
    #[error("node {at} is ({t}, {weight}): must be from 0 to 1, with a finite weight")]
    Node {
        /// Index of the node, from 0.
        at: usize,
        /// Position on the segment.
        t: f64,
        /// Weight of the node.
        weight: f64,
    },
    /// The quadrature has no nodes.
    #[error("the quadrature has no nodes; at least one is required")]
    NoNodes,
    /// Reading an update failed.
    #[error("update {at}: {why}")]
    Update {
        /// Index of the update, from 0.
        at: usize,
        /// The source's own error.
        why: Box<dyn Error + Send + Sync>,
    },
    /// There is no scratch space for the gradients.
    #[error("scratch space for the gradients: {0}")]
    Scratch(#[source] std::io::Error),
    /// A share is NaN or infinite.
    #[error("the share of update {at} is {share}: must be a finite number")]
    Share {
        /// Index of the update, from 0.
        at: usize,
        /// The share.
        share: f64,
    },
}

impl PathError {
    /// A stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Evaluation(_) => "PATH_EVALUATION",
            Self::Rows(_) => "PATH_ROWS",
            Self::RowCount { .. } => "PATH_ROW_COUNT",
            Self::Groups { .. } => "PATH_GROUPS",
            Self::TooLarge { .. } => "PATH_TOO_LARGE",
            Self::Node { .. } => "PATH_NODE",
            Self::NoNodes => "PATH_NO_NODES",
            Self::Update { .. } => "PATH_UPDATE",
            Self::Share { .. } => "PATH_SHARE",
            Self::Scratch(_) => "PATH_SCRATCH_SPACE",
        }
    }
}

impl From<InputError> for PathError {
    fn from(error: InputError) -> Self {
        Self::Evaluation(error.into())
    }
}

/// The gradients of a quadrature along a segment, by groups of rows, from which the values of any
/// updates follow.
#[derive(Debug)]
pub struct PathGradient {
    parameters: usize,
    groups: usize,
    /// The weights of the nodes.
    weights: Vec<f64>,
    /// Gradients of losses summed over rows: first (if there is more than one group) for each group
    /// the weighted sum over the nodes, then for each node the sum over the groups.
    gradients: ScratchNumbers,
    /// The number of numbers of these lines.
    length: usize,
    /// Groups per row of the holdout: scales a group's sum to a mean.
    scale: f64,
    losses: [Vec<f64>; 2],
    halfway_gradient_norm: f64,
}

/// The path value of one update.
#[derive(Debug, Clone, PartialEq)]
pub struct PathValue {
    /// Its reduction of the mean loss for each group of rows, in nats. Their unweighted mean is the
    /// value, so the standard error of that mean is the value's standard error.
    pub groups: Vec<f64>,
    /// The rate of decrease of the mean loss at each node of the quadrature, in nats; their sum,
    /// weighted by the nodes, is the value.
    pub node_derivatives: Vec<f64>,
    /// The null standard deviation: the standard deviation of the rate of decrease of the mean loss
    /// halfway along the path, over random directions of this update's length, in nats.
    pub random_direction_std: f64,
}

impl PathValue {
    /// The value, in nats.
    pub fn value(&self) -> f64 {
        crate::engine::mean(&self.groups)
    }
}

impl PathGradient {
    /// Computes the gradients at the `nodes`, pairs of position and weight, and the losses at both
    /// endpoints, in one pass over the rows: one gradient per node, one more for the null standard
    /// deviation if no node is halfway, and two losses.
    ///
    /// # Errors
    /// [`PathError`] if segment, nodes, groups and rows do not match, or if reading or evaluation
    /// fails.
    pub fn new(
        way: ParameterSegment<'_>,
        nodes: &[(f64, f64)],
        groups: usize,
        rows: &mut dyn RowChunks,
        engine: &mut dyn Evaluator,
    ) -> Result<Self, PathError> {
        Self::within(&UNLIMITED_MEMORY, way, nodes, groups, rows, engine)
    }

    /// The same with gradients that may be in a file. It does not affect the result.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`PathError::Scratch`].
    pub fn within(
        room: &ScratchSpace,
        way: ParameterSegment<'_>,
        nodes: &[(f64, f64)],
        groups: usize,
        rows: &mut dyn RowChunks,
        engine: &mut dyn Evaluator,
    ) -> Result<Self, PathError> {
        way.check()?;
        check_nodes(nodes)?;
        let parameters = way.base.len();
        let count = rows.rows();
        if !(1..=count.min(GROUPS_MAX)).contains(&groups) {
            return Err(PathError::Groups { groups, rows: count });
        }
        let mut sums = SegmentSums::new(nodes, groups, parameters, room)?;
        let places = sums.places();
        RowGroups::new(count, groups).evaluate_on_segment(
            way,
            &places,
            rows,
            engine,
            |group, place, numbers| {
                sums.add(group, place, numbers);
            },
        )?;
        let scale = groups as f64 / count as f64;
        let SegmentTotals { weights, gradients, length, halfway, losses } = sums.finish();
        let losses = losses.map(|sums| sums.into_iter().map(|sum| sum * scale).collect());
        let halfway = halfway / count as f64;
        Ok(Self {
            parameters,
            groups,
            weights,
            gradients,
            length,
            scale,
            losses,
            halfway_gradient_norm: halfway,
        })
    }

    /// The mean loss before the round for each group of rows, in nats; their unweighted mean is the
    /// mean over all rows.
    pub fn losses_before(&self) -> &[f64] {
        &self.losses[0]
    }

    /// The same at the end of the segment.
    pub fn losses_after(&self) -> &[f64] {
        &self.losses[1]
    }

    /// The norm of the mean loss's gradient halfway along the segment.
    pub fn gradient_norm(&self) -> f64 {
        self.halfway_gradient_norm
    }

    /// The value of each update, computed on up to `threads` threads; the number of threads changes
    /// no bit. `next` overwrites its argument with the next update and returns its share, or `None`
    /// after the last one. At most 32 updates are in memory at a time.
    ///
    /// # Errors
    /// [`PathError::Update`] if `next` fails, [`PathError::Evaluation`] for an update of another
    /// length or with numbers that are not finite, [`PathError::Share`].
    pub fn values<E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        threads: usize,
        mut next: impl FnMut(&mut Vec<f32>) -> Result<Option<f64>, E>,
    ) -> Result<Vec<PathValue>, PathError> {
        let together = updates_per_batch(self.length / self.parameters, threads);
        let mut updates = vec![Vec::new(); together];
        let mut values = Vec::new();
        loop {
            let mut shares = Vec::with_capacity(together);
            for update in &mut updates {
                let at = values.len() + shares.len();
                let share = next(update);
                match share.map_err(|why| PathError::Update { at, why: why.into() })? {
                    Some(share) => shares.push(share),
                    None => break,
                }
            }
            let own = &updates[..shares.len()];
            self.add_values(&mut values, threads, own, &shares, &mut |_| {})?;
            if shares.len() < together {
                return Ok(values);
            }
        }
    }

    /// The same values of updates that are in memory or in mapped files, each with its share; no update
    /// is copied. `release` receives the range of the numbers that are not needed for a while.
    ///
    /// # Errors
    /// As [`values`](Self::values).
    pub fn values_of_slices(
        &self,
        threads: usize,
        updates: &[(f64, &[f32])],
        release: &mut dyn FnMut(Range<usize>),
    ) -> Result<Vec<PathValue>, PathError> {
        let together = updates_per_batch(self.length / self.parameters, threads);
        let mut values = Vec::with_capacity(updates.len());
        for updates in updates.chunks(together) {
            let (shares, updates): (Vec<f64>, Vec<&[f32]>) = updates.iter().copied().unzip();
            self.add_values(&mut values, threads, &updates, &shares, release)?;
        }
        Ok(values)
    }

    /// Appends the values of a few updates.
    fn add_values<U: AsRef<[f32]> + Sync>(
        &self,
        values: &mut Vec<PathValue>,
        threads: usize,
        updates: &[U],
        shares: &[f64],
        release: &mut dyn FnMut(Range<usize>),
    ) -> Result<(), PathError> {
        for (at, (update, &share)) in (values.len()..).zip(updates.iter().zip(shares)) {
            self.check_update(at, update.as_ref(), share)?;
        }
        let gradients = &self.gradients.as_slice()[..self.length];
        let mut release_all = |window: Range<usize>| {
            for from in (0..self.length).step_by(self.parameters) {
                self.gradients.release(&(from + window.start..from + window.end));
            }
            release(window);
        };
        let products = dot_products(gradients, self.parameters, updates, threads, &mut release_all);
        for ((update, &share), products) in updates.iter().zip(shares).zip(products) {
            let at = values.len();
            values.push(self.value(at, update.as_ref(), share, &products)?);
        }
        Ok(())
    }

    fn check_update(&self, at: usize, update: &[f32], share: f64) -> Result<(), PathError> {
        let (expected, got) = (self.parameters, update.len());
        if got != expected {
            let what = format!("update {at}");
            return Err(InputError::Length { what, expected, got }.into());
        }
        if share.is_finite() { Ok(()) } else { Err(PathError::Share { at, share }) }
    }

    /// The value of an update from its dot products with itself and with all gradients.
    fn value(
        &self,
        at: usize,
        update: &[f32],
        share: f64,
        products: &UpdateProducts,
    ) -> Result<PathValue, PathError> {
        // Sums of squares of `f32` numbers do not overflow `f64`: the sum is finite unless an
        // element is not.
        if !products.square.is_finite()
            && let Some(index) = first_not_finite(update)
        {
            let what = format!("update {at}");
            return Err(InputError::NotFinite { what, index }.into());
        }
        let (groups, nodes) = products.with.split_at(products.with.len() - self.weights.len());
        let rows = self.groups as f64 / self.scale;
        let typical = self.halfway_gradient_norm / (self.parameters as f64).sqrt();
        let whole = |(weight, product): (&f64, &f64)| weight * product;
        let groups = match groups {
            [] => &[self.weights.iter().zip(nodes).map(whole).sum()],
            groups => groups,
        };
        Ok(PathValue {
            groups: groups.iter().map(|product| -share * product * self.scale).collect(),
            node_derivatives: nodes.iter().map(|product| -share * product / rows).collect(),
            random_direction_std: share.abs() * products.square.sqrt() * typical,
        })
    }
}

/// Numbers of a window of a sum.
const WINDOW: usize = 1 << 20;

/// `Σ cᵢ·Δᵢ` in `f64`, each element summed in the order of the updates. `release` receives the range of
/// the numbers that have been read.
///
/// # Panics
/// If an update is shorter than the sum (a caller's error).
pub fn weighted_sum(
    length: usize,
    updates: &[(f64, &[f32])],
    release: &mut dyn FnMut(Range<usize>),
) -> Vec<f64> {
    let mut total = vec![0.0; length];
    for from in (0..length).step_by(WINDOW) {
        let window = from..length.min(from + WINDOW);
        for &(coefficient, update) in updates.iter().filter(|(coefficient, _)| *coefficient != 0.0)
        {
            for (sum, &step) in total[window.clone()].iter_mut().zip(&update[window.clone()]) {
                *sum += coefficient * f64::from(step);
            }
        }
        release(window);
    }
    total
}

fn check_nodes(nodes: &[(f64, f64)]) -> Result<(), PathError> {
    let wrong = |&(t, weight): &(f64, f64)| !(0.0..=1.0).contains(&t) || !weight.is_finite();
    match nodes.iter().position(wrong) {
        Some(at) => Err(PathError::Node { at, t: nodes[at].0, weight: nodes[at].1 }),
        None if nodes.is_empty() => Err(PathError::NoNodes),
        None => Ok(()),
    }
}
