//! Players who join one after another.

use super::ends::Ends;
use crate::meter::Meter;
use crate::{Coalition, Game, ValuationError};

/// The coalitions that a walk along `order` passes between nobody and everybody.
pub(super) fn prefixes(order: &[usize]) -> Vec<Coalition> {
    let mut prefix = Coalition::empty(order.len());
    let mut passed = Vec::with_capacity(order.len().saturating_sub(1));
    for &player in &order[..order.len().saturating_sub(1)] {
        prefix.insert(player);
        passed.push(prefix.clone());
    }
    passed
}

/// What everybody adds on joining, by position, from the worths of the prefixes.
pub(super) fn marginals(worths: &[f64], ends: &Ends) -> Vec<f64> {
    let before = std::iter::once(&ends.nobody).chain(worths);
    let after = worths.iter().chain(std::iter::once(&ends.everybody));
    before.zip(after).map(|(before, after)| after - before).collect()
}

/// Marginals by position, handed to the players of `order`.
pub(super) fn by_player(order: &[usize], marginals: &[f64]) -> Vec<f64> {
    let mut values = vec![0.0; order.len()];
    order.iter().zip(marginals).for_each(|(&player, marginal)| values[player] = *marginal);
    values
}

/// One walk among several that go on side by side.
struct Walker<'a> {
    prefixes: &'a [Coalition],
    /// The worths of the prefixes so far.
    worths: Vec<f64>,
}

/// The marginals by position of several walks, each cut off as soon as it is within `threshold` of
/// what everybody is worth: from there on nobody adds anything.
///
/// The walks go side by side, so that the prefixes of one size are asked for together; what lies
/// beyond a cut is never asked for.
pub(super) fn truncated<G: Game + ?Sized>(
    game: &mut G,
    meter: &mut Meter<'_>,
    ends: &Ends,
    walks: &[&[Coalition]],
    threshold: f64,
) -> Result<Vec<Vec<f64>>, ValuationError> {
    let goes_on = |last: f64| (ends.everybody - last).abs() >= threshold;
    let mut walkers: Vec<Walker<'_>> =
        walks.iter().map(|prefixes| Walker { prefixes, worths: Vec::new() }).collect();
    for step in 0..ends.players.saturating_sub(1) {
        let going = |walker: &Walker<'_>| {
            walker.worths.len() == step
                && goes_on(walker.worths.last().copied().unwrap_or(ends.nobody))
        };
        let active: Vec<usize> = (0..walkers.len()).filter(|&at| going(&walkers[at])).collect();
        let asked: Vec<Coalition> =
            active.iter().map(|&at| walkers[at].prefixes[step].clone()).collect();
        let worths = meter.values(game, &asked)?;
        active.iter().zip(worths).for_each(|(&at, worth)| walkers[at].worths.push(worth));
    }
    let finish = |walker: Walker<'_>| {
        let last = walker.worths.last().copied().unwrap_or(ends.nobody);
        let arrived = walker.worths.len() + 1 == ends.players && goes_on(last);
        let end = if arrived { ends.everybody } else { last };
        let after = walker.worths.iter().copied().chain(std::iter::repeat(end));
        let mut before = ends.nobody;
        let mut marginals = Vec::with_capacity(ends.players);
        for after in after.take(ends.players) {
            marginals.push(after - before);
            before = after;
        }
        marginals
    };
    Ok(walkers.into_iter().map(finish).collect())
}
