//! The replay: reads every evaluation, and computes a drawn part of it again.

use std::ops::ControlFlow;

use florin_contribution::{AffineSource, GameError, PathIntegral};
use florin_learning::affine::random_direction_stds;
use florin_learning::checkpoint::TrainingState;
use florin_learning::{Dataset, Evaluator, ModelSpec, Reference, Trainer};

use super::bytes::Reader;
use super::gradient::{Multipliers, PROJECTIONS, check_group, check_sum};
use super::record::{
    group_correct, group_derivatives, group_gradient, has_transcript, row_groups, segment,
};
use super::sample::{ReplayDraws, RowGroups, TranscriptSample, subset};
use super::{BASELINE_SEGMENTS, TOLERANCE, TranscriptError};
use crate::evaluations::{BaselineTraining, BaselineWork, RoundEvaluations, wide};
use crate::round::WorkError;
use crate::round_source::{RoundSource, integrate, places};

const LOSSES: &str = "the losses of coalitions";
const DERIVATIVES: &str = "the derivatives along the path";
const GRADIENT: &str = "the gradient halfway";
const MODEL_LOSSES: &str = "the losses of the model";
const CORRECT: &str = "the right predictions";
const BASELINE: &str = "the training of the public baseline";
const BASELINE_LOSSES: &str = "the losses of the public baseline";

/// Reads evaluations, and checks a sample of each.
pub(super) struct Replay<'a, 't> {
    source: RoundSource<'a>,
    reader: Reader<'t>,
    draws: ReplayDraws,
}

/// The last steps of the segments of a training.
pub(super) fn segment_ends(training: &BaselineTraining<'_>) -> impl Iterator<Item = u64> + use<> {
    let steps = training.how.steps(training.rows.rows());
    let segments = steps.min(BASELINE_SEGMENTS);
    (1..=segments).map(move |number| steps * number / segments)
}

impl<'a, 't> Replay<'a, 't> {
    pub(super) fn new(
        source: RoundSource<'a>,
        reader: Reader<'t>,
        sample: TranscriptSample,
    ) -> Self {
        Self { source, reader, draws: ReplayDraws::new(sample) }
    }

    pub(super) const fn finish(&self) -> Result<(), TranscriptError> {
        self.reader.finish()
    }

    fn require_transcript(&self) -> Result<(), GameError> {
        match has_transcript(&self.source) {
            true => Ok(()),
            false => Err(GameError::new(TranscriptError::NoTranscript)),
        }
    }

    fn check_losses(&mut self, points: &[Vec<f64>], stated: &[Vec<f64>]) -> Result<(), GameError> {
        let groups = row_groups(&self.source);
        let drawn = self.draws.draw(groups.count);
        let at = groups.rows_of(&drawn);
        let rows = subset(self.source.holdout, &at).map_err(GameError::new)?;
        let found = self.source.affine_on(&rows)?.losses_at(points).map_err(GameError::new)?;
        for (stated, found) in stated.iter().zip(&found) {
            if self.source.groups.is_none() {
                compare(LOSSES, at.iter().map(|row| stated[*row]), found.iter().copied())?;
                continue;
            }
            let mut rest = found.as_slice();
            for group in &drawn {
                let own = rest.split_off(..groups.range(*group).len()).unwrap_or_default();
                let cell = florin_learning::mean(own) * groups.share(*group);
                compare(LOSSES, [stated[*group]], [cell])?;
            }
        }
        Ok(())
    }

    fn check_derivatives(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
        asked: &[usize],
        stated: &[Vec<Vec<f64>>],
    ) -> Result<(), GameError> {
        let groups = row_groups(&self.source);
        let drawn = self.draws.draw(groups.count);
        if self.source.groups.is_some() {
            let total = self.source.path_end(coefficients);
            for group in drawn {
                let of = (groups, group);
                let found = group_derivatives(&mut self.source, of, &total, nodes, asked)?;
                for (stated, found) in stated.iter().zip(found) {
                    compare_line(DERIVATIVES, stated.iter().map(|cells| cells[group]), &found)?;
                }
            }
            return Ok(());
        }
        let at = groups.rows_of(&drawn);
        let rows = subset(self.source.holdout, &at).map_err(GameError::new)?;
        let places = places(coefficients, nodes);
        let found = self.source.affine_on(&rows)?.derivatives_at(asked, &places);
        let found = found.map_err(GameError::new)?;
        for (stated, found) in stated.iter().flatten().zip(found.iter().flatten()) {
            compare_line(DERIVATIVES, at.iter().map(|row| stated[*row]), found)?;
        }
        Ok(())
    }

