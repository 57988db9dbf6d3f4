//! The loop of the stratified estimators, which sample differences of two coalitions.

use super::batch::Batch;
use super::ends::{Ends, shapley_shares};
use super::limits::{Limits, Standing, Stop};
use super::strata::Strata;
use crate::meter::Meter;
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
pub(super) trait Rounds: Sized {
    /// One sample to evaluate.
    type Item;
    /// The unit of the samples in a remark.
    const UNITS: &'static str;

    /// Evaluates everything that is not sampled: the strata of one coalition each.
    fn begin<G: Game + ?Sized>(
        game: &mut G,
        meter: &mut Meter<'_>,
        ends: &Ends,
    ) -> Result<Self, ValuationError>;

    /// The samples of round `number`, in random order, so that dropping some for lack of budget
    /// introduces no bias. The rounds of the pilot visit every stratum.
    fn next_round(&mut self, number: u64) -> Vec<Self::Item>;

    /// The two coalitions whose difference is a sample.
    fn pair(&mut self, item: &Self::Item) -> [Coalition; 2];

    /// Adds the difference, first minus second.
    fn learn(&mut self, item: &Self::Item, difference: f64);

    /// The strata so far.
    fn strata(&self) -> &Strata;

    /// The columns of the sampled strata.
    fn sampled(&self) -> Vec<usize>;
}

/// Values all players of `game`, until a limit of the run is reached.
pub(super) fn carry_out<G: Game + ?Sized, R: Rounds>(
    game: &mut G,
    meter: &mut Meter<'_>,
) -> Result<Estimate, ValuationError> {
    let ends = Ends::of(game, meter)?;
    let mut rounds = R::begin(game, meter, &ends)?;
    let mut limits = Limits::default();
    let (mut number, mut samples, mut curtailed) = (0, 0, false);
    let (stop, values, errors) = loop {
        let round = rounds.next_round(number);
        let values = rounds.strata().values();
        let errors = rounds.strata().standard_errors(&rounds.sampled());
        let standing = Standing {
            samples,
            settled: number >= PILOT,
            values: &values,
            errors: errors.as_deref(),
            curtailed,
            next_cost: 2 * round.len() as u64,
        };
        if let Some(stop) = limits.reached(&ends, meter, &standing) {
            break (stop, values, errors);
        }
        let seen = look_at(&mut rounds, game, meter, &round, number > 0)?;
        curtailed = seen < round.len();
        samples += seen as u64;
        number += 1;
    };
    let remark = Some(format!("{samples} {}; {}", R::UNITS, stop.words()));
    let (values, errors) = if stop == Stop::Exhausted {
        let shares = shapley_shares(ends.players);
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
fn look_at<G: Game + ?Sized, R: Rounds>(
    rounds: &mut R,
    game: &mut G,
    meter: &mut Meter<'_>,
    round: &[R::Item],
    timed: bool,
) -> Result<usize, ValuationError> {
    let mut seen = 0;
    while seen < round.len() && (!timed || meter.affords(0)) {
        let (mut batch, mut taken) = (Batch::default(), 0);
        for item in &round[seen..] {
            if batch.len() >= CHUNK || !batch.take(meter, &rounds.pair(item)) {
                break;
            }
            taken += 1;
        }
        if taken == 0 {
            break;
        }
        let worths = batch.ask(game, meter)?;
        for (item, pair) in round[seen..seen + taken].iter().zip(worths.chunks(2)) {
            rounds.learn(item, pair[0] - pair[1]);
        }
        seen += taken;
    }
    Ok(seen)
}
