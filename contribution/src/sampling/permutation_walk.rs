//! Marginal contributions along permutations.

use super::endpoints::EndpointValues;
use crate::meter::EvaluationMeter;
use crate::{Coalition, Game, ValuationError};

/// The coalitions along `order`, between the empty and the grand coalition.
pub(super) fn prefixes(order: &[usize]) -> Vec<Coalition> {
    let mut prefix = Coalition::empty(order.len());
    let mut passed = Vec::with_capacity(order.len().saturating_sub(1));
    for &player in &order[..order.len().saturating_sub(1)] {
        prefix.insert(player);
        passed.push(prefix.clone());
    }
    passed
}

/// The marginal contributions, by position, from the values of the prefixes.
#[cfg(feature = "comparison")]
pub(super) fn marginals(worths: &[f64], ends: &EndpointValues) -> Vec<f64> {
    let before = std::iter::once(&ends.empty_value).chain(worths);
    let after = worths.iter().chain(std::iter::once(&ends.grand_value));
    before.zip(after).map(|(before, after)| after - before).collect()
}

/// Maps marginal contributions from positions to the players of `order`.
#[cfg(feature = "comparison")]
pub(super) fn by_player(order: &[usize], marginals: &[f64]) -> Vec<f64> {
    let mut values = vec![0.0; order.len()];
    order.iter().zip(marginals).for_each(|(&player, marginal)| values[player] = *marginal);
    values
}

/// One of several permutations that advance in parallel.
struct PermutationWalk<'a> {
    prefixes: &'a [Coalition],
    /// The values of the prefixes so far.
    values: Vec<f64>,
}

/// The marginal contributions, by position, of several permutations, each truncated as soon as it
/// is within `threshold` of the value of the grand coalition: the remaining players get zero.
///
/// The permutations advance in parallel, so that the prefixes of one size are evaluated together;
/// coalitions beyond a truncation are never evaluated.
pub(super) fn truncated<G: Game + ?Sized>(
    game: &mut G,
    meter: &mut EvaluationMeter<'_>,
    ends: &EndpointValues,
    walks: &[&[Coalition]],
    threshold: f64,
) -> Result<Vec<Vec<f64>>, ValuationError> {
    let goes_on = |last: f64| (ends.grand_value - last).abs() >= threshold;
    let mut walkers: Vec<PermutationWalk<'_>> =
        walks.iter().map(|prefixes| PermutationWalk { prefixes, values: Vec::new() }).collect();
    for step in 0..ends.players.saturating_sub(1) {
        let going = |walker: &PermutationWalk<'_>| {
            walker.values.len() == step
                && goes_on(walker.values.last().copied().unwrap_or(ends.empty_value))
        };
        let active: Vec<usize> = (0..walkers.len()).filter(|&at| going(&walkers[at])).collect();
        let asked: Vec<Coalition> =
            active.iter().map(|&at| walkers[at].prefixes[step].clone()).collect();
        let worths = meter.values(game, &asked)?;
        active.iter().zip(worths).for_each(|(&at, worth)| walkers[at].values.push(worth));
    }
    let finish = |walker: PermutationWalk<'_>| {
        let last = walker.values.last().copied().unwrap_or(ends.empty_value);
        let arrived = walker.values.len() + 1 == ends.players && goes_on(last);
        let end = if arrived { ends.grand_value } else { last };
        let after = walker.values.iter().copied().chain(std::iter::repeat(end));
        let mut before = ends.empty_value;
        let mut marginals = Vec::with_capacity(ends.players);
        for after in after.take(ends.players) {
            marginals.push(after - before);
            before = after;
        }
        marginals
    };
    Ok(walkers.into_iter().map(finish).collect())
}
