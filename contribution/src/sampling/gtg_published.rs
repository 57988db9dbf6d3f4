//! GTG-Shapley as published by its authors, including its defects, for comparison only.

use std::collections::{BTreeMap, VecDeque};

use super::batch::Batch;
use super::ends::Ends;
use super::gtg::Guide;
use super::tally::Tally;
use super::walk;
use crate::meter::Meter;
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
pub(super) fn carry_out<G: Game + ?Sized>(
    game: &mut G,
    meter: &mut Meter<'_>,
    ends: &Ends,
    within: f64,
) -> Result<Estimate, ValuationError> {
    let mut guide = Guide::new(meter.seed());
    let mut supposed = Supposed::new(ends, within);
    let (mut orders, mut cycles) = (Tally::new(ends.players), Tally::new(ends.players));
    let mut means: VecDeque<Vec<f64>> = VecDeque::with_capacity(MEANS);
    let why = loop {
        if orders.count() > ORDERS_MIN && has_settled(&means) {
            break "the last 10 running means are within 5 % of the last one";
        }
        if cycles.count() >= CYCLES_MIN
            && cycles.standard_errors().is_some_and(|e| meter.is_content(&orders.means(), &e))
        {
            break "the error is within the tolerance";
        }
        if orders.count() >= ORDERS_MAX {
            break "the limit of permutations is reached";
        }
        if cycles.count() > 0 && !meter.affords(0) {
            break "the time limit is reached";
        }
        let cycle = guide.cycle(ends.players);
        let passed: Vec<Coalition> = cycle.iter().flat_map(|order| walk::prefixes(order)).collect();
        if !Batch::default().take(meter, &passed) {
            break "the remaining budget is too small for another cycle";
        }
        let mut sums = vec![0.0; ends.players];
        for order in &cycle {
            let values = supposed.follow(game, meter, order)?;
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
struct Supposed {
    worths: BTreeMap<Coalition, f64>,
    nobody: f64,
    everybody: Coalition,
    within: f64,
}

impl Supposed {
    fn new(ends: &Ends, within: f64) -> Self {
        let everybody = Coalition::full(ends.players);
        let worths = BTreeMap::from([(everybody.clone(), ends.everybody)]);
        Self { worths, nobody: ends.nobody, everybody, within }
    }

    /// The marginal contributions along `order`, by player.
    fn follow<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        meter: &mut Meter<'_>,
        order: &[usize],
    ) -> Result<Vec<f64>, ValuationError> {
        let mut values = vec![0.0; order.len()];
        let mut reached = Coalition::empty(order.len());
        let mut before = self.nobody;
        for &player in order {
            reached.insert(player);
            // // Read v(N) each time, because truncation may have overwritten it.
            let whole = self.worths.get(&self.everybody).copied().unwrap_or(before);
            let after = if (whole - before).abs() < self.within {
                before
            } else {
                match self.worths.get(&reached) {
                    Some(worth) => *worth,
                    None => meter.value(game, &reached)?,
                }
            };
            self.worths.insert(reached.clone(), after);
            values[player] = after - before;
            before = after;
        }
        Ok(values)
    }
}

/// Whether each of the last running means is close to the last one, on average over the players.
fn has_settled(means: &VecDeque<Vec<f64>>) -> bool {
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
            |earlier: [f64; 2]| has_settled(&VecDeque::from([earlier.to_vec(), vec![1.0, 2.0]]));
        assert!(settled([1.05, 2.1]));
        assert!(settled([1.0, 2.2]));
        assert!(!settled([1.0, 2.21]));
        assert!(!has_settled(&VecDeque::new()));
    }
}
