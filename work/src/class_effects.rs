//! The classes of the round's validation rows that each update alone improves.

use florin_contribution::to_nano;
use florin_learning::mean;
use florin_learning::params::norm;
use florin_protocol::limits::{CROSS_CHECK_COHORT_MAX, EFFECT_CLASSES_MAX};
use florin_protocol::{ClassEffects, TaskSpec, Valuation};

use crate::evaluations::{RoundEvaluations, wide};
use crate::preprocess::{median_norm, norms};
use crate::round::{DecodedRound, ResultMismatch, TOLERANCE_NANO, WorkError};

/// Largest difference of a share between two honest machines: a nano-nat can move it over a border.
const TOLERANCE_PARTS: u8 = 1;

/// Whether the round has class effects. They take a pass over the rows for each update, so that a
/// large cohort has none, nor a trainer, which is started for each pass.
fn has_class_effects(spec: &TaskSpec, opened: &DecodedRound) -> bool {
    spec.rounds.selection.knob.reads_classes()
        && (2..=EFFECT_CLASSES_MAX).contains(&opened.holdout.classes())
        && opened.holdout.labels().len() == opened.holdout.rows()
        && opened.updates.rows.len() <= CROSS_CHECK_COHORT_MAX
        && !opened.model.is_trainer()
}

/// The class effects of a round; `None` if it has none.
pub(crate) fn class_effects(
    spec: &TaskSpec,
    opened: &DecodedRound,
    evaluations: &mut dyn RoundEvaluations,
) -> Result<Option<ClassEffects>, WorkError> {
    if !has_class_effects(spec, opened) {
        return Ok(None);
    }
    let before = BaseModel::evaluate(opened, evaluations)?;
    let losses_nano = class_losses(opened, &before.losses)?;
    let mut shares = Vec::with_capacity(opened.updates.rows.len());
    for player in 0..opened.updates.rows.len() {
        shares.push(class_shares(opened, &before, player, evaluations)?);
    }
    Ok(Some(ClassEffects { losses_nano, shares }))
}

/// The model that the updates move.
struct BaseModel {
    params: Vec<f64>,
    /// The loss of each row.
    losses: Vec<f64>,
    /// The norm with which every update is evaluated: the lower weighted median of all. A small step
    /// of any direction improves more classes than a large one, and would be asked for more often.
    update_norm: f64,
}

impl BaseModel {
    fn evaluate(
        opened: &DecodedRound,
        evaluations: &mut dyn RoundEvaluations,
    ) -> Result<Self, WorkError> {
        let params = wide(&opened.base);
        let losses = evaluations.row_losses(&params)?;
        let norms = norms(&opened.slices(), &opened.updates.rows);
        let update_norm = median_norm(&norms).unwrap_or_default();
        Ok(Self { params, losses, update_norm })
    }
}

/// The mean loss of each class from the loss of each row.
fn class_losses(opened: &DecodedRound, losses: &[f64]) -> Result<Vec<Option<u64>>, WorkError> {
    let nano = |losses: Vec<f64>| -> Result<Option<u64>, WorkError> {
        if losses.is_empty() {
            return Ok(None);
        }
        Ok(Some(u64::try_from(to_nano(mean(&losses))?).unwrap_or_default()))
    };
    by_class(opened, losses).into_iter().map(nano).collect()
}

/// The shares of one update, whose model is evaluated alone.
fn class_shares(
    opened: &DecodedRound,
    before: &BaseModel,
    player: usize,
    evaluations: &mut dyn RoundEvaluations,
) -> Result<Vec<u8>, WorkError> {
    if opened.updates.rows.get(player).is_none_or(|weight| *weight == 0) {
        return Ok(Vec::new());
    }
    let slices = opened.slices();
    let delta = slices.get(player).copied().unwrap_or_default();
    // Norm scaling can leave nothing of an absurdly large update.
    let length = norm(delta);
    let factor = if length > 0.0 { before.update_norm / length } else { 0.0 };
    let numbers = before.params.iter().zip(delta);
    let moved: Vec<f64> = numbers.map(|(base, delta)| base + factor * f64::from(*delta)).collect();
    let after = evaluations.row_losses(&moved)?;
    let lowered: Vec<f64> =
        before.losses.iter().zip(&after).map(|(before, after)| before - after).collect();
    // A class without rows has no mean, and one that the update alone makes infinite is not improved:
    // no single update can make the round's valuation fail here.
    let nano = |lowered: Vec<f64>| to_nano(mean(&lowered)).unwrap_or_default();
    let lowered: Vec<i64> = by_class(opened, &lowered).into_iter().map(nano).collect();
    Ok(ClassEffects::shares_of(&lowered))
}

