//! The Aumann–Shapley value: the path integral of each player's marginal contribution along the
//! diagonal from the empty to the grand coalition.

use crate::meter::EvaluationMeter;
use crate::quadrature::{MAX_NODES, gauss_legendre};
use crate::statistics::{mean, standard_error};
use crate::{Estimate, Estimator, NodeDerivatives, SmoothGame, ValuationError};

/// Gradients of the market's default.
const NODES_DEFAULT: usize = 3;

/// `φ_i = ∫₀¹ ∂v/∂x_i (t, …, t) dt` by Gauss–Legendre quadrature (R. J. Aumann and L. S. Shapley,
/// *Values of Non-Atomic Games*, 1974).
///
/// The cost is one gradient per node, for any number of players. The value agrees with the Shapley
/// value through second order. It is linear in a player's own contribution along a path that does
/// not change when that contribution is split, so splitting an identity gains nothing (Sprumont
/// characterises the rule by exactly this property, together with additivity and dummy). The
/// property holds for a given aggregate: it does not cover a player that changes the aggregate, by
/// inflating its weight or by copying another player. The seed has no effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    nodes: usize,
    tolerance: Option<f64>,
}

impl Default for Path {
    fn default() -> Self {
        Self { nodes: NODES_DEFAULT, tolerance: None }
    }
}

impl Path {
    /// A path with `nodes` gradients.
    ///
    /// # Errors
    /// [`ValuationError::NodesOutOfRange`] outside `1..=8` and 12.
    pub fn with_nodes(nodes: usize) -> Result<Self, ValuationError> {
        if gauss_legendre(nodes).is_none() {
            return Err(ValuationError::NodesOutOfRange { nodes, nodes_max: MAX_NODES });
        }
        Ok(Self { nodes, tolerance: None })
    }

    /// Adds a node and recomputes all gradients until the gap is at most `tolerance·|v(N) − v(∅)|`.
    /// Stops without having reached it at 8 nodes or at the end of the budget: see the `gap` of the
    /// valuation.
    ///
    /// # Errors
    /// [`ValuationError::ToleranceOutOfRange`] unless positive and finite.
    pub fn with_tolerance(mut self, tolerance: f64) -> Result<Self, ValuationError> {
        if !(tolerance.is_finite() && tolerance > 0.0) {
            return Err(ValuationError::ToleranceOutOfRange { tolerance });
        }
        self.tolerance = Some(tolerance);
        Ok(self)
    }

    /// Number of nodes at the start.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether to add a node: a tolerance is set and not yet met, the limit of nodes is not
    /// reached, and the budget suffices.
    fn should_add_node(
        &self,
        nodes: usize,
        values: &[f64],
        total: f64,
        meter: &EvaluationMeter<'_>,
    ) -> bool {
        let Some(tolerance) = self.tolerance else { return false };
        let gap = total - values.iter().sum::<f64>();
        let affordable = meter.can_afford(nodes as u64 + 1);
        gap.abs() > tolerance * total.abs() && nodes < MAX_NODES && affordable
    }
}

impl<G: SmoothGame + ?Sized> Estimator<G> for Path {
    fn name(&self) -> &'static str {
        "path"
    }

    fn version(&self) -> u32 {
        1
    }

    fn passes_min(&self, _players: usize) -> u64 {
        self.nodes as u64 + 2
    }

    fn estimate(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
    ) -> Result<Estimate, ValuationError> {
        let empty_rows = meter.diagonal(game, 0.0)?;
        let grand_rows = meter.diagonal(game, 1.0)?;
        let total = mean(&grand_rows) - mean(&empty_rows);
        let mut nodes = self.nodes;
        loop {
            let (values_by_row, of_nodes) = integrate(game, meter, nodes, empty_rows.len())?;
            let values: Vec<f64> = values_by_row.iter().map(|rows| mean(rows)).collect();
            if self.should_add_node(nodes, &values, total, meter) {
                nodes += 1;
                meter.add_planned_passes(nodes as u64);
                continue;
            }
            let standard_errors = values_by_row.iter().map(|rows| standard_error(rows)).collect();
            return Ok(Estimate {
                values,
                standard_errors,
                total,
                nodes: of_nodes,
                ..Estimate::default()
            });
        }
    }
}

/// The integral `Σ_k ω_k · derivative(t_k)` of each player on each row, nodes in ascending order,
/// and the mean derivatives at each node.
fn integrate<G: SmoothGame + ?Sized>(
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
    nodes: usize,
    rows: usize,
) -> Result<(Vec<Vec<f64>>, Vec<NodeDerivatives>), ValuationError> {
    let rule = gauss_legendre(nodes)
        .ok_or(ValuationError::NodesOutOfRange { nodes, nodes_max: MAX_NODES })?;
    if let Some(along) = meter.path_integral(game, rule)? {
        let of_nodes = rule.iter().zip(along.node_derivatives);
        let of_nodes = of_nodes.map(|(&(t, weight), slopes)| NodeDerivatives {
            t,
            weight,
            derivatives: slopes,
        });
        return Ok((along.integrals, of_nodes.collect()));
    }
    let mut integrals = vec![vec![0.0; rows]; game.players()];
    let mut of_nodes = Vec::with_capacity(nodes);
    for &(t, weight) in rule {
        let slopes = meter.directional_derivatives(game, t)?;
        let means = slopes.iter().map(|rows| mean(rows)).collect();
        of_nodes.push(NodeDerivatives { t, weight, derivatives: means });
        for (integral, slope) in integrals.iter_mut().flatten().zip(slopes.iter().flatten()) {
            *integral += weight * slope;
        }
    }
    Ok((integrals, of_nodes))
}
