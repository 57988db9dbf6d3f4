//! A cohort whose data complement each other: its members together improve each class in proportion
//! to the model's loss on it.

use super::SelectionKnob;
use super::history::ClassHistory;
use crate::id::Address;

/// Participants that take part in the choice, for each place.
pub(super) const POOL_FACTOR: usize = 5;

/// Chooses up to `places` of the participants, in the order of their finish.
///
/// Each place goes to the one with which the shares of all that have a place are nearest to the
/// wanted ones, by the sum of squares over the classes, and to the earliest of several. Fed-CBS
/// (Zhang et al., ICML 2023) reduces the same measure, towards equal classes and with the members'
/// own label counts. Here a class is wanted in proportion to the model's loss on it, for
/// `fair_accuracy` to the square of the loss, and shares are those of [`ClassHistory`].
pub(super) fn complementary(
    knob: SelectionKnob,
    classes: &ClassHistory,
    finishers: &[Address],
    places: usize,
) -> Vec<Address> {
    let weights = class_weights(knob, classes);
    let mut have = vec![0_u64; weights.len()];
    let mut left: Vec<(Address, &[u16])> = finishers
        .iter()
        .filter_map(|account| Some((*account, classes.shares(*account)?)))
        .collect();
    let mut chosen = Vec::new();
    for place in (1_u64..).take(places) {
        let wanted = wanted(&weights, place);
        let distances = left.iter().map(|(_, shares)| distance(&wanted, &have, shares));
        let nearest = distances.zip(0_usize..).min();
        let Some((_, at)) = nearest else { break };
        let (account, shares) = left.remove(at);
        for (have, share) in have.iter_mut().zip(shares) {
            *have = have.saturating_add((*share).into());
        }
        chosen.push(account);
    }
    chosen
}

/// The weight of each class, in parts of [`WEIGHT_PARTS`] of all.
fn class_weights(knob: SelectionKnob, classes: &ClassHistory) -> Vec<u64> {
    let power = |loss: &u64| {
        let loss = u128::from(*loss);
        if knob == SelectionKnob::FairAccuracy { loss.saturating_mul(loss) } else { loss }
    };
    let powers: Vec<u128> = classes.losses().iter().map(power).collect();
    let sum = powers.iter().fold(0_u128, |sum, power| sum.saturating_add(*power));
    let part = |power: &u128| power.saturating_mul(WEIGHT_PARTS.into()).checked_div(sum);
    let weight = |power| u64::try_from(part(power).unwrap_or_default()).unwrap_or(WEIGHT_PARTS);
    powers.iter().map(weight).collect()
}

/// The parts of the weights of all classes.
const WEIGHT_PARTS: u64 = 1_000_000;

/// The shares of each class that this number of members should have together.
fn wanted(weights: &[u64], members: u64) -> Vec<u64> {
    let whole = u64::from(ClassHistory::WHOLE).saturating_mul(members);
    let part = |weight: &u64| weight.saturating_mul(whole).checked_div(WEIGHT_PARTS);
    weights.iter().map(|weight| part(weight).unwrap_or_default()).collect()
}

/// The squared distance from the wanted shares of those that there are and `more`.
fn distance(wanted: &[u64], have: &[u64], more: &[u16]) -> u128 {
    let parts = wanted.iter().zip(have).zip(more).map(|((wanted, have), more)| {
        let away = u128::from(wanted.abs_diff(have.saturating_add((*more).into())));
        away.saturating_mul(away)
    });
    parts.fold(0, u128::saturating_add)
}

#[cfg(test)]
#[path = "complement_tests.rs"]
mod tests;
