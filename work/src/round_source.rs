//! The losses and directional derivatives of a round's models, as the valuation requests them: per
//! row for ordinary cohorts, per group of rows for large ones and for graphs with a
//! gradient.
//!
//! A derivative per row and participant takes a pass over the rows for each participant. For a
//! large cohort, the gradients are computed once per group of rows and multiplied with each update:
//! then the valuation takes a few passes over the rows and one over the updates, independent of the
//! number of participants. The standard errors follow from the spread between the groups.

use std::ops::Range;

use florin_contribution::{AffineSource, GameError, PathIntegral};
use florin_learning::affine::DIRECTION_PAIRS;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::path::{group_means, weighted_sum};
use florin_learning::{
    AffineLoss, Dataset, Engine, ModelSpec, ParameterSegment, PathGradient, RowMatrix,
    ScratchSpace, cores, mean,
};
use florin_protocol::limits::CROSS_CHECK_COHORT_MAX;

/// Groups of rows from which the standard errors of a large cohort or a graph are estimated; at most
/// the number of rows.
pub(crate) const ROW_GROUPS: usize = 32;
/// Fewest groups, for models of many parameters.
const ROW_GROUPS_MIN: usize = 8;
/// Bytes of the groups' gradients, unless the fewest groups have more.
const GROUP_BYTES: usize = 2 << 30;

/// The losses and directional derivatives of a round's models.
pub(crate) struct RoundSource<'a> {
    pub(crate) model: &'a ModelSpec,
    pub(crate) base: &'a [f32],
    pub(crate) deltas: &'a [&'a [f32]],
    pub(crate) holdout: &'a Dataset,
    pub(crate) engine: &'a mut dyn Engine,
    threads: usize,
    /// Scratch space for the gradients of groups.
    pub(crate) room: &'a ScratchSpace,
    /// The storage of the updates, whose memory is returned to the system after each use.
    stored: Option<&'a RowMatrix>,
    /// Number of row groups; only for a large cohort or a graph.
    pub(crate) groups: Option<usize>,
    /// Restricts the derivatives to one participant; the others' are zero.
    only_player: Option<usize>,
    /// Seed of the random directions of a model without a gradient.
    seed: u64,
    /// Cached standard deviations of a random direction, with the coefficients of the path's
    /// midpoint at which the last gradients give them.
    random_direction_stds: Option<(Vec<f64>, Vec<f64>)>,
}

/// Groups of rows of a model: a trainer is started for each.
fn row_groups(model: &ModelSpec) -> usize {
    if model.is_trainer() {
        return ROW_GROUPS_MIN;
    }
    let parameters = model.parameters();
    let most = GROUP_BYTES / parameters.saturating_mul(size_of::<f64>()).max(1);
    most.clamp(ROW_GROUPS_MIN, ROW_GROUPS)
}

impl<'a> RoundSource<'a> {
    /// The source for a round in which `deltas` move `base`, evaluated on `holdout`.
    pub(crate) fn new(
        model: &'a ModelSpec,
        base: &'a [f32],
        deltas: &'a [&'a [f32]],
        holdout: &'a Dataset,
        engine: &'a mut dyn Engine,
    ) -> Self {
        let large = deltas.len() > CROSS_CHECK_COHORT_MAX;
        let by_groups = matches!(model, ModelSpec::Graph(_)) && model.has_gradient();
        let groups = (large || by_groups).then(|| row_groups(model).min(holdout.rows()));
        let threads = cores();
        Self {
            model,
            base,
            deltas,
            holdout,
            engine,
            threads,
            room: &UNLIMITED_MEMORY,
            stored: None,
            groups,
            only_player: None,
            seed: 0,
            random_direction_stds: None,
        }
    }

    /// The same with a seed for the random directions of a model without a gradient.
    pub(crate) fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same with scratch space, and with the storage of the updates.
    pub(crate) fn within(mut self, room: &'a ScratchSpace, stored: &'a RowMatrix) -> Self {
        (self.room, self.stored) = (room, Some(stored));
        self
    }

    /// Restricts the source to the derivatives of one participant.
    pub(crate) fn for_player(mut self, player: usize) -> Self {
        self.only_player = Some(player);
        self
    }

    pub(crate) fn affine(&mut self) -> Result<AffineLoss<'_>, GameError> {
        self.affine_on(self.holdout)
    }

    /// The same models on other rows.
    pub(crate) fn affine_on<'s>(
        &'s mut self,
        rows: &'s Dataset,
    ) -> Result<AffineLoss<'s>, GameError> {
        AffineLoss::new(self.model, self.base, self.deltas, rows, self.engine)
            .map_err(GameError::new)
    }

    /// The participants whose derivatives a path integral needs. By rows each takes time, and one with
    /// coefficient zero has value zero for any derivative; by groups all derivatives are evidence.
    pub(crate) fn asked_players(&self, coefficients: &[f64]) -> Vec<usize> {
        let wanted = |player: usize| self.only_player.is_none_or(|only| only == player);
        let moves = |player: usize| self.groups.is_some() || coefficients[player] != 0.0;
        (0..self.deltas.len()).filter(|player| moves(*player) && wanted(*player)).collect()
    }

    /// Path integral for an ordinary cohort, per row. The products of the updates with the first
    /// layer are computed once for all nodes.
    fn path_integral_by_row(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<PathIntegral, GameError> {
        let asked = self.asked_players(coefficients);
        let places = places(coefficients, nodes);
        let found = self.affine()?.derivatives_at(&asked, &places).map_err(GameError::new)?;
        Ok(integrate(nodes, (self.deltas.len(), self.holdout.rows()), &asked, &found))
    }

    /// The sum of the updates with their coefficients, the end of a path.
    pub(crate) fn path_end(&self, coefficients: &[f64]) -> Vec<f64> {
        let moves: Vec<(f64, &[f32])> =
            coefficients.iter().copied().zip(self.deltas.iter().copied()).collect();
        weighted_sum(self.base.len(), &moves, &mut |columns| self.release(&columns))
    }

    /// The rate of decrease of the mean loss of some rows along each of `asked`, `[asked player][node]`, with the
    /// sign of the updates.
    pub(crate) fn path_derivatives(
        &mut self,
        mut rows: &Dataset,
        total: &[f64],
        nodes: &[(f64, f64)],
        asked: &[usize],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        let way = ParameterSegment { model: self.model, base: self.base, total };
        let gradient = PathGradient::within(self.room, way, nodes, 1, &mut rows, self.engine)
            .map_err(GameError::new)?;
        let updates: Vec<(f64, &[f32])> =
            asked.iter().map(|&player| (-1.0, self.deltas[player])).collect();
        let values = gradient
            .values_of_slices(self.threads, &updates, &mut |columns| self.release(&columns))
            .map_err(GameError::new)?;
        Ok(values.into_iter().map(|value| value.node_derivatives).collect())
    }

    fn release(&self, columns: &Range<usize>) {
        if let Some(stored) = self.stored {
            stored.release(columns);
        }
    }
}

