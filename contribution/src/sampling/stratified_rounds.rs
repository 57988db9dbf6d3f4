//! The loop of the stratified estimators, which sample differences of two coalitions.

use super::batch::CoalitionBatch;
use super::endpoints::{EndpointValues, shapley_size_weights};
use super::limits::{SamplerStatus, StopReason, StoppingRule};
use super::strata::Strata;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Game, ValuationError};

/// Number of pilot rounds, which visit every stratum before the standard deviations control the
/// allocation.
pub(super) const PILOT: u64 = 2;

/// Smallest number of samples of one round after the pilot.
const ROUND_MIN: u64 = 64;

/// From round to round the number of samples grows by one part in this many.
const GROWTH: u64 = 4;

/// Coalitions per request.
const CHUNK: usize = 1_024;

/// Number of samples of the next round after the pilot, given the samples per stratum so far.
pub(super) fn round_length(samples: &[u64]) -> u64 {
    ROUND_MIN.max(samples.iter().sum::<u64>() / GROWTH)
}

/// A stratified sampling scheme, round by round.
pub(super) trait StratifiedSampler: Sized {
    /// One sample to evaluate.
    type Item;
    /// The unit of the samples in a remark.
    const UNITS: &'static str;

    /// Evaluates everything that is not sampled: the strata of one coalition each.
    fn new<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        ends: &EndpointValues,
    ) -> Result<Self, ValuationError>;

    /// The samples of round `number`, in random order, so that dropping some for lack of budget
    /// introduces no bias. The rounds of the pilot visit every stratum.
    fn next_round(&mut self, number: u64) -> Vec<Self::Item>;

    /// The two coalitions whose difference is a sample.
    fn pair(&mut self, item: &Self::Item) -> [Coalition; 2];

    /// Adds the difference, first minus second.
    fn add_difference(&mut self, item: &Self::Item, difference: f64);

    /// The strata so far.
    fn strata(&self) -> &Strata;

    /// The columns of the sampled strata.
    fn sampled(&self) -> Vec<usize>;
}

/// Values all players of `game`, until a limit of the run is reached.
pub(super) fn run<G: Game + ?Sized, R: StratifiedSampler>(
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
) -> Result<Estimate, ValuationError> {
    let ends = EndpointValues::evaluate(game, meter)?;
    let mut rounds = R::new(game, meter, &ends)?;
    let mut limits = StoppingRule::default();
    let (mut number, mut samples, mut curtailed) = (0, 0, false);
    let (stop, values, errors) = loop {
        let round = rounds.next_round(number);
        let values = rounds.strata().values();
        let errors = rounds.strata().standard_errors(&rounds.sampled());
        let standing = SamplerStatus {
            samples,
            has_enough_samples: number >= PILOT,
            values: &values,
            errors: errors.as_deref(),
            cut_short: curtailed,
            next_cost: 2 * round.len() as u64,
        };
        if let Some(stop) = limits.stop_reason(&ends, meter, &standing) {
            break (stop, values, errors);
        }
        let seen = evaluate_round(&mut rounds, game, meter, &round, number > 0)?;
        curtailed = seen < round.len();
        samples += seen as u64;
        number += 1;
    };
    let remark = Some(format!("{samples} {}; {}", R::UNITS, stop.description()));
    let (values, errors) = if stop == StopReason::Exhausted {
        let shares = shapley_size_weights(ends.players);
        (ends.exact(game, meter, &shares)?, Some(vec![0.0; ends.players]))
    } else {
        (values, errors)
    };
    let total = ends.total();
    Ok(Estimate { values, estimator_errors: errors, total, remark, ..Estimate::default() })
}

/// Evaluates the items of `round` in their order, as far as the budget and, if `timed`, the time
/// limit allow; returns their number. The first round is not timed, since without it there are no
/// values.
fn evaluate_round<G: Game + ?Sized, R: StratifiedSampler>(
    rounds: &mut R,
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
    round: &[R::Item],
    timed: bool,
) -> Result<usize, ValuationError> {
    let mut seen = 0;
    while seen < round.len() && (!timed || meter.can_afford(0)) {
        let (mut batch, mut taken) = (CoalitionBatch::default(), 0);
        for item in &round[seen..] {
            if batch.len() >= CHUNK || !batch.try_add(meter, &rounds.pair(item)) {
                break;
            }
            taken += 1;
        }
        if taken == 0 {
            break;
        }
        let worths = batch.evaluate(game, meter)?;
        for (item, pair) in round[seen..seen + taken].iter().zip(worths.chunks(2)) {
            rounds.add_difference(item, pair[0] - pair[1]);
        }
        seen += taken;
    }
    Ok(seen)
}
