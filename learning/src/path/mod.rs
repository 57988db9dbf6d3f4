//! The path value of every update of a large cohort: the gradients once for all, one update at a
//! time.
//!
//! Along the way `base + t·total`, with `total = Σ pᵢ·Δᵢ`, an update takes off the mean loss
//!
//! ```text
//! φᵢ = −pᵢ · ⟨Δᵢ, Σₖ ωₖ ∇ mean loss(base + tₖ·total)⟩
//! ```
//!
//! (R. J. Aumann and L. S. Shapley, *Values of Non-Atomic Games*, 1974, with a quadrature for the
//! integral). The gradients do not depend on the updates one by one, so any number of updates costs
//! as many gradients as the quadrature has nodes, and a pass over the updates. To tell how sure a
//! value is, the rows are cut into groups in their order, of sizes that differ by at most one, and
//! each group has a gradient and a value of its own; the mean over the groups is the value.

mod dots;
mod groups;
mod sums;

#[cfg(test)]
mod tests;

use std::error::Error;

use thiserror::Error;

use crate::data::{ChunkError, RowChunks};
use crate::engine::{EvalError, Evaluator, InputError, Way};
use crate::params::first_not_finite;
use dots::{Products, at_a_time, dots};
use groups::Groups;
pub use groups::group_means;
use sums::{Summed, Sums};

/// Most groups of rows.
pub const GROUPS_MAX: usize = 4_096;
/// Most bytes of gradients.
pub const GRADIENT_BYTES_MAX: usize = 64 << 30;

/// Why there is no path value.
#[derive(Debug, Error)]
pub enum PathError {
    /// The engine refused or failed.
    #[error(transparent)]
    Evaluation(#[from] EvalError),
    /// The rows could not be read.
    #[error(transparent)]
    Rows(#[from] ChunkError),
    /// The source ended early, or went on.
    #[error("the holdout gave {got} rows: it had said {expected}")]
    RowCount {
        /// Rows it said it had.
        expected: usize,
        /// Rows it gave.
        got: usize,
    },
    /// Every group needs a row.
    #[error("{groups} groups of {rows} rows: must be 1 to {GROUPS_MAX} and not more than rows")]
    Groups {
        /// Groups asked for.
        groups: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The gradients would not fit.
    #[error(
        "{groups} groups of {parameters} parameters: gradients may take {GRADIENT_BYTES_MAX} bytes"
    )]
    TooLarge {
        /// Groups asked for.
        groups: usize,
        /// The model's parameters.
        parameters: usize,
    },
    /// A node of the quadrature that is none.
    #[error("node {at} is ({t}, {weight}): must be from 0 to 1, with a finite weight")]
    Node {
        /// Which, from 0.
        at: usize,
        /// Where on the way.
        t: f64,
        /// Its weight.
        weight: f64,
    },
    /// No nodes.
    #[error("the quadrature has no nodes: must have at least one")]
    NoNodes,
    /// An update could not be had.
    #[error("update {at}: {why}")]
    Update {
        /// Which, from 0.
        at: usize,
        /// The source's own words.
        why: Box<dyn Error + Send + Sync>,
    },
    /// NaN or infinity.
    #[error("the share of update {at} is {share}: must be a finite number")]
    Share {
        /// Which, from 0.
        at: usize,
        /// What it is.
        share: f64,
    },
}

impl PathError {
    /// A name that stays.
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
        }
    }
}

impl From<InputError> for PathError {
    fn from(error: InputError) -> Self {
        Self::Evaluation(error.into())
    }
}

/// Gradients along a way, by groups of rows. Everything but the values of the updates is known.
#[derive(Debug, Clone)]
pub struct PathGradient {
    parameters: usize,
    groups: usize,
    /// The nodes' weights.
    weights: Vec<f64>,
    /// Gradients of losses summed over rows: of each group the weighted sum over the nodes, where
    /// there is more than one group, and then of each node the sum over the groups.
    gradients: Vec<f64>,
    /// Groups per row of the holdout: a group's sum times this has the size of a mean.
    scale: f64,
    losses: [Vec<f64>; 2],
    halfway: f64,
}

/// What one update is worth.
#[derive(Debug, Clone, PartialEq)]
pub struct PathValue {
    /// What it takes off the mean loss, in nats, by each group of rows. Their plain mean is the
    /// value, and so the standard error of that mean is the value's.
    pub groups: Vec<f64>,
    /// How fast the mean loss falls, in nats, at each node of the quadrature: the nodes' weights
    /// times these add up to the value.
    pub nodes: Vec<f64>,
    /// The standard deviation, over random directions as long as this one, of how fast the mean
    /// loss falls halfway, in nats: what luck alone does.
    pub chance: f64,
}

impl PathValue {
    /// The value, in nats.
    pub fn value(&self) -> f64 {
        crate::engine::mean(&self.groups)
    }
}

