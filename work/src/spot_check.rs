//! Spot check: a sampled audit. The auditor recomputes a random sample of a round's figures instead
//! of all of them.
//!
//! Everything that takes at most a few passes over the rows is checked in full: the bytes, the
//! preprocessing of each update, the new model and its metrics, the losses before and after the
//! round, the improvement, the units of work, the coalitions of the cross-check and the scores
//! derived from its table, and all amounts. An abandoned round is audited in full, and so is a round
//! that needed more than the task's own estimator, or whose task has coalitions alone. An excluded
//! update must be significantly harmful by its stated score and standard error; if no update is
//! excluded, no update may be.
//!
//! Of the figures that take a pass each, a number of coalition values and of scores is recomputed.
//! They are drawn by a seed that only the auditor knows. A drawn score is recomputed with its
//! standard error and derivatives. If other updates were excluded, the check also recomputes
//! whether the drawn update should have been. If a fraction `f` of such figures is forged, `q`
//! different draws all miss with a probability of at most `(1 − f)^q`; with few figures, less.

use std::collections::BTreeSet;

use florin_contribution::{
    AffineGame, ClosureSource, Coalition, FixedWeights, Game, GameError, RoundError, RoundScore,
    SeededRng, StageEstimator, is_negative_beyond_error, to_nano, value_members,
};
use florin_learning::{Engine, mean};
use florin_protocol::{
    CrossCheck, Estimator, Mismatch, ModelMetrics, PublicBaseline, ScoreEstimator, Valuation,
    WorkResult, blob_digest,
};

use crate::audit::{AuditInputs, audit_round, check_inputs, check_pay, stated_result};
use crate::class_effects::{check_class_effects, class_passes};
use crate::cross_check::{compare_cross_checks, cross_check, cross_check_seed};
use crate::round::{DecodedRound, ResultMismatch, TOLERANCE_NANO, WorkError};
use crate::round_model::AggregatedModel;

/// Passes of a stage of the valuation besides one per quadrature node: the empty coalition, the
/// grand coalition, and the gradient for the null variance. A second stage reuses the first one's
/// empty coalition.
const STAGE_PASSES: u64 = 3;

/// Sample size and seed of a spot check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpotCheckOptions {
    /// Number of coalition values to recompute, and of scores; all of them if there are fewer.
    pub draws: u32,
    /// Seed of the sample; secret until the report is signed.
    pub seed: u64,
}

/// Result of a spot check.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpotCheckResult {
    /// Lines that differ.
    pub mismatches: Vec<Mismatch>,
    /// Recomputed coalition values, and size of the table.
    pub coalition_values: (usize, usize),
    /// Recomputed scores, and number of scores.
    pub scores: (usize, usize),
    /// Relative distance between the gradient scores and the cross-check's scores: the norm of
    /// their difference divided by the norm of the gradient scores. `None` without a cross-check.
    pub cross_check_distance: Option<f64>,
}

/// The probability that `draws` random checks of different figures, of `all`, miss every forged one
/// if a fraction `forged` of them is forged, and at least one: sampling without replacement.
#[must_use]
pub fn escape_probability(forged: f64, draws: usize, all: usize) -> f64 {
    let count = all as f64;
    let genuine = count - if forged > 0.0 { (forged * count).ceil().max(1.0) } else { 0.0 };
    let is_genuine = |drawn: usize| (genuine - drawn as f64).max(0.0) / (count - drawn as f64);
    (0..draws.min(all)).map(is_genuine).product()
}

