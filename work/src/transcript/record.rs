//! The recorder: computes every evaluation, and writes it down.

use std::ops::ControlFlow;

use florin_contribution::{AffineSource, GameError, PathIntegral};
use florin_learning::affine::random_direction_stds;
use florin_learning::checkpoint::TrainingState;
use florin_learning::engine::{TrainError, TrainingSegment};
use florin_learning::{Dataset, ModelSpec, Reference, Trainer};
use florin_protocol::limits::CROSS_CHECK_COHORT_MAX;

use super::bytes::Writer;
use super::gradient::Multipliers;
use super::replay;
use super::sample::RowGroups;
use crate::evaluations::{BaselineTraining, BaselineWork, RoundEvaluations};
use crate::round::WorkError;
use crate::round_source::{RoundSource, integrate, places};

/// Most parameters of a model whose valuation has a transcript: the gradients of its groups take 32 · 8 bytes each.
const PARAMETERS_MAX: usize = 1 << 20;

/// Computes evaluations and records them.
pub(super) struct TranscriptRecorder<'a> {
    source: RoundSource<'a>,
    writer: Writer,
}

impl<'a> TranscriptRecorder<'a> {
    pub(super) fn new(source: RoundSource<'a>, mut writer: Writer) -> Self {
        if !has_transcript(&source) {
            writer.give_up();
        }
        Self { source, writer }
    }

    pub(super) fn finish(self) -> Option<Vec<u8>> {
        self.writer.finish()
    }

    fn groups(&self) -> RowGroups {
        row_groups(&self.source)
    }

    /// The derivatives of a path `[node][asked player][cell]`.
    fn derivatives(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
        asked: &[usize],
    ) -> Result<Vec<Vec<Vec<f64>>>, GameError> {
        if self.source.groups.is_none() {
            let places = places(coefficients, nodes);
            return self.source.affine()?.derivatives_at(asked, &places).map_err(GameError::new);
        }
        let groups = self.groups();
        let total = self.source.path_end(coefficients);
        let mut cells = vec![vec![Vec::with_capacity(groups.count); asked.len()]; nodes.len()];
        for group in 0..groups.count {
            let found = group_derivatives(&mut self.source, (groups, group), &total, nodes, asked)?;
            for (cells, found) in cells.iter_mut().zip(found) {
                cells.iter_mut().zip(found).for_each(|(cells, cell)| cells.push(cell));
            }
        }
        Ok(cells)
    }
}

/// Whether a round can have a transcript. Trainers have no gradient, and are started for each evaluation; in a
/// large cohort the derivatives of each group and node would cost more than the valuation, and the gradients of all
/// groups of a large model more memory.
pub(super) fn has_transcript(source: &RoundSource<'_>) -> bool {
    source.model.has_gradient()
        && source.deltas.len() <= CROSS_CHECK_COHORT_MAX
        && source.base.len() <= PARAMETERS_MAX
}

/// The groups of the validation rows.
pub(super) fn row_groups(source: &RoundSource<'_>) -> RowGroups {
    let groups = RowGroups::of(source.holdout.rows());
    source.groups.map_or(groups, |count| groups.with_count(count))
}

/// The cells of a group: the derivatives `[node][asked player]` of its rows, scaled by its share.
pub(super) fn group_derivatives(
    source: &mut RoundSource<'_>,
    (groups, group): (RowGroups, usize),
    total: &[f64],
    nodes: &[(f64, f64)],
    asked: &[usize],
) -> Result<Vec<Vec<f64>>, GameError> {
    let rows = source.holdout.slice(groups.range(group)).map_err(GameError::new)?;
    let of_players = source.path_derivatives(&rows, total, nodes, asked)?;
    let share = groups.share(group);
    let at = |node: usize| of_players.iter().map(|slopes| slopes[node] * share).collect();
    Ok((0..nodes.len()).map(at).collect())
}