    /// Reads one number per row of a data set; `compute` evaluates the drawn rows.
    fn read_rows(
        &mut self,
        what: &'static str,
        data: &Dataset,
        compute: impl FnOnce(&mut RoundSource<'_>, &Dataset) -> Result<Vec<f64>, WorkError>,
    ) -> Result<Vec<f64>, WorkError> {
        let stated = self.reader.numbers(what, data.rows())?;
        let groups = RowGroups::of(data.rows());
        let at = groups.rows_of(&self.draws.draw(groups.count));
        let found = compute(&mut self.source, &subset(data, &at)?)?;
        let pairs = at.iter().map(|row| stated[*row]);
        match what {
            // The reference engine computed both, and the report's baseline is compared without a tolerance.
            BASELINE_LOSSES => compare_within(0.0, what, pairs, found)?,
            _ => compare(what, pairs, found)?,
        }
        check_losses_range(what, self.source.model, &stated)?;
        Ok(stated)
    }
}

/// Compares stated numbers with computed ones.
fn compare(
    what: &'static str,
    stated: impl IntoIterator<Item = f64>,
    found: impl IntoIterator<Item = f64>,
) -> Result<(), TranscriptError> {
    compare_within(TOLERANCE, what, stated, found)
}

/// The same with a tolerance for the largest number: a small derivative is a sum of large products.
fn compare_line(
    what: &'static str,
    stated: impl IntoIterator<Item = f64>,
    found: &[f64],
) -> Result<(), TranscriptError> {
    let largest = found.iter().fold(1.0_f64, |largest, number| largest.max(number.abs()));
    compare_within(TOLERANCE * largest, what, stated, found.iter().copied())
}

fn compare_within(
    tolerance: f64,
    what: &'static str,
    stated: impl IntoIterator<Item = f64>,
    found: impl IntoIterator<Item = f64>,
) -> Result<(), TranscriptError> {
    for (stated, found) in stated.into_iter().zip(found) {
        // A NaN differs, too.
        let is_near = (stated - found).abs() <= tolerance * found.abs().max(1.0);
        if !is_near {
            let [stated, recomputed] = [stated, found].map(|number| number.to_string());
            return Err(TranscriptError::Differs { what, stated, recomputed });
        }
    }
    Ok(())
}

/// Losses are bounded, so a forged group has a bounded effect on a mean.
fn check_losses_range(
    what: &'static str,
    model: &ModelSpec,
    stated: &[f64],
) -> Result<(), TranscriptError> {
    let (smallest, largest) = model.loss_range();
    let slack = TOLERANCE * largest.max(1.0);
    match stated.iter().find(|loss| !(smallest - slack..=largest + slack).contains(*loss)) {
        None => Ok(()),
        Some(loss) => {
            let why = format!("a row has a loss of {loss}: must be from {smallest} to {largest}");
            Err(TranscriptError::Invalid { what, why })
        }
    }
}

fn in_lines(numbers: &[f64], length: usize) -> Vec<Vec<f64>> {
    numbers.chunks(length.max(1)).map(<[f64]>::to_vec).collect()
}

impl AffineSource for Replay<'_, '_> {
    fn players(&self) -> usize {
        self.source.players()
    }

    fn losses(&mut self, coefficients: &[f64]) -> Result<Vec<f64>, GameError> {
        Ok(self.losses_at(&[coefficients.to_vec()])?.concat())
    }