/// The points of a path's nodes.
pub(crate) fn places(coefficients: &[f64], nodes: &[(f64, f64)]) -> Vec<Vec<f64>> {
    let at = |(t, _): &(f64, f64)| coefficients.iter().map(|own| t * own).collect();
    nodes.iter().map(at).collect()
}

/// The path integral from the derivatives `[node][asked player][cell]`; a cell is a row, or a group whose
/// derivatives are scaled so that their mean is that of the rows.
pub(crate) fn integrate(
    nodes: &[(f64, f64)],
    (players, cells): (usize, usize),
    asked: &[usize],
    derivatives: &[Vec<Vec<f64>>],
) -> PathIntegral {
    let mut integrals = vec![vec![0.0; cells]; players];
    let mut slopes = vec![vec![0.0; players]; nodes.len()];
    for ((slopes, found), (_, weight)) in slopes.iter_mut().zip(derivatives).zip(nodes) {
        for (&player, cells) in asked.iter().zip(found) {
            slopes[player] = mean(cells);
            for (sum, slope) in integrals[player].iter_mut().zip(cells) {
                *sum += weight * slope;
            }
        }
    }
    PathIntegral { integrals, node_derivatives: slopes }
}

impl AffineSource for RoundSource<'_> {
    fn players(&self) -> usize {
        self.deltas.len()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        Ok(self.losses_at(&[coefficients.to_vec()])?.concat())
    }

    fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, GameError> {
        let losses = self.affine()?.losses_at(points).map_err(GameError::new)?;
        Ok(match self.groups {
            Some(groups) => losses.iter().map(|rows| group_means(rows, groups)).collect(),
            None => losses,
        })
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        let Some(only) = self.only_player else {
            return self.affine()?.directional_derivatives(coefficients).map_err(GameError::new);
        };
        let own =
            self.affine()?.derivatives_of_player(only, coefficients).map_err(GameError::new)?;
        let mut slopes = vec![vec![0.0; own.len()]; self.deltas.len()];
        slopes[only] = own;
        Ok(slopes)
    }

    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        let Some(groups) = self.groups else {
            return self.path_integral_by_row(coefficients, nodes).map(Some);
        };
        let total = self.path_end(coefficients);
        let way = ParameterSegment { model: self.model, base: self.base, total: &total };
        let holdout = &mut self.holdout;
        let gradient = PathGradient::within(self.room, way, nodes, groups, holdout, self.engine)
            .map_err(GameError::new)?;
        drop(total);
        let asked = self.asked_players(coefficients);
        // The factor −1 turns the decrease of the loss along an update into the derivative of the
        // loss.
        let updates: Vec<(f64, &[f32])> =
            asked.iter().map(|&player| (-1.0, self.deltas[player])).collect();
        let values = gradient
            .values_of_slices(self.threads, &updates, &mut |columns| self.release(&columns))
            .map_err(GameError::new)?;
        let players = self.deltas.len();
        let mut integrals = vec![vec![0.0; groups]; players];
        let mut slopes = vec![vec![0.0; players]; nodes.len()];
        let mut chances = vec![0.0; players];
        for (&player, value) in asked.iter().zip(values) {
            integrals[player] = value.groups;
            chances[player] = value.random_direction_std;
            for (slopes, slope) in slopes.iter_mut().zip(value.node_derivatives) {
                slopes[player] = slope;
            }
        }
        let half = coefficients.iter().map(|coefficient| 0.5 * coefficient).collect();
        self.random_direction_stds = Some((half, chances));
        Ok(Some(PathIntegral { integrals, node_derivatives: slopes }))
    }

    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        if let Some((at, chances)) = &self.random_direction_stds
            && at == coefficients
        {
            return Ok(Some(chances.clone()));
        }
        let (model, seed) = (self.model, self.seed);
        let mut affine = self.affine()?;
        let found = match model.has_gradient() {
            true => affine.random_direction_std(coefficients),
            false => affine.sampled_direction_std(coefficients, seed),
        };
        found.map(Some).map_err(GameError::new)
    }

    fn random_direction_passes(&self) -> u64 {
        match self.model.has_gradient() {
            true => 1,
            false => 2 * u64::from(DIRECTION_PAIRS),
        }
    }
}
