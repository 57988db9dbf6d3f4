//! Counts the evaluations that an estimator requests of a game, and rejects every number that is
//! not finite.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::{
    Coalition, Game, PathIntegral, RunOptions, SmoothGame, ValuationError, ValuationProgress,
    ValueCache,
};

/// Pass limit of a run without a budget.
pub const PASSES_MAX: u64 = 1 << 26;

/// The only connection between an estimator and its game: it counts, reports, caches and checks
/// every pass.
pub struct EvaluationMeter<'a> {
    run: RunOptions<'a>,
    players: usize,
    rows: Option<usize>,
    planned: u64,
    budget: u64,
    started: Instant,
    own: ValueCache,
    /// Coalitions that this run has already used.
    used_coalitions: BTreeSet<Coalition>,
    evaluations: u64,
    gradients: u64,
}

impl<'a> EvaluationMeter<'a> {
    pub(crate) fn new(
        run: RunOptions<'a>,
        players: usize,
        passes_min: u64,
        passes_default: Option<u64>,
    ) -> Self {
        let unlimited = run.tolerance.is_some() || run.time.is_some();
        let default = if unlimited { None } else { passes_default };
        let budget = run.budget.or(default).unwrap_or(PASSES_MAX).min(PASSES_MAX).max(passes_min);
        let planned = if run.budget.is_some() || default.is_some() { budget } else { passes_min };
        Self {
            run,
            players,
            rows: None,
            planned,
            budget,
            started: Instant::now(),
            own: ValueCache::new(),
            used_coalitions: BTreeSet::new(),
            evaluations: 0,
            gradients: 0,
        }
    }

    /// The seed of all random numbers of the run.
    pub fn seed(&self) -> u64 {
        self.run.seed
    }

    /// The relative error at which a sampling estimator may stop.
    pub fn tolerance(&self) -> Option<f64> {
        self.run.tolerance
    }

    /// Whether a sampling estimator has converged: the run has a tolerance, and the norm of
    /// `errors` (one per player) is within it of the norm of `values`.
    pub fn has_converged(&self, values: &[f64], errors: &[f64]) -> bool {
        let norm = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>().sqrt();
        self.run.tolerance.is_some_and(|tolerance| norm(errors) <= tolerance * norm(values))
    }