    fn losses_at(&mut self, points: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, GameError> {
        self.require_transcript()?;
        let cells = self.source.groups.unwrap_or(self.source.holdout.rows());
        let numbers = self.reader.numbers(LOSSES, points.len().saturating_mul(cells))?;
        let stated = in_lines(&numbers, cells);
        let groups = row_groups(&self.source);
        match self.source.groups {
            None => check_losses_range(LOSSES, self.source.model, &numbers)?,
            Some(_) => {
                let rows = numbers.iter().enumerate();
                let means = rows.map(|(at, cell)| cell / groups.share(at % cells));
                check_losses_range(LOSSES, self.source.model, &means.collect::<Vec<_>>())?;
            }
        }
        self.check_losses(points, &stated)?;
        Ok(stated)
    }

    fn directional_derivatives(&mut self, _: &[f64]) -> Result<Vec<Vec<f64>>, GameError> {
        Err(GameError::new(TranscriptError::NoTranscript))
    }

    fn path_integral(
        &mut self,
        coefficients: &[f64],
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, GameError> {
        self.require_transcript()?;
        let asked = self.source.asked_players(coefficients);
        let cells = self.source.groups.unwrap_or(self.source.holdout.rows());
        let count = nodes.len() * asked.len();
        let numbers = self.reader.numbers(DERIVATIVES, count.saturating_mul(cells))?;
        let lines = in_lines(&numbers, cells);
        let at = |node: usize| lines[node * asked.len()..(node + 1) * asked.len()].to_vec();
        let stated: Vec<Vec<Vec<f64>>> = (0..nodes.len()).map(at).collect();
        self.check_derivatives(coefficients, nodes, &asked, &stated)?;
        Ok(Some(integrate(nodes, (self.players(), cells), &asked, &stated)))
    }

    fn random_direction_std(
        &mut self,
        coefficients: &[f64],
    ) -> Result<Option<Vec<f64>>, GameError> {
        self.require_transcript()?;
        let groups = row_groups(&self.source);
        let gradient = self.reader.numbers(GRADIENT, self.source.base.len())?;
        let products = self.reader.numbers(GRADIENT, groups.count * PROJECTIONS)?;
        let products = products.as_chunks::<PROJECTIONS>().0;
        let multipliers = Multipliers::of(&gradient);
        check_sum(&multipliers, &gradient, products, groups)?;
        let params = self.source.affine()?.combined(coefficients).map_err(GameError::new)?;
        for group in self.draws.draw(groups.count) {
            let own = group_gradient(&mut self.source, (groups, group), &params)?;
            check_group(&multipliers, products[group], &own)?;
        }
        Ok(Some(random_direction_stds(&gradient, self.source.deltas)))
    }

    fn random_direction_passes(&self) -> u64 {
        self.source.random_direction_passes()
    }
}

/// The state after the step at which a segment ends.
fn decode_state(
    training: &BaselineTraining<'_>,
    bytes: &[u8],
    end: u64,
) -> Result<TrainingState, TranscriptError> {
    let invalid = |why: String| TranscriptError::Invalid { what: BASELINE, why };
    let state = TrainingState::from_bytes(bytes, training.start.len(), training.how)
        .map_err(|error| invalid(error.to_string()))?;
    match state.step() {
        step if step == end => Ok(state),
        step => Err(invalid(format!("step {step} and not {end}"))),
    }
}

impl BaselineWork for Replay<'_, '_> {
    fn train(&mut self, training: BaselineTraining<'_>) -> Result<Option<Vec<f32>>, WorkError> {
        let ends: Vec<u64> = segment_ends(&training).collect();
        let stated = ends.iter().map(|_| self.reader.state(BASELINE));
        let stated = stated.collect::<Result<Vec<_>, _>>()?;
        // Only the states of drawn segments and the last one are decoded: they may be large.
        let state_after = |segments: usize| match segments.checked_sub(1) {
            None => Ok(TrainingState::initial(training.start, training.how)),
            Some(last) => decode_state(&training, stated[last], ends[last]),
        };
        for drawn in self.draws.draw(ends.len()) {
            let (from, end) = (state_after(drawn)?, state_after(drawn + 1)?);
            let segment = segment(&training, &from, ends[drawn]);
            let trained =
                Reference::new().train_segment(&segment, &mut |_| ControlFlow::Continue(()));
            let recomputed = match trained {
                // Not by their numbers: −0 equals 0.
                Ok(trained) if trained.end.digest() == end.digest() => continue,
                Ok(_) => "another state".to_owned(),
                Err(error) => error.to_string(),
            };
            let stated = format!("the state after step {}", ends[drawn]);
            return Err(TranscriptError::Differs { what: BASELINE, stated, recomputed }.into());
        }
        Ok(Some(state_after(ends.len())?.params().to_vec()))
    }

    fn baseline_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f32],
        rows: &Dataset,
    ) -> Result<Vec<f64>, WorkError> {
        self.read_rows(BASELINE_LOSSES, rows, |_, drawn| {
            Ok(Reference::new().row_losses(model, &wide(params), drawn)?)
        })
    }
}

impl RoundEvaluations for Replay<'_, '_> {
    fn correct_predictions(&mut self, params: &[f64]) -> Result<usize, WorkError> {
        let groups = RowGroups::of(self.source.holdout.rows());
        let stated = self.reader.numbers(CORRECT, groups.count)?;
        let rows = |group: usize| groups.range(group).len();
        let counts = stated.iter().enumerate().map(|(group, correct)| {
            (0..=rows(group)).find(|count| *count as f64 == *correct).ok_or_else(|| {
                let why = format!("{correct} of {} rows", rows(group));
                TranscriptError::Invalid { what: CORRECT, why }
            })
        });
        let counts = counts.collect::<Result<Vec<usize>, _>>()?;
        let drawn = self.draws.draw(groups.count);
        let ours = group_correct(&mut self.source, &groups.rows_of(&drawn), params)?;
        let theirs: usize = drawn.iter().map(|group| counts[*group]).sum();
        compare(CORRECT, [theirs as f64], [ours as f64])?;
        Ok(counts.iter().sum())
    }

    fn row_losses(&mut self, params: &[f64]) -> Result<Vec<f64>, WorkError> {
        let data = self.source.holdout;
        self.read_rows(MODEL_LOSSES, data, |source, drawn| {
            Ok(source.engine.row_losses(source.model, params, drawn)?)
        })
    }
}
