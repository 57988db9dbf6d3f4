//! The short audit: a few figures of a round, chosen by the auditor, instead of all of them.
//!
//! What costs next to nothing is held to in full: the bytes, the aggregate, the check's scores (which follow from its
//! table) and everything about money. Of what costs passes over the rows, so many coalitions of the table and so many
//! scores are recomputed, drawn by a seed that the auditor alone knows. Whoever forged a share `f` of such figures escapes
//! `q` draws with a probability of at most `(1 − f)^q`.

use std::collections::BTreeSet;

use florin_contribution::{
    AffineGame, AffineSource, Coalition, Draw, FixedWeights, Game, RoundError,
    is_negative_beyond_error, to_nano, value_members,
};
use florin_learning::Engine;
use florin_protocol::{Estimator, RoundOutcome, Valuation, blob_digest};

use crate::audit::{AuditInputs, Difference, inputs_differ, money, stated_result};
use crate::opinion::follows;
use crate::round::{Opened, TOLERANCE_NANO, WorkError, combine};

/// How much of a round a short audit looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Coalitions to recompute, and as many scores; all of them where there are fewer.
    pub draws: u32,
    /// What they are drawn by; nobody else should know it before the report was signed.
    pub seed: u64,
}

/// What a short audit of a round looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spotted {
    /// Lines that disagree.
    pub differences: Vec<Difference>,
    /// Coalitions recomputed, and how many the table has.
    pub worths: (usize, usize),
    /// Scores recomputed with their errors, and how many there are.
    pub scores: (usize, usize),
    /// How far the scores of gradients and those of coalitions are apart: the length of their difference, as a share of
    /// the scores' own. `None` without a check.
    pub apart: Option<f64>,
}

/// With which probability, at most, somebody who forged so large a share of the figures escapes so many draws.
#[must_use]
pub fn escape_probability(forged: f64, draws: usize) -> f64 {
    (0..draws).map(|_| 1.0 - forged).product()
}

/// Looks at a part of a round. An honest report gives no differences.
///
/// # Errors
/// [`WorkError`] where the inputs cannot be worked with at all.
pub fn spot_check_round(
    inputs: &AuditInputs<'_>,
    spot: Spot,
    engine: &mut dyn Engine,
) -> Result<Spotted, WorkError> {
    let mut spotted = Spotted { differences: inputs_differ(inputs), ..Spotted::default() };
    if !spotted.differences.is_empty() {
        return Ok(spotted);
    }
    let stated = stated_result(inputs.report);
    if let (RoundOutcome::Settled, Some(result)) = (&inputs.report.outcome, &stated) {
        spotted.shape(&result.valuation, inputs);
        if !spotted.differences.is_empty() {
            return Ok(spotted);
        }
        let opened = Opened::read(&inputs.round)?;
        for (i, score) in result.valuation.scores.iter().enumerate() {
            let ours = opened.held.treatment(i);
            if score.treatment != ours {
                let line = format!("valuation.scores[{i}].treatment");
                spotted.differ(&line, &format!("{:?}", score.treatment), &format!("{ours:?}"));
            }
        }
        let (bytes, _) = combine(&inputs.round, &opened, &result.valuation)?;
        if blob_digest(&bytes) != result.model {
            spotted.differ("model", &result.model, &blob_digest(&bytes));
        }
        if let Err(differs) = follows(&result.valuation) {
            spotted.differ(&differs.line, &differs.theirs, &differs.ours);
        }
        spotted.apart = apart(&result.valuation);
        look(inputs, &opened, &result.valuation, spot, engine, &mut spotted)?;
    }
    money(inputs, stated.as_ref(), &mut spotted.differences);
    Ok(spotted)
}

impl Spotted {
    /// Whether there is one of everything for each entry, and who was excluded is negative beyond its stated error.
    fn shape(&mut self, stated: &Valuation, inputs: &AuditInputs<'_>) {
        let entries = inputs.round.entries.len();
        let lengths = [stated.scores.len(), stated.evidence.slopes_nano.len()];
        if lengths != [entries; 2] {
            self.differ("valuation", &format!("{lengths:?} scores and slopes"), &entries);
            return;
        }
        for (i, score) in stated.scores.iter().enumerate() {
            let z = inputs.round.spec.budget.withheld.0;
            let harmful = is_negative_beyond_error(score.score_nano, score.error_nano, z);
            if score.excluded && !harmful {
                self.differ(&format!("valuation.scores[{i}].excluded"), &true, &false);
            }
        }
    }

    fn differ(&mut self, line: &str, reported: &dyn ToString, recomputed: &dyn ToString) {
        let (reported, recomputed) = (reported.to_string(), recomputed.to_string());
        self.differences.push(Difference { line: line.to_owned(), reported, recomputed });
    }
}