/// The values of the rows of each class.
fn by_class(opened: &DecodedRound, values: &[f64]) -> Vec<Vec<f64>> {
    let mut classes = vec![Vec::new(); opened.holdout.classes()];
    for (label, value) in opened.holdout.labels().iter().zip(values) {
        let class = usize::try_from(*label).ok().and_then(|label| classes.get_mut(label));
        if let Some(class) = class {
            class.push(*value);
        }
    }
    classes
}

/// Passes over the rows that the class effects take: one for the base model, and one for each update
/// with a weight; 0 without them.
pub(crate) fn class_passes(spec: &TaskSpec, opened: &DecodedRound) -> u64 {
    if !has_class_effects(spec, opened) {
        return 0;
    }
    1 + opened.updates.rows.iter().filter(|weight| **weight > 0).count() as u64
}

/// Compares the class effects of two valuations: losses within [`TOLERANCE_NANO`], shares within one
/// part.
pub(crate) fn compare_class_effects(
    ours: &Valuation,
    theirs: &Valuation,
) -> Result<(), ResultMismatch> {
    let (ours, theirs) = (&ours.evidence.class_effects, &theirs.evidence.class_effects);
    let (Some(a), Some(b)) = (ours, theirs) else {
        if ours.is_some() == theirs.is_some() {
            return Ok(());
        }
        let text = |effects: &Option<ClassEffects>| match effects {
            Some(_) => "present".to_owned(),
            None => "absent".to_owned(),
        };
        return Err(mismatch("", text(ours), text(theirs)));
    };
    if let Some(found) = loss_mismatch(&a.losses_nano, &b.losses_nano) {
        return Err(found);
    }
    if a.shares.len() != b.shares.len() {
        return Err(mismatch(".shares", a.shares.len().to_string(), b.shares.len().to_string()));
    }
    let mut shares = a.shares.iter().zip(&b.shares).enumerate();
    match shares.find_map(|(player, (a, b))| share_mismatch(player, a, b)) {
        Some(found) => Err(found),
        None => Ok(()),
    }
}

/// Checks the stated class effects: the losses in full, the shares of these updates.
pub(crate) fn check_class_effects(
    spec: &TaskSpec,
    opened: &DecodedRound,
    stated: &Valuation,
    players: &[usize],
    evaluations: &mut dyn RoundEvaluations,
) -> Result<Vec<ResultMismatch>, WorkError> {
    let (mut found, all) = (Vec::new(), opened.updates.rows.len());
    let stated = stated.evidence.class_effects.as_ref();
    if !has_class_effects(spec, opened) {
        let given = stated.map(|_| mismatch("", "absent".to_owned(), "present".to_owned()));
        return Ok(given.into_iter().collect());
    }
    let Some(stated) = stated.filter(|stated| stated.shares.len() == all) else {
        let given = stated.map_or_else(|| "absent".to_owned(), |it| it.shares.len().to_string());
        return Ok(vec![mismatch("", format!("shares of {all} updates"), given)]);
    };
    let before = BaseModel::evaluate(opened, evaluations)?;
    let losses = class_losses(opened, &before.losses)?;
    found.extend(loss_mismatch(&losses, &stated.losses_nano));
    for &player in players {
        let ours = class_shares(opened, &before, player, evaluations)?;
        let theirs = stated.shares.get(player).map(Vec::as_slice).unwrap_or_default();
        found.extend(share_mismatch(player, &ours, theirs));
    }
    Ok(found)
}

fn mismatch(line: &str, recomputed: String, stated: String) -> ResultMismatch {
    let line = format!("valuation.evidence.class_effects{line}");
    ResultMismatch { line, recomputed, stated }
}

fn loss_mismatch(ours: &[Option<u64>], theirs: &[Option<u64>]) -> Option<ResultMismatch> {
    let is_near = |(a, b): (&Option<u64>, &Option<u64>)| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(*b) <= TOLERANCE_NANO,
        (a, b) => a == b,
    };
    let are_near = ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_near);
    (!are_near).then(|| mismatch(".losses_nano", format!("{ours:?}"), format!("{theirs:?}")))
}

fn share_mismatch(player: usize, ours: &[u8], theirs: &[u8]) -> Option<ResultMismatch> {
    let is_near = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= TOLERANCE_PARTS;
    let are_near = ours.len() == theirs.len() && ours.iter().zip(theirs).all(is_near);
    let line = format!(".shares[{player}]");
    (!are_near).then(|| mismatch(&line, format!("{ours:?}"), format!("{theirs:?}")))
}

#[cfg(test)]
#[path = "class_effects_tests.rs"]
mod tests;