impl AffineSource for TranscriptRecorder<'_> {
    fn players(&self) -> usize {
        self.source.players()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        Ok(self.losses_at(&[coefficients.to_vec()])?.concat())
    }

    fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, GameError> {
        let losses = self.source.losses_at(points)?;
        self.writer.numbers(losses.iter().flatten());
        Ok(losses)
    }

    fn directional_derivatives(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Vec<Vec<f64>>, GameError> {
        self.writer.give_up();
        self.source.directional_derivatives(coefficients)
    }

    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        if !self.writer.is_active() {
            return self.source.path_integral(coefficients, nodes);
        }
        let asked = self.source.asked_players(coefficients);
        let found = self.derivatives(coefficients, nodes, &asked)?;
        self.writer.numbers(found.iter().flatten().flatten());
        let cells = self.source.groups.unwrap_or(self.source.holdout.rows());
        Ok(Some(integrate(nodes, (self.players(), cells), &asked, &found)))
    }

    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        if !self.writer.is_active() {
            return self.source.random_direction_std(coefficients);
        }
        let groups = self.groups();
        let params = self.source.affine()?.combined(coefficients).map_err(GameError::new)?;
        let mut of_groups = Vec::with_capacity(groups.count);
        let mut gradient = vec![0.0; params.len()];
        for group in 0..groups.count {
            let own = group_gradient(&mut self.source, (groups, group), &params)?;
            let share = groups.share(group) / groups.count as f64;
            gradient.iter_mut().zip(&own).for_each(|(sum, slope)| *sum += share * slope);
            of_groups.push(own);
        }
        let multipliers = Multipliers::of(&gradient);
        self.writer.numbers(&gradient);
        self.writer.numbers(
            of_groups.iter().flat_map(|own| multipliers.products(own)).collect::<Vec<_>>().iter(),
        );
        Ok(Some(random_direction_stds(&gradient, self.source.deltas)))
    }

    fn random_direction_passes(&self) -> u64 {
        self.source.random_direction_passes()
    }
}

/// The gradient of the mean loss of a group.
pub(super) fn group_gradient(
    source: &mut RoundSource<'_>,
    (groups, group): (RowGroups, usize),
    params: &[f64],
) -> Result<Vec<f64>, GameError> {
    let rows = source.holdout.slice(groups.range(group)).map_err(GameError::new)?;
    let found = source.engine.gradient(source.model, params, &rows).map_err(GameError::new)?;
    Ok(found.1)
}

impl BaselineWork for TranscriptRecorder<'_> {
    fn train(&mut self, training: BaselineTraining<'_>) -> Result<Option<Vec<f32>>, WorkError> {
        if !self.writer.is_active() {
            return self.source.train(training);
        }
        let mut state = TrainingState::initial(training.start, training.how);
        for to in replay::segment_ends(&training) {
            let segment = segment(&training, &state, to);
            match Reference::new().train_segment(&segment, &mut |_| ControlFlow::Continue(())) {
                Ok(trained) => state = trained.end,
                Err(TrainError::Diverged { .. }) => {
                    // Numbers of the optimizer can diverge alone, and the whole training decides.
                    self.writer.give_up();
                    return self.source.train(training);
                }
                Err(error) => return Err(WorkError::Baseline(error)),
            }
            match state.to_bytes() {
                Ok(bytes) => self.writer.state(&bytes),
                Err(_) => self.writer.give_up(),
            }
        }
        Ok(Some(state.params().to_vec()))
    }

    fn baseline_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        rows: &Dataset,
    ) -> Result<Vec<f64>, WorkError> {
        let losses = self.source.baseline_losses(model, params, rows)?;
        self.writer.numbers(&losses);
        Ok(losses)
    }
}

/// The segment of a training from a state.
pub(super) fn segment<'a>(
    training: &BaselineTraining<'a>,
    from: &'a TrainingState,
    to: u64,
) -> TrainingSegment<'a> {
    let BaselineTraining { model, start, rows: data, how, seed } = *training;
    TrainingSegment { model, start, data, how, seed, from, to, is_traced: false }
}

impl RoundEvaluations for TranscriptRecorder<'_> {
    fn correct_predictions(&mut self, params: &[f64]) -> Result<usize, WorkError> {
        if !self.writer.is_active() {
            return self.source.correct_predictions(params);
        }
        let (groups, mut sum) = (RowGroups::of(self.source.holdout.rows()), 0);
        for group in 0..groups.count {
            let correct = group_correct(&mut self.source, &groups.rows_of(&[group]), params)?;
            self.writer.numbers(&[correct as f64]);
            sum += correct;
        }
        Ok(sum)
    }

    fn row_losses(&mut self, params: &[f64]) -> Result<Vec<f64>, WorkError> {
        let losses = self.source.row_losses(params)?;
        self.writer.numbers(&losses);
        Ok(losses)
    }
}

/// Right predictions among some rows.
pub(super) fn group_correct(
    source: &mut RoundSource<'_>,
    rows: &[usize],
    params: &[f64],
) -> Result<usize, WorkError> {
    let rows = super::sample::subset(source.holdout, rows)?;
    Ok(source.engine.correct_predictions(source.model, params, &rows)?)
}