/// Audits a sample of a round's figures. An honest report has no differences.
///
/// # Errors
/// [`WorkError`] if the inputs cannot be processed.
pub fn spot_check_round(
    inputs: &AuditInputs<'_>,
    spot: SpotCheckOptions,
    engine: &mut dyn Engine,
) -> Result<SpotCheckResult, WorkError> {
    let mut spotted =
        SpotCheckResult { mismatches: check_inputs(inputs), ..SpotCheckResult::default() };
    if !spotted.mismatches.is_empty() {
        return Ok(spotted);
    }
    let stated = stated_result(inputs.report);
    let sampled = inputs.report.outcome.is_valued();
    let Some(result) = stated.as_ref().filter(|result| sampled && is_first_try(inputs, result))
    else {
        // There are no figures to sample, or the choice of an estimator follows from all of them.
        spotted.mismatches = audit_round(inputs, engine)?;
        return Ok(spotted);
    };
    spotted.check_shape(&result.valuation, inputs);
    if !spotted.mismatches.is_empty() {
        return Ok(spotted);
    }
    let opened = DecodedRound::decode(&inputs.round)?;
    if opened.updates.rows.iter().all(|weight| *weight == 0) {
        // The valuation of a round without weights takes one pass.
        spotted.mismatches = audit_round(inputs, engine)?;
        return Ok(spotted);
    }
    spotted.cross_check_distance = cross_check_distance(&result.valuation);
    SpotChecker::new(inputs, &opened, &result.valuation).check_all(
        result,
        spot,
        engine,
        &mut spotted,
    )?;
    check_pay(inputs, stated.as_ref(), &mut spotted.mismatches);
    Ok(spotted)
}

/// Whether the task's own estimator resolved every stage.
fn is_first_try(inputs: &AuditInputs<'_>, result: &WorkResult) -> bool {
    let Estimator::Path { nodes, .. } = inputs.round.spec.estimator else { return false };
    let first = ScoreEstimator::Path(nodes);
    result.valuation.stages.iter().all(|stage| stage.estimator == first && stage.is_resolved())
}

impl SpotCheckResult {
    /// Checks that every entry has a score and derivatives, and that the stated exclusions match
    /// the stated scores: an excluded update is significantly harmful; without exclusions, no
    /// update is. (After an exclusion the other updates are valued again and may then be
    /// significantly harmful.)
    fn check_shape(&mut self, stated: &Valuation, inputs: &AuditInputs<'_>) {
        let entries = inputs.round.entries;
        let lengths = [stated.scores.len(), stated.evidence.derivatives_nano.len()];
        if lengths != [entries.len(); 2] {
            self.push_mismatch(
                "valuation",
                &format!("{lengths:?} scores and derivatives"),
                &entries.len(),
            );
            return;
        }
        let any_excluded = stated.scores.iter().any(|score| score.excluded);
        let z = inputs.round.spec.budget.confidence_z.0;
        for (i, (score, entry)) in stated.scores.iter().zip(entries).enumerate() {
            let line = |field: &str| format!("valuation.scores[{i}].{field}");
            if score.account != entry.sender {
                self.push_mismatch(&line("account"), &score.account, &entry.sender);
            }
            let harmful = is_negative_beyond_error(score.score_nano, score.error_nano, z);
            let wrong = if any_excluded { score.excluded && !harmful } else { harmful };
            if wrong {
                self.push_mismatch(&line("excluded"), &score.excluded, &harmful);
            }
        }
    }

    fn push_mismatch(&mut self, line: &str, reported: &dyn ToString, recomputed: &dyn ToString) {
        let (reported, recomputed) = (reported.to_string(), recomputed.to_string());
        self.mismatches.push(Mismatch { line: line.to_owned(), reported, recomputed });
    }
}

/// A settled round: its stated result and its inputs.
struct SpotChecker<'a> {
    inputs: &'a AuditInputs<'a>,
    opened: &'a DecodedRound,
    stated: &'a Valuation,
    all_players: Vec<usize>,
    /// Entries that are not stated as excluded.
    remaining: Vec<usize>,
    /// Whether one of them has counted rows. If so, they were valued and aggregated.
    any_counted_rows: bool,
}

impl<'a> SpotChecker<'a> {
    fn new(inputs: &'a AuditInputs<'a>, opened: &'a DecodedRound, stated: &'a Valuation) -> Self {
        let rows = &opened.updates.rows;
        let all_players: Vec<usize> = (0..rows.len()).collect();
        let stays = |player: &usize| !stated.scores[*player].excluded;
        let remaining: Vec<usize> = all_players.iter().copied().filter(stays).collect();
        let any_counted_rows = remaining.iter().any(|&player| rows[player] > 0);
        Self { inputs, opened, stated, all_players, remaining, any_counted_rows }
    }