impl PathGradient {
    /// Takes the gradients at the `nodes`, pairs of place on the way and weight, and the losses at
    /// both ends, in one pass over the rows. That is a gradient for each node, one more for what
    /// luck does where no node is halfway, and two losses.
    ///
    /// # Errors
    /// [`PathError`], where way, nodes, groups and rows do not go together or cannot be had.
    pub fn new(
        way: Way<'_>,
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
        let mut sums = Sums::new(nodes, groups, parameters)?;
        let places = sums.places();
        Groups::new(count, groups).along(way, &places, rows, engine, |group, place, numbers| {
            sums.take(group, place, numbers);
        })?;
        let scale = groups as f64 / count as f64;
        let Summed { weights, gradients, halfway, losses } = sums.summed();
        let losses = losses.map(|sums| sums.into_iter().map(|sum| sum * scale).collect());
        let halfway = halfway / count as f64;
        Ok(Self { parameters, groups, weights, gradients, scale, losses, halfway })
    }

    /// By each group of rows the mean loss before the round, in nats: the plain mean of these is
    /// that of all rows.
    pub fn losses_before(&self) -> &[f64] {
        &self.losses[0]
    }

    /// The same at the end of the way.
    pub fn losses_after(&self) -> &[f64] {
        &self.losses[1]
    }

    /// The length of the mean loss's gradient halfway.
    pub fn gradient_norm(&self) -> f64 {
        self.halfway
    }

    /// The value of each update, on up to `threads` threads; their number changes no bit. `next`
    /// writes an update over what is there and says its share, or `None` after the last one. Of
    /// the updates no more than 32 are in memory at a time.
    ///
    /// # Errors
    /// [`PathError::Update`] where `next` fails, [`PathError::Evaluation`] for an update of another
    /// length or with numbers that are none, [`PathError::Share`].
    pub fn values<E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        threads: usize,
        mut next: impl FnMut(&mut Vec<f32>) -> Result<Option<f64>, E>,
    ) -> Result<Vec<PathValue>, PathError> {
        let together = at_a_time(self.gradients.len() / self.parameters, threads);
        let mut updates = vec![Vec::new(); together];
        let mut values = Vec::new();
        loop {
            let mut shares = Vec::with_capacity(together);
            for update in &mut updates {
                let at = values.len() + shares.len();
                let share = next(update);
                match share.map_err(|why| PathError::Update { at, why: why.into() })? {
                    Some(share) => shares.push(self.checked(at, update, share)?),
                    None => break,
                }
            }
            let updates = &updates[..shares.len()];
            let products = dots(&self.gradients, self.parameters, updates, threads);
            for ((update, &share), products) in updates.iter().zip(&shares).zip(products) {
                let at = values.len();
                values.push(self.value(at, update, share, &products)?);
            }
            if shares.len() < together {
                return Ok(values);
            }
        }
    }

    fn checked(&self, at: usize, update: &[f32], share: f64) -> Result<f64, PathError> {
        let (expected, got) = (self.parameters, update.len());
        if got != expected {
            let what = format!("update {at}");
            return Err(InputError::Length { what, expected, got }.into());
        }
        if share.is_finite() { Ok(share) } else { Err(PathError::Share { at, share }) }
    }

    /// An update's value from its products with itself and with all gradients.
    fn value(
        &self,
        at: usize,
        update: &[f32],
        share: f64,
        products: &Products,
    ) -> Result<PathValue, PathError> {
        // Squares of numbers of 32 bits do not add up to what 64 bits do not hold: their sum is
        // finite unless one of them is not.
        if !products.square.is_finite()
            && let Some(index) = first_not_finite(update)
        {
            let what = format!("update {at}");
            return Err(InputError::NotFinite { what, index }.into());
        }
        let (groups, nodes) = products.with.split_at(products.with.len() - self.weights.len());
        let rows = self.groups as f64 / self.scale;
        let typical = self.halfway / (self.parameters as f64).sqrt();
        let whole = |(weight, product): (&f64, &f64)| weight * product;
        let groups = match groups {
            [] => &[self.weights.iter().zip(nodes).map(whole).sum()],
            groups => groups,
        };
        Ok(PathValue {
            groups: groups.iter().map(|product| -share * product * self.scale).collect(),
            nodes: nodes.iter().map(|product| -share * product / rows).collect(),
            chance: share.abs() * products.square.sqrt() * typical,
        })
    }
}

fn check_nodes(nodes: &[(f64, f64)]) -> Result<(), PathError> {
    let wrong = |&(t, weight): &(f64, f64)| !(0.0..=1.0).contains(&t) || !weight.is_finite();
    match nodes.iter().position(wrong) {
        Some(at) => Err(PathError::Node { at, t: nodes[at].0, weight: nodes[at].1 }),
        None if nodes.is_empty() => Err(PathError::NoNodes),
        None => Ok(()),
    }
}