/// Recomputes the drawn coalitions and the drawn scores.
fn look(
    inputs: &AuditInputs<'_>,
    opened: &Opened,
    stated: &Valuation,
    spot: Spot,
    engine: &mut dyn Engine,
    spotted: &mut Spotted,
) -> Result<(), WorkError> {
    let rows = &opened.held.rows;
    let players = rows.len();
    let remaining: Vec<usize> = (0..players).filter(|&i| !stated.scores[i].excluded).collect();
    let slices = opened.slices();

    let Estimator::Path { nodes, .. } = inputs.round.spec.estimator;
    let drawn = choose(&mut Draw::new(spot.seed, 0), players, spot.draws);
    spotted.scores = (drawn.len(), players);
    let everybody: Vec<usize> = (0..players).collect();
    for &player in &drawn {
        let members = if stated.scores[player].excluded { &everybody } else { &remaining };
        let mut source = opened.source(&slices, engine).only(player);
        score(&mut source, rows, members, nodes, player, stated, spotted)?;
    }

    let Some(check) = &stated.evidence.check else { return Ok(()) };
    let mut source = opened.source(&slices, engine);
    let weights = FixedWeights::over(rows, &remaining).map_err(RoundError::from)?;
    let mut game = AffineGame::new(&mut source, weights).map_err(RoundError::from)?;
    let drawn = choose(&mut Draw::new(spot.seed, 1), check.table.len(), spot.draws);
    spotted.worths = (drawn.len(), check.table.len());
    for at in drawn {
        let worth = &check.table[at];
        let mut coalition = Coalition::empty(remaining.len());
        for entry in &worth.entries {
            let place = remaining.binary_search(&usize::from(*entry));
            coalition.insert(place.expect("`follows` has held the table to the members"));
        }
        let ours = to_nano(game.value(&coalition).map_err(RoundError::from)?)?;
        if ours.abs_diff(worth.worth_nano) > TOLERANCE_NANO {
            let line = format!("valuation.evidence.check.table[{at}].worth_nano");
            spotted.differ(&line, &worth.worth_nano, &ours);
        }
    }
    Ok(())
}

/// Recomputes one player's slopes, score and error.
fn score<S: AffineSource>(
    source: &mut S,
    rows: &[u64],
    members: &[usize],
    nodes: u8,
    player: usize,
    stated: &Valuation,
    spotted: &mut Spotted,
) -> Result<(), WorkError> {
    let scores = value_members(source, rows, members, nodes.into())?;
    let Some(ours) = scores.iter().find(|score| score.player == player) else { return Ok(()) };
    let theirs = &stated.scores[player];
    let slopes = &stated.evidence.slopes_nano[player];
    let line = |field: &str| format!("valuation.scores[{player}].{field}");
    if ours.score_nano.abs_diff(theirs.score_nano) > TOLERANCE_NANO {
        spotted.differ(&line("score_nano"), &theirs.score_nano, &ours.score_nano);
    }
    if ours.error_nano.abs_diff(theirs.error_nano) > TOLERANCE_NANO {
        spotted.differ(&line("error_nano"), &theirs.error_nano, &ours.error_nano);
    }
    let far = |(a, b): (&i64, &i64)| a.abs_diff(*b) > TOLERANCE_NANO;
    if ours.slopes_nano.len() != slopes.len() || ours.slopes_nano.iter().zip(slopes).any(far) {
        let line = format!("valuation.evidence.slopes_nano[{player}]");
        spotted.differ(&line, &format!("{slopes:?}"), &format!("{:?}", ours.slopes_nano));
    }
    Ok(())
}

/// `draws` different numbers below `of`, ascending; all of them where there are not more.
fn choose(draw: &mut Draw, of: usize, draws: u32) -> Vec<usize> {
    let wanted = usize::try_from(draws).unwrap_or(usize::MAX).min(of);
    let chosen: BTreeSet<usize> = draw.permutation(of).into_iter().take(wanted).collect();
    chosen.into_iter().collect()
}

/// ‖scores − check's scores‖ / ‖scores‖ over the updates that were not excluded.
fn apart(stated: &Valuation) -> Option<f64> {
    let check = stated.evidence.check.as_ref()?;
    let kept = stated.scores.iter().filter(|score| !score.excluded);
    let mut squares = (0.0, 0.0);
    for (score, second) in kept.zip(&check.scores_nano) {
        let (score, second) = (score.score_nano as f64, *second as f64);
        squares.0 += (score - second) * (score - second);
        squares.1 += score * score;
    }
    (squares.1 > 0.0).then(|| (squares.0 / squares.1).sqrt())
}