    /// Checks everything except the amounts.
    fn check_all(
        &self,
        result: &WorkResult,
        spot: SpotCheckOptions,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<(), WorkError> {
        self.check_preprocessing(spotted);
        let due = self.required_cross_check()?;
        let passes = due.as_ref().map_or(0, |(_, passes)| *passes);
        let due = due.map(|(check, _)| check);
        self.check_cross_check(due.as_ref(), spotted);
        self.check_scores(spot, engine, spotted)?;
        if let Some(due) = &due {
            self.check_coalition_values(due, spot, engine, spotted)?;
        }
        self.check_losses(engine, spotted)?;
        self.check_model(result, engine, spotted)?;
        let class_units = self.check_class_effects(spot, engine, spotted)?;
        let units = self.valuation_passes() + passes + class_units;
        if self.stated.units != units {
            spotted.push_mismatch("valuation.units", &self.stated.units, &units);
        }
        Ok(())
    }

    /// The task's nodes: only rounds of the path integral are sampled.
    fn nodes(&self) -> u8 {
        match self.inputs.round.spec.estimator {
            Estimator::Path { nodes, .. } => nodes,
            Estimator::Coalitions => 0,
        }
    }

    fn none_excluded(&self) -> bool {
        self.remaining.len() == self.all_players.len()
    }

    /// The members over whom the updates that are not excluded were valued.
    fn valued_members(&self) -> &[usize] {
        if self.any_counted_rows { &self.remaining } else { &self.all_players }
    }

    /// Passes of the valuation without the cross-check.
    fn valuation_passes(&self) -> u64 {
        let first = u64::from(self.nodes()) + STAGE_PASSES;
        if self.none_excluded() || !self.any_counted_rows { first } else { first + first - 1 }
    }

    fn check_preprocessing(&self, spotted: &mut SpotCheckResult) {
        for (i, score) in self.stated.scores.iter().enumerate() {
            let ours = self.opened.updates.preprocessing(i);
            if score.preprocessing != ours {
                let line = format!("valuation.scores[{i}].preprocessing");
                spotted.push_mismatch(
                    &line,
                    &format!("{:?}", score.preprocessing),
                    &format!("{ours:?}"),
                );
            }
        }
    }

    /// Recomputes the model, its metrics and the public baseline from the stated exclusions.
    fn check_model(
        &self,
        result: &WorkResult,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<(), WorkError> {
        let (inputs, opened) = (&self.inputs.round, self.opened);
        let slices = opened.slices();
        let mut source = opened.source(&slices, engine);
        let aggregated = match AggregatedModel::new(inputs, opened, self.stated, &mut source) {
            Ok(aggregated) => aggregated,
            // Impossible for an honest round.
            Err(error @ WorkError::Aggregation(_)) => {
                spotted.push_mismatch("model", &result.model, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let model_loss = aggregated.metrics.loss_after_nano;
        let ours = aggregated.finish(inputs, opened, self.stated, &mut source)?;
        let digest = blob_digest(&ours.bytes);
        if result.model != digest {
            spotted.push_mismatch("model", &result.model, &digest);
        }
        if result.baseline != ours.baseline {
            let text = |baseline: Option<PublicBaseline>| format!("{baseline:?}");
            spotted.push_mismatch("baseline", &text(result.baseline), &text(ours.baseline));
        }
        if model_loss.abs_diff(self.stated.model_loss_nano) > TOLERANCE_NANO {
            let line = "valuation.model_loss_nano";
            spotted.push_mismatch(line, &self.stated.model_loss_nano, &model_loss);
        }
        Self::check_metrics(result.metrics, ours.metrics, spotted);
        Ok(())
    }

    /// The cross-check that the task requires over the remaining members, with placeholder
    /// coalition values, and its number of passes.
    ///
    /// The choice of coalitions does not depend on their values, so any game yields the same ones.
    /// This game has interactions of every order and needs no evaluations.
    fn required_cross_check(&self) -> Result<Option<(CrossCheck, u64)>, WorkError> {
        let Estimator::Path { cross_check_pairs, .. } = self.inputs.round.spec.estimator else {
            return Ok(None);
        };
        let rows = &self.opened.updates.rows;
        let losses = |coefficients: &[f64]| {
            let parts = coefficients.iter().zip(1_u32..);
            let moved: f64 = parts.map(|(part, place)| part * f64::from(place).sqrt()).sum();
            Ok::<_, GameError>(vec![1.0 / (1.0 + moved)])
        };
        let slopes = |_: &[f64]| Ok::<Vec<Vec<f64>>, GameError>(Vec::new());
        let mut source = ClosureSource::new(rows.len(), losses, slopes);
        let seed = cross_check_seed(&self.inputs.round);
        Ok(cross_check(&mut source, rows, &self.remaining, seed, cross_check_pairs)?)
    }

    /// Checks that the stated cross-check uses the required coalitions, and that its scores follow
    /// from its stated values.
    fn check_cross_check(&self, due: Option<&CrossCheck>, spotted: &mut SpotCheckResult) {
        let mut ours = self.stated.clone();
        ours.evidence.cross_check = due.cloned();
        if let (Some(ours), Some(theirs)) =
            (&mut ours.evidence.cross_check, &self.stated.evidence.cross_check)
        {
            // The coalition values are checked by sampling, in `worths`.
            for (ours, theirs) in ours.table.iter_mut().zip(&theirs.table) {
                ours.value_nano = theirs.value_nano;
            }
        }
        if let Err(differs) = compare_cross_checks(&ours, self.stated) {
            spotted.push_mismatch(&differs.line, &differs.stated, &differs.recomputed);
        }
    }

    /// Recomputes the sampled scores, and whether the sampled updates should have been excluded.
    fn check_scores(
        &self,
        spot: SpotCheckOptions,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<(), WorkError> {
        let players = self.all_players.len();
        let drawn = sample_indices(&mut SeededRng::new(spot.seed, 0), players, spot.draws);
        spotted.scores = (drawn.len(), players);
        for player in drawn {
            let excluded = self.stated.scores[player].excluded;
            let members: &[usize] =
                if excluded { &self.all_players } else { self.valued_members() };
            if let Some(ours) = self.recompute_score(player, members, engine)? {
                self.compare_score(&ours, spotted);
            }
            if excluded || self.none_excluded() {
                continue;
            }
            if let Some(first) = self.recompute_score(player, &self.all_players, engine)?
                && self.is_harmful(&first)
            {
                spotted.push_mismatch(
                    &format!("valuation.scores[{player}].excluded"),
                    &false,
                    &true,
                );
            }
        }
        Ok(())
    }

    /// Derivatives, score and standard error of one player among `members`.
    fn recompute_score(
        &self,
        player: usize,
        members: &[usize],
        engine: &mut dyn Engine,
    ) -> Result<Option<RoundScore>, WorkError> {
        let slices = self.opened.slices();
        let mut source = self.opened.source(&slices, engine).for_player(player);
        let rows = &self.opened.updates.rows;
        let estimator = StageEstimator::Path { nodes: self.nodes() };
        // The path draws no random numbers, so the seed has no effect.
        let scores = value_members(&mut source, rows, members, estimator, 0)?;
        Ok(scores.into_iter().find(|score| score.player == player))
    }

    /// Whether a score is significantly negative even within the tolerance between machines.
    fn is_harmful(&self, ours: &RoundScore) -> bool {
        let score = ours.score_nano.saturating_add_unsigned(TOLERANCE_NANO);
        let error = ours.error_nano.saturating_add(TOLERANCE_NANO);
        is_negative_beyond_error(score, error, self.inputs.round.spec.budget.confidence_z.0)
    }

    fn compare_score(&self, ours: &RoundScore, spotted: &mut SpotCheckResult) {
        let player = ours.player;
        let theirs = &self.stated.scores[player];
        let slopes = &self.stated.evidence.derivatives_nano[player];
        let line = |field: &str| format!("valuation.scores[{player}].{field}");
        if ours.score_nano.abs_diff(theirs.score_nano) > TOLERANCE_NANO {
            spotted.push_mismatch(&line("score_nano"), &theirs.score_nano, &ours.score_nano);
        }
        if ours.error_nano.abs_diff(theirs.error_nano) > TOLERANCE_NANO {
            spotted.push_mismatch(&line("error_nano"), &theirs.error_nano, &ours.error_nano);
        }
        let far = |(a, b): (&i64, &i64)| a.abs_diff(*b) > TOLERANCE_NANO;
        if ours.derivatives_nano.len() != slopes.len()
            || ours.derivatives_nano.iter().zip(slopes).any(far)
        {
            let line = format!("valuation.evidence.derivatives_nano[{player}]");
            spotted.push_mismatch(
                &line,
                &format!("{slopes:?}"),
                &format!("{:?}", ours.derivatives_nano),
            );
        }
    }

    /// Recomputes the sampled coalition values of a table with the required coalitions.
    fn check_coalition_values(
        &self,
        due: &CrossCheck,
        spot: SpotCheckOptions,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<(), WorkError> {
        let Some(check) = &self.stated.evidence.cross_check else { return Ok(()) };
        let mut pairs = due.table.iter().zip(&check.table);
        let same = pairs.all(|(ours, theirs)| ours.members == theirs.members);
        if due.table.len() != check.table.len() || !same {
            // The difference is already recorded, and there is nothing to compare with other
            // coalitions.
            return Ok(());
        }
        let slices = self.opened.slices();
        let mut source = self.opened.source(&slices, engine);
        let weights = FixedWeights::over(&self.opened.updates.rows, &self.remaining);
        let weights = weights.map_err(RoundError::from)?;
        let mut game = AffineGame::new(&mut source, weights).map_err(RoundError::from)?;
        let drawn =
            sample_indices(&mut SeededRng::new(spot.seed, 1), check.table.len(), spot.draws);
        spotted.coalition_values = (drawn.len(), check.table.len());
        for at in drawn {
            let worth = &check.table[at];
            let mut coalition = Coalition::empty(self.remaining.len());
            for (place, player) in self.remaining.iter().enumerate() {
                if worth.members.iter().any(|entry| usize::from(*entry) == *player) {
                    coalition.insert(place);
                }
            }
            let ours = to_nano(game.value(&coalition).map_err(RoundError::from)?)?;
            if ours.abs_diff(worth.value_nano) > TOLERANCE_NANO {
                let line = format!("valuation.evidence.cross_check.table[{at}].value_nano");
                spotted.push_mismatch(&line, &worth.value_nano, &ours);
            }
        }
        Ok(())
    }

    /// Recomputes the losses before and after the round, and the figures derived from them and the
    /// stated scores.
    fn check_losses(
        &self,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<(), WorkError> {
        let slices = self.opened.slices();
        let mut source = self.opened.source(&slices, engine);
        let weights = FixedWeights::over(&self.opened.updates.rows, self.valued_members());
        let weights = weights.map_err(RoundError::from)?;
        let mut game = AffineGame::new(&mut source, weights).map_err(RoundError::from)?;
        let base = mean(game.base_losses().map_err(RoundError::from)?);
        let mut gained = 0.0;
        if self.any_counted_rows {
            let all = Coalition::full(self.remaining.len());
            gained = game.value(&all).map_err(RoundError::from)?;
        }
        let before = i128::from(to_nano(base)?);
        let after = i128::from(to_nano(base - gained)?);
        let total = before - after;
        let included = self.stated.scores.iter().filter(|score| !score.excluded);
        let explained: i128 = included.map(|score| i128::from(score.score_nano)).sum();
        let stated = self.stated;
        for (line, theirs, ours) in [
            ("valuation.loss_before_nano", stated.loss_before_nano, before),
            ("valuation.loss_after_nano", stated.loss_after_nano, after),
            ("valuation.total_nano", stated.total_nano, total),
            ("valuation.gap_nano", stated.gap_nano, total - explained),
        ] {
            if ours.abs_diff(i128::from(theirs)) > u128::from(TOLERANCE_NANO) {
                spotted.push_mismatch(line, &theirs, &ours);
            }
        }
        self.check_stages(spotted);
        Ok(())
    }

    /// Checks that the stages are those of the stated exclusions, and that the last one has the
    /// figures of the round. The figures of a first stage that another one follows are not sampled.
    fn check_stages(&self, spotted: &mut SpotCheckResult) {
        let stages = &self.stated.stages;
        let single = self.none_excluded() || !self.any_counted_rows;
        let due = if single { 1 } else { 2 };
        if stages.len() != due {
            spotted.push_mismatch("valuation.stages", &stages.len(), &due);
            return;
        }
        let passes = u64::from(self.nodes()) + STAGE_PASSES - 1;
        for (at, stage) in stages.iter().enumerate() {
            if stage.units != passes {
                spotted.push_mismatch(
                    &format!("valuation.stages[{at}].units"),
                    &stage.units,
                    &passes,
                );
            }
        }
        if let Some(last) = stages.last().filter(|_| self.any_counted_rows) {
            let line = format!("valuation.stages[{}]", due - 1);
            for (field, theirs, ours) in [
                ("total_nano", last.total_nano, self.stated.total_nano),
                ("gap_nano", last.gap_nano, self.stated.gap_nano),
            ] {
                if theirs != ours {
                    spotted.push_mismatch(&format!("{line}.{field}"), &theirs, &ours);
                }
            }
        }
    }

    /// Checks the class effects, of a sample of updates. Returns the passes that they take.
    fn check_class_effects(
        &self,
        spot: SpotCheckOptions,
        engine: &mut dyn Engine,
        spotted: &mut SpotCheckResult,
    ) -> Result<u64, WorkError> {
        let (spec, opened) = (self.inputs.round.spec, self.opened);
        let players = self.all_players.len();
        let drawn = sample_indices(&mut SeededRng::new(spot.seed, 2), players, spot.draws);
        let slices = opened.slices();
        let mut source = opened.source(&slices, engine);
        for ResultMismatch { line, recomputed, stated } in
            check_class_effects(spec, opened, self.stated, &drawn, &mut source)?
        {
            spotted.push_mismatch(&line, &stated, &recomputed);
        }
        Ok(class_passes(spec, opened))
    }

    /// Compares the metrics of the model before and after the round.
    fn check_metrics(theirs: ModelMetrics, ours: ModelMetrics, spotted: &mut SpotCheckResult) {
        if ours.loss_after_nano.abs_diff(theirs.loss_after_nano) > TOLERANCE_NANO {
            let line = "metrics.loss_after_nano";
            spotted.push_mismatch(line, &theirs.loss_after_nano, &ours.loss_after_nano);
        }
        for (line, theirs, ours) in [
            ("metrics.rows", theirs.rows, ours.rows),
            ("metrics.correct_before", theirs.correct_before, ours.correct_before),
            ("metrics.correct_after", theirs.correct_after, ours.correct_after),
        ] {
            if theirs != ours {
                spotted.push_mismatch(line, &theirs, &ours);
            }
        }
    }
}

/// A uniform sample of `draws` distinct numbers below `of`, ascending; all of them if there are
/// fewer.
fn sample_indices(draw: &mut SeededRng, of: usize, draws: u32) -> Vec<usize> {
    let wanted = usize::try_from(draws).unwrap_or(usize::MAX).min(of);
    let chosen: BTreeSet<usize> = draw.permutation(of).into_iter().take(wanted).collect();
    chosen.into_iter().collect()
}

/// ‖scores − cross-check scores‖ / ‖scores‖ over the updates that are not excluded.
fn cross_check_distance(stated: &Valuation) -> Option<f64> {
    let check = stated.evidence.cross_check.as_ref()?;
    let included = stated.scores.iter().filter(|score| !score.excluded);
    let mut squares = (0.0, 0.0);
    for (score, second) in included.zip(&check.scores_nano) {
        let (score, second) = (score.score_nano as f64, *second as f64);
        squares.0 += (score - second) * (score - second);
        squares.1 += score * score;
    }
    (squares.1 > 0.0).then(|| (squares.0 / squares.1).sqrt())
}
