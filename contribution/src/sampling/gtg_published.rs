//! GTG-Shapley as published by its authors, including its defects, for comparison only.

use std::collections::{BTreeMap, VecDeque};

use super::batch::CoalitionBatch;
use super::endpoints::EndpointValues;
use super::gtg::GuidedPermutations;
use super::moments::VectorMoments;
use super::permutation_walk;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Estimate, Game, ValuationError};

/// The stopping rule applies after more permutations than this.
const ORDERS_MIN: u64 = 30;

/// Number of running means in the stopping rule.
const MEANS: usize = 10;

/// Mean relative change below which it stops.
const CHANGE_MAX: f64 = 0.05;

/// Prevents a division by zero in the relative change.
const NEVER_ZERO: f64 = 1e-12;

/// Number of permutations after which it ends even if the stopping rule never applies.
const ORDERS_MAX: u64 = 1 << 20;

/// Fewest cycles for an error estimate that is compared with a tolerance.
const CYCLES_MIN: u64 = 5;

/// Values all players with the published algorithm.
pub(super) fn run<G: Game + ?Sized>(
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
    ends: &EndpointValues,
    within: f64,
) -> Result<Estimate, ValuationError> {
    let mut guide = GuidedPermutations::new(meter.seed());
    let mut supposed = PublishedCache::new(ends, within);
    let (mut orders, mut cycles) =
        (VectorMoments::new(ends.players), VectorMoments::new(ends.players));
    let mut means: VecDeque<Vec<f64>> = VecDeque::with_capacity(MEANS);
    let why = loop {
        if orders.count() > ORDERS_MIN && has_converged(&means) {
            break "the last 10 running means are within 5 % of the last one";
        }
        if cycles.count() >= CYCLES_MIN
            && cycles.standard_errors().is_some_and(|e| meter.has_converged(&orders.means(), &e))
        {
            break "the error is within the tolerance";
        }
        if orders.count() >= ORDERS_MAX {
            break "the limit of permutations is reached";
        }
        if cycles.count() > 0 && !meter.can_afford(0) {
            break "the time limit is reached";
        }
        let cycle = guide.cycle(ends.players);
        let passed: Vec<Coalition> =
            cycle.iter().flat_map(|order| permutation_walk::prefixes(order)).collect();
        if !CoalitionBatch::default().try_add(meter, &passed) {
            break "the remaining budget is too small for another cycle";
        }
        let mut sums = vec![0.0; ends.players];
        for order in &cycle {
            let values = supposed.marginals_along(game, meter, order)?;
            sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
            orders.add(&values);
            if means.len() == MEANS {
                means.pop_front();
            }
            means.push_back(orders.means());
        }
        sums.iter_mut().for_each(|sum| *sum /= ends.players as f64);
        cycles.add(&sums);
    };
    Ok(Estimate {
        values: orders.means(),
        estimator_errors: cycles.standard_errors(),
        total: ends.total(),
        remark: Some(format!("{} guided permutations; {why}", orders.count())),
        ..Estimate::default()
    })
}

/// The cache of the published code: evaluated values and assumed values alike.
struct PublishedCache {
    values: BTreeMap<Coalition, f64>,
    empty_value: f64,
    grand: Coalition,
    within: f64,
}

impl PublishedCache {
    fn new(ends: &EndpointValues, within: f64) -> Self {
        let grand = Coalition::full(ends.players);
        let values = BTreeMap::from([(grand.clone(), ends.grand_value)]);
        Self { values, empty_value: ends.empty_value, grand, within }
    }

    /// The marginal contributions along `order`, by player.
    fn marginals_along<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut EvaluationMeter<'_>,
        order: &[usize],
    ) -> Result<Vec<f64>, ValuationError> {
        let mut values = vec![0.0; order.len()];
        let mut reached = Coalition::empty(order.len());
        let mut before = self.empty_value;
        for &player in order {
            reached.insert(player);
            // Read v(N) each time, because truncation may have overwritten it.
            let whole = self.values.get(&self.grand).copied().unwrap_or(before);
            let after = if (whole - before).abs() < self.within {
                before
            } else {
                match self.values.get(&reached) {
                    Some(worth) => *worth,
                    None => meter.value(game, &reached)?,
                }
            };
            self.values.insert(reached.clone(), after);
            values[player] = after - before;
            before = after;
        }
        Ok(values)
    }
}

/// Whether each of the last running means is close to the last one, on average over the players.
fn has_converged(means: &VecDeque<Vec<f64>>) -> bool {
    let Some(last) = means.back() else { return false };
    let change = |mean: &Vec<f64>| {
        let relative = mean.iter().zip(last).map(|(a, b)| (a - b).abs() / (b.abs() + NEVER_ZERO));
        relative.sum::<f64>() / last.len() as f64
    };
    means.iter().all(|mean| change(mean) <= CHANGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stopping_rule_uses_the_mean_relative_change() {
        let settled =
            |earlier: [f64; 2]| has_converged(&VecDeque::from([earlier.to_vec(), vec![1.0, 2.0]]));
        assert!(settled([1.05, 2.1]));
        assert!(settled([1.0, 2.2]));
        assert!(!settled([1.0, 2.21]));
        assert!(!has_converged(&VecDeque::new()));
    }
}
