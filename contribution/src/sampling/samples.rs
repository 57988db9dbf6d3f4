//! The loop of the estimators that average independent samples of all players' values.

use super::BATCH_COALITIONS;
use super::batch::Batch;
use super::ends::Ends;
use super::limits::{Limits, Standing, Stop};
use super::tally::Tally;
use crate::meter::Meter;
use crate::{Coalition, Draw, Estimate, Game, ValuationError};

/// Fewest samples for an error estimate that is compared with a tolerance.
const SAMPLES_MIN: u64 = 5;

/// A sample and its coalitions.
pub(super) struct Drawn<S> {
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
    const UNITS: &'static str;
    /// The stream of the seed for the samples.
    const STREAM: u64;
    /// Number of coalitions at which a batch is full.
    const BATCH: usize = BATCH_COALITIONS;
    /// Whether it omits coalitions on purpose, so that it must not be completed to all coalitions
    /// at the end.
    const TRUNCATES: bool = false;

    /// The next sample.
    fn draw(&mut self, players: usize, draw: &mut Draw) -> Self::Sample;

    /// All coalitions that `sample` may evaluate, except the empty and the grand coalition.
    fn coalitions(&self, sample: &Self::Sample) -> Vec<Coalition>;

    /// The estimates of `sample` from the values of its coalitions: at least one number per player.
    fn read(&self, sample: &Self::Sample, worths: &[f64], ends: &Ends) -> Vec<f64>;

    /// The probability of each number of predecessors under the estimated value.
    fn shares(&self, players: usize) -> Vec<f64>;

    /// Length of the vector that `read` returns.
    fn width(&self, players: usize) -> usize {
        players
    }

    /// The estimates of several samples, in their order.
    fn measure<G: Game + ?Sized>(
        &self,
        game: &mut G,
        meter: &mut Meter<'_>,
        ends: &Ends,
        drawn: &[Drawn<Self::Sample>],
        batch: &Batch,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let worths = batch.ask(game, meter)?;
        let mut rest = worths.as_slice();
        let mut found = Vec::with_capacity(drawn.len());
        for one in drawn {
            let (own, others) = rest.split_at(one.coalitions.len());
            found.push(self.read(&one.sample, own, ends));
            rest = others;
        }
        Ok(found)
    }

    /// Values and errors of the samples so far; `None` if they do not determine them.
    fn summary(&self, tally: &Tally, _ends: &Ends) -> Option<Summary> {
        Some(Summary { values: tally.means(), errors: tally.standard_errors() })
    }

    /// The values once every coalition is known, from the exact semivalue; `None` as in `summary`.
    fn finish(&self, exact: Vec<f64>, _ends: &Ends) -> Option<Vec<f64>> {
        Some(exact)
    }
}

/// Draws samples from `sampler` until a limit of the run is reached.
pub(super) fn carry_out<G: Game + ?Sized, S: Sampler>(
    mut sampler: S,
    game: &mut G,
    meter: &mut Meter<'_>,
) -> Result<Estimate, ValuationError> {
    let ends = Ends::of(game, meter)?;
    let mut draw = Draw::new(meter.seed(), S::STREAM);
    let mut tally = Tally::new(sampler.width(ends.players));
    let mut limits = Limits::default();
    let (mut pending, mut curtailed) = (None, false);
    let (stop, summary) = loop {
        let summary = sampler.summary(&tally, &ends);
        let standing = Standing {
            samples: tally.count(),
            settled: tally.count() >= SAMPLES_MIN,
            values: summary.as_ref().map_or(&[], |summary| &summary.values),
            errors: summary.as_ref().and_then(|summary| summary.errors.as_deref()),
            curtailed,
            next_cost: if S::TRUNCATES { 0 } else { S::BATCH as u64 },
        };
        if let Some(stop) = limits.reached(&ends, meter, &standing) {
            break (stop, summary);
        }
        let (drawn, batch) = fill(&mut sampler, ends.players, meter, &mut draw, &mut pending);
        curtailed = drawn.is_empty();
        for sample in sampler.measure(game, meter, &ends, &drawn, &batch)? {
            tally.add(&sample);
        }
    };
    let remark = format!("{} {}; {}", tally.count(), S::UNITS, stop.words());
    let summary = if stop == Stop::Exhausted {
        let exact = ends.exact(game, meter, &sampler.shares(ends.players))?;
        let errors = Some(vec![0.0; ends.players]);
        sampler.finish(exact, &ends).map(|values| Summary { values, errors })
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
fn fill<S: Sampler>(
    sampler: &mut S,
    players: usize,
    meter: &Meter<'_>,
    draw: &mut Draw,
    pending: &mut Option<Drawn<S::Sample>>,
) -> (Vec<Drawn<S::Sample>>, Batch) {
    let (mut drawn, mut batch) = (Vec::new(), Batch::default());
    while batch.len() < S::BATCH {
        let next = pending.take().unwrap_or_else(|| {
            let sample = sampler.draw(players, draw);
            Drawn { coalitions: sampler.coalitions(&sample), sample }
        });
        if !batch.take(meter, &next.coalitions) {
            *pending = Some(next);
            break;
        }
        drawn.push(next);
    }
    (drawn, batch)
}