    /// Passes left in the budget.
    pub fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.passes())
    }

    /// Whether `passes` more fit the budget, and the time limit is not reached.
    pub fn can_afford(&self, passes: u64) -> bool {
        let in_time = self.run.time.is_none_or(|time| self.started.elapsed() < time);
        in_time && passes <= self.budget_left()
    }

    /// Evaluations so far: number of distinct coalitions.
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Gradients so far.
    pub fn gradients(&self) -> u64 {
        self.gradients
    }

    /// The derivatives at all `nodes` in one call, counted as one gradient per node; `None` if the
    /// game differentiates node by node.
    ///
    /// # Errors
    /// As [`node_derivatives`](Self::slopes).
    pub fn path_integral<G: SmoothGame + ?Sized>(
        &mut self,
        game: &mut G,
        nodes: &[(f64, f64)],
    ) -> Result<Option<PathIntegral>, ValuationError> {
        let Some(along) = game.path_integral(nodes)? else { return Ok(None) };
        let (got, expected) = (along.node_derivatives.len(), nodes.len());
        if got != expected {
            return Err(ValuationError::ShapeMismatch { what: "nodes", got, expected });
        }
        self.check_derivatives(&along.integrals, 1.0)?;
        for (slopes, (t, _)) in along.node_derivatives.iter().zip(nodes) {
            let (got, expected) = (slopes.len(), self.players);
            if got != expected {
                return Err(ValuationError::ShapeMismatch {
                    what: "players with derivatives",
                    got,
                    expected,
                });
            }
            if let Some((player, &slope)) = first_not_finite(slopes) {
                return Err(ValuationError::DerivativeNotFinite {
                    player,
                    row: 0,
                    t: *t,
                    derivative: slope,
                });
            }
            self.gradients += 1;
            self.report_progress();
        }
        Ok(Some(along))
    }

    /// Adds `passes` to the number of planned passes.
    pub fn add_planned_passes(&mut self, passes: u64) {
        self.planned += passes;
    }

    /// Whether this run has already used `coalition`, so that using it again costs nothing.
    pub fn has_used(&self, coalition: &Coalition) -> bool {
        self.used_coalitions.contains(coalition)
    }

    /// The value of `coalition`.
    ///
    /// # Errors
    /// As [`values`](Self::values).
    pub fn value<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        coalition: &Coalition,
    ) -> Result<f64, ValuationError> {
        Ok(self.values(game, std::slice::from_ref(coalition))?[0])
    }

    /// The values of `coalitions`, in the given order. Each distinct coalition is evaluated at most
    /// once per valuation, and not at all if the run's cache contains it.
    ///
    /// # Errors
    /// [`ValuationError::ValueNotFinite`], [`ValuationError::ShapeMismatch`], or the game's own.
    pub fn values<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        coalitions: &[Coalition],
    ) -> Result<Vec<f64>, ValuationError> {
        let mut worths = vec![None; coalitions.len()];
        let mut missing: BTreeMap<&Coalition, Vec<usize>> = BTreeMap::new();
        for (at, coalition) in coalitions.iter().enumerate() {
            match self.cache().value(coalition) {
                Some(worth) => {
                    self.check_value(coalition, worth)?;
                    worths[at] = Some(worth);
                    self.count_use(coalition);
                }
                None => missing.entry(coalition).or_default().push(at),
            }
        }
        let missing: Vec<(&Coalition, Vec<usize>)> = missing.into_iter().collect();
        for chunk in missing.chunks(game.batch().max(1)) {
            let asked: Vec<Coalition> = chunk.iter().map(|(one, _)| (*one).clone()).collect();
            let answers = game.values(&asked)?;
            if answers.len() != asked.len() {
                let (got, expected) = (answers.len(), asked.len());
                return Err(ValuationError::ShapeMismatch { what: "values", got, expected });
            }
            for ((coalition, places), worth) in chunk.iter().zip(answers) {
                self.check_value(coalition, worth)?;
                self.cache_mut().insert((*coalition).clone(), worth);
                self.count_use(coalition);
                places.iter().for_each(|&at| worths[at] = Some(worth));
            }
        }
        Ok(worths.into_iter().flatten().collect())
    }

    /// The value of `coalition` on each row.
    ///
    /// # Errors
    /// [`ValuationError::ValueNotFinite`], [`ValuationError::ShapeMismatch`], or the game's own.
    pub fn value_rows<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        coalition: &Coalition,
    ) -> Result<Vec<f64>, ValuationError> {
        Ok(self.value_rows_of(game, std::slice::from_ref(coalition))?.concat())
    }

    /// The values of several coalitions on each row, in the given order: one batch of the game.
    ///
    /// # Errors
    /// As [`value_rows`](Self::value_rows).
    pub fn value_rows_of<G: Game + ?Sized>(
        &mut self,
        game: &mut G,
        coalitions: &[Coalition],
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let is_new = |coalition: &&Coalition| self.cache().rows(coalition).is_none();
        let asked: Vec<Coalition> = coalitions.iter().filter(is_new).cloned().collect();
        let answers = if asked.is_empty() { Vec::new() } else { game.value_rows_of(&asked)? };
        if answers.len() != asked.len() {
            let (got, expected) = (answers.len(), asked.len());
            return Err(ValuationError::ShapeMismatch { what: "values", got, expected });
        }
        let mut answers = answers.into_iter();
        let mut all = Vec::with_capacity(coalitions.len());
        for coalition in coalitions {
            let known = self.cache().rows(coalition).map(<[f64]>::to_vec);
            let rows = known.or_else(|| answers.next()).unwrap_or_default();
            self.check_rows(rows.len())?;
            if let Some((row, &worth)) = first_not_finite(&rows) {
                let coalition = coalition.clone();
                return Err(ValuationError::ValueNotFinite { coalition, row, value: worth });
            }
            self.count_use(coalition);
            all.push(rows);
        }
        // Only a borrowed cache outlives this valuation; no estimator evaluates the same rows
        // twice.
        if let Some(cache) = self.run.cache.as_mut() {
            for (coalition, rows) in coalitions.iter().zip(&all) {
                cache.insert_rows(coalition.clone(), rows);
            }
        }
        Ok(all)
    }

    /// The value on each row when every player participates with `t`.
    ///
    /// # Errors
    /// [`ValuationError::DiagonalNotFinite`] (at 0 and 1 [`ValuationError::ValueNotFinite`], since
    /// those are coalitions), [`ValuationError::ShapeMismatch`], or the game's own.
    pub fn diagonal<G: SmoothGame + ?Sized>(
        &mut self,
        game: &mut G,
        t: f64,
    ) -> Result<Vec<f64>, ValuationError> {
        let rows = game.diagonal(t)?;
        self.check_rows(rows.len())?;
        if let Some((row, &worth)) = first_not_finite(&rows) {
            return Err(self.diagonal_not_finite(t, row, worth));
        }
        self.evaluations += 1;
        self.report_progress();
        Ok(rows)
    }

    /// The directional derivatives when every player participates with `t`: `[player][row]`.
    ///
    /// # Errors
    /// [`ValuationError::DerivativeNotFinite`], [`ValuationError::ShapeMismatch`], or the game's own.
    pub fn directional_derivatives<G: SmoothGame + ?Sized>(
        &mut self,
        game: &mut G,
        t: f64,
    ) -> Result<Vec<Vec<f64>>, ValuationError> {
        let slopes = game.directional_derivatives(t)?;
        self.check_derivatives(&slopes, t)?;
        self.gradients += 1;
        self.report_progress();
        Ok(slopes)
    }

    fn check_derivatives(&mut self, slopes: &[Vec<f64>], t: f64) -> Result<(), ValuationError> {
        if slopes.len() != self.players {
            let (got, expected) = (slopes.len(), self.players);
            return Err(ValuationError::ShapeMismatch {
                what: "players with derivatives",
                got,
                expected,
            });
        }
        for (player, rows) in slopes.iter().enumerate() {
            self.check_rows(rows.len())?;
            if let Some((row, &slope)) = first_not_finite(rows) {
                return Err(ValuationError::DerivativeNotFinite {
                    player,
                    row,
                    t,
                    derivative: slope,
                });
            }
        }
        Ok(())
    }

    fn cache(&self) -> &ValueCache {
        self.run.cache.as_deref().unwrap_or(&self.own)
    }

    fn cache_mut(&mut self) -> &mut ValueCache {
        self.run.cache.as_deref_mut().unwrap_or(&mut self.own)
    }

    /// Counts a coalition at its first use.
    fn count_use(&mut self, coalition: &Coalition) {
        if self.used_coalitions.insert(coalition.clone()) {
            self.evaluations += 1;
            self.report_progress();
        }
    }

    fn check_value(&self, coalition: &Coalition, worth: f64) -> Result<(), ValuationError> {
        if worth.is_finite() {
            return Ok(());
        }
        let coalition = coalition.clone();
        Err(ValuationError::ValueNotFinite { coalition, row: 0, value: worth })
    }

    fn passes(&self) -> u64 {
        self.evaluations + self.gradients
    }

    fn report_progress(&mut self) {
        let progress = ValuationProgress { done: self.passes(), planned: self.planned };
        if let Some(watch) = self.run.on_progress.as_mut() {
            watch(progress);
        }
    }

    fn check_rows(&mut self, got: usize) -> Result<(), ValuationError> {
        let expected = *self.rows.get_or_insert(got);
        if got == 0 {
            return Err(ValuationError::ShapeMismatch { what: "rows", got, expected: 1 });
        }
        if got != expected {
            return Err(ValuationError::ShapeMismatch { what: "rows", got, expected });
        }
        Ok(())
    }

    fn diagonal_not_finite(&self, t: f64, row: usize, worth: f64) -> ValuationError {
        if t == 0.0 || t == 1.0 {
            let coalition = if t == 0.0 {
                Coalition::empty(self.players)
            } else {
                Coalition::full(self.players)
            };
            return ValuationError::ValueNotFinite { coalition, row, value: worth };
        }
        ValuationError::DiagonalNotFinite { t, row, worth }
    }
}

fn first_not_finite(rows: &[f64]) -> Option<(usize, &f64)> {
    rows.iter().enumerate().find(|(_, row)| !row.is_finite())
}
