//! The loop of the estimators that average independent samples of all players' values.

use super::BATCH_COALITIONS;
use super::batch::CoalitionBatch;
use super::endpoints::EndpointValues;
use super::limits::{SamplerStatus, StopReason, StoppingRule};
use super::moments::VectorMoments;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Game, SeededRng, ValuationError};

/// Fewest samples for an error estimate that is compared with a tolerance.
const SAMPLES_MIN: u64 = 5;

/// A sample and its coalitions.
pub(super) struct DrawnSample<S> {
    pub(super) sample: S,
    /// All coalitions that it may evaluate.
    pub(super) coalitions: Vec<Coalition>,
}

/// Values with their standard errors.
pub(super) struct Summary {
    pub(super) values: Vec<f64>,
    pub(super) errors: Option<Vec<f64>>,
}

/// A sampling scheme whose samples are independent and identically distributed; each sample is an
/// unbiased estimate of the values of all players.
pub(super) trait Sampler {
    /// The parameters of one sample.
    type Sample;
    /// The estimator's name.
    const NAME: &'static str;
    /// The unit of the samples in a remark.
    const SAMPLE_UNIT: &'static str;
    /// The stream of the seed for the samples.
    const STREAM: u64;
    /// Number of coalitions at which a batch is full.
    const BATCH: usize = BATCH_COALITIONS;
    /// Whether it omits coalitions on purpose, so that it must not be completed to all coalitions
    /// at the end.
    const TRUNCATES: bool = false;

    /// The next sample.
    fn draw(&mut self, players: usize, draw: &mut SeededRng) -> Self::Sample;

    /// All coalitions that `sample` may evaluate, except the empty and the grand coalition.
    fn coalitions(&self, sample: &Self::Sample) -> Vec<Coalition>;

    /// The estimates of `sample` from the values of its coalitions: at least one number per player.
    fn player_estimates(
        &self,
        sample: &Self::Sample,
        worths: &[f64],
        ends: &EndpointValues,
    ) -> Vec<f64>;

    /// The probability of each number of predecessors under the estimated value.
    fn size_weights(&self, players: usize) -> Vec<f64>;

    /// Length of the vector that `read` returns.
    fn width(&self, players: usize) -> usize {
        players
    }

    /// The estimates of several samples, in their order.
    fn evaluate<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
        drawn: &[DrawnSample<Self::Sample>],
        batch: &CoalitionBatch,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let worths = batch.evaluate(game, meter)?;
        let mut rest = worths.as_slice();
        let mut found = Vec::with_capacity(drawn.len());
        for one in drawn {
            let (own, others) = rest.split_at(one.coalitions.len());
            found.push(self.player_estimates(&one.sample, own, ends));
            rest = others;
        }
        Ok(found)
    }

    /// Values and errors of the samples so far; `None` if they do not determine them.
    fn summary(&self, tally: &VectorMoments, _ends: &EndpointValues) -> Option<Summary> {
        Some(Summary { values: tally.means(), errors: tally.standard_errors() })
    }

    /// The values once every coalition is known, from the exact semivalue; `None` as in `summary`.
    fn exact_values(&self, exact: Vec<f64>, _ends: &EndpointValues) -> Option<Vec<f64>> {
        Some(exact)
    }
}

/// Draws samples from `sampler` until a limit of the run is reached.
pub(super) fn run<G: Game + ?Sized, S: Sampler>(
    mut sampler: S,
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
) -> Result<Estimate, ValuationError> {
    let ends = EndpointValues::evaluate(game, meter)?;
    let mut draw = SeededRng::new(meter.seed(), S::STREAM);
    let mut tally = VectorMoments::new(sampler.width(ends.players));
    let mut limits = StoppingRule::default();
    let (mut pending, mut curtailed) = (None, false);
    let (stop, summary) = loop {
        let summary = sampler.summary(&tally, &ends);
        let standing = SamplerStatus {
            samples: tally.count(),
            has_enough_samples: tally.count() >= SAMPLES_MIN,
            values: summary.as_ref().map_or(&[], |summary| &summary.values),
            errors: summary.as_ref().and_then(|summary| summary.errors.as_deref()),
            cut_short: curtailed,
            next_cost: if S::TRUNCATES { 0 } else { S::BATCH as u64 },
        };
        if let Some(stop) = limits.stop_reason(&ends, meter, &standing) {
            break (stop, summary);
        }
        let (drawn, batch) = fill_batch(&mut sampler, ends.players, meter, &mut draw, &mut pending);
        curtailed = drawn.is_empty();
        for sample in sampler.evaluate(game, meter, &ends, &drawn, &batch)? {
            tally.add(&sample);
        }
    };
    let remark = format!("{} {}; {}", tally.count(), S::SAMPLE_UNIT, stop.description());
    let summary = if stop == StopReason::Exhausted {
        let exact = ends.exact(game, meter, &sampler.size_weights(ends.players))?;
        let errors = Some(vec![0.0; ends.players]);
        sampler.exact_values(exact, &ends).map(|values| Summary { values, errors })
    } else {
        summary
    };
    let Some(Summary { values, errors }) = summary else {
        let equations = usize::try_from(meter.evaluations()).unwrap_or(usize::MAX);
        return Err(ValuationError::Singular { estimator: S::NAME, equations });
    };
    let (total, remark) = (ends.total(), Some(remark));
    Ok(Estimate { values, estimator_errors: errors, total, remark, ..Estimate::default() })
}

/// The samples of one batch, as many as fit the budget. One that does not fit becomes `pending` and
/// is the first of the next batch, since a batch may reserve more than it uses.
fn fill_batch<S: Sampler>(
    sampler: &mut S,
    players: usize,
    meter: &EvaluationMeter<'_>,
    draw: &mut SeededRng,
    pending: &mut Option<DrawnSample<S::Sample>>,
) -> (Vec<DrawnSample<S::Sample>>, CoalitionBatch) {
    let (mut drawn, mut batch) = (Vec::new(), CoalitionBatch::default());
    while batch.len() < S::BATCH {
        let next = pending.take().unwrap_or_else(|| {
            let sample = sampler.draw(players, draw);
            DrawnSample { coalitions: sampler.coalitions(&sample), sample }
        });
        if !batch.try_add(meter, &next.coalitions) {
            *pending = Some(next);
            break;
        }
        drawn.push(next);
    }
    (drawn, batch)
}
